# SPDX-License-Identifier: Apache-2.0
"""A simulated host: a directory tree that stands for one machine's ``/``, its commands included."""

from __future__ import annotations

import platform
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from sim.cluster import hostcmd
from sim.nvml import profiles, sysfs

_COMMANDS = Path(__file__).with_name("hostcmd.py")
_TESTS = Path(__file__).parents[2]
_UNITS = ("containerd", "kubelet")
_TOOLKIT = ("nvidia-container-runtime", "nvidia-ctk")
_DIRECTORIES = (
    *(
        "dev",
        "etc/containerd",
        "etc/kubernetes/manifests",
        "etc/kubernetes/pki",
        "etc/modprobe.d",
        "etc/modules-load.d",
        "etc/systemd/system",
    ),
    *(
        "proc/self",
        "run/systemd/system",
        "sys/bus/pci/devices",
        "sys/module",
        "usr/bin",
        "usr/lib/systemd/system",
        "usr/local/bin",
        "usr/local/sbin",
        "usr/sbin",
        "var/lib/kubelet",
        "var/log",
        "tmp",
    ),
    "var/lib/sim-systemd",
)


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A machine of the cluster."""

    name: str
    profile: str = ""
    """One of ``sim.nvml.profiles.PROFILES``; a machine without GPUs when empty."""
    containerd: str = "1.7.24"
    """Its version; it decides the version of config.toml."""


def _script(path: Path, lines: str) -> None:
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)


def _stand_in(path: Path, *words: str, host: Path | None = None) -> None:
    """A command of a simulated host, answered by ``hostcmd.py``."""
    given = f"SIMHOST_ROOT={shlex.quote(str(host))} " if host else ""
    call = shlex.join([sys.executable, "-P", str(_COMMANDS), *words])
    _script(path, f'export {given}PYTHONPATH={shlex.quote(str(_TESTS))}\nexec {call} "$@"')


def create(root: Path, spec: NodeSpec) -> Path:
    """The tree of a machine with containerd and the NVIDIA toolkit installed, without a driver. Returns its root."""
    host = root / spec.name
    for directory in _DIRECTORIES:
        (host / directory).mkdir(parents=True)
    if spec.profile:
        topology = profiles.PROFILES[spec.profile](spec.name)
        topology.save(host / "gpusim.conf")
        sysfs.write(topology, host)
    (host / "proc/self/mountinfo").write_text("")
    binaries = host / "usr/bin"
    environment = {"PATH": f"{binaries}:$PATH", "LD_LIBRARY_PATH": host / "usr/lib", "SIMHOST_ROOT": host}
    environment |= {"GPUSIM_FILE": host / "gpusim.conf"}
    exports = " ".join(f'{name}="{value}"' for name, value in environment.items())
    _script(binaries / "python3", f'export {exports}\nexec {shlex.quote(sys.executable)} "$@"')
    for name in ("systemctl", "systemd-run", "containerd", "ctr", "modprobe"):
        _stand_in(binaries / name, name, host=host)
    for name in ("mount", "mountpoint", "umount"):
        _stand_in(binaries / name, "mounts", name, host=host)
    for name in _TOOLKIT:
        _stand_in(binaries / name, "toolkit", name, host=host)
    module = host / hostcmd.MODULE
    _script(binaries / "modinfo", f'[ -e "{module}" ] && sed -n "s/^$4 //p" "{module}"')
    for unit in _UNITS:
        text = f"[Unit]\nDescription=simulated {unit}\n\n[Service]\nExecStart=/usr/bin/{unit}\n\n"
        (host / f"usr/lib/systemd/system/{unit}.service").write_text(text + "[Install]\nWantedBy=multi-user.target\n")
    (host / hostcmd.CONTAINERD_VERSION).write_text(spec.containerd)
    major, minor = (int(part) for part in spec.containerd.split(".")[:2])
    (host / "etc/containerd/config.toml").write_text(hostcmd.default_config((major, minor)))
    for unit in _UNITS:
        hostcmd.systemctl(host, ["enable", "--now", unit])
    return host


def write_installer(root: Path, version: str) -> Path:
    """The stand-in for NVIDIA's driver installer; it installs into the host whose Python ran it."""
    path = root / f"NVIDIA-Linux-{platform.machine()}-{version}.run"
    _stand_in(path, "installer", version)
    return path


def write_control_plane(
    host: Path,
    kubeconfig: str,
    ca: tuple[str, str],
    client: tuple[str, str],
    port: int,
    version: tuple[int, int] = (1, 34),
) -> None:
    """What kubeadm of this version leaves on a control plane of the files that concern kube-scheduler."""
    kubernetes = host / "etc/kubernetes"
    (kubernetes / "scheduler.conf").write_text(kubeconfig)
    for name, (certificate, key) in (("ca", ca), ("apiserver-kubelet-client", client)):
        (kubernetes / f"pki/{name}.crt").write_text(certificate)
        (kubernetes / f"pki/{name}.key").write_text(key)
    conf = "/etc/kubernetes/scheduler.conf"

    live, ready = ("/livez", "/readyz") if version >= (1, 32) else ("/healthz", "/healthz")

    def probe(path: str) -> dict[str, object]:
        return {"httpGet": {"host": "127.0.0.1", "path": path, "port": port, "scheme": "HTTPS"}, "periodSeconds": 10}

    container = {
        "name": "kube-scheduler",
        "image": "registry.k8s.io/kube-scheduler:v1.34.0",
        "command": [
            "kube-scheduler",
            f"--authentication-kubeconfig={conf}",
            f"--authorization-kubeconfig={conf}",
            "--bind-address=127.0.0.1",
            f"--kubeconfig={conf}",
            "--leader-elect=true",
            f"--secure-port={port}",
        ],
        "startupProbe": probe(live),
        "livenessProbe": probe(live),
        "readinessProbe": probe(ready),
        "resources": {"requests": {"cpu": "100m"}},
        "volumeMounts": [{"mountPath": conf, "name": "kubeconfig", "readOnly": True}],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "labels": {"component": "kube-scheduler", "tier": "control-plane"},
            "name": "kube-scheduler",
            "namespace": "kube-system",
        },
        "spec": {
            "containers": [container],
            "hostNetwork": True,
            "priorityClassName": "system-node-critical",
            "volumes": [{"hostPath": {"path": conf, "type": "FileOrCreate"}, "name": "kubeconfig"}],
        },
        "status": {},
    }
    (kubernetes / "manifests/kube-scheduler.yaml").write_text(yaml.safe_dump(pod))


def stop(host: Path) -> None:
    """End what runs on a host without the node agent: services and transient timers."""
    hostcmd.end_services(host)
    for timer in (host / "var/lib/sim-systemd").glob("*.timer"):
        hostcmd.end_timer(timer)
