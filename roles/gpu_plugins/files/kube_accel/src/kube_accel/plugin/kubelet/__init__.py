# SPDX-License-Identifier: Apache-2.0
"""What kubelet calls, and what it is answered."""
