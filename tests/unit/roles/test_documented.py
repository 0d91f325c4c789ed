# SPDX-License-Identifier: Apache-2.0
"""Defaults, argument specs and the reference of variables name the same variables and values."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools import variables
from yaml_files import document

ROLES = Path(__file__).parents[3] / "roles"
NAMES = ("driver", "container_runtime", "scheduler", "gpu_plugins", "dcgm_exporter", "kube_accel_image", "monitoring")


def _load(role: str, file: str) -> dict[str, Any]:
    found: dict[str, Any] = document(ROLES / role / file)
    return found


@pytest.mark.parametrize("role", NAMES)
def test_every_default_is_specified_with_its_value(role: str) -> None:
    defaults = _load(role, "defaults/main.yml")
    options = _load(role, "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    assert list(options) == list(defaults)
    given = {name: option["default"] for name, option in options.items() if "default" in option}
    assert given == {name: defaults[name] for name in given}


@pytest.mark.parametrize("role", NAMES)
def test_every_entry_point_is_specified(role: str) -> None:
    specs = _load(role, "meta/argument_specs.yml")["argument_specs"]
    public = {
        "main",
        "preflight",
        "extender",
        "secondary",
        "drain",
        "verify",
        "validate",
        "validate_pod",
        "uninstall",
        "uninstall_preflight",
    }
    files = {path.stem for path in (ROLES / role / "tasks").iterdir()}
    assert set(specs) == public & files
    assert {"main", "preflight", "uninstall"} <= files


@pytest.mark.parametrize("role", NAMES)
def test_reference_lists_every_variable_with_its_default(role: str) -> None:
    _, _, section = variables.DOCUMENT.read_text().partition(f"\n## [{role}](")
    section = re.split(r"\n###? ", section)[0]
    rows = re.findall(r"^\| `(\w+)` \| [\w ]+ \| (.+?) \| (.+) \|$", section, re.MULTILINE)
    defaults = _load(role, "defaults/main.yml")
    assert [name for name, _, _ in rows] == list(defaults)
    for name, shown, meaning in rows:
        value = defaults[name]
        assert len(meaning) > 15, name
        if value is None or isinstance(value, (bool, int)):
            assert shown == f"`{json.dumps(value)}`", name
        elif isinstance(value, str) and value and "{{" not in value:
            assert shown == f"`{value}`", name
        elif not value:
            assert shown == f"`{json.dumps(value)}`", name


@pytest.mark.parametrize("role", NAMES)
def test_readme_of_a_role_is_short_and_leads_to_its_variables(role: str) -> None:
    text = (ROLES / role / "README.md").read_text()
    assert len(text.splitlines()) <= 60
    assert f"(../../docs/variables.md#{role})" in text
    assert not re.search(rf"^\| `{role}_", text, re.MULTILINE), "variables are in docs/variables.md alone"
    for entry in _load(role, "meta/argument_specs.yml")["argument_specs"]:
        assert f"`{entry}`" in text, entry


def test_the_table_of_all_variables_is_that_of_the_specs() -> None:
    assert variables.DOCUMENT.read_text() == variables.document(), "run make docs"


def test_entry_point_with_own_variables_has_its_own_table(tmp_path: Path) -> None:
    for role in variables.ROLES:
        meta = tmp_path / "roles" / role / "meta"
        meta.mkdir(parents=True)
        option = {"type": "list", "elements": "str", "choices": ["a|b", "c"], "description": ["Takes V(c)", "or O(x)."]}
        long = {"description": ["Has a length.", "Of V(a|b)" + " words" * 60 + "."], "default": 1}
        more = {"main": {"x": option, "z": long}, "uninstall": {"x": {"required": True, "description": "It."}}}
        specs = {entry: {"short_description": entry, "options": options} for entry, options in more.items()}
        (meta / "argument_specs.yml").write_text(yaml.safe_dump({"argument_specs": specs}))
        (meta.parent / "defaults").mkdir()
        (meta.parent / "defaults/main.yml").write_text("y: 1\n")
    _, _, driver = variables.document(tmp_path).partition("## [driver]")
    main, _, uninstall = driver.partition("## [")[0].partition("### `uninstall`")
    assert "| `x` | list of str | see [defaults](../roles/driver/defaults/main.yml) | Takes `c` or `x`." in main
    assert "One of `a\\|b`, `c`." in main
    assert "| `x` | str | **required** | It. |" in uninstall
    # What is too long for a row follows the table.
    assert "| `z` | str | `1` | Has a length. More below. |" in main
    assert "\n\n- `z`: Of `a|b` words" in main
    assert " ".join(main.split()).count(" words") == 60
