# SPDX-License-Identifier: Apache-2.0
"""Pods that come and go on the rig's node, while one component after another is killed."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.error import URLError

from cluster import accounts
from cluster.accounts import Cards, Container, Part
from cluster.node import STATE, pod
from cluster.rig import CONTAINERD_PID, KUBELET_ROOT, PODS, Rig, processes
from kube_accel.kube.podresources import PodResourcesClient, PodResourcesError
from kube_accel.model import Mode
from kube_accel.plugin.allocation import ledger
from kube_accel.sharing.profile import PROFILES

COMPONENTS = ("plugin", "extender", "kubelet", "kube-scheduler", "kube-apiserver", "containerd")
REFUSED = re.compile("UnexpectedAdmissionError|OutOf.*")
"""Kubelet, up to 1.36 at least, refuses what it is to admit while the plugin is not registered. The plugin removes such
pods, for their controller to make others."""
_COMMANDS = {
    "plugin": ["kube-accel", "plugin"],
    "extender": ["kube-accel", "extender"],
    "kube-scheduler": ["kube-scheduler"],
}
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
_PAUSE = 1.0
_CORES = {5: 3, 10: 4, 20: 4, 30: 3, 50: 2, 100: 1}
"""Percent of a GPU that a container asks for, each with its weight: some thirty pods run on eight GPUs."""
_TWO = 0.2
"""Part of the pods that have two containers."""
_GIB = 1 << 30


def _number(name: str, otherwise: float) -> float:
    return float(os.environ.get(f"KUBE_ACCEL_CHURN_{name}", otherwise))


@dataclass(frozen=True, slots=True)
class Plan:
    """KUBE_ACCEL_CHURN_PODS, _SECONDS, _KILL_SECONDS, _STAY_SECONDS and _SEED say otherwise."""

    pods: int = field(default_factory=lambda: int(_number("PODS", 100)))
    """That exist at a time, running and waiting."""
    seconds: float = field(default_factory=lambda: _number("SECONDS", 600))
    kill_seconds: float = field(default_factory=lambda: _number("KILL_SECONDS", 20))
    """From one kill to the next."""
    stay_seconds: float = field(default_factory=lambda: _number("STAY_SECONDS", 90))
    """The longest that a pod runs; the shortest is a quarter."""
    seed: int = field(default_factory=lambda: int(_number("SEED", time.time_ns() % 10**6)))


Turn = Callable[[float, int], list[Any] | None]
"""Looks at what there is and fills up to so many pods, at a time; those left, if the API server says."""


def keep(plan: Plan, killers: Mapping[str, Callable[[], None]], kills: Counter[str], turn: Turn) -> None:
    """Take turns for as long as planned, and kill one component after another, which is counted."""
    victims = cycle(killers)
    begin = time.monotonic()
    kill_at = begin + plan.kill_seconds
    while (now := time.monotonic()) < begin + plan.seconds:
        if now >= kill_at:
            kill_at += plan.kill_seconds
            name = next(victims)
            killers[name]()
            kills[name] += 1
        turn(now, plan.pods)
        time.sleep(_PAUSE)


def drain(turn: Turn, ends: Counter[str], patience: float) -> list[Any]:
    """Let every pod come to its end; those left when none has ended for so many seconds."""
    ended, at = ends.total(), time.monotonic()
    while (left := turn(time.monotonic(), 0)) is None or left:
        if ends.total() > ended:
            ended, at = ends.total(), time.monotonic()
        elif left is not None and time.monotonic() > at + patience:
            break
        time.sleep(_PAUSE)
    return left


class Books:
    """What the node's kubelet and its ledger say of a mode's GPUs, and what was wrong with it."""

    def __init__(self, mode: Mode, cards: Cards) -> None:
        self._profile = PROFILES[mode]
        self._cards = cards
        self._kubelet = PodResourcesClient(KUBELET_ROOT / "pod-resources/kubelet.sock")
        self.wrong: list[str] = []
        self.looks: Counter[str] = Counter()
        """How often each was asked and answered."""
        self.most = 0
        """Containers that held something at a time."""

    def kubelet(self) -> list[Part]:
        """Raises PodResourcesError."""
        return accounts.of_kubelet(self._kubelet.list(timeout=5), self._profile, self._cards)

    def ledger(self) -> list[Part]:
        """Raises ledger.LedgerError."""
        return accounts.of_ledger(ledger.running(STATE))

    def told(self) -> list[str]:
        """Where kubelet and the ledger differ. Raises PodResourcesError and ledger.LedgerError."""
        return accounts.differences(self.ledger(), self.kubelet())

    def look(self, running: Set[Container]) -> None:
        """Check that what these containers have is there, by both as far as they answer."""
        parts: dict[str, list[Part]] = {}
        with suppress(PodResourcesError):
            parts["kubelet"] = self.kubelet()
            self.most = max(self.most, len(parts["kubelet"]))
        with suppress(ledger.LedgerError):
            parts["ledger"] = self.ledger()
        for source, found in parts.items():
            self.looks[source] += 1
            started = accounts.of_running(found, running)
            self.wrong += [f"{source}: {fault}" for fault in accounts.overcommitted(started, self._cards)]


class Churn:
    """Keeps so many pods of a mode there, which end by themselves or are deleted, and kills what serves them."""

    def __init__(self, rig: Rig, mode: Mode, plan: Plan, cards: Cards) -> None:
        self._rig, self._mode, self._plan = rig, mode, plan
        self._random = random.Random(plan.seed)
        self._number = 0
        self._doomed: dict[str, float] = {}
        """When a pod is deleted, whatever it does by then."""
        self._seen: Set[str] = frozenset()
        self._taken: set[str] = set()
        """Pods that were deleted here."""
        self._owner: Any = None
        self._running: Set[Container] = frozenset()
        """As far as the API server told last."""
        self.books = Books(mode, cards)
        self.kills: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        """How pods ended."""
        self.failures: list[str] = []
        """Pods that failed, other than by being refused."""

    def run(self) -> None:
        """All of it, but for the pods that are left."""
        # Pods of a controller: one that kubelet cannot start with what it gave it is removed by the plugin.
        kind = {"apiVersion": "v1", "kind": "ConfigMap"}
        made = self._rig.api.create(CONFIG_MAPS, kind | {"metadata": {"generateName": "churn-"}})["metadata"]
        self._owner = kind | {"name": made["name"], "uid": made["uid"], "controller": True}
        keep(self._plan, {name: partial(kill, self._rig, name) for name in COMPONENTS}, self.kills, self._turn)

    def drain(self, patience: float) -> list[str]:
        """Let every pod come to its end; those that have not when none has for so many seconds.

        Whoever asks for whole GPUs has waited for pods with less, and comes last.
        """
        return accounts.unended(drain(self._turn, self.ends, patience))

    def _turn(self, now: float, pods: int) -> list[Any] | None:
        """Look at what there is, take away what is over and fill up to so many; those left, if the API server says."""
        found: list[Any] | None = None
        with suppress(URLError, OSError, AssertionError):
            there = self._rig.api.get(PODS)["items"]
            self._running = accounts.running(there)
            found = [each for each in there if each["metadata"].get("labels", {}).get("churn")]
        self.books.look(self._running)
        if found is None:
            return None
        left = []
        names = {each["metadata"]["name"] for each in found}
        self.ends["removed by the plugin"] += len(self._seen - names - self._taken)
        self._seen = names
        with suppress(URLError, OSError, AssertionError):
            for each in found:
                if not self._take_away(each, now):
                    left.append(each)
            for _ in range(pods - len(left)):
                self._rig.api.create(PODS, self._pod())
        return left

    def _take_away(self, found: Any, now: float) -> bool:
        """Delete a pod that has ended, or whose time is up; whether it was counted."""
        name, phase = found["metadata"]["name"], found["status"]["phase"]
        ended = phase in accounts.ENDED
        if found["metadata"].get("deletionTimestamp") or (not ended and now < self._doomed.get(name, now + 1)):
            return False
        self._rig.api.call("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0 if ended else 1})
        self._taken.add(name)
        how = phase if ended else f"deleted, {phase}"
        if phase == "Failed":
            reason = found["status"].get("reason", "a container")
            how = f"Failed, {reason}"
            if not REFUSED.fullmatch(reason):
                self.failures.append(f"{name}: {found['status']}")
        self.ends[how] += 1
        return ended

    def _pod(self) -> Any:
        self._number += 1
        name = f"churn-{self._number}"
        count = 2 if self._random.random() < _TWO else 1
        cores = self._random.choices(list(_CORES), list(_CORES.values()), k=count)
        made = pod(
            name, *(limits(self._mode, each) for each in cores), restartPolicy="OnFailure", runtimeClassName="nvidia"
        )
        made["metadata"] |= {"labels": {"churn": "yes"}, "ownerReferences": [self._owner]}
        stay = self._random.uniform(self._plan.stay_seconds / 4, self._plan.stay_seconds)
        for container in made["spec"]["containers"]:
            container["command"] = ["/bin/sleep", f"{stay:.0f}"]
        if self._random.random() < 0.2:
            self._doomed[name] = time.monotonic() + self._random.uniform(0, 2 * self._plan.stay_seconds)
        return made

    def report(self) -> Iterator[str]:
        """What it was, in lines."""
        yield f"{self._mode}: {self._plan}"
        yield f"  {self._number} pods; {_told(self.ends)}; at most {self.books.most} containers with GPUs at a time"
        yield f"  killed: {_told(self.kills)}"
        yield f"  looked at: {_told(self.books.looks)}; wrong: {len(self.books.wrong)}"


def limits(mode: Mode, percent: int) -> dict[str, str]:
    """A part of a H100 with 79.6 GiB."""
    profile = PROFILES[mode]
    memory = {profile.memory_resource: str(79 * _GIB * percent // 100 // profile.memory_unit_bytes)}
    return memory if profile.core_resource is None else {profile.core_resource: str(percent)} | memory


def kill(rig: Rig, name: str) -> None:
    """End a component at once, and start it anew where nobody else does."""
    if name in ("kubelet", "kube-apiserver"):
        rig.restart(name)
        return
    pids = [int(CONTAINERD_PID.read_text())] if name == "containerd" else _contained(_COMMANDS[name])
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _contained(words: list[str]) -> list[int]:
    """The first processes of containers whose commands have these words, programs without their directories."""
    found = list(processes())
    shims = {pid for pid, command, _ in found if Path(command[0]).name.startswith("containerd-shim")}
    return [pid for pid, command, parent in found if parent in shims and _follow(words, command)]


def _follow(words: list[str], command: list[str]) -> bool:
    names = [Path(word).name for word in command]
    return any(names[at : at + len(words)] == words for at in range(len(names)))


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"
