# SPDX-License-Identifier: Apache-2.0
"""What others wrote into nodes, pods and metrics, as the shipped commands, playbooks and files show it."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from collection import COLLECTIONS
from kube_accel.metrics.exposition import labels_text, number
from playbooks.conftest import Run, play
from sim.cluster.apiserver import ApiServer, Authority
from sim.cluster.store import Store
from unit.plugins.module_utils.shared.test_gpu_view import SHARE, TRAIN, node, plugin, pod
from unit.plugins.usage_data import GIB, H100, Node, share

pytestmark = pytest.mark.attack

INVENTORY, TAINT = "kube-accel.io/inventory", "kube-accel.io/taint"
STARTS = ("=cmd|'/c calc'!A1", "+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "a;=1")
"""What a spreadsheet takes for a formula."""
ORDERS = (
    "\x1b[2J\x1b]0;owned\x07\x9b31m\x00\x7f\b\r\nPLAY RECAP\x85\u2028fatal: [host]\u202egnp\u2066x\u2069a\u200bb\ufeff"
    "<script>alert(1)</script><img src=x onerror=alert(1)>\"onmouseover='x'&amp;[a](javascript:x)`|{{ 7 * 191 }}"
)
EVIL = tuple(f"{start}{ORDERS}" for start in STARTS)
HUGE = "x" * 100_000
UNREADABLE = {
    "words": f"not JSON {ORDERS}",
    "list": "[1, 2]",
    "numbers": '{"version": 1, "mode": "vgpu", "gpus": [{"memoryBytes": NaN}]}',
    "endless": '{"version": 1, "mode": "vgpu", "gpus": [{"uuid": "GPU-1", "memoryBytes": 1e999}]}',
    "digits": f'{{"version": {"9" * 5000}}}',
    "twice": '{"version": 1, "version": 1, "mode": "vgpu", "gpus": []}',
    "deep": '{"version": 1, "gpus": ' + "[" * 100_000,
    "types": '{"version": 1, "mode": ["\\u001b[2J"], "gpus": {}}',
    "nul": '{"version": 1, "mode": "\\u0000", "gpus": []}',
    "huge": json.dumps({"version": 1, "mode": HUGE, "gpus": []}),
}
"""Annotations of nodes, by the name of the node."""


def harmful(text: str) -> list[str]:
    """Letters that a terminal obeys, or that hide or turn what stands beside them."""
    return sorted({ascii(letter) for letter in text if letter != "\n" and not letter.isprintable()})


def formulas(text: str) -> list[str]:
    """Cells of CSV that a spreadsheet computes."""
    cells = (cell.strip() for row in csv.reader(io.StringIO(text)) for cell in row)
    return [cell for cell in cells if any(part.strip()[:1] in ("=", "+", "-", "@") for part in cell.split(";"))]


def evil_node(name: str, text: str) -> dict[str, Any]:
    """A node of which every text is this one that may be."""
    found = node(name, {0: (TRAIN,)}, bad=text, conditions=[])
    said = json.loads(found["metadata"]["annotations"][INVENTORY])
    for gpu in said["gpus"]:
        gpu |= {"model": text} | ({"reason": text} if "reason" in gpu else {})
    found["metadata"]["annotations"] |= {INVENTORY: json.dumps(said), TAINT: text, "x/y": text + HUGE}
    found["status"]["conditions"] = [
        {"type": "Ready", "status": "Unknown", "reason": text, "message": text},
        {"type": "GpusHealthy", "status": "False", "reason": text, "message": text},
    ]
    return found


def evil_pod(name: str, text: str, node: str) -> dict[str, Any]:
    """A pod whose status and annotations say this."""
    waiting, ended = {"reason": text, "message": text + HUGE}, {"exitCode": 1, "reason": text, "message": text}
    found = pod(name, SHARE, node, containerStatuses=[{"name": "main", "state": {"waiting": waiting}}])
    found["status"]["containerStatuses"][0]["lastState"] = {"terminated": ended}
    found["status"]["containerStatuses"][0] |= {"ready": False, "restartCount": 3}
    found["status"] |= {"reason": text, "message": text}
    said = {"version": 1, "node": node, "containers": {"main": [{"uuid": f"GPU-{node}-0"}]}, "why": {"main": text}}
    found["metadata"]["annotations"] = {"kube-accel.io/assignment": json.dumps(said), "x/y": text}
    return found


def world() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Nodes and pods: good ones, evil ones, and nodes whose annotation cannot be read."""
    nodes = [node("good", {0: (TRAIN,)}), *(evil_node(f"evil-{count}", text) for count, text in enumerate(EVIL))]
    for name, text in UNREADABLE.items():
        nodes.append(node(name, {}))
        nodes[-1]["metadata"]["annotations"] = {INVENTORY: text, TAINT: text}
    pods = [evil_pod(f"evil-{count}", text, "good" if count else "evil-0") for count, text in enumerate(EVIL)]
    refused = {"type": "PodScheduled", "status": "False", "reason": EVIL[0], "message": EVIL[0]}
    return nodes, [*pods, pod("late", SHARE, conditions=[refused]), pod("train", SHARE, "good", phase="Running")]


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tells of the world, and of names and labels that no API server would let in."""
    command = tmp_path_factory.mktemp("kubectl") / "kubectl"
    nodes, pods = world()
    for count, text in enumerate(EVIL):
        nodes[1 + count]["metadata"] |= {"name": f"{text}{count}", "labels": {"nvidia-device-enable": text, text: text}}
        pods[count]["metadata"] |= {"name": f"{text}\ud800", "namespace": text, "labels": {text: text}}
    for name, items in (("nodes", nodes), ("pods", [*pods, plugin("good")])):
        command.with_name(name).write_text(json.dumps({"items": items}))
    command.write_text('#!/bin/sh\nfor word; do case "$word" in nodes|pods) exec cat "${0%/*}/$word";; esac; done\n')
    command.chmod(0o755)
    return command


@pytest.mark.parametrize("output", ["table", "wide", "details", "csv", "json"])
def test_inspect_shows_hostile_text_that_no_terminal_obeys(kubectl: Path, output: str) -> None:
    command = [sys.executable, "-m", "kube_accel.cli.main", "inspect", f"--kubectl={kubectl}", "-o", output]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert done.returncode == 3, done.stderr
    text = done.stdout.decode()
    assert harmful(text) == []
    assert harmful(done.stderr.decode()) == []
    assert max(map(len, text.splitlines())) < 4000 or output == "json"
    assert "8/104" in text or "8589934592" in text or "train" in text
    if output == "csv":
        assert formulas(text) == []
        assert len({len(row) for row in csv.reader(io.StringIO(text))}) == 1
    if output in ("table", "wide"):
        assert all(f"node {name}: annotation {INVENTORY} cannot be read" in text for name in UNREADABLE)
        assert len(text.splitlines()) < 20 + 2 * len(EVIL) * 2 + 2 * len(UNREADABLE)


def test_what_kubectl_says_is_one_harmless_line(tmp_path: Path) -> None:
    command = tmp_path / "kubectl"
    command.write_text("#!/bin/sh\nprintf '\\033[2J\\233\\342\\200\\256no\\nPLAY RECAP\\n' >&2\nexit 1\n")
    command.chmod(0o755)
    inspect = [sys.executable, "-m", "kube_accel.cli.main", "inspect", f"--kubectl={command}"]
    done = subprocess.run(inspect, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert harmful(done.stderr) == []
    assert done.stderr.count("\n") == 1


ODD_NODES: dict[str, dict[str, Any]] = {
    "labels": {"metadata": {"name": f"bad{ORDERS}", "labels": ["a"]}},
    "metadata": {"metadata": 5},
    "nothing": {"metadata": {"name": "bad"}, "status": 5},
    "addresses": {"status": {"addresses": 5}},
    "address": {"status": {"addresses": ["x"]}},
    "address of a list": {"status": {"addresses": [{"type": ["x"], "address": "y"}]}},
    "conditions": {"status": {"conditions": ["x"]}},
    "condition": {"status": {"conditions": [{"type": "Ready"}]}},
}
ODD_PODS: dict[str, dict[str, Any]] = {
    "labels": {"metadata": {"name": f"bad{ORDERS}", "namespace": "team", "labels": ["a"]}},
    "no name": {"metadata": {}},
    "containers": {"spec": {"containers": 5}},
    "container": {"spec": {"containers": [5]}},
    "command": {"spec": {"nodeName": "good", "containers": [{"name": "main", "command": 5}]}},
    "limits": {"spec": {"containers": [{"name": "main", "resources": {"limits": ["x"]}}]}},
    "statuses": {"status": {"phase": "Pending", "containerStatuses": ["x"]}},
    "state": {
        **pod("bad", SHARE, "good"),
        "status": {"phase": "Pending", "containerStatuses": [{"name": "main", "state": {"waiting": "x"}}]},
    },
    "conditions": {"status": {"conditions": ["x"]}},
}


@pytest.mark.parametrize(
    ("kind", "odd"),
    [
        *(pytest.param("node", node("bad", {}) | odd, id=f"node {name}") for name, odd in ODD_NODES.items()),
        *(pytest.param("pod", pod("bad", SHARE) | odd, id=f"pod {name}") for name, odd in ODD_PODS.items()),
        pytest.param("pod", {**plugin("bad"), "status": {"conditions": ["x"]}}, id="plugin"),
        pytest.param("pod", 5, id="number"),
    ],
)
def test_impossible_object_is_named_and_the_others_are_shown(tmp_path: Path, kind: str, odd: dict[str, Any]) -> None:
    command = tmp_path / "kubectl"
    items: dict[str, list[Any]] = {"node": [node("good", {0: (TRAIN,)})], "pod": [plugin("good")]}
    items[kind].insert(0, odd)
    for name, found in items.items():
        command.with_name(f"{name}s").write_text(json.dumps({"items": found}))
    command.write_text('#!/bin/sh\nfor word; do case "$word" in nodes|pods) exec cat "${0%/*}/$word";; esac; done\n')
    command.chmod(0o755)
    inspect = [sys.executable, "-m", "kube_accel.cli.main", "inspect", f"--kubectl={command}", "--used"]
    done = subprocess.run(inspect, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    assert "8/80" in done.stdout
    assert re.search(rf"NOT KNOWN: {kind} .*cannot be read: ", done.stdout), done.stdout
    assert harmful(done.stdout) == []


DAEMON = """
import logging, sys, threading
from kube_accel import logs

logs.configure("info")
evil = sys.stdin.read()
extra = {"reason": evil, "found": [{evil: (evil,)}], "path": KeyError(evil)}
logging.getLogger("a").warning("said %s", evil, extra=extra)

def fail():
    raise ValueError(evil)

thread = threading.Thread(target=fail)
thread.start()
thread.join()
fail()
"""


def test_daemon_logs_and_uncaught_errors_are_harmless_lines() -> None:
    command = [sys.executable, "-X", "utf8", "-c", DAEMON]
    done = subprocess.run(command, input=EVIL[0] + HUGE, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["level"] for line in lines] == ["warning", "critical", "critical"]
    assert len(done.stderr) < 100_000
    for text in (done.stderr, *(str(value) for line in lines for value in line.values())):
        assert harmful(text) == []


# --- playbooks --------------------------------------------------------------------------------------------------------


def page() -> str:
    """What a plugin says on /metrics, with evil texts in every label that others choose."""
    machine = Node("good", {f"g{count}": H100._replace(name=text) for count, text in enumerate(EVIL)})
    machine.at(1_763_769_600, *(share(f"g{count}", text, text, 0.5, GIB) for count, text in enumerate(EVIL)))
    told = machine.told(1_763_769_600 + 3600)
    return "".join(
        f"{family.name}{labels_text(list(zip(family.labels, values, strict=True)))} {number(value)}\n"
        for family, series in told
        for values, value in series.items()
    )


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An API server with the world, and a plugin that says what ``page`` has."""

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(page().encode())

        def log_message(self, *args: object) -> None:
            """Nobody reads it."""

    path, store = tmp_path_factory.mktemp("cluster"), Store()
    with ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as metrics:
        threading.Thread(target=metrics.serve_forever, daemon=True).start()
        nodes, pods = world()
        serving = plugin("good", port=metrics.server_port)
        serving["status"] |= {"podIP": "127.0.0.1"}
        for name in ("kube-system", "team"):
            store.create("namespaces", "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for kind, items in (("nodes", nodes), ("pods", [*pods, serving])):
            for item in items:
                namespace, name = item["metadata"].get("namespace", ""), item["metadata"]["name"]
                store.create(kind, namespace, {"apiVersion": "v1", "kind": kind.title()[:-1], **item})
                store.edit(kind, namespace, name, lambda body, item=item: body.update(status=item["status"]))
        for count, text in enumerate(EVIL):
            about = {"kind": "Pod", "namespace": "team", "name": f"evil-{count}"}
            event = {"involvedObject": about, "reason": text, "message": text, "type": "Warning"}
            metadata = {"name": f"e{count}", "namespace": "team"}
            store.create("events", "team", {"apiVersion": "v1", "kind": "Event", "metadata": metadata, **event})
        metadata: dict[str, Any] = {"name": "nvidia-device-plugin", "namespace": "kube-system"}
        metadata["annotations"] = {"meta.helm.sh/release-name": EVIL[0], "kube-accel.io/before-migration": EVIL[1]}
        flag = EVIL[3].replace("\n", "")
        volumes = [{"name": "p", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}}]
        container = {
            "name": "c",
            "image": "nvcr.io/nvidia/k8s-device-plugin:1",
            "args": [EVIL[2], f"--mig-strategy={flag}"],
        }
        template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container], "volumes": volumes}}
        spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
        other = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": spec}
        store.create("daemonsets", "kube-system", other)
        path.joinpath("log").write_text("\n".join(f"RuntimeError: CUDA out of memory {text}" for text in EVIL))
        server = ApiServer(store, Authority(), lambda pod, container: path / "log")
        server.start()
        found = path / "kubeconfig"
        found.write_text(server.kubeconfig("admin", server.admin_token))
        yield found
        server.stop()
        metrics.shutdown()


Play = Callable[..., Run]


@pytest.fixture
def run(kubeconfig: Path, tmp_path: Path) -> Play:
    def run(book: str | list[dict[str, Any]], **variables: Any) -> Run:
        if not isinstance(book, str):
            written = tmp_path / "play.yml"
            written.write_text(yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "tasks": book}]))
            book = str(written)
        done = play(COLLECTIONS, book, gpu_plugins_kubeconfig=str(kubeconfig), **variables)
        assert harmful(done.output) == []
        # Ansible writes in this way what a module did not make harmless.
        assert re.findall(r"\\u00[0189][0-9a-f]|\\u007f", done.output) == []
        assert "Traceback" not in done.output
        return done

    return run


def test_inspect_shows_readable_nodes_and_names_the_others(run: Play) -> None:
    done = run("accel.kubernetes.inspect", inspect_used=False)
    assert "8/104" in done.output
    for name in UNREADABLE:
        assert f"NOT KNOWN: node {name}: annotation {INVENTORY} cannot be read" in done.output


def test_diagnose_and_a_support_bundle_are_harmless(run: Play, tmp_path: Path) -> None:
    path = tmp_path / "support.tar.gz"
    done = run("accel.kubernetes.diagnose", diagnose_pod="team/evil-1", diagnose_bundle=str(path))
    assert done.code == 0, done.output
    assert "CUDA out of memory" in done.output
    with tarfile.open(path) as archive:
        files = {entry.name: archive.extractfile(entry).read().decode() for entry in archive}  # type: ignore[union-attr]
    assert any("CUDA out of memory" in text for name, text in files.items() if name.endswith(".log"))
    assert {name: harmful(text) for name, text in files.items() if harmful(text)} == {}
    assert all(harmful(name) == [] for name in files)
    for name, text in files.items():
        if name.endswith(".json"):
            json.loads(text)


def test_diagnosis_goes_on_over_unreadable_nodes(run: Play) -> None:
    done = run("accel.kubernetes.diagnose")
    assert done.code == 0, done.output
    for name in ("evil-0", *UNREADABLE):
        assert re.search(rf"\d\. node {name}\b", done.output), name


def test_a_report_is_harmless_as_table_csv_html_and_json(run: Play, tmp_path: Path) -> None:
    files = {form: tmp_path / f"report.{form}" for form in ("html", "csv", "json")}
    done = run("accel.kubernetes.report", **{f"report_{form}": str(path) for form, path in files.items()})
    assert "GPU-hours" in done.output
    text = {form: path.read_text() for form, path in files.items()}
    assert {form: harmful(found) for form, found in text.items()} == {"html": [], "csv": [], "json": []}
    assert text["csv"].count("\n") > len(EVIL)
    assert formulas(text["csv"]) == []
    seen: set[str] = set()

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            seen.update((tag, *(name for name, _ in attrs)))

    Reader().feed(text["html"])
    assert not {"script", "img", "onerror", "onmouseover", "iframe"} & seen
    assert "alert(1)" in text["html"]


def test_rollout_looks_at_all_nodes_and_names_unreadable_ones(run: Play) -> None:
    """No play ends because of a node's annotation: what is wrong with it is said, and the rest is told."""
    role = {"name": "accel.kubernetes.gpu_plugins", "tasks_from": "state"}
    show = "{{ gpu_plugins_state.nodes | dict2items | map(attribute='key') | list }}"
    healthy = "good has {{ gpu_plugins_state.nodes.good.healthy }}, {{ gpu_plugins_state.nodes['evil-0'].bad }}"
    tasks = [
        {"ansible.builtin.include_role": role},
        *({"ansible.builtin.debug": {"msg": each}} for each in (show, healthy)),
    ]
    done = run(tasks)
    assert done.code == 0, done.output
    assert "good has 2, =cmd" in done.output
    for name in UNREADABLE:
        assert f"WARNING: node {name}: annotation {INVENTORY} cannot be read" in done.output
        assert f"WARNING: node {name}: annotation {TAINT} cannot be read" in done.output


def test_a_migration_plan_is_harmless(run: Play) -> None:
    options = {"kubeconfig": "{{ gpu_plugins_kubeconfig }}", "hosts": [{"node": "evil-0", "mode": "pgpu"}]}
    tasks = [
        {"accel.kubernetes.gpu_migration_info": options, "register": "found"},
        {"ansible.builtin.debug": {"msg": "{{ found }}"}},
    ]
    done = run(tasks)
    assert done.code == 0, done.output
    assert "helm uninstall '=cmd" in done.output
    assert "gpu_plugins_mig_strategy" in done.output
