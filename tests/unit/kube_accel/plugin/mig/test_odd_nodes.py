# SPDX-License-Identifier: Apache-2.0
"""What is read of a node that is cut by MIG, and of pods on it, is odd in any field: the cut waits, and says why."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kube_accel.kube.podresources import PodDevices
from kube_accel.mig.process import Cut
from kube_accel.model import Snapshot
from kube_accel.plugin.mig import affected
from kube_accel.plugin.mig.affected import LABEL, STATE_LABEL, State
from kube_accel.plugin.mig.manager import MigManager
from kube_accel.shared.api_json import checked
from odd_values import Path as FieldPath
from odd_values import cases, fields_read, with_value
from unit.kube_accel.plugin.fakes import ready

NODE = "odd-node"


class MigServer:
    """An API server with a node and pods on it, that keeps what it is told."""

    def __init__(self, node: dict[str, Any], *pods: dict[str, Any]) -> None:
        self.events: list[str] = []
        self.node, self.pods, self.patches = node, pods, list[dict[str, Any]]()

    def get(self, path: str, query: object = None) -> dict[str, Any]:
        found: dict[str, Any] = {"items": list(self.pods)} if path.endswith("/pods") else self.node
        return copy.deepcopy(found)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        json.dumps(body).encode()
        self.events.append(f"{body['reason']}: {body['message']}")
        return {}

    def patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        json.dumps(body).encode()
        self.patches.append(body)
        return {}

    @property
    def state(self) -> str | None:
        """What the node was told last of its configuration."""
        states = [(patch.get("metadata", {}).get("labels") or {}).get(STATE_LABEL) for patch in self.patches]
        return next(filter(None, reversed(states)), None)


class Quiet:
    """GPUs that nobody else uses, and a plugin that is not stopped."""

    def snapshot(self) -> Snapshot:
        return ready(1)

    def quiesce(self, *_: object) -> None: ...

    def resume(self, *_: object) -> None: ...

    def list(self, timeout: float) -> tuple[PodDevices, ...]:
        return ()

    def is_set(self) -> bool:
        return False

    def wait(self, *_: object) -> bool:
        return False


def cutting(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> MigManager:
    configs = state_dir / "configs.yaml"
    configs.write_text("version: v1")
    options: Any = SimpleNamespace(
        configs=configs, drain=False, drain_force=False, drain_timeout=0, proc_root=Path("/proc")
    )
    quiet: Any = Quiet()
    manager = MigManager(options, NODE, state_dir, quiet, quiet)
    manager._stop = quiet
    monkeypatch.setattr(
        "kube_accel.plugin.mig.manager.cut", lambda *_, check, **__: Cut(changed=True, going=frozenset({"GPU-1"}))
    )
    return manager


def mig_node() -> dict[str, Any]:
    labels = {LABEL: "all-1g", "nvidia.com/gpu.deploy.dcgm": "true"}
    return {"metadata": {"name": NODE, "labels": labels, "annotations": {}}, "spec": {}, "status": {}}


def exporter(name: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "monitoring", "uid": "u", "labels": {"app": "nvidia-dcgm"}},
        "spec": {"containers": []},
        "status": {"phase": "Running"},
    }


def read_of_mig_node(item: dict[str, Any]) -> None:
    node = checked(item)
    for _read in (affected.hold(node, "x"), affected.release(node), affected.report(node, State.SUCCESS, "x")):
        affected.leaving(node, [])


@pytest.mark.parametrize(("path", "values"), cases(fields_read(mig_node(), read_of_mig_node)))
def test_an_odd_node_is_cut_or_told_and_is_cut_once_it_is_mended(
    path: FieldPath, values: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in values.items():
        manager = cutting(tmp_path, monkeypatch)
        server: Any = MigServer(with_value(mig_node(), path, value))
        manager._look(server, mig_node()["metadata"])
        told = any(NODE in event and "see kubectl get node" in event for event in server.events)
        assert server.state == State.SUCCESS or told, name
        server.node = mig_node()
        manager._look(server, mig_node()["metadata"])
        assert server.state == State.SUCCESS, name


@pytest.mark.parametrize(
    ("path", "values"),
    cases(
        fields_read(
            exporter("odd"),
            lambda item: affected.leaving(
                {"metadata": {"labels": {"nvidia.com/gpu.deploy.dcgm": "paused-for-mig-change"}}}, [checked(item)]
            ),
        )
    ),
)
def test_who_still_leaves_a_node_is_known_beside_an_odd_pod(
    path: FieldPath, values: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = mig_node()
    node["metadata"]["labels"]["nvidia.com/gpu.deploy.dcgm"] = "paused-for-mig-change"
    for name, value in values.items():
        manager = cutting(tmp_path, monkeypatch)
        server: Any = MigServer(node, with_value(exporter("odd"), path, value), exporter("stays"))
        manager._look(server, node["metadata"])
        assert any("monitoring/stays" in event for event in server.events), name
