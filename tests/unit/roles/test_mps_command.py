# SPDX-License-Identifier: Apache-2.0
"""The command around an MPS control daemon, with stand-ins for nvidia-smi and nvidia-cuda-mps-control."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim import mps
from sim.cluster import namespace

from .conftest import ROLES

SCRIPT = ROLES / "gpu_plugins/files/kube-accel-mps.sh"
UUID = "GPU-1"


class Gpu:
    """A GPU whose compute mode is a file, and the environment of its unit."""

    def __init__(self, root: Path) -> None:
        programs = root / "bin"
        mps.install(programs)
        self.mode = root / "mode"
        self.mode.write_text("Default\n")
        smi = programs / "nvidia-smi"
        self.processes = root / "processes"
        self.processes.touch()
        ask = f"--query-compute-apps=pid) cat {self.processes} ;; *) cat {self.mode} ;;"
        act = f'case $3 in -c) echo "$4" >{self.mode} ;; {ask} esac'
        smi.write_text(f'#!/bin/sh\n[ "$2" = {UUID} ] || exit 2\n{act}\n')
        smi.chmod(0o755)
        self.mounted = root / "mounted"
        for name, does in {"mount": f'echo "$*" >>{self.mounted}', "mountpoint": f"[ -e {self.mounted} ]"}.items():
            (programs / name).write_text(f"#!/bin/sh\n{does}\n")
            (programs / name).chmod(0o755)
        self.programs = programs
        self.pipe, self.shm, self.state = root / "pipe", root / "shm", root / "state"
        self.client = root / "client"
        self.environment = os.environ | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(root / "log"),
            "KUBE_ACCEL_MPS_STATE": str(self.state),
            "KUBE_ACCEL_MPS_SHM": str(self.shm),
            "KUBE_ACCEL_MPS_SHM_SIZE": "1m",
            "KUBE_ACCEL_MPS_MULTIUSER": "true",
        }

    def call(self, action: str) -> None:
        subprocess.run(["sh", SCRIPT, action, UUID], env=self.environment, check=True, capture_output=True)

    def ask(self, command: str) -> str:
        control = ["nvidia-cuda-mps-control"]
        done = subprocess.run(control, input=command + "\n", env=self.environment, capture_output=True, text=True)
        return done.stdout.strip()


@pytest.fixture
def gpu(tmp_path: Path) -> Gpu:
    return Gpu(tmp_path)


@pytest.fixture
def daemon(gpu: Gpu) -> Iterator[subprocess.Popen[bytes]]:
    gpu.call("prepare")
    with subprocess.Popen(["sh", SCRIPT, "run", UUID], env=gpu.environment) as process:
        yield process
        process.kill()


def test_the_daemon_serves_with_its_defaults_until_told_to_quit(gpu: Gpu, daemon: subprocess.Popen[bytes]) -> None:
    gpu.call("defaults")
    assert float(gpu.ask("get_default_active_thread_percentage")) == 100
    gpu.call("quit")
    deadline = time.monotonic() + 10
    while daemon.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(("knows", "given"), [("-multiuser-server", "-f -multiuser-server\n"), ("", "-f\n")])
def test_users_share_a_server_where_the_program_knows_how(gpu: Gpu, knows: str, given: str) -> None:
    control = gpu.programs / "nvidia-cuda-mps-control"
    control.write_text(f'#!/bin/sh\n# {knows}\n[ "$1" = -h ] || echo "$*" >{gpu.state}.given\n')
    gpu.call("run")
    assert Path(f"{gpu.state}.given").read_text() == given


def test_clients_of_any_user_reach_only_the_client_socket(gpu: Gpu) -> None:
    gpu.call("prepare")
    for _ in range(2):
        with mps.daemon(gpu.programs / "nvidia-cuda-mps-control", gpu.pipe):
            gpu.call("defaults")
            (control,) = gpu.client.iterdir()
            assert control.samefile(gpu.pipe / "control"), "the one of the daemon that runs"
            assert [path.stat().st_mode & 0o777 for path in (gpu.pipe, gpu.client, control)] == [0o755, 0o755, 0o666]


def test_a_daemon_that_is_set_up_records_the_command(gpu: Gpu) -> None:
    gpu.call("prepare")
    record = gpu.state / f"{UUID}.command"
    with mps.daemon(gpu.programs / "nvidia-cuda-mps-control", gpu.pipe):
        link = gpu.programs / "ln"
        link.write_text("#!/bin/sh\nexit 1\n")
        link.chmod(0o755)
        with pytest.raises(subprocess.CalledProcessError):
            gpu.call("defaults")
        assert not record.exists(), "it has not been set up"
        link.unlink()
        gpu.call("defaults")
    assert record.read_text().split()[0] == hashlib.sha256(SCRIPT.read_bytes()).hexdigest()


def test_containers_shm_is_bounded_and_survives_a_restart(gpu: Gpu) -> None:
    if reason := namespace.forbidden():
        pytest.skip(f"no namespaces here: {reason}")
    for name in ("mount", "mountpoint"):
        (gpu.programs / name).unlink()
    prepare = f"sh {SCRIPT} prepare {UUID} >&2"
    guarded = f"stat -c %s {gpu.shm}/cuda_injection_path_shm"
    fill = f"head -c 2m /dev/zero >{gpu.shm}/full 2>/dev/null"
    look = f"cat {gpu.shm}/file; stat -c %a {gpu.shm}; {guarded}; ! {fill}"
    hostile = f"rm -f {gpu.shm}/cuda*; ln -s file {gpu.shm}/cuda_injection_path_shm"
    script = f"set -e; {prepare}; echo kept >{gpu.shm}/file; {hostile}; {prepare}; {look}"
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script],
        env=gpu.environment,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "kept\n1777\n0\n"), done.stderr


def test_the_size_of_shm_follows_its_variable(gpu: Gpu) -> None:
    gpu.call("prepare")
    gpu.environment["KUBE_ACCEL_MPS_SHM_SIZE"] = "5%"
    gpu.call("prepare")
    first, second = [line for line in gpu.mounted.read_text().splitlines() if "--bind" not in line]
    assert first.startswith("-t tmpfs -o nosuid,nodev,noexec,size=1m,")
    assert second.startswith("-o remount,nosuid,nodev,noexec,size=5%,")


def _overtaken(gpu: Gpu, program: str, puts: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Prepare while a container puts something in place of the file, after or before a program runs."""
    if reason := namespace.forbidden():
        pytest.skip(f"no namespaces here: {reason}")
    for name in ("mount", "mountpoint"):
        (gpu.programs / name).unlink()
    told = gpu.state.with_name("chattr")
    real = shutil.which(program)
    order = {"rm": f'{real} "$@"; [ $1 != -rf ] || {puts}', "unshare": f'{puts}; exec {real} "$@"'}[program]
    for name, does in {"chattr": f"stat -c %F $2 >>{told}", program: order}.items():
        (gpu.programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (gpu.programs / name).chmod(0o755)
    hosts = gpu.state.with_name("hosts")
    hosts.touch()
    prepare = f"sh {SCRIPT} prepare {UUID} >&2"
    words = f"{prepare} && stat -c %F:%a {gpu.shm}/cuda_injection_path_shm && ls -A {gpu.shm}"
    done = subprocess.run(
        [shutil.which("unshare") or "", "--map-root-user", "--mount", "sh", "-c", words],
        env=gpu.environment | {"FILE": str(gpu.shm / "cuda_injection_path_shm"), "HOSTS": str(hosts)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert [path.name for path in gpu.state.iterdir()] in ([], [f"{UUID}.compute-mode"])
    return done, told


@pytest.mark.attack
@pytest.mark.parametrize("puts", ["mkfifo $FILE", "ln -s $HOSTS $FILE", "echo /evil.so >$FILE"])
def test_file_a_container_swapped_is_not_opened(gpu: Gpu, puts: str) -> None:
    done, told = _overtaken(gpu, "rm", puts)
    expected = "regular empty file:644\ncuda_injection_path_shm\n"
    assert (done.returncode, done.stdout) == (0, expected), done.stderr
    assert told.read_text() == "regular empty file\n"


@pytest.mark.attack
@pytest.mark.parametrize(
    "puts",
    ["rm $FILE; ln -s $HOSTS $FILE", "rm $FILE; mkfifo $FILE", "echo /evil.so >$FILE", "rm $FILE; mkdir $FILE"],
)
def test_no_other_file_becomes_immutable_and_start_fails(gpu: Gpu, puts: str) -> None:
    done, told = _overtaken(gpu, "unshare", puts)
    assert done.returncode == 1
    assert f"end the pods on GPU {UUID}" in done.stderr
    assert not told.exists()


def test_with_selinux_containers_may_use_what_it_makes(gpu: Gpu, tmp_path: Path) -> None:
    said = tmp_path / "chcon"
    chcon = gpu.programs / "chcon"
    chcon.write_text(f'#!/bin/sh\necho "$*" >>{said}\n[ ! -e {tmp_path}/refuses ]\n')
    chcon.chmod(0o755)
    gpu.environment["KUBE_ACCEL_MPS_SYSFS"] = str(tmp_path / "sys")
    gpu.call("prepare")
    assert not said.exists()
    (tmp_path / "sys/fs/selinux").mkdir(parents=True)
    (tmp_path / "sys/fs/selinux/enforce").touch()
    gpu.call("prepare")
    with mps.daemon(gpu.programs / "nvidia-cuda-mps-control", gpu.pipe):
        gpu.call("defaults")
    label = "system_u:object_r:container_file_t:s0"
    assert said.read_text().splitlines() == [f"{label} {gpu.shm}", f"-R {label} {gpu.client}"]
    (tmp_path / "refuses").touch()
    gpu.call("prepare")


def test_gpu_is_shared_once_its_direct_processes_have_ended(gpu: Gpu) -> None:
    gpu.processes.write_text("4711\n4712\n")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        gpu.call("prepare")
    assert f"processes use GPU {UUID} without MPS: 4711 4712; end their pods" in caught.value.stderr.decode()
    assert gpu.mode.read_text() == "Default\n", "they may start more"
    gpu.processes.write_text("")
    gpu.call("prepare")
    assert gpu.mode.read_text() == "EXCLUSIVE_PROCESS\n"
    gpu.processes.write_text("4713\n")
    gpu.call("prepare")
    assert gpu.mode.read_text() == "EXCLUSIVE_PROCESS\n", "clients outlive a control daemon that crashed"


@pytest.mark.parametrize(("before", "after"), [("Default", "DEFAULT"), ("Prohibited", "PROHIBITED")])
def test_the_compute_mode_of_before_comes_back(gpu: Gpu, before: str, after: str) -> None:
    gpu.mode.write_text(f"{before}\n")
    gpu.call("prepare")
    assert gpu.mode.read_text() == "EXCLUSIVE_PROCESS\n"
    # Killed, and started again.
    gpu.call("prepare")
    gpu.call("restore")
    assert gpu.mode.read_text() == f"{after}\n"
    assert not list(gpu.state.iterdir())
    gpu.mode.write_text("Exclusive_Process\n")
    gpu.call("restore")
    assert gpu.mode.read_text() == "Exclusive_Process\n"
