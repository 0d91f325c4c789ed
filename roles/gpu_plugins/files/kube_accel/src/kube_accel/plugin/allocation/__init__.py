# SPDX-License-Identifier: Apache-2.0
"""Which devices a container gets, and whether it may start with them."""
