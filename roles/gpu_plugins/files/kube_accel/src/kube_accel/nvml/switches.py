# SPDX-License-Identifier: Apache-2.0
"""Which bad news counts: the environment variables of NVIDIA's device plugin, with the meaning they have there. Pure.

``DP_DISABLE_HEALTHCHECKS`` holds XIDs not to act on, or the word ``all`` or ``xids``; ``DP_ENABLE_HEALTHCHECKS`` holds
XIDs to act on whatever else was said, those of applications too, or one of these words for every XID. What is enabled
wins. ``all`` also stops acting on memory errors and on resets the driver asks for; a GPU that does not answer is
withdrawn all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kube_accel.shared.gpu_xids import HARMLESS

DISABLE, ENABLE = "DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS"
_ALL, _XIDS = "all", "xids"


@dataclass(frozen=True, slots=True)
class Switches:
    """What counts. The default is what counts when neither variable is set."""

    ignored: frozenset[int] = HARMLESS
    """XIDs that do not count."""
    counted: frozenset[int] = frozenset()
    """XIDs that count whatever else is said."""
    all_xids: bool | None = None
    """True: every XID counts. False: only the ``counted`` ones do. None: all but the ``ignored`` ones."""
    driver_word: bool = True
    """Memory errors count, and resets that the driver asks for."""

    def counts(self, xid: int) -> bool:
        """Return whether this XID makes a GPU unhealthy."""
        if self.all_xids or xid in self.counted:
            return True
        return self.all_xids is None and xid not in self.ignored


def read(environment: Mapping[str, str]) -> tuple[Switches, tuple[str, ...]]:
    """Return the switches, and a sentence for each word that is neither a number nor known: it has no effect."""
    disable, disable_words, wrong = _parsed(environment, DISABLE)
    enable, enable_words, wrong_too = _parsed(environment, ENABLE)
    switches = Switches(
        ignored=HARMLESS | disable,
        counted=enable,
        all_xids=True if enable_words else False if disable_words else None,
        driver_word=_ALL not in disable_words,
    )
    return switches, (*wrong, *wrong_too)


def _parsed(environment: Mapping[str, str], name: str) -> tuple[frozenset[int], frozenset[str], list[str]]:
    words = {word for word in (part.strip() for part in environment.get(name, "").lower().split(",")) if word}
    numbers = {word for word in words if word.isascii() and word.isdecimal() and len(word) < 10}
    known = words & {_ALL, _XIDS}
    wrong = [
        f"{name}: {word!r} is no XID and has no effect; write XID numbers, {_ALL} or {_XIDS}, with commas between"
        for word in sorted(words - numbers - known)
    ]
    return frozenset(map(int, numbers)), frozenset(known), wrong
