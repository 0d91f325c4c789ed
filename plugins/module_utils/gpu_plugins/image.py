# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the assembled image is named, what it lacks, and which nodes lack it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Iterator, List, Mapping, Sequence, Tuple

from ..shared.modes import CGPU_LABEL, MODE_LABEL
from ..shared.registers import labels_of, mapping, mappings, metadata_of, resources

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_REFERENCE = re.compile(r"(.*?)(?::([^:/]*))?")


@dataclass(frozen=True)
class Seen:
    """What exists of the image that is assembled."""

    reference: str
    """``gpu_plugins_image_reference``."""
    assemble: Mapping[str, Any] = field(default_factory=dict)
    """``gpu_plugins_image_assemble``."""
    wheels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Files that the patterns for wheels name, by architecture."""
    machine: str = ""
    """The host's, as Ansible's fact ``architecture`` has it."""
    assembled: Mapping[str, Any] = field(default_factory=dict)
    """The results of ``oci_archive``."""


@dataclass(frozen=True)
class ReachSeen:
    """What was seen of nodes that are to have an image."""

    made: str
    """The image that this run has assembled; empty if it has not."""
    wanted: str
    """The image that the plugins are to have."""
    delivery: str
    running: Sequence[str]
    """Images of the plugins' DaemonSets."""
    nodes: Mapping[str, Any]
    modes: Mapping[str, Any]
    hosts: Sequence[str] = ()
    """The GPU nodes of the inventory."""
    hostvars: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Image:
    """How the assembled image is named, and what it lacks."""

    repository: str
    name: str
    """With a tag that names the content of all architectures."""
    tag: str
    architecture: str
    """The host's."""
    digests: Sequence[str]
    """Digest and id of the host's image."""
    incomplete: Sequence[str]
    """Architectures without a base, or without the wheel of the daemons."""
    bare: Sequence[str]
    """Architectures without the interposer."""


def image(seen: Seen) -> Image:
    """Return how the assembled image is named, and what it lacks."""
    repository, tag = _parts(seen.reference)
    results = mappings(seen.assembled.get("results"))
    content = "".join(sorted(str(result.get("digest", "")) for result in results))
    tag = f"{tag or 'latest'}-{sha256(content.encode()).hexdigest()[:12]}"
    architecture = _MACHINES.get(seen.machine, seen.machine)
    mine: Mapping[str, Any] = next(
        (item for item in results if mapping(item.get("item")).get("key") == architecture), {}
    )
    parts = {name: mapping(part) for name, part in mapping(seen.assemble).items()}
    return Image(
        repository,
        f"{repository}:{tag}",
        tag,
        architecture,
        [str(mine[key]) for key in ("digest", "id") if key in mine],
        [name for name, part in parts.items() if not part.get("base") or not _has_daemons(seen.wheels.get(name, ()))],
        [name for name, part in parts.items() if not {"native", "files"} & set(part)],
    )


def nodes_without_image(seen: ReachSeen) -> List[str]:
    """Return nodes that serve and would wait for an image that no registry has and this run has not given them."""
    if not seen.made or seen.delivery != "import" or all(image == seen.wanted for image in seen.running):
        return []
    given = {str(host.get("gpu_plugins_node_name") or name) for name, host in _given(seen)}
    return [
        metadata_of(node)["name"]
        for node in resources(seen.nodes)
        if metadata_of(node)["name"] not in given
        and (labels_of(node).get(MODE_LABEL) in seen.modes or labels_of(node).get(CGPU_LABEL) == "true")
    ]


def _given(seen: ReachSeen) -> Iterator[Tuple[str, Mapping[str, Any]]]:
    """Yield the hosts that this run has given the image."""
    for name in seen.hosts:
        if seen.hostvars[name].get("gpu_plugins_image_here") == seen.wanted:
            yield name, seen.hostvars[name]


def _parts(reference: str) -> Tuple[str, str]:
    found = _REFERENCE.fullmatch(str(reference))
    return (found[1], found[2] or "") if found else (str(reference), "")


def _has_daemons(wheels: Sequence[str]) -> bool:
    return any(path.rpartition("/")[2].startswith("kube_accel-") for path in wheels)
