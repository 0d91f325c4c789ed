# SPDX-License-Identifier: Apache-2.0
"""A GPU cluster without GPUs: NVML, kubelet and API server as our playbooks, modules and daemons see them."""
