# SPDX-License-Identifier: Apache-2.0
"""The demo's cluster, which stays up with a kubeconfig until Ctrl-C: for tutorials, on a laptop without a GPU.

``python -m demo.playground bare`` leaves the first run of the site to you, as the tutorials do.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path

from demo.cluster import simulated_cluster
from demo.playbook import run_site
from demo.story import DemoError, Story, workplace
from sim.forks import forks
from sim.inventory import write_inventory

OUTPUT = Path(".build/playground")
PROFILES = {"gpu-1": "2xa100", "gpu-2": "2xa100"}
MODES = {"gpu-1": "pgpu", "gpu-2": "vgpu"}


def play(root: Path, story: Story, *, bare: bool) -> None:
    """Start the cluster, run the site unless it is to be ``bare``, and say how to use it, until Ctrl-C.

    Raises DemoError on a failure.
    """
    OUTPUT.mkdir(parents=True, exist_ok=True)
    nodes = [{"name": name, "profile": profile} for name, profile in PROFILES.items()]
    story.chapter("A simulated cluster: one control plane, and two nodes with two A100 each")
    spec = {"control_plane": "control-1", "nodes": nodes}
    with tempfile.TemporaryDirectory(prefix="accel-") as room, forks(Path(room)), simulated_cluster(root, spec, story):
        inventory = write_inventory(root, {} if bare else MODES)
        _link(OUTPUT / "inventory.yml", inventory)
        _link(OUTPUT / "kubeconfig", root / "admin.conf")
        if not bare:
            story.chapter("ansible-playbook accel.kubernetes.site")
            run_site(inventory, OUTPUT / "site.log", story)
        story.chapter("The playground is up. Ctrl-C ends it, and leaves nothing behind")
        story.show(_manual(BARE if bare else SERVING))
        signal.pause()


BARE = """\
Nothing is installed on the nodes yet. docs/tutorials/first-whole-gpus.md begins here, at its step 4."""
SERVING = """\
gpu-1 offers whole GPUs, and gpu-2 shares of GPUs (mode vgpu):

    kubectl inspect gpu
    kubectl create -f examples/kubernetes/one_gpu.yml -f examples/kubernetes/gpu_share.yml
    kubectl logs one-gpu"""


def _manual(state: str) -> str:
    here = OUTPUT.absolute()
    return f"""\
In another terminal, in this directory:

    export KUBECONFIG={here}/kubeconfig PATH={Path(sys.executable).parent}:$PATH
    export ANSIBLE_COLLECTIONS_PATH={Path(".build/link").absolute()}
    kubectl get nodes
    ansible-playbook -i {here}/inventory.yml accel.kubernetes.validate

{state}

Any kubectl will do. Here it does not exec into pods, and does not change what exists by apply: delete it, and create it
again. Programs of pods run on this machine, as you."""


def _link(name: Path, target: Path) -> None:
    name.unlink(missing_ok=True)
    name.symlink_to(target)


def main() -> int:
    """Run the playground, without the site if its word is ``bare``. 0 after Ctrl-C, 1 when a step failed."""
    story = Story()
    try:
        with workplace() as root:
            play(root, story, bare=sys.argv[1:] == ["bare"])
    except DemoError as error:
        print(f"playground: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("playground: stopped; nothing is left running", file=sys.stderr)
    finally:
        for name in ("inventory.yml", "kubeconfig"):
            (OUTPUT / name).unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
