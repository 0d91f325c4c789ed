# SPDX-License-Identifier: Apache-2.0
"""Counts the pods that wait for claims of GPUs. Asks for each claim, or the template of many, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from kube_accel.kube.api import ApiRefusedError, claim_path, template_path
from kube_accel.kube.client import KubeClient
from kube_accel.plugin.node.pending_pods import Counts, count
from kube_accel.shared.claim_view import CLAIMS, asks_for_gpus, claim_sources
from kube_accel.shared.modes import DRA_MODE

_MOST_ASKED: Final = 500
"""Claims and templates that are asked for at one count: whoever makes more is counted a minute later."""
_MOST_OF_ONE: Final = 50
"""The same of one namespace, so that the others are counted."""
_LONGEST_PAUSE: Final = 32
"""Counts to the next question for one that is not there; it is twice as many each time."""
_NOT_FOUND: Final = 404

_Source = tuple[str, str, str]
"""Kind, namespace, and name."""


class PendingClaims:
    """Counts, each time it is called. For one thread."""

    def __init__(self, client: KubeClient, everything: bool) -> None:
        """``everything``: count the pods that ask for extended resources, too, as no extender does."""
        self._client = client
        self._everything = everything
        self._known: dict[_Source, bool] = {}
        """Whether it asks for our GPUs, which does not change: neither has a spec that can be edited."""
        self._missing: dict[_Source, tuple[int, int]] = {}
        """What was not there: the count at which it is asked for again, and the counts in between."""
        self._counts = 0
        self._used: set[_Source] = set()
        self._asked: Counter[str] = Counter()
        """How many were asked for at this count, by namespace."""

    def __call__(self) -> Counts:
        """Return how many pods without a node there are, by namespace and mode. Raises ApiError."""
        self._used, self._asked, self._counts = set(), Counter(), self._counts + 1
        found = count(self._client, self._waits)
        self._known = {source: ours for source, ours in self._known.items() if source in self._used}
        self._missing = {source: pause for source, pause in self._missing.items() if source in self._used}
        return {key: number for key, number in found.items() if self._everything or key[1] == DRA_MODE}

    def _waits(self, pod: Mapping[str, Any]) -> bool:
        namespace = pod["metadata"]["namespace"]
        return any(self._is_ours((kind, namespace, name)) for kind, name in claim_sources(pod))

    def _is_ours(self, source: _Source) -> bool:
        self._used.add(source)
        kind, namespace, name = source
        again, pause = self._missing.get(source, (0, 0))
        due = source not in self._known and self._counts >= again
        if due and self._asked[namespace] < _MOST_OF_ONE and self._asked.total() < _MOST_ASKED:
            self._asked[namespace] += 1
            path = claim_path(namespace, name) if kind == CLAIMS else template_path(namespace, name)
            try:
                self._known[source] = asks_for_gpus(self._client.get(path))
            except ApiRefusedError as error:
                if error.status != _NOT_FOUND:
                    raise
                pause = min(max(1, 2 * pause), _LONGEST_PAUSE)
                self._missing[source] = self._counts + pause, pause
        return self._known.get(source, False)
