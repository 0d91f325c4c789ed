# SPDX-License-Identifier: Apache-2.0
"""The worker's reading of drivers that differ from the simulated one, and its pipes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pynvml
import pytest

from kube_accel.nvml.device import sysfs_address
from kube_accel.nvml.worker import Driver


class FakeNvml(ModuleType):
    """Two GPUs without NVLink, and nothing optional; a test replaces what it is about."""

    def __init__(self) -> None:
        super().__init__("nvml")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvml") and callable(getattr(pynvml, name, None)):
            return self.absent
        return getattr(pynvml, name)

    @staticmethod
    def absent(*_: object) -> object:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    def nvmlInit(self) -> None: ...  # noqa: N802

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)


def tell(fake: FakeNvml) -> None:
    """Have it tell what the plugin has to know."""
    fake.nvmlSystemGetDriverVersion = lambda: "470.1"
    fake.nvmlSystemGetCudaDriverVersion_v2 = lambda: 11040
    fake.nvmlDeviceGetCount = lambda: 2
    fake.nvmlDeviceGetHandleByIndex = lambda index: index
    fake.nvmlDeviceGetUUID = lambda handle: f"GPU-{handle}"
    fake.nvmlDeviceGetPciInfo = lambda handle: SimpleNamespace(busId=f"00000000:0{handle}:00.0")
    fake.nvmlDeviceGetMinorNumber = lambda handle: handle
    fake.nvmlDeviceGetName = lambda _: "Tesla T4"
    fake.nvmlDeviceGetMemoryInfo = lambda _: SimpleNamespace(total=16 << 30, used=0)
    fake.nvmlDeviceGetCudaComputeCapability = lambda _: (7, 5)
    fake.nvmlDeviceGetTopologyCommonAncestor = lambda *_: 30


@pytest.fixture
def nvml() -> FakeNvml:
    fake = FakeNvml()
    tell(fake)
    return fake


def fails(code: int) -> Any:
    def call(*_: object) -> object:
        raise pynvml.NVMLError(code)

    return call


def test_driver_without_anything_optional(nvml: FakeNvml, tmp_path: Path) -> None:
    driver = Driver(nvml, str(tmp_path))
    answer = driver.inventory()
    assert answer["cuda"] == [11, 4]
    assert answer["links"] == [{"pair": ["GPU-0", "GPU-1"], "ancestor": 30, "nvlinks": 0}]
    assert answer["gpus"][1] == {  # type: ignore[index]
        "index": 1,
        "uuid": "GPU-1",
        "pci": "0000:01:00.0",
        "numa": None,
        "minor": 1,
        "model": "Tesla T4",
        "memory": 16 << 30,
        "cc": [7, 5],
        "mig_capable": False,
        "mig": False,
        "mig_devices": [],
        "ecc": None,
        "remap_pending": None,
        "remap_failed": None,
        "retire_pending": None,
        "recovery": None,
    }
    assert driver.poll()["stale"] is False
    assert (driver.events, driver.event_uuids) == (None, {})


@pytest.mark.parametrize(("returned", "action"), [(0, 4), (pynvml.NVML_ERROR_NOT_SUPPORTED, None)])
def test_recovery_action(nvml: FakeNvml, tmp_path: Path, returned: int, action: int | None) -> None:
    field = SimpleNamespace(nvmlReturn=returned, value=SimpleNamespace(uiVal=4))
    nvml.nvmlDeviceGetFieldValues = lambda _, fields: [field] if fields == [230] else []
    assert Driver(nvml, str(tmp_path)).inventory()["gpus"][0]["recovery"] == action  # type: ignore[index]


@pytest.mark.parametrize(("far_end", "nvlinks"), [("00000000:0{}:00.0", 2), ("00000000:77:00.0", 0)])
def test_only_active_nvlinks_to_the_other_gpu_count(nvml: FakeNvml, tmp_path: Path, far_end: str, nvlinks: int) -> None:
    def state(_: int, link: int) -> int:
        if link == 3:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return int(link < 2)

    nvml.nvmlDeviceGetNvLinkState = state
    nvml.nvmlDeviceGetNvLinkRemotePciInfo = lambda handle, _: SimpleNamespace(busId=far_end.format(1 - handle))
    (link,) = Driver(nvml, str(tmp_path)).inventory()["links"]  # type: ignore[misc]
    assert link["nvlinks"] == nvlinks  # type: ignore[has-type]


@pytest.mark.parametrize("call", ["nvmlDeviceGetNvLinkState", "nvmlDeviceGetTopologyCommonAncestor"])
def test_pair_that_cannot_be_read_is_absent(nvml: FakeNvml, tmp_path: Path, call: str) -> None:
    setattr(nvml, call, fails(pynvml.NVML_ERROR_UNKNOWN))
    assert Driver(nvml, str(tmp_path)).inventory()["links"] == []


@pytest.mark.parametrize("code", [1, 9, 18])
@pytest.mark.parametrize("call", ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetTotalEccErrors"])
def test_error_of_the_driver_as_a_whole_is_not_one_gpus(nvml: FakeNvml, tmp_path: Path, call: str, code: int) -> None:
    driver = Driver(nvml, str(tmp_path))
    driver.inventory()
    setattr(nvml, call, fails(code))
    with pytest.raises(pynvml.NVMLError) as error:
        driver.poll()
    assert error.value.value == code


def test_gpu_that_cannot_be_described_is_not_news_every_time(nvml: FakeNvml, tmp_path: Path) -> None:
    nvml.nvmlDeviceGetMinorNumber = fails(pynvml.NVML_ERROR_NOT_SUPPORTED)
    driver = Driver(nvml, str(tmp_path))
    answer = driver.inventory()
    assert answer["gpus"][0]["uuid"] == "GPU-0"  # type: ignore[index]
    assert answer["gpus"][0]["error"] == {  # type: ignore[index]
        "code": 3,
        "text": "Not Supported",
        "function": "nvmlDeviceGetMinorNumber",
    }
    assert driver.poll()["stale"] is False


def test_a_gpu_without_memory_of_its_own_has_the_hosts(nvml: FakeNvml, tmp_path: Path) -> None:
    nvml.nvmlDeviceGetMemoryInfo = fails(pynvml.NVML_ERROR_NOT_SUPPORTED)
    gpus = Driver(nvml, str(tmp_path)).inventory()["gpus"]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert [(gpu["memory"], gpu.get("error")) for gpu in gpus] == [(memory, None)] * 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_GPU_IS_LOST])
def test_a_gpu_that_withholds_its_memory_cannot_be_described(nvml: FakeNvml, tmp_path: Path, code: int) -> None:
    nvml.nvmlDeviceGetMemoryInfo = fails(code)
    gpus = Driver(nvml, str(tmp_path)).inventory()["gpus"]
    assert [gpu["error"]["code"] for gpu in gpus] == [code] * 2  # type: ignore[attr-defined]


def test_fixed_facts_are_asked_once_and_again_after_replacement(nvml: FakeNvml, tmp_path: Path) -> None:
    asked = []
    nvml.nvmlDeviceGetName = lambda handle: asked.append(nvml.nvmlDeviceGetUUID(handle)) or "Tesla T4"
    driver = Driver(nvml, str(tmp_path))
    driver.inventory()
    assert driver.poll()["stale"] is False
    assert asked == ["GPU-0", "GPU-1"]
    nvml.nvmlDeviceGetUUID = lambda handle: f"GPU-other-{handle}"
    assert driver.poll()["stale"] is True
    assert asked == ["GPU-0", "GPU-1", "GPU-other-0", "GPU-other-1"]


@pytest.mark.parametrize(
    ("nvml_says", "sysfs_says"),
    [("00000000:1A:00.0", "0000:1a:00.0"), ("0000000F:C1:00.0", "000f:c1:00.0"), ("00010000:01:00.0", "10000:01:00.0")],
)
def test_sysfs_address(nvml_says: str, sysfs_says: str) -> None:
    assert sysfs_address(nvml_says) == sysfs_says


NOISY = """
import os
from kube_accel.nvml.worker import private_pipes
requests, answers = private_pipes()
os.write(1, b"the library says hello")
assert os.read(0, 1) == b""
answers.write(requests.readline())
answers.flush()
"""


def test_what_a_library_prints_stays_out_of_the_answers() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOISY], input=b'{"id": 1}\n', capture_output=True, check=True, env=os.environ
    )
    assert done.stdout == b'{"id": 1}\n'
    assert done.stderr == b"the library says hello"


def test_worker_loads_no_heavy_modules() -> None:
    heavy = {"ast", "dataclasses", "inspect", "pathlib"}
    code = f"import sys, kube_accel.nvml.worker; print(*sorted({heavy} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "\n"
