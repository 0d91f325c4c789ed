# SPDX-License-Identifier: Apache-2.0
"""``make bench BENCH=controller``: the playbook site on many hosts, timed from outside.

Every host is a directory tree with commands of its own, as in the tests; the API server, the control plane, its
scheduler and the extender are the simulated cluster's. On the GPU nodes no pod runs: that it does, and that a node
offers what its mode makes of its GPUs, is said by a thread of this process. Modules run on this machine too, over a
local connection: wall time and processor time hold what real hosts would do themselves. Memory is that of
ansible-playbook and its forks, without modules.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.api_stub import annotation
from bench.measure import Result, process_tree, report
from kube_accel.sharing.inventory_annotation import ANNOTATION
from sim.cluster import Cluster, NodeSpec, Spec, host
from sim.cluster.kinds import Object
from sim.cluster.node import node_object
from sim.cluster.store import set_condition
from sim.inventory import write_inventory
from sim.nvml import profiles

PROFILE = "t4"
MODES = ("pgpu", "vgpu")
"""The modes of the hosts, in turn."""
LABEL = "nvidia-device-enable"
REPOSITORY = Path(__file__).parents[2]
SAMPLE_SECONDS = 0.5
SLOWEST = 12
WARM = Path(__file__).with_name("warm_python.py")


class BenchError(Exception):
    """A run failed or did not do what is to be measured."""


@dataclass(slots=True)
class Cost:
    """What a run of the playbook took."""

    seconds: float = 0
    cpu_seconds: float = 0
    """The processor time of the controller and the modules together."""
    pss_bytes: int = 0
    """The most that ansible-playbook and its forks held together."""
    rss_bytes: int = 0
    """The most that ansible-playbook held itself."""
    tasks: list[tuple[float, str]] = field(default_factory=list)
    """Seconds that each task took on all hosts, and its name."""
    recap: dict[str, dict[str, int]] = field(default_factory=dict)

    def most(self, counter: str, nodes: Sequence[str]) -> int:
        return max(self.recap[node][counter] for node in nodes)


class Site:
    """Simulated hosts in directories, and the cluster they are nodes of."""

    def __init__(self, root: Path) -> None:
        self.nodes: list[str] = []
        driver = profiles.PROFILES[PROFILE]("any").system.driver
        self.cluster = Cluster(root, Spec("control", (), driver_versions=(driver,)))
        self._kubelets = threading.Thread(target=self._offer, daemon=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port: int = probe.getsockname()[1]

    def start(self) -> None:
        self.cluster.start()
        self._kubelets.start()

    def mode(self, node: str) -> str:
        return MODES[self.nodes.index(node) % len(MODES)]

    def add(self, count: int) -> None:
        """Bare hosts with a T4 each."""
        for _ in range(count):
            tree = host.create(self.cluster.root, NodeSpec(self._register({}), PROFILE))
            (tree / "var/lib/kubelet/device-plugins").mkdir(parents=True)

    def add_copies(self, count: int) -> None:
        """Hosts like the first ones, which the playbook has prepared."""
        made = self.nodes[: len(MODES)]
        for number in range(count):
            original = made[number % len(MODES)]
            node = self._register({LABEL: self.mode(original)})
            copy_host(self.cluster.root / original, self.cluster.root / node)

    def warm(self, python: Path) -> None:
        """Have the hosts' modules run by ``warm_python``."""
        own, shared = f"exec {sys.executable} ", f"exec {sys.executable} -ISE {WARM} {python} "
        for node in self.nodes:
            script = self.cluster.root / node / "usr/bin/python3"
            script.write_text(script.read_text().replace(own, shared))

    def inventory(self) -> Path:
        modes = {node: self.mode(node) for node in self.nodes}
        return write_inventory(self.cluster.root, modes, scheduler_extender_port=self._port)

    def _register(self, labels: dict[str, str]) -> str:
        number = len(self.nodes)
        name = f"gpu-{number:04d}"
        body = node_object(name, "127.0.0.1")
        body["metadata"]["labels"] |= labels
        body["metadata"]["annotations"] = {ANNOTATION: annotation(number, [])}
        self.cluster.store.create("nodes", "", body)
        self.nodes.append(name)
        return name

    def _offer(self) -> None:
        """What kubelets and device plugins do: pods are ready, and a node offers what its mode makes of its GPU."""
        gpu = profiles.PROFILES[PROFILE]("any").gpus[0]
        offers = {
            "pgpu": {"nvidia.com/gpu": "1"},
            "vgpu": {"tencent.com/vcuda-core": "100", "tencent.com/vcuda-memory": str(gpu.mem // (256 << 20))},
        }
        store = self.cluster.store
        while not store.closed:
            version = store.version
            for node in store.all("nodes"):
                offered = offers.get(node["metadata"]["labels"].get(LABEL, ""), {})
                if not offered.items() <= node["status"]["allocatable"].items():
                    store.edit("nodes", "", node["metadata"]["name"], lambda body, new=offered: _allocatable(body, new))
            for pod in store.all("pods"):
                if pod["spec"].get("nodeName") in self.nodes and pod["status"]["phase"] == "Pending":
                    store.edit("pods", pod["metadata"]["namespace"], pod["metadata"]["name"], _ready)
            store.wait(("nodes", "pods"), version, 30)


def _ready(pod: Object) -> None:
    containers = [container["name"] for container in pod["spec"]["containers"]]
    state = {"ready": True, "started": True, "restartCount": 0, "state": {"running": {}}}
    pod["status"] |= {"phase": "Running", "containerStatuses": [{"name": name} | state for name in containers]}
    for condition in ("Initialized", "ContainersReady", "Ready"):
        set_condition(pod, condition, "True")


def _allocatable(node: Object, offered: dict[str, str]) -> None:
    node["status"]["allocatable"] |= offered


def copy_host(tree: Path, copy: Path) -> None:
    """A host's tree under another name: what in it names its own place names the copy's."""
    shutil.copytree(tree, copy, symlinks=True)
    old, new = f"{tree}/", f"{copy}/"
    for directory, directories, files in os.walk(copy):
        for path in (Path(directory) / name for name in (*directories, *files)):
            if path.is_symlink():
                target = str(path.readlink())
                if target.startswith(old):
                    path.unlink()
                    path.symlink_to(new + target.removeprefix(old))
            elif path.is_file():
                text = path.read_bytes()
                if str(tree).encode() in text:
                    path.write_bytes(re.sub(re.escape(str(tree)).encode() + rb"(?![\w-])", str(copy).encode(), text))
                if path.name.startswith(f"{unit_name(tree)}-"):
                    path.rename(path.with_name(path.name.replace(unit_name(tree), unit_name(copy), 1)))


def unit_name(path: Path) -> str:
    """A path as the names of systemd's units have it."""
    kept = "".join(sign if sign.isalnum() or sign in "/_.:" else f"\\x{ord(sign):02x}" for sign in str(path))
    return kept.strip("/").replace("/", "-")


def run_site(inventory: Path, forks: int, log: Path) -> Cost:
    """Runs the playbook. Raises BenchError when it fails."""
    cost = Cost()
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "accel.kubernetes.site"]
    command += ["-i", str(inventory), f"--forks={forks}"]
    environment = os.environ | {"ANSIBLE_NOCOLOR": "1", "TMPDIR": str(inventory.parent), "PYTHONUNBUFFERED": "1"}
    used, begin = _children_seconds(), time.monotonic()
    with (
        log.open("w") as copy,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        ) as process,
    ):
        assert process.stdout
        ended = threading.Event()
        sampler = threading.Thread(target=_sample, args=(process.pid, cost, ended))
        sampler.start()
        title, since = "start", begin
        for line in process.stdout:
            copy.write(line)
            if match := re.match(r"(?:PLAY|TASK) (?:\[(.*)\]|RECAP) \*", line):
                cost.tasks.append((time.monotonic() - since, title))
                title, since = match[1] or "recap", time.monotonic()
            elif match := re.match(r"(\S+) +: (ok=.*)", line):
                cost.recap[match[1]] = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", match[2])}
        code = process.wait()
        ended.set()
        sampler.join()
    cost.seconds, cost.cpu_seconds = time.monotonic() - begin, _children_seconds() - used
    if code:
        raise BenchError(f"site.yml ended with {code}: see {log}")
    return cost


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _sample(root: int, cost: Cost, ended: threading.Event) -> None:
    while not ended.wait(SAMPLE_SECONDS):
        held = {}
        for pid in process_tree(root):
            with suppress(OSError, StopIteration):
                # A module's process is not the controller's.
                if b"ansible-playbook" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    held[pid] = _held(pid)
        if held:
            cost.pss_bytes = max(cost.pss_bytes, sum(pss for pss, _ in held.values()))
            cost.rss_bytes = max(cost.rss_bytes, held.get(root, (0, 0))[1])


def _held(pid: int) -> tuple[int, int]:
    """PSS and RSS in bytes."""
    sizes = dict(re.findall(r"^(Pss|Rss): +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE))
    return int(sizes.get("Pss", 0)) * 1024, int(sizes.get("Rss", 0)) * 1024


@contextmanager
def warm_python(root: Path) -> Iterator[Path]:
    """The socket of one that runs."""
    path = root / "python.sock"
    with subprocess.Popen([sys.executable, str(WARM), "serve", str(path)]) as process:
        try:
            while not path.exists():
                if process.poll() is not None:
                    raise BenchError(f"{WARM} ended with {process.returncode}")
                time.sleep(0.05)
            yield path
        finally:
            process.terminate()


@contextmanager
def running_site() -> Iterator[Site]:
    root = Path(tempfile.mkdtemp(prefix="accel-"))
    site = Site(root)
    try:
        site.start()
        yield site
    finally:
        site.cluster.stop()
        shutil.rmtree(root, ignore_errors=True)


def measure(
    hosts: int, forks: int, logs: Path, copies: bool = False, warm: bool = False
) -> tuple[list[Result], list[tuple[str, Cost]]]:
    """The first and the second run on ``hosts`` hosts; with ``copies`` only the second, on copies of prepared hosts.

    With ``warm`` modules run in forks of one process, and the processor time is the controller's alone.

    Raises BenchError when a run fails, or a second one changes something.
    """
    runs: list[tuple[str, Cost]] = []
    with running_site() as site, ExitStack() as stack:
        site.add(min(hosts, len(MODES)) if copies else hosts)
        first = run_site(site.inventory(), forks, logs / f"controller-{hosts}-first.log")
        if copies:
            site.add_copies(hosts - len(site.nodes))
        else:
            runs.append(("first", first))
        if warm:
            site.warm(stack.enter_context(warm_python(site.cluster.root)))
        log = logs / f"controller-{hosts}-noop.log"
        noop = run_site(site.inventory(), forks, log)
        runs.append(("noop", noop))
        if changed := [name for name, counted in noop.recap.items() if counted["changed"]]:
            raise BenchError(f"the second run changed {', '.join(changed)}: see {log}")
        nodes = list(site.nodes)
    params: dict[str, int | str] = {"hosts": hosts, "forks": forks}
    note = f"and {noop.most('skipped', nodes)} skipped, on the node with most"
    results = [Result("site", "noop_tasks", noop.most("ok", nodes), params, note)]
    for name, cost in runs:
        results += [
            Result("site", f"{name}_seconds", cost.seconds, params, f"{cost.cpu_seconds:.0f} s of processor time"),
            Result("site", f"{name}_pss_bytes", cost.pss_bytes, params, "ansible-playbook and its forks, at most"),
            Result("site", f"{name}_rss_bytes", cost.rss_bytes, params, "ansible-playbook itself, at most"),
        ]
    return results, runs


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench BENCH=controller", description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=[20, 50])
    parser.add_argument("--forks", type=int, default=10)
    parser.add_argument(
        "--copies", action="store_true", help="prepare two hosts, copy them, and measure the second run"
    )
    parser.add_argument(
        "--warm", action="store_true", help="spare this machine what hosts do themselves: modules need not be loaded"
    )
    options = parser.parse_args()
    logs = REPOSITORY / ".build" / "bench"
    logs.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    for hosts in options.hosts:
        try:
            measured, runs = measure(hosts, options.forks, logs, options.copies, options.warm)
        except BenchError as error:
            print(f"bench: {error}", file=sys.stderr)
            return 1
        for name, cost in runs:
            print(f"# {hosts} hosts, {name} run, the slowest tasks:")
            for seconds, title in sorted(cost.tasks, reverse=True)[:SLOWEST]:
                print(f"#   {seconds:7.1f} s  {title}", flush=True)
        results += measured
    report(results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
