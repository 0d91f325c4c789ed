# SPDX-License-Identifier: Apache-2.0
"""A node with an API server that holds it, for the shipped command."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from sim.cluster.apiserver import ApiServer, Authority
from sim.cluster.store import Store
from unit.kube_accel.test_plugin_end_to_end import Host
from waiting import wait

NODE = "node-1"


class ApiHost(Host):
    """Its driver is loaded and its kubelet runs; ``start_api`` has the API server answer."""

    namespace: ClassVar = "team"
    """Beside ``default``."""
    labels: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Name of the node."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        super().__init__(root, stack)
        self.load_driver()
        stack.enter_context(self.kubelet)
        self.store = Store()
        for name in ("default", self.namespace):
            self.store.create("namespaces", "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        metadata = {"name": NODE, "labels": dict(self.labels)}
        self.store.create("nodes", "", {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
        authority = Authority()
        self.api = ApiServer(self.store, authority, lambda pod, container: root / "none")
        account = root / "account"
        account.mkdir()
        (account / "ca.crt").write_text(authority.pem)
        (account / "token").write_text(self.api.token("system:serviceaccount:kube-system:kube-accel"))
        self.use_api_server(self.api.port)

    def start_api(self) -> None:
        self.api.start()
        self.stack.callback(self.api.stop)

    def events(self) -> list[tuple[str, str]]:
        """Reason and message of each about the node."""
        found = self.store.all("events", "default")
        return [(event["reason"], event["message"]) for event in found if event["involvedObject"]["name"] == NODE]

    def wait_event(self, reason: str, said: str) -> None:
        wait(lambda: any(r == reason and said in m for r, m in self.events()), f"{reason}: {said}")
