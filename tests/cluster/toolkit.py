# SPDX-License-Identifier: Apache-2.0
"""Stands in on the rig's node for what no test machine has: NVIDIA's container runtime, kernel module, systemd.

``toolkit.py BUNDLE`` gives a container that asks for GPUs the simulated driver, as the runtime gives the real one.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from sim.cluster import hostcmd
from sim.nvml.topology import Topology

_TESTS = Path(__file__).resolve().parents[1]
_BINARIES = Path("/usr/bin")
_CONTROL = Path("/usr/lib/nvidia-cuda-mps-control")
"""As containers have it: with the Python of the image."""
_SHARED = "/usr/lib/kube-accel/driver"
"""Where containers with a share have the driver."""
_HOST = "/run/gpusim"
"""Where containers see the host, for a topology that is replaced while they run."""


def install(containerd_pid: Path) -> None:
    """Put the commands on the node."""
    python = f"PYTHONPATH={shlex.quote(str(_TESTS))} SIMHOST_ROOT=/ {shlex.quote(sys.executable)} -P"
    find = 'before= bundle=\nfor word; do [ "$before" = --bundle ] && bundle=$word; before=$word; done'
    # Not for every container: starting Python takes longer than starting most of them.
    asks = 'grep -o \'"NVIDIA_VISIBLE_DEVICES=[^"]*"\' "$bundle/config.json" | grep -qvE \'=(void)?"$\''
    # Our plugin brings the simulated driver, and knows nothing of what that reads.
    asks += f' || {{ grep -q {_SHARED} "$bundle/config.json" && ! grep -q GPUSIM_FILE= "$bundle/config.json"; }}'
    inject = f'if [ -n "$bundle" ] && {{ {asks}; }}; then {python} {shlex.quote(__file__)} "$bundle" || exit; fi'
    _script("nvidia-container-runtime", f'{find}\n{inject}\nexec runc "$@"')
    # Whoever ended containerd has a new one already.
    restart = f"pid=$(cat {containerd_pid}); kill $pid; while kill -0 $pid 2>/dev/null; do sleep 0.05; done; exit"
    rest = f'exec env {python} {shlex.quote(hostcmd.__file__)} systemctl "$@"'
    _script("systemctl", f'if [ "$1 $2" = "restart containerd" ]; then {restart}; fi\n{rest}')
    # By this a host is known to run systemd.
    Path("/run/systemd/system").mkdir(parents=True, exist_ok=True)
    _script("systemd-run", f'exec env {python} {shlex.quote(hostcmd.__file__)} systemd-run "$@"')
    _script("modinfo", f'[ -e "/{hostcmd.MODULE}" ] && sed -n "s/^$4 //p" "/{hostcmd.MODULE}"')
    control = (_TESTS / "sim/mps/nvidia_cuda_mps_control.py").read_text()
    _CONTROL.write_text(f"#!/usr/bin/python3\n{control}")
    _CONTROL.chmod(0o755)


def _script(name: str, lines: str) -> None:
    path = _BINARIES / name
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)


def inject(bundle: Path) -> None:
    """Add the driver to a container that names GPUs, and to one with a share what the simulated driver goes by."""
    file = bundle / "config.json"
    spec = json.loads(file.read_text())
    environment = dict(entry.partition("=")[::2] for entry in spec["process"]["env"])
    if environment.get("NVIDIA_VISIBLE_DEVICES", "void") in ("", "void"):
        spec["process"]["env"].append(f"GPUSIM_VISIBLE={','.join(_opened(spec))}")
        # The GPUs' state, which it may change whoever it is.
        state = bundle / "gpusim"
        state.mkdir()
        state.chmod(0o777)
        shutil.copyfile("/gpusim.conf", state / "gpusim.conf")
        spec["mounts"].append({"source": str(state), "destination": _HOST, "type": "bind", "options": ["bind", "rw"]})
    else:
        driver = {"/usr/lib/libnvidia-ml.so.1": "/usr/lib/libnvidia-ml.so.1", "/": _HOST}
        if "compute" in environment.get("NVIDIA_DRIVER_CAPABILITIES", ""):
            driver[str(_CONTROL)] = "/usr/bin/nvidia-cuda-mps-control"
        spec["mounts"] += [
            {"source": source, "destination": destination, "type": "bind", "options": ["bind", "ro"]}
            for source, destination in driver.items()
        ]
    spec["process"]["env"].append(f"GPUSIM_FILE={_HOST}/gpusim.conf")
    file.write_text(json.dumps(spec))


def _opened(spec: dict[str, Any]) -> list[str]:
    """UUIDs of the GPUs whose device nodes a container has."""
    paths = {device["path"] for device in spec["linux"].get("devices", ())}
    gpus = Topology.load(Path("/gpusim.conf")).gpus
    return [gpu.uuid for gpu in gpus if f"/dev/nvidia{gpu.index if gpu.minor is None else gpu.minor}" in paths]


if __name__ == "__main__":
    inject(Path(sys.argv[1]))
