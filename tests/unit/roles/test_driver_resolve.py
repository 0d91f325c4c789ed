# SPDX-License-Identifier: Apache-2.0
"""What the driver role's preflight asks of the package sources, with package managers that stand in for the real."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from .conftest import ROLES, Evaluate
from .test_driver_plan import facts, observed

# As dnf 4 says it, which looks no further once a name is unknown.
DNF = """\
#!/bin/sh
case " $* " in *" repoquery "*) echo "candidate kernel-devel-5.14.0-611.el9.x86_64"; exit;; esac
for name in {unknown}; do
  case " $* " in *" $name "*) echo "No match for argument: $name"; unknown="$unknown $name";; esac
done
[ -z "$unknown" ] || { echo "Error: Unable to find a match:$unknown"; exit 1; }
echo "Transaction Summary"; exit 1
"""
KERNEL = "5.14.0-570.el9.x86_64"


def _resolve(root: Path, brings: str, *names: str, unknown: str, installed: str = "") -> list[str]:
    for name, text in (("dnf", DNF.replace("{unknown}", unknown)), ("rpm", f"#!/bin/sh\n[ $2 = '{installed}' ]\n")):
        (root / name).write_text(text)
        (root / name).chmod(0o755)
    done = subprocess.run(
        ["sh", "-s", "rpm", brings, *names],
        input=(ROLES / "driver/files/resolve.sh").read_text(),
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PATH": f"{root}:{os.environ['PATH']}"},
    )
    return done.stdout.splitlines()


def _refused(evaluate: Evaluate, lines: list[str]) -> str:
    given = {"__driver_observation": observed("0x2330"), "__driver_resolution": {"stdout_lines": lines}}
    return " ".join(evaluate("driver", "__driver_unavailable", facts("rocky9", kernel=KERNEL), **given))


def test_dkms_comes_with_a_repository_that_is_not_there_yet(evaluate: Evaluate, tmp_path: Path) -> None:
    wanted = ("epel-release", "gcc", f"kernel-devel-{KERNEL}", "dkms")
    fresh = _resolve(tmp_path, "epel-release", *wanted, unknown="dkms")
    assert {"missing dkms", "pending epel-release"} <= {*fresh}
    assert _refused(evaluate, fresh) == ""
    later = _resolve(tmp_path, "epel-release", *wanted, unknown="dkms", installed="epel-release")
    assert "dkms is in no package source of this host" in _refused(evaluate, later)


def test_what_no_further_repository_brings_is_missing_at_once(evaluate: Evaluate, tmp_path: Path) -> None:
    wanted = ("epel-release", f"kernel-devel-{KERNEL}", "dkms")
    lines = _resolve(tmp_path, "epel-release", *wanted, unknown=f"dkms kernel-devel-{KERNEL} epel-release")
    said = _refused(evaluate, lines)
    assert f"kernel-devel-{KERNEL} is in no package source of this host, which has kernel-devel-5.14.0-611" in said
    assert "epel-release is in no package source of this host" in said


def test_repositories_are_asked_for_too(evaluate: Evaluate) -> None:
    wanted = evaluate("driver", "__driver_wanted", facts("rocky9"), __driver_observation=observed("0x2330"))
    assert {"epel-release", "dkms"} <= {*wanted}


APT = """\
#!/bin/sh
case " $* " in
  *" search --names-only ^linux-modules-nvidia-580-server-"*)
    echo "linux-modules-nvidia-580-server-6.8.0-90-generic - built";;
  *" install "*) echo "E: Unable to locate package linux-modules-nvidia-580-server-6.8.0-45-generic"; exit 100;;
esac
"""


def test_the_kernels_with_modules_that_came_built_are_named(tmp_path: Path) -> None:
    for name in ("apt-get", "apt-cache"):
        (tmp_path / name).write_text(APT)
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["sh", "-s", "deb", "", "linux-modules-nvidia-580-server-6.8.0-45-generic", "nvidia-utils-580-server"],
        input=(ROLES / "driver/files/resolve.sh").read_text(),
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    assert done.stdout.splitlines() == [
        "candidate linux-modules-nvidia-580-server-6.8.0-90-generic",
        "missing linux-modules-nvidia-580-server-6.8.0-45-generic",
    ]
