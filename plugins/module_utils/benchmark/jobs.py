# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Job that runs the pods of a row, how far it is, and what it measured. Pure."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..shared.printable import line
from ..shared.registers import entries, mapping, mappings, metadata_of
from .rows import INSTANCE, Row, tolerations
from .wish import Wish

KIND, API_VERSION = "Job", "batch/v1"
NAME = "kube-accel-benchmark"
ALIVE_SECONDS = 60
"""A Job ends that nobody has asked for so long to go on, and what it was goes as long after."""
LOG_LINES, LOG_BYTES = 1000, 1 << 20
_USE_GPU = "kube-accel.io/use-gpu-uuid"
_GRACE_SECONDS = 5
_LAST_LINES = 3


@dataclass(frozen=True)
class Place:
    """Where and how the pods run."""

    namespace: str
    image: str
    pull_policy: str = "IfNotPresent"
    pull_secrets: Tuple[str, ...] = ()
    runtime_class: str = ""
    scheduler: str = ""
    """Empty for the cluster's own."""


@dataclass(frozen=True)
class Plugin:
    """What the pod of a node's plugin says of its image."""

    image: str = ""
    """Empty where no plugin of the node runs."""
    pull_policy: str = "IfNotPresent"
    pull_secrets: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Measured:
    """What a Job's pods came to."""

    over: bool = False
    seconds: Tuple[float, ...] = ()
    """One figure a pod; empty while it is not over, or where something is wrong."""
    overlap: Optional[float] = None
    """How much of the longest pod's time all of them ran, from 0 to 1; None where that is not known."""
    problem: str = ""
    started: bool = False
    """Whether every pod runs or has run."""
    waits: str = ""
    """Why one has not started, as far as somebody says so."""


def job_name(node: str) -> str:
    """Return the name of a node's Job: there is one at a time."""
    return f"{NAME}-{hashlib.sha256(node.encode()).hexdigest()[:12]}"


def plugin_of(pods: Sequence[Mapping[str, Any]], namespace: str) -> Plugin:
    """Return the image of the plugin among a node's pods."""
    for pod in pods:
        spec = mapping(pod.get("spec"))
        container = next(iter(mappings(spec.get("containers"))), {})
        if metadata_of(pod).get("namespace") == namespace and entries(container.get("command"))[:2] == [
            "kube-accel",
            "plugin",
        ]:
            secrets = [str(each.get("name")) for each in mappings(spec.get("imagePullSecrets"))]
            policy = str(container.get("imagePullPolicy") or "IfNotPresent")
            return Plugin(str(container.get("image") or ""), policy, tuple(secrets))
    return Plugin()


def job(wish: Wish, row: Row, node: Mapping[str, Any], place: Place) -> Dict[str, Any]:
    """Return the Job that runs the pods of a row side by side, and ends where one of them fails."""
    name = job_name(wish.node)
    labels = {"app.kubernetes.io/name": NAME, INSTANCE: name}
    annotations = {"annotations": {_USE_GPU: row.gpu}} if row.gpu else {}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": place.namespace, "labels": labels},
        "spec": {
            "parallelism": row.pods,
            "completions": row.pods,
            "backoffLimit": 0,
            # A controller that dies leaves pods that end, and a Job that goes.
            "activeDeadlineSeconds": 2 * ALIVE_SECONDS,
            "ttlSecondsAfterFinished": ALIVE_SECONDS,
            "template": {"metadata": {"labels": labels, **annotations}, "spec": _pod(wish, row, node, place)},
        },
    }


def _pod(wish: Wish, row: Row, node: Mapping[str, Any], place: Place) -> Dict[str, Any]:
    where = {"key": "metadata.name", "operator": "In", "values": [wish.node]}
    container: Dict[str, Any] = {
        "name": "benchmark",
        "image": place.image,
        "imagePullPolicy": place.pull_policy,
        # Without compute the runtime brings no CUDA.
        "env": [{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"}],
        "resources": {"limits": {name: str(amount) for name, amount in row.asks.items()}},
    }
    spec: Dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [where]}]}
            }
        },
        "tolerations": tolerations(node),
        "containers": [container],
    }
    if wish.words:
        container["command"] = list(wish.words)
    if not wish.image:
        container["securityContext"] = {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        spec["securityContext"] = {
            "runAsNonRoot": True,
            "runAsUser": 65534,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
    if place.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in place.pull_secrets]
    if place.runtime_class:
        spec["runtimeClassName"] = place.runtime_class
    if place.scheduler:
        spec["schedulerName"] = place.scheduler
    return spec


def progress(found: object, pods: Sequence[Mapping[str, Any]], wanted: int) -> Measured:
    """Return how far a Job is, by itself and its pods, without figures."""
    phases = [str(_status(pod).get("phase") or "") for pod in pods]
    conditions = mappings(mapping(mapping(found).get("status")).get("conditions"))
    failed = next((each for each in conditions if each.get("type") == "Failed" and each.get("status") == "True"), None)
    waits = next(filter(None, map(_waits, pods)), "") or ("" if pods else "its Job has created no pod")
    started = sum(bool(_container(pod)) for pod in pods) >= wanted or phases.count("Succeeded") >= wanted
    if "Failed" in phases or failed is not None:
        why = next((_failure(pod) for pod in pods if _status(pod).get("phase") == "Failed"), "")
        why = why or f"its Job failed: {mapping(failed).get('reason')}: {mapping(failed).get('message')}"
        return Measured(over=True, problem=line(why), started=started, waits=waits)
    return Measured(over=phases.count("Succeeded") >= wanted, started=started, waits=line(waits))


def measured(wish: Wish, pods: Sequence[Mapping[str, Any]], logs: Sequence[str]) -> Measured:
    """Return the figures of pods that have all succeeded, each with its log."""
    windows = [_window(pod) for pod in pods]
    figures: List[Optional[float]] = []
    for window, log in zip(windows, logs):  # noqa: B905 - Python 3.8 has no strict
        if wish.prints:
            figures.append(printed(wish.prints, log))
        else:
            figures.append(None if window is None else window[1] - window[0])
    if None in figures:
        said = " | ".join(logs[figures.index(None)].strip().splitlines()[-_LAST_LINES:]) or "nothing"
        what = f"no line that a pod printed matches '{wish.prints}'" if wish.prints else "kubelet reported no times"
        return Measured(True, problem=line(f"{what}; its last lines: {said}"), started=True)
    known = [figure for figure in figures if figure is not None]
    if not all(figure > 0 for figure in known):
        return Measured(True, problem="a pod ended too fast to measure; give it more work", started=True)
    return Measured(True, tuple(known), _overlap(windows), started=True)


def printed(pattern: str, log: str) -> Optional[float]:
    """Return the number that the last match in a log has in its group; None where there is none."""
    found = [match.group(1) for match in re.finditer(pattern, log)]
    try:
        number = float(found[-1]) if found else math.nan
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _status(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    return mapping(pod.get("status"))


def _state(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    return mapping(next(iter(mappings(_status(pod).get("containerStatuses"))), {}).get("state"))


def _container(pod: Mapping[str, Any]) -> bool:
    return bool({"running", "terminated"} & set(_state(pod)))


def _waits(pod: Mapping[str, Any]) -> str:
    """Return why a pod has not started, by kubelet or kube-scheduler."""
    waiting = mapping(_state(pod).get("waiting"))
    if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
        return f"{waiting.get('reason')}: {waiting.get('message') or ''}"
    for each in mappings(_status(pod).get("conditions")):
        if (each.get("type"), each.get("status")) == ("PodScheduled", "False"):
            return str(each.get("message") or each.get("reason") or "")
    return ""


def _failure(pod: Mapping[str, Any]) -> str:
    terminated = mapping(_state(pod).get("terminated"))
    said = [_status(pod).get("reason"), _status(pod).get("message"), terminated.get("message")]
    words = ": ".join(str(part) for part in said if part)
    code = terminated.get("exitCode")
    return f"a pod failed{'' if code is None else f' with exit code {code}'}{': ' if words else ''}{words}"


def _window(pod: Mapping[str, Any]) -> Optional[Tuple[float, float]]:
    """Return when a pod's container began and ended, in seconds; kubelet tells whole ones."""
    terminated = mapping(_state(pod).get("terminated"))
    try:
        began, done = (_moment(terminated[key]) for key in ("startedAt", "finishedAt"))
    except (KeyError, TypeError, ValueError):
        return None
    return began, done


def _moment(text: object) -> float:
    if not isinstance(text, str):
        raise ValueError("no time")
    return datetime.fromisoformat(re.sub(r"Z\Z", "+00:00", text)).timestamp()


def _overlap(windows: Sequence[Optional[Tuple[float, float]]]) -> Optional[float]:
    known = [window for window in windows if window is not None]
    longest = max((done - began for began, done in known), default=0.0)
    if len(known) < len(windows) or longest <= 0:
        return None
    together = min(done for _began, done in known) - max(began for began, _done in known)
    return max(0.0, min(1.0, together / longest))
