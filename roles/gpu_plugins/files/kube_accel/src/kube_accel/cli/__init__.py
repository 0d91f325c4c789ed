# SPDX-License-Identifier: Apache-2.0
"""Commands: parse, wire, run."""
