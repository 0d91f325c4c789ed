# SPDX-License-Identifier: Apache-2.0
"""The kubelet's side of a node: device lists, registration, allocation."""
