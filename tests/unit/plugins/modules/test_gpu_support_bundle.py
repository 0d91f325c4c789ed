# SPDX-License-Identifier: Apache-2.0
"""Module gpu_support_bundle against an API server whose every object and log has secrets of every kind."""

from __future__ import annotations

import json
import stat
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sim.cluster.apiserver import ApiServer, Authority
from sim.cluster.store import Store
from unit.plugins.module_utils.diagnosis.test_redaction import SECRETS
from unit.plugins.module_utils.diagnosis.test_verdict import TORCH, daemon, extender
from unit.plugins.module_utils.shared.test_gpu_view import SHARE, TRAIN, node, plugin, pod
from unit.plugins.modules.test_gpu_diagnose_info import create_pod

Bundle = Callable[..., dict[str, Any]]

ALL = "\n".join(text for text, _ in SECRETS.values())
OURS = {"app.kubernetes.io/managed-by": "accel.kubernetes"}
PLAIN = "correcthorse17battery"
"""Looks like nothing, and stands in a variable with a harmless name, and in a log."""


def marked(metadata: dict[str, Any]) -> None:
    """Annotations with every kind of secret, by names that say so and by names that do not."""
    notes = {f"example.com/note-{number}": text for number, (text, _) in enumerate(SECRETS.values())}
    metadata["annotations"] = {
        **metadata.get("annotations", {}),
        **notes,
        "example.com/api-token": "annotated-value",
        "kubectl.kubernetes.io/last-applied-configuration": json.dumps(
            {"env": [{"name": "X", "value": "applied-value"}]}
        ),
    }


def planted(item: dict[str, Any]) -> dict[str, Any]:
    """The pod with secrets wherever one may be written."""
    marked(item["metadata"])
    container = item["spec"]["containers"][0]
    container["env"] = [
        {"name": "DB_PASSWORD", "value": "from-env-1"},
        {"name": "HARMLESS", "value": PLAIN},
        {"name": "SHORT", "value": "abc"},
        {"name": "CUDA_VERSION", "value": "12.4.1"},
        {"name": "REFERRED", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}},
        *({"name": f"V{number}", "value": text} for number, (text, _) in enumerate(SECRETS.values())),
    ]
    container["args"] = ["--port", "1", "--api-key", "argument-value", "--token=argument-value-2"]
    item["spec"]["initContainers"] = [{"name": "first", "image": "i", "env": [{"name": "PW", "value": "init-value"}]}]
    return item


LEAKS = [secret for _, secret in SECRETS.values()] + [
    *("annotated-value", "applied-value", "from-env-1", PLAIN, "init-value", "argument-value", "in-config-map"),
    *("in-yaml-value", "never-read", "in-an-event"),
]


class Page(BaseHTTPRequestHandler):
    """A plugin's metrics, with a label that somebody gave a secret, and how often they were asked for."""

    scrapes = 0

    def do_GET(self) -> None:
        type(self).scrapes += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'accel_build_info{node="a",version="0.1.0"} 1\nx{url="postgres://bob:p@ss@db/x"} 1\n')

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture
def metrics() -> Iterator[int]:
    Page.scrapes = 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@pytest.fixture
def store(metrics: int) -> Store:
    store = Store()
    for name in ("team", "default", "kube-system"):
        store.create("namespaces", "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    for name in ("a", "b"):
        item = node(name, {0: (TRAIN,)})
        marked(item["metadata"])
        store.create("nodes", "", {"apiVersion": "v1", "kind": "Node", **item})
    store.create("nodes", "", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "control"}, "status": {}})
    create_pod(store, "team", planted(pod("train", SHARE, "a")))
    create_pod(store, "team", pod("late", SHARE))
    for item in (plugin("a", port=metrics), plugin("b", port=1)):
        create_pod(store, "kube-system", daemon(planted(item), podIP="127.0.0.1"))
    create_pod(store, "kube-system", planted(extender()))
    data = {"config.yaml": f"password: in-yaml-value\nkept: yes\n{ALL}", "db-password": "in-config-map", "kept": "this"}
    head = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kube-accel-configs", "labels": OURS}}
    store.create("configmaps", "kube-system", head | {"data": data})
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs"}, "data": {"a": "not-ours"}}
    store.create("configmaps", "kube-system", theirs)
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "db", "labels": OURS},
        "data": {"x": "never-read"},
    }
    store.create("secrets", "kube-system", secret)
    labels = {"app": "x"}
    template = {"metadata": {"labels": labels}, "spec": planted(plugin("x"))["spec"]}
    workload = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "gpu-manager-daemonset", "labels": OURS},
    }
    marked(workload["metadata"])
    store.create(
        "daemonsets", "kube-system", workload | {"spec": {"selector": {"matchLabels": labels}, "template": template}}
    )
    store.record("team", store.get("pods", "team", "train"), "Failed", "pull failed: password=in-an-event", "kubelet")
    return store


@pytest.fixture
def collect(store: Store, tmp_path: Path, run_module: Callable[..., dict[str, Any]]) -> Iterator[Bundle]:
    (tmp_path / "pod.log").write_text(f"{TORCH}\n{ALL}\nusing {PLAIN}\nlast line\n")
    server = ApiServer(store, Authority(), lambda pod, container: tmp_path / "pod.log")
    server.start()
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(server.kubeconfig("admin", server.admin_token))
    options = {"kubeconfig": str(kubeconfig), "path": str(tmp_path / "support.tar.gz")}

    def run(check: bool = False, **more: Any) -> dict[str, Any]:
        return run_module("gpu_support_bundle", options | more, check=check)

    yield run
    server.stop()


def unpacked(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        found = {}
        for member in archive.getmembers():
            file = archive.extractfile(member)
            assert file is not None
            assert (member.mode, member.mtime, member.uid) == (0o600, 0, 0)
            found[member.name.removeprefix("gpu-support-bundle/")] = file.read().decode()
        return found


@pytest.mark.attack
def test_no_secret_of_any_kind_is_in_it_wherever_it_stood(collect: Bundle, tmp_path: Path, store: Store) -> None:
    for name in ("team", "kube-system"):
        assert any(secret in json.dumps(store.all("pods", name)) for secret in LEAKS)
    done = collect(pod={"namespace": "team", "name": "train"})
    assert "msg" not in done, done
    files = unpacked(tmp_path / "support.tar.gz")
    leaked = [(name, secret) for name, text in files.items() for secret in LEAKS if secret in text]
    assert leaked == []
    assert not any("secret" in name.lower() for name in files)
    assert "not-ours" not in "".join(files.values())


def test_what_helps_is_in_it(collect: Bundle, tmp_path: Path) -> None:
    done = collect(pod={"namespace": "team", "name": "train"})
    files = unpacked(tmp_path / "support.tar.gz")
    assert set(done["contents"]) | {"manifest.json"} == set(files)
    assert set(files) >= {
        *("diagnosis.json", "diagnosis.txt", "inspection.json", "versions.json", "events.json", "metrics/a.prom"),
        *("nodes/a.json", "objects/DaemonSet_kube-system_gpu-manager-daemonset.json"),
        *("objects/ConfigMap_kube-system_kube-accel-configs.json", "pods/team_train.json"),
        *(
            "pods/kube-system_kube-accel-extender-1.json",
            "logs/team_train_main.log",
            "logs/kube-system_plugin-a_main.log",
        ),
    }
    assert "nodes/b.json" not in files
    assert "pods/kube-system_plugin-b.json" not in files
    assert "quota_oom" in files["diagnosis.txt"]
    inspection, versions = json.loads(files["inspection.json"]), json.loads(files["versions.json"])
    assert [node["name"] for node in inspection["nodes"]] == ["a"], "other nodes and their tenants are not its business"
    assert inspection["waiting"] == []
    assert set(versions["nodes"]) == {"a"}
    assert "plugin-b" not in files["versions.json"]
    assert versions["api_server"].startswith("v1.")
    assert "last line" in files["logs/team_train_main.log"]
    assert "accel_build_info" in files["metrics/a.prom"]
    assert Page.scrapes == 1, "the diagnosis asked for it, which is enough"
    assert "pull failed" in files["events.json"]
    shown = json.loads(files["pods/team_train.json"])
    variables = {entry["name"]: entry.get("value") for entry in shown["spec"]["containers"][0]["env"]}
    assert variables["CUDA_VERSION"] == "12.4.1"
    assert variables["SHORT"] == "[redacted]"
    assert shown["spec"]["containers"][0]["resources"]["limits"] == SHARE
    config = json.loads(files["objects/ConfigMap_kube-system_kube-accel-configs.json"])["data"]
    assert config["kept"] == "this"
    assert "kept: yes" in config["config.yaml"]
    manifest = json.loads(files["manifest.json"])
    assert {entry["path"] for entry in manifest["contents"]} == set(done["contents"])


def test_cluster_bundle_has_all_nodes_and_names_the_gaps(collect: Bundle, tmp_path: Path) -> None:
    done = collect()
    files = unpacked(tmp_path / "support.tar.gz")
    assert {"nodes/a.json", "nodes/b.json", "metrics/a.prom"} <= set(files)
    assert not done["complete"]
    [problem] = done["problems"]
    assert problem.startswith("node b: metrics of its plugin: ")
    assert json.loads(files["manifest.json"])["problems"] == [problem]


def test_bundle_is_private_reproducible_and_atomic(collect: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "support.tar.gz"
    assert collect(check=True)["changed"]
    assert not path.exists()
    path.write_text("what was there")
    path.chmod(0o644)
    assert collect()["changed"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first = path.read_bytes()
    assert not collect()["changed"]
    assert path.read_bytes() == first
    path.chmod(0o640)
    assert collect()["changed"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not list(tmp_path.glob(".gpu-support*"))


@pytest.mark.parametrize(("path", "why"), [("/none/x.tar.gz", "No such file"), ("/tmp", "directory")])
def test_a_place_that_cannot_be_written_is_named(collect: Bundle, path: str, why: str) -> None:
    done = collect(path=path)
    assert done["failed"]
    assert f"{path} cannot be written" in done["msg"]
    assert why in done["msg"]
