# SPDX-License-Identifier: Apache-2.0
"""What a process was started with."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils import command_line


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], []),
        (["program", "--log-level", "info"], []),
        (["program", "--config", "/a", "-c", "/b", "--config=/c", "--configure=/d"], ["/a", "/b", "/c"]),
        (["program", "--config="], [""]),
        (["program", "--config"], []),
    ],
)
def test_what_a_flag_is_given_is_found_in_its_order(words: list[str], found: list[str]) -> None:
    assert command_line.given(words, "--config", "-c") == found
    assert command_line.last_given(words, "--config", "-c") == (found[-1] if found else "")


def test_the_words_of_a_process_are_read_and_one_that_ended_has_none(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cmdline").write_bytes(b"/usr/bin/dockerd\0-H\0fd://\0")
    assert command_line.of_process(str(tmp_path), "7") == ["/usr/bin/dockerd", "-H", "fd://"]
    assert command_line.of_process(str(tmp_path), "8") == [""]
