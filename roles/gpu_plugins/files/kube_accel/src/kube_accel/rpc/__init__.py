# SPDX-License-Identifier: Apache-2.0
"""gRPC over unix sockets, as much of it as kubelet and its plugins need: ``server``, ``channel`` and what both need."""
