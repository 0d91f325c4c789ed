# SPDX-License-Identifier: Apache-2.0
"""A real Kubernetes of one node, from binaries at hand: etcd, API server, controllers, scheduler, kubelet, containerd.

The node's GPUs are simulated below the driver's interface, nothing else is. Needs root; see ``missing``.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trustme
import yaml

from sim.cluster.client import Api, until

NODE, NODE_IP, POD_NETWORK, SERVICE_NETWORK = "rig-node", "10.200.0.1", "10.85.0.0/16", "10.96.0.0/16"
PORT, ETCD, ETCD_PEER = 6443, 2379, 2380
BRIDGE, POD_BRIDGE = "rig0", "rig-cni0"
CNI_PLUGINS = Path("/usr/lib/cni")
KUBELET_ROOT = Path("/var/lib/kubelet")
IMAGE = "docker.io/rig/busybox:1"
TOKEN = "rig-admin"
KUBERNETES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
COMMANDS = ("containerd", "runc", "ctr", "ip", "iptables", "busybox", "umount")
START_SECONDS = 120.0
RUN_SECONDS = 60.0
PODS = "/api/v1/namespaces/default/pods"


def binaries() -> Path:
    """Where the Kubernetes binaries are looked for."""
    return Path(os.environ.get("KUBEBUILDER_ASSETS") or "/usr/local/kubebuilder/bin")


def missing() -> list[str]:
    """What this machine lacks to run the rig; empty when nothing."""
    lacks = [f"{name} in {binaries()}" for name in KUBERNETES if not (binaries() / name).is_file()]
    lacks += [f"command {name}" for name in COMMANDS if not shutil.which(name)]
    lacks += [] if (CNI_PLUGINS / "bridge").is_file() else [f"CNI plugins in {CNI_PLUGINS}"]
    lacks += [] if os.geteuid() == 0 else ["root"]
    lacks += [f"an unused {KUBELET_ROOT}"] if (KUBELET_ROOT / "device-plugins" / "kubelet.sock").is_socket() else []
    return lacks


class Rig:
    """The cluster. ``scheduler`` is a KubeSchedulerConfiguration to run kube-scheduler with, as an object."""

    def __init__(self, scheduler: Mapping[str, Any] | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="rig-"))
        self.scheduler = scheduler
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, Sequence[str]] = {}
        self._socket = self.directory / "containerd.sock"
        self._ca = trustme.CA(key_type=trustme.KeyType.RSA)
        self.ca.parent.mkdir()
        self._ca.cert_pem.write_to_path(str(self.ca))
        self.api: Api

    def __enter__(self) -> Rig:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything; returns when the node is ready. Raises TimeoutError naming what did not come up."""
        (self.directory / "log").mkdir()
        (self.directory / "cni").mkdir()
        self._certificates()
        self._network()
        self._start_containerd()
        self._start_control_plane()
        self._start_kubelet()
        until(self._node_ready, f"the node to be ready; logs are in {self.directory}/log", START_SECONDS)

    def stop(self) -> None:
        """End everything and remove what was made."""
        if "kubelet" in self._processes:
            self._delete_pods()
        for name in reversed(list(self._processes)):
            self.kill(name)
        for mount in sorted(_mounts_below(self.directory, KUBELET_ROOT), reverse=True):
            subprocess.run(["umount", "-l", mount], check=False)
        for bridge in (POD_BRIDGE, BRIDGE):
            subprocess.run(["ip", "link", "delete", bridge], check=False, capture_output=True)
        for path in (self.directory, KUBELET_ROOT, Path("/var/lib/cni/networks/rig")):
            shutil.rmtree(path, ignore_errors=True)

    def kill(self, name: str) -> None:
        """End one component at once, if it runs."""
        if process := self._processes.pop(name, None):
            process.kill()
            process.wait()

    def restart(self, name: str) -> None:
        """Kill one component and start it anew."""
        self.kill(name)
        self._run(name, self._commands[name])

    def kubectl(self, *arguments: str) -> str:
        """What kubectl prints. Raises CalledProcessError."""
        command = [str(binaries() / "kubectl"), f"--kubeconfig={self.directory}/admin.conf", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def phase(self, pod: str) -> str:
        """The phase of a pod of the default namespace."""
        return str(self.api.get(f"{PODS}/{pod}")["status"]["phase"])

    def wait_running(self, *pods: str) -> None:
        """Until these pods of the default namespace run. Raises AssertionError that describes one that does not."""
        for pod in pods:
            try:
                until(lambda pod=pod: self.phase(pod) == "Running", f"{pod} to run", RUN_SECONDS)
            except AssertionError as error:
                raise AssertionError(self.kubectl("describe", "pod", pod)) from error

    def certificate(self, name: str, *subject_alternatives: str, group: str | None = None) -> tuple[Path, Path]:
        """A certificate for ``name`` from the cluster's CA, and its key."""
        issued = self._ca.issue_cert(
            *(subject_alternatives or (f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.rig",)),
            common_name=name,
            organization_name=group,
            key_type=trustme.KeyType.RSA,
        )
        base = self.directory / "pki" / name.replace(":", "-")
        chain, key = base.with_suffix(".crt"), base.with_suffix(".key")
        chain.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
        key.write_bytes(issued.private_key_pem.bytes())
        key.chmod(0o600)
        return chain, key

    @property
    def ca(self) -> Path:
        """The cluster's CA certificate."""
        return self.directory / "pki" / "ca.crt"

    def kubeconfig(self, name: str, group: str | None = None) -> Path:
        """A kubeconfig that authenticates as ``name``."""
        certificate, key = self.certificate(name, group=group)
        user = {"client-certificate": str(certificate), "client-key": str(key)}
        return self._write_kubeconfig(f"{name.replace(':', '-')}.conf", user)

    def _write_kubeconfig(self, file: str, user: Mapping[str, str]) -> Path:
        cluster = {"server": f"https://{NODE_IP}:{PORT}", "certificate-authority": str(self.ca)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "rig", "cluster": cluster}],
            "users": [{"name": "rig", "user": dict(user)}],
            "contexts": [{"name": "rig", "context": {"cluster": "rig", "user": "rig"}}],
            "current-context": "rig",
        }
        path = self.directory / file
        path.write_text(yaml.safe_dump(config))
        path.chmod(0o600)
        return path

    def _certificates(self) -> None:
        pki = self.directory / "pki"
        self.certificate("kube-apiserver", NODE_IP, "127.0.0.1", "10.96.0.1", "kubernetes.default.svc", "localhost")
        self.certificate("apiserver-kubelet-client", group="system:masters")
        self.certificate("front-proxy-client")
        self.certificate("kubelet-serving", NODE, NODE_IP)
        subprocess.run(["openssl", "genrsa", "-out", pki / "sa.key", "2048"], check=True, capture_output=True)
        (pki / "tokens.csv").write_text(f'{TOKEN},admin,admin,"system:masters"\n')

    def _network(self) -> None:
        if subprocess.run(["ip", "link", "show", BRIDGE], check=False, capture_output=True).returncode:
            for command in (
                f"link add {BRIDGE} type bridge",
                f"addr add {NODE_IP}/32 dev {BRIDGE}",
                f"link set {BRIDGE} up",
            ):
                subprocess.run(["ip", *command.split()], check=True)
        ipam = {"type": "host-local", "ranges": [[{"subnet": POD_NETWORK}]], "routes": [{"dst": "0.0.0.0/0"}]}
        bridge = {"type": "bridge", "bridge": POD_BRIDGE, "isGateway": True, "ipMasq": True, "ipam": ipam}
        network = {"cniVersion": "0.4.0", "name": "rig", "plugins": [bridge]}
        (self.directory / "cni" / "10-rig.conflist").write_text(json.dumps(network))

    def _start_containerd(self) -> None:
        config = self.directory / "containerd.toml"
        # restrict_oom_score_adj: a sandboxed root may not lower it.
        config.write_text(f"""version = 2
root = "{self.directory}/containerd"
state = "{self.directory}/containerd-run"
[grpc]
  address = "{self._socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/rig/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PLUGINS}"
    conf_dir = "{self.directory}/cni"
""")
        self._run("containerd", [str(shutil.which("containerd")), "--config", str(config)])
        until(lambda: self._ctr("version").returncode == 0, "containerd", START_SECONDS)
        self.load_image(_busybox_image("docker.io/rig/pause:1", IMAGE))

    def load_image(self, archive: bytes) -> None:
        """Import an image archive. Raises RuntimeError with what ctr says."""
        file = self.directory / "image.tar"
        file.write_bytes(archive)
        if (done := self._ctr("images", "import", str(file))).returncode:
            raise RuntimeError(f"ctr images import: {done.stderr.decode()}")
        file.unlink()

    def _ctr(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        command = ["ctr", "--address", str(self._socket), "--namespace", "k8s.io", *arguments]
        return subprocess.run(command, check=False, capture_output=True)

    def _start_control_plane(self) -> None:
        pki, etcd = self.directory / "pki", f"http://127.0.0.1:{ETCD}"
        self._start(
            "etcd",
            f"--data-dir={self.directory}/etcd",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{ETCD_PEER}",
            "--unsafe-no-fsync",
        )
        self._start(
            "kube-apiserver",
            f"--etcd-servers={etcd}",
            "--bind-address=0.0.0.0",
            f"--secure-port={PORT}",
            f"--advertise-address={NODE_IP}",
            f"--tls-cert-file={pki}/kube-apiserver.crt",
            f"--tls-private-key-file={pki}/kube-apiserver.key",
            f"--client-ca-file={self.ca}",
            f"--token-auth-file={pki}/tokens.csv",
            f"--service-account-key-file={pki}/sa.key",
            f"--service-account-signing-key-file={pki}/sa.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--kubelet-client-certificate={pki}/apiserver-kubelet-client.crt",
            f"--kubelet-client-key={pki}/apiserver-kubelet-client.key",
            "--kubelet-preferred-address-types=InternalIP",
            "--authorization-mode=Node,RBAC",
            f"--service-cluster-ip-range={SERVICE_NETWORK}",
            "--allow-privileged=true",
            "--endpoint-reconciler-type=none",
        )
        self._write_kubeconfig("admin.conf", {"token": TOKEN})
        self.api = Api.connect(f"https://{NODE_IP}:{PORT}", self.ca.read_text(), TOKEN)
        until(self._api_ready, f"the API server; logs are in {self.directory}/log", START_SECONDS)
        controllers = self.kubeconfig("system:kube-controller-manager")
        self._start(
            "kube-controller-manager",
            f"--kubeconfig={controllers}",
            f"--root-ca-file={self.ca}",
            f"--service-account-private-key-file={pki}/sa.key",
            "--use-service-account-credentials",
            "--leader-elect=false",
        )
        self._start_scheduler()

    def _start_scheduler(self) -> None:
        kubeconfig = self.kubeconfig("system:kube-scheduler")
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(kubeconfig)},
        } | dict(self.scheduler or {})
        file = self.directory / "scheduler.yaml"
        file.write_text(yaml.safe_dump(config))
        self._start(
            "kube-scheduler",
            f"--config={file}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
        )

    def _start_kubelet(self) -> None:
        pki = self.directory / "pki"
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.ca)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": f"{pki}/kubelet-serving.crt",
            "tlsPrivateKeyFile": f"{pki}/kubelet-serving.key",
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            "failSwapOn": False,
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "enforceNodeAllocatable": [],
        }
        file = self.directory / "kubelet.yaml"
        file.write_text(yaml.safe_dump(config))
        self._start(
            "kubelet",
            f"--config={file}",
            f"--kubeconfig={self.kubeconfig(f'system:node:{NODE}', group='system:nodes')}",
            f"--hostname-override={NODE}",
            f"--node-ip={NODE_IP}",
            f"--root-dir={KUBELET_ROOT}",
        )

    def _start(self, name: str, *arguments: str) -> None:
        self._run(name, [str(binaries() / name), *arguments])

    def _run(self, name: str, command: Sequence[str]) -> None:
        self._commands[name] = command
        with (self.directory / "log" / name).open("ab") as log:
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def _api_ready(self) -> bool:
        try:
            return self.api.call("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def _node_ready(self) -> bool:
        code, node = self.api.call("GET", f"/api/v1/nodes/{NODE}")
        account = self.api.call("GET", "/api/v1/namespaces/default/serviceaccounts/default")[0]
        conditions = node.get("status", {}).get("conditions", ()) if code == 200 else ()
        ready = any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
        return ready and account == 200

    def _delete_pods(self) -> None:
        now = "?gracePeriodSeconds=0"
        try:
            for item in self.api.call("GET", "/api/v1/pods")[1]["items"]:
                meta = item["metadata"]
                self.api.call("DELETE", f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}{now}")
            # Kubelet ends the containers of pods that are gone.
            until(lambda: not self._ctr("tasks", "ls", "-q").stdout.strip(), "the containers to end", 30)
        except (OSError, TimeoutError):
            for task in self._ctr("tasks", "ls", "-q").stdout.decode().split():
                self._ctr("tasks", "kill", "--signal", "KILL", task)


def _mounts_below(*roots: Path) -> list[str]:
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return [mount for mount in mounts if any(Path(mount).is_relative_to(root) for root in roots)]


def _busybox_image(*tags: str) -> bytes:
    """An image archive that holds a static busybox and nothing else."""
    busybox = Path(str(shutil.which("busybox"))).read_bytes()
    links = ("sh", "sleep", "cat", "ls", "env", "id", "true", "stat")
    layer = _tar({"bin/busybox": busybox}, {f"bin/{name}": "busybox" for name in links})
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": ["/bin/sleep", "2147483647"], "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    encoded = json.dumps(config).encode()
    name = f"{hashlib.sha256(encoded).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": list(tags), "Layers": ["layer.tar"]}]
    return _tar({name: encoded, "layer.tar": layer, "manifest.json": json.dumps(manifest).encode()}, {})


def _tar(files: Mapping[str, bytes], links: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o755
            archive.addfile(info, io.BytesIO(content))
        for name, target in links.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
    return buffer.getvalue()
