# SPDX-License-Identifier: Apache-2.0
"""What the role scheduler makes, with a real API server and kube-scheduler: objects, permissions and certificates.

No kubelet runs, so the test starts what the role's pods would run, with their command, account and certificates.
"""

from __future__ import annotations

import base64
import json
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.control_plane import BINARIES, ControlPlane, Program, answers, control_plane, free_port, missing, wait_for
from cluster.test_extender import make_node
from kube_accel.kube.api import ApiRefusedError
from kube_accel.kube.client import Credentials, KubeClient
from playbooks.scheduler import ON_LOCALHOST, play
from unit.kube_accel.extender.world import pod_object, share

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "all there")

SYSTEM = "/api/v1/namespaces/kube-system"
PODS = "/api/v1/namespaces/default/pods"
MANIFEST = Path(__file__).parents[1] / "unit/plugins/fixtures/kube-scheduler.yaml"
PROXIED = """
- hosts: kube_control_plane
  gather_facts: false
  tasks:
    - ansible.builtin.include_role: {name: accel.kubernetes.scheduler, tasks_from: preflight}
    # No kubelet starts it.
    - block: [ansible.builtin.include_role: {name: accel.kubernetes.scheduler, tasks_from: extender}]
      rescue:
        - ansible.builtin.assert: {that: "'No ready pod' in ansible_failed_result.msg"}
    - ansible.builtin.include_role: {name: accel.kubernetes.scheduler, tasks_from: look}
    - ansible.builtin.copy:
        content: "{{ __scheduler_proposal.configuration | to_json }}"
        dest: "{{ scheduler_host_root }}/planned.json"
"""


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    with control_plane() as found:
        wait_for(lambda: exists(found, SYSTEM), "kube-system")
        make_node(found.admin, "a")
        yield found


def exists(plane: ControlPlane, path: str) -> bool:
    try:
        plane.admin.get(path)
    except ApiRefusedError:
        return False
    return True


def inventory(plane: ControlPlane, layout: str, **host: Any) -> Path:
    variables = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "ansible_become": False,
        "scheduler_layout": layout,
        "scheduler_image": "none",
        "scheduler_kubeconfig": str(plane.root / "admin.conf"),
        "scheduler_extender_port": free_port(),
        "scheduler_timeout": 1,
        "scheduler_python_packages": [],
        "scheduler_pki_packages": [],
    }
    groups = {"kube_control_plane": {"hosts": {"control": host}}} if host else {}
    path = plane.root / "inventory.yml"
    path.write_text(yaml.safe_dump({"all": {"vars": variables, "children": groups}}))
    return path


def deployed(plane: ControlPlane, name: str, port: int) -> list[str]:
    """The command of the extender in a Deployment, at this port, as its service account."""
    (container, *_) = plane.admin.get(f"/apis/apps/v1/namespaces/kube-system/deployments/{name}")["spec"]["template"][
        "spec"
    ]["containers"]
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = plane.admin.post(f"{SYSTEM}/serviceaccounts/kube-accel-extender/token", request)["status"]["token"]
    kubeconfig = plane.write_kubeconfig("account", {"token": token})
    words = [word for word in container["command"] if "service-account" not in word]
    assert f"--listen=0.0.0.0:{port}" in words
    return [str(Path(sys.executable).with_name("kube-accel")), *words[1:], f"--kubeconfig={kubeconfig}"]


def kube_scheduler(plane: ControlPlane, config: dict[str, Any], root: Path, port: int) -> list[str]:
    """kube-scheduler with a configuration whose files are below a root."""
    path = plane.root / "scheduler.yaml"
    path.write_text(yaml.safe_dump(config).replace("/etc/kube", f"{root}/etc/kube"))
    return [str(BINARIES / "kube-scheduler"), f"--config={path}", f"--secure-port={port}", f"--cert-dir={root}"]


def assigned(plane: ControlPlane, name: str, **spec: Any) -> dict[str, Any]:
    """The assignment of a pod that is submitted now."""
    limits = share(50, 20)
    pod = pod_object(name, limits, **spec)
    pod["spec"]["containers"][0] |= {"image": "none", "resources": {"limits": limits, "requests": limits}}
    pod["metadata"] = {"name": name}
    del pod["status"]
    plane.admin.post(PODS, {"apiVersion": "v1", "kind": "Pod", **pod})

    def written() -> str:
        annotations = plane.admin.get(f"{PODS}/{name}")["metadata"].get("annotations") or {}
        return str(annotations.get("kube-accel.io/assignment", ""))

    found: dict[str, Any] = json.loads(wait_for(written, f"the assignment of {name}"))
    return found


def test_a_second_scheduler_may_do_what_it_needs(plane: ControlPlane) -> None:
    hosts = inventory(plane, "secondary")
    said = play(hosts, ON_LOCALHOST.format(tasks="secondary"), fails=True)
    assert "No ready pod of the extender" in said
    port = yaml.safe_load(hosts.read_text())["all"]["vars"]["scheduler_extender_port"]
    certificates = plane.root / "etc/kube-accel/certificates"
    certificates.mkdir(parents=True)
    for name, value in plane.admin.get(f"{SYSTEM}/secrets/kube-accel-extender-tls")["data"].items():
        (certificates / name).write_bytes(base64.b64decode(value))
    command = [word.replace("/etc/kube", f"{plane.root}/etc/kube") for word in deployed(plane, "accel-scheduler", port)]
    config = yaml.safe_load(plane.admin.get(f"{SYSTEM}/configmaps/accel-scheduler")["data"]["scheduler.yaml"])
    config["clientConnection"] = {"kubeconfig": str(plane.root / "account.conf")}
    health = free_port()
    with (
        Program(plane.root, "extender", command),
        Program(plane.root, "second", kube_scheduler(plane, config, plane.root, health)),
    ):
        wait_for(lambda: answers(f"https://127.0.0.1:{health}/healthz"), "the second scheduler")
        assert assigned(plane, "pod", schedulerName="accel-scheduler")["node"] == "a"
        log = (plane.root / "second.log").read_text()
    assert "forbidden" not in log


def machine_address() -> str:
    """An address of this machine that an API server passes requests on to: not of the loopback network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])


def test_proxied_scheduler_may_use_only_the_two_services(plane: ControlPlane) -> None:
    tree = plane.root / "tree"
    (tree / "etc/kubernetes/manifests").mkdir(parents=True)
    (tree / "etc/kubernetes/pki").mkdir()
    shutil.copy(MANIFEST, tree / "etc/kubernetes/manifests")
    for name in ("ca.crt", "ca.key"):
        shutil.copy(plane.root / name, tree / "etc/kubernetes/pki")
    shutil.copy(plane.kubeconfig("scheduler", "system:kube-scheduler"), tree / "etc/kubernetes/scheduler.conf")
    backups = str(plane.root / "backups")
    hosts = inventory(plane, "proxied", scheduler_host_root=str(tree), scheduler_backup_dir=backups)
    port = yaml.safe_load(hosts.read_text())["all"]["vars"]["scheduler_extender_port"]
    play(hosts, PROXIED)
    # The API server passes requests on to addresses of pods only.
    container = {"name": "extender", "image": "none"}
    pod = {"metadata": {"name": "extender"}, "spec": {"nodeName": "a", "containers": [container]}}
    plane.admin.post(f"{SYSTEM}/pods", pod)
    here = {"podIP": machine_address(), "podIPs": [{"ip": machine_address()}]}
    plane.admin.patch(f"{SYSTEM}/pods/extender/status", {"status": here})
    for service in ("gpu-quota-admission", "nvidia-mps-scheduler-plugin"):
        # As the controller makes them of the Service's ports.
        (served,) = plane.admin.get(f"{SYSTEM}/services/{service}")["spec"]["ports"]
        ports = [{key: served[key] for key in ("name", "protocol") if key in served} | {"port": served["targetPort"]}]
        address = {
            "ip": machine_address(),
            "targetRef": {"kind": "Pod", "name": "extender", "namespace": "kube-system"},
        }
        subset = {"addresses": [address], "ports": ports}
        plane.admin.post(f"{SYSTEM}/endpoints", {"metadata": {"name": service}, "subsets": [subset]})
    config = json.loads((tree / "planned.json").read_text())
    health = free_port()
    with (
        Program(plane.root, "extender", deployed(plane, "kube-accel-extender", port)),
        Program(plane.root, "scheduler", kube_scheduler(plane, config, tree, health)),
    ):
        wait_for(lambda: answers(f"https://127.0.0.1:{health}/healthz"), "kube-scheduler")
        assert assigned(plane, "pod")["node"] == "a"
    (certificate,) = (tree / "etc/kubernetes/kube-accel-pki/scheduler").glob("client-*.crt")
    known = Credentials(plane.ca, cert_file=certificate, key_file=certificate.with_suffix(".key"))
    client = KubeClient(plane.admin.url, known)
    for path in (PODS, f"{SYSTEM}/secrets", f"{SYSTEM}/services/another/proxy/scheduler/predicates"):
        with pytest.raises(ApiRefusedError) as refused:
            client.get(path)
        assert refused.value.status == 403
