# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from unit.plugins.modules.control_plane import FIXTURES, ControlPlane, Kubelet, running


@pytest.fixture
def node(run_module: Callable[..., dict[str, Any]], tmp_path: Path) -> Iterator[ControlPlane]:
    manifests = tmp_path / "root/etc/kubernetes/manifests"
    manifests.mkdir(parents=True)
    shutil.copy(FIXTURES / "kube-scheduler.yaml", manifests)
    (manifests / "kube-scheduler.yaml").chmod(0o600)
    with running(Kubelet(manifests)) as kubelet:
        yield ControlPlane(run_module, tmp_path / "root", kubelet)
