# SPDX-License-Identifier: Apache-2.0
"""What becomes of the file system that bounds the accounts of containers."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.host.account_mount import (
    SOURCE,
    Found,
    Mount,
    Plan,
    options,
    placed,
    plan,
    unit_name,
)

PATH = "/var/lib/kube-accel/containers"
OURS = Mount(PATH, "0:50", SOURCE, {"rw": "", "size": "262144k", "nr_inodes": "16384", "mode": "700"})
THEIRS = replace(OURS, source="tmpfs", options={"rw": ""})
EMPTY = Found(PATH, None, "8:1", 0, 0, True)
LISTED = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
not a mount
30 22 8:2 / /var/lib rw,relatime shared:2 - xfs /dev/sda2 rw
31 22 8:3 / /var/lib\\040x rw - xfs /dev/sda3 rw
"""
MOUNTED = f"40 30 0:50 / {PATH} rw,nosuid shared:3 - tmpfs {SOURCE} rw,size=262144k,nr_inodes=16384,mode=700\n"


def short(found: Found, mib: int = 256, absent: bool = False) -> tuple[str, str, bool, bool]:
    made: Plan = plan(found, mib, absent)
    assert made.says.endswith(".")
    assert PATH in made.says
    return made.unit, made.action, made.bounded, made.waits


@pytest.mark.parametrize(
    ("found", "mib", "expected"),
    [
        (EMPTY, 256, ("enabled", "start", False, False)),
        (replace(EMPTY, accounts=1), 256, ("enabled", "none", False, True)),
        (replace(EMPTY, systemd=False), 256, ("absent", "none", False, True)),
        (EMPTY, 0, ("absent", "none", False, False)),
        (replace(EMPTY, mount=OURS, accounts=3, used_bytes=200 << 20), 256, ("enabled", "none", True, False)),
        (replace(EMPTY, mount=OURS, accounts=3, used_bytes=100 << 20), 128, ("enabled", "reload", True, False)),
        (replace(EMPTY, mount=OURS, accounts=3, used_bytes=200 << 20), 128, ("enabled", "none", True, True)),
        (replace(EMPTY, mount=OURS, accounts=3, used_bytes=200 << 20), 512, ("enabled", "reload", True, False)),
        (replace(EMPTY, mount=replace(OURS, options={"size": "262144k"})), 256, ("enabled", "reload", True, False)),
        (replace(EMPTY, mount=OURS), 0, ("absent", "stop", True, False)),
        (replace(EMPTY, mount=OURS, accounts=1), 0, ("disabled", "none", True, True)),
        (replace(EMPTY, mount=THEIRS, accounts=1), 256, ("absent", "none", True, False)),
        (replace(EMPTY, mount=THEIRS), 0, ("absent", "none", True, False)),
        (replace(EMPTY, mount=replace(THEIRS, device="8:1")), 256, ("absent", "none", False, True)),
    ],
)
def test_plan_of_what_is_found(found: Found, mib: int, expected: tuple[str, str, bool, bool]) -> None:
    assert short(found, mib) == expected


def test_absent_unmounts_our_mount_and_no_other() -> None:
    assert short(replace(EMPTY, mount=OURS), absent=True) == ("absent", "stop", True, False)
    assert short(replace(EMPTY, mount=OURS, accounts=2), absent=True) == ("absent", "stop", True, True)
    assert short(replace(EMPTY, mount=THEIRS, accounts=2), absent=True)[:2] == ("absent", "none")
    assert short(EMPTY, absent=True)[:2] == ("absent", "none")


def test_the_last_mount_at_a_path_counts() -> None:
    assert placed(LISTED, PATH) == (None, "8:2")
    assert placed(LISTED, "/var/lib x/containers") == (None, "8:3")
    mount, below = placed(LISTED + MOUNTED, PATH)
    assert (mount, below) == (replace(OURS), "8:2")
    over = MOUNTED.replace(SOURCE, "other").replace("0:50", "0:51")
    mount, _ = placed(LISTED + MOUNTED + over, PATH)
    assert mount is not None
    assert (mount.source, mount.device) == ("other", "0:51")
    assert placed("", PATH) == (None, "")


def test_the_options_are_those_that_the_kernel_lists() -> None:
    given = dict(option.partition("=")[::2] for option in options(256).split(","))
    assert {"nosuid", "nodev", "noexec"} <= given.keys()
    mount = replace(OURS, options={"size": "262144k", "nr_inodes": given["nr_inodes"]})
    assert plan(replace(EMPTY, mount=mount), 256, False).action == "none"


@pytest.mark.parametrize("path", [PATH, "/srv/.a/b c/containers", "/.a", "/a.b/\u00e9", "/a:b_c/100%"])
def test_a_unit_has_the_name_that_systemd_demands(path: str) -> None:
    try:
        escaped = subprocess.run(["systemd-escape", "--path", path], capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        pytest.skip("systemd-escape is missing: install systemd")
    assert unit_name(path) == f"{escaped.strip()}.mount"
