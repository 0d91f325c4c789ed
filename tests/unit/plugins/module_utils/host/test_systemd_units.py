# SPDX-License-Identifier: Apache-2.0
"""What systemd starts a service with."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.host.systemd_units import (
    DIRECTORIES,
    chosen,
    drop_in_directories,
    effective,
)


def files_of(texts: dict[str, str]) -> Callable[[str], dict[str, str]]:
    """A machine's files, by what systemd asks for them."""
    return lambda pattern: {path: texts[path] for path in fnmatch.filter(sorted(texts), pattern)}


SERVICE = "/etc/systemd/system/k3s.service"
RESET = "[Service]\nExecStart=\nExecStart=/usr/local/bin/k3s server --kube-scheduler-arg=config=/etc/s.yaml\n"
BASE = (
    "[Unit]\nExecStart=no\n[Service]\nType=notify\n"
    "ExecStart=-/bin/k3s \\\n    server \\\n    # why\n    '--debug' $MORE --x=${Y}z\n"
)


@pytest.mark.parametrize(
    ("files", "environment", "words", "path"),
    [
        ({SERVICE: BASE}, {}, ["-/bin/k3s", "server", "--debug", "--x=z"], SERVICE),
        (
            {
                SERVICE: BASE
                + "EnvironmentFile=-/etc/default/%N\nEnvironmentFile=-/etc/k3s.env\nEnvironment=Y=1 'MORE=a b'\n"
            },
            {"/etc/k3s.env": "# c\nMORE='--kube-scheduler-arg v=2'\nexport\n"},
            ["-/bin/k3s", "server", "--debug", "--kube-scheduler-arg", "v=2", "--x=1z"],
            "/etc/k3s.env",
        ),
        (
            {SERVICE: BASE, "/etc/o.conf": RESET},
            {},
            ["/usr/local/bin/k3s", "server", "--kube-scheduler-arg=config=/etc/s.yaml"],
            "/etc/o.conf",
        ),
        (
            {SERVICE: RESET, "/etc/o.conf": BASE.replace("$MORE", "")},
            {},
            ["-/bin/k3s", "server", "--debug", "--x=z"],
            "/etc/o.conf",
        ),
        (
            {SERVICE: BASE + "Environment=Y=1\nEnvironment=\nEnvironment=MORE=q\nUnsetEnvironment=MORE\n"},
            {},
            ["-/bin/k3s", "server", "--debug", "--x=z"],
            SERVICE,
        ),
        (
            {SERVICE: "[Service]\nEnvironmentFile=-/etc/k3s.d/*.env\nExecStart=/bin/k3s $A $B\n"},
            {"/etc/k3s.d/20.env": "A=two\n", "/etc/k3s.d/10.env": "A=one\nB=one\n", "/etc/k3s.d/x": "A=no\n"},
            ["/bin/k3s", "two", "one"],
            "/etc/k3s.d/20.env",
        ),
        (
            {SERVICE: BASE + "EnvironmentFile=/etc/k3s.env\nUnsetEnvironment=MORE Y=2\n"},
            {"/etc/k3s.env": "MORE=q\nY=1\n"},
            ["-/bin/k3s", "server", "--debug", "--x=1z"],
            "/etc/k3s.env",
        ),
        ({}, {}, [], ""),
    ],
)
def test_the_command_line_is_the_one_that_systemd_makes(
    files: dict[str, str], environment: dict[str, str], words: list[str], path: str
) -> None:
    service = effective(files, files_of(environment))
    assert [word.value for word in service.words] == words
    assert path in {word.path for word in service.words} | {""}


def test_of_files_of_one_name_that_of_the_first_directory_counts() -> None:
    etc, run, lib = "/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system"
    paths = [
        f"{lib}/rke2-server.service",
        f"{etc}/rke2-server.service",
        f"{lib}/rke2-server.service.d/50-a.conf",
        f"{run}/rke2-server.service.d/50-a.conf",
        f"{lib}/rke2-.service.d/10-b.conf",
        f"{etc}/service.d/90-c.conf",
        f"{etc}/rke2-server.service.d/99.txt",
        f"{etc}/rke2-agent.service.d/99.conf",
    ]
    assert drop_in_directories("rke2-server") == ["rke2-server.service.d", "rke2-.service.d", "service.d"]
    assert chosen("rke2-server", paths) == [paths[1], paths[4], paths[3], paths[5]]
    assert chosen("k3s", paths) == [paths[5]]
    assert etc in DIRECTORIES


def test_files_named_after_the_unit_are_read_as_rke2s() -> None:
    # rke2-server.service as its archive has it.
    unit = (
        "[Service]\nEnvironmentFile=-/etc/default/%N\nEnvironmentFile=-/etc/sysconfig/%p\n"
        "EnvironmentFile=-/usr/local/lib/systemd/system/%N.env\nEnvironment=HOST=%H UNIT=%n PART=5%%N\n"
        "ExecStart=/usr/local/bin/rke2 server\n"
    )
    path = "/usr/local/lib/systemd/system/rke2-server.service"
    files = {"/etc/default/rke2-server": "RKE2_CONFIG_FILE=/etc/other.yaml\n", "/etc/sysconfig/rke2-server": "A=1\n"}
    service = effective({path: unit, "/etc/systemd/system/rke2-server.service.d/a.conf": ""}, files_of(files))
    values = {name: (given.value, given.path) for name, given in service.environment.items()}
    assert values == {
        "RKE2_CONFIG_FILE": ("/etc/other.yaml", "/etc/default/rke2-server"),
        "A": ("1", "/etc/sysconfig/rke2-server"),
        "HOST": ("%H", path),
        "UNIT": ("rke2-server.service", path),
        "PART": ("5%N", path),
    }
