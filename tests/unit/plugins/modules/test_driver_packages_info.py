# SPDX-License-Identifier: Apache-2.0
"""Module driver_packages_info with package managers that stand in for the real ones, and with apt where it is."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

Info = Callable[..., dict[str, Any]]
S = "linux-modules-nvidia-580-server-open-"

# They answer from files of a host: what is installed, what is offered, and who provides what.
APT = """\
#!/bin/sh
echo "${0##*/} $*" >>"$HOST/calls"
case " $* " in
  *" update "*) cat "$HOST/update" 2>/dev/null; exit;;
  *" search "*) sed 's/$/ - a package/' "$HOST/offered";;
  *" show "*) cat "$HOST/shown" 2>/dev/null;;
  *" install "*)
    for name; do
      case $name in -* | *::* | install | */apt-get) continue;; esac
      grep -qxF "$name" "$HOST/offered" || { echo "E: Unable to locate package $name" >&2; bad=100; }
    done
    exit ${bad:-0};;
esac
"""
DPKG = """\
#!/bin/sh
case "$3" in
  *Depends*) cat "$HOST/dpkg";;
  *) grep -q "^$4	install	installed" "$HOST/dpkg" && echo installed;;
esac
"""
# As dnf 4 says it, which looks no further once a name is unknown.
DNF = """\
#!/bin/sh
echo "dnf $*" >>"$HOST/calls"
case " $* " in
  *" repoquery "*" kernel-devel-uname-r = "*) cat "$HOST/provides" 2>/dev/null; exit;;
  *" repoquery "*"kernel*-devel "*) grep -e -devel- "$HOST/offered"; exit;;
  *" repoquery "*) cat "$HOST/newest" 2>/dev/null; exit;;
esac
while [ "$1" != install ]; do shift; done
shift
for name; do grep -qxF "$name" "$HOST/offered" || unknown="$unknown $name"; done
for name in $unknown; do echo "No match for argument: $name" >&2; done
[ -z "$unknown" ] || { echo "Error: Unable to find a match:$unknown" >&2; exit 1; }
echo "Transaction Summary"; exit 1
"""
RPM = """\
#!/bin/sh
for last; do :; done
case " $* " in
  *" kernel-uname-r = "*) cat "$HOST/owner" 2>/dev/null;;
  *" kernel-devel-uname-r = "* | *" -f "*) echo "no package provides $last"; exit 1;;
  *" -qa "* | *" -a "*) grep -e -devel- "$HOST/rpm"; exit 0;;
  *) grep -q "^$last" "$HOST/rpm" && echo "$last" || { echo "package $last is not installed"; exit 1; };;
esac
"""
PROGRAMS = {"apt-get": APT, "apt-cache": APT, "dpkg-query": DPKG, "dnf": DNF, "rpm": RPM}


@pytest.fixture
def info(run_module: Callable[..., dict[str, Any]], tmp_path: Path) -> Info:
    """``info(host, **options)``: the module's answer on a host of these files."""
    (tmp_path / "bin").mkdir()
    for name, text in PROGRAMS.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)

    def ask(host: Mapping[str, str], /, **options: Any) -> dict[str, Any]:
        for name, text in {"offered": "", "dpkg": "", "rpm": "", "calls": "", "provides": "", **host}.items():
            (tmp_path / name).write_text(text)
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        environment = {"HOST": str(tmp_path), "PATH": path, "TMPDIR": str(tmp_path)}
        return run_module("driver_packages_info", options, check=True, environment=environment)

    return ask


def dpkg(*rows: str) -> str:
    """Installed packages, each as its name, or as NAME: WHAT IT DEPENDS ON."""
    split = (row.partition(": ") for row in rows)
    return "".join(f"{name}\tinstall\tinstalled\t{depends}\n" for name, _, depends in split)


def lines(*names: str) -> str:
    return "".join(f"{name}\n" for name in names)


UBUNTU = {"family": "deb", "distribution": "Ubuntu", "method": "distro", "branch": 580, "dkms": False}
ROCKY = {"family": "rpm", "distribution": "Rocky", "method": "repo", "branch": 580, "repositories": ["epel-release"]}
KERNEL = "5.14.0-570.el9.x86_64"
HEADERS = f"kernel-devel-{KERNEL}"
USERLAND = ("nvidia-headless-no-dkms-580-server-open", "nvidia-utils-580-server", "nvidia-modprobe")
HWE = dpkg(
    "linux-image-6.8.0-90-generic",
    "linux-image-generic-hwe-22.04: linux-image-6.8.0-90-generic, linux-modules-extra-6.8.0-90-generic, linux-firmware",
)


def test_host_with_an_hwe_kernel_keeps_its_modules(info: Info) -> None:
    names = [S + "6.8.0-90-generic", S + "generic-hwe-22.04", *USERLAND]
    host = {"dpkg": HWE, "offered": lines(*names, S + "generic"), "shown": ""}
    answer = info(host, kernel="6.8.0-90-generic", **UBUNTU)
    assert answer["packages"] == names
    assert (
        answer["prerequisites"] == answer["missing"] == answer["missing_of_kernel"] == answer["kernels_to_come"] == []
    )
    assert answer["changed"] is False
    assert "warnings" not in answer


def test_coming_kernel_without_module_warns_with_the_host(info: Info) -> None:
    shown = "Package: linux-image-generic-hwe-22.04\nVersion: 6.8.0-91\nDepends: linux-image-6.8.0-91-generic\n"
    host = {"dpkg": HWE, "offered": lines(S + "6.8.0-90-generic", S + "generic-hwe-22.04", *USERLAND), "shown": shown}
    answer = info(host, kernel="6.8.0-90-generic", host="node-1", **UBUNTU)
    (warning,) = answer["kernels_to_come"]
    assert f"{S}6.8.0-91-generic is neither installed nor in a package source" in warning
    assert f"node-1: {warning}" in json.dumps(answer["warnings"])


def test_headers_of_another_kernel_series_cause_a_warning(info: Info, tmp_path: Path) -> None:
    kernel = "6.12.9+bpo-amd64"
    shown = (
        f"Package: linux-image-amd64\nDepends: linux-image-{kernel} (= 6.12.9-1~bpo12+1)\n\n"
        "Package: linux-headers-amd64\nDepends: linux-headers-6.1.0-28-amd64 (= 6.1.119-1)\n"
    )
    host = {
        "dpkg": dpkg(f"linux-image-{kernel}", f"linux-image-amd64: linux-image-{kernel} (= 6.12.9-1~bpo12+1)"),
        "offered": lines(f"linux-headers-{kernel}", "linux-headers-amd64", "build-essential", "pkg-config", "dkms"),
        "shown": shown,
    }
    words = UBUNTU | {"distribution": "Debian", "method": "runfile", "kernel": kernel, "dkms": True}
    (warning,) = info(host, **words)["kernels_to_come"]
    assert "linux-headers-amd64 would be installed for 6.1.0-28-amd64" in warning
    assert "linux-image-amd64 linux-headers-amd64" in (tmp_path / "calls").read_text()


def test_unavailable_kernel_modules_are_named_with_available(info: Info) -> None:
    others = (S + "6.8.0-90-generic", S + "6.8.0-1044-aws", S + "generic")
    answer = info({"offered": lines(*others, *USERLAND)}, kernel="6.8.0-45-generic", **UBUNTU)
    assert answer["missing_of_kernel"] == [S + "6.8.0-45-generic"]
    assert answer["candidates"] == [S + "6.8.0-90-generic"]
    assert answer["missing"] == []


def test_headers_of_proxmox_are_looked_for_by_every_name(info: Info) -> None:
    words = UBUNTU | {"distribution": "Debian", "method": "runfile", "kernel": "6.8.12-4-pve", "dkms": True}
    tools = ("build-essential", "pkg-config", "dkms")
    answer = info({"offered": lines(*tools)}, **words)
    assert answer["missing_of_kernel"] == [
        "proxmox-headers-6.8.12-4-pve or pve-headers-6.8.12-4-pve or linux-headers-6.8.12-4-pve"
    ]
    answer = info({"offered": lines(*tools, "pve-headers-6.8.12-4-pve")}, **words)
    assert answer["missing_of_kernel"] == []
    assert "pve-headers-6.8.12-4-pve" in answer["prerequisites"]


def test_sources_that_do_not_answer_are_told_of(info: Info) -> None:
    update = "W: Failed to fetch http://mirror.example/  Connection refused\n"
    answer = info({"update": update}, kernel="6.8.0-45-generic", **UBUNTU)
    assert answer["not_answering"] == ["Failed to fetch http://mirror.example/  Connection refused"]
    # Ansible takes a host whose answer has this for one that it cannot reach.
    assert "unreachable" not in answer


def test_what_the_user_names_takes_the_place_of_what_is_planned(info: Info, tmp_path: Path) -> None:
    words = UBUNTU | {"method": "runfile", "kernel": "6.8.0-45-generic", "dkms": True}
    assert info({}, prerequisites=[], **words)["prerequisites"] == []
    assert (tmp_path / "calls").read_text().count("update") == 0
    more = info({}, prerequisites=["gcc-12", "auto"], **words)["prerequisites"]
    assert more == ["gcc-12", "build-essential", "pkg-config", "linux-headers-6.8.0-45-generic", "dkms"]


def test_a_run_that_installs_nothing_asks_no_source(info: Info, tmp_path: Path) -> None:
    answer = info({"dpkg": HWE}, kernel="6.8.0-90-generic", ask=False, **UBUNTU)
    assert answer["packages"][0] == S + "6.8.0-90-generic"
    assert answer["missing"] == answer["missing_of_kernel"] == answer["not_answering"] == []
    assert "generic-hwe-22.04" in answer["kernels_to_come"][0]
    calls = (tmp_path / "calls").read_text()
    assert "update" not in calls
    assert "install" not in calls
    answer = info({"rpm": lines(HEADERS), "owner": "kernel-core\n"}, kernel=KERNEL, ask=False, **ROCKY)
    assert HEADERS in answer["prerequisites"]
    assert (tmp_path / "calls").read_text() == ""


def test_dkms_comes_with_a_repository_that_is_not_there_yet(info: Info) -> None:
    host = {"offered": lines("epel-release", "gcc", "make", "elfutils-libelf-devel", HEADERS), "owner": "kernel-core\n"}
    fresh = info(host, kernel=KERNEL, **ROCKY)
    assert fresh["pending"] == ["epel-release"]
    assert fresh["missing"] == []
    later = info(host | {"rpm": lines("epel-release-9-8.el9.noarch")}, kernel=KERNEL, **ROCKY)
    assert later["pending"] == []
    assert later["missing"] == ["dkms"]


def test_what_no_further_repository_brings_is_missing_at_once(info: Info) -> None:
    answer = info({"offered": lines("kernel-devel-5.14.0-611.el9.x86_64")}, kernel=KERNEL, **ROCKY)
    assert answer["missing_of_kernel"] == [HEADERS]
    assert answer["candidates"] == ["kernel-devel-5.14.0-611.el9.x86_64"]
    assert answer["missing"] == ["epel-release"]


def test_the_index_says_whose_headers_a_kernel_has(info: Info) -> None:
    headers = f"kernel-rt-devel-{KERNEL}"
    host = {"owner": "kernel-rt-core\n", "provides": lines(headers), "offered": lines(headers)}
    answer = info(host, kernel=f"{KERNEL}+rt", **ROCKY)
    assert headers in answer["prerequisites"]
    uek = "5.15.0-300.163.18.el9uek.x86_64"
    answer = info({"owner": "kernel-uek-core\n"}, kernel=uek, **ROCKY)
    assert answer["missing_of_kernel"] == [f"kernel-uek-devel-{uek}"]


def test_nothing_is_left_behind(info: Info, tmp_path: Path) -> None:
    info({}, kernel="6.8.0-45-generic", **UBUNTU)
    info({}, kernel=KERNEL, **ROCKY)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("accel-")] == []


def test_a_host_without_its_package_manager_is_refused(
    run_module: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    if shutil.which("dnf") is not None:
        pytest.skip("this machine has dnf")
    answer = run_module("driver_packages_info", ROCKY | {"kernel": KERNEL})
    assert "dnf" in answer["msg"]


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="no apt-get on PATH")
def test_the_real_apt_on_an_archive_in_a_directory(run_module: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    packages = ("build-essential", "pkg-config", "linux-headers-6.1.0-56-amd64", "linux-headers-6.1.0-55-amd64")
    text = "".join(
        f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: test\nFilename: ./{name}.deb\nSize: 1\n"
        f"SHA256: {'0' * 64}\nDescription: of {name}\n\n"
        for name in packages
    )
    (tmp_path / "archive/Packages").write_text(text)
    (tmp_path / "sources.list").write_text(f"deb [trusted=yes] file:{tmp_path}/archive ./\n")
    (tmp_path / "status").touch()
    settings = {
        "Etc::sourcelist": f"{tmp_path}/sources.list",
        "Etc::sourceparts": "-",
        "State::status": f"{tmp_path}/status",
    }
    (tmp_path / "apt.conf").write_text(
        "".join(f'Dir::{name} "{value}";\n' for name, value in settings.items())
        + 'APT::Sandbox::User "root";\nAPT::Architecture "amd64";\n'
    )
    words = UBUNTU | {"distribution": "Debian", "method": "runfile"}

    def ask(kernel: str) -> dict[str, Any]:
        return run_module(
            "driver_packages_info", words | {"kernel": kernel}, environment={"APT_CONFIG": f"{tmp_path}/apt.conf"}
        )

    found = ask("6.1.0-56-amd64")
    assert found["prerequisites"] == [*packages[:3]]
    assert found["missing"] == found["missing_of_kernel"] == found["conflicts"] == found["not_answering"] == []
    gone = ask("6.1.0-50-amd64")
    assert gone["missing_of_kernel"] == ["linux-headers-6.1.0-50-amd64"]
    assert gone["candidates"] == ["linux-headers-6.1.0-55-amd64", "linux-headers-6.1.0-56-amd64"]
