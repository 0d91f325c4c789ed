# SPDX-License-Identifier: Apache-2.0
"""Cuts the node's GPUs by MIG, as its label says."""
