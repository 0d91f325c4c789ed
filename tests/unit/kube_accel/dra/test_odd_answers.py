# SPDX-License-Identifier: Apache-2.0
"""What the driver reads of its node, slices, and claims is odd in any field: it is told, and nothing else breaks."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from kube_accel.dra.claims import ClaimError, allotted
from kube_accel.dra.node_devices import NodeDevices
from kube_accel.dra.pods import ClaimPods
from kube_accel.dra.publisher import Publisher
from kube_accel.dra.slices import DRIVER
from kube_accel.kube.api import ApiError
from kube_accel.kube.cgroups import Place
from kube_accel.kube.client import KubeClient
from kube_accel.plugin.node.condition_reporter import ConditionReporter
from kube_accel.plugin.node.dra_drivers import DraDrivers
from kube_accel.shared.api_json import ODD, ApiJsonError
from kube_accel.shared.gpu_givers import SLICES_PATH
from odd_values import Path as FieldPath
from odd_values import cases, fields_read, with_value
from unit.kube_accel.dra.api import FakeApi
from unit.kube_accel.dra.node import POOL, ClaimNode
from unit.kube_accel.plugin.fakes import ready

TOLERATION = {"key": "gpu.kube-accel.io/unhealthy", "operator": "Exists", "effect": "NoSchedule"}


def claim() -> dict[str, Any]:
    api = FakeApi()
    api.claim("a", "gpu-00", tolerations=[TOLERATION], shareID="", adminAccess=False)
    document = api.claims["a"]
    document["status"]["allocation"]["devices"]["config"] = [{"opaque": {"driver": "other.example.com"}}]
    return document


def node() -> dict[str, Any]:
    metadata = {"name": "node-1", "uid": "node-uid"}
    return {"metadata": metadata, "status": {"allocatable": {"cpu": "4", "nvidia.com/gpu": "0"}}}


def stored() -> dict[str, Any]:
    pool = {"name": POOL, "generation": 3, "resourceSliceCount": 1}
    taint = {"key": "gpu.kube-accel.io/unhealthy", "effect": "NoSchedule", "timeAdded": "2026-11-28T00:00:00Z"}
    return {
        "metadata": {"name": "00-ours", "uid": "u", "resourceVersion": "7"},
        "spec": {"driver": DRIVER, "nodeName": "node-1", "pool": pool, "devices": [{"name": "x", "taints": [taint]}]},
    }


def publish(state_dir: Path, api: FakeApi, slices: list[dict[str, Any]]) -> Publisher:
    """As the watch and the thread of a publisher do; what cannot be read is told by ApiError or ApiJsonError."""
    devices = NodeDevices(state_dir)
    devices.see(ready(2))
    made = Publisher(
        cast(KubeClient, api),
        "node-1",
        state_dir,
        lambda keeps, _, withheld, fixed: devices.wanted(keeps, withheld, ()),
    )
    for each in slices:
        try:
            made.slices.keep(each)
        except ODD:
            continue
    try:
        made.problem = made._publish()
    except (ApiError, ApiJsonError) as error:
        made.problem = str(error)
    return made


def _with(item: dict[str, Any]) -> FakeApi:
    api = FakeApi()
    api.slices = {"00-ours": item}
    return api


@pytest.mark.parametrize(("path", "values"), cases(fields_read(claim(), lambda item: allotted(item, "uid-a", POOL))))
def test_odd_claim_is_refused_in_words_or_prepared(path: FieldPath, values: dict[str, Any], tmp_path: Path) -> None:
    said: list[str] = []
    for value in values.values():
        there = ClaimNode(tmp_path / str(len(list(tmp_path.iterdir()))))
        there.api.claims["a"] = with_value(claim(), path, value)
        preparer = there.preparer()
        try:
            preparer.prepare("uid-a", "team", "a")
        except ClaimError as error:
            said.append(str(error))
        preparer.release_gone()
    assert all(map(str.isprintable, said))


def pod() -> dict[str, Any]:
    status = {"containerStatuses": [{"name": "main", "containerID": "containerd://id"}]}
    spec = {"containers": [{"name": "main", "image": "i", "command": ["c"], "env": [{"name": "n"}]}]}
    return {"metadata": {"uid": "uid-a"}, "spec": spec, "status": status}


def looked(item: dict[str, Any]) -> ClaimPods:
    class Pods:
        def get(self, path: str) -> dict[str, Any]:
            return item

    pods = ClaimPods(cast(KubeClient, Pods()))
    pods.look([("team", "a")])
    return pods


@pytest.mark.parametrize(("path", "values"), cases(fields_read(pod(), looked)))
def test_odd_pod_owns_no_process_or_has_a_name(path: FieldPath, values: dict[str, Any]) -> None:
    for value in values.values():
        pods = looked(with_value(pod(), path, value))
        found = pods.owner(Place("uid-a", "id"))
        assert found is None or (found[:2] == ("team", "a") and found.name.isprintable())
        assert pods.uid("team", "a").isprintable()


NODE_FIELDS = [
    ("metadata",),
    ("metadata", "uid"),
    ("status",),
    ("status", "allocatable"),
    ("status", "allocatable", "cpu"),
]


@pytest.mark.parametrize(("path", "values"), cases(cast("list[FieldPath]", NODE_FIELDS)))
def test_odd_node_is_told_or_served(path: FieldPath, values: dict[str, Any], tmp_path: Path) -> None:
    for value in values.values():
        api = FakeApi()
        api.node = with_value(node(), path, value)
        made = publish(tmp_path, api, [])
        assert bool(made.problem) != bool(api.slices)
        assert made.problem.isprintable()


SLICE_FIELDS = [
    *[("metadata", key) for key in ("name", "uid", "resourceVersion")],
    *[("spec",), ("spec", "driver"), ("spec", "pool"), ("spec", "devices"), ("spec", "devices", 0)],
    *[("spec", "pool", key) for key in ("name", "generation", "resourceSliceCount")],
    *[("spec", "devices", 0, key) for key in ("name", "taints")],
    *[("spec", "devices", 0, "taints", 0, key) for key in ("key", "timeAdded")],
]


@pytest.mark.parametrize(("path", "values"), cases(SLICE_FIELDS))
def test_odd_slice_is_written_over_or_told(path: FieldPath, values: dict[str, Any], tmp_path: Path) -> None:
    for value in values.values():
        odd = with_value(stored(), path, value)
        made = publish(tmp_path, _with(copy.deepcopy(stored())), [odd])
        assert made.problem.isprintable()


@pytest.mark.parametrize(("path", "values"), cases(SLICE_FIELDS))
def test_odd_slice_that_is_read_again_harms_nothing(path: FieldPath, values: dict[str, Any], tmp_path: Path) -> None:
    for value in values.values():
        api = _with(copy.deepcopy(stored()))
        made = publish(tmp_path, api, [stored()])
        api.slices["00-ours"] = with_value(stored(), path, value)
        made._reread()
        assert made.problem.isprintable()


class Silent:
    """A node's condition that nobody sees."""

    def warn(self, reason: str, message: str) -> None:
        assert message.isprintable()


@dataclass(frozen=True)
class Watching:
    """A plugin that looks for drivers."""

    node_name: str = "node-1"
    service_account_dir: Path = Path("/nowhere")
    watch_slices: bool = True


@pytest.mark.parametrize(("path", "values"), cases(SLICE_FIELDS))
def test_odd_slice_hides_no_driver_from_a_plugin(path: FieldPath, values: dict[str, Any]) -> None:
    for value in values.values():
        drivers = DraDrivers(Watching(), cast(ConditionReporter, Silent()), lambda: None)
        with suppress(*ODD):
            drivers.keep(with_value(stored(), path, value))
        other = stored()
        other["metadata"]["name"] = "01-ours"
        drivers.keep(other)
        assert f"DRA driver {DRIVER} gives away the GPUs" in drivers.obstacle
        assert drivers.obstacle.isprintable()


@pytest.mark.parametrize(("path", "values"), cases(SLICE_FIELDS))
def test_odd_answer_to_a_write_is_told(path: FieldPath, values: dict[str, Any], tmp_path: Path) -> None:
    class Odd(FakeApi):
        """It answers this to whatever is created."""

        answer: Any = None

        def post(self, path: str, body: Any) -> dict[str, Any]:
            return with_value(stored(), *self.answer)

    for value in values.values():
        api = Odd()
        api.answer = path, value
        assert publish(tmp_path, api, []).problem.isprintable()


def test_what_is_well_formed_is_served(tmp_path: Path) -> None:
    api = _with(stored())
    assert publish(tmp_path, api, [copy.deepcopy(stored())]).problem == ""
    assert [*api.devices()] == ["gpu-00", "gpu-01"]
    assert json.dumps(api.slices)
    assert SLICES_PATH.endswith("/resourceslices")
