# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask a running kube-scheduler by what it schedules.

It answers at ``/configz`` with what it made of its configuration, in the words of its internal types: those of the API,
but for capital letters. The answer goes to those alone who may do anything, so a client certificate of an administrator
is shown. Where there is none, the command lines of the processes say which file they read.
"""

from __future__ import annotations

import http.client
import os
import re
import ssl
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Sequence, Tuple
from urllib.parse import urlsplit

from ansible_collections.accel.kubernetes.plugins.module_utils.documents import yaml_text
from ansible_collections.accel.kubernetes.plugins.module_utils.host import command_line
from ansible_collections.accel.kubernetes.plugins.module_utils.host.machine import Host
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler import config as scheduler_config
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.health import schedulers
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.lease import LeaseError, client_certificate
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.api_json import ODD, read_object
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.printable import line

_LONGEST = 4 * 1024 * 1024
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(h|ms|m|s|us|µs|ns)")


@dataclass(frozen=True)
class Answer:
    """What was found out about a running kube-scheduler."""

    said: str = ""
    """Who was asked and what that answered, empty when none could be asked."""
    problem: str = ""
    """What it lacks or has too much, empty when it has what it should."""
    unknown: str = ""
    """Why none could be asked."""


@dataclass(frozen=True)
class Question:
    """What a running kube-scheduler should have, and how to ask it."""

    url: str
    """Where it answers, of any path."""
    kubeconfigs: Sequence[str]
    """Kubeconfigs of administrators, on this machine; the first that is let in counts."""
    root: str
    """Where the machine's file system is seen."""
    config: str | None
    """The text of its configuration, None where it should have none."""
    file: str | None
    """What ``--config`` should name, None for nothing."""
    own_process: bool
    """Whether its command line can be seen: k3s has it inside its own process, and hides that one's."""


def ask(host: Host, question: Question) -> Answer:
    """Ask, and compare."""
    reasons = []
    for kubeconfig in question.kubeconfigs:
        if not os.path.exists(kubeconfig):
            reasons.append(f"there is no {kubeconfig}")
            continue
        try:
            found = _configz(host, question, kubeconfig)
            problem, has = compare(found, {} if question.config is None else yaml_text.load(question.config, "it"))
        except (OSError, http.client.HTTPException, LeaseError, *ODD) as error:
            reasons.append(f"with {kubeconfig}: {line(error)}")
            continue
        who = f"{_address(question.url)}, asked with {kubeconfig},"
        return Answer(f"{who} {has}", f"{who} {problem}" if problem else "")
    return _by_processes(question, "; ".join(reasons))


def compare(configz: Mapping[str, Any], wanted: Mapping[str, Any]) -> Tuple[str, str]:
    """Return what is wrong with the answer, empty if nothing, and what is right.

    Raises one of ODD for no such answer.
    """
    running = _lowered(configz["componentconfig"])
    extenders = running["extenders"] or []
    wanted_extenders = _lowered(wanted.get("extenders") or [])
    urls = [str(extender["urlprefix"]) for extender in extenders]
    expected = [str(extender.get("urlprefix", "")) for extender in wanted_extenders]
    if urls != expected:
        return f"calls {_named(urls, 'no extender')}, not {_named(expected, 'none')}", ""
    for url, extender, one in zip(urls, extenders, wanted_extenders):  # noqa: B905 - of the same length
        for name, value in one.items():
            if not _same(extender.get(name), value):
                return f"calls {url} with {name} {extender.get(name)!r}, not {value!r}", ""
    packed = scheduler_config.packed_by(wanted)
    found = _strategy(running)
    if packed:
        if str(found.get("type")) != "MostAllocated":
            return f"scores nodes by {found.get('type')}, not by MostAllocated", ""
        weights = {str(item["name"]): item["weight"] for item in found.get("resources") or ()}
        if weights != packed:
            return f"packs by {_weights(weights)}, not by {_weights(packed)}", ""
    return "", f"calls {_named(urls, 'no extender')}" + (f" and packs by {_weights(packed)}" if packed else "")


def _strategy(running: Mapping[str, Any]) -> Mapping[str, Any]:
    for profile in running["profiles"]:
        if profile["schedulername"] == "default-scheduler":
            for plugin in profile["pluginconfig"] or ():
                if plugin["name"] == "NodeResourcesFit":
                    strategy: Mapping[str, Any] = plugin["args"]["scoringstrategy"] or {}
                    return strategy
    return {}


def _lowered(value: Any) -> Any:  # noqa: ANN401
    """Return the value with all names of fields in small letters, as Go finds fields."""
    if isinstance(value, dict):
        return {name.lower(): _lowered(item) for name, item in value.items()}
    return [_lowered(item) for item in value] if isinstance(value, list) else value


def _same(found: Any, wanted: Any) -> bool:  # noqa: ANN401
    """Return whether a field has what is wanted: fields that are not named stay as they are, and 90s is 1m30s."""
    if isinstance(wanted, dict):
        return not any(wanted.values()) if found is None else all(_same(found.get(key), wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        mine = found or []
        return len(mine) == len(wanted) and all(map(_same, mine, wanted))
    if isinstance(wanted, str) and isinstance(found, str):
        return found == wanted or (_seconds(found) is not None and _seconds(found) == _seconds(wanted))
    return bool(found == wanted) or not (found or wanted)


def _seconds(duration: str) -> float | None:
    parts = _DURATION.findall(duration)
    if not parts or "".join(number + unit for number, unit in parts) != duration:
        return None
    return round(sum(float(number) * _UNITS[unit] for number, unit in parts), 9)


def _named(urls: Sequence[str], none: str) -> str:
    return line(" and ".join(urls)) or none


def _weights(weights: Mapping[str, Any]) -> str:
    return line(", ".join(f"{name} (weight {weight})" for name, weight in weights.items())) or "nothing"


def _address(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/configz"


def _configz(host: Host, question: Question, kubeconfig: str) -> Dict[str, Any]:
    certificate = client_certificate(host, kubeconfig, question.root)
    if certificate is None:
        raise LeaseError(
            "it has no client certificate, and its token is not sent to a server whose identity is not proven"
        )
    parts = urlsplit(question.url)
    # kube-scheduler signs its certificate itself and no CA knows it; this is the local host and nothing secret is sent.
    context = ssl._create_unverified_context()  # noqa: S323
    context.load_cert_chain(host.temporary(certificate, "admin.pem"))
    connection = http.client.HTTPSConnection(parts.hostname or "", parts.port or 443, timeout=5, context=context)
    try:
        connection.request("GET", "/configz", headers={"Accept": "application/json"})
        answer = connection.getresponse()
        body = answer.read(_LONGEST)
    finally:
        connection.close()
    if answer.status != 200:
        raise LeaseError(f"{_address(question.url)} answers with status {answer.status}")
    found: Dict[str, Any] = read_object(body)
    return found


def _by_processes(question: Question, reasons: str) -> Answer:
    """Return what the command lines of the processes say."""
    proc = os.path.join(question.root, "proc")
    files = config_files(proc) if question.own_process else {}
    if not files:
        return Answer(unknown=reasons or "no kube-scheduler can be asked")
    shown = question.file or "none"
    right = sorted(number for number, file in files.items() if file == question.file)
    if not right:
        others = ", ".join(sorted({file or "none" for file in files.values()}))
        return Answer(problem=f"no kube-scheduler in {proc} was started with the configuration {shown}, but {others}")
    return Answer(
        f"process {right[-1]}, whose command line names the configuration {shown}; kube-scheduler itself did not "
        f"answer: {reasons}"
    )


def config_files(proc: str) -> Dict[str, "str | None"]:
    """Return what the last ``--config`` of each kube-scheduler process names, by process id."""
    found: Dict[str, "str | None"] = {}
    for number in schedulers(proc):
        named = command_line.started(command_line.of_process(proc, number)).pflags(("config",))
        found[number] = named[-1][1].value if named else None
    return found
