# SPDX-License-Identifier: Apache-2.0
"""What a watch that selects a single object keeps. Apart from ``kube.watch``, which loads HTTP and TLS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_KEY = "it"


class SingleObjectStore:
    """The one object that a watch selects."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.item: Mapping[str, Any] = {}
        self.problem = ""
        """Why the object cannot be read as it is now; ``item`` is what it was before. Empty when it can be read."""
        self._on_change = on_change

    def keep(self, item: dict[str, Any]) -> str | None:
        """Note that the object is there."""
        changed = item != self.item or self.problem
        self.item, self.problem = item, ""
        if changed:
            self._on_change()
        return _KEY

    def odd(self, item: object, reason: str) -> set[str]:
        """Note that the object is there and cannot be read."""
        if reason != self.problem:
            self.problem = reason
            self._on_change()
        return {_KEY}

    def drop(self, item: dict[str, Any]) -> None:
        """Note that the object is gone."""
        self.lose(_KEY)

    def keys(self) -> set[str]:
        """Return the object's key, while there is one."""
        return {_KEY} if self.item or self.problem else set()

    def lose(self, key: str) -> None:
        """Note that a new list does not have the object."""
        self.item, self.problem = {}, ""
        self._on_change()
