# SPDX-License-Identifier: Apache-2.0
"""One container as a process of this machine: mounts, environment, runtime handler, start and end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from sim import cgroups
from sim.cluster import namespace
from sim.cluster.kinds import Object, dig
from sim.kubelet import DeviceSpec, Mount
from sim.nvml.topology import Topology

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
PATH = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
"""Stands for the image: whatever it is, our Python is in it."""
_CRI = ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
_REFERENCE = re.compile(r"\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")


IMAGE_LIBRARIES = "/usr/lib/kube-accel/native"
"""Where our image has the interposer."""


class ContainerError(Exception):
    """A container cannot be made; ``reason`` is what its waiting state says."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Mounts:
    """Which paths of a container lie where on this machine."""

    def __init__(self, mounts: Mapping[str, Path]) -> None:
        # The longest path first: a mount within a mount hides what is below.
        self._mounts = sorted(mounts.items(), key=lambda item: -len(item[0]))

    def seen(self, path: str) -> Path | None:
        """The place of a container's path on this machine, None when nothing is mounted there."""
        for inside, outside in self._mounts:
            if path == inside or path.startswith(inside.rstrip("/") + "/"):
                return outside / path[len(inside) :].lstrip("/")
        return None

    def rewrite(self, text: str) -> str:
        """An argument or value with the path it consists of or assigns (``--flag=/path``) replaced."""
        match = re.fullmatch(r"(--?[\w-]+=)?(/.*)", text, re.DOTALL)
        place = self.seen(match[2]) if match else None
        return f"{match[1] or ''}{place}" if match and place else text


def expand(text: str, env: Mapping[str, str]) -> str:
    """``$(NAME)`` replaced where the name is known, ``$$`` by ``$``, as kubelet does."""
    return _REFERENCE.sub(lambda match: "$" if match[0] == "$$" else env.get(match[1], match[0]), text)


def environment(container: Object, pod: Object, base: Mapping[str, str]) -> dict[str, str]:
    """The container's variables on top of ``base``. Raises ContainerError for a source that is not simulated."""
    env = dict(base)
    for variable in container.get("env", ()):
        source = variable.get("valueFrom")
        if not source:
            env[variable["name"]] = expand(variable.get("value", ""), env)
        elif "fieldRef" in source:
            env[variable["name"]] = _field(pod, source["fieldRef"]["fieldPath"])
        else:
            why = f"the simulated node does not offer valueFrom {sorted(source)}"
            raise ContainerError("CreateContainerConfigError", why)
    if container.get("envFrom"):
        raise ContainerError("CreateContainerConfigError", "the simulated node does not offer envFrom")
    return env


def _field(pod: Object, path: str) -> str:
    keyed = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
    value = (pod["metadata"].get(keyed[1]) or {}).get(keyed[2], "") if keyed else dig(pod, path)
    if not isinstance(value, str):
        raise ContainerError("CreateContainerConfigError", f"unsupported fieldPath: {path}")
    return value


def runtimes(config: Path) -> tuple[str, dict[str, Object]]:
    """Default runtime name and the runtimes of a containerd configuration of version 2, 3 or 4."""
    plugins = tomllib.loads(config.read_text()).get("plugins", {})
    containerd: Object = next((plugins[key].get("containerd", {}) for key in _CRI if key in plugins), {})
    return containerd.get("default_runtime_name", "runc"), {"runc": {}} | containerd.get("runtimes", {})


def gpu_environment(env: Mapping[str, str], runtime: Object, host: Path, directory: Path) -> dict[str, str]:
    """What an nvidia runtime makes visible to a container with NVIDIA_VISIBLE_DEVICES; nothing for another runtime.

    Raises ContainerError as the runtime's hook does when there is no driver, or it is not loaded.
    """
    binary = dig(runtime, "options.BinaryName") or ""
    visible = env.get("NVIDIA_VISIBLE_DEVICES", "void")
    if "nvidia-container-runtime" not in binary or visible in ("", "void"):
        return {}
    if not (host / binary.lstrip("/")).exists():
        raise ContainerError("RunContainerError", f'exec: "{binary}": stat {binary}: no such file or directory')
    if not (host / "usr/lib/libnvidia-ml.so.1").exists():
        why = "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1"
        raise ContainerError("RunContainerError", f"{why}: cannot open shared object file: no such file or directory")
    if not (host / "sys/module/nvidia/version").exists():
        why = "nvidia-container-cli: initialization error: nvml error: driver not loaded"
        raise ContainerError("RunContainerError", why)
    # What the runtime mounts into the container is found on its PATH.
    programs = directory / "bin"
    programs.mkdir(exist_ok=True)
    asked = env.get("NVIDIA_DRIVER_CAPABILITIES", "utility").split(",")
    for capability, name in (("utility", "nvidia-smi"), ("compute", "nvidia-cuda-mps-control")):
        (programs / name).unlink(missing_ok=True)
        if capability in asked or "all" in asked:
            (programs / name).symlink_to(host / "usr/bin" / name)
    shown = {} if visible == "all" else {"GPUSIM_VISIBLE": visible}
    shown |= {"PATH": f"{programs}:{env['PATH']}", "LD_LIBRARY_PATH": str(host / "usr/lib")}
    return shown | {"GPUSIM_FILE": str(host / "gpusim.conf")}


def device_environment(devices: Iterable[DeviceSpec], host: Path) -> dict[str, str]:
    """What a driver goes by that finds the device nodes of some GPUs only."""
    minors = {match[1] for spec in devices if (match := re.fullmatch(r"/dev/nvidia([0-9]+)", spec.container_path))}
    if not minors:
        return {}
    topology = Topology.load(host / "gpusim.conf")
    seen = [gpu.uuid for gpu in topology.gpus if str(gpu.index if gpu.minor is None else gpu.minor) in minors]
    return {"GPUSIM_FILE": str(host / "gpusim.conf"), "GPUSIM_VISIBLE": ",".join(seen)}


def enclosed(
    argv: list[str], mounts: Iterable[tuple[Path, Mount]], directory: Path
) -> tuple[list[str], dict[str, str], str]:
    """A command and environment for files that device plugins have mounted at their paths, and a line for the log.

    ``mounts``: where each lies on this machine. Where namespaces are forbidden the files are found by variables, which
    is no test of what cannot be got around.
    """
    rows = [
        (str(source), mount.container_path, mount.read_only)
        for source, mount in mounts
        if source != Path("/dev/null") and str(source) != mount.container_path and source.exists()
    ]
    if not rows:
        return argv, {}, ""
    # Empty, not absent: the programs of a simulated host would take the host's.
    if not (why := namespace.forbidden()):
        return namespace.command(directory, rows, argv), {"GPUSIM_LIBRARIES": ""}, ""
    found = directory / "translated"
    for source, target, _ in rows:
        kind = "driver" if "/kube-accel/driver/" in target else "lib" if ".so" in target else "bin"
        link = found / kind / Path(target).name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(source)
    env = dict.fromkeys(("LD_LIBRARY_PATH", "GPUSIM_LIBRARIES"), str(found / "lib")) | {
        "PATH": f"{found / 'bin'}:{PATH}"
    }
    env |= {"KUBE_ACCEL_DRIVER": str(found / "driver")}
    env |= {f"KUBE_ACCEL_{name.upper()}": str(found / "bin" / name) for name in ("policy", "state")}
    return argv, env, f"SIMULATOR: no namespaces here ({why}): mounts are translated into variables\n"


class Running(Protocol):
    """A started container."""

    id: str

    def fileno(self) -> int:
        """Readable once the container has ended."""

    def poll(self) -> int | None:
        """The exit code, None while it runs."""

    def end(self, force: bool) -> None:
        """Ask it to end, or kill it."""

    def close(self) -> None:
        """Give back what belongs to an ended container."""


class Process:
    """A container that is a process group of its own."""

    def __init__(self, argv: list[str], env: Mapping[str, str], directory: Path, log: Path) -> None:
        with log.open("ab") as output:
            try:
                self._process = subprocess.Popen(
                    argv,
                    env=dict(env),
                    cwd=directory,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            except OSError as error:
                why = f'exec: "{argv[0]}": {(error.strerror or "").lower()}'
                raise ContainerError("RunContainerError", f"failed to create containerd task: {why}") from error
        self._fd = os.pidfd_open(self._process.pid)
        self.id = f"process://{cgroups.container_id(self._process.pid)}"

    def fileno(self) -> int:
        return self._fd

    def poll(self) -> int | None:
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def end(self, force: bool) -> None:
        with suppress(ProcessLookupError):
            if force:
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.terminate()

    def close(self) -> None:
        # A container's end is the end of all its processes.
        self.end(force=True)
        os.close(self._fd)
