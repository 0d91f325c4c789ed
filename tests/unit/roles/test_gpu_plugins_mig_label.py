# SPDX-License-Identifier: Apache-2.0
"""The role has a plugin cut the GPUs, and waits for what becomes of that, not of what was asked for before."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.template import trust_as_template

import sim.nvml
from kube_accel.plugin.mig.affected import LABEL, STATE_LABEL, State, report
from sim.cluster.apiserver import ApiServer, Authority
from sim.cluster.kinds import Object
from sim.cluster.store import Store
from sim.nvml.profiles import PROFILES
from waiting import wait
from yaml_files import document

from .conftest import ROLES, Evaluate, simulated_play

NODE = "gpu-1"
BEFORE, NOW = "what the plugin was given before", "what it is given now"


class Cluster:
    """A node that was cut by configuration small, which says something else by now, and whose GPUs are whole."""

    def __init__(self, root: Path) -> None:
        self.root = root
        PROFILES["8xh200"]("n").save(root / "gpusim.conf")
        sim.nvml.build(root / "lib")
        self.store = Store()
        self.store.create(
            "namespaces", "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}}
        )
        given = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kube-accel-mig-configs"}}
        self.store.create("configmaps", "kube-system", given | {"data": {"config.yaml": NOW}})
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": {LABEL: "small"}}}
        self.store.create("nodes", "", node)
        self.server = ApiServer(self.store, Authority(), lambda pod, container: root / "none")
        self.server.start()
        (root / "kubeconfig").write_text(self.server.kubeconfig("admin", self.server.admin_token))

    @property
    def node(self) -> Object:
        return self.store.get("nodes", "", NODE)

    def say(self, state: State, text: str) -> None:
        """As the plugin."""

        def edit(node: Object) -> None:
            for part, values in report(node, state, text).get("metadata", {}).items():
                node["metadata"].setdefault(part, {}).update(values)

        self.store.edit("nodes", "", NODE, edit)

    def label(self) -> subprocess.Popen[str]:
        """The role's part that has a plugin cut the GPUs."""
        wanted = {"devices": [0], "mig-enabled": True, "mig-devices": {"1g.18gb": 7}}
        variables: dict[str, Any] = {
            "gpu_plugins_mig_config": "small",
            "gpu_plugins_mig_configs": {"version": "v1", "mig-configs": {"small": [wanted]}},
            "gpu_plugins_mig_label": True,
            "gpu_plugins_kubeconfig": str(self.root / "kubeconfig"),
            "gpu_plugins_node_name": NODE,
            "__gpu_plugins_picked": {"resources": [self.node]},
            "ansible_python_interpreter": sys.executable,
        }
        role = {"name": "accel.kubernetes.gpu_plugins", "tasks_from": "mig_label"}
        command, environment = simulated_play(self.root, [{"ansible.builtin.import_role": role}], variables)
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.server.stop()


@pytest.mark.ci
@pytest.mark.parametrize("left", [State.SUCCESS, State.FAILED])
def test_state_of_another_mig_configuration_is_not_this_ones(cluster: Cluster, left: State) -> None:
    cluster.say(left, BEFORE)
    role = cluster.label()
    ended = threading.Event()
    output: list[str] = []
    threading.Thread(target=lambda: (output.append(role.communicate()[0]), ended.set()), daemon=True).start()
    wait(lambda: ended.is_set() or cluster.node["metadata"]["labels"][STATE_LABEL] == "pending", "the role")
    assert not ended.is_set(), output
    # Its volume is not renewed yet.
    cluster.say(left, BEFORE)
    assert not ended.wait(3), output
    cluster.say(State.SUCCESS, NOW)
    assert ended.wait(60)
    assert role.returncode == 0, output


def test_an_api_server_that_does_not_answer_is_asked_again(evaluate: Evaluate) -> None:
    """The host that was rebooted may be its own."""
    files = [ROLES / f"gpu_plugins/tasks/{name}.yml" for name in ("mig_label", "mig_label_reset")]
    waits = [task for path in files for task in document(path) if "until" in task]
    assert len(waits) == 2

    def over(task: dict[str, Any], answer: dict[str, Any]) -> Any:
        given = {"resources": [{"data": {"config.yaml": NOW}}]}
        words = {task["register"]: answer, "__gpu_plugins_mig_given": given}
        return evaluate("gpu_plugins", "over", {}, over=trust_as_template(f"{{{{ {task['until']} }}}}"), **words)

    said = {"resources": [{"metadata": {}} | report({"metadata": {"labels": {}}}, State.SUCCESS, NOW)]}
    answers: list[dict[str, Any]] = [{"msg": "refused"}, {"resources": []}, said]
    for task in waits:
        assert [over(task, answer) for answer in answers] == [False, False, True]


def test_one_place_says_who_cuts_the_gpus() -> None:
    """The plugin by the label or the role, also where playbooks have it done."""
    root = ROLES.parent
    files = [*root.glob("roles/gpu_plugins/tasks/*.yml"), *root.glob("playbooks/**/*.yml")]
    texts = {path.name: path.read_text() for path in files}
    choosing = {name for name, text in texts.items() if re.search(r"(?:_from|file|tasks): .*'?mig(?:_label)?\b", text)}
    assert choosing == {"mig_applied.yml"}
    applying = {name for name, text in texts.items() if "mig_applied" in text}
    assert applying == {"main.yml", "switch_node.yml", "upgrade_driver.yml"}
