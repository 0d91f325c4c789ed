# SPDX-License-Identifier: Apache-2.0
"""The main job, end to end: a bare inventory becomes a cluster that shares GPUs. No GPU, no cluster, no root."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from demo.allocation import GpuRow, table
from demo.cluster import LOOK, Cluster, Wish, simulated_cluster
from demo.picture import picture
from demo.playbook import run_site
from demo.story import DemoError, Story, until, workplace
from demo.usage import OUTPUT, SCRAPE_SECONDS, Expected, report, scraped
from kube_accel.plugin.allocation.ledger import refusals
from sim.cluster import namespace
from sim.forks import forks
from sim.inventory import write_inventory
from sim.nvml.topology import Topology

PROFILES = {"gpu-a": "8xh100", "gpu-b": "8xh100", "gpu-c": "t4", "gpu-d": "t4"}
MODES = {"gpu-a": "pgpu", "gpu-b": "vgpu", "gpu-c": "mps", "gpu-d": "cgpu"}
SHORT = ("gpu-a", "gpu-b")
"""The nodes of the short story. What it leaves out, the long one tells."""
QUOTA = {"namespaces": {"team-a": {"limits": [{"cores": 50}]}}}
TESTS = Path(__file__).parents[1]


def program(name: str, *words: object) -> str:
    """How a shell runs a program of the demo."""
    return " ".join([f"PYTHONPATH={TESTS} exec python3 {TESTS}/demo/{name}.py", *map(str, words)])


def working(wish: Wish, gib: int, percent: int) -> Wish:
    """The pod, with a program that uses so much of each GPU it sees."""
    return replace(wish, command=f"{LOOK}; {program('work', gib, percent)}")


def vgpu(name: str, cores: int, gib: int, namespace: str = "default") -> Wish:
    return Wish(name, {"tencent.com/vcuda-core": cores, "tencent.com/vcuda-memory": gib * 4}, namespace)


def mps(name: str, cores: int, gib: int) -> Wish:
    return Wish(name, {"nvidia.com/mps-core": cores, "nvidia.com/mps-memory": gib})


def cgpu(name: str, gib: int) -> Wish:
    return Wish(name, {"aliyun.com/gpu-mem": gib})


WHOLE = [
    working(Wish("one-gpu", {"nvidia.com/gpu": 1}), 60, 80),
    working(Wish("two-gpus", {"nvidia.com/gpu": 2}), 40, 60),
    working(Wish("four-gpus", {"nvidia.com/gpu": 4}), 70, 90),
]
TOO_MANY = Wish("too-many", {"nvidia.com/gpu": 9})
SHARES = [
    working(vgpu("small-1", 30, 8), 6, 25),
    working(vgpu("small-2", 30, 8), 5, 15),
    working(vgpu("small-3", 30, 8, namespace="team-a"), 7, 20),
    working(vgpu("half-1", 50, 16), 12, 40),
    # Most of what it asked for is wasted, and the report is to say so.
    working(vgpu("half-2", 50, 16), 2, 5),
]
SPREAD = [
    Wish(f"{wish.name}-spread", wish.limits, wish.namespace, {"kube-accel.io/placement": "spread"}) for wish in SHARES
]
# It does nothing, and the report is to say so.
SIX_GPUS = Wish("six-gpus", {"tencent.com/vcuda-core": 600})
MPS = [working(mps("mps-1", 30, 4), 2, 20), working(mps("mps-2", 50, 8), 5, 40)]
CGPU = [working(cgpu("cgpu-1", 4), 3, 30), working(cgpu("cgpu-2", 6), 4, 30)]
SMI = "nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits"
GREEDY = replace(vgpu("greedy", 20, 4), command=f'echo "nvidia-smi shows $({SMI}) MiB"; {program("program", 3, 6)}')
NEIGHBOR = replace(vgpu("neighbor", 20, 4), command=program("program", 2, 1))
EXCESS = vgpu("excess", 30, 8, namespace="team-a")
LARGE = vgpu("large", 10, 64)
EXPECTED = Expected(
    wasteful=frozenset({"half-2", "six-gpus"}),
    brief=frozenset(wish.name for wish in (*SPREAD, GREEDY, NEIGHBOR)),
)


NEXT = """\
Next, on your own cluster, from this clone (README.md, "Quick start"):
    pip install ansible-core -r requirements.txt    # in a virtual environment
    make image
    ansible-galaxy collection build --force && ansible-galaxy collection install --force accel-kubernetes-*.tar.gz
    cp examples/inventory.yml inventory.yml    # write your hosts and the path of this clone in it
    ansible-playbook -i inventory.yml accel.kubernetes.validate    # shows what is missing, and the remedy
    ansible-playbook -i inventory.yml accel.kubernetes.site --check --diff    # shows the changes, makes none
    ansible-playbook -i inventory.yml accel.kubernetes.site
To see all four modes on four nodes, and a second run of the site: make demo STORY=long"""


def tell(root: Path, story: Story, *, long: bool) -> None:
    """The story itself. Raises DemoError where it does not come out."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    began = time.time()
    nodes = tuple(MODES) if long else SHORT
    spec = {"control_plane": "control", "nodes": [{"name": name, "profile": PROFILES[name]} for name in nodes]}

    story.chapter(f"A bare cluster: one control plane and {len(nodes)} nodes with GPUs, nothing installed")
    # What Ansible does on this machine is quicker with them, and the same.
    with tempfile.TemporaryDirectory(prefix="accel-") as room, forks(Path(room)), simulated_cluster(root, spec, story):
        cluster = Cluster(root / "admin.conf")
        # As often as it is scraped: what takes hours elsewhere is over in a minute here.
        modes = {node: MODES[node] for node in nodes}
        inventory = write_inventory(root, modes, scheduler_quota=QUOTA, gpu_plugins_metrics_interval=SCRAPE_SECONDS)
        story.say("inventory: " + ", ".join(f"{node} has mode {mode}" for node, mode in modes.items()))
        story.show(offers(root, cluster, nodes))

        story.chapter("ansible-playbook accel.kubernetes.site")
        run_site(inventory, OUTPUT / "site-1.log", story)
        story.show(offers(root, cluster, nodes))

        with scraped(root, cluster.plugins(), story) as prometheus:
            whole_gpus(cluster, story)
            enforced(cluster, root, story)
            shares(cluster, story)
            if long:
                other_modes(cluster, story)

            story.chapter("Which pod has which part of each GPU")
            gpus = cluster.gpus()
            story.show(table(gpus))
            image = OUTPUT / "allocation.svg"
            image.write_text(picture(gpus))
            story.say(f"picture of it: {image}")

            broken_gpu(cluster, root, story)

            if long:
                second_run(inventory, OUTPUT / "site-2.log", story)

            story.chapter("ansible-playbook accel.kubernetes.report: which namespace used how much, and what it costs")
            report(root, prometheus, began, {gpu.model for gpu in gpus}, EXPECTED, story)
    story.chapter("Done: no process is left running, and only these files stay on disk")
    for path in sorted(OUTPUT.iterdir()):
        story.show(f"   {path}")
    story.show(f"\n{NEXT}")


def offers(root: Path, cluster: Cluster, nodes: Iterable[str]) -> str:
    """What each node has, and what it offers to pods."""
    lines = []
    for node in nodes:
        gpus = Topology.load(root / node / "gpusim.conf").gpus
        offered = cluster.offered(node)
        told = ", ".join(f"{name}: {amount}" for name, amount in sorted(offered.items())) or "no GPU"
        lines.append(f"{node}  {len(gpus)} x {gpus[0].model}  offers {told}")
    return "\n".join(lines)


def second_run(inventory: Path, log: Path, story: Story) -> None:
    """The site again. Raises DemoError when it changes anything."""
    story.chapter("ansible-playbook accel.kubernetes.site, again")
    again = run_site(inventory, log, story)
    if any(counters["changed"] for counters in again.values()):
        raise DemoError(f"the second run changed something; see {log}")
    story.say("the second run changed nothing")


def whole_gpus(cluster: Cluster, story: Story) -> None:
    """Pods get GPUs of their own."""
    story.chapter("Whole GPUs: pods ask for 1, 2 and 4, and one for more than any node has")
    cluster.submit(TOO_MANY)
    cluster.run(WHOLE)
    for wish in WHOLE:
        seen = until(lambda wish=wish: cluster.log(wish), f"the log of {wish.name}")
        gpus = sum(line.startswith("GPU ") for line in seen.splitlines())
        story.say(f"{wish.name} asks for {wish.asks} and sees {gpus} GPU{'s' if gpus > 1 else ''}")
    tell_refusal(cluster, TOO_MANY, "Insufficient nvidia.com/gpu", story)


def enforced(cluster: Cluster, root: Path, story: Story) -> None:
    """A program that takes more than its pod was given."""
    story.chapter("A share holds: greedy and neighbor have 20 % and 4 GiB each of one GPU of gpu-b")
    if why := namespace.forbidden():
        story.say(f"NO NAMESPACES HERE ({why}): the interposer is found by variables, which a program could undo")
    cluster.run([GREEDY, NEIGHBOR])
    for wish in (GREEDY, NEIGHBOR):
        log = until(
            lambda wish=wish: (said := cluster.log(wish)).endswith("done\n") and said, f"{wish.name} to be done"
        )
        for line in log.splitlines()[:-1]:
            story.say(f"{wish.name}: {line}")
    if "6 GiB: refused, CUDA error 2" not in cluster.log(GREEDY) or "refused" in cluster.log(NEIGHBOR):
        raise DemoError("expected CUDA to refuse greedy 6 GiB, and neighbor nothing")
    state = root / "gpu-b/var/lib/kube-accel"
    for row in until(lambda: refusals(state), "the ledger of gpu-b to count it"):
        name = f"{row.allocation.holder.namespace}/{row.allocation.holder.pod}"
        story.say(f"the ledger of gpu-b: refused allocations of {name}: {row.count}, reason: {row.reason}")
    (message,) = until(lambda: cluster.events(GREEDY, "GpuMemoryRefused"), "the event of greedy")
    story.say(f"kubectl describe pod greedy: {message}")
    cluster.remove([GREEDY, NEIGHBOR])


def shares(cluster: Cluster, story: Story) -> None:
    """Several pods on a GPU, and why they are packed."""
    story.chapter(
        "vGPU shares on gpu-b: three of 30 % and 8 GiB, two of 50 % and 16 GiB; then a pod that asks for 6 GPUs"
    )
    cluster.create_namespace("team-a")
    cluster.run(SPREAD)
    cluster.submit(SIX_GPUS)
    story.say(f"spread, each to the emptiest GPU: the 5 pods use {touched(cluster, SPREAD, 5)}; 3 GPUs stay whole")
    tell_refusal(cluster, SIX_GPUS, "gpu-b: ", story)
    cluster.remove([SIX_GPUS, *SPREAD])
    cluster.run(SHARES)
    story.say(f"binpack, the default: the 5 pods use {touched(cluster, SHARES, 2)}; 6 GPUs stay whole")
    cluster.submit(EXCESS)
    tell_refusal(cluster, EXCESS, "quota of namespace team-a", story)
    cluster.run([SIX_GPUS])
    story.say("six-gpus runs")
    cluster.submit(LARGE)
    tell_refusal(cluster, LARGE, "gpu-b: ", story)


def other_modes(cluster: Cluster, story: Story) -> None:
    """Shares that programs are told of by MPS, and shares of memory alone."""
    story.chapter("MPS shares on gpu-c, cGPU shares of memory on gpu-d")
    cluster.run([*MPS, *CGPU])
    for wish in MPS:
        log = until(lambda wish=wish: cluster.log(wish), f"the log of {wish.name}")
        told = [line for line in log.splitlines() if line.startswith(("CUDA_MPS_ACTIVE", "CUDA_MPS_PINNED"))]
        story.say(f"{wish.name} asks for {wish.asks} and sees {' '.join(sorted(told))}")
    for wish in CGPU:
        story.say(f"{wish.name} asks for {wish.asks} and runs")


def tell_refusal(cluster: Cluster, wish: Wish, reason: str, story: Story) -> None:
    """Says why a pod is pending, once the scheduler gives that reason."""
    message = until(
        lambda: reason in (said := cluster.why_pending(wish)) and said, f'{wish.name} to be refused with "{reason}"'
    )
    story.say(f"{wish.full_name} asks for {wish.asks} and is pending:\n{' ' * 11}{message}")


def touched(cluster: Cluster, wishes: Iterable[Wish], expected: int) -> str:
    """Return the GPUs that these pods use. Raises DemoError when it is another number of them."""
    names = {wish.full_name for wish in wishes}
    found = [gpu.index for gpu in cluster.gpus() if any(part.pod in names for part in gpu.slices or ())]
    if len(found) != expected:
        raise DemoError(f"{', '.join(sorted(names))} use {len(found)} GPUs instead of {expected}")
    return f"GPUs {', '.join(map(str, found))}"


def broken_gpu(cluster: Cluster, root: Path, story: Story) -> None:
    """A GPU that nobody holds is lost and mended."""
    story.chapter("A GPU falls off the bus, and comes back")
    free = next(gpu for gpu in cluster.gpus() if gpu.node == "gpu-a" and not gpu.slices)
    topology_file = root / free.node / "gpusim.conf"
    for health, expected in (("lost", 7), ("ok", 8)):
        topology = Topology.load(topology_file)
        topology.set_health(free.index, health)
        topology.save(topology_file)
        story.say(f"{free.node}: GPU {free.index} is {health}")
        until(
            lambda expected=expected: cluster.allocatable(free.node, "nvidia.com/gpu") == expected,
            f"{free.node} to offer {expected} GPUs",
        )
        story.say(f"{free.node} offers {expected} GPUs; the pods run on")
        if health == "lost":
            story.show(table(until(lambda: bad_gpus(cluster), "the node to say why")))


def bad_gpus(cluster: Cluster) -> list[GpuRow]:
    return [gpu for gpu in cluster.gpus() if gpu.reason]


def main() -> int:
    """Runs the demo, the long one if its word is ``long``.

    0 when it came out, 1 when a step failed, 130 after Ctrl-C.
    """
    story = Story()
    try:
        with workplace() as root:
            tell(root, story, long=sys.argv[1:] == ["long"])
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: stopped; nothing is left behind", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
