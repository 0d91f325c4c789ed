# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import _ctypes
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

import sim.nvml
from sim.nvml.topology import Topology


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sim.nvml.build(tmp_path_factory.mktemp("lib"), os.environ.get("SIMNVML_CFLAGS", "").split())


@pytest.fixture(scope="module")
def loaded(library: Path) -> Iterator[None]:
    """Pynvml has this simulated library until the module's tests are done.

    By its name it would get any library that other tests of this process have loaded.
    """
    pynvml.nvmlLib = ctypes.CDLL(str(library))
    pynvml._nvmlGetFunctionPointer_cache.clear()
    yield
    _ctypes.dlclose(pynvml.nvmlLib._handle)
    pynvml.nvmlLib = None
    pynvml._nvmlGetFunctionPointer_cache.clear()


class Node:
    """The simulated node this process sees: ``load`` it, ask pynvml, edit ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self, topology: Topology) -> list[object]:
        """Initialises NVML on this topology; the handles of the GPUs it shows."""
        topology.save(self.path)
        pynvml.nvmlInit()
        return self.handles()

    def handles(self) -> list[object]:
        return [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]


@pytest.fixture
def node(loaded: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    path = tmp_path / "gpusim.conf"
    monkeypatch.setenv("GPUSIM_FILE", str(path))
    monkeypatch.delenv("GPUSIM_VISIBLE", raising=False)
    yield Node(path)
    if path.exists():
        healthy = Topology.parse("system driver=1 cuda=13000\n")
        healthy.save(path)
    while True:
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError:
            break
