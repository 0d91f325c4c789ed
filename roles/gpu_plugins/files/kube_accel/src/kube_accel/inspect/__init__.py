# SPDX-License-Identifier: Apache-2.0
"""Who has what of the GPUs. What is seen and how it is shown are files of the collection's modules."""
