# SPDX-License-Identifier: Apache-2.0
"""What kubectl prints of the simulated cluster, and what it asks for before."""

from __future__ import annotations

import json
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sim.cluster import discovery, tables
from sim.cluster.apiserver import ApiServer, Authority
from sim.cluster.client import pod
from sim.cluster.kinds import KINDS
from sim.cluster.store import Store


def cells(plural: str, item: dict[str, Any]) -> dict[str, str]:
    """The first row of a table, by column."""
    made = tables.table(KINDS[plural], {"kind": KINDS[plural].name, **item})
    return dict(zip((column["name"] for column in made["columnDefinitions"]), made["rows"][0]["cells"], strict=True))


def test_pod_has_the_columns_of_kubectl() -> None:
    born = (datetime.now(UTC) - timedelta(minutes=5, seconds=3)).strftime("%Y-%m-%dT%H:%M:%SZ")
    running = {"ready": True, "restartCount": 2, "state": {"running": {}}}
    waiting = {"ready": False, "restartCount": 0, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    item = {
        "metadata": {"name": "train", "creationTimestamp": born},
        "spec": {"containers": [{}, {}]},
        "status": {"phase": "Running", "containerStatuses": [running, waiting]},
    }
    expected = {"Name": "train", "Ready": "1/2", "Status": "CrashLoopBackOff", "Restarts": "2", "Age": "5m"}
    assert cells("pods", item) == expected
    item["metadata"]["deletionTimestamp"] = born
    assert cells("pods", item)["Status"] == "Terminating"


def test_node_tells_whether_it_is_ready_and_cordoned() -> None:
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1.34.0"}}
    labels = {"node-role.kubernetes.io/control-plane": ""}
    item = {"metadata": {"name": "n", "labels": labels}, "spec": {"unschedulable": True}, "status": ready}
    found = cells("nodes", item)
    assert (found["Status"], found["Roles"], found["Version"]) == (
        "Ready,SchedulingDisabled",
        "control-plane",
        "v1.34.0",
    )


def test_a_kind_without_columns_of_its_own_has_name_and_age() -> None:
    assert cells("secrets", {"metadata": {"name": "s"}}) == {"Name": "s", "Age": "<unknown>"}


def test_openapi_says_of_each_kind_that_fields_are_looked_at() -> None:
    listed = discovery.document("/openapi/v3", KINDS.values())
    assert listed
    documents = [discovery.document(f"/openapi/v3/{path}", KINDS.values()) for path in listed["paths"]]
    told = [
        operation["patch"]["x-kubernetes-group-version-kind"]["kind"]
        for document in documents
        if document
        for operation in document["paths"].values()
        if [each["name"] for each in operation["patch"]["parameters"]] == ["fieldValidation"]
    ]
    assert sorted(told) == sorted(kind.name for kind in KINDS.values())


@pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl on PATH")
def test_kubectl_creates_shows_and_deletes_a_pod(tmp_path: Path) -> None:
    server = ApiServer(Store(), Authority(), lambda pod, container: tmp_path / "none")
    server.start()
    try:
        (tmp_path / "admin.conf").write_text(server.kubeconfig("kubernetes-admin", server.admin_token))
        server.store.create(
            "namespaces", "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}, False
        )
        (tmp_path / "pod.json").write_text(json.dumps(pod("train", "sleep", "1")))

        def kubectl(*words: str) -> str:
            command = ["kubectl", "--kubeconfig", str(tmp_path / "admin.conf"), *words]
            return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

        assert kubectl("apply", "-f", str(tmp_path / "pod.json")) == "pod/train created\n"
        assert kubectl("get", "pods").split()[:5] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
        assert "train" in kubectl("get", "pod", "train")
    finally:
        server.stop()
