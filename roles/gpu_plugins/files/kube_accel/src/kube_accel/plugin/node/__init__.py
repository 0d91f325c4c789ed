# SPDX-License-Identifier: Apache-2.0
"""What the daemon writes about its node and pods, and the files that it leaves there."""
