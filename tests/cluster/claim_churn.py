# SPDX-License-Identifier: Apache-2.0
"""Pods with claims that come and go on a node of mode dra, while one component after another is killed."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import Any
from urllib.error import URLError

from cluster.accounts import ENDED
from cluster.churn import Plan, drain, keep
from cluster.dra import DRIVER, GROUP, MEMORY, SHARES, DraNode
from cluster.node import pod
from cluster.rig import PODS, Rig

TEMPLATES = f"{GROUP}/namespaces/default/resourceclaimtemplates"
WHOLE = "whole"
_SHARES = {10: 4, 20: 4, 30: 3, 50: 2}
"""Percent of a GPU that a container claims, each with its weight."""
_WHOLE_WEIGHT = 1
_TWO = 0.2
"""Part of the pods that have two containers, each with a request of its own."""
_DOOMED = 0.2
"""Part of the pods that are deleted before they end."""
_FORCED = 0.3
"""Part of those that are deleted by force."""


def templates() -> Iterator[dict[str, Any]]:
    """A ResourceClaimTemplate for each size, ``whole`` or ``share-PERCENT``, and for each two: one request for each."""
    sizes: dict[str, dict[str, Any]] = {WHOLE: {"deviceClassName": DRIVER}}
    for percent in _SHARES:
        amounts = {"cores": str(percent), "memory": f"{79 * percent // 100}Gi"}
        sizes[f"share-{percent}"] = {"deviceClassName": SHARES, "capacity": {"requests": amounts}}
    for chosen in (*((size,) for size in sizes), *product(sizes, repeat=2)):
        requests = [{"name": f"c{number}", "exactly": sizes[size]} for number, size in enumerate(chosen)]
        head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
        yield {**head, "metadata": {"name": _template(chosen)}, "spec": {"spec": {"devices": {"requests": requests}}}}


def _template(sizes: Sequence[str]) -> str:
    return "-and-".join(sizes)


def claiming(name: str, *sizes: str, **spec: Any) -> dict[str, Any]:
    """A pod with a container for each of these sizes, and one claim with a request for each container.

    With a claim for each, kube-controller-manager 1.36.2 may lose one of their names for ever (k#138407).
    """
    made = pod(name, *({} for _ in sizes), **spec)
    made["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": _template(sizes)}]
    for container in made["spec"]["containers"]:
        container["resources"] = {"claims": [{"name": "gpus", "request": container["name"]}]}
    return made


class ClaimChurn:
    """Keeps so many pods with claims there, which end by themselves or are deleted, and kills what serves them."""

    def __init__(self, rig: Rig, node: DraNode, plan: Plan, killers: Mapping[str, Callable[[], None]]) -> None:
        """``killers`` end a component each, by its name, and start it anew where nobody else does."""
        self._rig, self._node, self._plan, self._killers = rig, node, plan, killers
        self._random = random.Random(plan.seed)
        self._number = 0
        self._doomed: dict[str, float] = {}
        self.most = 0
        """Claims that were prepared at a time."""
        self.looks = 0
        self.wrong: list[str] = []
        """GPUs of which more was prepared than there is."""
        self.kills: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        """How pods ended."""
        self.failures: list[str] = []

    def run(self) -> None:
        """All of it, but for the pods that are left."""
        keep(self._plan, self._killers, self.kills, self._turn)

    def drain(self, patience: float) -> list[str]:
        """Let every pod come to its end; the names of those left when none has ended for so many seconds."""
        return [each["metadata"]["name"] for each in drain(self._turn, self.ends, patience)]

    def _turn(self, now: float, pods: int) -> list[Any] | None:
        """Look at what there is, take away what is over, and fill up; the pods left, if the API server says."""
        self._look()
        with suppress(URLError, OSError, AssertionError):
            found = [
                each for each in self._rig.api.get(PODS)["items"] if each["metadata"].get("labels", {}).get("churn")
            ]
            left = [each for each in found if not self._take_away(each, now)]
            for _ in range(pods - len(left)):
                self._rig.api.create(PODS, self._pod())
            return left
        return None

    def _look(self) -> None:
        taken = self._node.taken()
        self.looks += 1
        self.most = max(self.most, len(self._node.prepared()))
        self.wrong += [
            f"{uuid}: {cores} % and {memory} bytes"
            for uuid, (cores, memory) in taken.items()
            if cores > 100 or memory > MEMORY
        ]

    def _take_away(self, found: Any, now: float) -> bool:
        """Delete a pod that has ended, or whose time is up; whether it was counted as ended."""
        name, phase = found["metadata"]["name"], found["status"]["phase"]
        ended = phase in ENDED
        if found["metadata"].get("deletionTimestamp") or (not ended and now < self._doomed.get(name, now + 1)):
            return False
        forced = not ended and self._random.random() < _FORCED
        self._rig.api.call("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0 if ended or forced else 1})
        if phase == "Failed":
            self.failures.append(f"{name}: {found['status']}")
        self.ends[phase if ended else f"deleted{' by force' * forced}, {phase}"] += 1
        return ended

    def _pod(self) -> Any:
        self._number += 1
        name = f"churn-{self._number}"
        count = 2 if self._random.random() < _TWO else 1
        sizes = [*(f"share-{percent}" for percent in _SHARES), WHOLE]
        chosen = self._random.choices(sizes, [*_SHARES.values(), _WHOLE_WEIGHT], k=count)
        made = claiming(name, *chosen, restartPolicy="OnFailure")
        made["metadata"]["labels"] = {"churn": "yes"}
        stay = self._random.uniform(self._plan.stay_seconds / 4, self._plan.stay_seconds)
        for container in made["spec"]["containers"]:
            container["command"] = ["/bin/sleep", f"{stay:.0f}"]
        if self._random.random() < _DOOMED:
            self._doomed[name] = time.monotonic() + self._random.uniform(0, 2 * self._plan.stay_seconds)
        return made

    def report(self) -> Iterator[str]:
        """What it was, in lines."""
        yield f"dra: {self._plan}"
        yield f"  {self._number} pods; {dict(self.ends)}; at most {self.most} claims prepared at a time"
        yield f"  killed: {dict(self.kills)}"
        yield f"  looked {self.looks} times; wrong: {len(self.wrong)}"
