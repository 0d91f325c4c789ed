# SPDX-License-Identifier: Apache-2.0
"""An API server in memory with a node, slices, and claims, as a client of ours sees it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kube_accel.dra.publisher import Publisher
from kube_accel.dra.slices import DRIVER
from kube_accel.kube.api import ApiRefusedError, ApiUnreachableError
from kube_accel.shared.gpu_givers import SLICES_PATH

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims"


class FakeApi:
    """``unknown``: fields of devices, and of slices, that this server does not keep."""

    def __init__(self, unknown: Iterable[str] = ()) -> None:
        self.unknown = set(unknown)
        self.node: dict[str, Any] = {"metadata": {"name": "node-1", "uid": "node-uid"}, "status": {"allocatable": {}}}
        self.slices: dict[str, dict[str, Any]] = {}
        self.claims: dict[str, dict[str, Any]] = {}
        self.writes: list[str] = []
        self.away = False
        self.refused = ""
        """A field of slices that this server finds invalid."""
        self.before_answer: Callable[[], None] = lambda: None
        """What happens between a POST and its answer."""
        self._wiped: list[dict[str, Any]] = []
        self._version = 0

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        self._answers()
        if path == "/api/v1/nodes/node-1":
            return self.node
        if path.startswith(f"{SLICES_PATH}/"):
            return copy.deepcopy(self._slice(path.removeprefix(f"{SLICES_PATH}/")))
        name = path.removeprefix(f"{CLAIMS}/")
        if name not in self.claims:
            raise ApiRefusedError(404, f"{name} not found")
        return self.claims[name]

    def post(self, path: str, body: Any) -> dict[str, Any]:
        dry = self._writes("POST", path)
        name = f"{body['metadata']['generateName']}{self._version:05}"
        metadata = {**body["metadata"], "name": name, "uid": f"uid-{name}"}
        found = self._store({**body, "metadata": metadata}, dry, "POST")
        self.before_answer()
        return found

    def put(self, path: str, body: Any) -> dict[str, Any]:
        dry = self._writes("PUT", path)
        stored = self.slices.get(body["metadata"]["name"])
        if stored is None or stored["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise ApiRefusedError(409, "the object has been modified")
        return self._store(body, dry)

    def send(self, method: str, path: str, body: object = None, **_: object) -> bytes:
        self._writes(method, path)
        if self.slices.pop(path.removeprefix(f"{SLICES_PATH}/"), None) is None:
            raise ApiRefusedError(404, "not found")
        return b"{}"

    def wipe(self) -> None:
        """Delete all slices, as kubelet does."""
        for each in self.slices.values():
            self._version += 1
            self._wiped.append({**each, "metadata": {**each["metadata"], "resourceVersion": str(self._version)}})
        self.slices.clear()

    def deliver(self, publisher: Publisher) -> None:
        """Have the publisher's watch bring all slices, and say which were wiped."""
        for each in self._wiped:
            publisher.slices.drop(each)
        self._wiped.clear()
        for each in self.slices.values():
            publisher.slices.keep(copy.deepcopy(each))

    def devices(self) -> dict[str, dict[str, Any]]:
        """What is offered, by name."""
        return {device["name"]: device for each in self.slices.values() for device in each["spec"].get("devices", ())}

    def claim(self, name: str, *devices: str, uid: str = "", **result: Any) -> None:
        """Have a claim with these devices."""
        results = [
            {"request": "gpus", "driver": DRIVER, "pool": "node-1/kube-accel", "device": device, **result}
            for device in devices
        ]
        status = {"allocation": {"devices": {"results": results}}} if devices else {}
        self.claims[name] = {
            "metadata": {"name": name, "namespace": "team", "uid": uid or f"uid-{name}"},
            "status": status,
        }

    def restore(self, earlier: int) -> None:
        """Count versions from before, as an API server does whose etcd was restored from a backup."""
        self._version = earlier
        for each in self.slices.values():
            self._version += 1
            each["metadata"]["resourceVersion"] = str(self._version)

    def _slice(self, name: str) -> dict[str, Any]:
        if name not in self.slices:
            raise ApiRefusedError(404, f"{name} not found")
        return self.slices[name]

    def _answers(self) -> None:
        if self.away:
            raise ApiUnreachableError("API server not reached")

    def _writes(self, method: str, path: str) -> bool:
        self._answers()
        dry = path.endswith("?dryRun=All")
        self.writes.append(f"{method} dry" if dry else method)
        return dry

    def _store(self, body: dict[str, Any], dry: bool, method: str = "PUT") -> dict[str, Any]:
        if self.refused in body["spec"]:
            raise ApiRefusedError(422, f"spec.{self.refused}: Invalid value")
        found = copy.deepcopy(body)
        self._version += 1
        found["metadata"]["resourceVersion"] = str(self._version)
        for field in self.unknown & found["spec"].keys():
            del found["spec"][field]
        for device in found["spec"].get("devices", ()):
            for key in self.unknown & device.keys():
                del device[key]
            for taint in device.get("taints", ()):
                taint.setdefault("timeAdded", "2026-11-28T00:00:00Z")
        if dry and method == "POST":
            del found["metadata"]["resourceVersion"]  # as what was never stored has none
        if not dry:
            self.slices[found["metadata"]["name"]] = found
        return copy.deepcopy(found)
