# SPDX-License-Identifier: Apache-2.0
"""A real control plane for tests: etcd, kube-apiserver and kube-scheduler as processes, no kubelet, no root."""

from __future__ import annotations

import base64
import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from kube_accel.kube.client import Credentials, KubeClient

BINARIES = Path(os.environ.get("KUBEBUILDER_ASSETS", "/usr/local/kubebuilder/bin"))
START_SECONDS = 300.0
STOP_SECONDS = 10.0
LOG_END = 4000
"""Characters of a program's log that are shown when a test fails beside it."""
RESOURCES = (
    "tencent.com/vcuda-core",
    "tencent.com/vcuda-memory",
    "aliyun.com/gpu-mem",
    "nvidia.com/mps-core",
    "nvidia.com/mps-memory",
)
SERVICE_NETWORK, API_SERVICE = "10.96.0.0/16", "10.96.0.1"
TOKEN = "test-admin"
AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts:kube-system"]}, {"level": "None"}],
}
"""What service accounts of the namespace that ours are in ask for."""
SCHEDULER = "kube-scheduler"
GATES = os.environ.get("RIG_GATES", "")
"""Feature gates of all programs of Kubernetes, as their flag has them."""


def lacking(names: Iterable[str]) -> str:
    """Which of these programs there are not, as a reason to skip; empty when all are there."""
    lacks = [name for name in names if not (BINARIES / name).is_file()]
    return f"no {', '.join(lacks)} in {BINARIES}; KUBEBUILDER_ASSETS names their directory" if lacks else ""


def missing() -> str:
    """Why there can be no control plane here; empty when there can."""
    return lacking(("etcd", "kube-apiserver", SCHEDULER))


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


def answers(url: str, ca: Path | None = None) -> bool:
    """Whether it answers 200. Without a CA whoever answers is believed."""
    context = ssl.create_default_context(cafile=ca) if ca else ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(url, timeout=2, context=context) as response:
            return bool(response.status == 200)
    except OSError:
        return False


class Program:
    """A process and its log, ``<root>/<name>.log``. Ended by SIGTERM with the block."""

    def __init__(self, root: Path, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None):
        self._root, self._command, self._environment = root, command, dict(environment or {})
        self.log = root / f"{name}.log"
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdout=log, stderr=log, cwd=self._root, env=os.environ | self._environment
            )

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """Kill it and start it anew."""
        self.kill()
        self.start()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        if failed:
            print(f"{self.log}:\n{self.log.read_text()[-LOG_END:]}")
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """What runs, by name in ``programs``."""

    root: Path
    authority: trustme.CA
    admin: KubeClient
    """Its administrator."""
    programs: dict[str, Program] = field(default_factory=dict)

    @property
    def ca(self) -> Path:
        return self.root / "ca.crt"

    @property
    def audit(self) -> Path:
        """The API server's audit log."""
        return self.root / "audit.log"

    def certificate(self, name: str, common_name: str, organization: str = "", names: Sequence[str] = ()) -> Path:
        """A PEM file with key and certificate, for a client and for a server at 127.0.0.1 and ``names`` alike."""
        path = self.root / f"{name}.pem"
        leaf = self.authority.issue_cert(
            "127.0.0.1", *names, common_name=common_name, organization_name=organization or None
        )
        leaf.private_key_and_cert_chain_pem.write_to_path(path)
        path.chmod(0o600)
        return path

    def kubeconfig(self, name: str, common_name: str, organization: str = "") -> Path:
        """A kubeconfig of this user, which needs no other file."""
        data = base64.b64encode(self.certificate(name, common_name, organization).read_bytes()).decode()
        return self.write_kubeconfig(name, {"client-certificate-data": data, "client-key-data": data})

    def write_kubeconfig(self, name: str, user: Mapping[str, str]) -> Path:
        ca = base64.b64encode(self.ca.read_bytes()).decode()
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": self.admin.url, "certificate-authority-data": ca}}],
            "users": [{"name": "test", "user": dict(user)}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
        path = self.root / f"{name}.conf"
        path.write_text(json.dumps(document))
        path.chmod(0o600)
        return path

    @contextmanager
    def program(self, name: str, *flags: str, binary: str = "") -> Iterator[Program]:
        """A program of Kubernetes, or etcd."""
        flags += (f"--feature-gates={GATES}",) if GATES and name != "etcd" else ()
        with Program(self.root, name, [str(BINARIES / (binary or name)), *flags]) as program:
            self.programs[name] = program
            yield program

    @contextmanager
    def scheduler(
        self,
        extenders: Sequence[Mapping[str, Any]] = (),
        name: str = SCHEDULER,
        elect: bool = False,
        port: int = 0,
        profiles: Sequence[Mapping[str, Any]] = (),
    ) -> Iterator[Program]:
        """kube-scheduler with these extenders. With ``elect`` it serves once it leads, and is not waited for.

        ``port``: where it serves, any if 0. Without ``profiles`` it has its own.
        """
        # Short, and long enough for a leader on a busy machine.
        lease = {"leaseDuration": "8s", "renewDeadline": "6s", "retryPeriod": "1s"}
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {
                "kubeconfig": str(self.kubeconfig(name, "system:kube-scheduler")),
                "qps": 5000,
                "burst": 5000,
            },
            "leaderElection": {"leaderElect": elect, **(lease if elect else {})},
            "extenders": list(extenders),
            **({"profiles": list(profiles)} if profiles else {}),
        }
        path = self.root / f"{name}.json"
        path.write_text(json.dumps(config))
        port = port or free_port()
        flags = [f"--config={path}", f"--secure-port={port}", f"--cert-dir={self.root}/{name}"]
        flags += [f"--{what}-kubeconfig={self.root}/{name}.conf" for what in ("authentication", "authorization")]
        with self.program(name, *flags, binary=SCHEDULER) as program:
            wait_for(lambda: answers(f"https://127.0.0.1:{port}/healthz"), name)
            yield program


@contextmanager
def control_plane(
    address: str = "127.0.0.1", port: int = 0, names: Sequence[str] = (), accounts: bool = False
) -> Iterator[ControlPlane]:
    """etcd and kube-apiserver, serving. ``accounts``: somebody makes service accounts, so pods need theirs."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cp")))
        authority = trustme.CA()
        url = f"https://{address}:{port or free_port()}"
        plane = ControlPlane(root, authority, KubeClient(url, Credentials(root / "ca.crt", token=TOKEN), timeout=30))
        authority.cert_pem.write_to_path(plane.ca)
        authority.private_key_pem.write_to_path(root / "ca.key")
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (root / "sa.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        (root / "tokens.csv").write_text(f'{TOKEN},admin,admin,"system:masters"\n')
        plane.write_kubeconfig("admin", {"token": TOKEN})
        (root / "audit.json").write_text(json.dumps(AUDIT))
        server = plane.certificate("apiserver", "kube-apiserver", names=[API_SERVICE, address, *names])
        client = plane.certificate("apiserver-kubelet-client", "kube-apiserver-kubelet-client", "system:masters")
        etcd, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        stack.enter_context(
            plane.program(
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
            plane.program(
                "kube-apiserver",
                f"--etcd-servers={etcd}",
                f"--secure-port={url.rpartition(':')[2]}",
                f"--bind-address={address}",
                f"--advertise-address={address}",
                "--endpoint-reconciler-type=none",
                f"--tls-cert-file={server}",
                f"--tls-private-key-file={server}",
                f"--client-ca-file={plane.ca}",
                f"--requestheader-client-ca-file={plane.ca}",
                "--requestheader-allowed-names=front-proxy",
                f"--token-auth-file={root}/tokens.csv",
                f"--service-account-key-file={root}/sa.key",
                f"--service-account-signing-key-file={root}/sa.key",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--kubelet-client-certificate={client}",
                f"--kubelet-client-key={client}",
                "--kubelet-preferred-address-types=InternalIP",
                "--authorization-mode=Node,RBAC",
                f"--audit-policy-file={root}/audit.json",
                f"--audit-log-path={plane.audit}",
                f"--service-cluster-ip-range={SERVICE_NETWORK}",
                "--allow-privileged=true",
                *([] if accounts else ["--disable-admission-plugins=ServiceAccount"]),
                "--max-requests-inflight=4000",
                "--max-mutating-requests-inflight=2000",
            )
        )
        wait_for(lambda: answers(f"{plane.admin.url}/readyz", plane.ca), "kube-apiserver")
        yield plane


@contextmanager
def extender_beside(plane: ControlPlane, port: int, name: str = "extender") -> Iterator[Program]:
    """The shipped extender, ready."""
    certificate = plane.certificate(name, "kube-accel-extender")
    kubeconfig = plane.kubeconfig(f"{name}-client", name, "system:masters")
    command = [str(Path(sys.executable).with_name("kube-accel")), "extender", f"--listen=127.0.0.1:{port}"]
    command += [f"--tls-cert={certificate}", f"--tls-key={certificate}", f"--client-ca={plane.ca}"]
    with Program(plane.root, name, [*command, f"--kubeconfig={kubeconfig}"]) as program:
        wait_for(lambda: answers(f"https://127.0.0.1:{port}/readyz", plane.ca), name)
        yield program


def entry(plane: ControlPlane, port: int) -> dict[str, Any]:
    """The scheduler's configuration of the extender."""
    certificate = str(plane.certificate("scheduler-client", "kube-scheduler"))
    return {
        "urlPrefix": f"https://127.0.0.1:{port}/scheduler",
        "filterVerb": "predicates",
        "prioritizeVerb": "priorities",
        "preemptVerb": "preemption",
        "bindVerb": "bind",
        "weight": 200,
        "enableHTTPS": True,
        "tlsConfig": {"caFile": str(plane.ca), "certFile": certificate, "keyFile": certificate},
        "nodeCacheCapable": True,
        "managedResources": [{"name": name, "ignoredByScheduler": False} for name in RESOURCES],
    }
