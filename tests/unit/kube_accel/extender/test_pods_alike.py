# SPDX-License-Identifier: Apache-2.0
"""Pods that ask for the same are looked at once: nothing that makes a difference may be taken for the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kube_accel.extender.pods import Pod, PodReader
from kube_accel.shared.api_json import ODD
from unit.kube_accel.extender.world import pod_object, share

MPS = {"nvidia.com/mps-core": "30", "nvidia.com/mps-memory": "16"}
SHM = {"volumeMounts": [{"name": "s", "mountPath": "/dev/shm/"}]}
INIT = {"name": "init", "resources": {"limits": share(50, 8)}}


def changed(annotations: Any = None, container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod with 30 % and 8 GiB, and what differs."""
    item = json.loads(json.dumps(pod_object("p", share(30, 8), **spec)))
    item["metadata"]["annotations"] = annotations or {}
    item["spec"]["containers"][0] |= container or {}
    return item  # type: ignore[no-any-return]


def limits(found: object) -> dict[str, Any]:
    return {"resources": {"limits": found}}


ITEMS = {
    "plain": changed(),
    "bound": changed(nodeName="a"),
    "name": changed(container={"name": "other"}),
    "more": changed(container=limits(share(31, 8))),
    "number": changed(container=limits({"tencent.com/vcuda-core": 30, "tencent.com/vcuda-memory": "32"})),
    "no text": changed(container=limits({"tencent.com/vcuda-core": True, "tencent.com/vcuda-memory": "32"})),
    "none": changed(container=limits(share(0, 0))),
    "memory alone": changed(container=limits(share(0, 8))),
    "cpu": changed(container={"resources": {"limits": share(30, 8), "requests": {"cpu": "1"}}}),
    "overhead": changed(overhead={"cpu": "1"}),
    "init": changed(initContainers=[INIT]),
    "sidecar": changed(initContainers=[INIT | {"restartPolicy": "Always"}]),
    "init as container": changed(containers=[{"name": "main", "resources": {"limits": share(30, 8)}}, INIT]),
    "init no list": changed(initContainers={}),
    "init no object": changed(initContainers=["x"]),
    "spread": changed({"kube-accel.io/placement": "spread"}),
    "odd placement": changed({"kube-accel.io/placement": "sprawl"}),
    "model": changed({"kube-accel.io/use-gpu-model": "h100"}),
    "no model": changed({"kube-accel.io/avoid-gpu-model": "h100"}),
    "annotations no object": changed(["x"]),
    "mps": changed(container=limits(MPS)),
    "mps with shm": changed(container=limits(MPS) | SHM),
    "mps bound with shm": changed(container=limits(MPS) | SHM, nodeName="a"),
    "mounts no list": changed(container={"volumeMounts": {"name": "s"}}),
    "mount no object": changed(container={"volumeMounts": ["name"]}),
    "large": changed({"kube-accel.io/use-gpu-model": ",".join(["x" * 100] * 31)}),
    "other": changed({"team.example/note": "x"}),
}


def read(reader: PodReader, item: dict[str, Any]) -> object:
    """What a reader finds in a pod, or the kind of its complaint."""
    try:
        found = reader.read(json.loads(json.dumps(item)))
    except ODD as error:
        return type(error), str(error)
    return None if found is None else tuple(getattr(found, name) for name in Pod.__slots__)


@pytest.mark.parametrize("first", ITEMS)
def test_what_was_read_before_changes_no_answer(first: str) -> None:
    seasoned = PodReader()
    read(seasoned, ITEMS[first])
    for name, item in ITEMS.items():
        assert read(seasoned, item) == read(PodReader(), item), name


def test_alike_pods_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []
    plain = PodReader._looked_at
    monkeypatch.setattr(PodReader, "_looked_at", lambda self, *args: looked.append(args) or plain(self, *args))
    reader = PodReader()
    for number in range(3):
        item = changed({"team.example/note": f"{number}"}, {"env": [{"name": "NUMBER", "value": f"{number}"}]})
        item["metadata"] |= {"name": f"p-{number}", "uid": f"uid-{number}"}
        found = reader.read(item)
        assert found is not None
        assert (found.name, found.uid) == (f"p-{number}", f"uid-{number}")
    assert len(looked) == 1


@pytest.mark.attack
def test_a_large_pod_is_not_kept() -> None:
    reader = PodReader()
    for number in range(20):
        reader.read(changed({"kube-accel.io/use-gpu-model": f"{number}" + "x" * 100_000}))
    assert sum(map(len, reader._known)) < 10_000
