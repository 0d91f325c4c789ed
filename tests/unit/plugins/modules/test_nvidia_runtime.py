# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import real_runtimes
import running

FIXTURES = Path(__file__).parents[1] / "fixtures"
ROOT = Path(__file__).parents[4]
CRI = "io.containerd.cri.v1.runtime"


HEALTHY = "io.containerd.cri.v1 runtime linux/amd64 ok"


@dataclass(frozen=True)
class Node:
    """A machine's configuration and the commands on its PATH."""

    run_module: Callable[..., dict[str, Any]]
    start_module: Callable[..., subprocess.Popen[str]]
    root: Path
    cri_socket: Path

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
            "cri_socket": str(self.cri_socket),
            **options,
        }

    def docker(self, live_restore: str = "true 0") -> None:
        """Have a docker that has read its file; ``live_restore`` is whether that is on, and a number of containers."""
        self.command(
            "docker",
            f"""case "$*" in
*LiveRestoreEnabled*) echo {live_restore} ;;
*json*) exec {sys.executable} {ROOT}/tests/running.py docker {self.root}/daemon.json ;;
esac""",
        )

    def run(self, *, check: bool = False, **options: Any) -> dict[str, Any]:
        return self.run_module("nvidia_runtime", self.arguments(**options), check=check, environment=self.environment)

    def log(self) -> list[str]:
        path = self.root / "log"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def node(
    run_module: Callable[..., dict[str, Any]], start_module: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> Iterator[Node]:
    """A machine with a containerd 2.1 that accepts what is TOML, systemd and kubeadm's configuration."""
    with running.containerd(lambda: read_by_containerd(tmp_path)) as cri_socket:
        yield made(Node(run_module, start_module, tmp_path, cri_socket))


def read_by_containerd(root: Path) -> list[Path]:
    """What the containerd of the machine has read, or that of its k3s."""
    if (root / "k3s").exists():
        return [root / "k3s/config.toml", *sorted((root / "k3s/config-v3.toml.d").glob("*.toml"))]
    template = root / "containerd-template.toml"
    return [template if template.exists() else root / "config.toml", *(root / "conf.d").glob("*.toml")]


def made(node: Node) -> Node:
    tmp_path = node.root
    (tmp_path / "bin").mkdir()
    shutil.copy(FIXTURES / "containerd-2.1.toml", node.config)
    node.command(
        "containerd",
        f'[ "$*" = "config default" ] && exec cat {FIXTURES}/containerd-2.1.toml\nexec cat "$2"',
    )
    node.command("systemctl", f'echo "systemctl $*" >>{tmp_path}/log')
    node.command("systemd-run", f'echo "systemd-run $*" >>{tmp_path}/log')
    node.command("ctr", f"echo '{HEALTHY}'")
    return node


def runtimes(node: Node) -> dict[str, Any]:
    part: dict[str, Any] = tomllib.loads(node.config.read_text())["plugins"][CRI]["containerd"]
    return part


TOLD = {
    "1.17.8": ("NVIDIA Container Runtime version 1.17.8\ncommit: f202b80a9b\nspec: 1.2.1\n\nrunc version 1.2.5", 0),
    "1.16.2": ("NVIDIA Container Runtime version 1.16.2\nerror locating runtime: no runtime binary found", 1),
    "": ("runc version 1.0.2", 0),
}


@pytest.mark.parametrize("version", TOLD)
def test_the_version_of_the_toolkit_is_read(node: Node, version: str) -> None:
    text, code = TOLD[version]
    node.command("nvidia-container-runtime", f"echo '{text}'\nexit {code}")
    toolkit = node.root / "toolkit.toml"
    toolkit.write_text('[nvidia-container-runtime]\nmode = "legacy"\n')
    options = {"runtime_binary": str(node.root / "bin/nvidia-container-runtime"), "toolkit_config_path": str(toolkit)}
    found = node.run(check=True, **options, minimum_toolkit="1.7")
    assert (found["toolkit_version"], found["toolkit_mode"]) == (version, "legacy")
    if not version:
        node.command("nvidia-container-cli", "echo 'cli-version: 1.6.0\nlib-version: 1.6.0'")
        old = node.run(check=True, **options, minimum_toolkit="1.7")
        assert (old["code"], "is 1.6.0; 1.7 or newer is needed. Set container_runtime" in old["msg"]) == (
            "refused",
            True,
        )
        assert "msg" not in node.run(check=True, **options)
        assert "msg" not in node.run(check=True, **options, minimum_toolkit="1.7", state="absent")


def test_present_is_foretold_done_once_and_then_left_alone(node: Node) -> None:
    before = node.config.read_bytes()

    foretold = node.run(check=True, default_runtime=True)
    assert foretold["changed"]
    assert foretold["default_runtime"] == "runc"
    assert node.config.read_bytes() == before
    assert not (node.root / "backups").exists()
    looked = ("show --property=LoadState --value", "cat", "show --property=MainPID")
    assert node.log() == [f"systemctl {words} containerd" for words in looked]

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


def test_absent_finds_the_record_under_another_path(node: Node) -> None:
    before = node.config.read_bytes()
    (node.root / "here").symlink_to(node.root)
    (node.root / "by-link.toml").symlink_to(node.config)
    for first, then in (("here/config.toml/", "bin/..//config.toml"), ("by-link.toml", "config.toml")):
        assert node.run(config_path=f"{node.root}/{first}")["changed"]
        assert not node.run(config_path=f"{node.root}/{then}")["changed"]
        assert node.run(config_path=f"{node.root}/{then}", state="absent")["changed"]
        assert node.config.read_bytes() == before


def test_absent_finds_the_record_of_a_link_that_became_a_file(node: Node) -> None:
    before = node.config.read_bytes()
    target = node.config.with_name("target.toml")
    node.config.rename(target)
    node.config.symlink_to(target)
    node.run()
    edited = target.read_bytes() + b"# a later hand\n"
    node.config.unlink()
    node.config.write_bytes(edited)

    assert node.run(state="absent")["changed"]

    assert node.config.read_bytes() == before + b"# a later hand\n"
    assert target.read_bytes() == before, "what the link led to"
    assert not node.run(state="absent")["changed"]


def test_former_link_target_is_restored_unless_edited(node: Node) -> None:
    before = node.config.read_bytes()
    first, then = node.root / "first.toml", node.root / "then.toml"
    for target in (first, then):
        shutil.copy(node.config, target)
    node.config.unlink()
    node.config.symlink_to(first)
    node.run()
    node.config.unlink()
    node.config.symlink_to(then)

    assert node.run()["changed"]
    assert first.read_bytes() == before
    assert then.read_bytes() != before

    node.config.unlink()
    shutil.copy(then, node.config)
    then.write_bytes(then.read_bytes() + b"# a later hand\n")
    taken = node.run(state="absent")
    assert f"{then}, which this collection changed and someone edited since, so it stays" in str(taken["warnings"])
    assert node.config.read_bytes() == before


def test_absent_keeps_what_others_changed_since(node: Node) -> None:
    before = node.config.read_text()
    node.run(default_runtime=True)
    node.config.write_text(node.config.read_text() + "\n# a later hand\n")

    node.run(state="absent")

    assert node.config.read_text().rstrip() == (before + "\n# a later hand\n").rstrip()


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["no mark", "byte order mark"])
def test_a_file_from_windows_keeps_its_form(node: Node, mark: bytes) -> None:
    before = mark + node.config.read_bytes().replace(b"\n", b"\r\n")
    node.config.write_bytes(before)
    node.command("containerd", r"""sed '1s/^\xef\xbb\xbf//' "$2" """)

    assert node.run(default_runtime=True)["changed"]
    data = node.config.read_bytes()
    assert b"nvidia" in data
    assert data.startswith(mark + b"version")
    assert data.count(b"\n") == data.count(b"\r\n")
    assert not node.run(default_runtime=True)["changed"]
    node.config.write_bytes(data + b"# a later hand\r\n")

    assert node.run(state="absent")["changed"]
    assert node.config.read_bytes() == before + b"# a later hand\r\n"


OTHERS = {
    "docker": """{
    "default-runtime": "nvidia",
    "features": {},
    "runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}
}
""",
    "containerd": """version = 3
# of the image
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = "nvidia"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia] # theirs
runtime_type = "io.containerd.runc.v2"
base_runtime_spec = "/etc/spec.json"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]
BinaryName = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
""",
    "crio": """[crio.runtime]
default_runtime = "nvidia"
[crio.runtime.runtimes.nvidia]
runtime_path = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
""",
}
"""A runtime of that name that was there before us, and is the only one."""


def owned_by_others(node: Node, runtime: str) -> tuple[Path, dict[str, Any]]:
    """Its file, and options that change it in every way."""
    if runtime == "crio":
        options = crio_options(node)
    else:
        node.command("dockerd", "exit 0")
        node.docker()
        path = node.config if runtime == "containerd" else node.root / "daemon.json"
        options = {"runtime": runtime, "config_path": str(path), "default_runtime": False, "cdi": True}
    path = Path(options["config_path"])
    path.write_text(OTHERS[runtime])
    return path, options


@pytest.mark.parametrize("runtime", OTHERS)
def test_untouched_runtime_stays_when_ours_is_removed(node: Node, runtime: str) -> None:
    path, options = owned_by_others(node, runtime)
    for check in (True, False):
        assert not node.run(state="absent", check=check, **options)["changed"]
    assert path.read_text() == OTHERS[runtime]
    assert not any("restart" in line for line in node.log())


@pytest.mark.parametrize("runtime", OTHERS)
def test_earlier_runtime_returns_byte_for_byte(node: Node, runtime: str) -> None:
    path, options = owned_by_others(node, runtime)
    assert node.run(**options)["changed"], "another program"
    assert not node.run(**options)["changed"]
    assert node.run(state="absent", **options)["changed"]
    assert path.read_text() == OTHERS[runtime]
    assert not node.run(state="absent", **options)["changed"]


@pytest.mark.parametrize("runtime", OTHERS)
def test_earlier_runtime_keeps_later_edits_of_others(node: Node, runtime: str) -> None:
    path, options = owned_by_others(node, runtime)
    node.run(**options)
    later = path.read_text()
    path.write_text(f"{later}# later\n" if runtime != "docker" else later.replace("{", '{"debug": true,', 1))
    assert node.run(state="absent", **options)["changed"]
    read = json.loads if runtime == "docker" else tomllib.loads
    found, before = read(path.read_text()), read(OTHERS[runtime])
    assert {key: value for key, value in found.items() if key != "debug"} == before
    assert ("debug" in found) == (runtime == "docker")
    assert runtime == "docker" or path.read_text().count("#") == OTHERS[runtime].count("#") + 1


def test_leftover_default_of_ours_is_no_original(node: Node) -> None:
    node.command("dockerd", "exit 0")
    node.docker()
    config = node.root / "daemon.json"
    before = {"default-runtime": "crun", "runtimes": {"crun": {"path": "/usr/bin/crun"}}}
    config.write_text(json.dumps(before))
    options: dict[str, Any] = {"runtime": "docker", "config_path": str(config), "default_runtime": True}
    node.run(**options)
    others = json.loads(config.read_text())
    del others["runtimes"]["nvidia"]
    config.write_text(json.dumps(others))
    assert node.run(**options)["changed"], "somebody took it out"
    assert node.run(state="absent", **options)["changed"]
    assert json.loads(config.read_text()) == before


def test_a_runtime_without_a_name_is_refused(node: Node) -> None:
    before = node.config.read_bytes()
    for runtime in ("containerd", "k3s"):
        assert "runtime_name is empty; name the handler" in node.run(runtime=runtime, runtime_name="")["msg"]
    assert node.config.read_bytes() == before


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


def test_check_mode_plans_before_containerd_is_installed(node: Node) -> None:
    node.config.unlink()
    (node.root / "bin" / "containerd").unlink()
    node = Node(node.run_module, node.start_module, node.root, node.cri_socket)

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


@pytest.mark.parametrize("check", [False, True])
def test_overriding_import_is_found_before_any_change(node: Node, check: bool) -> None:
    before = node.config.read_bytes()
    overridden = node.config.read_text().replace("'runc'", "'crun'")
    (node.root / "merged.toml").write_text(overridden)
    node.command("containerd", f"cat {node.root}/merged.toml")

    result = node.run(check=check, default_runtime=True)

    assert result["failed"]
    assert "there is no runtime nvidia" in result["msg"]
    assert "imports" in result["msg"]
    assert node.config.read_bytes() == before


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ("sed 's/enable_cdi = true/enable_cdi = false/'", "enable_cdi is false instead of true"),
        ("sed '0,/SystemdCgroup = true/s//SystemdCgroup = false/'", "SystemdCgroup = "),
    ],
)
def test_containerds_merged_file_must_have_what_was_asked_for(node: Node, made: str, says: str) -> None:
    """A drop-in that replaces the plugin's table keeps the runtime, and not the rest."""
    before = node.config.read_bytes()
    node.command("containerd", f'{made} "$2"')
    result = node.run(check=True, cdi=True)
    assert says in result["msg"]
    assert node.config.read_bytes() == before


def running_as(node: Node, *command: str) -> subprocess.Popen[bytes]:
    """A process that systemd calls the runtime's, with these words on its command line."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", *command])
    log = f'echo "systemctl $*" >>{node.root}/log'
    node.command("systemctl", f'{log}; case "$*" in *MainPID*) echo MainPID={process.pid} ;; esac')
    return process


def test_containerd_with_another_file_is_named_before_changes(node: Node) -> None:
    before = node.config.read_bytes()
    other = node.root / "other.toml"
    other.write_text("version = 3\n")
    process = running_as(node, "--config", str(other))
    try:
        for check in (True, False):
            refused = node.run(check=check)
            assert f"containerd on this host reads {other}, as its command line says" in refused["msg"]
            assert f"set config_path to {other}" in refused["msg"]
        assert node.config.read_bytes() == before
        other.write_text(f'version = 3\nimports = ["{node.root}/conf*.toml"]\n')
        assert node.run(check=True)["changed"], "it imports the file"
    finally:
        process.kill()


def test_docker_flag_that_clashes_with_the_directive_is_named(node: Node) -> None:
    node.command("dockerd", "exit 0")
    node.docker()
    options = {"runtime": "docker", "config_path": str(node.root / "daemon.json")}
    process = running_as(node, "--default-runtime=runc", "--feature", "containerd-snapshotter")
    try:
        refused = node.run(**options, check=True, default_runtime=True)
        assert "dockerd on this host is started with --default-runtime, and does not start when" in refused["msg"]
        assert "dockerd on this host is started with --feature, and" in node.run(**options, check=True, cdi=True)["msg"]
        assert node.run(**options, check=True)["changed"], "the runtime alone is no such directive"
    finally:
        process.kill()


def test_a_service_that_does_not_come_back_gets_its_old_file(node: Node) -> None:
    before = node.config.read_bytes()
    node.command(
        "ctr",
        f"! grep -q nvidia-container-runtime {node.config} || {{ echo 'no answer' >&2; exit 1; }}; echo '{HEALTHY}'",
    )

    result = node.run(timeout=2)

    assert result["failed"]
    assert "no answer" in result["msg"]
    assert "the previous files are back and the service is well" in result["msg"]
    assert node.config.read_bytes() == before
    assert [line for line in node.log() if "restart" in line] == ["systemctl restart containerd"] * 2
    assert node.log()[-1].startswith("systemctl stop accel-nvidia_runtime")


@pytest.mark.parametrize(
    ("listed", "reason"),
    [
        ("io.containerd.grpc.v1 cri linux/amd64 error", "the CRI plugin did not start: no corresponding runtime"),
        ("io.containerd.snapshotter.v1 overlayfs linux/amd64 ok", "containerd runs without its CRI plugin"),
    ],
)
def test_a_containerd_that_answers_without_cri_is_not_ready(node: Node, listed: str, reason: str) -> None:
    before = node.config.read_bytes()
    details = "Error:\\n  Code:    Unknown\\n  Message: no corresponding runtime"
    node.command(
        "ctr",
        f"""grep -q nvidia-container-runtime {node.config} || {{ echo '{HEALTHY}'; exit; }}
[ "$3" = -d ] && printf '{details}\\n' || echo '{listed}'""",
    )

    result = node.run(timeout=2)

    assert result["failed"]
    assert reason in result["msg"]
    assert node.config.read_bytes() == before


def with_drop_in(node: Node, pattern: str) -> None:
    """A containerd 2 that puts its drop-ins over the file, found as that file's ``imports`` say."""
    node.config.write_text(f'imports = ["{pattern}"]\n' + node.config.read_text().replace("imports = []", ""))
    drop_in = node.root / "conf.d" / "cgroup.toml"
    drop_in.parent.mkdir()
    table = f"[plugins.'{CRI}'.containerd.runtimes.runc.options]\nSystemdCgroup = "
    drop_in.write_text(f"version = 3\n{table}false\n")
    node.command(
        "containerd",
        f"""exec {sys.executable} - "$2" <<'END'
import glob, os, sys, tomllib
import tomlkit
merged = tomllib.load(open(sys.argv[1], "rb"))
def merge(to, from_):
    for key, value in from_.items():
        to[key] = merge(to.get(key, {{}}), value) if isinstance(value, dict) else value
    return to
for pattern in merged["imports"]:
    for path in glob.glob(os.path.join(os.path.dirname(sys.argv[1]), pattern)) or open(pattern):
        merge(merged, tomllib.load(open(path, "rb")))
print(tomlkit.dumps(merged))
END""",
    )


@pytest.mark.parametrize("pattern", ["conf.d/*.toml", "{root}/conf.d/*.toml", "conf.d/cgroup.toml"])
def test_the_cgroup_driver_of_a_drop_in_is_that_of_the_runtime(node: Node, pattern: str) -> None:
    with_drop_in(node, pattern.format(root=node.root))
    before = node.config.read_text()

    result = node.run(default_runtime=True)

    assert "msg" not in result
    assert runtimes(node)["runtimes"]["nvidia"]["options"]["SystemdCgroup"] is False
    assert runtimes(node)["runtimes"]["runc"]["options"]["SystemdCgroup"] is True
    assert not node.run(default_runtime=True)["changed"]
    assert not node.run(check=True, default_runtime=True)["changed"]
    node.run(state="absent")
    assert node.config.read_text() == before


def test_containerd_that_cannot_read_its_file_refuses_ours(node: Node) -> None:
    with_drop_in(node, "conf.d/*.toml")
    (node.root / "conf.d" / "cgroup.toml").write_text("]")

    assert "was refused, so nothing was changed" in node.run()["msg"]


def test_a_killed_run_is_undone_by_the_next_which_then_succeeds(node: Node) -> None:
    waiting = node.root / "waiting"
    node.command("ctr", f"touch {waiting}; exit 1")
    process = node.start_module("nvidia_runtime", node.arguments(timeout=300), environment=node.environment)
    while not waiting.exists():
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert "nvidia" in runtimes(node)["runtimes"]

    node.command("ctr", f"echo '{HEALTHY}'")
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


def without_tomlkit(node: Node, **options: Any) -> dict[str, Any]:
    broken = node.root / "broken" / "tomlkit"
    broken.mkdir(parents=True, exist_ok=True)
    (broken / "__init__.py").write_text("raise ImportError('none here')\n")
    environment = {**node.environment, "PYTHONPATH": str(broken.parent)}
    check = options.pop("check", False)
    return node.run_module("nvidia_runtime", node.arguments(**options), check=check, environment=environment)


def test_check_mode_without_tomlkit_finds_an_uneditable_file(node: Node) -> None:
    foretold = without_tomlkit(node, check=True)
    assert foretold["changed"]
    assert "tomlkit" in str(foretold["warnings"])
    assert "tomlkit" in without_tomlkit(node)["msg"]

    node.config.write_text("version = \n")
    assert "cannot be read as TOML" in without_tomlkit(node, check=True)["msg"]
    shutil.copy(FIXTURES / "containerd-2.1.toml", node.config)
    assert "has 0 KiB left" in without_tomlkit(node, check=True, backup_dir="/proc/accel")["msg"]


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("text", ["version = 3\n", "version = 1\n", 'version = 2\ndisabled_plugins = ["cri"]\n', "]"])
def test_from_a_file_without_the_runtime_nothing_is_taken(node: Node, text: str, check: bool) -> None:
    node.config.write_text(text)

    result = without_tomlkit(node, state="absent", check=check)

    assert "msg" not in result
    assert not result["changed"]
    assert node.config.read_text() == text


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("place", ["backup_dir", "config_path"])
def test_a_place_without_room_is_found_before_anything_changes(node: Node, place: str, check: bool) -> None:
    before = node.config.read_bytes()
    # Nothing can be written to /proc, which says so.
    result = node.run(check=check, **{place: "/proc/accel/config.toml"})

    assert result["failed"]
    assert "/proc/accel" in result["msg"]
    assert "has 0 KiB left" in result["msg"]
    assert "make room there (see 'df /proc/accel" in result["msg"]
    assert node.config.read_bytes() == before
    assert not any("restart" in line for line in node.log())


def test_missing_unit_is_named_before_any_change(node: Node) -> None:
    before = node.config.read_bytes()
    node.command("systemctl", f'echo "systemctl $*" >>{node.root}/log; [ "$1" != show ] || echo not-found')

    result = node.run(service="crio")

    assert "no unit crio" in result["msg"]
    assert "service to the unit that runs it" in result["msg"]
    assert node.config.read_bytes() == before
    assert not any("restart" in line for line in node.log())


def test_no_service_means_no_restart(node: Node) -> None:
    assert node.run(service="")["changed"]
    assert node.log() == []


def test_an_old_file_is_refused_with_the_remedy(node: Node) -> None:
    node.config.write_text("[plugins.cri]\n")

    for check in (True, False):
        result = node.run(check=check)
        assert result["failed"]
        assert "config migrate" in result["msg"]


@pytest.mark.parametrize(
    "content",
    [None, b'{\n  "live-restore": true\n}\n', b'\xef\xbb\xbf{\r\n  "live-restore": true\r\n}\r\n'],
    ids=["no file", "unix", "windows"],
)
def test_docker(node: Node, content: bytes | None) -> None:
    config = node.root / "daemon.json"
    if content is not None:
        config.write_bytes(content)
    node.command("dockerd", r"""sed '1s/^\xef\xbb\xbf//' "$3" | python3 -m json.tool""")
    node.docker()
    options: dict[str, Any] = {"runtime": "docker", "config_path": str(config), "default_runtime": True, "cdi": True}

    assert node.run(check=True, **options)["changed"]
    assert node.run(**options)["changed"]
    data = json.loads(config.read_text(encoding="utf-8-sig"))
    assert data["default-runtime"] == "nvidia"
    assert data["runtimes"]["nvidia"]["path"] == "/usr/bin/nvidia-container-runtime"
    assert data["features"]["cdi"] is True
    assert "systemctl restart docker" in node.log()
    assert not node.run(**options)["changed"]

    node.run(state="absent", **options)
    assert (config.read_bytes() if config.exists() else None) == content


@pytest.mark.parametrize(
    ("said", "allowed", "refused"),
    [("false 3", False, True), ("false 3", True, False), ("false 0", False, False), ("true 3", False, False)],
)
def test_containers_a_restart_would_stop_keep_docker_unchanged(
    node: Node, said: str, allowed: bool, refused: bool
) -> None:
    config = node.root / "daemon.json"
    node.command("dockerd", "exit 0")
    node.docker(said)
    for check in (True, False):
        result = node.run(check=check, runtime="docker", config_path=str(config), stop_containers=allowed)
        assert result.get("failed", False) == refused
        assert not refused or "would stop the 3 containers" in result["msg"]
    assert config.exists() != refused
    assert ("systemctl restart docker" in node.log()) != refused
    nothing = node.run(runtime="docker", config_path=str(config), state="present" if config.exists() else "absent")
    assert not nothing["changed"]


def test_a_docker_that_cannot_validate_is_warned_about(node: Node) -> None:
    config = node.root / "daemon.json"
    node.command("dockerd", "echo 'Status: unknown flag: --validate' >&2; exit 125")
    node.docker()

    result = node.run(runtime="docker", config_path=str(config))

    assert result["changed"]
    assert "not validated" in str(result["warnings"])


def crio(node: Node, script: str) -> None:
    """A CRI-O that says of itself what its drop-in says, and does else what the script says."""
    node.command("crio", f'[ "$*" = "status config" ] && exec cat {node.root}/crio.conf.d/99-nvidia.toml\n{script}')


def crio_options(node: Node) -> dict[str, Any]:
    node.command("crictl", '[ "$*" = "--runtime-endpoint unix:///run/crio/crio.sock info" ]')
    crio(node, f'echo "crio $*" >>{node.root}/log; ! grep refused "$2"')
    node.command("nvidia-container-runtime", "")
    path, program = node.root / "crio.conf.d/99-nvidia.toml", node.root / "bin" / "nvidia-container-runtime"
    path.parent.mkdir(exist_ok=True)
    return {"runtime": "crio", "config_path": str(path), "runtime_binary": str(program), "default_runtime": True}


def test_crio(node: Node) -> None:
    options = crio_options(node)
    config = Path(options["config_path"])

    assert node.run(**options)["changed"]
    data = tomllib.loads(config.read_text())["crio"]["runtime"]
    assert data["default_runtime"] == "nvidia"
    assert data["runtimes"]["nvidia"]["runtime_path"] == options["runtime_binary"]
    assert not node.run(check=True, **options)["changed"]

    node.run(state="absent", **options)
    assert not config.exists()


def test_what_crio_would_not_start_with_is_not_written(node: Node) -> None:
    options = crio_options(node)
    config = Path(options["config_path"])
    refused = node.run(**options, runtime_name="refused")
    assert f"the new {config} was refused, so nothing was changed: 'crio --config " in refused["msg"]

    Path(options["runtime_binary"]).unlink()
    assert "does not exist and CRI-O would not start with it" in node.run(**options)["msg"]

    assert not config.exists()
    assert not any("restart" in line for line in node.log())


@pytest.mark.parametrize(("name", "check"), [("99-zz.conf", False), ("99-nvidia.toml.d/.hidden/x", True)])
def test_a_later_drop_in_of_crio_that_wins_is_named(node: Node, name: str, check: bool) -> None:
    options = crio_options(node)
    config = Path(options["config_path"])
    later = config.parent / name
    later.parent.mkdir(parents=True, exist_ok=True)
    earlier = [config.with_name(".99-zz.conf"), config.with_name("99-nvidia") / "zz.conf"]
    earlier[1].parent.mkdir()
    for path in (later, *earlier):
        path.write_text('[crio.runtime]\ndefault_runtime = "crun"\n')
    refused = node.run(check=check, **options)
    assert f"{later}, which is read after ours, overrides it: the default runtime is 'crun'" in refused["msg"]
    assert not config.exists()
    assert node.run(check=True, **options | {"default_runtime": False})["changed"]


def test_a_drop_in_that_overrides_the_main_file_of_crio_is_named(node: Node) -> None:
    options = crio_options(node)
    drop_in = Path(options["config_path"])
    config = drop_in.parent.with_suffix("")
    options["config_path"] = str(config)
    drop_in.write_text('[crio.runtime]\ndefault_runtime = "crun"\n')
    config.with_name("crio.conf.rpmsave").write_text("no TOML, and no file of CRI-O's\n")
    refused = node.run(check=True, **options)
    assert f"{drop_in}, which is read after ours, overrides it: the default runtime is 'crun'" in refused["msg"]
    assert node.run(check=True, **options | {"default_runtime": False})["changed"]


CRIO_OF_ITS_PACKAGES = """
[crio.runtime]
default_runtime = "crun"
[crio.runtime.runtimes.crun]
runtime_path = "/usr/libexec/crio/crun"
runtime_type = ""
monitor_path = "/usr/libexec/crio/conmon"
monitor_cgroup = "pod"
monitor_env = ["PATH=/usr/bin"]
allowed_annotations = ["io.containers.trace-syscall"]
[crio.runtime.runtimes.runc]
runtime_path = "/usr/libexec/crio/runc"
monitor_path = "/usr/libexec/crio/conmon"
"""


def test_crio_whose_programs_are_not_on_path(node: Node) -> None:
    options = crio_options(node) | toolkit_options(node)
    config, toolkit, said = Path(options["config_path"]), node.root / "toolkit.toml", node.root / "said.toml"
    toolkit.write_text('[nvidia-container-runtime]\nruntimes = ["runc", "crun"]\n')
    before = toolkit.read_bytes()
    said.write_text(CRIO_OF_ITS_PACKAGES)
    crio(node, f'[ "$*" = config ] && exec cat {said}; exit 0')
    node.command("runc", "")

    assert node.run(check=True, **options)["changed"]
    node.run(**options)

    runtime = tomllib.loads(config.read_text())["crio"]["runtime"]["runtimes"]["nvidia"]
    assert runtime["monitor_path"] == "/usr/libexec/crio/conmon", "CRI-O does not start without one"
    assert (runtime["monitor_cgroup"], runtime["monitor_env"]) == ("pod", ["PATH=/usr/bin"])
    assert runtime["allowed_annotations"] == ["io.containers.trace-syscall"]
    runtimes = tomllib.loads(toolkit.read_text())["nvidia-container-runtime"]["runtimes"]
    assert runtimes == ["/usr/libexec/crio/crun", "runc", "crun"]
    said.write_text(CRIO_OF_ITS_PACKAGES.replace('"crun"', '"nvidia"', 1))
    crio(node, f'[ "$*" = config ] && exec cat {said}; exit 0')
    assert not node.run(**options)["changed"], "the default is now ours"

    toolkit.write_text(toolkit.read_text() + "# a later hand\n")
    node.run(state="absent", **options)
    assert not config.exists()
    assert toolkit.read_bytes() == before + b"# a later hand\n"


def test_crio_whose_programs_the_toolkit_finds(node: Node) -> None:
    options = crio_options(node) | toolkit_options(node)
    said = CRIO_OF_ITS_PACKAGES.replace("/usr/libexec/crio", str(node.root / "bin"))
    crio(node, f"[ \"$*\" = config ] && exec echo '{said}'; exit 0")
    node.command("crun", "")

    node.run(**options)

    assert not (node.root / "toolkit.toml").exists()


def test_a_flag_of_a_docker_that_does_not_run_is_named(node: Node) -> None:
    node.command("dockerd", "exit 0")
    node.docker()
    options: dict[str, Any] = {"runtime": "docker", "config_path": str(node.root / "daemon.json")}
    flags = "--add-runtime=nvidia=/y --default-runtime=nvidia"
    more = node.root / "docker"
    more.write_text(f"DOCKER_OPTS={flags}\n")
    started_by(node, f"EnvironmentFile={node.root}/dock*\nExecStart=/usr/bin/dockerd $DOCKER_OPTS")
    refused = node.run(check=True, **options, default_runtime=True)
    assert "dockerd on this host is started with --default-runtime" in refused["msg"]
    assert node.run(**options)["changed"], "dockerd takes the file's runtime of that name"


def started_by(node: Node, service: str) -> None:
    """Have the unit hold that."""
    node.command(
        "systemctl", f"[ \"$1\" != cat ] || cat <<'end'\n# /etc/systemd/system/x.service\n[Service]\n{service}\nend"
    )


def test_a_variable_of_crio_that_overrides_the_drop_in_is_named(node: Node) -> None:
    options = crio_options(node)
    started_by(node, "Environment=CONTAINER_DEFAULT_RUNTIME=crun\nExecStart=/usr/bin/crio -config=/etc/crio/crio.conf")
    refused = node.run(check=True, **options)
    assert (
        "CRI-O on this host is started with CONTAINER_DEFAULT_RUNTIME=crun (in /etc/systemd/system/x.service), which "
        "overrides" in refused["msg"]
    )
    assert "take that out" in refused["msg"]
    assert node.run(check=True, **options | {"default_runtime": False})["changed"]


def test_what_a_unit_is_to_start_counts_over_what_runs(node: Node) -> None:
    process = running_as(node, "--config", "/srv/other.toml")
    try:
        started_by(node, f"ExecStart=/usr/bin/containerd -config {node.config}")
        assert node.run(check=True)["changed"]
        started_by(node, "ExecStart=/usr/bin/containerd -config=/srv/new.toml")
        refused = node.run(check=True)
        assert "containerd on this host reads /srv/new.toml, as its command line says in /etc/systemd" in refused["msg"]
    finally:
        process.kill()


def test_a_flag_of_crio_that_overrides_the_drop_in_is_named(node: Node) -> None:
    options = crio_options(node)
    process = running_as(node, "--default-runtime", "crun")
    try:
        refused = node.run(check=True, **options)
        assert "CRI-O on this host is started with --default-runtime crun, which overrides" in refused["msg"]
        assert node.run(check=True, **options | {"default_runtime": False})["changed"]
    finally:
        process.kill()


def test_crio_without_crictl_is_asked_by_its_own_command(node: Node) -> None:
    options = crio_options(node)
    (node.root / "bin" / "crictl").unlink()

    assert node.run(**options)["changed"]

    assert "crio status info" in node.log()


def test_what_crio_says_that_is_no_toml_is_not_heeded(node: Node) -> None:
    options = crio_options(node) | toolkit_options(node)
    crio(node, '[ "$*" = config ] && exec echo "]"; exit 0')

    assert node.run(**options)["changed"]


@pytest.fixture
def k3s(node: Node) -> Node:
    """The machine with a k3s that writes containerd's configuration when it starts, as an agent."""
    containerd = node.root / "k3s"
    containerd.mkdir()
    (containerd / "config-v3.toml.d").mkdir()
    node.command("k3s", f"grep -q ^version {containerd}/config.toml && echo '{HEALTHY}'")
    generation = node.root / "generation"
    generation.write_text("3")
    start = (
        f"{sys.executable} {ROOT}/tests/hosts/rancher.py {containerd} {node.root}/settings.yaml "
        f"$(cat {generation}) $(cat {node.root}/found 2>/dev/null)"
    )
    node.command(
        "systemctl",
        f"""echo "systemctl $*" >>{node.root}/log
case "$*" in
"cat k3s-agent"|"show "*|"stop "*) exit 0 ;;
"restart k3s-agent") {start} ;;
*) exit 1 ;;
esac""",
    )
    subprocess.run(start, shell=True, check=True)
    return node


def k3s_options(node: Node, **options: Any) -> dict[str, Any]:
    return {
        "runtime": "k3s",
        "config_path": str(node.root / "k3s" / "config.toml"),
        "settings_path": str(node.root / "settings.yaml"),
        **options,
    }


def k3s_files(node: Node) -> dict[str, bytes]:
    paths = [*(node.root / "k3s").rglob("*"), node.root / "settings.yaml"]
    return {str(path): path.read_bytes() for path in paths if path.is_file() and path.name != "config.toml"}


def test_k3s_gets_a_drop_in_and_loses_it(k3s: Node) -> None:
    drop_in = k3s.root / "k3s" / "config-v3.toml.d" / "99-accel-kubernetes.toml"
    options = k3s_options(k3s, default_runtime=True)

    foretold = k3s.run(check=True, **options)
    assert foretold["changed"]
    assert k3s_files(k3s) == {}
    done = k3s.run(**options)
    assert done["diff"] == foretold["diff"]
    assert tomllib.loads(drop_in.read_text())["plugins"][CRI]["containerd"]["default_runtime_name"] == "nvidia"
    assert "systemctl restart k3s-agent" in k3s.log()
    assert not k3s.run(**options)["changed"]

    assert k3s.run(state="absent", **options)["changed"]
    assert k3s_files(k3s) == {}
    assert not k3s.run(state="absent", **options)["changed"]


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("name", ["99-nvidia.toml", "nvidia.toml"])
def test_a_later_drop_in_of_k3s_that_wins_is_named(k3s: Node, name: str, check: bool) -> None:
    later = k3s.root / "k3s/config-v3.toml.d" / name
    runtime = f"plugins.'{CRI}'.containerd"
    later.write_text(f'version = 3\n[{runtime}]\ndefault_runtime_name = "runc"\n')
    before = k3s_files(k3s)
    refused = k3s.run(check=check, **k3s_options(k3s, default_runtime=True))
    assert f"{later}, which is read after ours, overrides it: the default runtime is 'runc'" in refused["msg"]
    assert k3s_files(k3s) == before
    assert k3s.run(check=True, **k3s_options(k3s))["changed"], "the default is not asked for"
    later.write_text(f"version = 3\n[{runtime}.runtimes.nvidia.options]\nBinaryName = '/other'\n")
    assert "BinaryName = '/other' instead of" in k3s.run(check=check, **k3s_options(k3s))["msg"]


def make_old(node: Node) -> None:
    (node.root / "generation").write_text("2")
    subprocess.run([node.root / "bin" / "systemctl", "restart", "k3s-agent"], check=True)


def test_old_k3s_is_only_restarted_to_find_the_runtime(k3s: Node) -> None:
    make_old(k3s)
    (k3s.root / "found").write_text("/usr/bin/nvidia-container-runtime")

    assert k3s.run(check=True, **k3s_options(k3s))["changed"]
    result = k3s.run(**k3s_options(k3s))

    assert result["changed"]
    assert result["diff"] == []
    assert k3s_files(k3s) == {}
    log = k3s.log()
    assert not k3s.run(**k3s_options(k3s))["changed"]
    assert [line for line in k3s.log() if "restart" in line] == [line for line in log if "restart" in line]


def test_a_running_containerd_that_does_not_have_it_is_undone(node: Node) -> None:
    """What else it is told, and we did not see, overrides the file."""
    before = node.config.read_bytes()
    other = node.root / "conf.d/other.toml"
    other.parent.mkdir()
    table = f"[plugins.'{CRI}'.containerd]\ndefault_runtime_name = 'runc'\n"
    other.write_text(table)

    refused = node.run(default_runtime=True, timeout=2)

    assert "containerd runs, and says that the default runtime is 'runc' instead of 'nvidia'" in refused["msg"]
    assert f"overrides {node.config}; the previous files are back and the service is well" in refused["msg"]
    assert node.config.read_bytes() == before
    for table in ("runtimes.nvidia.options]\nBinaryName = '/x'\n", "runtimes.nvidia.options]\nSystemdCgroup = false\n"):
        other.write_text(f"[plugins.'{CRI}'.containerd.{table}")
        assert "nvidia has options." in node.run(timeout=2)["msg"]
    other.write_text(f"[plugins.'{CRI}']\nenable_cdi = false\n")
    assert "enable_cdi is false instead of true" in node.run(timeout=2, cdi=True)["msg"]
    assert node.run()["changed"]


def test_a_runtime_that_does_not_answer_is_not_called_configured(node: Node) -> None:
    before = node.config.read_bytes()
    refused = node.run(timeout=2, cri_socket=f"unix://{node.root}/nowhere.sock")
    assert f"does not answer at {node.root}/nowhere.sock" in refused["msg"]
    assert node.config.read_bytes() == before
    assert node.run(cri_socket="")["changed"], "it is not asked"
    assert "is not known: the container runtime does not answer" in str(
        node.run(cri_socket=f"{node.root}/nowhere.sock")["warnings"]
    )


def test_a_containerd_that_listens_elsewhere_is_asked_there(node: Node) -> None:
    node.command("ctr", f"[ \"$1 $2\" = '--address {node.cri_socket}' ] && echo '{HEALTHY}'")
    usual = node.config.read_text()
    node.config.write_text(usual.replace("/run/containerd/containerd.sock", str(node.cri_socket), 1))
    assert node.run(cri_socket=None)["changed"]
    assert node.run(cri_socket=None, state="absent")["changed"]
    node.config.write_text(usual)
    process = running_as(node, "--config", str(node.config), "--address", str(node.cri_socket))
    try:
        assert node.run(cri_socket=None)["changed"]
        node.command("ctr", "echo 'no such socket' >&2; exit 1")
        assert node.run(cri_socket=None, check=True, state="absent")["changed"], "where it listens is known"
    finally:
        process.kill()


def test_who_cannot_be_asked_is_named_before_anything_changes(node: Node) -> None:
    before = node.config.read_bytes()
    nowhere = node.root / "nowhere.sock"
    process = running_as(node, "--config", str(node.config))
    try:
        for check in (True, False):
            refused = node.run(check=check, cri_socket=str(nowhere))
            assert f"nothing answers at {nowhere} (No such file or directory)" in refused["msg"]
        for check in (True, False):
            refused = node.run(check=check, ready=["not-here", "version"])
            assert "not-here is not on PATH, and only it can say whether containerd is well" in refused["msg"]
        node.config.write_bytes(before.replace(b"[grpc]", b"[not_grpc]"))
        node.command("ctr", "echo 'no such socket' >&2; exit 1")
        assert "containerd does not answer, though its unit runs" in node.run(check=True)["msg"]
        node.config.write_bytes(before)
        assert node.run(check=True, ready=["true"])["changed"]
    finally:
        process.kill()
    assert node.config.read_bytes() == before
    assert not any("restart" in line for line in node.log())


def test_a_runtime_that_has_not_read_its_file_is_restarted(node: Node) -> None:
    node.run()
    other = node.root / "conf.d/since-the-last-start.toml"
    other.parent.mkdir()
    other.write_text(f"[plugins.'{CRI}'.containerd.runtimes.nvidia.options]\nBinaryName = '/x'\n")
    node.command("systemctl", f'echo "systemctl $*" >>{node.root}/log; [ "$1" != restart ] || rm -f {other}')

    assert node.run(check=True)["changed"]
    assert other.exists()
    done = node.run()

    assert done["changed"]
    assert done["diff"] == []
    assert node.log()[-1].startswith("systemctl stop accel-nvidia_runtime-")
    assert not other.exists()
    assert not node.run()["changed"]


@pytest.mark.parametrize(
    ("state", "says"), [("not-found", "no unit gone"), ("masked", "the unit gone cannot be started, being masked")]
)
def test_a_unit_that_would_only_be_restarted_has_to_be_there(k3s: Node, state: str, says: str) -> None:
    make_old(k3s)
    k3s.command("systemctl", f'echo "systemctl $*" >>{k3s.root}/log; [ "$1" != show ] || echo {state}')
    for check in (True, False):
        assert says in k3s.run(check=check, **k3s_options(k3s, service="gone"))["msg"]
    assert "systemctl restart gone" not in k3s.log()


def test_docker_that_would_not_start_again_is_named(node: Node) -> None:
    config = node.root / "daemon.json"
    node.command("dockerd", "exit 0")
    node.docker()
    options: dict[str, Any] = {"runtime": "docker", "config_path": str(config), "cdi": True}
    node.run(**options)
    node.command("docker", """echo '{"Runtimes": {"runc": {"path": "runc"}}}'""")
    process = running_as(node, "--feature=cdi")
    try:
        assert "is started with --feature" in node.run(check=True, **options)["msg"]
    finally:
        process.kill()


def test_settings_that_override_an_old_k3s_are_named(k3s: Node) -> None:
    make_old(k3s)
    settings = k3s.root / "config.yaml.d"
    settings.mkdir()
    options = k3s_options(k3s, default_runtime=True, settings_path=str(settings / "99-accel-kubernetes.yaml"))
    later = settings / "zz.yaml"
    later.write_text("default-runtime: crun\n")
    for check in (True, False):
        refused = k3s.run(check=check, **options)
        assert f"{later} has k3s run containers with crun by default" in refused["msg"]
        assert "take that out, then run again; nothing was changed" in refused["msg"]
    later.unlink()
    assert k3s.run(check=True, **options)["changed"]
    cat = "# /etc/systemd/system/k3s-agent.service\n[Service]\nExecStart=/usr/bin/k3s agent --docker\n"
    k3s.command("systemctl", f"[ \"$1\" != cat ] || printf '{cat}'")
    assert "k3s-agent.service has k3s use Docker" in k3s.run(check=True, **k3s_options(k3s))["msg"]
    assert not list(settings.iterdir())


def test_a_k3s_that_keeps_its_data_elsewhere_is_found_there(k3s: Node) -> None:
    settings = k3s.root / "etc/rancher/k3s/config.yaml.d/99-accel-kubernetes.yaml"
    settings.parent.mkdir(parents=True)
    (settings.parents[1] / "config.yaml").write_text("data-dir: /srv/k3s/\n")
    below = "agent/etc/containerd"
    shutil.copytree(k3s.root / "k3s", k3s.root / "srv/k3s" / below)
    options = k3s_options(k3s, settings_path=str(settings))
    usual = k3s.root / "var/lib/rancher/k3s" / below / "config.toml"

    foretold = k3s.run(check=True, **options | {"config_path": str(usual)})
    assert foretold["config_path"] == str(k3s.root / "srv/k3s" / below / "config.toml")
    assert str(k3s.root / "srv/k3s" / below) in foretold["diff"][0]["after_header"]

    refused = k3s.run(check=True, **options)
    assert f"{settings.parents[1]}/config.yaml has k3s keep its data in /srv/k3s/, so it writes" in refused["msg"]
    assert "leave config_path out" in refused["msg"]
    assert not k3s.run(check=True, state="absent", **options)["changed"]


def test_silent_k3s_socket_is_named_before_any_change(k3s: Node) -> None:
    nowhere = k3s.root / "nowhere.sock"
    k3s.command("systemctl", '[ "$*" != "show --property=MainPID k3s" ] || echo MainPID=7')
    for check in (True, False):
        refused = k3s.run(check=check, **k3s_options(k3s, cri_socket=str(nowhere)))
        assert f"nothing answers at {nowhere} (No such file or directory)" in refused["msg"]
        assert "Wait until k3s has started" in refused["msg"]
    assert k3s.run(check=True, **k3s_options(k3s))["changed"]


def test_an_old_k3s_that_finds_another_runtime_is_named(k3s: Node) -> None:
    make_old(k3s)
    (k3s.root / "found").write_text("/usr/local/nvidia/toolkit/nvidia-container-runtime")

    result = k3s.run(timeout=2, **k3s_options(k3s))

    assert result["failed"]
    assert "k3s was restarted, but in" in result["msg"]
    assert "BinaryName = '/usr/local/nvidia/toolkit/nvidia-container-runtime'" in result["msg"]


def test_a_template_of_an_old_k3s_comes_back_byte_for_byte(k3s: Node) -> None:
    make_old(k3s)
    template = k3s.root / "k3s" / "config.toml.tmpl"
    before = b'# theirs\n{{ template "base" . }}\n\n\n[debug]\n  level = "info"'
    template.write_bytes(before)
    subprocess.run([k3s.root / "bin" / "systemctl", "restart", "k3s-agent"], check=True)
    options = k3s_options(k3s, runtime_name="gpu")

    k3s.run(**options)
    assert b"runtimes.gpu]" in template.read_bytes()
    assert not k3s.run(**options)["changed"]
    k3s.run(state="absent", **options)

    assert k3s_files(k3s) == {str(template): before}


def test_bad_k3s_template_is_undone_even_if_the_run_dies(k3s: Node) -> None:
    make_old(k3s)
    options = k3s_options(k3s, runtime_name="gpu", timeout=300)
    systemctl = (k3s.root / "bin" / "systemctl").read_text()
    waiting = k3s.root / "waiting"
    broken = f"touch {waiting}; echo version = >{k3s.root}/k3s/config.toml; exec sleep 300 ;;"
    k3s.command("systemctl", systemctl.replace('"restart k3s-agent")', f'"restart k3s-agent") {broken}\n"never")'))
    process = k3s.start_module("nvidia_runtime", k3s.arguments(**options), environment=k3s.environment)
    while not waiting.exists():
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (k3s.root / "bin" / "systemctl").write_text(systemctl)

    result = k3s.run(**options)

    assert result["recovered"] == "restored"
    assert result["changed"], result
    assert not k3s.run(**options)["changed"]


def test_a_k3s_that_never_ran_and_an_absent_unit_are_named(k3s: Node) -> None:
    (k3s.root / "k3s" / "config.toml").unlink()
    assert "start it once" in k3s.run(**k3s_options(k3s))["msg"]

    k3s.command("systemctl", "exit 1")
    message = k3s.run(**k3s_options(k3s))["msg"]
    assert "no unit k3s or k3s-agent" in message
    assert "set service" in message


def test_the_file_k3s_generates_is_not_edited(k3s: Node) -> None:
    result = k3s.run(config_path=str(k3s.root / "k3s" / "config.toml"))

    assert result["failed"]
    assert "k3s rewrites " in result["msg"]
    assert "runtime=k3s" in result["msg"]


TOOLKIT = """\
#accept-nvidia-visible-devices-as-volume-mounts = false
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"

[nvidia-container-cli]
load-kmods = true # theirs

[nvidia-container-runtime]
mode = "auto"
"""
ENVIRONMENT = "accept-nvidia-visible-devices-envvar-when-unprivileged"
MOUNTS = "accept-nvidia-visible-devices-as-volume-mounts"


def toolkit_options(node: Node, **options: Any) -> dict[str, Any]:
    return {"toolkit_config_path": str(node.root / "toolkit.toml"), **options}


@pytest.mark.parametrize("before", [TOOLKIT, None])
def test_on_a_shared_node_an_image_cannot_name_gpus(node: Node, before: str | None) -> None:
    path = node.root / "toolkit.toml"
    if before is not None:
        path.write_text(before)
    node.run(**toolkit_options(node))
    log = node.log()

    assert node.run(check=True, **toolkit_options(node, ignore_visible_devices=True))["changed"]
    assert node.run(**toolkit_options(node, ignore_visible_devices=True))["changed"]
    data = tomllib.loads(path.read_text())
    assert (data[ENVIRONMENT], data[MOUNTS]) == (False, True)
    assert node.log() == log, "the toolkit reads its file for every container"
    assert not node.run(**toolkit_options(node, ignore_visible_devices=True))["changed"]

    assert node.run(**toolkit_options(node))["changed"]
    assert (path.read_text() if path.exists() else None) == before
    assert not node.run(**toolkit_options(node))["changed"]


def test_toolkit_settings_go_and_later_edits_stay(node: Node) -> None:
    path = node.root / "toolkit.toml"
    path.write_text(TOOLKIT)
    before = node.config.read_bytes()
    node.run(**toolkit_options(node, ignore_visible_devices=True))
    path.write_text(path.read_text().replace("load-kmods = true", "load-kmods = false"))

    node.run(**toolkit_options(node, state="absent"))

    assert node.config.read_bytes() == before
    assert tomllib.loads(path.read_text()) == tomllib.loads(TOOLKIT.replace("load-kmods = true", "load-kmods = false"))


def test_settings_of_the_toolkit_that_others_made_stay(node: Node) -> None:
    path = node.root / "toolkit.toml"
    path.write_text(f"{ENVIRONMENT} = false\n{MOUNTS} = true\n")
    before = path.read_text()

    node.run(**toolkit_options(node, ignore_visible_devices=True))
    node.run(**toolkit_options(node, state="absent"))

    assert path.read_text() == before


def test_microk8s_is_told_by_its_template(node: Node) -> None:
    template = node.root / "containerd-template.toml"
    shutil.copy(FIXTURES / "runtimes" / "microk8s-template.toml", template)
    before = template.read_bytes()
    node.command("microk8s", f"echo '{HEALTHY}'")
    options: dict[str, Any] = {
        "runtime": "microk8s",
        "config_path": str(template),
        "containerd_command": ["containerd"],
    }

    assert node.run(**options)["changed"]
    part = tomllib.loads(template.read_text())["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]
    assert part["runtimes"]["nvidia"]["options"]["BinaryName"] == "/usr/bin/nvidia-container-runtime"
    assert part["default_runtime_name"] == "${RUNTIME}"
    assert "systemctl restart snap.microk8s.daemon-containerd" in node.log()

    node.run(state="absent", **options)
    assert template.read_bytes() == before


@pytest.mark.parametrize("containerd", real_runtimes.containerds())
@pytest.mark.parametrize("cdi", [None, True])
def test_a_real_containerd_takes_the_file(node: Node, containerd: Path, cdi: bool | None) -> None:
    node.config.unlink()

    result = node.run(containerd_command=[str(containerd)], default_runtime=True, cdi=cdi)

    assert result["changed"], result
    old = " 1.6." in subprocess.run([containerd, "--version"], capture_output=True, text=True).stdout
    assert ("This containerd has no CDI, which came with 1.7" in str(result.get("warnings"))) == bool(cdi and old)
    dump = subprocess.run(
        [containerd, "--config", str(node.config), "config", "dump"], capture_output=True, text=True, check=True
    )
    data = tomllib.loads(dump.stdout)
    part = data["plugins"][CRI if data["version"] > 2 else "io.containerd.grpc.v1.cri"]
    assert part["containerd"]["default_runtime_name"] == "nvidia"
    ours, runc = (part["containerd"]["runtimes"][name] for name in ("nvidia", "runc"))
    assert ours["options"]["BinaryName"] == "/usr/bin/nvidia-container-runtime"
    assert ours["options"]["SystemdCgroup"] == runc["options"]["SystemdCgroup"]
    assert ours["runtime_type"] == "io.containerd.runc.v2"


@pytest.mark.parametrize("containerd", real_runtimes.containerds())
def test_import_a_real_containerd_prefers_is_named(node: Node, containerd: Path) -> None:
    table = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]'
    for name, text in {
        "conf.d/10-debug.toml": "version = 2\n[debug]\nlevel = 'info'\n",
        "conf.d/20-theirs.toml": f"version = 2\n{table}\nBinaryName = '/theirs'\n",
        "config.toml": f"version = 2\nimports = ['{node.root}/conf.d/*.toml']\n",
    }.items():
        (node.root / name).parent.mkdir(exist_ok=True)
        (node.root / name).write_text(text)
    before = node.config.read_bytes()

    for check in (True, False):
        refused = node.run(check=check, containerd_command=[str(containerd)])
        assert f"{node.root}/conf.d/20-theirs.toml, which its 'imports' names, overrides it" in refused["msg"]
    assert node.config.read_bytes() == before


@pytest.mark.parametrize("containerd", real_runtimes.containerds())
@pytest.mark.parametrize("name", [".20-hidden.toml", "nested/20-theirs.toml"])
def test_a_hidden_import_and_one_of_an_import_are_named(node: Node, containerd: Path, name: str) -> None:
    node.config.write_text('version = 2\nimports = ["conf.d/*.toml"]\n')
    theirs = node.root / "conf.d" / name
    theirs.parent.mkdir(parents=True)
    if "nested" in name:
        (node.root / "conf.d/10-more.toml").write_text(f'version = 2\nimports = ["{theirs.parent}/*.toml"]\n')
    table = '[plugins."io.containerd.grpc.v1.cri".containerd'
    theirs.write_text(f'version = 2\n{table}]\n  default_runtime_name = "x"\n{table}.runtimes.x]\n')
    refused = node.run(check=True, default_runtime=True, containerd_command=[str(containerd)])
    assert f"{theirs}, which its 'imports' names, overrides it" in refused["msg"]


def test_file_version_containerd_cannot_read_is_refused(node: Node) -> None:
    """containerd 1.6 takes what is said of plugins that it does not know for nothing."""
    node.command("containerd", f"exec cat {FIXTURES}/containerd-1.7.toml")
    assert "version 3, but this containerd ignores it, because it reads version 2" in node.run()["msg"]
