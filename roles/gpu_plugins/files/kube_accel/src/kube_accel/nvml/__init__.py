# SPDX-License-Identifier: Apache-2.0
"""The only room that talks to NVML, through a spawned worker with deadlines."""
