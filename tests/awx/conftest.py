# SPDX-License-Identifier: Apache-2.0
"""Tests that hold the example for AWX against the collection."""

from __future__ import annotations

import collection  # noqa: F401 -- its code is importable from here on
