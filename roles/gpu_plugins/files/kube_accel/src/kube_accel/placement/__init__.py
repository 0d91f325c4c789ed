# SPDX-License-Identifier: Apache-2.0
"""Pure decisions: which GPUs of a node to take."""
