# SPDX-License-Identifier: Apache-2.0
"""A node of mode dra on a real kubelet: the driver, claims, and pods with them."""

from __future__ import annotations

import json
import re
import shutil
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from cluster import images
from cluster.control_plane import API_SERVICE, Program, answers
from cluster.node import GPUS, STATE, TOPOLOGY, UNPRIVILEGED, GpuNode, pod
from cluster.rig import KUBELET_ROOT, NODE, PODS, Rig, has_feature, has_shares, kubernetes
from dra_command import Places, dra_command
from sim import native
from sim.cluster.client import until
from unit.roles.conftest import rendered, variables_of

DRIVER, SHARES, FIXED = "gpu.kube-accel.io", "share.kube-accel.io", "fixed-share.kube-accel.io"
MIG = "mig.kube-accel.io"
ACCOUNT = "kube-accel-dra"
MEMORY = 80 << 30
GROUP = "/apis/resource.k8s.io/v1"
CLAIMS = f"{GROUP}/namespaces/default/resourceclaims"
SLICES = f"{GROUP}/resourceslices"
CDI = Path("/var/run/cdi")


class DraNode:
    """The node with eight H100, and a driver when a test starts one."""

    def __init__(self, rig: Rig, node: GpuNode, account: Path) -> None:
        self.rig, self.node, self._account = rig, node, account
        self.proc_root = Path("/proc")
        self.flags: tuple[str, ...] = ()
        """More than every driver has."""

    @contextmanager
    def driver(
        self, port: int = 9445, instance: str = "", wait: bool = True, state: Path = STATE, sized: bool | None = None
    ) -> Iterator[Program]:
        """The daemon beside kubelet, with ``wait`` ready: registered, its slices stored.

        Claims may ask for ``sized`` shares, by itself where the cluster keeps them.
        """
        sized = has_shares() if sized is None else sized
        places = Places(
            KUBELET_ROOT / "plugins",
            KUBELET_ROOT / "plugins_registry",
            state,
            self._account,
            CDI,
            KUBELET_ROOT / "pod-resources/kubelet.sock",
            proc_root=self.proc_root,
            shim_dir=native.build(),
        )
        flags = [f"--node-name={NODE}", f"--instance={instance}", "--metrics-interval=1", "--metrics-pending"]
        flags += ["--fixed-shares", *(["--shares"] if sized else []), *self.flags]
        command = [*UNPRIVILEGED, *dra_command(port, places, *flags)]
        environment = {"GPUSIM_FILE": str(TOPOLOGY), "KUBERNETES_SERVICE_HOST": API_SERVICE}
        environment["KUBERNETES_SERVICE_PORT"] = "443"
        with Program(self.rig.plane.root, f"kube-accel-dra-{port}", command, environment) as program:
            if wait:
                self.wait_ready(port)
            yield program

    def empty(self) -> None:
        """Delete all pods and claims. No pod with a claim ends without a driver."""
        with self.driver():
            self.rig.kubectl("delete", "pods", "--all", "--now", "--wait=true")
            self.rig.kubectl("delete", "resourceclaims", "--all", "--wait=true")
            until(lambda: self.prepared() == {}, "all claims to be released")

    def wait_ready(self, port: int = 9445) -> None:
        until(lambda: answers(f"http://127.0.0.1:{port}/readyz"), "the driver to be ready")

    def obstacle(self, port: int = 9445) -> str:
        """Why the driver is not ready; empty while it is, or does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2):
                return ""
        except urllib.error.HTTPError as error:
            return error.read().decode()
        except OSError:
            return ""

    def metrics(self, port: int = 9445) -> str:
        """The driver's page; empty while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=2) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def devices(self) -> dict[str, dict[str, Any]]:
        """What our slices offer, by name."""
        slices = [each["spec"] for each in self.rig.api.get(SLICES)["items"]]
        found = [device for each in slices if each["driver"] == DRIVER for device in each.get("devices", ())]
        return {device["name"]: device for device in found}

    def claim(self, name: str, count: int = 1, kind: str = DRIVER) -> None:
        """Create a claim of so many GPUs, or devices of another class."""
        exactly = {"deviceClassName": kind, "count": count}
        spec = {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}
        self.rig.api.create(CLAIMS, body)

    def share(self, name: str, cores: int, memory: str, *requests: str) -> None:
        """Create a claim of a share for each request."""
        capacity = {"requests": {"cores": str(cores), "memory": memory}}
        exactly = {"deviceClassName": SHARES, "capacity": capacity}
        spec = {"devices": {"requests": [{"name": each, "exactly": exactly} for each in requests or ("share",)]}}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}
        self.rig.api.create(CLAIMS, body)

    def whole_or_share(self, name: str, cores: int, memory: str) -> None:
        """Create a claim of a GPU, or where none is free, of a share."""
        share = {"deviceClassName": SHARES, "capacity": {"requests": {"cores": str(cores), "memory": memory}}}
        first = [{"name": "whole", "deviceClassName": DRIVER}, {"name": "share", **share}]
        spec = {"devices": {"requests": [{"name": "gpus", "firstAvailable": first}]}}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}
        self.rig.api.create(CLAIMS, body)

    def slice(self, name: str, profile: str) -> None:
        """Create a claim of a MIG device, selected as in one for NVIDIA's driver."""
        selector = {"cel": {"expression": f"device.attributes['gpu.nvidia.com'].profile == '{profile}'"}}
        exactly = {"deviceClassName": MIG, "selectors": [selector]}
        spec = {"devices": {"requests": [{"name": "slice", "exactly": exactly}]}}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}
        self.rig.api.create(CLAIMS, body)

    def submit(self, name: str, claim: str) -> None:
        """Create a pod that stays, and uses a claim."""
        self.rig.api.create(PODS, claiming_pod(name, claim))

    def seen(self, name: str) -> list[str]:
        """The GPUs' device nodes that a pod has."""
        listed = self.rig.kubectl("exec", name, "--", "ls", "/dev").split()
        return sorted(each for each in listed if re.fullmatch(r"nvidia\d+", each))

    def health(self, name: str) -> dict[str, int]:
        """How many GPUs of a pod are of which health, as its status tells."""
        (status,) = self.rig.api.get(f"{PODS}/{name}")["status"]["containerStatuses"]
        listed = [each for told in status.get("allocatedResourcesStatus", ()) for each in told["resources"]]
        return dict(Counter(each["health"] for each in listed))

    def taken(self) -> dict[str, tuple[int, int]]:
        """Cores and bytes that prepared claims have together, by GPU; a whole one has 100 and all."""
        file, sums = STATE / "claims.json", dict[str, tuple[int, int]]()
        for claim in json.loads(file.read_text())["claims"].values():
            for device in claim["devices"]:
                share = device.get("share", {"cores": 100, "memoryBytes": MEMORY})
                cores, memory = sums.get(device["uuid"], (0, 0))
                sums[device["uuid"]] = cores + share["cores"], memory + share["memoryBytes"]
        return sums

    def prepared(self) -> dict[str, list[str]]:
        """The devices of each prepared claim, by its name."""
        file = STATE / "claims.json"
        claims = json.loads(file.read_text())["claims"].values() if file.exists() else ()
        return {claim["name"]: [device["device"] for device in claim["devices"]] for claim in claims}


def give_classes(rig: Rig) -> None:
    """Have the cluster know what claims ask for."""
    objects = rig.plane.root / "classes.yml"
    objects.write_text(yaml.safe_dump_all(of_the_role(rig)))
    rig.kubectl("apply", f"--filename={objects}")


def dra_node(rig: Rig, node: GpuNode) -> DraNode:
    """The node, and an account for its driver."""
    account = rig.plane.root / ACCOUNT
    account.mkdir(exist_ok=True)
    # Of the node, as a pod's is: the API server lets it write into the status of the node's claims.
    bound = ("--bound-object-kind=Node", f"--bound-object-name={NODE}") if kubernetes() >= (1, 33) else ()
    token = rig.kubectl("create", "token", ACCOUNT, "--namespace=kube-system", "--duration=2h", *bound)
    (account / "token").write_text(token)
    shutil.copy(rig.plane.ca, account / "ca.crt")
    STATE.mkdir(exist_ok=True)
    return DraNode(rig, node, account)


def claiming_pod(name: str, claim: str, request: str = "") -> dict[str, Any]:
    body = pod(name, {}, resourceClaims=[{"name": "gpus", "resourceClaimName": claim}])
    asked = {"name": "gpus"} | ({"request": request} if request else {})
    body["spec"]["containers"][0]["resources"] = {"claims": [asked]}
    return body


def cuda_pod(name: str, claim: str, *command: str, request: str = "") -> dict[str, Any]:
    """A pod that may allocate memory of its GPU."""
    body = claiming_pod(name, claim, request)
    body["spec"]["volumes"] = [{"name": "gpus", "hostPath": {"path": str(GPUS)}}]
    body["spec"]["containers"][0] |= {
        "image": images.CUDA,
        "env": [{"name": "GPUSIM_FILE", "value": "/gpus/gpusim.conf"}],
        "volumeMounts": [{"name": "gpus", "mountPath": "/gpus"}],
        **({"command": list(command)} if command else {}),
    }
    return body


def of_the_role(rig: Rig) -> list[dict[str, Any]]:
    """The role's device classes, its policy for claims, and the driver's account, for this cluster."""
    slice_ = variables_of("gpu_plugins")["__gpu_plugins_tried_slice"]
    slice_["spec"]["driver"] = DRIVER
    kept = {"result": rig.api.create(f"{SLICES}?dryRun=All", slice_)}
    version = "v{}.{}.0".format(*kubernetes())
    head = {"name": NODE, "labels": {"nvidia-device-enable": "dra"}}
    nodes = {"resources": [{"metadata": head, "status": {"nodeInfo": {"kubeletVersion": version}}}]}
    served = {"results": [{"api_found": True, "resources": []}]}
    extended = has_feature("DRAExtendedResource", (1, 36))
    given: dict[str, Any] = {"gpu_plugins_dra_fixed_shares": 4, "gpu_plugins_dra_extended_resource": extended}
    given |= {
        "__gpu_plugins_kept_slice": kept,
        "__gpu_plugins_nodes": nodes,
        "__gpu_plugins_admission": served,
        "__gpu_plugins_runtime_classes": {},
    }
    made = rendered("gpu_plugins", "objects.yml.j2", gpu_mode="dra", **given)
    names = {"kube-accel-plugin-claims", ACCOUNT}
    kept = [item for item in made if item["kind"] == "DeviceClass" or item["metadata"]["name"] in names]
    return [item for item in kept if item["kind"] != "DaemonSet"]
