# SPDX-License-Identifier: Apache-2.0
"""Ansible works on the simulated cluster and its hosts as on real ones: its own modules, unchanged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from sim.cluster import Cluster
from sim.cluster.client import Api

BIN = Path(sys.executable).parent
DEFINITION: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "ansible", "namespace": "default"},
    "data": {"a": "1"},
}
DAEMON_SET: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "metadata": {"name": "ansible", "namespace": "default"},
    "spec": {
        "selector": {"matchLabels": {"app": "ansible"}},
        "template": {
            "metadata": {"labels": {"app": "ansible"}},
            "spec": {"containers": [{"name": "c", "image": "none", "command": ["sleep", "1000"]}]},
        },
    },
}


def play(cluster: Cluster, tasks: list[dict[str, Any]], host: str = "") -> list[dict[str, Any]]:
    """Run tasks on a simulated host, or on this machine; the result of each."""
    interpreter = str(cluster.root / host / "usr/bin/python3") if host else sys.executable
    book = [
        {
            "hosts": "all",
            "gather_facts": False,
            "vars": {"ansible_connection": "local", "ansible_python_interpreter": interpreter},
            "module_defaults": {"group/kubernetes.core.k8s": {"kubeconfig": str(cluster.kubeconfig)}},
            "tasks": tasks,
        }
    ]
    file = cluster.root / "play.yml"
    file.write_text(yaml.safe_dump(book))
    settings = {"ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json", "ANSIBLE_HOME": str(cluster.root / "ansible")}
    done = subprocess.run(
        [BIN / "ansible-playbook", "-i", "simulated,", file], env=os.environ | settings, capture_output=True, text=True
    )
    assert done.stdout, done.stderr
    report = json.loads(done.stdout[done.stdout.index("{") :])
    return [task["hosts"]["simulated"] for task in report["plays"][0]["tasks"]]


def k8s(state: str, definition: dict[str, Any], check: bool = False, **more: Any) -> dict[str, Any]:
    module = {"kubernetes.core.k8s": {"state": state, "definition": definition, **more}}
    return module | {"check_mode": check, "diff": True, "ignore_errors": True}


def info(**options: Any) -> dict[str, Any]:
    return {"kubernetes.core.k8s_info": options}


@pytest.mark.full
def test_kubernetes_core_creates_changes_and_deletes(cluster: Cluster, api: Api) -> None:
    """It tries a strategic merge first, is told 415, and copes with a merge patch. Check mode changes nothing."""
    changed = DEFINITION | {"data": {"a": "2"}}
    name = {"name": "ansible", "namespace": "default"}
    labelled = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": name | {"labels": {"l": "m"}}}
    spec = DAEMON_SET["spec"] | {"selector": {"matchLabels": {"app": "other"}}}
    wanted = [
        (k8s("present", DEFINITION, check=True), True),
        (k8s("present", DEFINITION), True),
        (k8s("present", DEFINITION), False),
        (k8s("present", changed, check=True), True),
        (k8s("present", changed), True),
        (k8s("patched", labelled), True),
        (k8s("patched", labelled), False),
        (k8s("absent", DEFINITION, check=True), True),
        (k8s("present", changed, apply=True), True),
        (k8s("present", changed, apply=True), False),
        (k8s("absent", DEFINITION), True),
        (k8s("absent", DEFINITION), False),
        (k8s("present", DAEMON_SET | {"spec": spec}), False),
    ]
    results = play(cluster, [task for task, _ in wanted])
    assert [item["changed"] for item in results] == [change for _, change in wanted]
    assert results[0]["result"]["metadata"]["uid"] != results[1]["result"]["metadata"]["uid"]
    assert results[3]["diff"]["after"]["data"] == results[4]["diff"]["after"]["data"] == {"a": "2"}
    assert results[5]["result"]["metadata"]["labels"] == {"l": "m"}
    assert results[5]["result"]["data"] == {"a": "2"}
    assert not any("msg" in item for item in results[:-1])
    assert "`selector` does not match template `labels`" in results[-1]["msg"]
    assert api.call("GET", "/api/v1/namespaces/default/configmaps/ansible")[0] == 404


@pytest.mark.full
def test_kubernetes_core_waits_for_a_daemon_set_and_finds_things(cluster: Cluster) -> None:
    ready, again, node, none, absent = play(
        cluster,
        [
            k8s("present", DAEMON_SET, wait=True, wait_timeout=60, wait_sleep=1),
            k8s("present", DAEMON_SET, wait=True, wait_timeout=60, wait_sleep=1),
            info(kind="Node", label_selectors=["kubernetes.io/hostname=n1"]),
            info(api_version="nvidia.com/v1", kind="ClusterPolicy"),
            k8s("absent", DAEMON_SET, wait=True, wait_timeout=60, wait_sleep=1),
        ],
    )
    assert ready["result"]["status"]["numberReady"] == 2
    assert not again["changed"]
    assert [item["metadata"]["name"] for item in node["resources"]] == ["n1"]
    assert none["api_found"] is False
    assert absent["changed"]


@pytest.mark.ci
def test_systemd_service(cluster: Cluster) -> None:
    def service(name: str = "containerd", **options: Any) -> dict[str, Any]:
        return {"ansible.builtin.systemd_service": {"name": name, **options}, "ignore_errors": True}

    wanted = [
        (service(state="started", enabled=True), False),
        (service(state="restarted"), True),
        (service(state="stopped"), True),
        (service(state="stopped"), False),
        (service(state="started", daemon_reload=True), True),
        (service(enabled=False), True),
        (service(enabled=True), True),
        (service("none", state="started"), False),
    ]
    results = play(cluster, [task for task, _ in wanted], "n1")
    assert [item["changed"] for item in results] == [change for _, change in wanted]
    assert results[0]["status"]["ActiveState"] == "active"
    assert not any("msg" in item for item in results[:-1])
    assert "Could not find the requested service none" in results[-1]["msg"]
