# SPDX-License-Identifier: Apache-2.0
"""dcgm-exporter beside the daemons, on a simulated cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from programs import program
from sim.cluster import Cluster, NodeSpec, Spec
from sim.cluster.client import MERGE, Api
from waiting import wait

from .conftest import ROLES, variables_of

NAME = "kube-accel-dcgm-exporter"
DAEMON_SET = f"/apis/apps/v1/namespaces/kube-system/daemonsets/{NAME}"
COUNTERS = f"/api/v1/namespaces/kube-system/configmaps/{NAME}"
CAPABILITY = "nvidia.com/gpu.compute.major"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    nodes = (NodeSpec("hopper", "8xh100"), NodeSpec("turing", "t4"))
    with tempfile.TemporaryDirectory(prefix="kd") as root, Cluster(Path(root), Spec("cp", nodes)) as running:
        yield running


@pytest.fixture(scope="module")
def api(cluster: Cluster) -> Api:
    found = Api(cluster.kubeconfig)
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
    found.call("POST", "/apis/node.k8s.io/v1/runtimeclasses", runtime | {"handler": "nvidia"})
    for node, major in (("hopper", "9"), ("turing", "7")):
        label(found, node, {"nvidia-device-enable": "pgpu", CAPABILITY: major})
    return found


def label(api: Api, node: str, labels: dict[str, str | None]) -> None:
    status, _ = api.call("PATCH", f"/api/v1/nodes/{node}", {"metadata": {"labels": labels}}, MERGE)
    assert status == 200


def there(api: Api) -> tuple[bool, bool]:
    """Whether there is the DaemonSet, and what it reads."""
    return api.call("GET", DAEMON_SET)[0] == 200, api.call("GET", COUNTERS)[0] == 200


def run(cluster: Cluster, *flags: str, **variables: Any) -> tuple[int, str]:
    """How many tasks changed something, and what was said."""
    role = {"name": "accel.kubernetes.dcgm_exporter"}
    play = {"hosts": "all", "gather_facts": False, "tasks": [{"ansible.builtin.import_role": role}]}
    file = cluster.root / "dcgm.json"
    file.write_text(json.dumps([play]))
    known = {
        "gpu_plugins_kubeconfig": str(cluster.kubeconfig),
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
    }
    command = [program("ansible-playbook"), "-i", "node,", *flags]
    settings = {
        "ANSIBLE_COLLECTIONS_PATH": str(ROLES.parent / ".build/link"),
        "ANSIBLE_HOME": str(cluster.root / "ansible"),
        "ANSIBLE_NOCOLOR": "true",
    }
    done = subprocess.run(
        [*command, f"--extra-vars={json.dumps(known | variables)}", str(file)],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return int(done.stdout.rpartition("changed=")[2].split()[0]), done.stdout


def nodes(api: Api) -> set[str]:
    """Where it runs, or would."""
    _, listed = api.call("GET", "/api/v1/namespaces/kube-system/pods")
    return {
        pod["spec"].get("nodeName") or ""
        for pod in listed["items"]
        if pod["metadata"].get("labels", {}).get("app") == NAME and "deletionTimestamp" not in pod["metadata"]
    }


@pytest.mark.full
def test_it_comes_and_goes_as_it_is_asked_for(cluster: Cluster, api: Api) -> None:
    wanted, unwanted = ({"dcgm_exporter_enabled": enabled} for enabled in (True, False))
    changed, said = run(cluster, "--check", "--diff", **wanted)
    assert changed == 1
    assert "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE" in said
    assert there(api) == (False, False)
    assert run(cluster, **wanted)[0] == 1
    lines = api.call("GET", COUNTERS)[1]["data"]["counters.csv"].splitlines()
    assert "DCGM_FI_PROF_DRAM_ACTIVE, gauge, PROF_DRAM_ACTIVE as DCGM has it." in lines
    assert run(cluster, **wanted)[0] == 0

    # NVML of the other node has counters.
    wait(lambda: nodes(api) == {"turing"})
    label(api, "turing", {"kube-accel.io/dcgm-exporter": "paused-for-mig-change"})
    wait(lambda: nodes(api) == set())
    label(api, "turing", {"kube-accel.io/dcgm-exporter": None})
    wait(lambda: nodes(api) == {"turing"})

    # Its objects, and its network policy.
    assert run(cluster, "--check", **unwanted)[0] == 2
    assert there(api) == (True, True)
    assert run(cluster, **unwanted)[0] == 2
    assert there(api) == (False, False)
    wait(lambda: nodes(api) == set())
    assert run(cluster, **unwanted)[0] == 0


def test_pods_are_made_anew_when_they_are_to_read_something_else() -> None:
    """Or they would go on reading what they read."""
    role, loader = ROLES / "dcgm_exporter", DataLoader()
    scope = variables_of(role.name)
    text = trust_as_template((role / "templates/objects.yml.j2").read_text())

    def template(**variables: Any) -> dict[str, Any]:
        _, found, *_policies = yaml.safe_load_all(Templar(loader, variables=scope | variables).template(text))
        return dict(found["spec"]["template"])

    fewer = template(dcgm_exporter_fields=["DCGM_FI_PROF_SM_ACTIVE"])
    assert template() == template()
    assert fewer["metadata"] != template()["metadata"]
    assert fewer["spec"] == template()["spec"]
