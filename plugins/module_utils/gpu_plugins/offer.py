# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a node offers what its GPUs make in its mode, by the rule that its plugin has, too. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ..cluster.annotations import node_told
from ..shared import goyaml, label_names
from ..shared.modes import DRA_DRIVER, DRA_MODE, MODES, RESOURCE, WHOLE_MODE, WHOLE_RESOURCE
from ..shared.offers import NONE, Card, Host, Replication, Slice, TooManyError, mig_problem, mps_unfit, must_offer
from ..shared.quantity import whole_units
from ..shared.registers import entries, labels_of, mapping, mappings, metadata_of
from ..shared.semver import semver
from ..shared.sharing_config import Reader, mig_strategy, sharing
from .dra import devices_offered, driver_versions, slices_of
from .fixed import uncut

CONFIG_LABEL = label_names.CONFIG
"""The node label that names a configuration."""
_MIG = "nvidia.com/mig-"


@dataclass(frozen=True)
class Settings:
    """What the plugin of a node is given."""

    mode: str
    mig_strategy: str = NONE
    configs: Mapping[str, Any] = field(default_factory=dict)
    """Configurations by name, each as text or as a mapping."""
    config: str = ""
    """The one that the node is labeled with."""
    default_config: str = ""
    """The one of nodes without the label; empty for none."""
    fixed_shares: int = 0
    """Into how many shares a DRA driver is to cut each GPU; 0 for none."""


@dataclass(frozen=True)
class Seen:
    """What was seen of a node, and what its plugin is given."""

    node: Mapping[str, Any]
    """How it is, as ``NodeState`` has it."""
    nvml: Mapping[str, Any]
    """Facts of its GPUs."""
    mig_strategy: str = NONE
    configs: Mapping[str, Any] = field(default_factory=dict)
    config: str = ""
    default_config: str = ""
    slices: Mapping[str, Any] = field(default_factory=dict)
    """The result for ResourceSlices, of this node or of all."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """The answers for ResourceSlices of this node, and for ResourceClaims of all; none where they were not read."""


@dataclass(frozen=True)
class Offer:
    """What a node is to offer, and what it does."""

    expected: Dict[str, int]
    """Devices by resource."""
    offered: Dict[str, int]
    """Devices of these resources and of MIG devices that the node offers."""
    found: Dict[str, int]
    """What the node offers in the mode that it serves now, which may be another."""
    missing: List[str]
    """``2 of 4 nvidia.com/gpu`` for each resource of which there is too little."""
    complete: bool
    """Whether all of it is there, and by the driver that the host has now."""
    usable: int
    """GPUs that the mode can serve now."""
    outdated: str
    """That the plugin reports another driver than the host's, with the remedy; empty when it does not."""
    uncut: str
    """Which GPUs are not cut into fixed shares as they are to be, though no claim keeps them; empty where all are."""
    config: str
    """The configuration of the node; empty for none."""
    by_mps: bool
    """Whether MPS shares GPUs of the node."""
    mps_gpus: List[str]
    """UUIDs of those that need a control daemon."""
    problem: str
    """Why nothing can be offered, with the remedy; empty when it can."""


def seen_offer(seen: Seen) -> Offer:
    """Return what a node is to offer in the mode that it is to serve, and what it offers."""
    target, fixed = seen.node["target"], seen.node["fixed_shares"]
    settings = Settings(target, seen.mig_strategy, seen.configs, seen.config, seen.default_config, fixed)
    node = seen.node["object"]
    answers = mappings(seen.given.get("results"))
    read, claims = answers if len(answers) == 2 else (seen.slices, {})
    slices = slices_of(read, str(metadata_of(node).get("name") or "")) if settings.mode == DRA_MODE else []
    return offer(node, seen.nvml, seen.node["serves"], settings, slices, claims)


def offer(
    node: Mapping[str, Any],
    nvml: Mapping[str, Any],
    serves: str,
    settings: Settings,
    slices: Sequence[Mapping[str, Any]] = (),
    claims: Mapping[str, Any] = MappingProxyType({}),
) -> Offer:
    """Return what a node is to offer in a mode, by the facts of its GPUs, and what it offers.

    ``serves`` is the mode that the node serves now; empty for none. ``slices`` are those of our driver on the node, and
    ``claims`` the result for those that may have devices of them.
    """
    host = _host(nvml)
    labels = labels_of(node)
    name = str(settings.config or labels.get(CONFIG_LABEL) or settings.default_config or "")
    strategy, replications, problem = _configuration(settings, name)
    expected, problem = _expected(settings.mode, host, strategy, replications, problem)
    allocatable = {
        resource: whole_units(amount) or 0
        for resource, amount in mapping(mapping(node.get("status")).get("allocatable")).items()
    }
    offered = _offered(settings.mode, expected, replications, {**allocatable, DRA_DRIVER: devices_offered(slices)})
    missing = [
        f"{offered.get(resource, 0)} of {amount} {resource}"
        for resource, amount in expected.items()
        if offered.get(resource, 0) < amount
    ]
    told, version = node_told(node).driver, str(nvml.get("driver_version") or "")
    outdated = _outdated_slices(slices, version) if settings.mode == DRA_MODE else _outdated(told, version)
    cuts = _uncut(host, slices, claims, settings.fixed_shares, str(metadata_of(node).get("name") or ""))
    by_mps = settings.mode == "mps" or any(each.by_mps for each in replications)
    return Offer(
        expected=expected,
        offered=offered,
        found=offered if serves in ("", settings.mode) else _elsewise(allocatable),
        missing=missing,
        complete=not missing and bool(expected) and all(expected.values()) and not outdated and not cuts,
        usable=sum(_usable(host, card, settings.mode) for card in host.cards),
        outdated=outdated,
        uncut=cuts,
        config=name,
        by_mps=by_mps,
        mps_gpus=[
            card.uuid
            for card in host.cards
            if by_mps and not card.mig_enabled and not mps_unfit(card, host.driver_version)
        ],
        problem=problem,
    )


def _outdated(told: str, driver: str) -> str:
    """``told`` is the driver that the plugin reports; empty where it reports none."""
    if told in ("", driver):
        return ""
    remedy = "Delete the plugin's pod. The new pod reads the driver again."
    return f"The plugin reports driver {told}, but the host has {driver or 'none'}. {remedy}"


def _outdated_slices(slices: Sequence[Mapping[str, Any]], driver: str) -> str:
    """Return that a device is of another driver than the host's, with the remedy; empty where none is."""
    told = sorted(driver_versions(slices) - {semver(driver)})
    remedy = "Delete the DRA driver's pod. The new pod reads the driver again."
    return f"The ResourceSlices tell of driver {told[0]}, but the host has {driver or 'none'}. {remedy}" if told else ""


def _uncut(host: Host, slices: Sequence[Mapping[str, Any]], claims: Mapping[str, Any], number: int, node: str) -> str:
    gpus = [card.uuid for card in host.cards if _usable(host, card, DRA_MODE)]
    found = uncut(slices, claims, node, number, gpus)
    wanted = f"cut into {number} shares" if number else "whole again"
    return f"No claim has {', '.join(found)}, and the ResourceSlices do not have them {wanted}." if found else ""


def _expected(
    mode: str, host: Host, strategy: str, replications: Iterable[Replication], problem: str
) -> Tuple[Dict[str, int], str]:
    if mode == DRA_MODE:
        return {DRA_DRIVER: sum(_dra_devices(host, card) for card in host.cards)}, ""
    if mode not in MODES:
        return {}, ""
    if problem:
        return {WHOLE_RESOURCE: 0}, problem
    try:
        found = must_offer(mode, host, strategy, tuple(replications))
    except TooManyError as error:
        return {WHOLE_RESOURCE: 0}, str(error)
    return found, mig_problem(strategy, host.cards) if mode == WHOLE_MODE else ""


def _configuration(settings: Settings, name: str) -> Tuple[str, Tuple[Replication, ...], str]:
    """Return the MIG strategy and what is replicated, or what is wrong with the configuration of this name."""
    document = settings.configs.get(name)
    if settings.mode != WHOLE_MODE or document is None:
        return settings.mig_strategy, (), ""
    reader = Reader()
    try:
        top = reader.section(goyaml.load(document) if isinstance(document, str) else document, "", ("flags", "sharing"))
        flags = reader.section(top.get("flags"), "flags", ("migStrategy",))
        replications, _one_each = sharing(reader, top.get("sharing"))
        named = mig_strategy(reader, flags, replications)
    except ValueError as error:
        return settings.mig_strategy, (), f"configuration {name}: {error}"
    strategy = settings.mig_strategy if settings.mig_strategy != NONE else named or NONE
    return strategy, replications, f"configuration {name}: {'; '.join(reader.problems)}" if reader.problems else ""


def _offered(
    mode: str, expected: Mapping[str, int], replications: Iterable[Replication], allocatable: Mapping[str, int]
) -> Dict[str, int]:
    names = dict.fromkeys(expected)
    if mode == WHOLE_MODE:
        names.update(dict.fromkeys(each.name for each in replications if allocatable.get(each.name)))
        names.update(dict.fromkeys(name for name in allocatable if name.startswith(_MIG)))
    return {name: allocatable.get(name, 0) for name in names}


def _elsewise(allocatable: Mapping[str, int]) -> Dict[str, int]:
    return {name: amount for name, amount in allocatable.items() if RESOURCE.match(name) and amount > 0}


def _usable(host: Host, card: Card, mode: str) -> bool:
    return host.serves(card, mode == "mps") and not (mode not in (WHOLE_MODE, "") and card.mig_enabled)


def _dra_devices(host: Host, card: Card) -> int:
    """Return the devices of ResourceSlices that a GPU is: one, or its MIG devices."""
    return (
        len(card.mig_devices) if card.mig_enabled and host.serves(card, False) else int(_usable(host, card, DRA_MODE))
    )


def _host(nvml: Mapping[str, Any]) -> Host:
    return Host(
        tuple(_card(number, mapping(gpu)) for number, gpu in enumerate(entries(nvml.get("gpus")))),
        str(nvml.get("driver_version") or ""),
        _numbers(nvml.get("cuda_version")),
    )


def _card(number: int, gpu: Mapping[str, Any]) -> Card:
    mig = mapping(gpu.get("mig"))
    devices = [mapping(each) for each in entries(mig.get("devices"))]
    return Card(
        uuid=str(gpu.get("uuid") or f"GPU-{number}"),
        index=int(gpu.get("index", number)),
        memory_bytes=int(gpu.get("memory_bytes") or 0),
        compute_capability=_numbers(gpu.get("compute_capability")),
        mig_enabled=bool(mig.get("enabled")),
        mig_devices=tuple(
            Slice(str(each.get("uuid") or f"MIG-{number}-{place}"), int(each.get("slot", place)), str(each["profile"]))
            for place, each in enumerate(devices)
        ),
        healthy=gpu.get("health") == "healthy",
    )


def _numbers(text: Optional[object]) -> Tuple[int, ...]:
    """Return ``9.0`` as (9, 0), and nothing for what could not be read."""
    parts = str(text or "").split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()
