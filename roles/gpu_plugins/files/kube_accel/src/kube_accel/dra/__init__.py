# SPDX-License-Identifier: Apache-2.0
"""The DRA driver of a node: publishes its GPUs as ResourceSlices, and prepares what claims were given of them."""
