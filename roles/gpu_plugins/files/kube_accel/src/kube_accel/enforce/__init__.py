# SPDX-License-Identifier: Apache-2.0
"""How a share is enforced."""
