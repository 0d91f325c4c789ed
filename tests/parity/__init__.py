# SPDX-License-Identifier: Apache-2.0
"""How our plugin differs from NVIDIA's on the same simulated node."""
