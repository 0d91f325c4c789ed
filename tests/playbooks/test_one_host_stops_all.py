# SPDX-License-Identifier: Apache-2.0
"""One host that fails a check stops site.yml before any host is changed, itself or another."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from sim.cluster import NodeSpec, Spec
from sim.inventory import write_inventory

from .conftest import Playbooks, Start, state


@pytest.fixture(scope="module")
def books(start: Start) -> Playbooks:
    """Bare hosts, of which gpu-a and control could be prepared."""
    return start(Spec("control", (NodeSpec("gpu-a", "t4"), NodeSpec("gpu-b", "t4"))))


@contextmanager
def broken(path: Path) -> Iterator[None]:
    text = path.read_text()
    path.write_text(f"{text}\n[plugins\n")
    yield
    path.write_text(text)


def refusal(books: Playbooks, host: str, **variables: Any) -> str:
    """Runs the site with variables for one host; returns what its tasks say."""
    inventory = write_inventory(books.cluster.root, {"gpu-a": "vgpu", "gpu-b": "mps"})
    document = yaml.safe_load(inventory.read_text())
    for group in document["all"]["children"].values():
        if host in group["hosts"]:
            group["hosts"][host] |= variables
    inventory.write_text(yaml.safe_dump(document))
    before = state(books.cluster)
    done = books.run("accel.kubernetes.site")
    assert done.code != 0, done.output
    assert done.changed == 0, done.output
    assert state(books.cluster) == before
    assert {name for name, counted in done.recap.items() if counted["failed"] or counted["unreachable"]} == {host}
    return done.messages


@pytest.mark.parametrize(
    ("host", "variables", "says"),
    [
        ("gpu-b", {"driver_method": "none"}, "No NVIDIA driver is loaded and driver_method is none"),
        pytest.param(
            "control",
            {"scheduler_manifest_path": "/etc/none.yaml"},
            "/etc/none.yaml does not exist",
            marks=pytest.mark.full,
        ),
        pytest.param("gpu-b", {"gpu_plugins_node_name": "other"}, "no node 'other'", marks=pytest.mark.full),
        pytest.param(
            "gpu-a",
            {"gpu_plugins_mig_strategy": "mixed"},
            "gpu_plugins_mig_strategy of gpu-b differs from that of gpu-a",
            marks=pytest.mark.full,
        ),
        pytest.param(
            "gpu-b",
            {"container_runtime_binary": "/usr/bin/none"},
            "/usr/bin/none does not exist",
            marks=pytest.mark.full,
        ),
        pytest.param(
            "gpu-b",
            {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1},
            "127.0.0.1",  # refused, or its pipe broken, whichever Ansible sees first
            marks=pytest.mark.full,
        ),
    ],
    ids=["driver", "scheduler", "gpu_plugins", "cluster", "container_runtime", "unreachable"],
)
def test_a_check_that_fails_on_one_host(books: Playbooks, host: str, variables: dict[str, Any], says: str) -> None:
    assert says in refusal(books, host, **variables)


def test_of_nodes_that_are_left_out_nothing_is_told(books: Playbooks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor of those looked at what could not be read: gpu-a has no driver yet."""
    monkeypatch.setenv("ANSIBLE_SHOW_CUSTOM_STATS", "true")
    inventory = write_inventory(books.cluster.root)
    document = yaml.safe_load(inventory.read_text())
    document["all"]["children"]["gpu_nodes"]["hosts"]["gpu-a"]["gpu_plugins_mode"] = "vgpu"
    inventory.write_text(yaml.safe_dump(document))
    done = books.run("accel.kubernetes.site", "--limit", "gpu-a", "--tags", "none")
    assert done.code == 0, done.output
    (told,) = re.findall(r"RUN: (\{.*\})", done.output)
    node = {"mode": "vgpu", "reboot_required": False}
    assert json.loads(told) == {"gpu_site": {"check": False, "nodes": {"gpu-a": node}}}


def test_unreadable_runtime_configuration_stops_all_hosts(books: Playbooks) -> None:
    config = books.cluster.root / "gpu-b/etc/containerd/config.toml"
    with broken(config):
        assert f"{config} cannot be read as TOML" in refusal(books, "gpu-b")
