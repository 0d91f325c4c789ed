# SPDX-License-Identifier: Apache-2.0
"""What keeps a runtime from heeding its file: later drop-ins and flags, and whether it says that it does."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.host.command_line import Given, started
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.config import Wanted
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.dialect import ConfigError
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.effect import (
    address,
    crio_drop_ins,
    crio_flag_against,
    crio_other_file,
    file_read,
    flags_against,
    merged,
    said_by_containerd,
    said_by_docker,
    unmet,
    winner,
)
from hypothesis import given
from hypothesis import strategies as st

import real_runtimes

BINARY = "/usr/bin/nvidia-container-runtime"
CRI = "io.containerd.cri.v1.runtime"
DIRECTORY = "/etc/containerd/conf.d"


def cri(**tables: object) -> dict[str, object]:
    return {"version": 3, "plugins": {CRI: tables}}


def runtime(binary: str = BINARY, systemd: bool = True) -> dict[str, object]:
    return {"runtime_type": "io.containerd.runc.v2", "options": {"BinaryName": binary, "SystemdCgroup": systemd}}


BASE = cri(
    containerd={"runtimes": {"runc": {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": True}}}}
)
OURS = cri(enable_cdi=True, containerd={"default_runtime_name": "nvidia", "runtimes": {"nvidia": runtime()}})
WANTED = Wanted("nvidia", BINARY, default=True, cdi=True)
HEAD = f"version = 3\n[plugins.'{CRI}'"


@pytest.mark.parametrize(
    ("later", "says"),
    [
        ({}, ""),
        ({"x.toml": "version = 3"}, ""),
        ({"x.toml": f"{HEAD}.registry]\nconfig_path = '/etc/certs.d'"}, ""),
        ({"x.toml": f"{HEAD}]\nenable_cdi = false"}, f"plugins.{CRI}.enable_cdi is false instead of true"),
        ({"x.toml": f"{HEAD}.containerd]\ndefault_runtime_name = 'runc'"}, "the default runtime is 'runc'"),
        ({"x.toml": f"{HEAD}.containerd.runtimes.nvidia.options]\nBinaryName = '/x'"}, "BinaryName = '/x'"),
        (
            {"x.toml": f"{HEAD}.containerd.runtimes.nvidia.options]\nSystemdCgroup = false"},
            "runtime nvidia has options.SystemdCgroup = False, and runc True",
        ),
        (
            {"x.toml": f"{HEAD}.containerd]\ndefault_runtime_name = 'runc'", "y.toml": "version = 3"},
            f"{DIRECTORY}/x.toml, which is read after ours",
        ),
        (
            {
                "x.toml": f"{HEAD}.containerd]\ndefault_runtime_name = 'runc'",
                "x/y.toml": f"{HEAD}.containerd]\ndefault_runtime_name = 'crun'",
            },
            f"{DIRECTORY}/x/y.toml, which is read after ours",
        ),
    ],
)
def test_a_later_drop_in_that_overrides_ours_is_named(later: dict[str, str], says: str) -> None:
    found = winner("containerd", [BASE, OURS], later, WANTED, DIRECTORY)
    assert says in found
    assert bool(found) == bool(says)


CRIO = {"crio": {"runtime": {"runtimes": {"nvidia": {"runtime_path": BINARY, "runtime_type": "oci"}}}}}


@pytest.mark.parametrize(
    ("later", "says"),
    [
        ("[crio.runtime.runtimes.crun]\nmonitor_path = '/x'", ""),
        (f"[crio.runtime.runtimes.nvidia]\nruntime_path = '{BINARY}'\nruntime_type = 'oci'", ""),
        (f"[crio.runtime.runtimes.nvidia]\nruntime_path = '{BINARY}'", ""),
        (f"[crio.runtime.runtimes.nvidia]\nruntime_path = '{BINARY}'\nruntime_type = 'vm'", "has runtime_type = 'vm'"),
        ("[crio.runtime.runtimes.nvidia]\nallowed_annotations = ['x']", "has runtime_path = None instead of"),
        ("[crio.runtime.runtimes.nvidia]", "has runtime_path = None instead of"),
        ("crio.runtime.runtimes.nvidia.monitor_path = '/x'", "has runtime_path = None instead of"),
    ],
)
def test_a_runtime_of_crio_is_that_of_the_last_file_that_has_it(later: str, says: str) -> None:
    found = winner("crio", [CRIO], {"x.conf": later}, Wanted("nvidia", BINARY), "/etc/crio/crio.conf.d")
    assert says in found
    assert bool(found) == bool(says)


def test_what_was_not_asked_for_may_be_as_it_is() -> None:
    later = {"x.toml": f"{HEAD}]\nenable_cdi = false\n[plugins.'{CRI}'.containerd]\ndefault_runtime_name = 'runc'"}
    assert winner("containerd", [BASE, OURS], later, Wanted("nvidia", BINARY), DIRECTORY) == ""


def test_a_drop_in_that_is_no_toml_is_named() -> None:
    with pytest.raises(ConfigError, match=f"{DIRECTORY}/x.toml cannot be read as TOML"):
        winner("containerd", [BASE, OURS], {"x.toml": "]"}, WANTED, DIRECTORY)


TABLES = st.recursive(
    st.integers(0, 3), lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=8
).filter(lambda value: isinstance(value, dict))


@given(TABLES, TABLES)
def test_second_document_wins_and_keeps_the_rest_of_the_first(one: dict[str, object], other: dict[str, object]) -> None:
    both = merged(one, other)
    assert merged(both, other) == both
    assert both.keys() == one.keys() | other.keys()
    assert merged(one, {}) == one
    assert merged({}, other) == other


@pytest.mark.parametrize(
    ("runtime", "command", "path"),
    [
        ("containerd", ["/usr/bin/containerd"], ""),
        ("containerd", ["/usr/bin/containerd", "--config", "/etc/x.toml", "--log-level", "info"], "/etc/x.toml"),
        ("containerd", ["/usr/bin/containerd", "-c", "/etc/x.toml"], "/etc/x.toml"),
        ("containerd", ["/usr/bin/containerd", "--config=/etc/x.toml", "--config=/etc/y.toml"], "/etc/y.toml"),
        ("containerd", ["/usr/bin/containerd", "--config"], ""),
        ("docker", ["/usr/bin/dockerd", "--config-file=/etc/x.json", "-H", "fd://"], "/etc/x.json"),
        ("crio", ["/usr/bin/crio", "--config", "/etc/x"], ""),
        ("containerd", ["/usr/bin/containerd", "-config", "/etc/x"], "/etc/x"),
        ("containerd", ["/usr/bin/containerd", "--c=/etc/x"], "/etc/x"),
        ("docker", ["/usr/bin/dockerd", "-config-file=/etc/x"], ""),  # It does not start with that.
    ],
)
def test_the_file_that_a_command_line_names_is_found(runtime: str, command: list[str], path: str) -> None:
    assert file_read(runtime, started(command)).value == path


def test_a_flag_that_stands_for_a_directive_is_found() -> None:
    assert flags_against(started(["dockerd", "--default-runtime=x"]), {"default-runtime": "y"}) == "--default-runtime"
    assert (
        flags_against(started(["dockerd", "--default-runtime", "x"]), {"default-runtime": "y"}) == "--default-runtime"
    )
    assert flags_against(started(["dockerd", "--default-runtime=x", "-H", "fd://"]), {"runtimes": {}}) == ""


@pytest.mark.parametrize("dockerd", real_runtimes.dockerds())
@pytest.mark.parametrize(
    "flag",
    [
        "--add-runtime=other=/y",
        "--add-runtime=nvidia=/y",
        "--default-runtime=nvidia",
        "--feature=cdi",
        "--feature=containerd-snapshotter=false",
    ],
)
@pytest.mark.parametrize("more", [{}, {"default-runtime": "nvidia"}, {"features": {"cdi": True}}])
def test_a_real_docker_refuses_the_flags_that_we_do(
    flag: str, more: dict[str, object], dockerd: Path, tmp_path: Path
) -> None:
    directives = {"runtimes": {"nvidia": {"path": BINARY}}, **more}
    file = tmp_path / "daemon.json"
    file.write_text(json.dumps(directives))
    command = [str(dockerd), "--validate", "--userland-proxy=false", "--config-file", str(file), flag]
    real = subprocess.run(command, capture_output=True, text=True)
    if "unknown flag" not in real.stderr:
        assert bool(flags_against(started(command), directives)) == (real.returncode != 0), real.stderr


def docker(**info: object) -> dict[str, object]:
    return {"Runtimes": {"runc": {"path": "runc"}, "nvidia": {"path": BINARY}}, "DefaultRuntime": "nvidia", **info}


@pytest.mark.parametrize(
    ("info", "says"),
    [
        (docker(CDISpecDirs=["/etc/cdi"]), ""),
        (docker(), ""),  # Before 25 there is no CDI to ask for.
        (docker(CDISpecDirs=[]), "features.cdi is false instead of true"),
        (docker(CDISpecDirs=None), "features.cdi is false instead of true"),
        (docker(DefaultRuntime="runc"), "the default runtime is 'runc' instead of 'nvidia'"),
        (docker(Runtimes={"nvidia": {"path": "/x"}}), "path = '/x' instead of"),
        (docker(Runtimes={"runc": {"path": "runc"}}), "there is no runtime nvidia"),
    ],
)
def test_dockers_own_report_is_compared_with_the_wanted_state(info: dict[str, object], says: str) -> None:
    found = unmet("docker", said_by_docker(info), Wanted("nvidia", BINARY, default=True, cdi=True))
    assert says in found
    assert bool(found) == bool(says)


def containerd(systemd: bool = True, **config: object) -> dict[str, object]:
    runtimes = {
        name: {"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": binary, "SystemdCgroup": cgroup}}
        for name, binary, cgroup in (("runc", "", True), ("nvidia", BINARY, systemd))
    }
    return {"containerd": {"defaultRuntimeName": "nvidia", "runtimes": runtimes}, **config}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (containerd(enableCDI=True), ""),
        (containerd(), ""),  # Before 1.7.
        (containerd(enableCDI=False), "enable_cdi is false instead of true"),
        (containerd(systemd=False), "SystemdCgroup = False, and runc True"),
    ],
)
def test_containerds_own_report_is_compared_with_the_wanted(config: dict[str, object], says: str) -> None:
    found = unmet("containerd", said_by_containerd(config), Wanted("nvidia", BINARY, default=True, cdi=True))
    assert says in found
    assert bool(found) == bool(says)


@pytest.mark.parametrize("odd", [None, [], {}, "x", {"containerd": None}, {"Runtimes": []}, {"containerd": {}}])
def test_what_does_not_say_its_runtimes_says_nothing(odd: object) -> None:
    assert said_by_containerd(odd) == said_by_docker(odd) == {}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--log-level", "info"], ""),
        (["--default-runtime", "crun"], "--default-runtime crun"),
        (["--default-runtime=nvidia"], ""),
        (["--default-runtime=crun", "--default-runtime=nvidia"], ""),
        (["--runtimes", "kata:/usr/bin/kata", "--runtimes=nvidia:/x:/run"], "--runtimes nvidia:/x:/run"),
        (["--config-dir", "/etc/crio/crio.conf.d/"], ""),
        (["-d", "/srv/crio"], "--config-dir /srv/crio"),
        (["-default-runtime", "crun"], "--default-runtime crun"),
        (["--default-runtime="], "--default-runtime "),  # crun, then
        (["--runtimes", "kata:/x:/run, nvidia:/x:/run"], "--runtimes kata:/x:/run, nvidia:/x:/run"),
    ],
)
def test_a_flag_that_overrides_the_drop_in_of_crio_is_found(flags: list[str], says: str) -> None:
    wanted = Wanted("nvidia", BINARY, default=True)
    assert crio_flag_against(started(["/usr/bin/crio", *flags]), wanted, "/etc/crio/crio.conf.d") == says


@pytest.mark.parametrize(
    ("environment", "flags", "says"),
    [
        ({"CONTAINER_LOG_LEVEL": "info"}, [], ""),
        ({"CONTAINER_DEFAULT_RUNTIME": "crun"}, [], "CONTAINER_DEFAULT_RUNTIME=crun (in /etc/sysconfig/crio)"),
        ({"CONTAINER_DEFAULT_RUNTIME": ""}, [], "CONTAINER_DEFAULT_RUNTIME= (in /etc/sysconfig/crio)"),
        ({"CONTAINER_DEFAULT_RUNTIME": "crun"}, ["--default-runtime=nvidia"], ""),
        ({"CONTAINER_DEFAULT_RUNTIME": "nvidia"}, ["--default-runtime=crun"], "--default-runtime crun"),
        (
            {"CONTAINER_RUNTIMES": "a:/b:,nvidia:/x:"},
            [],
            "CONTAINER_RUNTIMES=a:/b:,nvidia:/x: (in /etc/sysconfig/crio)",
        ),
        ({"CONTAINER_CONFIG_DIR": "/srv"}, [], "CONTAINER_CONFIG_DIR=/srv (in /etc/sysconfig/crio)"),
        ({"CONTAINER_CONFIG_DIR": ""}, [], "CONTAINER_CONFIG_DIR= (in /etc/sysconfig/crio)"),
        ({"CONTAINER_CONFIG": "/srv/crio.conf"}, [], ""),
    ],
)
def test_a_variable_that_overrides_the_drop_in_of_crio_is_found(
    environment: dict[str, str], flags: list[str], says: str
) -> None:
    start = started(["/usr/bin/crio", *flags])
    start.environment = {name: Given(value, "/etc/sysconfig/crio") for name, value in environment.items()}
    assert crio_flag_against(start, Wanted("nvidia", BINARY, default=True), "/etc/crio/crio.conf.d") == says


def test_a_variable_that_names_the_main_file_of_crio_is_found() -> None:
    start = started(["/usr/bin/crio"])
    start.environment = {"CONTAINER_CONFIG": Given("/srv/crio.conf", "unit")}
    assert crio_other_file(start, "/etc/crio/crio.conf") == "CONTAINER_CONFIG=/srv/crio.conf (in unit)"
    assert crio_other_file(start, "/srv/crio.conf") == ""
    assert crio_drop_ins("/srv/crio.conf", start) == "/srv/crio.conf.d"
    start.environment = {"CONTAINER_CONFIG": Given("", "unit")}
    assert crio_other_file(start, "/etc/crio/crio.conf") == "CONTAINER_CONFIG= (in unit)"


GRPC = {"address": "/run/a.sock"}


@pytest.mark.parametrize(
    ("flags", "data", "found"),
    [
        ([], {}, ""),
        ([], {"grpc": GRPC}, "/run/a.sock"),
        ([], {"version": 4, "plugins": {"io.containerd.server.v1.grpc": GRPC}}, "/run/a.sock"),
        (["-a", "/run/b.sock"], {"grpc": GRPC}, "/run/b.sock"),
        (["--address=/run/b.sock"], {"plugins": {"io.containerd.server.v1.grpc": GRPC}}, "/run/b.sock"),
    ],
)
def test_the_socket_that_containerd_listens_on_is_known(flags: list[str], data: dict[str, object], found: str) -> None:
    assert address(started(["/usr/bin/containerd", *flags]), data) == found


@pytest.mark.parametrize(
    ("path", "flags", "directory"),
    [
        ("/etc/crio/crio.conf.d/99-nvidia.toml", [], "/etc/crio/crio.conf.d"),
        ("/etc/crio/crio.conf.d/gpus/nvidia.toml", [], "/etc/crio/crio.conf.d"),
        ("/etc/crio/crio.conf", [], "/etc/crio/crio.conf.d"),
        ("/etc/crio/crio.conf", ["--config-dir=/srv/crio/"], "/srv/crio"),
        ("/srv/crio/main.toml", ["-d", "/srv/drop", "-c", "/srv/crio/main.toml"], "/srv/drop"),
        ("/srv/crio/nvidia.toml", ["-d", "/srv/crio/"], "/srv/crio"),
        ("/srv/crio/nvidia.toml", ["-d", "/srv/drop"], "/srv/crio"),
        ("/etc/crio/crio.conf.d/99-nvidia.toml", ["-d", "/srv/crio/"], "/etc/crio/crio.conf.d"),
    ],
)
def test_drop_ins_read_with_a_crio_file_are_known(path: str, flags: list[str], directory: str) -> None:
    assert crio_drop_ins(path, started(["/usr/bin/crio", *flags])) == directory


def test_another_main_file_of_crio_is_found() -> None:
    assert (
        crio_other_file(started(["crio", "--config=/srv/crio.conf"]), "/etc/crio/crio.conf")
        == "--config /srv/crio.conf"
    )
    assert crio_other_file(started(["crio", "-c", "/etc/crio//crio.conf"]), "/etc/crio/crio.conf") == ""
    assert crio_other_file(started(["crio"]), "/etc/crio/crio.conf") == ""
