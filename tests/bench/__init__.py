# SPDX-License-Identifier: Apache-2.0
"""Benches: the shipped commands, measured from outside."""
