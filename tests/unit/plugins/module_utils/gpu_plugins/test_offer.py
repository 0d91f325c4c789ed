# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a role waits for is what the plugin offers, on whatever node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml
from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.offer import Offer, Settings, offer
from hypothesis import given, settings
from hypothesis import strategies as st

from kube_accel.model import DriverState, Gpu, GpuHealth, Health, Inventory, MigDevice, Mode, Snapshot
from kube_accel.plugin.configuration.file import ConfigError, parse
from kube_accel.plugin.kubelet.devices import device_list, healthy_gpus
from kube_accel.plugin.whole_runtime import WholeGpus
from kube_accel.shared.offers import mps_unfit
from kube_accel.sharing.fraction import device_ids, resources
from kube_accel.sharing.mig import Strategy
from kube_accel.sharing.profile import PROFILES
from sim.cluster.kinds import canonical

GIB = 2**30


def gpu(memory: int = 80 * GIB, health: str = "healthy", mig: bool = False, capability: str = "9.0") -> dict[str, Any]:
    mig_state = {"supported": True, "enabled": mig}
    return {"memory_bytes": memory, "health": health, "mig": mig_state, "compute_capability": capability}


def cut(*profiles: str, health: str = "healthy") -> dict[str, Any]:
    devices = [{"uuid": f"MIG-{n}", "profile": profile, "slot": n} for n, profile in enumerate(profiles)]
    return {**gpu(health=health), "mig": {"supported": True, "enabled": True, "devices": devices}}


def facts(gpus: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    named = [{"index": index, "uuid": f"GPU-{index}"} | one for index, one in enumerate(gpus)]
    return {"driver_version": "580.95.05", "cuda_version": "13.0", "gpus": named} | more


def node(allocatable: dict[str, int], **metadata: Any) -> dict[str, Any]:
    amounts = {name: canonical(str(amount)) for name, amount in allocatable.items()}
    return {"metadata": {"name": "node-1"} | metadata, "status": {"allocatable": amounts}}


def offer_of(gpus: list[dict[str, Any]], mode: str = "pgpu", offers: dict[str, int] | None = None, **how: Any) -> Offer:
    return offer(node(offers or {}), facts(gpus), mode, Settings(mode, **how))


def slicing(replicas: int = 4, default_name: bool = False, **entry: Any) -> dict[str, Any]:
    shared = [{"name": "nvidia.com/mig-1g.10gb", "replicas": 2}, {"name": "gpu", "replicas": replicas} | entry]
    return {"version": "v1", "sharing": {"timeSlicing": {"renameByDefault": not default_name, "resources": shared}}}


BY_MPS = {"renameByDefault": True, "resources": [{"name": "gpu", "replicas": 5, "devices": 1}]}
CONFIGS: dict[str, Any] = {
    "four": slicing(),
    "clients": {"version": "v1", "sharing": {"mps": BY_MPS, "timeSlicing": slicing()["sharing"]["timeSlicing"]}},
    "kept": slicing(default_name=True),
    "named": slicing(rename="nvidia.com/turns"),
    "some": slicing(devices=1),
    "text": yaml.safe_dump(slicing(3)),
    "whole": {"version": "v1", "sharing": None},
    "none": slicing(0),
    "broken": "sharing: [",
    "mixed": {"flags": {"migStrategy": "mixed"}},
}


@pytest.mark.parametrize(
    ("mode", "gpus", "expected"),
    [
        ("pgpu", [gpu(), gpu(mig=True), gpu(health="unhealthy")], {"nvidia.com/gpu": 2}),
        ("pgpu", [gpu(health="unhealthy")], {"nvidia.com/gpu": 0}),
        ("vgpu", [gpu(), gpu(16 * GIB + 5)], {"tencent.com/vcuda-core": 200, "tencent.com/vcuda-memory": 320 + 64}),
        ("vgpu", [gpu(mig=True)], {"tencent.com/vcuda-core": 0, "tencent.com/vcuda-memory": 0}),
        ("mps", [gpu(), gpu(capability="6.1")], {"nvidia.com/mps-core": 100, "nvidia.com/mps-memory": 80}),
        ("cgpu", [gpu(15 * GIB + 1), gpu(health="unknown")], {"aliyun.com/gpu-mem": 15}),
        ("vgpu", [gpu(46 * GIB)] * 10, {"tencent.com/vcuda-core": 1000, "tencent.com/vcuda-memory": 1840}),
        ("mps", [gpu(100 * GIB)] * 20, {"nvidia.com/mps-core": 2000, "nvidia.com/mps-memory": 2000}),
        ("cgpu", [gpu(100 * GIB)] * 10, {"aliyun.com/gpu-mem": 1000}),
    ],
)
def test_usable_gpus_are_what_must_be_offered(mode: str, gpus: list[dict[str, Any]], expected: dict[str, int]) -> None:
    found = offer_of(gpus, mode, expected)
    assert (found.expected, found.complete, found.missing) == (expected, all(expected.values()), [])
    short = {name: max(amount - 1, 0) for name, amount in expected.items()}
    found = offer_of(gpus, mode, short)
    assert not found.complete
    assert found.missing == [f"{short[name]} of {count} {name}" for name, count in expected.items() if count]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"nvidia.com/gpu": 2}),
        ({"default_config": "four"}, {"nvidia.com/gpu.shared": 8}),
        ({"default_config": "four", "config": "whole"}, {"nvidia.com/gpu": 2}),
        ({"config": "kept"}, {"nvidia.com/gpu": 8}),
        ({"config": "named"}, {"nvidia.com/turns": 8}),
        ({"config": "some"}, {"nvidia.com/gpu.shared": 4, "nvidia.com/gpu": 1}),
        ({"config": "text"}, {"nvidia.com/gpu.shared": 6}),
        ({"config": "clients"}, {"nvidia.com/gpu.shared": 10}),
        ({"config": "four", "mode": "mps"}, {"nvidia.com/mps-core": 200, "nvidia.com/mps-memory": 160}),
        ({"config": "unknown"}, {"nvidia.com/gpu": 2}),
    ],
)
def test_a_configuration_says_how_often_gpus_count(given: dict[str, Any], expected: dict[str, int]) -> None:
    assert offer_of([gpu(), gpu()], given.pop("mode", "pgpu"), configs=CONFIGS, **given).expected == expected


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("none", "configuration none: sharing.timeSlicing.resources[1].replicas: is 0; it must be a whole number"),
        ("broken", "configuration broken: not YAML"),
    ],
)
def test_a_configuration_with_a_mistake_is_never_complete(config: str, says: str) -> None:
    found = offer_of([gpu()], offers={"nvidia.com/gpu": 1}, configs=CONFIGS, config=config)
    assert (found.complete, found.problem.startswith(says)) == (False, True)


def test_the_label_counts_where_nothing_else_names_one() -> None:
    labels = {"nvidia.com/device-plugin.config": "four"}
    wanted = Settings("pgpu", configs=CONFIGS, default_config="text")
    assert offer(node({}, labels=labels), facts([gpu()]), "pgpu", wanted).expected == {"nvidia.com/gpu.shared": 4}


@pytest.mark.parametrize(
    ("mode", "config", "wanted"),
    [
        ("pgpu", "", []),
        ("pgpu", "four", []),
        ("pgpu", "clients", ["GPU-0"]),
        ("vgpu", "clients", []),
        ("mps", "", ["GPU-0"]),
    ],
)
def test_gpus_that_mps_shares_need_daemons(mode: str, config: str, wanted: list[str]) -> None:
    found = offer_of([gpu(), gpu(capability="6.1"), cut("1g.10gb")], mode, configs=CONFIGS, config=config)
    assert (found.mps_gpus, found.by_mps) == (wanted, bool(wanted))


@pytest.mark.parametrize(
    ("strategy", "gpus", "expected"),
    [
        ("none", [cut("1g.10gb", "1g.10gb")], {"nvidia.com/gpu": 1}),
        ("single", [cut("1g.10gb", "1g.10gb"), cut("1g.10gb")], {"nvidia.com/gpu": 3}),
        ("single", [gpu(), gpu()], {"nvidia.com/gpu": 2}),
        ("single", [*([cut(*["1g.18gb"] * 7)] * 7), gpu()], {"nvidia.com/gpu": 49}),
        ("single", [cut(*["1g.10gb"] * 4, "3g.40gb")], {"nvidia.com/gpu": 0}),
        ("mixed", [gpu()], {"nvidia.com/gpu": 1}),
        (
            "mixed",
            [cut("3g.40gb", "1g.10gb+me", "1g.10gb"), cut("1g.10gb"), cut("7g.80gb", health="unhealthy")],
            {"nvidia.com/mig-3g.40gb": 1, "nvidia.com/mig-1g.10gb.me": 1, "nvidia.com/mig-1g.10gb": 2},
        ),
        ("mixed", [cut()], {"nvidia.com/gpu": 0}),
    ],
)
def test_mig_devices_count_by_the_strategy(strategy: str, gpus: list[dict[str, Any]], expected: dict[str, int]) -> None:
    found = offer_of(gpus, offers=expected, mig_strategy=strategy)
    assert (found.expected, found.complete) == (expected, all(expected.values()))


def test_mig_devices_are_shared_in_time_too() -> None:
    expected = {"nvidia.com/mig-1g.10gb.shared": 4, "nvidia.com/mig-2g.20gb": 1, "nvidia.com/gpu.shared": 4}
    gpus = [cut("1g.10gb", "1g.10gb", "2g.20gb"), gpu()]
    found = offer_of(gpus, offers=expected, mig_strategy="mixed", configs=CONFIGS, config="four")
    assert (found.expected, found.complete) == (expected, True)


def test_another_plugins_mig_devices_are_offered_too() -> None:
    found = offer(node({"nvidia.com/mig-1g.10gb": 7, "cpu": 4}), {}, "", Settings("pgpu"))
    assert found.offered == found.found == {"nvidia.com/gpu": 0, "nvidia.com/mig-1g.10gb": 7}


def test_a_plugin_that_tells_of_another_driver_is_waited_for() -> None:
    told = '{"version": 1, "mode": "pgpu", "driver": "570.1", "gpus": []}'
    found = offer(
        node({"nvidia.com/gpu": 1}, annotations={"kube-accel.io/inventory": told}),
        facts([gpu()]),
        "pgpu",
        Settings("pgpu"),
    )
    assert (found.missing, found.complete) == ([], False)
    assert found.outdated.startswith("The plugin reports driver 570.1, but the host has ")
    assert "Delete the plugin's pod" in found.outdated


PROFILES_OF_MIG = ("1g.10gb", "2g.20gb", "1g.10gb+me")
NAMES = st.sampled_from(("gpu", "nvidia.com/gpu", "mig-1g.10gb", "mig-1g.10gb.me"))
ENTRIES = st.fixed_dictionaries(
    {"name": NAMES, "replicas": st.integers(0, 5) | st.just(49)},
    optional={
        "rename": st.sampled_from(("gpu.shared", "nvidia.com/turns", "gpu")),
        "devices": st.sampled_from(("all", 1, 2, ["0"], ["GPU-1", "0:0"], ["MIG-0-1"])),
    },
)
SHARING = st.fixed_dictionaries(
    {"resources": st.lists(ENTRIES, min_size=1, max_size=3)}, optional={"renameByDefault": st.booleans()}
)
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "sharing": st.fixed_dictionaries({}, optional={"mps": SHARING, "timeSlicing": SHARING}),
        "flags": st.fixed_dictionaries({"migStrategy": st.sampled_from(("none", "single", "mixed"))}),
    },
)


@st.composite
def machines(draw: st.DrawFn) -> tuple[dict[str, Any], Snapshot]:
    """A node as a host's facts tell of it, and as its plugin sees it: some GPUs are cut, sick, old, or excluded."""
    told, seen, health = [], [], {}
    for index in range(draw(st.integers(0, 5))):
        uuid = f"GPU-{index}"
        capability = draw(st.sampled_from(((6, 1), (7, 0), (9, 0))))
        memory = draw(st.sampled_from((8 * GIB + 5, 80 * GIB)))
        cut_into = draw(st.none() | st.lists(st.sampled_from(PROFILES_OF_MIG), max_size=4))
        state = draw(st.sampled_from((Health.HEALTHY, Health.HEALTHY, Health.UNHEALTHY)))
        if draw(st.integers(0, 5)) == 0:
            continue  # excluded: neither sees it
        devices = tuple(
            MigDevice(f"MIG-{index}-{slot}", slot, profile, 10 * GIB) for slot, profile in enumerate(cut_into or ())
        )
        slots = [{"uuid": each.uuid, "profile": each.profile, "slot": each.slot} for each in devices]
        told.append(
            {
                "index": index,
                "uuid": uuid,
                "memory_bytes": memory,
                "compute_capability": ".".join(map(str, capability)),
                "health": state.value,
                "mig": {"supported": True, "enabled": cut_into is not None, "devices": slots},
            }
        )
        seen.append(
            Gpu(
                uuid, index, index, "GPU", memory, capability, "", None, cut_into is not None, True, mig_devices=devices
            )
        )
        health[uuid] = GpuHealth(state)
    driver = draw(st.sampled_from(("580.95.05", "470.1")))
    inventory = Inventory(driver, (13, 0), tuple(seen))
    said = {"driver_version": driver, "cuda_version": "13.0", "gpus": told}
    return said, Snapshot(1, DriverState.READY, "", inventory, health)


def shared_by_mps(snapshot: Snapshot, shared: frozenset[str]) -> Snapshot:
    """As MpsMonitor has it, where every GPU that can be shared has a control daemon that is well."""
    assert snapshot.inventory is not None
    lost = {
        each.uuid: GpuHealth(Health.UNHEALTHY)
        for each in snapshot.inventory.gpus
        if each.uuid in shared and (each.mig_enabled or mps_unfit(each, snapshot.inventory.driver_version))
    }
    return replace(snapshot, health={**snapshot.health, **lost})


def offered_by_daemon(mode: Mode, snapshot: Snapshot, strategy: Strategy, text: str) -> dict[str, int]:
    """The devices that kubelet counts, by resource."""
    inventory = snapshot.inventory
    assert inventory is not None
    if mode is not Mode.PGPU:
        every = frozenset(each.uuid for each in inventory.gpus)
        good = healthy_gpus(shared_by_mps(snapshot, every if mode is Mode.MPS else frozenset()), ())
        return {
            name: sum(len(device_ids(each, kind, PROFILES[mode])) for each in inventory.gpus if each.uuid in good)
            for kind, name in resources(PROFILES[mode]).items()
        }
    try:
        daemon = WholeGpus(parse(text), None if strategy is Strategy.NONE else strategy)
    except ConfigError:
        return {}
    daemon.see(snapshot)
    good = healthy_gpus(shared_by_mps(snapshot, daemon.shared_by_mps(inventory)), ())
    return {name: sum(device.healthy for device in device_list(parts, good)) for name, parts in daemon.offered.items()}


@settings(max_examples=300, deadline=None)
@given(machines(), st.sampled_from(tuple(Mode)), st.sampled_from(tuple(Strategy)), st.none() | DOCUMENTS)
def test_the_role_waits_for_what_the_plugin_offers(
    machine: tuple[dict[str, Any], Snapshot], mode: Mode, strategy: Strategy, document: dict[str, Any] | None
) -> None:
    said, snapshot = machine
    configs = {} if document is None else {"c": document}
    text = "" if document is None else yaml.safe_dump(document)
    offers = offered_by_daemon(mode, snapshot, strategy, text)
    wanted = Settings(mode.value, strategy.value, configs, "c" if configs else "")
    found = offer(node(offers), said, mode.value, wanted)
    assert {name: count for name, count in found.expected.items() if count} == {
        name: count for name, count in offers.items() if count
    }
    assert found.complete == (bool(offers) and all(found.expected.values()))
    assert found.missing == []


@pytest.mark.parametrize(
    ("told", "complete"),
    [("580.95.5", True), ("580.65.6", False), (None, True)],
)
def test_slices_of_another_driver_are_not_complete(told: str | None, complete: bool) -> None:
    attributes = {"attributes": {"driverVersion": {"version": told}}} if told else {}
    slices = [{"spec": {"devices": [{"name": "gpu-00", **attributes}]}}]
    found = offer(node({}), facts([gpu()]), "dra", Settings("dra"), slices)
    assert found.complete is complete
    assert ("Delete the DRA driver's pod" in found.outdated) is not complete
