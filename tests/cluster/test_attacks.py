# SPDX-License-Identifier: Apache-2.0
"""What a tenant with uid 0, below Pod Security *baseline*, does to the files of its share, while a neighbor starts.

The tenant keeps the capabilities that container runtimes leave it, ``CAP_FOWNER`` and ``CAP_CHOWN`` among them. Its
files come by mounts, by CDI, and by CDI for a claim.
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cluster import images
from cluster.control_plane import BINARIES, Program, answers
from cluster.dra import GROUP, SHARES, dra_node, give_classes
from cluster.node import STATE, GpuNode, pod
from cluster.rig import PODS, Rig, has_shares
from cluster.runtime import needs_cdi
from cluster.test_confined import CORES, SHARE, cuda, limited
from cluster.test_confined import rig as rig
from sim.cluster.client import until

pytestmark = [pytest.mark.attack, pytest.mark.usefixtures("files", "no_pods_left")]
NAMESPACE = "tenants"
TENANTS = f"/api/v1/namespaces/{NAMESPACE}/pods"
ACCOUNT, POLICY = "/run/kube-accel/state", "/etc/kube-accel/policy"
INTERPOSER, DRIVER = "/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib/kube-accel/driver/libcuda.so.1"
PORT = 9445
NOBODY = 65534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all", "env")
"""What follows is run by ``env``: ``setpriv`` still has root's capabilities when it runs a program."""
SET_ID = stat.S_ISUID | stat.S_ISGID
HELD = "EAGAIN"
"""What the kernel says to who wants a lease on a file that is open for writing."""
MOUNTED = "EBUSY"
_names = count()


@pytest.fixture(scope="module")
def namespace(bare_rig: Rig) -> Iterator[Rig]:
    """The tenants' namespace, which Pod Security admits what is *baseline* to."""
    images.load(images.misuse())
    labels = {"pod-security.kubernetes.io/enforce": "baseline"}
    bare_rig.api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": labels}})
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
    until(lambda: bare_rig.api.call("GET", account)[0] == 200, "the namespace's account")
    yield bare_rig
    bare_rig.kubectl("delete", "namespace", NAMESPACE)


@dataclass(frozen=True)
class Asking:
    """How pods ask for shares: by claims, or by resources."""

    rig: Rig
    claims: bool = False

    def pod(self, made: dict[str, Any]) -> dict[str, Any]:
        """A pod that asks for its share as it is given here."""
        if self.claims:
            (container,) = made["spec"]["containers"]
            container["resources"] = {"claims": [{"name": "share"}]}
            made["spec"]["resourceClaims"] = [{"name": "share", "resourceClaimTemplateName": "share"}]
        return made


@dataclass(frozen=True, kw_only=True)
class Server(Asking):
    """Who gives shares to these pods."""

    program: Program

    def tells(self, it: Tenant) -> bool:
        """Whether somebody is told that a tenant changed its account: who sees the pod, or the driver's log."""
        if self.claims:
            told = [line for line in self.program.log.read_text().splitlines() if it.account.parent.name in line]
            return any("the account of a claim was changed" in line for line in told)
        return "GpuAccountChanged" in it.events()


@pytest.fixture(scope="module", params=["mounts", "cdi", "claims"])
def plugin(rig: Rig, namespace: Rig, h100: GpuNode, request: pytest.FixtureRequest) -> Iterator[Server]:
    """The plugin that gives files by mounts, or by CDI, or the DRA driver; accounts lie where leases are known."""
    if request.param != "mounts":
        needs_cdi()
    STATE.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m,mode=755", "state", STATE], check=True)
    try:
        if request.param == "claims":
            yield from _claims(rig, h100)
            return
        flags = ["--device-list-strategy=cdi-cri", "--cdi-dir=/var/run/cdi"] if request.param == "cdi" else []
        with h100.plugin("vgpu", PORT, *flags) as program:
            h100.wait_allocatable(800, CORES)
            yield Server(rig, program=program)
    finally:
        subprocess.run(["umount", "--lazy", STATE], check=True)


def _claims(rig: Rig, h100: GpuNode) -> Iterator[Server]:
    if not has_shares():
        pytest.skip("shares of devices are on since Kubernetes 1.36")
    give_classes(rig)
    asked = {"deviceClassName": SHARES, "capacity": {"requests": {"cores": "30", "memory": "4Gi"}}}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "share"}}
    body["spec"] = {"spec": {"devices": {"requests": [{"name": "share", "exactly": asked}]}}}
    for name in (NAMESPACE, "default"):
        rig.api.create(f"{GROUP}/namespaces/{name}/resourceclaimtemplates", body)
    with dra_node(rig, h100).driver(PORT) as program:
        yield Server(rig, True, program=program)
    rig.kubectl("delete", "resourceclaimtemplate", "share")


@dataclass(frozen=True)
class Tenant:
    """A pod that did something to a file of its share."""

    rig: Rig
    name: str
    account: Path
    """On the host."""
    said: str
    """What became of it."""

    def events(self) -> dict[str, list[str]]:
        """Messages of the pod's events, by reason."""
        return _events(self.rig, NAMESPACE, self.name)

    def is_deleted(self) -> bool:
        code, found = self.rig.api.call("GET", f"{TENANTS}/{self.name}")
        return code == 404 or "deletionTimestamp" in found["metadata"]


@contextmanager
def tenant(asking: Asking, deed: str, file: str = ACCOUNT) -> Iterator[Tenant]:
    """A tenant that does this as soon as it starts, and goes on until the block ends."""
    name, rig = f"tenant-{next(_names)}", asking.rig
    made = asking.pod(pod(name, SHARE))
    (container,) = made["spec"]["containers"]
    container |= {
        "image": images.MISUSE,
        "command": ["/bin/misuse", deed, file],
        "securityContext": {"runAsUser": 0, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    rig.api.create(TENANTS, made)

    def said() -> list[str]:
        code, log = rig.api.call("GET", f"{TENANTS}/{name}/log")
        return log.split() if code == 200 else []

    lines = 1 if deed.endswith("-again") else 2
    try:
        inode, *rest = until(lambda: words if len(words := said()) >= lines else [], f"{name} to {deed} {file}")
        yield Tenant(rig, name, _account(int(inode)), *rest or [""])
    finally:
        rig.kubectl("delete", "pod", name, f"--namespace={NAMESPACE}", "--now", "--ignore-not-found", "--wait=true")


def _account(inode: int) -> Path:
    """The account that a container has, on the host."""
    (found,) = (path for path in STATE.glob("containers/*/state") if path.stat().st_ino == inode)
    return found


def _events(rig: Rig, namespace: str, name: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    query = f"fieldSelector=involvedObject.name%3D{name}"
    for item in rig.api.get(f"/api/v1/namespaces/{namespace}/events?{query}")["items"]:
        found.setdefault(item["reason"], []).append(item["message"])
    return found


def a_neighbor_starts(server: Server) -> os.stat_result:
    """At the first try, and gets its share; the status of its account."""
    name, rig = f"neighbor-{next(_names)}", server.rig
    rig.api.create(PODS, server.pod(cuda(name, confined=False)))
    rig.wait_running(name)
    limited(rig, name)
    assert "Failed" not in _events(rig, "default", name)
    account = _account(int(rig.kubectl("exec", name, "--", "stat", "-c", "%i", ACCOUNT))).stat()
    rig.kubectl("delete", "pod", name, "--now", "--wait=true")
    return account


def is_unharmed(server: Server) -> None:
    """Who gives shares runs and says so, and nothing went wrong in it that nobody had thought of."""
    assert server.program.process.poll() is None
    assert answers(f"http://127.0.0.1:{PORT}/healthz")
    assert answers(f"http://127.0.0.1:{PORT}/readyz")
    assert "Traceback" not in server.program.log.read_text()


def is_like(account: Path, other: os.stat_result) -> bool:
    """Whether an account has the size, mode and owner that another has, takes no more room, and bears nothing else."""

    def shape(status: os.stat_result) -> tuple[int, ...]:
        return status.st_size, status.st_blocks, status.st_mode, status.st_uid

    return shape(account.stat()) == shape(other) and os.listxattr(account) == []


def is_closed_to_local_users(account: Path) -> None:
    """Whatever the tenant made of it, no user of the host can run it or look at it."""
    for command in ([str(account)], ["cat", str(account)], ["stat", str(account)]):
        done = subprocess.run([*AS_NOBODY, *command], capture_output=True, text=True)
        assert done.returncode != 0
        assert "Permission denied" in done.stderr, done.stderr
    found = subprocess.run(
        [*AS_NOBODY, "find", "/var/lib", "/run", "/dev/shm", "-inum", str(account.stat().st_ino), "-perm", "/6000"],
        capture_output=True,
        text=True,
    )
    assert found.stdout == ""


def test_pod_security_refuses_a_tenants_host_path(namespace: Rig) -> None:
    made = cuda("outside", confined=False)
    code, said = namespace.api.call("POST", TENANTS, made)
    assert (code, "hostPath" in said["message"]) == (403, True)


@pytest.mark.parametrize(
    ("deed", "file"),
    [
        ("read-lease", ACCOUNT),
        ("grown-read-lease", ACCOUNT),
        ("write-lease", ACCOUNT),
        ("read-lease", POLICY),
        ("write-lease", POLICY),
        ("write-lease", INTERPOSER),
        ("write-lease", DRIVER),
    ],
)
def test_a_lease_keeps_no_neighbor_from_starting(plugin: Server, deed: str, file: str) -> None:
    with tenant(plugin, deed, file) as it:
        assert it.said == HELD
        a_neighbor_starts(plugin)
    is_unharmed(plugin)


@pytest.mark.parametrize(
    ("deed", "says"), [("lock", "done"), ("unlink", MOUNTED), ("replace", MOUNTED)], ids=lambda value: value
)
def test_locks_and_replacement_keep_no_neighbor_from_starting(plugin: Server, deed: str, says: str) -> None:
    with tenant(plugin, deed) as it:
        assert it.said == says
        other = a_neighbor_starts(plugin)
        assert is_like(it.account, other)
    is_unharmed(plugin)


@pytest.mark.parametrize("deed", ["cut", "grow", "sparse", "hide", "hide-and-fill", "attributes"])
def test_a_changed_account_is_put_right_and_told(plugin: Server, deed: str) -> None:
    with tenant(plugin, deed) as it:
        assert it.said == "done"
        other = a_neighbor_starts(plugin)
        until(lambda: is_like(it.account, other), "the account to be put right")
        until(lambda: plugin.tells(it), "somebody to be told")
        assert not it.is_deleted()
    is_unharmed(plugin)


@pytest.mark.parametrize("deed", ["setuid", "capabilities", "give-away"])
def test_no_local_user_runs_what_a_tenant_made_of_its_account(plugin: Server, deed: str) -> None:
    with tenant(plugin, deed) as it:
        assert it.said == "done"
        is_closed_to_local_users(it.account)
        other = a_neighbor_starts(plugin)
        until(lambda: plugin.tells(it), "somebody to be told")
        if deed != "give-away":  # root without CAP_CHOWN and CAP_FOWNER cannot take it back
            until(lambda: is_like(it.account, other), "the account to be put right")
            assert not it.account.stat().st_mode & SET_ID
        is_closed_to_local_users(it.account)
    is_unharmed(plugin)


@pytest.mark.parametrize("deed", ["cut-again", "fill-again"])
def test_a_tenant_that_goes_on_harms_nobody_else(plugin: Server, deed: str) -> None:
    with tenant(plugin, deed) as it:
        other = a_neighbor_starts(plugin)
        # No pod is taken away because of a claim: several may have it.
        if not plugin.claims:
            until(it.is_deleted, "the pod to be deleted")
            until(lambda: "GpuAccountAbused" in it.events(), "the event")
    if plugin.claims:
        until(lambda: not it.account.exists(), "the account to go with the claim")
    else:
        until(lambda: is_like(it.account, other), "the account to be put right")
    is_unharmed(plugin)


def test_an_account_that_a_new_plugin_cannot_open_costs_its_pod(rig: Rig, plugin: Server) -> None:
    if plugin.claims:
        pytest.skip("no pod is taken away because of a claim")
    with tenant(plugin, "give-away") as it:
        plugin.program.restart()
        until(lambda: answers(f"http://127.0.0.1:{PORT}/readyz"), "the plugin to be back")
        kubectl = [str(BINARIES / "kubectl"), f"--kubeconfig={rig.plane.root}/admin.conf"]
        fill = ["exec", it.name, f"--namespace={NAMESPACE}", "--", "/bin/misuse", "fill-again", ACCOUNT]
        with subprocess.Popen([*kubectl, *fill], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as filling:
            try:
                a_neighbor_starts(plugin)
                until(lambda: "GpuAccountAbused" in it.events(), "the event")
                until(it.is_deleted, "the pod to be deleted")
            finally:
                filling.kill()
        a_neighbor_starts(plugin)
    is_unharmed(plugin)
