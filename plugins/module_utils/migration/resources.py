# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a container that asks another device plugin for GPUs has to ask ours for. Pure.

Memory is rounded up to the next unit and cores up to the next percent, so that no container gets less.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Dict, Iterable, List, Mapping, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.migration.claims import SHARE_OF
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.modes import (
    BY_MODE,
    CORES,
    DRA_DRIVER,
    DRA_MIG_CLASS,
    DRA_MODE,
    DRA_SHARE_CLASS,
    GIB,
    MIB,
    OTHER_DRA_DRIVERS,
    RESOURCE,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.quantity import human_bytes, whole_units

WHOLE = CORES
"""Cores of a GPU."""
UNKNOWN = "unknown"
_LEAST_CORES, _MOST_CORES = 1, 99

_OFFERS: Mapping[str, str] = {
    "nvidia": r"nvidia\.com/(?:gpu(?:\.shared)?|mig-.+)\Z",
    "gpu-operator": r"nvidia\.com/(?:gpu(?:\.shared)?|mig-.+)\Z",
    "gpu-manager": r"tencent\.com/vcuda-(?:core|memory)\Z",
    "mps": r"nvidia\.com/mps-(?:core|memory)\Z",
    "gpushare": r"aliyun\.com/gpu-(?:mem|count|core\.percentage)\Z",
    "nvidia-dra": r"(?:share of )?(?:nvidia\.com/gpu|(?:gpu|mig|vfio\.gpu)\.nvidia\.com)\Z",
    "hami-dra": r"(?:share of )?(?:nvidia\.com/gpu|hami-core-gpu\.project-hami\.io)\Z",
}
"""Names of what each kind offers and pods ask of it, but for HAMi's, which are configured.

Of DRA drivers, these are device classes.
"""
_CLASSES: Mapping[str, str] = {"nvidia-dra": OTHER_DRA_DRIVERS[0], "hami-dra": OTHER_DRA_DRIVERS[1]}
"""Device classes of whole GPUs, by kind."""
_MIG_CLASS = "mig.nvidia.com"
_OTHER_MAKERS = (
    "amd",
    "intel",
    "huawei",
    "cambricon",
    "hygon",
    "enflame",
    "mthreads",
    "metax-tech",
    "iluvatar",
    "biren",
)
_UNKNOWN = re.compile(rf"(?!(?:.+\.)?(?:{'|'.join(_OTHER_MAKERS)})[a-z]*\.)[^/]+/.*gpu", re.IGNORECASE)
"""Names of what plugins offer that hand out NVIDIA's GPUs, as ``volcano.sh/vgpu-number`` and ``cnvrg.io/metagpu``."""
_FOREIGN = re.compile(r"nvidia\.com/(?:gpu[.-](?!shared\Z).+|[A-Z].+)\Z")
"""Names in NVIDIA's domain that its plugin never offers, as nos' ``nvidia.com/gpu-10gb`` and KubeVirt's
``nvidia.com/GA102GL_A10``."""
_SAME: Mapping[Tuple[str, str], str] = {
    ("nvidia", "pgpu"): _OFFERS["nvidia"],
    ("gpu-operator", "pgpu"): _OFFERS["nvidia"],
    ("gpu-manager", "vgpu"): r"tencent\.com/",
    # Kube-scheduler makes the claims of such pods.
    ("nvidia-dra", DRA_MODE): r"nvidia\.com/gpu\Z",
    ("hami-dra", DRA_MODE): r"nvidia\.com/gpu\Z",
    ("nvidia-dra", "pgpu"): r"nvidia\.com/gpu\Z",
    ("hami-dra", "pgpu"): r"nvidia\.com/gpu\Z",
}
"""Where name and unit stay as they are."""
DIVIDED: Mapping[str, str] = {"mps": "nvidia.com/mps-memory", "gpushare": "aliyun.com/gpu-mem"}
"""By kind, the resource of whose units a GPU has a number, and each is that part of the GPU's memory."""
_MPS_UNITS = (GIB, 256 * MIB, MIB)
"""What a unit of memory may be to the MPS plugin, whose documents do not say."""


_BY_CLAIM = "by a ResourceClaim; from Kubernetes 1.36 on, nvidia.com/gpu does as well"


class Unmatched(Exception):
    """The mode offers nothing that is the same; says what to do instead."""


@dataclass(frozen=True)
class Hami:
    """HAMi's settings: the names of its resources, and what a container has that does not say."""

    counts: Tuple[str, ...] = ("nvidia.com/gpu", "nvidia.com/gpualloc", "nvidia.com/vgpu")
    """The resources that count GPUs: usual, Alauda's, and an old one; one alone where the configuration is known."""
    memories: Tuple[str, ...] = ("nvidia.com/gpumem", "nvidia.com/vgpumem")
    percentages: Tuple[str, ...] = ("nvidia.com/gpumem-percentage", "nvidia.com/vgpumem-percentage")
    cores: Tuple[str, ...] = ("nvidia.com/gpucores", "nvidia.com/vgpucores")
    priorities: Tuple[str, ...] = ("nvidia.com/priority",)
    unit_bytes: int = MIB
    """The unit of its memory resource."""
    memory_bytes: int = 0
    """The memory of each GPU that a container gets that names none; 0 for all."""
    percent: int = 0
    """The percent of each GPU's cores that a container gets that names none."""
    gpus: int = 1
    """Where a container names a share alone."""

    @property
    def names(self) -> Tuple[str, ...]:
        """Return all resources that it offers, or that pods ask of it."""
        return (*self.counts, *self.memories, *self.percentages, *self.cores, *self.priorities)

    def on(self, allocatable: Iterable[str]) -> Hami:
        """Return it as it is on a node that has, or had, these resources."""
        count = next((name for name in self.counts[1:] if name in allocatable), self.counts[0])
        old = count != self.counts[0] and count == self.counts[-1]
        pick = slice(1, None) if old else slice(0, 1)
        return replace(self, counts=(count,), memories=self.memories[pick], cores=self.cores[pick])


@dataclass(frozen=True)
class Card:
    """What is known of the node's GPUs."""

    memory_bytes: int = 0
    """The memory of the smallest; 0 where it is not known."""
    replicas: int = 1
    """Containers on one."""
    sharing: str = ""
    """How: ``time-slicing`` or ``mps``; empty where GPUs are whole, ``unknown`` where that cannot be found out."""
    unit_bytes: int = GIB
    """What a unit of ``aliyun.com/gpu-mem`` is to the plugin that offers it."""
    hami: Hami = field(default_factory=Hami)
    slices: Mapping[str, Tuple[int, str]] = field(default_factory=dict)
    """By resource of MIG devices, containers on one, and how they share it."""
    mig: str = ""
    """The profile of the MIG devices that ``nvidia.com/gpu`` stands for; ``unknown`` where it may stand for some."""
    part_bytes: int = 0
    """The memory of a GPU by the number of units that the plugin offers of it; 0 where that is not known."""


@dataclass(frozen=True)
class Ask:
    """What a container wants, from any plugin."""

    gpus: int
    cores: int = WHOLE
    """The percent of each GPU's cores; 0 where it did not say."""
    memory_bytes: int = 0
    """The memory of each GPU; 0 for all of it."""

    @property
    def whole(self) -> bool:
        """Return whether no other container may be on its GPUs."""
        return self.cores == WHOLE and not self.memory_bytes


@dataclass(frozen=True)
class Answer:
    """What to ask for instead."""

    limits: Mapping[str, int] = field(default_factory=dict)
    note: str = ""
    """What is not the same about it."""


def offers(kind: str, hami: Hami) -> str:
    """Return the pattern of the names of what a kind of plugin offers, and pods ask of it."""
    return _OFFERS[kind] if kind != "hami" else rf"(?:{'|'.join(map(re.escape, filter(None, hami.names)))})\Z"


def offered_by(kind: str, resources: Mapping[str, object], hami: Hami) -> Dict[str, int]:
    """Return the resources of a node or container that belong to a kind of plugin, where there are any."""
    pattern = offers(kind, hami)
    found = {name: whole_units(amount) for name, amount in resources.items() if re.match(pattern, name)}
    return {name: amount for name, amount in found.items() if amount}


def unknown(names: Iterable[str], hami: Hami) -> List[str]:
    """Return those by which a plugin hands out GPUs that is neither ours nor of a kind that is known."""
    known = (RESOURCE.pattern, offers("hami", hami), *_OFFERS.values())
    return sorted(
        name
        for name in names
        if (_FOREIGN.match(name) and name not in hami.names)
        or (_UNKNOWN.match(name) and not any(re.match(each, name) for each in known))
    )


def translated(kind: str, mode: str, limits: Mapping[str, object], card: Card) -> Answer:
    """Return what a container has to ask for in a mode of ours. Raises Unmatched."""
    asked = offered_by(kind, limits, card.hami)
    if not asked:
        return Answer()
    same = _SAME.get((kind, mode))
    if same and all(re.match(same, name) for name in asked):
        return Answer(asked)
    if kind == "gpushare" and mode == "cgpu" and card.unit_bytes == GIB and list(asked) == ["aliyun.com/gpu-mem"]:
        return Answer(asked, _difference(asked["aliyun.com/gpu-mem"], card))
    if kind == "mps" and mode == "mps" and _mps_unit(card) in (0, GIB) and _is_ours_too(asked):
        return Answer(asked, _difference(asked.get("nvidia.com/mps-memory", 0), card))
    if mode == DRA_MODE and set(asked) == {_MIG_CLASS}:
        return Answer({DRA_MIG_CLASS: sum(asked.values())})
    if kind in _CLASSES and mode == DRA_MODE and _shares(asked):
        return Answer({DRA_SHARE_CLASS: sum(asked.values())}, "the claim has to name cores and memory")
    ask = _ask(kind, asked, card)
    return _whole(ask, mode, card) if ask.whole else _share(ask, mode, card)


def _shares(asked: Mapping[str, int]) -> bool:
    """Return whether a container asks a DRA driver for shares alone."""
    return all(name.startswith(SHARE_OF) for name in asked)


def _difference(units: int, card: Card) -> str:
    """Return, for a person, what so many units of a GPU's memory were there, where they are not whole GiB."""
    there, here = units * card.part_bytes // MIB, units * GIB // MIB
    if not there or there == here:
        return ""
    how = "less" if here < there else "more"
    return f"{there:,} MiB there and {here:,} MiB here: {abs(there - here):,} MiB {how}"


def _is_ours_too(asked: Mapping[str, int]) -> bool:
    """Return whether mode mps takes what was asked of the MPS plugin: a share names both, all of a GPU its cores."""
    return len(asked) == len(BY_MODE["mps"][:2]) or asked.get("nvidia.com/mps-core") == WHOLE


def part_of(kind: str, card: Card, units: int) -> int:
    """Return the bytes of one of so many units of a GPU; 0 where none of what a unit may stand for fits in so often."""
    part = card.memory_bytes // units if units else 0
    known = _MPS_UNITS if kind == "mps" else (card.unit_bytes,)
    return part if any(unit <= part < 2 * unit for unit in known) else 0


def _mps_unit(card: Card) -> int:
    """Return what a unit of memory is to the MPS plugin, by how many it offers of a GPU; 0 where that is not known."""
    return next((unit for unit in _MPS_UNITS if unit <= card.part_bytes), 0)


def returned(kind: str, mode: str, limits: Mapping[str, object], card: Card) -> Answer:
    """Return what to ask for, in place of ours, once the node is given back. Raises Unmatched."""
    asked = asked_of_ours(mode, limits)
    same = _SAME.get((kind, mode))
    if not asked or (same and all(re.match(same, name) for name in asked)):
        return Answer(asked)
    if kind == "nvidia-dra" and set(asked) == {DRA_MIG_CLASS}:
        return Answer({_MIG_CLASS: sum(asked.values())})
    ask = _ask_of_ours(mode, asked)
    if kind in _CLASSES and ask.whole:
        return Answer({_CLASSES[kind]: ask.gpus})
    if kind == "hami":
        return _hami_answer(ask, card.hami)
    if kind == "gpushare":
        answer = _whole(ask, "cgpu", card) if ask.whole else _share(ask, "cgpu", card)
        scale = GIB // card.unit_bytes
        return Answer({name: amount * scale for name, amount in answer.limits.items()}, answer.note)
    if kind in ("gpu-manager", "mps"):
        theirs = "vgpu" if kind == "gpu-manager" else kind
        return _whole(ask, theirs, card) if ask.whole else _share(ask, theirs, card)
    if not ask.whole:
        raise Unmatched("it gives GPUs, or equal parts of them: ask for nvidia.com/gpu")
    return Answer({"nvidia.com/gpu": ask.gpus})


_OURS_WHOLE = re.compile(r"nvidia\.com/(?:gpu(?:[.-].+)?|mig-.+)\Z")
"""Names of what ours offers in mode pgpu; it has names of one's own too."""


def asked_of_ours(mode: str, limits: Mapping[str, object]) -> Dict[str, int]:
    """Return the resources of a container that our plugin offers in a mode."""
    if mode == "pgpu":
        found = {name: whole_units(amount) for name, amount in limits.items() if _OURS_WHOLE.match(name)}
        return {name: amount for name, amount in found.items() if amount}
    names = (DRA_DRIVER, DRA_SHARE_CLASS, DRA_MIG_CLASS, "nvidia.com/gpu") if mode == DRA_MODE else BY_MODE[mode][:2]
    found = {name: whole_units(amount) for name, amount in limits.items() if name in names}
    return {name: amount for name, amount in found.items() if amount}


def _ask_of_ours(mode: str, asked: Mapping[str, int]) -> Ask:
    if mode == "pgpu":
        return _ask("nvidia", asked, Card())
    if mode == DRA_MODE:
        odd = sorted({DRA_SHARE_CLASS, DRA_MIG_CLASS} & set(asked))
        if odd:
            raise Unmatched(f"it has a claim for {' and '.join(odd)}; ask for what is the same there, if it has that")
        return Ask(sum(asked.values()))
    cores, memory, unit = BY_MODE[mode]
    percent = asked.get(cores or "", 0)
    if percent and percent % WHOLE == 0:
        return Ask(percent // WHOLE)
    return Ask(1, percent, asked.get(memory, 0) * unit)


def _hami_answer(ask: Ask, hami: Hami) -> Answer:
    count = hami.counts[0]
    if ask.whole:
        return Answer({count: ask.gpus})
    share = {hami.memories[0]: -(-ask.memory_bytes // hami.unit_bytes), hami.cores[0]: ask.cores}
    return Answer({count: ask.gpus, **{name: amount for name, amount in share.items() if amount}})


def _ask(kind: str, asked: Mapping[str, int], card: Card) -> Ask:
    if kind == "gpu-manager":
        cores, memory = asked.get("tencent.com/vcuda-core", 0), asked.get("tencent.com/vcuda-memory", 0)
        if cores and cores % WHOLE == 0:
            return Ask(cores // WHOLE)
        return Ask(1, cores, memory * 256 * MIB)
    if kind == "mps":
        cores, memory = asked.get("nvidia.com/mps-core", 0), asked.get("nvidia.com/mps-memory", 0)
        whole = cores and cores % WHOLE == 0 and not memory
        return Ask(cores // WHOLE) if whole else Ask(1, cores, memory * (card.part_bytes or GIB))
    if kind == "gpushare":
        if "aliyun.com/gpu-mem" not in asked:
            raise Unmatched("ask for nvidia.com/gpu on nodes of mode pgpu: nothing here counts GPUs beside shares")
        count, cores = asked.get("aliyun.com/gpu-count", 1), asked.get("aliyun.com/gpu-core.percentage", 0)
        return (
            Ask(count)
            if cores >= WHOLE
            else Ask(count, cores, asked["aliyun.com/gpu-mem"] * (card.part_bytes or card.unit_bytes))
        )
    if kind == "hami":
        return _hami_ask(asked, card)
    if kind in _CLASSES:
        return _claimed(kind, asked)
    if card.mig == UNKNOWN:
        raise Unmatched(
            "nothing says whether nvidia.com/gpu is a GPU or a MIG device there (MIG strategy single); let feature "
            "discovery label the node nvidia.com/gpu.product"
        )
    if card.mig or any(name.startswith("nvidia.com/mig-") for name in asked):
        raise Unmatched(
            "MIG devices are offered by mode pgpu alone (gpu_plugins_mig_strategy=mixed); keep the node in it"
        )
    if card.sharing == UNKNOWN:
        raise Unmatched(
            "nothing says how its GPUs are shared; label the node nvidia.com/gpu.sharing-strategy=none, or "
            "=time-slicing and nvidia.com/gpu.replicas=<containers on a GPU>"
        )
    count = sum(asked.values())
    if card.replicas <= 1:
        return Ask(count)
    return Ask(count, max(WHOLE // card.replicas, _LEAST_CORES), _known(card) // card.replicas)


def _claimed(kind: str, asked: Mapping[str, int]) -> Ask:
    """Return what a container wants that has claims for a DRA driver."""
    odd = sorted(set(asked) - {_CLASSES[kind], "nvidia.com/gpu"})
    if odd:
        raise Unmatched(
            f"nothing here stands for a claim with {', '.join(odd)} in this mode; ask for whole GPUs, or in mode "
            f"{DRA_MODE} for {DRA_SHARE_CLASS}"
        )
    return Ask(sum(asked.values()))


def _hami_ask(asked: Mapping[str, int], card: Card) -> Ask:
    hami = card.hami

    def said(names: Iterable[str]) -> int:
        return max((asked.get(name, 0) for name in names), default=0)

    memory, cores, percentage = said(hami.memories) * hami.unit_bytes, said(hami.cores), said(hami.percentages)
    if not memory and 0 < percentage < WHOLE:
        memory = -(-_known(card) * percentage // WHOLE)
    count = said(hami.counts) or hami.gpus
    if not memory and not percentage:
        memory = hami.memory_bytes
    cores = cores or hami.percent
    # All cores of a GPU are for one container there too.
    if cores >= WHOLE or not (memory or cores):
        return Ask(count)
    return Ask(count, cores, memory or _known(card))


def _known(card: Card) -> int:
    if not card.memory_bytes:
        raise Unmatched(
            "the share depends on the size of the node's GPUs, which is unknown; label it nvidia.com/gpu.memory=<MiB>"
        )
    return card.memory_bytes


def _whole(ask: Ask, mode: str, card: Card) -> Answer:
    if mode == "pgpu":
        return Answer({"nvidia.com/gpu": ask.gpus})
    if mode == DRA_MODE:
        return Answer({DRA_DRIVER: ask.gpus}, _BY_CLAIM)
    cores, memory, unit = BY_MODE[mode]
    if mode == "mps" and ask.gpus > 1:
        raise Unmatched("mode mps gives a container one GPU at most; ask for nvidia.com/gpu on nodes of mode pgpu")
    if cores is not None:
        return Answer({cores: ask.gpus * WHOLE})
    if ask.gpus > 1:
        raise Unmatched("mode cgpu gives parts of one GPU; ask for nvidia.com/gpu on nodes of mode pgpu")
    return Answer({memory: _known(card) // unit}, "all its memory, which does not keep other pods from computing there")


def _share(ask: Ask, mode: str, card: Card) -> Answer:
    if mode == "pgpu":
        raise Unmatched("mode pgpu gives whole GPUs; ask for nvidia.com/gpu, or migrate the node to a mode that shares")
    if mode == DRA_MODE:
        memory = f" and {human_bytes(ask.memory_bytes)} of memory" if ask.memory_bytes else ""
        return Answer({DRA_SHARE_CLASS: 1}, f"by a ResourceClaim, with {ask.cores} cores{memory} of each GPU")
    if ask.gpus > 1:
        raise Unmatched("a share is of one GPU; ask for whole ones, or for a share in each of several containers")
    name, memory, unit = BY_MODE[mode]
    if not ask.memory_bytes:
        raise Unmatched(f"say how much memory it needs: {memory}")
    units = -(-ask.memory_bytes // unit)
    if card.memory_bytes:
        units = min(units, card.memory_bytes // unit)
    if name is None:
        return Answer({memory: units}, "its cores are not limited" if ask.cores else "")
    if ask.cores:
        return Answer({name: ask.cores, memory: units})
    share = -(-ask.memory_bytes * WHOLE // _known(card))
    return Answer(
        {name: min(max(share, _LEAST_CORES), _MOST_CORES), memory: units}, "it named no cores: as many as memory"
    )


def granted(mode: str, limits: Mapping[str, int], card: Card) -> str:
    """Return, for a person, what a container gets that asks ours for so much."""
    if mode == "pgpu":
        return " and ".join(_granted_whole(name, amount, card) for name, amount in sorted(limits.items()))
    if mode == DRA_MODE:
        words = {DRA_SHARE_CLASS: "share", DRA_MIG_CLASS: "MIG device"}
        return " and ".join(_counted(amount, words.get(name, "whole GPU")) for name, amount in limits.items())
    cores, memory, unit = BY_MODE[mode]
    percent, share = limits.get(cores or "", 0), human_bytes(limits.get(memory, 0) * unit)
    if percent and percent % WHOLE == 0:
        return _counted(percent // WHOLE, "whole GPU")
    return f"{percent} % of a GPU's cores and {share} of its memory" if percent else f"{share} of a GPU's memory"


def _granted_whole(name: str, amount: int, card: Card) -> str:
    profile = name.partition("/mig-")[2].partition(".shared")[0] or card.mig
    if profile == UNKNOWN:
        return f"{amount} {name}, each a MIG device where MIG cuts its GPUs"
    if card.sharing == UNKNOWN:
        return f"{amount} {name} as a configuration that was not read says"
    device = f"MIG device {profile}" if profile else "GPU"
    replicas, sharing = card.replicas, card.sharing
    if name.startswith("nvidia.com/mig-"):
        replicas, sharing = card.slices.get(name.partition(".shared")[0], (1, ""))
    if replicas <= 1:
        return f"{_counted(amount, 'MIG device')} {profile}" if profile else _counted(amount, "whole GPU")
    part = "a time-slice" if sharing == "time-slicing" else "a part by MPS"
    return f"{'' if amount == 1 else f'{amount} times '}{part} of a {device} that has {replicas}"


def _counted(amount: int, what: str) -> str:
    return f"{amount} {what}" + ("" if amount == 1 else "s")


def becomes(kind: str, mode: str, name: str, card: Card) -> str:
    """Return, for a person, what replaces a resource of a node in a mode of ours."""
    same = _SAME.get((kind, mode))
    if (kind, mode) == ("mps", "mps") and name != DIVIDED[kind]:
        return "the same"
    if (kind, mode, name) in (("gpushare", "cgpu", DIVIDED["gpushare"]), ("mps", "mps", DIVIDED["mps"])):
        in_gib = card.unit_bytes == GIB if kind == "gpushare" else _mps_unit(card) in (0, GIB)
        part = card.part_bytes // MIB
        unlike = f", of {GIB // MIB:,} MiB each where they were of {part:,} MiB" if part not in (0, GIB // MIB) else ""
        return f"the same{unlike}" if in_gib else "the same, in GiB"
    if same and re.match(same, name):
        return "the same"
    if mode == "pgpu":
        return "nvidia.com/gpu, whole ones"
    if mode == DRA_MODE:
        return f"devices of {DRA_DRIVER}, by claims"
    return " and ".join(filter(None, BY_MODE[mode][:2]))
