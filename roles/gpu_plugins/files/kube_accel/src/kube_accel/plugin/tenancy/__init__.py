# SPDX-License-Identifier: Apache-2.0
"""Containers that share GPUs while they run: limits, accounts, misuse, metering."""
