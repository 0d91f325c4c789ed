# SPDX-License-Identifier: Apache-2.0
"""Playbooks on hosts that cannot be reached from some moment on, or that --limit leaves out. Roles do little here."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sim.cluster.apiserver import ApiServer, Authority
from sim.cluster.client import MERGE, Api, pod
from sim.cluster.store import Store

from .conftest import REPOSITORY, Run, play
from .test_migrate import DAEMONSET, daemonset

TOUCH = {"name": "Touch the host", "ansible.builtin.ping": {}}
NOTHING = {"name": "Touch nothing", "ansible.builtin.debug": {"msg": "done"}}


def keep(**facts: Any) -> dict[str, Any]:
    return {"name": "Keep facts", "ansible.builtin.set_fact": facts}


def gone(what: str) -> list[dict[str, Any]]:
    return [{"name": "Take it away", "ansible.builtin.debug": {"msg": f"{what} is gone"}}]


SERVES = keep(
    gpu_plugins_node_name="{{ inventory_hostname }}",
    gpu_plugins_node_state={"serves": "pgpu", "target": "pgpu", "switching": False, "cordoned": True},
    gpu_plugins_cluster_state={"exporter_found": False},
    gpu_plugins_turn={"switch_mode": "", "upgrade_driver": "", "rollout": ""},
)
OBSERVED = keep(
    driver_state={"loaded": "1", "installed": "1", "installs": False, "older": []},
    driver_reboot_required=False,
)
CHANGES = keep(gpu_plugins_rollout={"changes": ["DaemonSet plugin"]})
HELD = {
    "name": "Look for pods",
    "ansible.builtin.fail": {"msg": "pods hold GPUs"},
    "when": "inventory_hostname == holder | default('')",
}
WAIT = yaml.safe_load((REPOSITORY / "roles/gpu_plugins/tasks/wait.yml").read_text())
COUNT = [task for task in WAIT if not task.keys() & {"block", "ansible.builtin.include_tasks"}]
TASKS = {
    "gpu_plugins": {
        "preflight": [SERVES],
        "rollout_preflight": [keep(gpu_plugins_rollout_mode="pgpu")],
        "state": [keep(gpu_plugins_state={"nodes": {}, "pods": {}, "harm": []})],
        "install": [CHANGES],
        "renew": COUNT,
        "go_on": [NOTHING],
        "wait": COUNT,
        "rollback": [NOTHING],
        "validate": [TOUCH, keep(gpu_plugins_findings=[])],
        "uninstall": gone("plugin"),
        "uninstall_preflight": [HELD],
        **{name: [NOTHING] for name in ("drain", "configure", "mig_applied", "mps", "verify", "main")},
    },
    "scheduler": {
        "preflight": [TOUCH],
        "main": [NOTHING],
        "extender": [TOUCH, CHANGES],
        "rollback": [NOTHING],
        "uninstall": gone("scheduler"),
    },
    "dcgm_exporter": {"preflight": [NOTHING], "main": [NOTHING], "uninstall": gone("exporter")},
    "monitoring": {"preflight": [NOTHING], "main": [NOTHING], "uninstall": gone("monitoring")},
    "driver": {"preflight": [TOUCH, OBSERVED], "main": gone("the old driver"), "uninstall": gone("driver")},
    "container_runtime": {
        "preflight": [TOUCH],
        "main": [NOTHING],
        "validate": [TOUCH],
        "uninstall": gone("runtime"),
    },
}
CANARY = pytest.mark.parametrize("limit", ["gpu_nodes[0]", "gpu_nodes[0]:localhost"])


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("collections")
    collection = path / "ansible_collections/accel/kubernetes"
    collection.mkdir(parents=True)
    (collection / "plugins").symlink_to(REPOSITORY / "plugins")
    (collection / "roles/gpu_plugins").mkdir(parents=True)
    (collection / "roles/gpu_plugins/defaults").symlink_to(REPOSITORY / "roles/gpu_plugins/defaults")
    for role, files in TASKS.items():
        directory = collection / "roles" / role / "tasks"
        directory.mkdir(parents=True)
        for name, tasks in files.items():
            (directory / f"{name}.yml").write_text(yaml.safe_dump(tasks))
    return path


def run(roles: Path, book: str, gone: dict[str, str], *options: str, **extra: Any) -> Run:
    """Runs it with hosts that cannot be reached any more when something is so."""
    members = {"gpu_nodes": ("gpu-a", "gpu-b"), "kube_control_plane": ("control",)}
    groups = {
        group: {
            "hosts": {
                name: {"ansible_connection": f"{{{{ 'ssh' if {gone.get(name, 'false')} else 'local' }}}}"}
                for name in names
            }
        }
        for group, names in members.items()
    }
    variables = {
        "ansible_host": "127.0.0.1",
        "ansible_port": 1,
        "ansible_become": False,
        "ansible_python_interpreter": sys.executable,
        "gpu_plugins_host_root": str(roles),
        "gpu_plugins_node_name": "{{ inventory_hostname }}",
        "rollout_soak": 0,
    }
    inventory = roles / "inventory.yml"
    inventory.write_text(yaml.safe_dump({"all": {"vars": variables, "hosts": {"web": {}}, "children": groups}}))
    return play(roles, str(REPOSITORY / "playbooks" / f"{book}.yml"), "-i", str(inventory), *options, **extra)


@pytest.fixture(autouse=True)
def stats(monkeypatch: pytest.MonkeyPatch) -> None:
    """What set_stats keeps is printed."""
    monkeypatch.setenv("ANSIBLE_SHOW_CUSTOM_STATS", "true")


@pytest.mark.parametrize(
    ("host", "since"),
    [
        pytest.param("control", "hostvars['gpu-a'].rollout_before is defined", marks=pytest.mark.full),
        ("gpu-a", "rollout_plugin_changes is defined"),
        pytest.param("gpu-a", "rollout_renewed is defined", marks=pytest.mark.full),
    ],
    ids=["extender", "first", "rest"],
)
def test_a_rollout_that_cannot_reach_a_host_any_more_is_undone(roles: Path, host: str, since: str) -> None:
    done = run(roles, "rollout", {host: since})
    assert done.code != 0, done.output
    assert "could not be reached" in done.messages, done.output
    assert '"result": "undone"' in done.output
    assert "The previous version is restored" in done.messages
    assert ("every node serves with it" in done.messages) == (host == "control")
    assert "every node serves as before" not in done.messages


@pytest.mark.parametrize(
    ("limit", "left_out"),
    [
        ("web", "control, gpu-a, gpu-b, localhost"),
        ("control", "gpu-a, gpu-b, localhost"),
        ("control,localhost", "gpu-a, gpu-b"),
        ("gpu_nodes,localhost", "control"),
    ],
)
def test_a_rollout_of_a_part_is_refused_before_anything(roles: Path, limit: str, left_out: str) -> None:
    done = run(roles, "rollout", {}, "--limit", limit)
    assert done.code != 0, done.output
    assert f"--limit leaves out {left_out}; remove --limit" in done.messages
    assert "Touch the host" not in done.output


@pytest.mark.full
def test_rollout_is_unfinished_while_its_extender_has_notes(roles: Path) -> None:
    done = run(roles, "rollout", {"control": "hostvars['gpu-a'].rollout_over is defined"})
    assert done.code != 0, done.output
    assert "The rollout was interrupted" in done.messages, done.output
    assert '"result": "unfinished"' in done.output


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    """The kubeconfig of an API server that knows the GPU nodes."""
    server = ApiServer(Store(), Authority(), lambda pod, container: tmp_path / "none")
    server.start()
    try:
        path = tmp_path / "admin.conf"
        path.write_text(server.kubeconfig("kubernetes-admin", server.admin_token))
        api = Api(path)
        for name in ("default", "kube-system"):
            api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for name in ("gpu-a", "gpu-b"):
            head = {"name": name, "labels": {"nvidia.com/gpu.present": "true"}}
            api.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": head})
            status = {"status": {"allocatable": {"nvidia.com/gpu": "1"}}}
            api.call("PATCH", f"/api/v1/nodes/{name}/status", status, MERGE)
        yield path
    finally:
        server.stop()


@pytest.fixture
def cluster(kubeconfig: Path) -> dict[str, str]:
    """What validate asks of controller and cluster, and has."""
    return {"gpu_plugins_kubeconfig": str(kubeconfig), "gpu_plugins_image": "registry.example.com/kube-accel:1"}


def test_validate_has_a_row_for_each_host_that_cannot_be_reached(roles: Path, cluster: dict[str, str]) -> None:
    done = run(roles, "validate", {"control": "true", "gpu-b": "true"}, **cluster)
    assert done.code != 0, done.output
    for host in ("control", "gpu-b"):
        assert f"{host}: blocked: host: It cannot be reached: " in done.output
    assert "gpu-a: ok: container runtime: It is configured." in done.output
    assert "gpu-a: blocked" not in done.output


def test_validate_has_a_row_for_a_host_that_is_lost_on_the_way(roles: Path, cluster: dict[str, str]) -> None:
    done = run(roles, "validate", {"gpu-b": "ansible_facts.distribution is defined"}, "--limit", "gpu_nodes", **cluster)
    assert done.code != 0, done.output
    assert "gpu-b: blocked: host: It could not be checked." in done.output
    assert "gpu-a: ok: container runtime: It is configured." in done.output


@CANARY
def test_validate_of_some_hosts_says_nothing_of_others(roles: Path, cluster: dict[str, str], limit: str) -> None:
    done = run(roles, "validate", {}, "--limit", limit, **cluster)
    assert done.code == 0, done.output
    assert '"gpu_validation": [' in done.output
    assert "nothing is wrong" in done.output
    assert "gpu-a: ok: container runtime: It is configured." in done.output
    assert not re.search('"(control|gpu-b): ', done.output)


@CANARY
def test_validate_of_some_hosts_fails_if_one_is_blocked(roles: Path, cluster: dict[str, str], limit: str) -> None:
    done = run(roles, "validate", {"gpu-a": "true"}, "--limit", limit, **cluster)
    assert done.code != 0, done.output
    assert "gpu-a: blocked: host: It cannot be reached: " in done.output
    assert '"gpu_validation": [' in done.output


@CANARY
@pytest.mark.parametrize(
    ("book", "result", "said"),
    [
        ("upgrade_driver", "upgraded_drivers", "gpu-a: 1, now "),
        ("switch_mode", "switched_modes", "gpu-a: pgpu, now pgpu"),
    ],
)
def test_what_became_of_some_nodes_is_told(roles: Path, book: str, result: str, said: str, limit: str) -> None:
    done = run(roles, book, {}, "--limit", limit)
    assert done.code == 0, done.output
    assert said in done.output
    assert re.search(rf'"{result}": {{\s*"gpu-a": {{', done.output), done.output
    assert "gpu-b" not in done.output


@pytest.mark.parametrize("book", ["validate", "upgrade_driver", "switch_mode", "migrate"])
def test_a_run_that_is_left_no_host_is_refused(roles: Path, book: str) -> None:
    done = run(roles, book, {}, "--limit", "web")
    assert done.code != 0, done.output
    assert "--limit web leaves out every host of" in done.messages
    done = play(roles, str(REPOSITORY / "playbooks" / f"{book}.yml"), "-i", "gpu-a,", ansible_connection="local")
    assert done.code != 0, done.output
    assert "The inventory has no host in" in done.messages


def test_limited_run_returns_a_node_of_a_failed_migration(roles: Path, kubeconfig: Path) -> None:
    api = Api(kubeconfig)
    api.create("/apis/apps/v1/namespaces/default/daemonsets", daemonset())
    given = {"gpu_plugins_kubeconfig": str(kubeconfig)}
    done = run(roles, "migrate", {}, "--limit", "gpu-a", **given)
    assert done.code == 0, done.output
    assert api.get(DAEMONSET)["spec"]["updateStrategy"] == {"type": "OnDelete"}
    back = run(roles, "migrate", {}, "--limit", "gpu-a", **given, migrate_back=True)
    assert back.code == 0, back.output
    assert api.get(DAEMONSET)["spec"] == daemonset()["spec"]
    assert "gpu-a: served by another plugin" in back.output
    assert '"gpu_migration": {' in back.output


def test_nodes_that_serve_on_keep_what_is_the_clusters(roles: Path, kubeconfig: Path) -> None:
    api = Api(kubeconfig)

    def uninstall(*options: str) -> tuple[list[str], list[str]]:
        """What the cluster lost, and the nodes that did."""
        given = {"gpu_plugins_kubeconfig": str(kubeconfig), "scheduler_layout": "secondary"}
        done = run(roles, "uninstall", {}, "--tags", "gpu_plugins,monitoring,scheduler", *options, **given)
        assert done.code == 0, done.output
        (nodes,) = re.findall(r'"nodes": \[(.*?)\]', done.output, re.DOTALL)
        gone = dict.fromkeys(re.findall(r"(monitoring|exporter|scheduler) is gone", done.output))
        return [*gone], re.findall(r'"(\S+)"', nodes)

    def serves(name: str, mode: str | None) -> None:
        path = f"/api/v1/nodes/{name}"
        assert api.call("PATCH", path, {"metadata": {"labels": {"nvidia-device-enable": mode}}}, MERGE)[0] == 200

    serves("gpu-a", "pgpu")
    serves("gpu-b", "vgpu")
    assert uninstall("--limit", "gpu-a,localhost") == ([], ["gpu-a"])
    assert uninstall("--limit", "gpu-a") == ([], ["gpu-a"])
    assert uninstall("--limit", "gpu_nodes,localhost") == (["monitoring", "exporter", "scheduler"], ["gpu-a", "gpu-b"])
    serves("gpu-a", None)
    assert uninstall("--limit", "gpu-b,localhost") == (["monitoring", "exporter", "scheduler"], ["gpu-b"])


@pytest.mark.parametrize("tag", ["container_runtime", "driver"])
def test_no_part_of_a_node_is_taken_from_under_its_pods(roles: Path, tag: str) -> None:
    held = run(roles, "uninstall", {}, "--tags", tag, driver_uninstall=True, holder="gpu-b")
    assert held.code != 0, held.output
    assert "pods hold GPUs" in held.messages
    assert "is gone" not in held.output
    done = run(roles, "uninstall", {}, "--tags", tag, driver_uninstall=True)
    assert done.code == 0, done.output
    assert "is gone" in done.output
    assert f'"driver": {str(tag == "driver").lower()}' in done.output


@pytest.mark.parametrize(
    ("options", "given", "refused"),
    [
        ((), {}, True),
        (("--tags", "driver_install"), {}, True),
        (("--tags", "gpu_plugins"), {}, False),
        ((), {"held": False}, False),
        ((), {"driver_state": {"installed": "1", "installs": False}}, False),
        ((), {"driver_state": {"installed": "", "installs": True}}, False),
    ],
)
def test_a_site_replaces_no_driver_under_pods(
    roles: Path, kubeconfig: Path, options: tuple[str, ...], given: dict[str, Any], refused: bool
) -> None:
    held = {"resources": {"limits": {"nvidia.com/gpu": "1"}}} if given.get("held", True) else {}
    Api(kubeconfig).create("/api/v1/namespaces/default/pods", pod("train", container=held, nodeName="gpu-a"))
    serves = {"driver_state": {"installed": "1", "installs": True}, "scheduler_layout": "none"}
    accel = {"accel_nvml": {"available": False}}
    known = {"gpu_plugins_kubeconfig": str(kubeconfig), "ansible_facts": accel}
    done = run(roles, "site", {}, *options, **known, **serves | given)
    assert (done.code != 0) == refused, done.output
    said = "these pods hold its GPUs: default/train. Run upgrade_driver.yml"
    assert (said in done.messages) == refused, done.output
    if refused:
        assert "is gone" not in done.output
