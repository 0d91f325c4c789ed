# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sim.nvml
from sim.nvml.profiles import PROFILES
from sim.nvml.topology import Topology, edit

CONFIGS: dict[str, Any] = {
    "version": "v1",
    "mig-configs": {
        "whole": [{"devices": "all", "mig-enabled": False}],
        "empty": [{"devices": "all", "mig-enabled": True, "mig-devices": {}}],
        "seven": [{"devices": [0], "mig-enabled": True, "mig-devices": {"1g.18gb": 7}}],
        "mixed": [{"devices": [0, 1], "mig-enabled": True, "mig-devices": {"3g.71gb": 1, "1g.18gb": 2}}],
        "too much": [{"devices": "all", "mig-enabled": True, "mig-devices": {"3g.71gb": 2, "1g.18gb": 1}}],
        "a100": [{"devices": [1], "mig-enabled": True, "mig-devices": {"2g.10gb": 1, "3g.20gb": 1}}],
    },
}

Apply = Callable[..., dict[str, Any]]


@pytest.fixture
def gpus(tmp_path: Path) -> Path:
    path = tmp_path / "gpusim.conf"
    PROFILES["8xh200"]("n").save(path)
    return path


@pytest.fixture
def apply(run_module: Apply, tmp_path: Path, gpus: Path) -> Apply:
    """Runs the module on a machine with the simulated library."""
    sim.nvml.build(tmp_path / "lib")

    def run(config: str, *, check: bool = False, **options: Any) -> dict[str, Any]:
        return run_module(
            "mig_geometry",
            {"configs": CONFIGS, "config": config, "services": [], "plugin_socket": "", **options},
            check=check,
            environment={"LD_LIBRARY_PATH": str(tmp_path / "lib"), "GPUSIM_FILE": str(gpus)},
        )

    return run


def devices(path: Path) -> dict[int, list[str]]:
    """The MIG devices of each GPU in MIG mode."""
    topology = Topology.load(path)
    return {
        gpu.index: sorted(mig.profile for mig in topology.migs if mig.gpu == gpu.index)
        for gpu in topology.gpus
        if gpu.mig
    }


def test_gpus_are_cut_by_a_driver_that_is_not_the_hosts(apply: Apply, gpus: Path, tmp_path: Path) -> None:
    (tmp_path / "driver/usr").mkdir(parents=True)
    (tmp_path / "lib").rename(tmp_path / "driver/usr/lib64")
    assert "libnvidia-ml.so.1 cannot be loaded" in apply("seven")["msg"]
    assert apply("seven", driver_root=str(tmp_path / "driver"))["changed"]
    assert devices(gpus) == {0: ["1g.18gb"] * 7}


def test_a_gpu_is_cut_once_and_made_whole(apply: Apply, gpus: Path) -> None:
    before = Topology.load(gpus)
    planned = apply("seven", check=True)
    assert planned["changed"]
    assert Topology.load(gpus) == before
    result = apply("seven")
    assert devices(gpus) == {0: ["1g.18gb"] * 7}
    assert (result["changed"], result["reset_required"], result["reboot_required"]) == (True, [], [])
    assert result["cut"] == planned["cut"] == [before.gpus[0].uuid]
    assert result["before"][0]["mig_devices"] == {}
    assert result["after"][0] == {**result["before"][0], "mig_enabled": True, "mig_devices": {"1g.18gb": 7}}
    assert (planned["after"], planned["diff"]) == (result["after"], result["diff"])
    again = apply("seven")
    assert not again["changed"]
    assert again["before"] == again["after"] == result["after"]
    assert not apply("seven", check=True)["changed"]
    assert apply("whole")["changed"]
    assert Topology.load(gpus) == before


def test_an_excluded_gpu_is_left_as_it_is(apply: Apply, gpus: Path) -> None:
    before = Topology.load(gpus)
    result = apply("mixed", excluded_gpus=[before.gpus[1].uuid])
    assert devices(gpus) == {0: ["1g.18gb", "1g.18gb", "3g.71gb"]}
    assert before.gpus[1].uuid not in {gpu["uuid"] for gpu in result["after"]}
    assert not apply("mixed", excluded_gpus=["1"])["changed"]


def test_only_what_differs_is_made_anew(apply: Apply, gpus: Path) -> None:
    apply("seven")
    kept = {mig.uuid for mig in Topology.load(gpus).migs}
    apply("mixed")
    assert devices(gpus) == {0: ["1g.18gb", "1g.18gb", "3g.71gb"], 1: ["1g.18gb", "1g.18gb", "3g.71gb"]}
    assert len(kept & {mig.uuid for mig in Topology.load(gpus).migs}) == 2


def test_a_card_cut_by_others_is_taken_on(apply: Apply, gpus: Path) -> None:
    PROFILES["4xa100-mig"]("n").save(gpus)
    assert apply("a100")["changed"]
    assert devices(gpus) == {0: ["1g.5gb"] * 7, 1: ["2g.10gb", "3g.20gb"]}


def test_an_instance_without_a_device_is_made_anew(apply: Apply, gpus: Path) -> None:
    apply("seven")
    with edit(gpus) as node:
        del node.migs[3]
    assert apply("seven")["changed"]
    assert devices(gpus) == {0: ["1g.18gb"] * 7}


def test_mode_without_devices(apply: Apply, gpus: Path) -> None:
    assert apply("empty")["changed"]
    assert devices(gpus) == {index: [] for index in range(8)}


@pytest.mark.parametrize(
    ("config", "words"),
    [("too much", ["does not fit", "GPU 0", "2 x 3g.71gb would"]), ("none", ["no configuration none", "seven"])],
)
@pytest.mark.parametrize("check", [True, False])
def test_bad_input_touches_nothing(apply: Apply, gpus: Path, config: str, words: list[str], check: bool) -> None:
    before = gpus.read_bytes()
    result = apply(config, check=check)
    assert result["failed"]
    assert all(word in result["msg"] for word in words)
    assert gpus.read_bytes() == before


def test_a_document_that_is_wrong_is_not_taken_to_nvml(apply: Apply, gpus: Path) -> None:
    result = apply("x", configs={"version": "v1", "mig-configs": {"x": [{"device": "all"}]}}, library="/nonexistent")
    assert result["failed"]
    assert "'device'" in result["msg"]


def test_processes_are_named_and_their_gpu_left_alone(apply: Apply, gpus: Path) -> None:
    with edit(gpus) as node:
        node.add_process(1, os.getpid(), mem=1 << 30)
    before = gpus.read_bytes()
    result = apply("mixed")
    assert result["failed"]
    assert f"(pid {os.getpid()})" in result["msg"]
    assert Path(f"/proc/{os.getpid()}/comm").read_text().strip() in result["msg"]
    assert "GPU 1" in result["msg"]
    assert "GPU 0" not in result["msg"]
    assert gpus.read_bytes() == before
    assert apply("seven")["changed"]


def test_check_mode_says_who_is_in_the_way(apply: Apply, gpus: Path) -> None:
    with edit(gpus) as node:
        node.add_process(0, os.getpid(), mem=1 << 30)
    planned = apply("seven", check=True)
    assert planned["changed"]
    assert f"(pid {os.getpid()})" in planned["in_use"][0]
    assert any(str(os.getpid()) in str(warning) for warning in planned["warnings"])


class Systemctl:
    """Stands in for systemctl: dcgm runs and holds GPU 0 open, nothing else runs."""

    def __init__(self, directory: Path, gpus: Path) -> None:
        self.log = directory / "systemctl.log"
        self.log.touch()
        script = directory / "bin/systemctl"
        script.parent.mkdir()
        script.write_text(
            f"""#!/bin/sh
echo "$@" >> {self.log}
case "$*" in
  "stop dcgm") sed -i '/^proc 0 pid=11/d' {gpus};;
  "is-active --quiet dcgm") exit 0;;
  is-active*) exit 3;;
esac
"""
        )
        script.chmod(0o755)
        self.path = f"{script.parent}:{os.environ['PATH']}"

    @property
    def commands(self) -> list[str]:
        return self.log.read_text().splitlines()


def test_services_are_stopped_while_it_is_cut(
    apply: Apply, gpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemctl = Systemctl(tmp_path, gpus)
    monkeypatch.setenv("PATH", systemctl.path)
    with edit(gpus) as node:
        node.add_process(0, 11, mem=0, type="-")
    assert apply("seven", services=["dcgm", "other"])["reset_required"] == []
    assert devices(gpus) == {0: ["1g.18gb"] * 7}
    asked = ["is-active --quiet dcgm", "is-active --quiet other"]
    assert systemctl.commands == [*asked, "stop dcgm", "start dcgm"]
    systemctl.log.write_text("")
    assert not apply("seven", services=["dcgm", "other"])["changed"]
    assert systemctl.commands == []


class Plugin:
    """Stands in for the device plugin's admin socket: notes what it is told."""

    def __init__(self, path: Path, answer: dict[str, str]) -> None:
        self.told: list[dict[str, Any]] = []
        self._answer = json.dumps(answer).encode() + b"\n"
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            client, _ = self._listening.accept()
            with client, client.makefile("rb") as lines:
                self.told.append(json.loads(lines.readline()))
                client.sendall(self._answer)


def test_the_device_plugin_lets_go_meanwhile(apply: Apply, gpus: Path, tmp_path: Path) -> None:
    plugin = Plugin(tmp_path / "s", {"driver": "quiesced"})
    assert apply("seven", plugin_socket=str(tmp_path / "s"), timeout=30)["changed"]
    assert plugin.told == [{"command": command, "seconds": 90} for command in ("quiesce", "resume")]


def test_a_device_plugin_that_does_not_let_go_stops_it(apply: Apply, gpus: Path, tmp_path: Path) -> None:
    before = gpus.read_bytes()
    Plugin(tmp_path / "s", {"error": "the worker hangs"})
    result = apply("seven", plugin_socket=str(tmp_path / "s"))
    assert result["failed"]
    assert "the worker hangs" in result["msg"]
    assert gpus.read_bytes() == before


def test_a_gpu_held_open_needs_a_reset(apply: Apply, gpus: Path) -> None:
    with edit(gpus) as node:
        node.add_process(0, 11, mem=0, type="-")
    result = apply("mixed")
    uuids = [gpu.uuid for gpu in Topology.load(gpus).gpus]
    assert (result["changed"], result["reset_required"], result["reboot_required"]) == (True, uuids[:1], [])
    assert devices(gpus) == {1: ["1g.18gb", "1g.18gb", "3g.71gb"]}
    with edit(gpus) as node:
        node.remove_process(11)
    result = apply("mixed")
    assert (result["changed"], result["reset_required"]) == (True, [])
    assert set(devices(gpus)) == {0, 1}


def test_a_guest_needs_a_reboot(apply: Apply, gpus: Path) -> None:
    with edit(gpus) as node:
        node.gpus[0].mig_reset = 1
    result = apply("seven")
    assert (result["reset_required"], result["reboot_required"]) == ([], [Topology.load(gpus).gpus[0].uuid])
    with edit(gpus) as node:
        node.gpus[0].mig, node.gpus[0].mig_pending = 1, None
    assert apply("seven")["reboot_required"] == []
    assert devices(gpus) == {0: ["1g.18gb"] * 7}


def test_a_pending_mode_is_taken_back(apply: Apply, gpus: Path) -> None:
    with edit(gpus) as node:
        node.gpus[2].mig_pending = 1
    assert apply("whole")["changed"]
    assert not apply("whole")["changed"]
    assert Topology.load(gpus).gpus[2].mig_pending is None


def test_a_failure_on_the_way_puts_the_old_geometry_back(apply: Apply, gpus: Path) -> None:
    apply("seven")
    before = Topology.load(gpus)
    with edit(gpus) as node:
        node.add_process(0, 11, mem=0, type="-")
        node.processes[0].gi = before.migs[4].gi
    result = apply("whole")
    assert result["failed"]
    assert "in use" in result["msg"]
    assert "the old geometry is back" in result["msg"]
    with edit(gpus) as node:
        node.remove_process(11)
    after = Topology.load(gpus)
    assert {mig.uuid for mig in after.migs} == {mig.uuid for mig in before.migs}
    assert after.gpus == before.gpus


def test_a_driver_that_offers_less_than_its_kind_does(apply: Apply, gpus: Path) -> None:
    with edit(gpus) as node:
        next(profile for profile in node.mig_profiles if profile.name == "3g.71gb").starts = "4"
        next(profile for profile in node.mig_profiles if profile.name == "1g.18gb").starts = "6"
    before = Topology.load(gpus)
    result = apply("mixed")
    assert result["failed"]
    assert "the old geometry is back" in result["msg"]
    assert Topology.load(gpus) == before


def test_a_lost_gpu_is_named(apply: Apply, gpus: Path) -> None:
    with edit(gpus) as node:
        node.set_health(3, "lost")
    result = apply("seven")
    assert result["failed"]
    assert "GPU 3" in result["msg"]


def test_a_driver_that_hangs(apply: Apply, gpus: Path) -> None:
    with edit(gpus) as node:
        node.wedge("nvmlDeviceGetMigMode")
    result = apply("seven", timeout=0.5)
    assert result["failed"]
    assert "hangs" in result["msg"]


def test_no_driver(apply: Apply, tmp_path: Path) -> None:
    result = apply("seven", library=str(tmp_path / "nothing.so"))
    assert result["failed"]
    assert "install the NVIDIA driver" in result["msg"]
