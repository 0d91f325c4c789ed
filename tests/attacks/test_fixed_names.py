# SPDX-License-Identifier: Apache-2.0
"""No file of ours names one in a directory where anybody may make it first."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.attack

REPOSITORY = Path(__file__).parents[2]
SHARED = re.compile(
    r"(?<![\w.}/~])(?:/tmp|/var/tmp|/dev/shm|/run/lock|/var/lock|/var/crash|/run/user)/+(?![\s\"'`,;:)])"
    r"|\$\{?TMPDIR|gettempdir\(|tempfile\.mktemp\(|mktemp (?:-\w*u|--dry-run)"
)
KNOWN = {
    "docs/explanation/isolation.md": "names what a tenant may try to write",
    "docs/measurements/attacks.md": "names the same",
    "roles/kube_accel_image/vars/main.yml": "removes what older versions left, and reads none of it",
    "tests/attacks/": "plays the local user",
    "tests/playbooks/test_packages.py": "runs in a mount namespace with a /var/tmp of its own",
    "tests/sim/mps/nvidia_cuda_mps_control.py": "has the default of NVIDIA's program, which no test uses",
    "tests/unit/plugins/module_utils/diagnosis/corpus.yml": "quotes what programs print",
    "tests/unit/plugins/modules/test_gpu_usage_report.py": "is refused before it is written",
}


def named(path: str) -> list[str]:
    """Lines of a file that name something in a shared directory."""
    text = (REPOSITORY / path).read_bytes().decode(errors="replace")
    return [f"{path}:{number}: {line}" for number, line in enumerate(text.splitlines(), 1) if SHARED.search(line)]


def tracked() -> list[str]:
    command = ["git", "-C", str(REPOSITORY), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    return [name for name in names if name and (REPOSITORY / name).is_file()]


@pytest.mark.parametrize(
    "line",
    [
        "dest: /var/tmp/kube-accel-image.tar",
        'open(f"/tmp/{name}")',
        "exec 9>/run/lock/accel",
        "path: /dev/shm/kube-accel",
        'with open(os.path.join(tempfile.gettempdir(), "accel")) as file:',
        "name=$(mktemp -u)",
        "work=${TMPDIR:-/tmp}/accel",
        "-o ControlPath=/tmp//x",
    ],
)
def test_a_fixed_name_in_a_shared_directory_is_seen(line: str) -> None:
    assert SHARED.search(line)


@pytest.mark.parametrize("line", ["path: /tmp", "work=$(mktemp -d)", "{path}/tmp/x", "for path in /usr /tmp; do"])
def test_other_names_are_not_taken_for_one(line: str) -> None:
    assert not SHARED.search(line)


def test_no_file_names_one_in_a_shared_directory() -> None:
    files = tracked()
    assert len(files) > 500
    found = [line for path in files if not path.startswith(tuple(KNOWN)) for line in named(path)]
    assert found == [], "make it in a directory of root's, or with mktemp: docs/explanation/security-model.md"


def test_every_exception_is_still_needed() -> None:
    files = tracked()
    for prefix in KNOWN:
        assert any(named(path) for path in files if path.startswith(prefix)), prefix
