# SPDX-License-Identifier: Apache-2.0
"""Nodes to simulate. Each profile takes the node's name, so that no two nodes have a GPU in common.

Model names, memory, PCI ids and MIG sizes are those NVML reports for these cards.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

from sim.nvml.topology import (
    Gpu,
    GpuInstance,
    Link,
    Mig,
    MigProfile,
    NvSwitch,
    SwitchLinks,
    System,
    Topo,
    Topology,
)

MIB = 1 << 20
_CPUS = ("0-31,64-95", "32-63,96-127")

_T4 = Gpu(
    index=0,
    uuid="",
    pci="",
    model="Tesla T4",
    mem=15360 * MIB,
    reserved=445 * MIB,
    cc="7.5",
    pciid=0x1EB810DE,
    subsys=0x12A210DE,
    temp=34,
    power=10_000,
    power_limit=70_000,
    sm_clock=300,
    mem_clock=405,
    ecc=1,
    energy=1_000_000,
    power_throttle=0,
    thermal_throttle=0,
)
_A100 = replace(
    _T4,
    model="NVIDIA A100-SXM4-40GB",
    mem=40960 * MIB,
    reserved=583 * MIB,
    cc="8.0",
    pciid=0x20B010DE,
    subsys=0x134F10DE,
    mig=0,
    temp=32,
    mem_temp=30,
    power=52_000,
    power_limit=400_000,
    sm_clock=210,
    mem_clock=1215,
    remap_corrected=0,
)
_A100_80 = replace(
    _A100, model="NVIDIA A100 80GB PCIe", mem=81920 * MIB, pciid=0x20B510DE, subsys=0x153310DE, power_limit=300_000
)
_H100 = replace(
    _A100,
    model="NVIDIA H100 80GB HBM3",
    mem=81559 * MIB,
    reserved=551 * MIB,
    cc="9.0",
    pciid=0x233010DE,
    subsys=0x16C110DE,
    power=70_000,
    power_limit=700_000,
    sm_clock=345,
    mem_clock=2619,
)
_H200 = replace(_H100, model="NVIDIA H200", mem=143771 * MIB, pciid=0x233510DE, subsys=0x18BE10DE, mem_clock=3201)
_L40S = replace(
    _T4,
    model="NVIDIA L40S",
    mem=46068 * MIB,
    reserved=597 * MIB,
    cc="8.9",
    pciid=0x26B910DE,
    subsys=0x185110DE,
    power_limit=350_000,
    remap_corrected=0,
)
_GB10 = replace(
    _T4,
    model="NVIDIA GB10",
    mem=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    unified=1,
    reserved=0,
    cc="12.1",
    pciid=0x2E1210DE,
    subsys=0,
    temp=40,
    power=4_000,
    power_limit=None,
    sm_clock=208,
    mem_clock=None,
    ecc=None,
)


_CUTS = (  # profile id, NVML_GPU_INSTANCE_PROFILE_*, compute slices, suffix, memory slices, starts, count
    (19, 0, 1, "", 1, "0,1,2,3,4,5,6", 7),
    (20, 7, 1, "+me", 1, "0,1,2,3,4,5,6", 1),
    (15, 9, 1, "", 2, "0,2,4,6", 4),
    (14, 1, 2, "", 2, "0,2,4", 3),
    (9, 2, 3, "", 4, "0,4", 2),
    (5, 3, 4, "", 4, "0", 1),
    (0, 4, 7, "", 8, "0", 1),
)


def _mig_profiles(model: str, sizes: str, mib: tuple[int, ...], sms: tuple[int, ...]) -> list[MigProfile]:
    """``sizes``: gigabytes in the names, by memory slices 1, 2, 4, 8; ``mib``: the memory, likewise."""
    gigabytes = dict(zip((1, 2, 4, 8), sizes.split(), strict=True))
    memory = dict(zip((1, 2, 4, 8), mib, strict=True))
    return [
        MigProfile(
            model=model,
            id=number,
            nvml=nvml,
            name=f"{slices}g.{gigabytes[size]}gb{suffix}",
            slices=slices,
            size=size,
            starts=starts,
            count=count,
            mem=memory[size] * MIB,
            sms=multiprocessors,
        )
        for (number, nvml, slices, suffix, size, starts, count), multiprocessors in zip(_CUTS, sms, strict=True)
    ]


_A100_SMS = (14, 14, 14, 28, 42, 56, 98)
_H100_SMS = (16, 16, 26, 32, 60, 64, 132)


def a100_40_mig(model: str) -> list[MigProfile]:
    """What an A100 of 40 GB can be cut into."""
    return _mig_profiles(model, "5 10 20 40", (4864, 9856, 19968, 40192), _A100_SMS)


def a100_80_mig(model: str) -> list[MigProfile]:
    """What an A100 of 80 GB can be cut into."""
    return _mig_profiles(model, "10 20 40 80", (9728, 19968, 40448, 80896), _A100_SMS)


def h100_mig(model: str) -> list[MigProfile]:
    """What an H100 of 80 GB can be cut into."""
    return _mig_profiles(model, "10 20 40 80", (9984, 20096, 40448, 81152), _H100_SMS)


def h200_mig(model: str) -> list[MigProfile]:
    """What an H200 can be cut into."""
    return _mig_profiles(model, "18 35 71 141", (16384, 33024, 71168, 143104), _H100_SMS)


def _card(card: Gpu, node: str, index: int, pci: str, numa: int | None) -> Gpu:
    identity = uuid.uuid5(uuid.NAMESPACE_DNS, f"gpu-{index}.{node}")
    return replace(
        card,
        index=index,
        uuid=f"GPU-{identity}",
        pci=pci,
        numa=numa,
        cpus=None if numa is None else _CPUS[numa],
        minor=index,
        serial=str(identity.int % 10**13).zfill(13),
    )


def _system() -> System:
    return System(driver="580.159.04", cuda=13000)


def t4(node: str = "node") -> Topology:
    """One card, one socket."""
    return Topology(_system(), [_card(_T4, node, 0, "0000:00:1e.0", 0)])


def t4s(node: str = "node") -> Topology:
    """Ten cards: of what is counted in hundredths of a GPU there are a thousand."""
    return Topology(_system(), [_card(_T4, node, i, f"0000:00:{0x10 + i:02x}.0", 0) for i in range(10)])


def a100(node: str = "node") -> Topology:
    """One card that MIG can cut."""
    return Topology(_system(), [_card(_A100, node, 0, "0000:01:00.0", 0)], mig_profiles=a100_40_mig(_A100.model))


def a100_mig(node: str = "node") -> Topology:
    """Four cards, four NVLinks between any two; the first two are cut by MIG, the second with a hole in slot 1."""
    addresses = ("0000:01:00.0", "0000:41:00.0", "0000:81:00.0", "0000:c1:00.0")
    gpus = [_card(_A100, node, i, pci, i // 2) for i, pci in enumerate(addresses)]
    gpus[0].mig = gpus[1].mig = 1

    def cut(gpu: int, gi: int, profile: str, mem: int, sms: int, slot: int) -> Mig:
        identity = uuid.uuid5(uuid.NAMESPACE_DNS, f"mig-{gpu}-{gi}.{node}")
        return Mig(gpu=gpu, gi=gi, ci=0, profile=profile, mem=mem * MIB, sms=sms, slot=slot, uuid=f"MIG-{identity}")

    migs = [cut(0, 7 + slot, "1g.5gb", 4864, 14, slot) for slot in range(7)]
    migs += [
        cut(1, 2, "3g.20gb", 19968, 42, 0),
        cut(1, 3, "2g.10gb", 9856, 28, 2),
        cut(1, 9, "1g.5gb", 4864, 14, 3),
    ]
    instances = [GpuInstance(gpu=0, id=7 + start, profile=19, start=start) for start in range(7)]
    instances += [
        GpuInstance(gpu=1, id=2, profile=9, start=4),
        GpuInstance(gpu=1, id=3, profile=14, start=0),
        GpuInstance(gpu=1, id=9, profile=19, start=2),
    ]
    links = [Link(first=a, second=b, nvlink=4) for a, b in combinations(range(4), 2)]
    return Topology(
        _system(),
        gpus,
        mig_profiles=a100_40_mig(_A100.model),
        gpu_instances=instances,
        migs=migs,
        links=links,
    )


def a100s(node: str = "node") -> Topology:
    """Two cards of 80 GB, one for each socket."""
    gpus = [_card(_A100_80, node, i, pci, i) for i, pci in enumerate(("0000:17:00.0", "0000:ca:00.0"))]
    return Topology(_system(), gpus, mig_profiles=a100_80_mig(_A100_80.model))


def a100_mig_alike(node: str = "node") -> Topology:
    """Four cards, each cut as the first of ``a100_mig``."""
    topology = a100_mig(node)
    for gpu in topology.gpus:
        gpu.mig = 1
    instances = [instance for instance in topology.gpu_instances if instance.gpu == 0]
    migs = [mig for mig in topology.migs if mig.gpu == 0]
    topology.gpu_instances = [replace(instance, gpu=gpu.index) for gpu in topology.gpus for instance in instances]
    topology.migs = [
        replace(mig, gpu=gpu.index, uuid=f"MIG-{uuid.uuid5(uuid.NAMESPACE_DNS, f'mig-{gpu.index}-{mig.gi}.{node}')}")
        for gpu in topology.gpus
        for mig in migs
    ]
    return topology


def _hgx(card: Gpu, node: str, mig: list[MigProfile]) -> Topology:
    buses = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
    return Topology(
        _system(),
        [_card(card, node, i, f"0000:{bus}:00.0", i // 4) for i, bus in enumerate(buses)],
        mig_profiles=mig,
        switch_links=[SwitchLinks(gpu=i, links=18) for i in range(8)],
        nvswitches=[NvSwitch(index=i, pci=f"0000:0{5 + i}:00.0", pciid=0x22A310DE, numa=0) for i in range(4)],
    )


def h100(node: str = "node") -> Topology:
    """Eight cards on four NVSwitches, two sockets."""
    return _hgx(_H100, node, h100_mig(_H100.model))


def h200(node: str = "node") -> Topology:
    """Eight cards on four NVSwitches, two sockets."""
    return _hgx(_H200, node, h200_mig(_H200.model))


def pcie(node: str = "node") -> Topology:
    """Sixteen cards, four to a PCIe switch, two switches to a socket; the second socket is PCI domain 1."""
    gpus = [_card(_L40S, node, i, f"{i // 8:04x}:{0x11 + i % 8:02x}:00.0", i // 8) for i in range(16)]
    topos = [
        Topo(first=a, second=b, ancestor="PIX" if a // 4 == b // 4 else "PXB")
        for a, b in combinations(range(16), 2)
        if a // 8 == b // 8
    ]
    return Topology(_system(), gpus, topos=topos)


def gb10(node: str = "node") -> Topology:
    """One card that has the machine's memory and none of its own, as in DGX Spark."""
    return Topology(_system(), [_card(_GB10, node, 0, "000f:01:00.0", None)])


def mixed(node: str = "node") -> Topology:
    """Two unlike cards in a machine whose firmware tells no NUMA nodes."""
    a100 = replace(_A100, model="NVIDIA A100-PCIE-40GB", pciid=0x20F110DE, subsys=0x145F10DE, power_limit=250_000)
    return Topology(
        _system(),
        [_card(_T4, node, 0, "0000:3b:00.0", None), _card(a100, node, 1, "0000:af:00.0", None)],
        mig_profiles=a100_40_mig(a100.model),
        topos=[Topo(first=0, second=1, ancestor="PHB")],
    )


PROFILES: dict[str, Callable[[str], Topology]] = {
    "t4": t4,
    "10xt4": t4s,
    "2xa100": a100s,
    "a100": a100,
    "4xa100-mig": a100_mig,
    "4xa100-mig-alike": a100_mig_alike,
    "8xh100": h100,
    "8xh200": h200,
    "16xpcie": pcie,
    "gb10": gb10,
    "mixed": mixed,
}
