# SPDX-License-Identifier: Apache-2.0
"""Cuts GPUs by MIG. Planner and NVML's part are files of the collection's modules, which have no other place to be."""
