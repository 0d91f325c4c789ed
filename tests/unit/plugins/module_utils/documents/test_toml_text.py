# SPDX-License-Identifier: Apache-2.0
"""TOML is edited where it is asked to be, and is otherwise the text it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomlkit
from ansible_collections.accel.kubernetes.plugins.module_utils.documents import nested, toml_text
from ansible_collections.accel.kubernetes.plugins.module_utils.documents.nested import Edit
from hypothesis import given
from hypothesis import strategies as st

FIXTURES = Path(__file__).parents[2] / "fixtures"
FILES = [FIXTURES / "containerd-1.7.toml", FIXTURES / "containerd-2.1.toml", *(FIXTURES / "runtimes").glob("*.toml")]


def readable(path: Path) -> bool:
    try:
        toml_text.parse(path.read_bytes().decode("utf-8-sig"))
    except ValueError:
        return False
    return True


TEXTS = [path.read_bytes().decode("utf-8-sig") for path in sorted(FILES) if readable(path)]


def tables(data: object, place: nested.Path = ()) -> list[nested.Path]:
    """The place of each table."""
    if not isinstance(data, dict):
        return []
    return [place, *(found for key, value in data.items() for found in tables(value, (*place, key)))]


@st.composite
def edits(draw: st.DrawFn) -> tuple[str, list[Edit]]:
    text = draw(st.sampled_from(TEXTS))
    data = toml_text.parse(text)
    found = []
    for table in draw(st.lists(st.sampled_from(tables(data)), min_size=1, max_size=3, unique=True)):
        if any(other.path[: len(table)] == table or table[: len(other.path)] == other.path for other in found):
            continue
        there = [key for key, value in nested.get(data, table).items() if not isinstance(value, dict)]
        value = draw(st.sampled_from(["it's", True, 7, ["a", "b"], {"kind": "x", "options": {"deep": True}}, None]))
        if value is None and table:
            found.append(Edit(table, None))
        elif there and not isinstance(value, dict | None):
            found.append(Edit((*table, draw(st.sampled_from([*there, "new"]))), value))
        else:
            found.append(Edit((*table, "new"), value or "x"))
    return text, found


@given(edits())
def test_edits_are_made_and_nothing_else_is(case: tuple[str, list[Edit]]) -> None:
    text, wanted = case
    try:
        result = toml_text.edited(text, wanted)
    except toml_text.LayoutError as error:
        assert error.place in [edit.path[:-1] for edit in wanted]  # noqa: PT017
        return
    assert toml_text.parse(result) == nested.edited(toml_text.parse(text), wanted)


def test_what_no_edit_touches_is_not_given_to_what_edits(monkeypatch: pytest.MonkeyPatch) -> None:
    """tomlkit takes a minute for 2,000 tables."""
    read: list[str] = []
    parse = tomlkit.parse
    monkeypatch.setattr(toml_text.tomlkit, "parse", lambda text: read.append(text) or parse(text))
    first, last = ("".join(f'\n[a.{kind}."{n}"]\nkey = ["{n}"] # theirs\n' for n in range(999)) for kind in "xz")
    text = f"{first}\n[a.y]\n  default = 'runc'\n{last}"

    result = toml_text.edited(text, [Edit(("a", "y", "default"), "nvidia")])

    assert result == text.replace("default = 'runc'", "default = 'nvidia'")
    assert len(read) == 1
    assert len(read[0]) < len(text) / 100


SCATTERED = "[a.b.c]\nd = 1\n[a.b]\ne = 2\n[a]\nf = 3\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[a]\nruntimes = { runc = {} }\n", '[a]\nruntimes = { runc = {}, new = {kind = "x"}}\n'),
        ("a.runtimes.runc.kind = 'v2'\n", "a.runtimes.runc.kind = 'v2'\n[a.runtimes.new]\nkind = \"x\"\n\n"),
        ("a = {}\n", 'a = {runtimes = {new = {kind = "x"}}}\n'),
        ("[a]\r\nb = 1\r\n", '[a]\r\nb = 1\r\n\n[a.runtimes.new]\nkind = "x"\n\n'),
        (SCATTERED, SCATTERED.replace("[a]", '\n[a.runtimes.new]\nkind = "x"\n\n[a]')),
    ],
)
def test_a_table_comes_in_the_form_of_its_place(before: str, after: str) -> None:
    assert toml_text.edited(before, [Edit(("a", "runtimes", "new"), {"kind": "x"})]) == after


@pytest.mark.parametrize("place", [("a", "b", "c", "d"), ("a", "b", "e"), ("a", "f")])
def test_a_value_is_set_whatever_the_order_of_the_tables(place: nested.Path) -> None:
    old = f"{place[-1]} = {nested.get(toml_text.parse(SCATTERED), place)}"

    assert toml_text.edited(SCATTERED, [Edit(place, 7)]) == SCATTERED.replace(old, f"{place[-1]} = 7")


@pytest.mark.parametrize(
    "other",
    [
        'words = """\n[not.a.table]\n"""\n',
        "rows = [\n  [1],\n  [2]\n]\n",
        "# [a]\n",
        '[["b"]]\nx = 1\n[["b"]]\nx = 2\n',
    ],
)
def test_what_looks_like_a_header_is_not_taken_for_one(other: str) -> None:
    text = f"[z]\n{other}\n[a]\nkey = 1\n[y]\n{other.replace('b', 'c')}"

    assert toml_text.edited(text, [Edit(("a", "key"), 2)]) == text.replace("key = 1", "key = 2")


def test_a_table_goes_with_those_below_it_wherever_they_stand() -> None:
    text = "# first\n[a.b.c]\nd = 1\n\n# of x\n[x]\ny = 1\n\n[a.b]\ne = 2\n# last\n"

    assert toml_text.edited(text, [Edit(("a", "b"), None)]) == "# first\n\n# of x\n[x]\ny = 1\n\n# last\n[a]\n\n"


def test_header_like_line_of_a_text_with_bad_escape_is_kept() -> None:
    text = "note = '''\n[\"\\q\"]\n'''\n\n[a]\nb = 1\n"
    assert toml_text.edited(text, [Edit(("a", "b"), 2)]) == text.replace("b = 1", "b = 2")


@pytest.mark.parametrize("header", [r'["C:\\a"]', r"['C:\a']", r'["\u0043:\\a"]'])
def test_a_header_with_an_escape_is_found(header: str) -> None:
    text = f"{header}\nb = 1\n"
    assert toml_text.edited(text, [Edit(("C:\\a",), None)]) == ""


def test_table_implied_by_its_subtables_gets_a_header() -> None:
    text = (
        'version = 3\n\n[grpc]\n  address = "/run/c.sock"\n\n[plugins]\n\n'
        '  [plugins."io.v1.runtime".containerd.runtimes.runc.options]\n    SystemdCgroup = true\n\n'
        '[plugins."io.v1.runtime".containerd.runtimes.kata]\n  runtime_type = "kata"\n\n'
        '[debug]\n  level = "info"\n\n  [plugins."io.v1.images".registry]\n    config_path = "/etc/certs.d"\n\n'
        '[plugins."io.v1.runtime".containerd.runtimes.runc]\n  runtime_type = "runc"\n'
    )
    place = ("plugins", "io.v1.runtime", "containerd")
    edits = [
        Edit((*place, "default_runtime_name"), "nvidia"),
        Edit((*place, "runtimes", "nvidia"), {"runtime_type": "runc", "options": {"BinaryName": "nvidia"}}),
    ]
    assert toml_text.parse(toml_text.edited(text, edits)) == nested.edited(toml_text.parse(text), edits)
