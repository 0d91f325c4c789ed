# SPDX-License-Identifier: Apache-2.0
"""Kubernetes device-plugin daemons for NVIDIA GPUs."""

__version__ = "0.1.0"
