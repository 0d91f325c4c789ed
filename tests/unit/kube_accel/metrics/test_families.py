# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import kube_accel
from kube_accel.metrics.exposition import Family, Writer
from kube_accel.metrics.families import ALL
from tools.metrics_table import TABLES, marks
from unit.kube_accel.metrics.page import Page, lint_names, promtool


@pytest.mark.parametrize("family", ALL, ids=lambda family: family.name)
def test_a_name_says_unit_and_type(family: Family) -> None:
    lint_names(family)


def test_no_name_is_there_twice() -> None:
    assert len({family.name for family in ALL}) == len(ALL)


def test_promtool_finds_nothing_wrong_with_any_family() -> None:
    page = Writer().page((family, {tuple("x" for _ in family.labels): 1}) for family in ALL)
    Page(page).lint()
    assert promtool(page.decode()) == ""


def test_promtool_would_find_something() -> None:
    assert "_total" in promtool("# HELP a_things Things.\n# TYPE a_things counter\na_things 1\n")


@pytest.mark.parametrize("name", TABLES)
def test_the_document_lists_every_family(name: str) -> None:
    (document, table), (begin, end) = TABLES[name], marks(name)
    told = document.read_text().partition(begin)[2].partition(end)[0]
    assert told.strip() == table().strip(), "run make docs"


def test_the_daemon_tells_its_version() -> None:
    project = Path(kube_accel.__file__).parents[2] / "pyproject.toml"
    assert kube_accel.__version__ == tomllib.loads(project.read_text())["project"]["version"]
