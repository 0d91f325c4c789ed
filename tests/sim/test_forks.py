# SPDX-License-Identifier: Apache-2.0
"""What runs in a fork runs as in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.forks import VARIABLE, forks
from waiting import wait

TESTS = Path(__file__).parents[1]
LOOK = """
import json, os, sys
print(json.dumps([sys.argv, __name__, os.getcwd(), os.environ["WORD"], sorted(os.listdir("/proc/self/fd"))[:3]]))
print("an error", file=sys.stderr)
mask = os.umask(0)
sys.exit(mask)
"""


@pytest.fixture
def served() -> Iterator[None]:
    # Paths of sockets are short.
    with tempfile.TemporaryDirectory(prefix="accel-") as room, forks(Path(room)):
        yield


def start(program: str, directory: Path, *before: str, **environment: str) -> subprocess.Popen[str]:
    """A Python that is given its program as Ansible gives it."""
    process = subprocess.Popen(
        [*before, sys.executable],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=directory,
        env=os.environ | {"PYTHONPATH": os.environ.get("PYTHONPATH", str(TESTS)), **environment},
        umask=0o7,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(program)
    process.stdin.close()
    process.stdin = None
    return process


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def imported(process: subprocess.Popen[str]) -> bool:
    """Whether the process had the client of Kubernetes before it began."""
    code, out, err = ended(process)
    assert code == 0, err
    return bool(json.loads(out))


HAS = "import sys; print('true' if 'kubernetes' in sys.modules else 'false')"


def test_a_fork_does_and_says_what_a_process_does(tmp_path: Path, served: None) -> None:
    forked = ended(start(LOOK, tmp_path, WORD="given"))
    itself = ended(start(LOOK, tmp_path, WORD="given", **{VARIABLE: "/nowhere"}))
    assert forked == itself
    assert forked[0] == 0o7
    assert forked[2] == "an error\n"
    assert imported(start(HAS, tmp_path))


def test_a_program_that_fails_says_why(tmp_path: Path, served: None) -> None:
    code, _, err = ended(start("raise ValueError('why')", tmp_path))
    assert code == 1
    assert err.endswith("ValueError: why\n")


def test_a_program_that_is_killed_is_told_of(tmp_path: Path, served: None) -> None:
    assert ended(start("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", tmp_path))[0] == 128 + signal.SIGKILL


def test_a_fork_ends_with_the_process_that_asked(tmp_path: Path, served: None) -> None:
    program = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    process = start(program, tmp_path)
    wait(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    pid = int((tmp_path / "pid").read_text())
    assert pid != process.pid
    process.kill()
    process.communicate()
    wait(lambda: not Path(f"/proc/{pid}").exists())


def test_a_process_with_other_libraries_is_not_forked(tmp_path: Path, served: None) -> None:
    assert not imported(start(HAS, tmp_path, LD_LIBRARY_PATH=str(tmp_path)))


@pytest.mark.skipif(os.geteuid() != 0, reason="another namespace, and fewer rights, need root")
@pytest.mark.parametrize("other", [("unshare", "--mount"), ("setpriv", "--bounding-set=-all")])
def test_a_process_that_sees_another_machine_is_not_forked(
    tmp_path: Path, served: None, other: tuple[str, ...]
) -> None:
    assert not imported(start(HAS, tmp_path, *other))


def test_a_process_runs_itself_where_nobody_forks(tmp_path: Path) -> None:
    assert not imported(start(HAS, tmp_path, **{VARIABLE: str(tmp_path / "none")}))


def test_no_fork_outlives_the_end(tmp_path: Path) -> None:
    program = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    with tempfile.TemporaryDirectory(prefix="accel-") as room, forks(Path(room)):
        process = start(program, tmp_path)
        wait(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    pid = int((tmp_path / "pid").read_text())
    wait(lambda: not Path(f"/proc/{pid}").exists())
    assert ended(process)[0] == 1
