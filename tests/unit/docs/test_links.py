# SPDX-License-Identifier: Apache-2.0
"""Every relative link and anchor of the repository's pages resolves, and the checker sees those that do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import links

PAGE = """\
# Set up `gpu_mode`, step by step

## Limits

<a name="old"></a>

### Limits

## [Driver's](https://example.com) _branch_ 100·n
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "guide").mkdir()
    (tmp_path / "guide/page.md").write_text(PAGE)
    (tmp_path / "guide/a picture.svg").write_text("")
    return tmp_path


def broken(site: Path, text: str) -> list[str]:
    index = site / "README.md"
    index.write_text(text)
    paths = [path for path in site.rglob("*") if path.is_file()]
    return [each.removeprefix(f"{index}: ") for each in links.complaints(paths)]


def test_every_link_of_the_repository_resolves() -> None:
    assert list(links.complaints(links.files())) == []


def test_every_page_named_in_code_exists() -> None:
    assert list(links.mentions(links.files())) == []


def test_anchors_are_those_of_github() -> None:
    wanted = {"set-up-gpu_mode-step-by-step", "limits", "limits-1", "drivers-branch-100n", "old"}
    assert links.anchors(PAGE) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "[page](guide/page.md), [folder](guide), [here](#me)\n\n# Me",
        "[heading](guide/page.md#limits-1) and [anchor](guide/page.md#old)",
        "[outside](https://example.com/x.md#y), [mail](mailto:a@example.com), [host](//example.com)",
        "![picture](<guide/a picture.svg>)",
        "`[code](missing.md)`\n\n```text\n[code](missing.md)\n```",
        "[page][1]\n\n[1]: guide/page.md",
    ],
    ids=["file", "anchor", "absolute", "image", "code", "reference"],
)
def test_link_that_resolves_is_not_reported(site: Path, text: str) -> None:
    assert broken(site, text) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[page](guide/pag.md)", "guide/pag.md: no such file"),
        ("[page](guide/page.md#limit)", "guide/page.md#limit: no such heading"),
        ("| a |\n|---|\n| [here](#nothing) |", "#nothing: no such heading"),
        ("![picture](guide/image.svg)", "guide/image.svg: no such file"),
        ('<a href="guide/pag.md">page</a>', "guide/pag.md: no such file"),
        ("[page][1]\n\n[1]: guide/pag.md", "guide/pag.md: no such file"),
        ("[page](/guide/page.md)", "/guide/page.md: no such file"),
        ("[issues](../../issues)", "../../issues: no such file"),
    ],
    ids=["file", "anchor", "own anchor", "image", "html", "reference", "absolute path", "outside"],
)
def test_broken_link_is_reported(site: Path, text: str, found: str) -> None:
    assert broken(site, text) == [found]


def test_link_to_a_file_that_is_not_committed_is_broken(site: Path) -> None:
    index = site / "README.md"
    index.write_text("[page](guide/page.md)")
    assert list(links.complaints([index])) == [f"{index}: guide/page.md: no such file"]


def test_mention_of_a_missing_page_is_reported(site: Path) -> None:
    docs = "docs"  # Apart from the names, so that this file mentions no page.
    (site / "guide").rename(site / docs)
    source = site / "module.py"
    source.write_text(f"# {docs}/page.md, {docs}/gone.md, containerd's docs/man/toml.md, example.com/docs/far.md\n")
    assert list(links.mentions([source], site)) == [f"{source}: {docs}/gone.md: no such page"]
