# SPDX-License-Identifier: Apache-2.0
"""The main job, end to end: a bare inventory becomes a cluster that hands out GPUs. No GPU, no cluster, no root."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import yaml
from kubernetes import client, config

from demo.allocation import picture, rows, table
from sim.inventory import write_inventory
from sim.nvml.topology import Topology

SPEC = {
    "control_plane": "control",
    "nodes": [
        {"name": "gpu-a", "profile": "8xh100"},
        {"name": "gpu-b", "profile": "8xh100"},
        {"name": "gpu-c", "profile": "t4"},
    ],
}
WAIT_SECONDS = 60.0
REPOSITORY = Path(__file__).resolve().parents[2]


class DemoError(Exception):
    """A step did not come out as the story says; the message names the step and where to look."""


class Story:
    """Prints what happens, with the time since the start."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._start:6.1f} s] {text}", flush=True)

    def chapter(self, title: str) -> None:
        print(f"\n== {title}", flush=True)


@contextmanager
def simulated_cluster(root: Path, story: Story) -> Iterator[None]:
    """Runs the simulated cluster under root; when this ends, no process and no file of it is left."""
    spec = root.with_suffix(".yml")
    spec.write_text(yaml.safe_dump(SPEC))
    command = [sys.executable, "-m", "sim.cluster", "up", "--root", str(root), "--spec", str(spec), "--rm"]
    # A session of its own: Ctrl-C reaches us, and we end the cluster after the playbook that talks to it.
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        until(lambda: (root / "ready").exists() or process.poll() is not None, "the simulated cluster to start")
        if process.poll() is not None:
            raise DemoError(f"the simulated cluster ended with {process.returncode}")
        story.say(f"simulated cluster is up: {', '.join(node['name'] for node in SPEC['nodes'])}; files in {root}")
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(root, ignore_errors=True)
        spec.unlink(missing_ok=True)


def until(done: Callable[[], Any], what: str) -> Any:
    """Waits until done() returns something true and returns it. Raises DemoError naming what was waited for."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        if value := done():
            return value
        time.sleep(0.1)
    raise DemoError(f"waited {WAIT_SECONDS:.0f} s for {what}")


def run_site(inventory: Path, log: Path, story: Story) -> dict[str, dict[str, int]]:
    """Runs the site playbook, naming each task as it starts.

    Returns the recap: host to counter (``ok``, ``changed``, ``failed``, ...) to number of tasks.
    Raises DemoError when the playbook fails.
    """
    command = ["ansible-playbook", "-i", str(inventory), "accel.kubernetes.site"]
    # TMPDIR: what modules keep for a next run goes with the cluster.
    environment = os.environ | {
        "ANSIBLE_FORCE_COLOR": "0",
        "ANSIBLE_LOCALHOST_WARNING": "0",
        "TMPDIR": str(inventory.parent),
    }
    with (
        log.open("w") as copy,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        ) as process,
    ):
        assert process.stdout is not None
        try:
            recap = narrate(process.stdout, copy, story)
        except KeyboardInterrupt:
            process.wait()
            raise
    if process.returncode:
        tail = "".join(log.read_text().splitlines(keepends=True)[-30:])
        raise DemoError(f"site.yml failed; the end of {log}:\n{tail}")
    for host, counters in recap.items():
        story.say(f"{host}: " + ", ".join(f"{key} {counters[key]}" for key in ("ok", "changed", "failed")))
    return recap


def narrate(lines: Iterable[str], copy: TextIO, story: Story) -> dict[str, dict[str, int]]:
    """Tells what ansible-playbook prints: tasks that are not skipped, and what they change. Returns its recap."""
    recap: dict[str, dict[str, int]] = {}
    title, told = "", True
    for line in lines:
        copy.write(line)
        if match := re.match(r"(PLAY|TASK|RUNNING HANDLER) \[(.*)\] \*", line):
            title, told = match[2], match[1] == "PLAY"
            if told:
                story.say(title)
        elif match := re.match(r"(ok|changed|fatal|FAILED - RETRYING): \[([^\]]+)\]", line):
            if not told:
                story.say(f"    {title}")
                told = True
            if match[1] != "ok":
                what = "not yet" if match[1].startswith("FAILED") else match[1]
                story.say(f"        {what}: {match[2]}")
        elif match := re.match(r"(\S+)\s+: (ok=.*)", line):
            recap[match[1]] = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", match[2])}
    return recap


class Cluster:
    """What the demo asks the cluster, as any user would: through the API server."""

    def __init__(self, kubeconfig: Path) -> None:
        self._api = client.CoreV1Api(config.new_client_from_config(str(kubeconfig)))

    def nodes(self) -> list[dict[str, Any]]:
        to_dict = self._api.api_client.sanitize_for_serialization
        return [to_dict(node) for node in self._api.list_node().items]

    def submit(self, name: str, gpus: int) -> None:
        self._api.create_namespaced_pod("default", gpu_pod(name, gpus))

    def delete(self, name: str) -> None:
        self._api.delete_namespaced_pod(name, "default")

    def phase(self, name: str) -> str:
        return str(self._api.read_namespaced_pod(name, "default").status.phase)

    def log(self, name: str) -> str:
        return str(self._api.read_namespaced_pod_log(name, "default"))

    def why_pending(self, name: str) -> str:
        conditions = self._api.read_namespaced_pod(name, "default").status.conditions or []
        return next((c.message or "" for c in conditions if c.type == "PodScheduled" and c.status == "False"), "")

    def allocatable(self, node: str) -> int:
        return int(self._api.read_node(node).status.allocatable.get("nvidia.com/gpu", "0"))

    def holders(self) -> set[str]:
        return {row.holder.rpartition("/")[2] for row in rows(self.nodes()) if row.holder}


def gpu_pod(name: str, gpus: int) -> dict[str, Any]:
    """A pod that lists the GPUs it sees and stays."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "runtimeClassName": "nvidia",
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "main",
                    "image": "example.org/cuda:latest",
                    "command": ["sh", "-c", "nvidia-smi -L; exec sleep 3600"],
                    "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
                }
            ],
        },
    }


def tell(root: Path, story: Story) -> None:
    """The story itself. Raises DemoError where it does not come out."""
    output = REPOSITORY / ".build" / "demo"
    output.mkdir(parents=True, exist_ok=True)

    story.chapter("A bare cluster: one control plane, two nodes of 8 H100, one of a T4, nothing installed")
    with simulated_cluster(root, story):
        cluster = Cluster(root / "admin.conf")
        inventory = write_inventory(root)

        story.chapter("ansible-playbook accel.kubernetes.site")
        run_site(inventory, output / "site-1.log", story)

        story.chapter("Pods ask for 1, 2 and 4 GPUs, and one for more than any node has")
        wishes = {"one-gpu": 1, "two-gpus": 2, "four-gpus": 4, "too-many": 9}
        for name, gpus in wishes.items():
            cluster.submit(name, gpus)
            story.say(f"{name} asks for {gpus}")
        running = [name for name, gpus in wishes.items() if gpus <= 8]
        until(lambda: all(cluster.phase(name) == "Running" for name in running), "the pods to run")
        until(lambda: cluster.holders() >= set(running), "the nodes to publish who holds their GPUs")
        print(table(rows(cluster.nodes())))
        for name in running:
            seen = until(lambda name=name: cluster.log(name), f"the log of {name}")
            story.say(f"{name} sees {len(seen.splitlines())} GPU(s)")
        reason = until(lambda: cluster.why_pending("too-many"), "the scheduler's verdict on too-many")
        story.say(f"too-many waits: {reason}")
        image = output / "allocation.svg"
        image.write_text(picture(rows(cluster.nodes())))
        story.say(f"picture of the allocation: {image}")

        story.chapter("A GPU falls off the bus, and comes back")
        topology_file = root / "gpu-b" / "gpusim.conf"
        for health, expected in (("lost", 7), ("ok", 8)):
            topology = Topology.load(topology_file)
            topology.set_health(0, health)
            topology.save(topology_file)
            story.say(f"gpu-b: GPU 0 is {health}")
            until(lambda expected=expected: cluster.allocatable("gpu-b") == expected, f"gpu-b to offer {expected} GPUs")
            story.say(f"gpu-b offers {expected} GPUs; the other nodes are untouched")
            if health == "lost":
                bad = until(lambda: [row for row in rows(cluster.nodes()) if row.reason], "the node to say why")
                print(table(bad))

        story.chapter("ansible-playbook accel.kubernetes.site, again")
        again = run_site(inventory, output / "site-2.log", story)
        if any(counters["changed"] for counters in again.values()):
            raise DemoError(f"the second run changed something; see {output / 'site-2.log'}")
        story.say("the second run changed nothing")
        for name in wishes:
            cluster.delete(name)
    story.chapter("Done: nothing is left running, nothing is left on disk but")
    for path in sorted(output.iterdir()):
        print(f"   {path}")


def main() -> int:
    """Runs the demo; 0 when it came out, 1 when a step failed, 130 after Ctrl-C."""
    story = Story()
    # Also where a shell started us with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    root = Path(tempfile.mkdtemp(prefix="accel-"))
    try:
        tell(root, story)
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: stopped; nothing is left behind", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
