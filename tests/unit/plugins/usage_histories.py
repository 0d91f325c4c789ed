# SPDX-License-Identifier: Apache-2.0
"""Histories of a cluster in which much goes wrong, as a Prometheus has them, and what its GPUs gave all the same.

A plugin has a namespace of its own, which has one GPU for as long as the plugin's ledger counts: who is charged more
than that is charged too much.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from kube_accel.metrics import families
from kube_accel.metrics.charge import Charge, Model, Payer
from kube_accel.metrics.exposition import Family
from unit.plugins.usage_data import H100, Node, Scrapes, share

HOUR = 3600
START = 1_763_769_600
LENGTH = 3 * HOUR
MINUTES = range(-6, LENGTH // 60 + 1)
LAG = 300
"""Seconds that a GPU may be told of before or after its time, each time that something happens to its node."""


def uuid(number: int) -> str:
    """As drivers give them."""
    return f"GPU-{number:08x}-5c1d-4b0e-9a3f-0123456789ab"


@dataclass
class Target:
    """What scrapes a plugin."""

    labels: dict[str, str]
    suffix: str = ""
    """The suffix that it adds to the node's name."""
    ahead: float = 0.0
    """By how much its clock is."""


@dataclass
class Plugin:
    """One that counts, under a namespace of its own."""

    node: Node
    namespace: str
    begun: float
    targets: list[Target]
    ended: float = START + LENGTH
    silent_until: int = -99
    without: set[Family] = field(default_factory=set)
    copies: list[dict[Payer, Charge]] = field(default_factory=list)
    """The copies of its ledger, half an hour apart."""

    def had(self) -> float:
        """GPU-seconds of its namespace in the period, and in the gap before."""
        return max(0.0, self.ended - max(self.begun, START - 300))

    def hold(self, now: float, gpus: Mapping[str, Model] | None = None) -> None:
        """Have it count up to now, and have other GPUs since."""
        for there in (self.node.gpus, gpus or self.node.gpus):
            self.node.gpus = there
            self.node.at(now, *(holding for held in self.node.held.values() for holding in held))


class History:
    """What a Prometheus has of two or three machines, of which each has two GPUs and a node, and what was true."""

    def __init__(self, random: Random) -> None:
        self.scrapes = Scrapes()
        self.plugins: list[Plugin] = []
        """All that there ever were."""
        self.events: list[str] = []
        self.there: dict[str, list[list[float]]] = {}
        """From when to when GPUs were in machines that run and offer them."""
        self._random = random
        self._named = random.random() < 0.7
        self._running: list[Plugin] = []
        self._every = random.choice([1, 1, 1, 2, 4])
        self._now = float(START - 6 * 60)
        for number in range(random.choice([2, 2, 3])):
            self._start(f"n{number}", [uuid(2 * number), uuid(2 * number + 1)], self._age())
        happen = sorted(random.choice(MINUTES) for _ in range(random.choice([0, 1, 1, 2, 3])))
        for minute in MINUTES:
            self._now = START + 60.0 * minute
            while happen and happen[0] <= minute:
                happen.pop(0)
                self._happen(minute)
            for plugin in self._running:
                if minute % 30 == 0:
                    plugin.copies.append(plugin.node.kept())
                if minute % self._every == 0 and plugin.silent_until <= minute:
                    self._scrape(plugin)

    @property
    def most(self) -> float:
        """GPU-seconds that all GPUs can have given, and no counter's word for it."""
        return len(self.there) * (LENGTH + 300) + self.slack

    @property
    def least(self) -> float:
        """GPU-seconds that there were."""
        return sum(
            max(0.0, min(end, START + LENGTH) - max(start, START))
            for spans in self.there.values()
            for start, end in spans
        )

    @property
    def slack(self) -> float:
        """By how much either may be wrong."""
        return len(self.there) * LAG * (1.0 + len(self.events))

    def _scrape(self, plugin: Plugin) -> None:
        name = plugin.node.name
        for target in plugin.targets:
            plugin.node.name = name + target.suffix
            self.scrapes.take(self._now, [plugin.node], target.ahead, plugin.without, **target.labels)
        plugin.node.name = name

    def _age(self) -> float:
        return self._random.choice([0.0, 90.0, 2.0 * HOUR, 100.0 * HOUR, 9000.0 * HOUR])

    def _start(self, name: str, gpus: list[str], age: float, instance: str = "") -> None:
        namespace = f"team-{len(self.plugins)}"
        node = Node(name, dict.fromkeys(gpus, H100), ledger=f"ledger-of-{namespace}" if self._named else "")
        node.at(self._now - age, share(gpus[0], namespace, "p", 1.0))
        plugin = Plugin(node, namespace, self._now - age, [Target({"instance": instance or f"{name}:9445"})])
        self.plugins.append(plugin)
        self._running.append(plugin)
        for gpu in gpus:
            if not any(end > self._now for _, end in self.there.setdefault(gpu, [])):
                self.there[gpu].append([self._now, START + LENGTH])

    def _end(self, plugin: Plugin) -> None:
        plugin.ended = self._now
        self._running.remove(plugin)
        for gpu in set(plugin.node.gpus).difference(*(other.node.gpus for other in self._running)):
            self.there[gpu][-1][1] = self._now

    def _happen(self, minute: int) -> None:
        plugin = self._random.choice(self._running)
        event = self._random.choice(EVENTS)
        self.events.append(f"{event} of {plugin.namespace} at {minute}")
        getattr(self, f"_on_{event}")(plugin, minute)

    def _new_gpus(self) -> list[str]:
        return [uuid(len(self.there)), uuid(len(self.there) + 1)]

    def _on_another_machine(self, plugin: Plugin, minute: int) -> None:
        """It takes the node's name, with a ledger of its own."""
        self._end(plugin)
        instance = self._random.choice([plugin.targets[0].labels["instance"], "another:9445"])
        self._start(plugin.node.name, self._new_gpus(), self._age(), instance)

    def _on_another_cluster(self, plugin: Plugin, minute: int) -> None:
        """It has a node of this name too."""
        instance = self._random.choice([plugin.targets[0].labels["instance"], "cluster:9445"])
        self._start(plugin.node.name, self._new_gpus(), self._age(), instance)

    def _on_second_node(self, plugin: Plugin, minute: int) -> None:
        """The machine has another node with the same GPUs, or some of them."""
        gpus = list(plugin.node.gpus)
        self._start(f"{plugin.node.name}-again", gpus[self._random.choice([0, -1]) :], self._age())

    def _on_renamed(self, plugin: Plugin, minute: int) -> None:
        """Something changes the label node of what is scraped."""
        plugin.node.name += ".example"

    def _on_host_renamed(self, plugin: Plugin, minute: int) -> None:
        """The machine joins anew under another name, and its ledger begins anew."""
        self._end(plugin)
        self._start(f"{plugin.node.name}-new", list(plugin.node.gpus), 0.0)

    def _on_renamed_twice(self, plugin: Plugin, minute: int) -> None:
        """Two jobs scrape it, under two names."""
        plugin.targets.append(Target({**plugin.targets[0].labels, "job": "second"}, ".example"))

    def _on_pair(self, plugin: Plugin, minute: int) -> None:
        """Another Prometheus scrapes it too, whose clock is not the same."""
        ahead = self._random.choice([0.0, 7.5, 40.0])
        plugin.targets.append(Target({**plugin.targets[0].labels, "replica": "b"}, ahead=ahead))

    def _on_ledger_lost(self, plugin: Plugin, minute: int) -> None:
        plugin.node.begins_anew()
        plugin.node.ledger += "-new" if self._named else ""
        plugin.hold(self._now)

    def _on_ledger_put_back(self, plugin: Plugin, minute: int) -> None:
        if plugin.copies:
            plugin.node.put_back(self._random.choice(plugin.copies))
            plugin.hold(self._now)

    def _on_gpu_moved(self, plugin: Plugin, minute: int) -> None:
        """To another node; it is one that nobody has."""
        to = self._random.choice(self._running)
        gpus = list(plugin.node.gpus)
        if to is not plugin and len(gpus) > 1 and gpus[-1] not in to.node.gpus:
            plugin.hold(self._now, dict.fromkeys(gpus[:-1], H100))
            to.hold(self._now, {**to.node.gpus, gpus[-1]: H100})

    def _on_gpu_excluded(self, plugin: Plugin, minute: int) -> None:
        gpus = dict(plugin.node.gpus)
        plugin.hold(self._now, dict(list(gpus.items())[:1]))
        for gpu in list(gpus)[1:]:
            if not any(gpu in other.node.gpus for other in self._running):
                self.there[gpu][-1][1] = self._now

    def _on_silent(self, plugin: Plugin, minute: int) -> None:
        """Nobody scrapes it for some time."""
        plugin.silent_until = minute + self._random.choice([3, 40, 400])

    def _on_interval(self, plugin: Plugin, minute: int) -> None:
        self._every = self._random.choice([1, 2, 4, 5])

    def _on_clock(self, plugin: Plugin, minute: int) -> None:
        """The Prometheus' clock is set."""
        plugin.targets[0].ahead = self._random.choice([-600.0, -60.0, 30.0, 60.0])

    def _on_family_dropped(self, plugin: Plugin, minute: int) -> None:
        """Rules drop it, or do so no longer."""
        plugin.without ^= {self._random.choice([families.NAMESPACE_GPU, families.NODE_SECONDS, families.GPU_INFO])}

    def _on_off(self, plugin: Plugin, minute: int) -> None:
        self._end(plugin)
        if not self._running:
            self._start("spare", self._new_gpus(), self._age())


EVENTS = sorted(name.removeprefix("_on_") for name in vars(History) if name.startswith("_on_"))
