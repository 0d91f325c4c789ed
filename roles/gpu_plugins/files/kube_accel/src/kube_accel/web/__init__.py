# SPDX-License-Identifier: Apache-2.0
"""HTTP for kube-scheduler, probes and Prometheus: as much of it as they speak, within bounds that hold for anybody."""
