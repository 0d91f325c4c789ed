# SPDX-License-Identifier: Apache-2.0
"""The room that talks to kubelet and to the API server. Light on purpose: importing it loads nothing else."""
