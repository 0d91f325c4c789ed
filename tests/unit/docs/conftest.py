# SPDX-License-Identifier: Apache-2.0
"""The docs are compared with the collection's own tables."""

from __future__ import annotations

import collection  # noqa: F401 -- the collection is importable from here on
