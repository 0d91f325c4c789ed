# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 (RFC 9113), as much as our servers and kubelet's clients need of it."""
