# SPDX-License-Identifier: Apache-2.0
"""The devices that are published of GPUs."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from kube_accel.dra import slices
from kube_accel.model import Inventory, MigDevice
from unit.kube_accel.plugin.fakes import inventory, uuid

EVERY = frozenset(uuid(index) for index in range(16))


def test_device_has_what_selectors_for_nvidias_driver_ask_for() -> None:
    (device, *_) = slices.devices(inventory(2), EVERY, {"0000:10:00.0": "pci0000:00"})
    assert device["name"] == "gpu-00"
    own = {
        "type": {"string": "gpu"},
        "uuid": {"string": uuid(0)},
        "productName": {"string": "NVIDIA H100"},
        "brand": {"string": "Nvidia"},
        "architecture": {"string": "Hopper"},
        "cudaComputeCapability": {"version": "9.0.0"},
        "driverVersion": {"version": "580.159.4"},
        "cudaDriverVersion": {"version": "13.0.0"},
    }
    standard = {"pciBusID": {"string": "0000:10:00.0"}, "pcieRoot": {"string": "pci0000:00"}, "numaNode": {"int": 0}}
    assert device["attributes"] == {
        **own,
        **{f"gpu.nvidia.com/{name}": value for name, value in own.items()},
        **{f"resource.kubernetes.io/{name}": value for name, value in standard.items()},
    }
    assert device["capacity"] == {"memory": {"value": "80Gi"}, "gpu.nvidia.com/memory": {"value": "80Gi"}}
    assert "taints" not in device


def test_device_is_within_the_limits_of_the_api() -> None:
    roots = {f"0000:{0x10 + index:02x}:00.0": "pci0000:00" for index in range(16)}
    for device in slices.devices(inventory(16), (), roots, shared=True):
        assert re.fullmatch("[a-z0-9]([-a-z0-9]*[a-z0-9])?", device["name"])
        assert len(device["attributes"]) + len(device["capacity"]) <= 32
        for name in (*device["attributes"], *device["capacity"]):
            domain, _, identifier = name.rpartition("/")
            assert len(domain) <= 63
            assert re.fullmatch("[A-Za-z_][A-Za-z0-9_]{0,31}", identifier)


def test_shared_device_has_steps_of_cores_and_memory() -> None:
    known = inventory(1)
    odd = replace(known, gpus=(replace(known.gpus[0], memory_bytes=(81559 << 20) + 4096),))
    (device,) = slices.devices(odd, EVERY, {}, shared=True)
    assert device["allowMultipleAllocations"] is True
    cores = {"default": "100", "validRange": {"min": "1", "max": "100", "step": "1"}}
    memory = {"default": "81559Mi", "validRange": {"min": "1Mi", "max": "81559Mi", "step": "1Mi"}}
    assert device["capacity"] == {
        "cores": {"value": "100", "requestPolicy": cores},
        "memory": {"value": "81559Mi", "requestPolicy": memory},
        # To be selected by: nothing can be taken of it.
        "gpu.nvidia.com/memory": {"value": "81559Mi", "requestPolicy": {"default": "0", "validValues": ["0"]}},
    }
    assert slices.usable_bytes(odd.gpus[0]) == 81559 << 20


def test_long_names_and_odd_versions_are_cut_and_left_out() -> None:
    known = inventory(1)
    odd = replace(known, driver_version="R580", gpus=(replace(known.gpus[0], model="x" * 90, numa_node=None),))
    attributes = slices.devices(odd, EVERY, {})[0]["attributes"]
    assert attributes["productName"] == {"string": "x" * 64}
    assert (
        not {"driverVersion", "resource.kubernetes.io/numaNode", "resource.kubernetes.io/pcieRoot"} & attributes.keys()
    )


@pytest.mark.parametrize(
    ("capability", "name"), [((8, 9), "Ada Lovelace"), ((8, 0), "Ampere"), ((10, 0), "Blackwell"), ((99, 0), "Unknown")]
)
def test_architecture_is_spelled_as_nvidias_driver_does(capability: tuple[int, int], name: str) -> None:
    known = inventory(1)
    gpu = replace(known.gpus[0], compute_capability=capability)
    (device,) = slices.devices(replace(known, gpus=(gpu,)), EVERY, {})
    assert device["attributes"]["architecture"] == {"string": name}


@pytest.mark.parametrize(
    ("model", "brand"),
    [
        *[("NVIDIA A100-SXM4-80GB", "Nvidia"), ("Tesla T4", "Tesla"), ("NVIDIA GeForce RTX 4090", "GeForce")],
        *[("NVIDIA RTX A6000", "NvidiaRTX"), ("Quadro RTX 6000", "QuadroRTX"), ("Graphics Device", "Unknown")],
    ],
)
def test_brand_is_told_by_the_name(model: str, brand: str) -> None:
    known = inventory(1)
    (device,) = slices.devices(replace(known, gpus=(replace(known.gpus[0], model=model),)), EVERY, {})
    assert device["attributes"]["brand"] == device["attributes"]["gpu.nvidia.com/brand"] == {"string": brand}


@pytest.mark.parametrize(("amount", "text"), [(80 << 30, "80Gi"), (81559 << 20, "81559Mi"), (1025, "1025"), (0, "0")])
def test_memory_is_spelled_as_the_api_server_keeps_it(amount: int, text: str) -> None:
    known = inventory(1)
    (device,) = slices.devices(replace(known, gpus=(replace(known.gpus[0], memory_bytes=amount),)), EVERY, {})
    assert device["capacity"]["memory"] == {"value": text}


def test_sick_gpu_is_tainted_or_left_out() -> None:
    good = EVERY - {uuid(1)}
    tainted = {each["name"]: each.get("taints") for each in slices.devices(inventory(3), good, {})}
    taint = [{"key": "gpu.kube-accel.io/unhealthy", "effect": "NoSchedule"}]
    assert tainted == {"gpu-00": None, "gpu-01": taint, "gpu-02": None}
    left = slices.devices(inventory(3), good, {}, left_out={"gpu-01"})
    assert [each["name"] for each in left] == ["gpu-00", "gpu-02"]


def mig_devices(*profiles: str) -> Inventory:
    """Two GPUs, the first cut so."""
    known = inventory(2)
    told = tuple({"multiprocessors": 16, "slices.gi": 1, "engines.copy": 1, "engines.jpeg": 1}.items())
    cut = tuple(
        MigDevice(f"MIG-{slot}", slot, name, 10 << 30, (3 + slot, 4 + slot), told) for slot, name in enumerate(profiles)
    )
    return replace(known, gpus=(replace(known.gpus[0], mig_enabled=True, mig_devices=cut), known.gpus[1]))


def test_gpu_in_mig_mode_is_its_mig_devices() -> None:
    found = slices.parts_by_device(mig_devices("3g.40gb", "1g.10gb+me"))
    assert {name: part.uuid for name, part in found.items()} == {
        "gpu-00-mig-3g40gb-0": "MIG-0",
        "gpu-00-mig-1g10gb-me-1": "MIG-1",
        "gpu-01": uuid(1),
    }
    assert [*slices.parts_by_device(mig_devices())] == ["gpu-01"]


def test_mig_device_has_the_names_of_nvidias_driver() -> None:
    (device, gpu) = slices.devices(mig_devices("1g.10gb"), EVERY, {"0000:10:00.0": "pci0000:00"}, shared=True)
    attributes = device["attributes"]
    for domain in ("", "gpu.nvidia.com/"):
        found = [attributes[f"{domain}{name}"]["string"] for name in ("type", "uuid", "parentUUID", "profile")]
        assert found == ["mig", "MIG-0", uuid(0), "1g.10gb"]
        assert attributes[f"{domain}productName"] == {"string": "NVIDIA H100"}
        assert device["capacity"][f"{domain}memory"] == {"value": "10Gi"}
    engines = ("multiprocessors", "copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines")
    values = [device["capacity"][f"gpu.nvidia.com/{name}"]["value"] for name in engines]
    assert values == ["16", "1", "0", "0", "1", "0"]
    assert len(attributes) + len(device["capacity"]) <= 32
    assert ("allowMultipleAllocations" in device, "allowMultipleAllocations" in gpu) == (False, True)


def test_mig_devices_of_a_sick_gpu_are_tainted() -> None:
    found = slices.devices(mig_devices("1g.10gb", "1g.10gb"), EVERY - {uuid(0)}, {})
    assert ["taints" in each for each in found] == [True, True, False]


def test_slices_have_64_devices_each_and_there_is_always_one() -> None:
    many = tuple({"name": f"gpu-{number}"} for number in range(130))
    assert [len(each) for each in slices.in_slices(many)] == [64, 64, 2]
    assert slices.in_slices(()) == ((),)
