# SPDX-License-Identifier: Apache-2.0
"""What roles and playbooks print of others' words passes the filter that makes them harmless."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from yaml_files import document

ROOT = Path(__file__).parents[3]
PRINTS = ("ansible.builtin.fail", "ansible.builtin.debug", "ansible.builtin.assert")
# Words of a failed task, which may be the API server's, of a condition, a waiting container or a log, and annotations.
WORDS = re.compile(r"ansible_failed_result\.msg|_(?:found|counted)\.msg|\.message\b|log_lines|annotations\[")
# What root's programs said on the host is theirs to say, line by line.
HOST = re.compile(r"ansible_failed_result\.stderr")
FILES = sorted([*ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("playbooks/**/*.yml")])


def printed(part: Any) -> Iterator[str]:
    """Expressions in what tasks print, wherever they stand."""
    if isinstance(part, list):
        for entry in part:
            yield from printed(entry)
    elif isinstance(part, dict):
        for name, entry in part.items():
            if name in PRINTS and isinstance(entry, dict):
                yield from re.findall(r"\{\{.*?\}\}", str([entry.get("msg"), entry.get("fail_msg")]), re.DOTALL)
            elif name != "vars":
                yield from printed(entry)


@pytest.mark.attack
def test_words_of_others_are_printed_through_the_filter() -> None:
    found = [(path, each) for path in FILES for each in printed(document(path))]
    words = [(path.relative_to(ROOT), each) for path, each in found if WORDS.search(each) and not HOST.search(each)]
    assert len(words) > 10
    assert [each for each in words if "accel.kubernetes.printable" not in each[1]] == []


@pytest.mark.attack
def test_no_json_is_decoded_in_a_template() -> None:
    files = [path for kind in ("roles", "playbooks", "plugins") for path in (ROOT / kind).rglob("*") if path.is_file()]
    texts = ((path, path.read_text(errors="replace")) for path in files if path.suffix in (".yml", ".j2", ".py"))
    decoded = [match for path, text in texts for match in re.findall(r"\{\{[^}]*\| *from_json\b[^}]*\}\}", text)]
    assert decoded == []
