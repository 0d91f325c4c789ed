# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Proves a share of a GPU in pods, alone and beside a neighbor: what runs, and what it came to. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ..cluster.annotations import checks
from ..gpu_plugins.delivery import ENFORCEMENT_LABEL, INTERPOSED
from ..shared import printable
from ..shared.columns import columns
from ..shared.gpu_view import view
from ..shared.modes import BY_MODE, CORES, ShareResources
from ..shared.reading import read_object
from ..shared.registers import labels_of, mapping
from .rows import Environment, Row, Seen
from .rows import plan as plan_of_sharers
from .wish import Wish

VERSION = 1
ALONE, BESIDE = "alone", "beside a neighbor"
RATE = r'"launches_per_second": ([0-9.]+)'
"""How ``kube-accel validate --share`` prints how much it worked."""
LEAST_SHARERS, MOST_SHARERS, MOST_SECONDS = 2, 50, 600
_HALF = CORES // 2
"""Percent. A share can have no more, since two of them are on one GPU."""
_MOST_MIB = 1 << 30
_KEPT = 0.8
"""Part of its work that a share with cores of its own keeps beside a neighbor."""
_FIGURES = ("nvml_bytes", "cuda_bytes", "free_bytes", "got_bytes", "beyond_code")
_RATIOS = ("gpu_time_ratio", "launches_per_second", "seconds")
_LONGEST = 1 << 16


@dataclass(frozen=True)
class ShareWish(Wish):
    """What a person asks for."""

    memory_bytes: int = 0
    """What the interposer holds a pod to; 0 where it does not."""
    cores: int = 0
    """Percent of the GPU's time; 0 where time is not limited."""
    seconds: int = 10

    @property
    def words(self) -> Tuple[str, ...]:
        """Return the command of a pod."""
        limits = (f"--memory={self.memory_bytes}", f"--cores={self.cores}", f"--seconds={self.seconds}")
        return ("kube-accel", "validate", "--share", *limits)

    @property
    def prints(self) -> str:
        """Return how a pod's figure is found in its log."""
        return RATE


@dataclass(frozen=True)
class Size:
    """How large a share a person asks for."""

    sharers: int = 4
    """So many shares make a GPU, where neither of the others is given."""
    cores: int = 0
    """Percent of a GPU; 0 for as much as of the memory."""
    memory_mib: int = 0
    """0 for as much as of the cores."""

    @property
    def is_named(self) -> bool:
        """Return whether amounts are given."""
        return bool(self.cores or self.memory_mib)


@dataclass(frozen=True)
class Plan:
    """What is to run, or why nothing is."""

    wish: ShareWish
    rows: Mapping[str, Row]
    """By ``ALONE`` and ``BESIDE``; none where it is refused."""
    environment: Environment
    refusals: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What came of one or two pods."""

    logs: Tuple[str, ...] = ()
    problem: str = ""
    """Why it is not known; empty where each pod has told its checks."""


def refusals(wish: ShareWish, size: Size) -> List[str]:
    """Return what makes no sense whatever the node is, a sentence each."""
    found = [] if wish.node else ["node is empty; name the node whose shares are to be proved"]
    for name, value, least, most in (
        ("sharers", size.sharers, LEAST_SHARERS, MOST_SHARERS),
        ("cores", size.cores, 0, _HALF),
        ("memory_mib", size.memory_mib, 0, _MOST_MIB),
        ("seconds", wish.seconds, 1, MOST_SECONDS),
        ("start_timeout", wish.start_timeout, 1, 86400),
    ):
        if not least <= value <= most:
            found.append(f"{name} is {value}; give a number from {least} to {most}")
    return found


def plan(wish: ShareWish, size: Size, seen: Seen) -> Plan:
    """Return the pods of a node, each with a share of this size."""
    found = plan_of_sharers(replace(wish, sharers=(2 if size.is_named else size.sharers,)), seen)
    if found.refusals:
        return Plan(wish, {}, found.environment, found.refusals)
    row, environment = found.rows[0], found.environment
    if environment.mode not in BY_MODE:
        said = f"node {wish.node} serves mode {environment.mode}, in which pods have no share that is limited"
        return Plan(wish, {}, environment, (f"{said}; name a node in mode {', '.join(BY_MODE)}",))
    resources = BY_MODE[environment.mode]
    if size.is_named:
        asks, refused = _amounts(size, row.asks, resources)
        if refused:
            return Plan(wish, {}, environment, (f"node {wish.node} in mode {environment.mode}: {refused}",))
        row = replace(row, asks=asks)
    enforced = labels_of(seen.node).get(ENFORCEMENT_LABEL) in INTERPOSED
    limits = replace(
        wish,
        memory_bytes=row.asks[resources.memory] * resources.memory_unit_bytes if enforced else 0,
        # MPS gives a share of the multiprocessors, all of the time.
        cores=row.asks.get(resources.cores or "", 0) if enforced and environment.mode == "vgpu" else 0,
    )
    gpu = next(gpu.uuid for node in view([seen.node], None).nodes for gpu in node.gpus)
    made = {name: replace(row, pods=pods, gpu=gpu) for name, pods in ((ALONE, 1), (BESIDE, 2))}
    return Plan(limits, made, environment)


def _amounts(size: Size, half: Mapping[str, int], resources: ShareResources) -> Tuple[Dict[str, int], str]:
    """Return the limits of a pod by those that half a GPU has, and why there are none."""
    unit, most = resources.memory_unit_bytes >> 20, half[resources.memory]
    if size.cores and resources.cores is None:
        return {}, "a share has no cores of its own; leave out cores, and give memory_mib"
    memory = size.memory_mib // unit if size.memory_mib else most * size.cores // _HALF
    if not 1 <= memory <= most:
        said = f"memory_mib is {size.memory_mib or memory * unit}"
        return {}, f"{said}, and two shares have to fit on one GPU; give {unit} to {most * unit}, in steps of {unit}"
    if resources.cores is None:
        return {resources.memory: memory}, ""
    return {resources.cores: size.cores or max(1, _HALF * memory // most), resources.memory: memory}, ""


def outcome(logs: Sequence[str], problem: str) -> Outcome:
    """Return what came of pods with these logs. What a pod's checks say is told by them, and not by its end as well."""
    return Outcome(
        tuple(logs), "" if any(checks(log.splitlines()) for log in logs) else problem or "no pod told a check"
    )


def document(found: Plan, outcomes: Mapping[str, Outcome]) -> Dict[str, Any]:
    """Return the report; of pods that were not started there are no rows."""
    entries = [entry for name, outcome in outcomes.items() for entry in _entries(name, outcome)]
    alone: Mapping[str, Optional[float]] = next((each["figures"] for each in entries if each["setting"] == ALONE), {})
    for each in entries:
        if each["setting"] == BESIDE:
            _compare(each, alone, found.wish.cores)
    problems = [f"{name}: {outcome.problem}" for name, outcome in outcomes.items() if outcome.problem]
    problems += [
        f"{each['setting']}: {check['name']}: {check['detail']}{'; ' if check['remedy'] else ''}{check['remedy']}"
        for each in entries
        for check in each["checks"]
        if check["status"] == "fail"
    ]
    return {
        "version": VERSION,
        "node": found.environment.node,
        "gpu": found.environment.gpu,
        "driver": found.environment.driver,
        "mode": found.environment.mode,
        "share": {"cores": found.wish.cores, "memory_bytes": found.wish.memory_bytes},
        "rows": entries,
        "problems": problems,
    }


def table(told: Mapping[str, Any]) -> List[str]:
    """Return the report for people, line by line."""
    body = [
        (each["setting"], each["pod"], check["name"], check["status"], check["detail"])
        for each in told["rows"]
        for check in each["checks"]
    ]
    head = f"A share of {told['gpu']} on node {told['node']}, mode {told['mode']}: {_limits(told['share'])}"
    lines = columns([("SETTING", "POD", "CHECK", "RESULT", "FOUND"), *body], right=(1,))
    return [printable.line(head), *lines, *(printable.line(f"NOT WELL: {text}") for text in told["problems"])]


def planned(found: Plan) -> List[str]:
    """Return what would run."""
    lines = []
    for name, row in found.rows.items():
        asks = ", ".join(f"{amount} {resource}" for resource, amount in row.asks.items())
        words = " ".join(found.wish.words)
        lines.append(printable.line(f"Would run {name}: {row.pods} pod(s) with {asks} on GPU {row.gpu}: {words}"))
    return lines


def _limits(share: Mapping[str, Any]) -> str:
    memory = f"{share['memory_bytes'] / (1 << 30):g} GiB" if share["memory_bytes"] else "memory that nothing limits"
    return f"{memory}, {share['cores']} % of the time" if share["cores"] else f"{memory}, time that nothing limits"


def _entries(setting: str, outcome: Outcome) -> Iterator[Dict[str, Any]]:
    for number, log in enumerate(outcome.logs, 1):
        lines = log.splitlines()
        found = checks(lines)
        if found:
            yield {"setting": setting, "pod": number, "checks": found, "figures": _figures(lines)}


def _figures(lines: Sequence[str]) -> Dict[str, Optional[float]]:
    """Return the figures of the last line that has some; what is none is null."""
    said: Mapping[str, Any] = {}
    for line in lines:
        try:
            said = mapping(read_object(line, _LONGEST).get("share")) or said
        except ValueError:
            continue
    return {name: _number(said.get(name)) for name in (*_FIGURES, *_RATIOS)}


def _number(value: object) -> Optional[float]:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _compare(each: Dict[str, Any], alone: Mapping[str, Optional[float]], cores: int) -> None:
    """Tell how much of its work a pod kept beside a neighbor.

    A launch takes longer by the GPU's clock while others' work is on it, so that time is that of the pod alone.
    """
    rate, before = each["figures"]["launches_per_second"], alone.get("launches_per_second")
    if rate is None or not before:
        return
    kept, ratio = rate / before, alone.get("gpu_time_ratio")
    each["figures"]["kept_ratio"] = round(kept, 4)
    if ratio is not None:
        each["figures"]["gpu_time_ratio"] = round(min(1.0, ratio * kept), 4)
    bad = bool(cores) and kept < _KEPT
    detail = f"{kept:.0%} of the work that it did alone"
    remedy = "see docs/explanation/gpu-time.md, Neighbors on the same GPU" if bad else ""
    check = {"name": "neighbor", "status": "fail" if bad else "ok", "detail": detail, "remedy": remedy}
    each["checks"] = [*each["checks"], check]
