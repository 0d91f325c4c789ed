# SPDX-License-Identifier: Apache-2.0
"""Whoever may write text into a cluster, against the playbooks that read it: templates, YAML tags, shell, HTML, CSV.

Every text is in every place of the cluster that a tenant or a node's plugin may write to, at once.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from playbooks.conftest import INVENTORY, Playbooks, Run
from playbooks.controller import REPOSITORY
from sim.cluster import Cluster, NodeSpec, Spec
from sim.inventory import write_inventory

pytestmark = pytest.mark.attack

SECRET = "a-secret-of-the-controller"
VARIABLES = {"scheduler_layout": "none"}
"""One GPU needs no extender."""


def texts(marks: Path) -> dict[str, str]:
    """What would leave a file in this directory, or show what only the controller knows, were it more than text."""
    pipe = f"lookup('ansible.builtin.pipe', 'touch {marks}/%s')"
    shown = "{{ 'carried' ~ '-out' }}"
    return {
        "an expression": "{{ %s }}" % (pipe % "expression"),
        "a query": "{{ query('pipe', 'touch " + f"{marks}/query') }}}}",
        "a statement": "{%% set x = %s %%}{{ x }}" % (pipe % "statement"),
        "a condition": "{%%- if %s -%%}x{%%- endif -%%}" % (pipe % "condition"),
        "a comment": "{# #}" + shown + "{# not closed",
        "a block that is not closed": "{% raw %}{% endraw %}" + shown + "{% if",
        "an attribute": "{{ cycler.__init__.__globals__.os.popen('touch " + f"{marks}/attribute').read() }}}}",
        "other delimiters": "#jinja2: variable_start_string:'[', variable_end_string:']'\n[ " + pipe % "other" + " ]",
        "a file": "{{ lookup('file', '" + f"{marks.parent}/secret') }}}}",
        "a variable": "{{ hostvars | to_json }}{{ secret_of_controller }}",
        "an expression without braces": f"{pipe % 'bare'}",
        "a tag of Ansible": "!unsafe " + shown,
        "a tag of Python": f"!!python/object/apply:os.system ['touch {marks}/python']",
        "a document of its own": f"x\n---\n- hosts: localhost\n  tasks: [{{command: touch {marks}/play}}]\n",
        "a command": f"$(touch {marks}/dollar)`touch {marks}/backquote`; touch {marks}/semicolon #",
        "a formula": f"=cmd|'/c touch {marks}/formula'!A0",
        "HTML": "<script>alert(1)</script><img src=x onerror=alert(1)>",
        "Markdown": "[x](javascript:alert(1)) ![x](http://192.0.2.1/x)",
    }


@dataclass(frozen=True)
class Attacked:
    """A cluster with these texts in it."""

    books: Playbooks
    marks: Path

    def play(self, book: str, *options: str, **variables: Any) -> Run:
        """A playbook's run; nothing of the texts was carried out, and no task broke off."""
        done = self.books.run(f"accel.kubernetes.{book}", *options, secret_of_controller=SECRET, **variables)
        assert list(self.marks.iterdir()) == []
        assert "carried-out" not in done.output
        assert SECRET not in done.output
        for broken in (
            "Traceback",
            "undefined variable",
            "is undefined",
            "template error",
            "Syntax error",
            "Unexpected",
        ):
            assert broken not in done.output, done.output
        return done


def plain(name: str, text: str) -> dict[str, Any]:
    """Metadata with a text wherever one may be."""
    return {"name": name, "annotations": {"note": text, "kube-accel.io/assignment": text}, "labels": {"note": text}}


def fill(cluster: Cluster, text: str, number: int) -> None:
    """A node, a pod, its event and a DaemonSet of others."""
    gpu = {"uuid": f"GPU-{number}", "index": 0, "model": text, "memoryBytes": 1 << 30, "health": "healthy"}
    said = {"version": 1, "mode": "vgpu", "driver": text, "gpus": [{**gpu, "held": []}]}
    annotations = {
        INVENTORY: json.dumps(said) if number % 2 else text,
        "kube-accel.io/taint": json.dumps({"key": text, "value": text, "effect": text}),
        "kube-accel.io/labels": text,
        "note": text,
    }
    condition = {"type": "GpusHealthy", "status": "False", "reason": text, "message": text}
    capacity = {"nvidia.com/gpu": "1", "tencent.com/vcuda-core": "100"}
    cluster.store.create(
        "nodes",
        "",
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": f"node-{number}",
                "annotations": annotations,
                "labels": {"nvidia.com/gpu.product": text},
            },
            "spec": {"taints": [{"key": "note", "value": text, "effect": "NoSchedule"}]},
            "status": {"conditions": [condition], "capacity": capacity, "allocatable": capacity},
        },
    )
    waiting = {
        "state": {"waiting": {"reason": text, "message": text}},
        "name": "main",
        "restartCount": 0,
        "ready": False,
    }
    unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": text}
    resources = {"limits": {"tencent.com/vcuda-core": "10"}, "requests": {"tencent.com/vcuda-core": "10"}}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": plain(f"pod-{number}", text),
        "spec": {
            "schedulerName": "nobody",
            "containers": [{"name": "main", "image": text, "command": [text], "resources": resources}],
        },
    }
    made = cluster.store.create("pods", "default", body)
    status = {"phase": "Pending", "message": text, "conditions": [unplaced], "containerStatuses": [waiting]}
    cluster.store.edit("pods", "default", f"pod-{number}", lambda item: item.update(status=status))
    cluster.store.record("default", made, "FailedScheduling", text, "nobody")
    daemons = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {
            "name": f"daemons-{number}",
            "labels": {"app.kubernetes.io/managed-by": "accel.kubernetes"},
            "annotations": {"kube-accel.io/previous-object": text},
        },
        "spec": {
            "selector": {"matchLabels": {"of": "others"}},
            "template": {
                "metadata": {"labels": {"of": "others"}, "annotations": {"note": text}},
                "spec": {"nodeSelector": {"none": "none"}, "containers": [{"name": "main", "image": text}]},
            },
        },
    }
    cluster.store.create("daemonsets", "default", daemons)


def put_on(item: dict[str, Any], found: dict[str, str]) -> None:
    """A node that is in the inventory has them too."""
    metadata = item["metadata"]
    notes = {f"note-{number}": text for number, text in enumerate(found.values())}
    ours = {
        INVENTORY: found["an expression"],
        "kube-accel.io/taint": found["a statement"],
        "kube-accel.io/labels": "{{",
    }
    metadata["annotations"] = {**metadata.get("annotations", {}), **notes, **ours}
    metadata["labels"] = {**metadata.get("labels", {}), **notes}


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """A cluster with a GPU node that was never prepared, and with every text in it."""
    home = tmp_path_factory.mktemp("jinja")
    collections, marks = home / "collections", home / "marks"
    (collections / "ansible_collections/accel").mkdir(parents=True)
    (collections / "ansible_collections/accel/kubernetes").symlink_to(REPOSITORY)
    marks.mkdir()
    (home / "secret").write_text(SECRET)
    with (
        tempfile.TemporaryDirectory(prefix="accel-", ignore_cleanup_errors=True) as root,
        Cluster(Path(root), Spec("control", (NodeSpec("gpu-a", "t4"),))) as cluster,
    ):
        write_inventory(cluster.root)
        for number, text in enumerate(texts(marks).values()):
            fill(cluster, text, number)
        for name in ("kube-accel-quota", "kube-accel-quota-overrides", "kube-accel-configs"):
            data = {f"key-{number}": text for number, text in enumerate(texts(marks).values())}
            settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": plain(name, "{{"), "data": data}
            cluster.store.create("configmaps", "kube-system", settings)
        cluster.store.edit("nodes", "", "gpu-a", lambda item: put_on(item, texts(marks)))
        yield Attacked(Playbooks(cluster, collections), marks)


def test_inspect_shows_texts_of_a_cluster_and_carries_out_none(attacked: Attacked) -> None:
    done = attacked.play("inspect", inspect_used=False)
    for text in texts(attacked.marks).values():
        # What a terminal would take for more than letters was made harmless, and an output in JSON escapes quotes.
        assert text.split("\n")[0].replace("\\", "\\\\").replace('"', '\\"') in done.output


@pytest.mark.full
@pytest.mark.parametrize(
    ("book", "variables"),
    [
        ("inspect", {"inspect_details": True, "inspect_query": "nodes[].gpus[].model"}),
        ("diagnose", {}),
        ("diagnose", {"diagnose_pod": "default/pod-0"}),
        ("diagnose", {"diagnose_node": "node-1", "diagnose_bundle": "{}/support.tar.gz"}),
        ("report", {"report_html": "{}/report.html", "report_csv": "{}/report.csv", "report_json": "{}/report.json"}),
        ("validate", VARIABLES),
    ],
)
def test_no_playbook_carries_out_texts_of_a_cluster(
    attacked: Attacked, tmp_path: Path, book: str, variables: dict[str, Any]
) -> None:
    given = {name: value.format(tmp_path) if isinstance(value, str) else value for name, value in variables.items()}
    done = attacked.play(book, **given)
    # It told what it found, whatever that was, and did not break off before.
    assert re.search(r"TASK \[Record the .* as job artifact\]", done.output)
    for path in tmp_path.glob("report.*"):
        assert "<script>alert" not in path.read_text() or path.suffix == ".json"
