# SPDX-License-Identifier: Apache-2.0
"""Kubernetes device-plugin daemons for NVIDIA GPUs."""
