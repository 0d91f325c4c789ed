# SPDX-License-Identifier: Apache-2.0
"""What a claim's status says of its devices, and that no container waits or fails for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from kube_accel.dra.checkpoint import PreparedClaim, PreparedDevice
from kube_accel.dra.portions import Portion
from kube_accel.dra.status import StatusWriter, devices, says_so
from kube_accel.kube.api import ApiRefusedError, ApiUnreachableError
from kube_accel.kube.client import KubeClient
from kube_accel.model import MigDevice
from kube_accel.sharing.mig import part
from kube_accel.sharing.whole import whole
from odd_values import ABSENT, ODD
from unit.kube_accel.dra.node import POOL, ClaimNode
from unit.kube_accel.plugin.fakes import inventory, uuid

GPUS = tuple(map(whole, inventory(2).gpus))


def claim(*held: PreparedDevice) -> PreparedClaim:
    share = PreparedDevice("r", "gpu-00", uuid(0), share_id="s", portion=Portion(30, 8 << 30))
    return PreparedClaim("team", "training", held or (share,))


class Api:
    """``wrong`` is what it answers."""

    def __init__(self) -> None:
        self.wrong: Exception | None = None
        self.written: list[tuple[str, Any]] = []

    def send(self, method: str, path: str, body: Any, media: str, query: dict[str, str]) -> bytes:
        if self.wrong is not None:
            raise self.wrong
        assert (method, media, query["force"]) == ("PATCH", "application/apply-patch+yaml", "true")
        self.written.append((path, body))
        return b"{}"


@pytest.fixture
def api() -> Api:
    return Api()


def writer(api: Api) -> StatusWriter:
    return StatusWriter(cast(KubeClient, api), POOL, lambda: GPUS)


def test_mig_device_says_of_which_gpu_it_is() -> None:
    mig = part(inventory(1).gpus[0], MigDevice("MIG-0", 0, "1g.10gb", 10 << 30))
    held = PreparedDevice("r", "gpu-00-mig-1g10gb-0", "MIG-0", parent=uuid(0))
    (found,) = devices(claim(held), POOL, [mig], "now")
    assert found["data"] == {"uuid": "MIG-0", "parentUUID": uuid(0), "memory": "10Gi"}
    assert found["conditions"][0]["message"] == "Containers may use MIG device MIG-0."


def test_devices_say_which_gpu_and_how_much_of_it() -> None:
    whole = PreparedDevice("w", "gpu-01", uuid(1))
    watcher = PreparedDevice("m", "gpu-01", uuid(1), admin=True)
    found = devices(claim(*claim().devices, whole, watcher), POOL, GPUS, "now")
    assert [device["data"] for device in found] == [
        {"uuid": uuid(0), "cores": 30, "memory": "8Gi"},
        {"uuid": uuid(1), "cores": 100, "memory": "80Gi"},
    ], "a device that two requests have is told once"
    assert [device.get("shareID") for device in found] == ["s", None]
    (told,) = devices(claim(watcher), POOL, GPUS, "now")
    assert told["data"] == {"uuid": uuid(1)}


def test_right_status_is_not_written_again(api: Api) -> None:
    made = writer(api)
    others = {"driver": "net.example.com", "pool": "p", "device": "d"}
    made.see("uid", claim(), {"status": {"devices": [others, *devices(claim(), POOL, GPUS, "earlier")]}})
    assert made.write()
    assert api.written == []
    made.see("uid", claim(), {"status": {"devices": [others]}})
    assert made.write()
    ((path, body),) = api.written
    assert path == "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/training/status"
    assert (body["metadata"]["uid"], body["status"]["devices"][0]["device"]) == ("uid", "gpu-00")


def test_status_is_written_once_the_api_server_is_back(api: Api) -> None:
    made, api.wrong = writer(api), ApiUnreachableError("away")
    made.see("uid", claim(), {})
    assert not made.write()
    api.wrong = None
    assert made.write()
    assert len(api.written) == 1


def test_refusal_is_told_once_and_not_tried_again(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    made, api.wrong = writer(api), ApiRefusedError(403, "forbidden")
    for _ in range(2):
        made.see("uid", claim(), {})
        assert made.write()
    assert [record.message for record in caplog.records] == ["the status of a claim is not written"]
    api.wrong = ApiRefusedError(404, "gone")
    made.see("uid", claim(), {})
    made.write()
    assert len(caplog.records) == 1, "a claim that is gone is nobody's fault"


@pytest.mark.parametrize("value", [value for value in ODD.values() if value is not ABSENT])
def test_odd_status_is_written_over(value: object) -> None:
    wanted = devices(claim(), POOL, GPUS, "now")
    for odd in (value, {"status": value}, {"status": {"devices": value}}, {"status": {"devices": [value]}}):
        assert not says_so(odd, wanted)
    conditions = [{**wanted[0], "conditions": value}, {**wanted[0], "conditions": [value]}]
    assert not any(says_so({"status": {"devices": [device]}}, wanted) for device in conditions)


def test_prepared_claims_are_told_of(tmp_path: Path) -> None:
    node, api = ClaimNode(tmp_path), Api()
    node.api.claim("a", "gpu-00")
    made = writer(api)
    preparer = node.preparer(status=made)
    preparer.prepare("uid-a", "team", "a")
    api.wrong = ApiUnreachableError("away")
    assert not made.write()
    assert preparer.claims().keys() == {"uid-a"}, "prepared all the same"
    api.wrong = None
    made.write()
    preparer.release_gone()
    made.write()
    assert len(api.written) == 2, "each look tells what the status lacks"
