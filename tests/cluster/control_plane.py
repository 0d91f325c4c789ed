# SPDX-License-Identifier: Apache-2.0
"""A real control plane for tests: etcd, kube-apiserver and kube-scheduler as processes, no kubelet, no root."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from kube_accel.kube.client import Credentials, KubeClient

BINARIES = Path(os.environ.get("KUBEBUILDER_ASSETS", "/usr/local/kubebuilder/bin"))
START_SECONDS = 60.0
RESOURCES = ("tencent.com/vcuda-core", "tencent.com/vcuda-memory")


def missing() -> str:
    """Which programs a control plane lacks here, as a reason to skip; empty when it has all."""
    names = [name for name in ("etcd", "kube-apiserver", "kube-scheduler") if not (BINARIES / name).is_file()]
    return f"no {', '.join(names)} in {BINARIES}; KUBEBUILDER_ASSETS names their directory" if names else ""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def wait_for(probe: Callable[[], Any], what: str, seconds: float = START_SECONDS) -> Any:
    """The first true answer. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = probe()
        if found:
            return found
        time.sleep(0.02)
    raise TimeoutError(f"{what}: not within {seconds:g} s")


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """What runs."""

    root: Path
    authority: trustme.CA
    port: int
    admin: KubeClient

    def certificate(self, name: str, common_name: str, organization: str = "") -> Path:
        """A PEM file with key and certificate, for a client and for 127.0.0.1 alike."""
        path = self.root / f"{name}.pem"
        leaf = self.authority.issue_cert("127.0.0.1", common_name=common_name, organization_name=organization or None)
        leaf.private_key_and_cert_chain_pem.write_to_path(path)
        path.chmod(0o600)
        return path

    def kubeconfig(self, name: str, common_name: str, organization: str = "") -> Path:
        """A kubeconfig of this user."""
        certificate = self.certificate(name, common_name, organization)
        return write_kubeconfig(self.root / f"{name}.conf", self.root / "ca.crt", self.port, certificate)

    @contextmanager
    def scheduler(self, extenders: Sequence[dict[str, Any]] = ()) -> Iterator[None]:
        """kube-scheduler with these extenders."""
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {
                "kubeconfig": str(self.kubeconfig("scheduler", "system:kube-scheduler")),
                "qps": 5000,
                "burst": 5000,
            },
            "leaderElection": {"leaderElect": False},
            "extenders": list(extenders),
        }
        path = self.root / "scheduler.json"
        path.write_text(json.dumps(config))
        port = free_port()
        with program(
            self.root, "kube-scheduler", f"--config={path}", f"--secure-port={port}", f"--cert-dir={self.root}"
        ):
            insecure = ssl._create_unverified_context()
            wait_for(lambda: answers(f"https://127.0.0.1:{port}/healthz", insecure), "kube-scheduler")
            yield


def write_kubeconfig(path: Path, ca: Path, port: int, certificate: Path) -> Path:
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(ca)}
    user = {"client-certificate": str(certificate), "client-key": str(certificate)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }
    path.write_text(json.dumps(document))
    return path


def answers(url: str, context: ssl.SSLContext | None = None) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2, context=context) as response:
            return bool(response.status == 200)
    except OSError:
        return False


@contextmanager
def program(root: Path, name: str, *flags: str, command: Sequence[str] = ()) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose log is in ``root``; ended at the end."""
    with (root / f"{name}.log").open("ab") as log:
        process = subprocess.Popen([*(command or [str(BINARIES / name)]), *flags], stdout=log, stderr=log, cwd=root)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def control_plane() -> Iterator[ControlPlane]:
    """etcd and kube-apiserver, serving."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cp")))
        authority = trustme.CA()
        authority.cert_pem.write_to_path(root / "ca.crt")
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (root / "sa.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        client_port, peer_port, port = free_port(), free_port(), free_port()
        etcd = f"http://127.0.0.1:{client_port}"
        peer = f"http://127.0.0.1:{peer_port}"
        plane = ControlPlane(
            root,
            authority,
            port,
            KubeClient(
                f"https://127.0.0.1:{port}",
                Credentials(root / "ca.crt", cert_file=root / "admin.pem", key_file=root / "admin.pem"),
                timeout=30,
            ),
        )
        server = plane.certificate("apiserver", "kube-apiserver")
        plane.certificate("admin", "admin", "system:masters")
        stack.enter_context(
            program(
                root,
                "etcd",
                f"--data-dir={root}/etcd",
                f"--listen-client-urls={etcd}",
                f"--advertise-client-urls={etcd}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
                "--unsafe-no-fsync",
            )
        )
        stack.enter_context(
            program(
                root,
                "kube-apiserver",
                f"--etcd-servers={etcd}",
                f"--secure-port={port}",
                "--bind-address=127.0.0.1",
                "--advertise-address=127.0.0.1",
                "--endpoint-reconciler-type=none",
                f"--tls-cert-file={server}",
                f"--tls-private-key-file={server}",
                f"--client-ca-file={root}/ca.crt",
                f"--service-account-key-file={root}/sa.key",
                f"--service-account-signing-key-file={root}/sa.key",
                "--service-account-issuer=https://kubernetes.default.svc",
                "--authorization-mode=RBAC",
                "--service-cluster-ip-range=10.96.0.0/16",
                # Nobody makes service accounts here.
                "--disable-admission-plugins=ServiceAccount",
                "--max-requests-inflight=4000",
                "--max-mutating-requests-inflight=2000",
            )
        )
        trusted = ssl.create_default_context(cafile=root / "ca.crt")
        wait_for(lambda: answers(f"https://127.0.0.1:{port}/readyz", trusted), "kube-apiserver")
        yield plane


@contextmanager
def extender_beside(plane: ControlPlane, port: int, name: str = "extender") -> Iterator[None]:
    """The shipped extender, ready."""
    certificate = plane.certificate(name, "kube-accel-extender")
    kubeconfig = plane.kubeconfig("extender-client", "extender", "system:masters")
    command = [str(Path(sys.executable).with_name("kube-accel")), "extender", f"--listen=127.0.0.1:{port}"]
    command += [f"--tls-cert={certificate}", f"--tls-key={certificate}", f"--client-ca={plane.root}/ca.crt"]
    with program(plane.root, name, f"--kubeconfig={kubeconfig}", command=command):
        context = ssl.create_default_context(cafile=plane.root / "ca.crt")
        wait_for(lambda: answers(f"https://127.0.0.1:{port}/readyz", context), "extender")
        yield


def entry(plane: ControlPlane, port: int) -> dict[str, Any]:
    """The scheduler's configuration of the extender."""
    certificate = str(plane.certificate("scheduler-client", "kube-scheduler"))
    return {
        "urlPrefix": f"https://127.0.0.1:{port}/scheduler",
        "filterVerb": "predicates",
        "prioritizeVerb": "priorities",
        "preemptVerb": "preemption",
        "bindVerb": "bind",
        "weight": 1,
        "enableHTTPS": True,
        "tlsConfig": {"caFile": f"{plane.root}/ca.crt", "certFile": certificate, "keyFile": certificate},
        "nodeCacheCapable": True,
        "managedResources": [{"name": name, "ignoredByScheduler": False} for name in RESOURCES],
    }
