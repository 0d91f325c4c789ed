# SPDX-License-Identifier: Apache-2.0
"""What a mode offers: device ids and what a container receives for them."""
