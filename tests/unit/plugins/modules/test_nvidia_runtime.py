# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

FIXTURES = Path(__file__).parents[1] / "fixtures"
CRI = "io.containerd.cri.v1.runtime"


@dataclass(frozen=True)
class Node:
    """A machine's configuration and the commands on its PATH."""

    run_module: Callable[..., dict[str, Any]]
    start_module: Callable[..., subprocess.Popen[str]]
    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.toml"

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.root / 'bin'}:/usr/bin:/bin"}

    def command(self, name: str, script: str) -> None:
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def arguments(self, **options: Any) -> dict[str, Any]:
        return {
            "runtime": "containerd",
            "config_path": str(self.config),
            "backup_dir": str(self.root / "backups"),
            "timeout": 20,
            **options,
        }

    def run(self, *, check: bool = False, **options: Any) -> dict[str, Any]:
        return self.run_module("nvidia_runtime", self.arguments(**options), check=check, environment=self.environment)

    def log(self) -> list[str]:
        path = self.root / "log"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def node(
    run_module: Callable[..., dict[str, Any]], start_module: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> Node:
    """A machine with a containerd 2.1 that accepts what is TOML, systemd and kubeadm's configuration."""
    node = Node(run_module, start_module, tmp_path)
    (tmp_path / "bin").mkdir()
    shutil.copy(FIXTURES / "containerd-2.1.toml", node.config)
    node.command(
        "containerd",
        f'[ "$*" = "config default" ] && exec cat {FIXTURES}/containerd-2.1.toml\nexec cat "$2"',
    )
    node.command("systemctl", f'echo "systemctl $*" >>{tmp_path}/log')
    node.command("systemd-run", f'echo "systemd-run $*" >>{tmp_path}/log')
    node.command("ctr", "exit 0")
    return node


def runtimes(node: Node) -> dict[str, Any]:
    part: dict[str, Any] = tomllib.loads(node.config.read_text())["plugins"][CRI]["containerd"]
    return part


def test_present_is_foretold_done_once_and_then_left_alone(node: Node) -> None:
    before = node.config.read_bytes()

    foretold = node.run(check=True, default_runtime=True)
    assert foretold["changed"]
    assert node.config.read_bytes() == before
    assert not (node.root / "backups").exists()
    assert node.log() == []

    done = node.run(default_runtime=True)
    assert done["changed"]
    assert done["diff"] == foretold["diff"]
    assert done["diff"][0]["after"] == node.config.read_text()
    assert runtimes(node)["default_runtime_name"] == "nvidia"
    assert runtimes(node)["runtimes"]["nvidia"]["options"]["BinaryName"] == "/usr/bin/nvidia-container-runtime"
    assert "systemctl restart containerd" in node.log()

    log = node.log()
    assert not node.run(default_runtime=True)["changed"]
    assert not node.run(check=True, default_runtime=True)["changed"]
    assert node.log() == log


def test_absent_gives_back_the_very_bytes(node: Node) -> None:
    before = node.config.read_bytes()
    node.run()
    node.run(default_runtime=True, cdi=False)

    assert node.run(state="absent", check=True)["changed"]
    assert node.run(state="absent")["changed"]

    assert node.config.read_bytes() == before
    assert not node.run(state="absent")["changed"]


def test_absent_keeps_what_others_changed_since(node: Node) -> None:
    before = node.config.read_text()
    node.run(default_runtime=True)
    node.config.write_text(node.config.read_text() + "\n# a later hand\n")

    node.run(state="absent")

    assert node.config.read_text().rstrip() == (before + "\n# a later hand\n").rstrip()


def test_mode_of_the_file_stays_and_backups_are_private(node: Node) -> None:
    node.config.chmod(0o640)
    before = node.config.read_bytes()

    backup = Path(node.run()["backup"])

    assert stat.S_IMODE(node.config.stat().st_mode) == 0o640
    assert stat.S_IMODE(backup.stat().st_mode) == 0o700
    assert (backup / "0-config.toml").read_bytes() == before
    assert backup.is_relative_to(node.root / "backups")


def test_a_missing_file_begins_with_what_containerd_prints(node: Node) -> None:
    node.config.unlink()

    assert node.run(check=True)["changed"]
    node.run()

    assert runtimes(node)["runtimes"]["nvidia"]["options"]["SystemdCgroup"] is True
    assert tomllib.loads(node.config.read_text())["plugins"]["io.containerd.cri.v1.images"]
    node.run(state="absent")
    assert not node.config.exists()


def test_before_containerd_is_installed_check_mode_still_foretells(node: Node) -> None:
    node.config.unlink()
    (node.root / "bin" / "containerd").unlink()
    node = Node(node.run_module, node.start_module, node.root)

    foretold = node.run(check=True, containerd_command=["no-containerd-here"])

    assert foretold["changed"]
    assert "containerd" in str(foretold["warnings"])
    refused = node.run(containerd_command=["no-containerd-here"])
    assert "no-containerd-here config default" in refused["msg"]


def test_a_candidate_that_containerd_refuses_is_not_written(node: Node) -> None:
    before = node.config.read_bytes()
    node.command("containerd", "echo 'containerd: unknown plugin' >&2; exit 1")

    result = node.run()

    assert result["failed"]
    assert "containerd: unknown plugin" in result["msg"]
    assert "nothing was changed" in result["msg"]
    assert node.config.read_bytes() == before
    assert not any("restart" in line for line in node.log())


def test_an_import_that_overrides_the_runtime_is_found_before_anything_changes(node: Node) -> None:
    before = node.config.read_bytes()
    overridden = node.config.read_text().replace("'runc'", "'crun'")
    (node.root / "merged.toml").write_text(overridden)
    node.command("containerd", f"cat {node.root}/merged.toml")

    result = node.run(default_runtime=True)

    assert result["failed"]
    assert "there is no runtime nvidia" in result["msg"]
    assert "imports" in result["msg"]
    assert node.config.read_bytes() == before


def test_a_service_that_does_not_come_back_gets_its_old_file(node: Node) -> None:
    before = node.config.read_bytes()
    node.command("ctr", f"! grep -q nvidia-container-runtime {node.config} || {{ echo 'no answer' >&2; exit 1; }}")

    result = node.run(timeout=2)

    assert result["failed"]
    assert "no answer" in result["msg"]
    assert "the previous files are back and the service is well" in result["msg"]
    assert node.config.read_bytes() == before
    assert [line for line in node.log() if "restart" in line] == ["systemctl restart containerd"] * 2
    assert node.log()[-1].startswith("systemctl stop accel-nvidia_runtime")


def test_a_killed_run_is_undone_by_the_next_which_then_succeeds(node: Node) -> None:
    waiting = node.root / "waiting"
    node.command("ctr", f"touch {waiting}; exit 1")
    process = node.start_module("nvidia_runtime", node.arguments(timeout=300), environment=node.environment)
    while not waiting.exists():
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert "nvidia" in runtimes(node)["runtimes"]

    node.command("ctr", "exit 0")
    assert node.run(check=True)["changed"]
    result = node.run()

    assert result["recovered"] == "restored"
    assert result["changed"]
    assert "nvidia" in runtimes(node)["runtimes"]
    assert not node.run()["changed"]


def test_without_systemd_run_a_warning_says_what_is_missing(node: Node) -> None:
    node.command("systemd-run", "echo 'System has not been booted with systemd' >&2; exit 1")

    result = node.run()

    assert result["changed"]
    assert "System has not been booted with systemd" in str(result["warnings"])


def test_no_service_means_no_restart(node: Node) -> None:
    assert node.run(service="")["changed"]
    assert node.log() == []


def test_an_old_file_is_refused_with_the_remedy(node: Node) -> None:
    node.config.write_text("[plugins.cri]\n")

    for check in (True, False):
        result = node.run(check=check)
        assert result["failed"]
        assert "config migrate" in result["msg"]


@pytest.mark.parametrize("content", [None, '{\n  "live-restore": true\n}\n'])
def test_docker(node: Node, content: str | None) -> None:
    config = node.root / "daemon.json"
    if content is not None:
        config.write_text(content)
    node.command("dockerd", 'exec python3 -m json.tool "$3"')
    node.command("docker", "exit 0")
    options: dict[str, Any] = {"runtime": "docker", "config_path": str(config), "default_runtime": True, "cdi": True}

    assert node.run(check=True, **options)["changed"]
    assert node.run(**options)["changed"]
    data = json.loads(config.read_text())
    assert data["default-runtime"] == "nvidia"
    assert data["runtimes"]["nvidia"]["path"] == "/usr/bin/nvidia-container-runtime"
    assert data["features"]["cdi"] is True
    assert "systemctl restart docker" in node.log()
    assert not node.run(**options)["changed"]

    node.run(state="absent", **options)
    assert (config.read_text() if config.exists() else None) == content


def test_crio(node: Node) -> None:
    config = node.root / "99-nvidia.toml"
    node.command("crictl", "exit 0")
    options: dict[str, Any] = {"runtime": "crio", "config_path": str(config), "default_runtime": True}

    assert node.run(**options)["changed"]
    data = tomllib.loads(config.read_text())["crio"]["runtime"]
    assert data["default_runtime"] == "nvidia"
    assert data["runtimes"]["nvidia"]["runtime_path"] == "/usr/bin/nvidia-container-runtime"
    assert not node.run(check=True, **options)["changed"]

    node.run(state="absent", **options)
    assert not config.exists()


CONTAINERD = os.environ.get("ACCEL_CONTAINERD") or shutil.which("containerd")


@pytest.mark.skipif(not CONTAINERD, reason="no containerd on PATH and none named by ACCEL_CONTAINERD")
@pytest.mark.parametrize("cdi", [None, True])
def test_a_real_containerd_takes_the_file(node: Node, cdi: bool | None) -> None:
    node.config.unlink()

    result = node.run(containerd_command=[CONTAINERD], default_runtime=True, cdi=cdi)

    assert result["changed"], result
    dump = subprocess.run(
        [str(CONTAINERD), "--config", str(node.config), "config", "dump"], capture_output=True, text=True, check=True
    )
    data = tomllib.loads(dump.stdout)
    part = data["plugins"][CRI if data["version"] > 2 else "io.containerd.grpc.v1.cri"]
    assert part["containerd"]["default_runtime_name"] == "nvidia"
    ours, runc = (part["containerd"]["runtimes"][name] for name in ("nvidia", "runc"))
    assert ours["options"]["BinaryName"] == "/usr/bin/nvidia-container-runtime"
    assert ours["options"]["SystemdCgroup"] == runc["options"]["SystemdCgroup"]
    assert ours["runtime_type"] == "io.containerd.runc.v2"
