# SPDX-License-Identifier: Apache-2.0
"""The reference names each label, annotation, condition, and event that the product uses."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/reference/labels-annotations-events.md").read_text()
DAEMONS = ROOT / "roles/gpu_plugins/files/kube_accel/src"
EVENT = re.compile(r'"((?:Gpus?|Mig|Mps|Configuration|Quota|Removed|Driver)[A-Z][A-Za-z]+)"')
NAME = re.compile(r"kube-accel\.io/[a-z][a-z-]*[a-z]")


def sources() -> str:
    places = [DAEMONS, ROOT / "plugins", *ROOT.glob("roles/*/tasks"), *ROOT.glob("roles/*/templates")]
    files = [path for place in [*places, *ROOT.glob("roles/*/vars")] for path in place.rglob("*") if path.is_file()]
    return "\n".join(path.read_text() for path in files if path.suffix in (".py", ".yml", ".j2"))


def test_page_names_each_label_and_annotation() -> None:
    used = set(NAME.findall(sources()))
    assert len(used) > 20
    assert used - set(NAME.findall(PAGE)) == set()
    assert set(NAME.findall(PAGE)) - used == set()


def test_page_names_each_reason_of_events_and_conditions() -> None:
    used = set(EVENT.findall("\n".join(path.read_text() for path in DAEMONS.rglob("*.py"))))
    assert len(used) > 20
    assert {reason for reason in used if f"`{reason}`" not in PAGE} == set()
