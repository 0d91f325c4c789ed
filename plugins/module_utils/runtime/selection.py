# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decides which container runtime of a host kubelet uses. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, FrozenSet, Iterator, List, Mapping, Optional, Sequence, Tuple

from ..shared.refusal import Refusal
from ..shared.registers import lines, mapping
from .options import AUTO, DISTRIBUTIONS, Options, Sign

KUBELET_PATTERN = r"""^[^#]*(containerRuntimeEndpoint"?:|--container-runtime-endpoint[= ]) *["']?(unix:/)?/[^"' ]+"""
"""The ``grep -E`` pattern for kubelet's setting of its runtime."""
_FOUND, _KUBELET = "found ", "kubelet "
"""How lines of ``look.sh`` begin that name a path that exists, and that tell a setting of kubelet."""
_ENDPOINT = re.compile(r"/[^ :=\"]+$")
_SOCKETS = {
    "/run/containerd/containerd.sock": "containerd",
    "/run/cri-dockerd.sock": "docker",
    "/run/crio/crio.sock": "crio",
}


@dataclass(frozen=True)
class Host:
    """A host: facts of Ansible, which files exist, and kubelet's settings."""

    name: str
    architecture: str
    distribution: str
    package_manager: str
    existing: FrozenSet[str]
    """Names of files as tasks see them."""
    endpoint: str
    """The socket that kubelet's settings name, and "" where they name none."""


def read_host(facts: Mapping[str, Any], seen: Mapping[str, Any]) -> Host:
    """Return a host of what tasks were answered. What is missing counts as not there."""
    looked = lines(mapping(seen.get("found")))
    # The last one counts for kubelet too: its command line overrides its file.
    told = _ENDPOINT.search(["", *_after(_KUBELET, looked)][-1])
    return Host(
        name=str(seen.get("host") or ""),
        architecture=str(facts.get("architecture") or ""),
        distribution=str(facts.get("distribution") or ""),
        package_manager=str(facts.get("pkg_mgr") or ""),
        existing=frozenset(_after(_FOUND, looked)),
        endpoint=re.sub(r"^/+(var/(?=run/))?", "/", told.group()) if told else "",
    )


def _after(word: str, looked: Sequence[str]) -> List[str]:
    return [line[len(word) :] for line in looked if line.startswith(word)]


@dataclass(frozen=True)
class Selection:
    """The runtime to configure, and what speaks for it."""

    runtime: str
    """Its name, and "" where there is none."""
    there: Tuple[Sign, ...]
    """The signs of runtimes that exist."""
    distribution: Optional[Sign]
    """The distribution whose kubelet uses its own containerd."""
    in_use: str
    """The runtime of the socket that kubelet's settings name, and "" where none is known."""


def select(options: Options, host: Host) -> Selection:
    """Return the runtime that kubelet uses, unless the options name another one."""
    there = tuple(sign for sign in options.detect if options.host_root + sign.path in host.existing)
    distribution = next((sign for sign in there if sign.name in DISTRIBUTIONS), None)
    in_use = _SOCKETS.get(host.endpoint, "")
    found = distribution.name if distribution else in_use or (there[0].name if there else "")
    return Selection(options.name if options.name != AUTO else found, there, distribution, in_use)


def refuse_selection(options: Options, host: Host, selection: Selection) -> Iterator[Refusal]:
    """Return why the selected runtime is none that runs pods."""
    runtime, distribution, in_use = selection.runtime, selection.distribution, selection.in_use
    names = list(dict.fromkeys(sign.name for sign in selection.there))
    if not runtime:
        looked_for = ", ".join(sign.path for sign in options.detect)
        yield Refusal(
            "no_runtime",
            f"No container runtime found on {host.name}: none of {looked_for} exists; install one with "
            "'apt-get install containerd' or its like, or set container_runtime_name and the paths of this role.",
        )
    elif distribution and distribution.name != runtime:
        yield Refusal(
            "distribution",
            f"kubelet on {host.name} uses the containerd of {distribution.name} ({distribution.path} exists), "
            f"so {runtime} is a second one that runs no pods. Set container_runtime_name={distribution.name} or auto. "
            "If that path is a leftover, remove it from container_runtime_detect.",
        )
    elif not distribution and in_use not in ("", runtime):
        yield Refusal(
            "in_use",
            f"kubelet on {host.name} uses {host.endpoint}, which is {in_use}, so {runtime} runs no pods there. "
            f"Set container_runtime_name={in_use} or auto. If the file that says so is a leftover, remove it from "
            "container_runtime_kubelet_files.",
        )
    elif not distribution and not in_use and names and runtime not in names:
        signs = ", ".join(sign.path for sign in options.detect if sign.name == runtime)
        yield Refusal(
            "not_there",
            f"{host.name} has {', '.join(names)} but not {runtime}, which would have {signs}; set "
            f"container_runtime_name to the runtime that kubelet uses or to auto, or start {runtime}.",
        )
