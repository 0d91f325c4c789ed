# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.host import fed_command

MIB = bytes(1 << 20)


def test_a_command_gets_all_of_a_large_input(tmp_path: Path) -> None:
    code, said = fed_command.run(["wc", "-c"], [MIB] * 8, os.environ, str(tmp_path))
    assert (code, said.strip()) == (0, str(8 << 20))


def test_a_command_that_reads_nothing_tells_why(tmp_path: Path) -> None:
    command = ["sh", "-c", "exec <&-; echo no >&2; exit 3"]
    assert fed_command.run(command, [MIB] * 8, os.environ, str(tmp_path)) == (3, "no\n")


def test_a_command_whose_input_fails_is_killed(tmp_path: Path) -> None:
    def data() -> Iterator[bytes]:
        yield MIB
        raise ValueError("the archive changed")

    script = f"cat >/dev/null; touch {tmp_path}/loaded"
    with pytest.raises(ValueError, match="the archive changed"):
        fed_command.run(["sh", "-c", script], data(), os.environ, str(tmp_path))
    assert not (tmp_path / "loaded").exists()
