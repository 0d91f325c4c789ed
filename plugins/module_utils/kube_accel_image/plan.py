# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the assembled image of the daemons is named, and why it cannot be assembled. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Dict, Iterator, List, Mapping, Sequence

from ..shared.options import OptionReader
from ..shared.printable import line
from ..shared.refusal import Refusal, messages
from ..shared.registers import mapping, mappings

_LEFT = {"base": "kube-accel.tar", "wheels": ["wheels/*.whl"], "native": "native"}
"""What ``make image`` leaves in a directory for each architecture."""
_LONGEST = 256
"""Characters of a path, in a message."""
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_REFERENCE = re.compile(r"(.*?)(?::([^:/]*))?")
_FULL_REFERENCE = re.compile(r"(localhost|[^/]*[.:][^/]*)/[^@]+")


@dataclass(frozen=True)
class Seen:
    """What exists of the image that is assembled."""

    options: Mapping[str, object]
    """Variables of the role, by name."""
    wheels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Files that the patterns for wheels name, by architecture."""
    machine: str = ""
    """The host's, as Ansible's fact ``architecture`` has it."""
    assembled: Mapping[str, Any] = field(default_factory=dict)
    """The results of ``oci_archive``."""


@dataclass(frozen=True)
class Plan:
    """How the assembled image is named, and why it cannot be assembled."""

    repository: str
    name: str
    """With a tag that names the content of all architectures."""
    tag: str
    architecture: str
    """The host's."""
    unserved: str
    """Why the host cannot have the image; empty if it can, or if its architecture is not known yet."""
    digests: Sequence[str]
    """Digest and id of the host's image."""
    parts: Mapping[str, Mapping[str, Any]]
    """What to assemble from, by architecture."""
    wheels: Mapping[str, Sequence[str]]
    """Files of the wheels, by architecture."""
    refusals: Sequence[Refusal]
    words: str
    """All refusals as one text."""


def plan(seen: Seen) -> Plan:
    """Return how the assembled image is named, and why it cannot be assembled."""
    options = OptionReader(seen.options)
    reference = options.text("kube_accel_image_reference")
    found = _REFERENCE.fullmatch(reference)
    repository, tag = (found[1], found[2] or "") if found else (reference, "")
    results = mappings(seen.assembled.get("results"))
    content = "".join(sorted(str(result.get("digest", "")) for result in results))
    tag = f"{tag or 'latest'}-{sha256(content.encode()).hexdigest()[:12]}"
    architecture = _MACHINES.get(seen.machine, seen.machine)
    assemble = seen.options.get("kube_accel_image_assemble")
    parts = assembly(assemble)
    if isinstance(assemble, str):
        parts = {name: part for name, part in parts.items() if _has_daemons(seen.wheels.get(name, ()))}
    mine: Mapping[str, Any] = next(
        (item for item in results if mapping(item.get("item")).get("key") == architecture), {}
    )
    unfit = list(_refusals(options, reference, parts, seen.wheels))
    refusals = [*options.refusals, *unfit]
    return Plan(
        repository,
        f"{repository}:{tag}",
        tag,
        architecture,
        _unserved(architecture, assemble, parts) if architecture and not unfit else "",
        [str(mine[key]) for key in ("digest", "id") if key in mine],
        parts,
        seen.wheels,
        refusals,
        messages(refusals),
    )


def assembly(assemble: object) -> Dict[str, Mapping[str, Any]]:
    """Return what to assemble from, by architecture.

    For a directory this is what ``make image`` leaves there, for every architecture that it knows.
    """
    if isinstance(assemble, str):
        return {name: _left(f"{assemble.rstrip('/')}/image/{name}") for name in _MACHINES.values() if assemble}
    return {name: mapping(part) for name, part in mapping(assemble).items()}


def without_interposer(assemble: object) -> List[str]:
    """Return the architectures for which ``kube_accel_image_assemble`` names no interposer."""
    return [name for name, parts in assembly(assemble).items() if not {"native", "files"} & set(parts)]


def _left(directory: str) -> Dict[str, Any]:
    return {
        key: [f"{directory}/{entry}" for entry in path] if isinstance(path, list) else f"{directory}/{path}"
        for key, path in _LEFT.items()
    }


def _unserved(architecture: str, assemble: object, parts: Mapping[str, object]) -> str:
    if architecture in parts:
        return ""
    remedy = f"run 'make image ARCH={architecture} BASE=...' too" if isinstance(assemble, str) else "add it there"
    return (
        f"The host is {architecture}, and kube_accel_image_assemble has an image for {', '.join(parts) or 'nothing'}; "
        f"{remedy}."
    )


def _refusals(
    options: OptionReader,
    reference: str,
    parts: Mapping[str, Mapping[str, Any]],
    wheels: Mapping[str, Sequence[str]],
) -> Iterator[Refusal]:
    directory = options.text_or_mapping("kube_accel_image_assemble")
    if directory and not (parts and directory.startswith(("/", "~"))):
        yield Refusal(
            "image_not_made",
            f"kube_accel_image_assemble is '{line(directory, _LONGEST)}', where 'make image' left nothing; run it in a "
            "clone of the collection, and set the variable to the full path of the clone's .build.",
        )
    if not set(parts) <= set(_MACHINES.values()):
        yield Refusal(
            "image_architecture",
            f"kube_accel_image_assemble is by architecture, amd64 or arm64, and has {', '.join(map(str, parts))}.",
        )
    if not _FULL_REFERENCE.fullmatch(reference):
        yield Refusal(
            "image_reference",
            f"kube_accel_image_reference is '{reference}'; write the name in full, with a registry or localhost/ "
            "before the repository.",
        )
    incomplete = [
        str(name) for name, part in parts.items() if not part.get("base") or not _has_daemons(wheels.get(name, ()))
    ]
    if incomplete:
        yield Refusal(
            "image_incomplete",
            "kube_accel_image_assemble needs base and wheels, kube_accel's among them, for each architecture: see "
            f"{', '.join(incomplete)}.",
        )
    if options.choice("kube_accel_image_delivery", ("import", "push")) == "push" and reference.startswith("localhost/"):
        yield Refusal(
            "image_registry",
            "kube_accel_image_delivery is push; name registry and repository in kube_accel_image_reference.",
        )


def _has_daemons(wheels: Sequence[str]) -> bool:
    return any(path.rpartition("/")[2].startswith("kube_accel-") for path in wheels)
