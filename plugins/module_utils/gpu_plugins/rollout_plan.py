# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a rollout begins, goes on, is kept or undone, by what its hosts have kept of it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, Sequence

from ..shared.inventory import CONTROL_PLANES, GPU_NODES
from ..shared.registers import mapping

CHANGED, RENEWED, SERVES = "rollout_extender_changes", "rollout_renewed", "rollout_serves"
"""Facts that hosts keep where they have passed a step: the extender's host, the first nodes, and all nodes."""
_KEPT = (
    *("rollout", "gpu_plugins_rollout_mode", CHANGED, "rollout_plugin_changes", RENEWED, SERVES),
    *("rollout_failed", "rollout_stays", "rollout_over", "rollout_extender_over"),
)
_LEAST = {"rollout_first": 1, "rollout_soak": 0, "rollout_pods_lost": 0}
_Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Asked:
    """What a rollout is asked for."""

    numbers: Mapping[str, object]
    """``rollout_first``, ``rollout_soak`` and ``rollout_pods_lost``."""
    layout: str = "auto"
    """The layout of the scheduler role."""
    played: Sequence[str] = ()
    """The hosts that ``--limit`` leaves; empty where it is not asked whether these are all."""
    check: bool = False
    step: str = ""
    """The fact of the step that hosts have to have passed by now."""


@dataclass(frozen=True)
class Plan:
    """How a rollout goes on, and what became of it."""

    extender: str
    """The host that rolls out the extender; empty if none does."""
    secondary: bool
    """Whether the extender stands beside a second scheduler."""
    refused: str = ""
    """Why it does not begin; empty if it does."""
    first_hosts: Sequence[str] = ()
    failure: str = ""
    """Why it is undone; empty if it is not."""
    goes_on: bool = False
    """Whether more is to be done: nothing failed, and this is no check."""
    undoes: bool = False
    """Whether what there was before is put back: something failed, and this is no check, which changes nothing."""
    looks: bool = False
    """Whether it is looked now, after a while, whether something is worse than before."""
    changes: Sequence[str] = ()
    """Kind and name of each object that changes."""
    result: str = "refused"
    """``kept``, ``undone``, ``unfinished`` or ``nothing to do``, as far as it has come."""
    done: bool = False
    """Whether it came to a good end."""
    message: str = ""
    """What became of it, for people."""


@dataclass(frozen=True)
class _Seen:
    """What hosts have kept."""

    nodes: Mapping[str, _Facts]
    extender: Mapping[str, _Facts]
    """The host that rolls out the extender, if the inventory has it."""

    @property
    def lead(self) -> _Facts:
        """Return the facts of the first GPU node, which decides for all."""
        return next(iter(self.nodes.values()))

    def facts(self, name: str) -> List[Any]:
        """Return the values of a fact, each once."""
        return list(dict.fromkeys(facts[name] for facts in {**self.extender, **self.nodes}.values() if name in facts))

    def changes(self, plugins_alone: bool = False) -> List[str]:
        """Return all that changes, the extender's first."""
        found = [] if plugins_alone else [facts.get(CHANGED) or () for facts in self.extender.values()]
        return [change for each in (*found, self.lead.get("rollout_plugin_changes") or ()) for change in each]

    def is_over(self) -> bool:
        """Return whether it came to its end."""
        return "rollout_over" in self.lead and all("rollout_extender_over" in facts for facts in self.extender.values())


def rollout_plan(hostvars: Mapping[str, Any], groups: Mapping[str, Any], asked: Asked) -> Plan:
    """Return how a rollout goes on.

    ``hostvars`` and ``groups`` are Ansible's. The first GPU node keeps the plan of before as its fact ``rollout``: what
    failed once stays the reason.
    """
    nodes, planes = list(groups.get(GPU_NODES) or ()), list(groups.get(CONTROL_PLANES) or ())
    secondary = asked.layout == "secondary"
    extender = "localhost" if secondary else str(next(iter(planes), ""))
    refused = " ".join(_refusals(nodes, planes, asked))
    if refused:
        return Plan(extender, secondary, refused)
    beside = [extender] if extender and extender in hostvars else []
    seen = _Seen({name: _facts(hostvars[name]) for name in nodes}, {name: _facts(hostvars[name]) for name in beside})
    first = _first_of_each_mode(seen.nodes, int(str(asked.numbers["rollout_first"])))
    failure = str(mapping(seen.lead.get("rollout")).get("failure") or "") or _failure(seen, first, asked)
    return Plan(
        extender=extender,
        secondary=secondary,
        first_hosts=first,
        failure=failure,
        goes_on=not failure and not asked.check,
        undoes=bool(failure) and not asked.check,
        looks=bool(not failure and not asked.check and seen.changes(plugins_alone=asked.step == RENEWED)),
        changes=seen.changes(),
        result=_result(seen, failure),
        done=not failure and seen.is_over(),
        message=_message(seen, failure, asked.check),
    )


def _facts(host: Mapping[str, Any]) -> _Facts:
    return {name: host[name] for name in _KEPT if name in host}


def _refusals(nodes: Sequence[str], planes: Sequence[str], asked: Asked) -> Iterator[str]:
    if not nodes:
        yield "The inventory has no host in the group 'gpu_nodes'; put the hosts that have GPUs there."
        return
    left_out = sorted({*nodes, *planes, "localhost"} - set(asked.played))
    if asked.played and left_out:
        yield (
            f"A rollout needs the whole cluster, but --limit leaves out {', '.join(left_out)}; remove --limit, and"
            " set rollout_first to the number of nodes to begin with."
        )
    for name, least in _LEAST.items():
        value = asked.numbers.get(name)
        if not re.fullmatch("[0-9]+", str(value)) or int(str(value)) < least:
            yield f"{name} is '{value}'; set it to a number of {least} or more."


def _first_of_each_mode(nodes: Mapping[str, _Facts], most: int) -> List[str]:
    """Return the first nodes of each mode, as the inventory has them."""
    first: Dict[object, List[str]] = {}
    for name, facts in nodes.items():
        first.setdefault(facts.get("gpu_plugins_rollout_mode"), []).append(name)
    chosen = {name for names in first.values() for name in names[:most]}
    return [name for name in nodes if name in chosen]


def _failure(seen: _Seen, first: Sequence[str], asked: Asked) -> str:
    """Return why hosts failed, or that they did not pass a step. A check asks no node to pass one."""
    failed = seen.facts("rollout_failed")
    if failed:
        return " ".join(failed)
    nodes = {} if asked.check else {RENEWED: first, SERVES: list(seen.nodes)}
    due = {CHANGED: list(seen.extender), **nodes}.get(asked.step, [])
    lost = [name for name in due if asked.step not in {**seen.extender, **seen.nodes}[name]]
    said = "could not be reached." if asked.step == CHANGED else "could not be read."
    return " ".join(f"{name} {said}" for name in lost)


def _result(seen: _Seen, failure: str) -> str:
    if failure:
        return "undone"
    if not seen.is_over():
        return "unfinished"
    return "kept" if seen.changes() else "nothing to do"


def _message(seen: _Seen, failure: str, check: bool) -> str:
    stays, changes = " ".join(seen.facts("rollout_stays")), ", ".join(seen.changes())
    if failure and check:
        return f"{failure} Nothing was changed."
    if failure:
        well = f"but not all nodes serve: {stays}" if stays else "and every node serves with it."
        return f"{failure} The rollout was undone. The previous version is restored, {well}"
    if not seen.is_over():
        return "The rollout was interrupted by the failure above. Run it again to continue."
    if not changes:
        return "The daemons are up to date."
    return f"Would roll out {changes}" if check else f"Rolled out {changes}; every node serves as before."
