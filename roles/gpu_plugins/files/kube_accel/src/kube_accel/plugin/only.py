# SPDX-License-Identifier: Apache-2.0
"""What a watch that selects a single object keeps. Apart from ``kube.watch``, which loads HTTP and TLS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class Only:
    """The one object that a watch selects."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.item: Mapping[str, Any] = {}
        self._on_change = on_change

    def keep(self, item: dict[str, Any]) -> str | None:
        """It is there."""
        if item != self.item:
            self.item = item
            self._on_change()
        return "it"

    def drop(self, item: dict[str, Any]) -> None:
        """It is gone."""
        self.lose("it")

    def keys(self) -> set[str]:
        """Of what there is."""
        return {"it"} if self.item else set()

    def lose(self, key: str) -> None:
        """It went unseen."""
        self.item = {}
        self._on_change()
