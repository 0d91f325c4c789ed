# SPDX-License-Identifier: Apache-2.0
"""What `make docsite` lays out: every page, its place in the navigation, and files and folders that pages link to."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tools import links
from tools.docsite import entry_points, stage
from yaml_files import document

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("docsite")
    (target / "modules").mkdir()
    (target / "modules/cf_crl_module.rst").write_text("cf_crl\n======\n")
    stage.stage(target)
    return target


def test_every_page_is_in_the_navigation_once(laid_out: Path) -> None:
    named = [name for names in stage.navigation(laid_out).values() for name in names]
    pages = {str(path.relative_to(laid_out).with_suffix("")) for path in laid_out.rglob("*.md")}
    lists = {name for name in pages if name.endswith("/index")}
    assert sorted(named) == sorted(pages - lists - {"README"} | {"CHANGELOG", "modules/cf_crl_module"})


def test_links_of_laid_out_pages_resolve(laid_out: Path) -> None:
    assert list(links.complaints([path for path in laid_out.rglob("*") if path.is_file()])) == []


def test_pictures_of_the_dark_theme_are_where_pages_name_them(laid_out: Path) -> None:
    named = [
        (page.parent / name).resolve().relative_to(laid_out)
        for page in laid_out.rglob("*.md")
        for name in re.findall(r'srcset="([^"]+)"', page.read_text())
    ]
    assert named
    assert [name for name in named if not (laid_out / "extra" / name).is_file()] == []


def test_a_link_to_a_folder_leads_to_a_list_of_its_files(laid_out: Path) -> None:
    listed = (laid_out / "examples/index.md").read_text()
    assert "- [inventory.yml](inventory.yml)" in listed
    assert (laid_out / "examples/inventory.yml").read_text() == (ROOT / "examples/inventory.yml").read_text()


def test_roles_have_a_page_with_their_variables_once(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "roles/gpu_plugins/meta", tmp_path / "roles/gpu_plugins/meta")
    entry_points.leave_main(tmp_path)
    specs = document(tmp_path / "roles/gpu_plugins/meta/argument_specs.yml")["argument_specs"]
    assert list(specs) == ["main"]
    assert "gpu_plugins_mode" in specs["main"]["options"]
    mains = [document(path)["argument_specs"]["main"] for path in ROOT.glob("roles/*/meta/arg*.yml")]
    assert [main["short_description"] for main in mains if not main.get("description")] == []


def test_setup_installs_nothing_of_it() -> None:
    own = re.findall(r"^([\w-]+)==[\d.]+$", (ROOT / "tests/tools/docsite/requirements.txt").read_text(), re.MULTILINE)
    assert {"antsibull-docs", "myst-parser", "sphinx"} <= set(own)
    everyones = (ROOT / "requirements-dev.txt").read_text() + (ROOT / "requirements.txt").read_text()
    assert [name for name in own if re.search(rf"^{name}\b", everyones, re.MULTILINE)] == []
