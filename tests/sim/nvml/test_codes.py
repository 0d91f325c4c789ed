# SPDX-License-Identifier: Apache-2.0
"""NVML's return codes: what a caller has to cope with on a real driver, it meets here."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.nvml.conftest import Node
from sim.nvml.profiles import PROFILES
from sim.nvml.topology import Topology

MIB = 1 << 20
INSUFFICIENT_SIZE = 7


def call(name: str, *arguments: Any) -> int:
    return int(getattr(pynvml.nvmlLib, name)(*arguments))


def test_nothing_answers_before_init_or_after_the_last_shutdown(node: Node) -> None:
    node.load(PROFILES["t4"]("n"))
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    assert pynvml.nvmlDeviceGetCount() == 1
    pynvml.nvmlShutdown()
    for function in (pynvml.nvmlDeviceGetCount, pynvml.nvmlShutdown, pynvml.nvmlSystemGetDriverVersion):
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            function()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 1


def test_a_library_without_a_driver(node: Node) -> None:
    topology = PROFILES["t4"]("n")
    topology.system.driver = "none"
    with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
        node.load(topology)


def test_what_an_old_driver_lacks_is_not_there(node: Node) -> None:
    handle = node.load(PROFILES["t4"]("n"))[0]
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        pynvml.nvmlDeviceGetFanSpeed(handle)


def test_a_struct_of_another_version_is_refused(node: Node) -> None:
    handle = node.load(PROFILES["t4"]("n"))[0]
    with pytest.raises(pynvml.NVMLError) as caught:
        pynvml.nvmlDeviceGetMemoryInfo(handle, version=0x03000028)
    assert caught.value.value == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


def test_codes_have_their_words(node: Node) -> None:
    node.load(PROFILES["t4"]("n"))
    words = pynvml.nvmlLib.nvmlErrorString
    words.restype = ctypes.c_char_p
    told = {0: b"Success", 3: b"Not Supported", 15: b"GPU is lost", 4711: b"Unknown Error"}
    assert {code: words(code) for code in told} == told


def test_arguments_that_name_nothing(node: Node) -> None:
    topology = PROFILES["8xh100"]("n")
    handle = node.load(topology)[0]
    asks: list[tuple[Callable[[], object], type[pynvml.NVMLError]]] = [
        (lambda: pynvml.nvmlDeviceGetHandleByIndex(8), pynvml.NVMLError_InvalidArgument),
        (lambda: pynvml.nvmlDeviceGetHandleByUUID("GPU-unknown"), pynvml.NVMLError_NotFound),
        (lambda: pynvml.nvmlDeviceGetHandleByPciBusId(b"0000:ff:00.0"), pynvml.NVMLError_NotFound),
        (lambda: pynvml.nvmlDeviceGetHandleByPciBusId(b"nonsense"), pynvml.NVMLError_InvalidArgument),
        (lambda: pynvml.nvmlDeviceGetNvLinkState(handle, 18), pynvml.NVMLError_InvalidArgument),
        (lambda: pynvml.nvmlDeviceGetTemperature(handle, 1), pynvml.NVMLError_InvalidArgument),
        (lambda: pynvml.nvmlDeviceGetUUID(ctypes.c_void_p(4096)), pynvml.NVMLError_InvalidArgument),
        (lambda: pynvml.nvmlEventSetFree(ctypes.c_void_p(4096)), pynvml.NVMLError_InvalidArgument),
    ]
    for ask, error in asks:
        with pytest.raises(error):
            ask()


def test_a_short_buffer(node: Node) -> None:
    handle = node.load(PROFILES["t4"]("n"))[0]
    buffer = ctypes.create_string_buffer(4)
    assert call("nvmlDeviceGetUUID", handle, buffer, ctypes.c_uint(4)) == INSUFFICIENT_SIZE


def test_processes_are_counted_before_they_are_listed(node: Node) -> None:
    topology = PROFILES["t4"]("n")
    for pid, kind in ((1, "C"), (2, "M+C"), (3, "G"), (4, "M")):
        topology.add_process(0, pid, mem=MIB, type=kind)
    handle = node.load(topology)[0]
    count = ctypes.c_uint(0)
    assert call("nvmlDeviceGetComputeRunningProcesses_v3", handle, ctypes.byref(count), None) == INSUFFICIENT_SIZE
    assert count.value == 2
    small = (pynvml.c_nvmlProcessInfo_v3_t * 1)()
    count = ctypes.c_uint(1)
    assert call("nvmlDeviceGetComputeRunningProcesses_v3", handle, ctypes.byref(count), small) == INSUFFICIENT_SIZE
    listed = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    assert [(p.pid, p.usedGpuMemory, p.gpuInstanceId) for p in listed] == [(1, MIB, 0xFFFFFFFF), (2, MIB, 0xFFFFFFFF)]
    assert [p.pid for p in pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3(handle)] == [2, 4]


def test_an_idle_gpu_has_no_processes_and_no_samples(node: Node) -> None:
    topology = PROFILES["t4"]("n")
    topology.add_process(0, 1, mem=MIB, sm=0, type="G")
    handle = node.load(topology)[0]
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle) == []
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetProcessUtilization(handle, 0)


def test_samples_of_processes_since_a_time(node: Node) -> None:
    topology = PROFILES["t4"]("n")
    topology.add_process(0, 1, mem=MIB, sm=40)
    topology.add_process(0, 2, mem=MIB, sm=0)
    handle = node.load(topology)[0]
    before = time.time_ns() // 1000
    (sample,) = pynvml.nvmlDeviceGetProcessUtilization(handle, 0)
    assert (sample.pid, sample.smUtil) == (1, 40)
    assert abs(sample.timeStamp - before) < 60_000_000
    future = before + 3_600_000_000
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetProcessUtilization(handle, future)


def test_waiting_for_an_event_that_does_not_come(node: Node) -> None:
    node.load(PROFILES["t4"]("n"))
    events = pynvml.nvmlEventSetCreate()
    start = time.monotonic()
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(events, 150)
    assert time.monotonic() - start >= 0.15


def test_events_a_card_does_not_have(node: Node) -> None:
    handle = node.load(PROFILES["t4"]("n"))[0]
    events = pynvml.nvmlEventSetCreate()
    supported = pynvml.nvmlDeviceGetSupportedEventTypes(handle)
    assert supported & pynvml.nvmlEventTypeXidCriticalError
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeClock, events)


@pytest.mark.parametrize(
    ("line", "token"),
    [
        ("gpu 0 uuid=a pci=0000:01:00.0 model=x mem=12Q cc=9.0", "mem=12Q"),
        ("gpu 0 uuid=a pci=01:00 model=x mem=1G cc=9.0", "01:00"),
        ("gpu 0 uuid=a pci=0000:01:00.0 model=x mem=1G cc=9.0 health=sick", "sick"),
        ("gpu 0 uuid=a pci=0000:01:00.0 model=x mem=1G cc=9.0 colour=green", "colour=green"),
        ("gpu 0 uuid=a", "gpu"),
        ("gpu 5 uuid=a pci=0000:01:00.0 model=x mem=1G cc=9.0", "5"),
        ("proc 0 pid=1", "0"),
        ("driver=580", "driver=580"),
        ('gpu 0 model="NVIDIA', "model=NVIDIA"),
        ("event", "event"),
        ("topo 0 1 NEAR", "0"),
        ("system driver=580.1 cuda=13000", "system"),
    ],
)
def test_a_malformed_file_is_said_in_one_line(
    node: Node, capfd: pytest.CaptureFixture[str], line: str, token: str
) -> None:
    node.path.write_text(f"system driver=580.1 cuda=13000\n# a comment\n{line}\n")
    with pytest.raises(pynvml.NVMLError_Unknown):
        pynvml.nvmlInit()
    (message,) = capfd.readouterr().err.splitlines()
    assert message.startswith(f'simnvml: {node.path}:3: "{token}": ')


def test_a_wedge_of_nothing_is_refused(node: Node, capfd: pytest.CaptureFixture[str]) -> None:
    node.path.write_text("system driver=580.1 cuda=13000 wedge=DeviceGetName\n")
    with pytest.raises(pynvml.NVMLError_Unknown):
        pynvml.nvmlInit()
    assert 'gpusim.conf:1: "DeviceGetName": wedge=' in capfd.readouterr().err


def _absent(path: Path) -> None:
    path.unlink(missing_ok=True)


def _directory(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("spoil", [_absent, _directory])
def test_an_unreadable_file_is_said_in_one_line(
    node: Node, capfd: pytest.CaptureFixture[str], spoil: Callable[[Path], None]
) -> None:
    spoil(node.path)
    with pytest.raises(pynvml.NVMLError_Unknown):
        pynvml.nvmlInit()
    (message,) = capfd.readouterr().err.splitlines()
    assert str(node.path) in message
    if node.path.is_dir():
        node.path.rmdir()


def test_no_file_named(node: Node, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUSIM_FILE")
    with pytest.raises(pynvml.NVMLError_Unknown):
        pynvml.nvmlInit()
    assert "GPUSIM_FILE" in capfd.readouterr().err


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_spoilt_file_is_read_or_refused_never_worse(
    node: Node, capfd: pytest.CaptureFixture[str], data: st.DataObject
) -> None:
    text = bytearray(PROFILES[data.draw(st.sampled_from(["t4", "4xa100-mig", "8xh100"]))]("n").render().encode())
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(start + 30, len(text))))
        text[start:end] = data.draw(
            st.binary(max_size=12) | st.sampled_from([b"=", b'"', b"-1", b" " * 5, b"\n", b"9" * 30])
        )
    node.path.write_bytes(text)
    capfd.readouterr()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_Unknown:
        assert len(capfd.readouterr().err.splitlines()) >= 1
    except pynvml.NVMLError_DriverNotLoaded:
        pass
    else:
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                pynvml.nvmlDeviceGetName(handle)
                pynvml.nvmlDeviceGetCpuAffinity(handle, 4)
            except (pynvml.NVMLError, UnicodeDecodeError):
                continue
        pynvml.nvmlShutdown()


def test_what_is_written_is_what_is_told(node: Node) -> None:
    topology = Topology.parse(
        """
        system driver=580.1 cuda=12080 # no sensors at all
        gpu 0 uuid=GPU-a pci=0001:01:00.0 model="A # card" mem=2G cc=8.6
        """
    )
    gpu = topology.gpus[0]
    gpu.util = gpu.memutil = gpu.persistence = gpu.compute_mode = None
    handle = node.load(topology)[0]
    assert pynvml.nvmlDeviceGetName(handle) == "A # card"
    assert pynvml.nvmlSystemGetCudaDriverVersion_v2() == 12080
    for read in (
        pynvml.nvmlDeviceGetUtilizationRates,
        pynvml.nvmlDeviceGetPowerUsage,
        pynvml.nvmlDeviceGetSerial,
        pynvml.nvmlDeviceGetEccMode,
        pynvml.nvmlDeviceGetPersistenceMode,
    ):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            read(handle)
