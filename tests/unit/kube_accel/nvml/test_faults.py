# SPDX-License-Identifier: Apache-2.0
"""Whatever a function of NVML answers about one GPU, the other GPUs are offered, measured and served."""

from __future__ import annotations

import ast
import functools
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kube_accel.nvml
from kube_accel.cli.daemon import watching
from kube_accel.cli.main import _parser
from kube_accel.metrics.sample import samples
from kube_accel.model import DriverState, GpuHealth, Health, Mode, Snapshot
from kube_accel.nvml import translate
from kube_accel.nvml.asking import cause
from kube_accel.nvml.faults import KnownFaults
from kube_accel.nvml.worker import Driver
from kube_accel.sharing.inventory_annotation import NodeInventory, decode, encode
from sim.nvml import profiles
from sim.nvml.conftest import Node, loaded, node  # noqa: F401
from sim.nvml.topology import Topology
from unit.kube_accel.nvml.conftest import PATIENCE, QUICK, Host, Watch
from unit.kube_accel.nvml.test_worker import FakeNvml, tell
from waiting import wait

OF_THE_DRIVER = {
    "nvmlInit",
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlDeviceGetCount",
}
"""Without these there are no GPUs at all."""
OF_NO_GPU = {"nvmlEventSetCreate", "nvmlEventSetWait_v2", "nvmlGpmSampleAlloc"}
"""These serve all GPUs and cost none of them."""
ACTIONS = {"nvmlDeviceSetMemoryLimits_v1"}
"""These change a GPU, and are asked for one by one."""
OF_MIG = {
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceGetAttributes_v2",
    "nvmlGpmMigSampleGet",
}
MIG_GPU, WHOLE_GPU = 0, 2
HEALTHY = GpuHealth(Health.HEALTHY)


def used() -> set[str]:
    """The functions of the binding that the worker's modules name."""
    (directory,) = kube_accel.nvml.__path__
    names = {
        name.attr
        for path in Path(directory).glob("*.py")
        for name in ast.walk(ast.parse(path.read_text()))
        if isinstance(name, ast.Attribute) and name.attr.startswith("nvml")
    }
    return {name for name in names if callable(getattr(pynvml, name, None))}


OF_ONE_GPU = sorted(used() - OF_THE_DRIVER - OF_NO_GPU - ACTIONS)


def machine() -> Topology:
    """Four GPUs, two of them cut, with everything that is asked for; the third is one that retires pages."""
    topology = profiles.PROFILES["4xa100-mig"]("n")
    for gpu in topology.gpus:
        gpu.gpm, gpu.energy = 20, 1000
    topology.gpus[WHOLE_GPU].remap_corrected, topology.gpus[WHOLE_GPU].retire_pending = None, 0
    for index in range(len(topology.gpus)):
        topology.add_process(index, 4711 + index, mem=1 << 30, sm=10)
    return topology


@dataclass(frozen=True)
class Told:
    """What a worker answers to everything it can be asked, with GPUs by index."""

    inventory: Mapping[str, Any]
    poll: Mapping[str, Any]
    samples: Mapping[str, Any]
    usage: Mapping[str, Any]

    def of(self, uuid: str) -> dict[str, Any]:
        """What stays from one reading to the next of a GPU, or whether it is told."""

        def find(answer: Mapping[str, Any]) -> dict[str, Any]:
            found = [entry for entry in answer["gpus"] if entry.get("uuid") == uuid]
            return found[0] if found else {}

        measured = find(self.samples)
        return {
            "inventory": find(self.inventory),
            "poll": find(self.poll),
            "measured": {name for name, value in measured.items() if value is not None},
            "memory": measured.get("memory"),
            "usage": find(self.usage).get("memory"),
        }

    def links(self, without: str) -> list[Any]:
        return [link for link in self.inventory["links"] if without not in link["pair"]]

    def faults(self, index: int, uuid: str) -> list[dict[str, Any]]:
        """Everything that went wrong, of this GPU alone."""
        entries = [
            entry
            for answer in (self.inventory, self.poll, self.samples, self.usage)
            for entry in answer["gpus"]
            if entry.get("uuid") == uuid or entry.get("index") == index
        ]
        errors = [entry["error"] for entry in entries if "error" in entry]
        return errors + [fault for entry in entries for fault in entry.get("faults", ())]


def ask(sysfs: Path) -> Told:
    driver = Driver(pynvml, str(sysfs), str(sysfs))
    inventory, poll = driver.inventory(), driver.poll()
    driver.samples(True, True)
    uuids = [str(device.facts.get("uuid")) for device in driver.devices]
    return Told(inventory, poll, driver.samples(True, True), driver.usage(uuids))


@pytest.fixture(scope="module")
def without_faults() -> dict[str, Told]:
    """Asked once."""
    return {}


@pytest.fixture
def told(node: Node, tmp_path: Path, without_faults: dict[str, Told]) -> Iterator[Callable[..., Told]]:  # noqa: F811
    def on(*faults: tuple[int, str, str]) -> Told:
        if not faults and without_faults:
            return without_faults["told"]
        topology = machine()
        for fault in faults:
            topology.fail(*fault)
        topology.save(node.path)
        found = ask(tmp_path)
        if not faults:
            without_faults["told"] = found
        return found

    yield on
    machine().save(node.path)


def test_each_function_is_of_the_driver_or_of_one_gpu() -> None:
    assert used() >= OF_THE_DRIVER | OF_NO_GPU | ACTIONS | OF_MIG
    assert len(OF_ONE_GPU) > 25


RARER = [pytest.param(code, marks=pytest.mark.full) for code in ("15", "6", "2", "18", "1", "-1")]


@pytest.mark.parametrize("answer", ["999", "4242", "9", "nothing", "garbage", *RARER])
@pytest.mark.parametrize("function", OF_ONE_GPU)
def test_a_fault_of_one_gpu_costs_the_others_nothing(told: Callable[..., Told], function: str, answer: str) -> None:
    bad = MIG_GPU if function in OF_MIG else WHOLE_GPU
    uuids = [gpu.uuid for gpu in machine().gpus]
    well, ill = told(), told((bad, function, answer))
    for index, uuid in enumerate(uuids):
        if index != bad:
            assert ill.of(uuid) == well.of(uuid)
    assert ill.links(uuids[bad]) == well.links(uuids[bad])
    inventory = translate.inventory(dict(ill.inventory), None)
    assert {gpu.uuid for gpu in inventory.gpus} >= set(uuids) - {uuids[bad]}
    assert len(inventory.gpus) + len(inventory.unreadable) == len(uuids)
    polls = translate.polls(ill.poll["gpus"], inventory)
    assert all(not polls[uuid].complaint for uuid in uuids if uuid != uuids[bad])
    assert samples(ill.samples).keys() >= set(uuids) - {uuids[bad]}
    assert translate.usage(dict(ill.usage)).keys() >= set(uuids) - {uuids[bad]}
    if answer in ("999", "4242"):
        faults = ill.faults(bad, uuids[bad])
        assert {(fault["function"], fault["code"]) for fault in faults} == {(function, int(answer))}
        at_start, later = (
            {fault["function"] for fault in (*entry.get("faults", ()), *filter(None, [entry.get("error")]))}
            for entry in (ill.inventory["gpus"][bad], ill.poll["gpus"][bad])
        )
        assert at_start == later
    known = KnownFaults()
    known.see("samples", ill.samples["gpus"])
    known.see("poll", ill.poll["gpus"])
    assert [known.of(uuid) for uuid in uuids if uuid != uuids[bad]] == [()] * (len(uuids) - 1)


@pytest.mark.parametrize("function", sorted(OF_NO_GPU))
def test_what_serves_all_gpus_costs_none(told: Callable[..., Told], function: str) -> None:
    well, ill = told(), told((-1, function, "999"))
    for gpu in machine().gpus:
        before, now = well.of(gpu.uuid), ill.of(gpu.uuid)
        assert before["poll"] == now["poll"]
        assert before["memory"] == now["memory"]
        assert before["measured"] - now["measured"] <= {"profile"}


SENSORS = {
    "nvmlDeviceGetPowerUsage": "power",
    "nvmlDeviceGetTemperature": "temperature",
    "nvmlDeviceGetComputeRunningProcesses_v3": "processes",
    "nvmlDeviceGetProcessUtilization": "process_time",
}


@pytest.mark.parametrize("answer", ["999", "15", "nothing"])
def test_memory_that_is_not_told_takes_no_other_value(node: Node, tmp_path: Path, answer: str) -> None:  # noqa: F811
    """While metrics are collected: a poll takes it for the GPU's."""
    topology = machine()
    topology.save(node.path)
    driver = Driver(pynvml, str(tmp_path))
    driver.inventory()
    well = samples(driver.samples(False))
    topology.fail(WHOLE_GPU, "nvmlDeviceGetMemoryInfo", answer)
    topology.save(node.path)
    ill = samples(driver.samples(False))
    uuid = topology.gpus[WHOLE_GPU].uuid
    assert (ill[uuid].used_bytes, ill[uuid].reserved_bytes) == (None, None)
    assert (ill[uuid].capacity_bytes, ill[uuid].power_watts) == (well[uuid].capacity_bytes, well[uuid].power_watts)
    assert ill.keys() == well.keys()


@pytest.mark.parametrize("answer", ["999", "15", "9", "4242"])
@pytest.mark.parametrize("function", sorted(SENSORS))
def test_a_sensor_that_errs_takes_its_own_value(told: Callable[..., Told], function: str, answer: str) -> None:
    uuid = machine().gpus[WHOLE_GPU].uuid
    well, ill = told().of(uuid), told((WHOLE_GPU, function, answer)).of(uuid)
    assert well["measured"] - ill["measured"] == {SENSORS[function]}
    assert ill["measured"] - well["measured"] == {"faults"}


def test_a_mig_device_that_errs_is_left_out_alone(node: Node, tmp_path: Path) -> None:  # noqa: F811
    """Which of a GPU's MIG devices a function errs for cannot be simulated; the binding errs here."""
    machine().save(node.path)
    first = machine().migs[0].uuid

    @functools.wraps(pynvml.nvmlDeviceGetUUID)
    def uuid(handle: object) -> str:
        found = str(pynvml.nvmlDeviceGetUUID(handle))
        if found == first:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
        return found

    class Odd:
        nvmlDeviceGetUUID = staticmethod(uuid)  # noqa: N815

        def __getattr__(self, name: str) -> Any:
            return getattr(pynvml, name)

    answer: Any = Driver(Odd(), str(tmp_path)).inventory()  # type: ignore[arg-type]
    whole = [mig.uuid for mig in machine().migs if mig.gpu == MIG_GPU]
    assert [mig["uuid"] for mig in answer["gpus"][MIG_GPU]["mig_devices"]] == whole[1:]
    assert [fault["function"] for fault in answer["gpus"][MIG_GPU]["faults"]] == ["nvmlDeviceGetUUID"]


@pytest.mark.parametrize(
    ("function", "odd"),
    [
        ("nvmlDeviceGetUUID", ""),
        ("nvmlDeviceGetUUID", "GPU 1"),
        ("nvmlDeviceGetUUID", b"GPU-1"),
        ("nvmlDeviceGetName", None),
        ("nvmlDeviceGetName", ""),
        ("nvmlDeviceGetName", 7),
        ("nvmlDeviceGetMinorNumber", -1),
        ("nvmlDeviceGetMinorNumber", "0"),
        ("nvmlDeviceGetMinorNumber", 1 << 31),
        ("nvmlDeviceGetCudaComputeCapability", None),
        ("nvmlDeviceGetCudaComputeCapability", (9,)),
        ("nvmlDeviceGetPciInfo", None),
        ("nvmlDeviceGetMigMode", 7),
        ("nvmlDeviceGetMemoryInfo", None),
        ("nvmlDeviceGetMemoryInfo", SimpleNamespace(total=0, used=0)),
        ("nvmlDeviceGetMemoryInfo", SimpleNamespace(total=2**64 - 1, used=0)),
        ("nvmlDeviceGetPciInfo", SimpleNamespace(busId="")),
        ("nvmlDeviceGetPciInfo", SimpleNamespace(busId="00000000:1a:00.0/../..")),
    ],
)
def test_an_answer_of_another_type_is_that_gpus(node: Node, tmp_path: Path, function: str, odd: object) -> None:  # noqa: F811
    machine().save(node.path)
    asked: list[object] = []

    def answer(handle: object, *arguments: object) -> object:
        first = pynvml.nvmlDeviceGetHandleByIndex(WHOLE_GPU)
        same = pynvml.cast(handle, pynvml.c_void_p).value == pynvml.cast(first, pynvml.c_void_p).value
        asked.append(same)
        return odd if same else getattr(pynvml, function)(handle, *arguments)

    class Odd:
        def __getattr__(self, name: str) -> Any:
            return answer if name == function else getattr(pynvml, name)

    gpus: Any = Driver(Odd(), str(tmp_path)).inventory()["gpus"]  # type: ignore[arg-type]
    assert True in asked
    assert [gpu.get("error", {}).get("function") for gpu in gpus] == [None, None, function, None]
    (unreadable,) = translate.inventory({"driver": "1", "cuda": [13, 0], "gpus": gpus, "links": []}, None).unreadable
    assert unreadable.index == WHOLE_GPU
    assert unreadable.reason.startswith(f"{function}: ")


def test_a_gpu_with_anothers_uuid_is_not_taken_for_it(node: Node, tmp_path: Path) -> None:  # noqa: F811
    machine().save(node.path)
    uuid = machine().gpus[0].uuid

    class Odd:
        def __getattr__(self, name: str) -> Any:
            return (lambda handle: uuid) if name == "nvmlDeviceGetUUID" else getattr(pynvml, name)

    gpus: Any = Driver(Odd(), str(tmp_path)).inventory()["gpus"]  # type: ignore[arg-type]
    assert [("error" in gpu, gpu.get("uuid")) for gpu in gpus] == [(False, uuid), *[(True, None)] * 3]


def test_what_was_not_text_is_shown() -> None:
    with pytest.raises(UnicodeDecodeError) as caught:
        b"NVIDIA \xc0 T4".decode()
    assert cause(caught.value) == "the answer b'NVIDIA \\xc0 T4' is not UTF-8"


@dataclass(frozen=True)
class Structure:
    """A structure all of whose fields have one value."""

    value: object

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.value


odd_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**65)
    | st.sampled_from([-1, 0, 1 << 16, 2**31, 2**63, 2**64 - 1])
    | st.floats()
    | st.text(max_size=100)
    | st.binary(max_size=100)
    | st.tuples(st.integers(-5, 5), st.integers(-5, 5))
)
odd_values = odd_scalars | st.builds(Structure, odd_scalars) | st.lists(st.builds(Structure, odd_scalars), max_size=3)


IDENTITY = (
    *("nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetName"),
    *("nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetMemoryInfo"),
)


@settings(max_examples=300)
@given(st.data(), st.sampled_from(IDENTITY) | st.sampled_from(OF_ONE_GPU))
def test_any_answer_of_any_type_can_be_told_to_the_cluster(data: st.DataObject, function: str) -> None:
    """Whatever one GPU answers, what others read of the node stays readable, with the other GPU in it."""
    fake = FakeNvml()
    tell(fake)
    true = getattr(fake, function)
    odd = data.draw(odd_values)
    setattr(fake, function, lambda handle, *more: odd if handle == 1 else true(handle, *more))
    driver = Driver(fake, "/nowhere", "/nowhere")
    answer: Any = json.loads(json.dumps(driver.inventory()))
    poll: Any = json.loads(json.dumps(driver.poll()))
    inventory = translate.inventory(answer, None)
    assert inventory.gpu("GPU-0") is not None
    assert not translate.polls(poll["gpus"], inventory)["GPU-0"].complaint
    assert "GPU-0" in samples(json.loads(json.dumps(driver.samples(True, True))))
    assert "GPU-0" in translate.usage(json.loads(json.dumps(driver.usage(["GPU-0", "GPU-1"]))))
    known = KnownFaults()
    known.see("poll", answer["gpus"])
    health = {gpu.uuid: GpuHealth(Health.HEALTHY, faults=known.of(gpu.uuid)) for gpu in inventory.gpus}
    told = decode(encode(NodeInventory(Mode.PGPU, inventory, health, None)))
    assert told.inventory.gpu("GPU-0") is not None
    assert len(told.inventory.gpus) + len(told.inventory.unreadable) == 2


# --- the monitor and its worker ---------------------------------------------------------------------------------------


def ready(watching: Watch) -> Any:
    return watching.until(lambda snapshot: snapshot.driver_state is DriverState.READY)


def logged(caplog: pytest.LogCaptureFixture, message: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.getMessage() == message]


def test_gpu_name_that_is_not_utf8_is_reported_with_a_remedy(
    host: Host, watch: Callable[..., Watch], caplog: pytest.LogCaptureFixture
) -> None:
    with host.change() as topology:
        topology.fail(3, "nvmlDeviceGetName", "garbage")
    snapshot = ready(watch(host))
    assert [gpu.index for gpu in snapshot.inventory.gpus] == [0, 1, 2, 4, 5, 6, 7]
    assert set(snapshot.health.values()) == {HEALTHY}
    (unreadable,) = snapshot.inventory.unreadable
    assert (unreadable.index, unreadable.uuid) == (3, topology.gpus[3].uuid)
    assert unreadable.reason.startswith("nvmlDeviceGetName: the answer b'\\xff\\xfe\\xff' is not UTF-8; ")
    record: Any = logged(caplog, "NVML fails for one GPU")[0]
    assert (record.gpu, record.function) == (topology.gpus[3].uuid, "nvmlDeviceGetName")
    assert "not UTF-8" in record.cause
    assert record.remedy


def test_erring_sensor_is_reported_once_until_it_answers(
    host: Host, watch: Callable[..., Watch], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with host.change() as topology:
        topology.fail(2, "nvmlDeviceGetPowerUsage", "999")
    watching = watch(host)
    uuid = ready(watching).inventory.gpus[2].uuid
    for _ in range(3):
        answer = watching.monitor.samples(False, False, PATIENCE)
        assert answer is not None
        measured = samples(answer)
        assert len(measured) == 8
        assert measured[uuid].power_watts is None
        assert measured[uuid].used_bytes is not None
    snapshot = watching.monitor.snapshot()
    (fault,) = snapshot.health[uuid].faults
    assert snapshot.health[uuid].health is Health.HEALTHY
    assert fault.startswith("nvmlDeviceGetPowerUsage: Unknown Error (999); ")
    assert [health for health in snapshot.health.values() if health.faults] == [snapshot.health[uuid]]
    assert len(logged(caplog, "NVML fails for one GPU")) == 1
    with host.change() as topology:
        topology.faults.clear()
    assert watching.monitor.samples(False, False, PATIENCE) is not None
    assert watching.until(lambda snapshot: not snapshot.health[uuid].faults)
    assert len(logged(caplog, "NVML answers for the GPU again")) == 1


HANGING = replace(QUICK, deadline=0.5, call_deadline=0.5)


def test_a_function_that_hangs_for_one_gpu_costs_that_gpu(host: Host, watch: Callable[..., Watch]) -> None:
    watching = watch(host, replace(HANGING, renew_interval=PATIENCE * 10))
    before = ready(watching)
    uuid = before.inventory.gpus[5].uuid
    with host.change() as topology:
        topology.fail(5, "nvmlDeviceGetMemoryInfo", "hang")
    snapshot = watching.until(
        lambda snapshot: snapshot.driver_state is DriverState.READY and snapshot.health[uuid] != HEALTHY
    )
    assert snapshot.health[uuid].health is Health.UNHEALTHY
    assert snapshot.health[uuid].reason.startswith("nvmlDeviceGetMemoryInfo: it did not return")
    assert [gpu for gpu, health in snapshot.health.items() if health != HEALTHY] == [uuid]
    answer = watching.monitor.samples(True, True, PATIENCE)
    assert answer is not None
    assert samples(answer).keys() >= snapshot.health.keys() - {uuid}


def test_a_sensor_that_hangs_costs_its_value(host: Host, watch: Callable[..., Watch]) -> None:
    with host.change() as topology:
        topology.fail(5, "nvmlDeviceGetTemperature", "hang")
    watching = watch(host, replace(HANGING, renew_interval=PATIENCE * 10))
    uuid = ready(watching).inventory.gpus[5].uuid
    assert watching.monitor.samples(False, False, 0.05) is None
    watching.until(lambda snapshot: snapshot.driver_state is DriverState.WEDGED)
    snapshot = ready(watching)
    answer = watching.monitor.samples(False, False, PATIENCE)
    assert answer is not None
    measured = samples(answer)
    assert measured.keys() == snapshot.health.keys()
    assert "core" not in measured[uuid].temperatures
    assert measured[uuid].power_watts is not None
    assert watching.monitor.snapshot().health[uuid].health is Health.HEALTHY
    assert watching.monitor.snapshot().health[uuid].faults[0].startswith("nvmlDeviceGetTemperature: it did not return")


def test_a_gpu_that_hangs_at_the_start_does_not_keep_the_others(host: Host, watch: Callable[..., Watch]) -> None:
    with host.change() as topology:
        topology.fail(5, "nvmlDeviceGetHandleByIndex", "hang")
    snapshot = ready(watch(host, replace(HANGING, renew_interval=PATIENCE * 10)))
    assert [gpu.index for gpu in snapshot.inventory.gpus] == [0, 1, 2, 3, 4, 6, 7]
    (unreadable,) = snapshot.inventory.unreadable
    assert unreadable.index == 5
    assert unreadable.reason.startswith("nvmlDeviceGetHandleByIndex: it did not return")


def test_a_function_that_hung_is_called_again_later(host: Host, watch: Callable[..., Watch]) -> None:
    watching = watch(host, HANGING)
    uuid = ready(watching).inventory.gpus[5].uuid
    with host.change() as topology:
        topology.fail(5, "nvmlDeviceGetMemoryInfo", "hang")
    watching.until(lambda snapshot: snapshot.health[uuid].reason.startswith("nvmlDeviceGetMemoryInfo"))
    with host.change() as topology:
        topology.faults.clear()
    watching.until(lambda snapshot: set(snapshot.health.values()) == {HEALTHY})


def test_a_jetson_is_named_where_nvml_does_not_describe_its_gpus(host: Host, watch: Callable[..., Watch]) -> None:
    family = host.sysfs_root / "devices/soc0/family"
    family.parent.mkdir(parents=True, exist_ok=True)
    family.write_text("Tegra\n")
    with host.change() as topology:
        for gpu in topology.gpus:
            topology.fail(gpu.index, "nvmlDeviceGetMinorNumber", "3")
    snapshot = ready(watch(host, replace(QUICK, sysfs_root=host.sysfs_root)))
    assert not snapshot.inventory.gpus
    reasons = {unreadable.reason for unreadable in snapshot.inventory.unreadable}
    (reason,) = reasons
    assert reason.startswith("nvmlDeviceGetMinorNumber: Not Supported (3); this is a Jetson, ")
    assert "use NVIDIA's device plugin" in reason


@pytest.mark.full
@pytest.mark.parametrize("function", OF_ONE_GPU)
def test_function_that_hangs_for_one_gpu_costs_no_other(
    make_host: Callable[[str], Host], watch: Callable[..., Watch], function: str
) -> None:
    host = make_host("4xa100-mig")
    bad = MIG_GPU if function in OF_MIG else WHOLE_GPU
    ill = machine()
    ill.fail(bad, function, "hang")
    ill.save(host.topology_file)
    watching = watch(host, replace(HANGING, renew_interval=PATIENCE * 10))
    others = {gpu.uuid for gpu in ill.gpus if gpu.index != bad}

    def named(snapshot: Snapshot) -> bool:
        assert snapshot.inventory is not None
        said = [unreadable.reason for unreadable in snapshot.inventory.unreadable]
        said += [text for health in snapshot.health.values() for text in (health.reason, *health.faults)]
        return any(text.startswith(f"{function}: it did not return") for text in said)

    def served() -> bool:
        measured = watching.monitor.samples(True, True, 2.0)
        usage = watching.monitor.usage(others, 2.0)
        if measured is None or usage is None or not samples(measured).keys() >= others or not usage.keys() >= others:
            return False
        snapshot = watching.monitor.snapshot()
        return named(snapshot) and all(snapshot.health.get(uuid) == HEALTHY for uuid in others)

    wait(served)


# --- device files -----------------------------------------------------------------------------------------------------


def test_gpu_without_its_device_file_is_unhealthy(host: Host, watch: Callable[..., Watch], tmp_path: Path) -> None:
    dev = tmp_path / "devices"
    dev.mkdir()
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{index}" for index in range(8) if index != 3)):
        (dev / name).touch()
    watching = watch(host, replace(QUICK, dev_root=dev, shared_nodes=("nvidiactl", "nvidia-uvm")))
    snapshot = ready(watching)
    uuid = snapshot.inventory.gpus[3].uuid
    assert [gpu for gpu, health in snapshot.health.items() if health != HEALTHY] == [uuid]
    reason = "no /dev/nvidia3; run nvidia-modprobe -c0 -u on the host"
    assert snapshot.health[uuid] == GpuHealth(Health.UNHEALTHY, reason)
    (dev / "nvidia3").touch()
    watching.until(lambda snapshot: set(snapshot.health.values()) == {HEALTHY})
    (dev / "nvidia-uvm").unlink()
    snapshot = watching.until(lambda snapshot: HEALTHY not in snapshot.health.values())
    assert {health.reason.partition(";")[0] for health in snapshot.health.values()} == {"no /dev/nvidia-uvm"}


@pytest.mark.parametrize(
    ("arguments", "root", "shared"),
    [
        (["--mode", "vgpu"], "/host/dev", ("nvidiactl", "nvidia-uvm")),
        (["--mode", "cgpu"], "/host/dev", ("nvidiactl", "nvidia-uvm")),
        (["--mode", "pgpu"], "/host/dev", ()),
        (["--mode", "pgpu", "--nvidia-driver-root", "/run/nvidia/driver"], None, ()),
    ],
)
def test_device_files_that_are_looked_at(arguments: list[str], root: str | None, shared: tuple[str, ...]) -> None:
    """In mode pgpu a container may do without the shared ones, and a driver elsewhere has its files elsewhere."""
    parsed = _parser().parse_args(["plugin", "--node-name", "n", "--dev-root", "/host/dev", *arguments])
    options = watching(parsed)
    assert (options.dev_root, options.shared_nodes) == (root and Path(root), shared)
