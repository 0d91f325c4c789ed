# SPDX-License-Identifier: Apache-2.0
"""What is made of a control daemon's answers. The answers are those of the real one, driver 535, and of later ones."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from kube_accel.enforce.backend import Ask, Name, WithMps
from kube_accel.enforce.mps import UNSEEN, DaemonState, MpsMonitor, MpsPaths, Server, grant, incident, probe, rests
from kube_accel.model import Gpu, Inventory, Mode
from kube_accel.sharing.delivery import Grant
from kube_accel.sharing.fraction import Kind
from kube_accel.sharing.profile import PROFILES
from sim.cluster.client import until

UUID, SHM = "GPU-1", "/dev/shm"
BORN, REBORN = (7, 10**18), (8, 11 * 10**17)
NO_STATUS = 'Unknown command "get_server_status"'


class Control:
    """A control program that prints what it is told."""

    def __init__(self, root: Path) -> None:
        self.program = root / "control-program"
        self.paths = MpsPaths(root, str(self.program))
        self.paths.pipe(UUID).mkdir(parents=True)
        os.mkfifo(self.paths.pipe(UUID) / "control")

    def probe(self, answer: str, before: DaemonState = UNSEEN, code: int = 0) -> DaemonState:
        self.program.write_text(f"#!/bin/sh\ncat >{self.program}.asked\ncat <<'END'\n{answer}\nEND\nexit {code}\n")
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)
        return probe(self.paths, UUID, before, client_limit=48)

    @property
    def asked(self) -> list[str]:
        return self.program.with_name("control-program.asked").read_text().splitlines()


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    return Control(tmp_path)


def test_container_gets_client_socket_read_only_and_shm_writable(tmp_path: Path) -> None:
    paths = MpsPaths(tmp_path, "")
    for made in ("pipe", "client", "shm"):
        (tmp_path / UUID / made).mkdir(parents=True)
    backend = Mock(grant=Mock(return_value=Grant({}, (), cdi_devices=("kube-accel.io/share=1",))))
    more = partial(grant, profile=PROFILES[Mode.MPS], paths=paths)
    got = WithMps(Name.MPS_INTERPOSER, backend, more).grant(Ask(Kind.CORES, (), {UUID: 30}, {}))
    assert got.cdi_devices == ("kube-accel.io/share=1",), "what MPS needs is mounted also where the rest comes by CDI"
    assert got.mounts == {"/dev/shm": str(tmp_path / UUID / "shm")}
    client = str(tmp_path / UUID / "client")
    assert got.read_only_mounts == {client: client, f"{SHM}/cuda_injection_path_shm": "/dev/null"}
    assert got.environment["CUDA_MPS_PIPE_DIRECTORY"] == client


def test_what_an_earlier_daemon_has_is_read_only_too(tmp_path: Path) -> None:
    paths = MpsPaths(tmp_path, "")
    paths.pipe(UUID).mkdir(parents=True)
    pipe = str(paths.pipe(UUID))
    got = grant(Kind.CORES, {UUID: 30}, {}, PROFILES[Mode.MPS], paths)
    assert got.read_only_mounts[pipe] == pipe
    assert got.mounts == {"/dev/shm": str(tmp_path / "shm")}


def test_socket_of_a_dead_mps_daemon_is_not_offered(control: Control) -> None:
    client = control.paths.root / UUID / "client"
    client.mkdir()
    said = f"{client}/control is not its socket; run `systemctl reload kube-accel-mps@{UUID}` on the node"
    assert said in control.probe("100.0").problem
    (client / "control").hardlink_to(control.paths.pipe(UUID) / "control")
    assert control.probe("100.0").problem == ""


def state(**servers: Server) -> DaemonState:
    return DaemonState("", BORN, {int(name[1:]): server for name, server in servers.items()})


def test_a_server_is_asked_about_once_it_is_known(control: Control) -> None:
    first = control.probe("100.0\n41\n42")
    assert first.servers == {41: Server(0), 42: Server(0)}
    assert control.asked == ["get_default_active_thread_percentage", "get_server_list"]
    second = control.probe("100.0\n41\n42\nACTIVE\n7\n8\nFAULT\n9", first)
    assert control.asked[2:] == [f"get_{what} {n}" for n in (41, 42) for what in ("server_status", "client_list")]
    assert second.servers == {41: Server(2), 42: Server(1, faulty=True)}
    assert second.problem == "MPS server fault (process 42): clients have to end before it recovers"


@pytest.mark.parametrize(
    "answer",
    [
        f"100.0\n42\n{NO_STATUS}\nServer 41 not found\n{NO_STATUS}\n9",
        "100.0\n42\nServer 41 not found\nServer 41 not found\nACTIVE\n9",
    ],
)
def test_a_server_that_went_is_told_from_those_that_stay(control: Control, answer: str) -> None:
    now = control.probe(answer, state(s41=Server(2), s42=Server(1)))
    assert now.servers == {42: Server(1)}


def test_drivers_without_the_status_still_tell_their_clients(control: Control) -> None:
    now = control.probe(f"100.0\n41\n{NO_STATUS}\n7\n8", state(s41=Server(0)))
    assert now == DaemonState("", now.identity, {41: Server(2)})


def test_no_daemon_is_no_server_and_another_answer_is_no_daemon(control: Control) -> None:
    before = state(s41=Server(2))
    gone = control.probe("Cannot find MPS control daemon process", before, code=1)
    assert (gone.identity, gone.servers) == (None, {})
    assert "Cannot find MPS control daemon process" in gone.problem
    assert "it answers 'what?'" in control.probe("what?", before).problem


def test_a_daemon_that_hangs_is_stuck_and_has_not_ended(control: Control) -> None:
    before = state(s41=Server(2))
    control.program.write_text("#!/bin/sh\nexec sleep 60\n")
    control.program.chmod(0o755)
    now = probe(control.paths, UUID, before, client_limit=48, deadline=0.1)
    assert "is stuck: no answer within 0.1 s" in now.problem
    assert incident(before, now) == ""


def test_clients_up_to_the_limit_leave_no_room(control: Control) -> None:
    clients = "\n".join(map(str, range(100, 148)))
    assert "takes 48" in control.probe(f"100.0\n41\nACTIVE\n{clients}", state(s41=Server(0))).problem


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (state(s41=Server(2)), state(), "MPS server 41 ended while it had 2 clients"),
        (state(s41=Server(2)), state(s43=Server(0)), "MPS server 41 ended"),
        (state(s41=Server(0)), state(s43=Server(1)), ""),
        (state(s41=Server(2, faulty=True)), state(), ""),
        (state(s41=Server(2)), state(s41=Server(2, faulty=True)), "MPS server 41 reports a fault"),
        (state(s41=Server(2, faulty=True)), state(s41=Server(2, faulty=True)), ""),
        (state(), DaemonState("gone"), "the MPS control daemon of 2001-09-09T01:46:40+00:00 ended or was restarted"),
        (state(s41=Server(2)), DaemonState("", REBORN), "the MPS control daemon"),
        (DaemonState("gone"), state(), ""),
        (UNSEEN, state(s41=Server(0)), ""),
    ],
)
def test_clients_suffer_when_their_server_or_its_daemon_ends(before: DaemonState, now: DaemonState, said: str) -> None:
    found = incident(before, now)
    assert found.startswith(said) if said else not found


@pytest.mark.parametrize(
    ("before", "now", "rest"),
    [
        (state(), state(), True),
        (state(s41=Server(0)), state(s41=Server(0)), True),
        (state(), state(s41=Server(0)), False),
        (UNSEEN, state(), True),
        (UNSEEN, state(s41=Server(0)), False),
        (state(s41=Server(1)), state(s41=Server(1)), False),
        (DaemonState("", BORN), DaemonState("", REBORN), False),
        (DaemonState("gone"), DaemonState("gone"), False),
    ],
)
def test_a_daemon_without_clients_is_left_alone(before: DaemonState, now: DaemonState, rest: bool) -> None:
    assert rests(before, now) is rest


def test_a_daemon_at_rest_is_asked_again_when_needed(control: Control) -> None:
    """Its files are looked at meanwhile, and whether its GPU is in use."""
    asked, used, looks = control.program.with_name("asked"), False, 0
    socket = control.paths.pipe(UUID) / "control"
    offered = control.paths.client(UUID).parent / "client/control"

    def in_use(uuid: str) -> bool:
        nonlocal looks
        looks += 1
        return used

    def count() -> int:
        return len(asked.read_text()) if asked.exists() else 0

    def more(than: int) -> None:
        until(lambda: count() > than, "the control daemon is asked", 60)

    def start() -> None:
        offered.unlink(missing_ok=True)
        socket.unlink()
        os.mkfifo(socket)
        offered.hardlink_to(socket)

    offered.parent.mkdir()
    start()
    control.program.write_text(f"#!/bin/sh\ncat >/dev/null\nprintf . >>{asked}\necho 100.0\n")
    control.program.chmod(0o755)
    gpu = Gpu(UUID, 0, 0, "NVIDIA H100", 80 << 30, (9, 0), "0000:00:00.0", 0, False)
    monitor = MpsMonitor(control.paths, Mock(), Mock(), 0.01, in_use, rest=3600)
    monitor.see(Inventory("580", (13, 0), (gpu,)))
    try:
        until(lambda: looks > 20, "the daemon rests", 60)
        at_rest = count()
        assert at_rest == 1
        start()
        more(at_rest)
        looks, at_rest = 0, count()
        used = True
        more(at_rest + 5)
    finally:
        monitor.see(None)
