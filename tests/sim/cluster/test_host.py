# SPDX-License-Identifier: Apache-2.0
"""The commands of a simulated host answer as the real ones do, mistakes included."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sim.cluster import NodeSpec, host, hostcmd
from sim.cluster.client import command, until
from sim.cluster.containers import ContainerError, gpu_environment
from sim.cluster.hostcmd import RUNNING_CONFIG
from sim.nvml import sysfs
from sim.nvml.topology import Topology

VERSION = "580.159.04"


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kc") as directory:
        host.write_installer(Path(directory), VERSION)
        for spec in (NodeSpec("old", "t4", "1.7.24"), NodeSpec("new", "8xh100", "2.1.4"), NodeSpec("bare")):
            host.create(Path(directory), spec)
        yield Path(directory)


@pytest.mark.parametrize("text", ["[[[", "version = 3\n"], ids=["not TOML", "too new"])
def test_containerd_does_not_start_with_a_broken_configuration(root: Path, text: str) -> None:
    tree = root / "old"
    config, running = tree / "etc/containerd/config.toml", tree / RUNNING_CONFIG
    good, loaded = config.read_text(), running.read_text()
    config.write_text(text)
    assert "failed to load TOML" in command(tree, "containerd", "--config", str(config), "config", "dump", code=1)
    assert "Job for containerd.service failed" in command(tree, "systemctl", "restart", "containerd", code=1)
    assert command(tree, "systemctl", "is-active", "containerd", code=3) == "failed\n"
    assert "connection refused" in command(tree, "ctr", "version", code=1)
    assert running.read_text() == loaded
    config.write_text(good)
    command(tree, "systemctl", "restart", "containerd")
    command(tree, "ctr", "version")


@pytest.mark.parametrize(
    ("tree", "options", "message"),
    [
        ("old", ["--silent", "--no-such-option"], "unrecognized option: '--no-such-option'"),
        ("old", ["--silent", "--kernel-module-type=closed"], "Invalid kernel module type: 'closed'"),
        ("old", ["--dkms"], "use --silent"),
        ("bare", ["--silent"], "You do not appear to have an NVIDIA GPU"),
    ],
)
def test_installer_refuses(root: Path, tree: str, options: list[str], message: str) -> None:
    assert message in command(root / tree, "sh", str(next(root.glob("*.run"))), *options, code=1)


def test_installer_installs_and_uninstalls(root: Path) -> None:
    runfile, tree = str(next(root.glob("*.run"))), root / "old"
    command(tree, "sh", runfile, "--check")
    assert not (tree / "sys/module/nvidia").exists()
    command(tree, "sh", runfile, "-s", "--dkms", "--kernel-module-type=open")
    assert command(tree, "nvidia-smi", "-L").startswith("GPU 0: Tesla T4")
    assert (tree / "sys/module/nvidia/version").read_text() == f"{VERSION}\n"
    assert "already loaded" in command(tree, "sh", runfile, "-s", code=1)
    command(tree, "nvidia-uninstall")
    for path in ("sys/module/nvidia", "usr/lib/libnvidia-ml.so.1", "usr/bin/nvidia-smi", "dev/nvidia0"):
        assert not (tree / path).exists()


def test_container_finds_all_or_nothing_of_a_driver(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that starts in between would live on without the commands it was meant to have."""
    tree = host.create(root / "between", NodeSpec("node", "t4"))
    runtime = {"options": {"BinaryName": "/usr/bin/nvidia-container-runtime"}}
    found: list[bool] = []

    def start() -> None:
        gpu_environment({"NVIDIA_VISIBLE_DEVICES": "all", "PATH": ""}, runtime, tree, root)

    def load(topology: Topology, at: Path) -> None:
        with pytest.raises(ContainerError, match="nvml error: driver not loaded"):
            start()
        sysfs_load(topology, at)
        start()
        found.append(os.access(root / "bin/nvidia-smi", os.X_OK))

    sysfs_load = sysfs.load_driver
    monkeypatch.setattr(sysfs, "load_driver", load)
    hostcmd.installer(tree, [VERSION, "--silent"])
    assert found == [True]


def command_line(process: str) -> str:
    """Empty when it has ended, whether or not somebody has waited for it."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path("/proc", process, "cmdline").read_text()
    return ""


def test_timer_runs_unless_stopped(root: Path) -> None:
    tree = root / "bare"
    for unit, after in (("soon", "0.1s"), ("never", "1h")):
        mark = str(tree / f"tmp/{unit}")
        command(tree, "systemd-run", "--quiet", "--collect", f"--unit={unit}", f"--on-active={after}", "touch", mark)
    until((tree / "tmp/soon").exists, "the timer")
    waiting = (tree / "var/lib/sim-systemd/never.timer").read_text()
    # It is empty while a process becomes another program.
    until(lambda: "never" in command_line(waiting), "its program")
    command(tree, "systemctl", "stop", "never.timer")
    until(lambda: not command_line(waiting), "its end")


def test_the_last_unit_that_is_disabled_takes_its_directory(root: Path) -> None:
    tree = root / "bare"
    units, wants = tree / "etc/systemd/system", tree / "etc/systemd/system/multi-user.target.wants"
    (units / "job@.service").write_text("[Service]\nExecStart=true\n")
    command(tree, "systemctl", "enable", "job@a", "job@b")
    assert sorted(path.name for path in wants.iterdir()) == ["job@a.service", "job@b.service"]
    command(tree, "systemctl", "disable", "job@a")
    assert wants.is_dir()
    command(tree, "systemctl", "disable", "job@b")
    assert not wants.exists()
    assert units.is_dir()


def test_what_is_not_simulated_says_so(root: Path) -> None:
    assert "is not simulated" in command(root / "bare", "systemctl", "mask", "kubelet", code=1)
    assert "is not simulated" in command(root / "bare", "nvidia-ctk", "cdi", "generate", code=1)


@pytest.mark.parametrize("variables", [{}, {"LD_LIBRARY_PATH": ""}, {"LD_LIBRARY_PATH": "/nowhere"}])
def test_installed_driver_answers_with_any_libraries(
    variables: dict[str, str],
) -> None:
    with tempfile.TemporaryDirectory(prefix="kc") as directory:
        tree = host.create(Path(directory), NodeSpec("gpu", "t4"))
        hostcmd.installer(tree, [VERSION, "--silent"])
        assert (tree / "usr/lib/libcuda.so").resolve().name == f"libcuda.so.{VERSION}"
        smi = [tree / "usr/bin/nvidia-smi", "-L"]
        done = subprocess.run(smi, env={"PATH": os.environ["PATH"]} | variables, capture_output=True, text=True)
        assert done.stdout.startswith("GPU 0: Tesla T4")
        hostcmd.installer(tree, [VERSION, "--silent", "--uninstall"])
        assert not list((tree / "usr/lib").glob("lib*.so*"))
