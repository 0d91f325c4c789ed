# SPDX-License-Identifier: Apache-2.0
"""A real Kubernetes of one node: the control plane, kubelet and containerd, with all paths where they are on any node.

The node's GPUs are simulated below the driver's interface, nothing else is. Runs on a machine of its own, which
``tests/tools/machine.sh`` makes and which takes with it what is left running, mounted or written.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from cluster import images
from cluster.control_plane import API_SERVICE, BINARIES, GATES, ControlPlane, Program, answers, control_plane, lacking
from sim.cluster.client import MERGE, Api, until
from sim.cluster.host import write_control_plane

NODE, NODE_IP, POD_NETWORK = "rig-node", "10.200.0.1", "10.85.0.0/16"
CNI_PLUGINS = Path("/usr/lib/cni")
KUBELET_ROOT = Path("/var/lib/kubelet")
MANIFESTS = Path("/etc/kubernetes/manifests")
# RIG_CONTAINERD names a directory with another containerd than this machine's.
CONTAINERD_PID = Path("/run/containerd/pid")
KUBERNETES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
COMMANDS = ("containerd", "runc", "ctr", "ip", "busybox", "unshare")
SCHEDULER_PORT = 10259
PODS = "/api/v1/namespaces/default/pods"


def missing() -> list[str]:
    """What this machine lacks to run the rig; empty when nothing."""
    lacks = [reason] if (reason := lacking(KUBERNETES)) else []
    lacks += [f"command {name}" for name in COMMANDS if not shutil.which(name)]
    lacks += [] if (CNI_PLUGINS / "bridge").is_file() else [f"CNI plugins in {CNI_PLUGINS}"]
    lacks += [] if images.DAEMONS.is_file() else [f"{images.DAEMONS.name}: run make image"]
    return lacks + ([] if "MACHINE" in os.environ or lacks else ["a machine of its own: run make test-cluster as root"])


class Rig:
    """The cluster."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.api = Api(plane.root / "admin.conf")

    def restart(self, name: str) -> None:
        """Kill one program and start it anew."""
        self.plane.programs[name].restart()

    def kubectl(self, *arguments: str) -> str:
        """What kubectl prints. Raises AssertionError with its errors."""
        command = [str(BINARIES / "kubectl"), f"--kubeconfig={self.plane.root}/admin.conf", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def phase(self, pod: str) -> str:
        """The phase of a pod of the default namespace."""
        return str(self.api.get(f"{PODS}/{pod}")["status"]["phase"])

    def running(self) -> set[str]:
        """The pods of the default namespace that run."""
        return {pod["metadata"]["name"] for pod in self.api.get(PODS)["items"] if pod["status"]["phase"] == "Running"}

    def wait_running(self, *pods: str) -> None:
        """Until these pods of the default namespace run. Raises AssertionError that describes one that does not."""
        for pod in pods:
            try:
                until(lambda pod=pod: self.phase(pod) == "Running", f"{pod} to run")
            except AssertionError as error:
                raise AssertionError(self.kubectl("describe", "pod", pod)) from error

    def node(self) -> Any:
        """The Node object."""
        return self.api.get(f"/api/v1/nodes/{NODE}")

    def api_answers(self) -> bool:
        """Whether the API server is there."""
        return answers(f"{self.plane.admin.url}/readyz", self.plane.ca)

    def reboot(self) -> None:
        """As the node's power button would: whatever runs on it ends at once, and what is in memory is gone.

        The control plane's programs go on. The kernel is the same, but for its boot id.
        """
        runtime, kubelet = self.plane.programs["containerd"], self.plane.programs["kubelet"]
        kubelet.kill()
        runtime.kill()
        shims = {pid for pid, command, _ in processes() if Path(command[0]).name.startswith("containerd-shim")}
        contained = {pid for pid, _, parent in processes() if parent in shims}
        # containerd first, which would look after what its shims leave.
        for pid in (int(CONTAINERD_PID.read_text()), *shims, *contained):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not {pid for pid, *_ in processes()} & (shims | contained), "containers to end")
        until(_unmounted, "nothing of theirs to be mounted")
        for directory in ("/run/containerd", "/run/netns"):
            shutil.rmtree(directory, ignore_errors=True)
        for unit in Path("/etc/systemd/system").glob("*.mount"):
            subprocess.run(["systemctl", "restart", unit.name], check=True)
        boot = str(uuid4())
        path = self.plane.root / "boot_id"
        path.write_text(f"{boot}\n")
        subprocess.run(["mount", "--bind", path, "/proc/sys/kernel/random/boot_id"], check=True)
        CONTAINERD_PID.parent.mkdir()
        runtime.start()
        kubelet.start()

        def told() -> bool:
            # It ends where containerd does not answer yet, and systemd would start it again.
            if kubelet.process.poll() is not None:
                kubelet.start()
            return self.node()["status"]["nodeInfo"]["bootID"] == boot

        until(told, "kubelet to tell of this boot")

    @contextmanager
    def static_scheduler(self) -> Iterator[Path]:
        """kube-scheduler as kubeadm runs it, a static pod. Its manifest."""
        images.load(images.scheduler(self.api.get("/version")["gitVersion"]))
        plane = self.plane
        scheduler = plane.kubeconfig("scheduler", "system:kube-scheduler")
        authority = plane.ca.read_text(), (plane.root / "ca.key").read_text()
        client = (plane.root / "apiserver-kubelet-client.pem").read_text()
        write_control_plane(Path("/"), scheduler.read_text(), authority, (client, client), SCHEDULER_PORT, kubernetes())
        manifest = MANIFESTS / "kube-scheduler.yaml"
        url = f"https://127.0.0.1:{SCHEDULER_PORT}/healthz"
        try:
            until(lambda: answers(url), "kube-scheduler, a static pod")
            yield manifest
        finally:
            manifest.unlink()
            until(lambda: not answers(url), "kube-scheduler to end")


def processes() -> Iterator[tuple[int, list[str], int]]:
    """Every process with a command: its id, the command's words, its parent."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            words = (entry / "cmdline").read_text().rstrip("\0").split("\0") if entry.name.isdecimal() else [""]
            if words != [""]:
                yield int(entry.name), words, int((entry / "stat").read_text().rpartition(")")[2].split()[1])


@contextmanager
def start() -> Iterator[Rig]:
    """Everything but a scheduler; the node is ready."""
    with ExitStack() as stack:
        for address in (NODE_IP, API_SERVICE):
            subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
        # At the address of the API's Service: pods reach it without a proxy.
        plane = stack.enter_context(control_plane(API_SERVICE, 443, accounts=True))
        plane.programs["containerd"] = stack.enter_context(_containerd(plane.root))
        images.load(images.busybox())
        controllers = plane.kubeconfig("controller-manager", "system:kube-controller-manager")
        stack.enter_context(
            plane.program(
                "kube-controller-manager",
                f"--kubeconfig={controllers}",
                f"--root-ca-file={plane.ca}",
                f"--service-account-private-key-file={plane.root}/sa.key",
                "--use-service-account-credentials",
                "--leader-elect=false",
            )
        )
        flags = _kubelet(plane)
        stack.enter_context(plane.program("kubelet", *flags))
        rig = Rig(plane)
        until(lambda: _ready(rig), f"the node to be ready; logs are in {plane.root}")
        labels = {"node-role.kubernetes.io/control-plane": ""}
        rig.api.call("PATCH", f"/api/v1/nodes/{NODE}", {"metadata": {"labels": labels}}, MERGE)
        yield rig


def _containerd(directory: Path) -> Program:
    network = Path("/etc/cni/net.d")
    network.mkdir(parents=True, exist_ok=True)
    ipam = {"type": "host-local", "ranges": [[{"subnet": POD_NETWORK}]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "rig-cni0", "isGateway": True, "ipam": ipam}
    document = {"cniVersion": "0.4.0", "name": "rig", "plugins": [bridge]}
    (network / "10-rig.conflist").write_text(json.dumps(document))
    config = Path("/etc/containerd/config.toml")
    config.parent.mkdir(exist_ok=True)
    # restrict_oom_score_adj: a sandboxed root may not lower it.
    config.write_text(f"""version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{images.PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PLUGINS}"
""")
    CONTAINERD_PID.parent.mkdir(exist_ok=True)
    # As systemd would: whoever ends it gets a new one.
    script = f"while :; do containerd & echo $! >{CONTAINERD_PID}; wait; done"
    program = Program(directory, "containerd", ["sh", "-c", script], {"PATH": programs_path()})
    until(lambda: subprocess.run(["ctr", "version"], capture_output=True).returncode == 0, "containerd")
    return program


def programs_path() -> str:
    """Return where programs are looked for on the node: its containerd's first."""
    return os.pathsep.join(filter(None, (os.environ.get("RIG_CONTAINERD"), os.environ["PATH"])))


def _kubelet(plane: ControlPlane) -> list[str]:
    serving = plane.certificate("kubelet-serving", NODE, names=[NODE, NODE_IP])
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(plane.ca)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(serving),
        "tlsPrivateKeyFile": str(serving),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{os.environ['MACHINE']}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "staticPodPath": str(MANIFESTS),
        "fileCheckFrequency": "1s",
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "enforceNodeAllocatable": [],
    }
    endpoint = "unix:///run/containerd/containerd.sock"
    version = kubernetes()
    if version >= (1, 27):
        config["containerRuntimeEndpoint"] = endpoint
    if version >= (1, 32):
        # What tests kill is back at once, however often.
        config["featureGates"] = {"KubeletCrashLoopBackOffMax": True}
        config["crashLoopBackOff"] = {"maxContainerRestartPeriod": "1s"}
    MANIFESTS.mkdir(parents=True, exist_ok=True)
    (MANIFESTS.parent / "pki").mkdir(exist_ok=True)
    file = plane.root / "kubelet.json"
    file.write_text(json.dumps(config))
    kubeconfig = plane.kubeconfig("kubelet", f"system:node:{NODE}", "system:nodes")
    flags = [f"--config={file}", f"--kubeconfig={kubeconfig}", f"--hostname-override={NODE}", f"--node-ip={NODE_IP}"]
    flags += [] if version >= (1, 27) else [f"--container-runtime-endpoint={endpoint}"]
    return [*flags, f"--root-dir={KUBELET_ROOT}"]


def kubernetes() -> tuple[int, int]:
    """Major and minor version of the binaries."""
    said = subprocess.run([BINARIES / "kubelet", "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"v(\d+)\.(\d+)", said)
    assert found, said
    return int(found[1]), int(found[2])


def has_feature(gate: str, since: tuple[int, int]) -> bool:
    """Whether a feature is on that versions have by themselves since this one."""
    return kubernetes() >= since and f"{gate}=false" not in GATES.split(",")


def has_shares() -> bool:
    """Whether claims may say how much of a device they want."""
    return has_feature("DRAConsumableCapacity", (1, 36))


def _ready(rig: Rig) -> bool:
    code, node = rig.api.call("GET", f"/api/v1/nodes/{NODE}")
    account = rig.api.call("GET", "/api/v1/namespaces/default/serviceaccounts/default")[0]
    conditions = node.get("status", {}).get("conditions", ()) if code == 200 else ()
    return account == 200 and any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def _unmounted() -> bool:
    """Whether nothing of containers is mounted; what is, is unmounted. Some go by themselves meanwhile."""
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    theirs = [path for path in mounted if path.startswith((f"{KUBELET_ROOT}/", "/run/containerd/", "/run/netns/"))]
    for path in reversed(theirs):
        subprocess.run(["umount", "--lazy", path], check=False, capture_output=True)
    return not theirs
