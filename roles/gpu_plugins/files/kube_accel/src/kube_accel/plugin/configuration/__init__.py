# SPDX-License-Identifier: Apache-2.0
"""Flags and configuration files, and what they demand of a node."""
