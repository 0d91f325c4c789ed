# SPDX-License-Identifier: Apache-2.0
"""What a process was started with."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.host.command_line import is_on, last, of_process, started


@pytest.mark.parametrize(
    ("words", "go", "pflag"),
    [
        ([], [], []),
        (["--log-level", "info"], [], []),
        (["--config", "/a", "-c", "/b", "--config=/c", "--configure=/d"], ["/a", "/b", "/c"], ["/a", "/c"]),
        (["-config", "/a", "-config=/b", "--c=/c", "---config=/d"], ["/a", "/b", "/c"], []),
        (["--config="], [""], [""]),
        (["--config=a=b\nc"], ["a=b\nc"], ["a=b\nc"]),
        (["--config"], [""], [""]),
        (["--", "-", "config", "/a"], [], []),
        (["--config", "-c", "/b"], ["-c"], ["-c"]),
        (["--kubelet-arg", "--config=/a", "--config", "/b"], ["/b"], ["/b"]),
    ],
)
def test_a_flag_is_found_as_the_program_that_reads_it_does(words: list[str], go: list[str], pflag: list[str]) -> None:
    start = started(["/usr/bin/program", *words])
    assert [given.value for _name, given in start.go_flags(("config", "c"))] == go
    assert [given.value for _name, given in start.pflags(("config",))] == pflag
    assert last(start.go_flags(("config", "c"))) == (go[-1] if go else "")


@pytest.mark.parametrize(
    ("words", "on"),
    [
        ([], []),
        (["--docker"], [True]),
        (["-docker=F", "--docker", "false"], [False, True]),
        (["--docker=0", "--docker=true"], [False, True]),
    ],
)
def test_a_switch_takes_no_word_after_it(words: list[str], on: list[bool]) -> None:
    found = started(["/usr/bin/k3s", "server", *words], "unit").go_flags((), ["docker"])
    assert [is_on(given.value) for _name, given in found] == on
    assert {given.path for _name, given in found} <= {"unit"}


def test_command_line_of_a_process_is_read_unless_it_ended(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cmdline").write_bytes(b"/usr/bin/dockerd\0-H\0fd://\0")
    assert of_process(str(tmp_path), "7") == ["/usr/bin/dockerd", "-H", "fd://"]
    assert of_process(str(tmp_path), "8") == [""]
