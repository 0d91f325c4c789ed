# SPDX-License-Identifier: Apache-2.0
"""No command of a tutorial or how-to is passed over in silence: a test runs it, or the page says why none does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from demo.pages import ON_KUBERNETES, PLAYED, PageError, differs
from tools.blocks import RUN_BY, Block, blocks, marks

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("docs/tutorials/*.md"), *ROOT.glob("docs/how-to/*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


EARLY = 150
"""Words that a reader reads before the first command, which shows the state of things."""
PROGRAMS = (
    "ansible-galaxy|ansible-playbook|apt|apt-get|cp|dnf|docker|export|helm|journalctl|kube-accel|kubectl|make|mokutil"
    "|nvidia-smi|pip|podman|rm|scp|sha256sum|skopeo|systemctl"
)
TYPED = re.compile(rf"(?:{PROGRAMS}) [a-z ]*[^a-z ].*")
"""Code in a sentence that a reader has to type. The name of a command, such as ``kubectl inspect gpu``, is none."""


def typed_in_sentences(text: str) -> list[str]:
    """The commands of a page that are in a sentence or a table, where no test looks at them."""
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    found = (" ".join(each.split()) for each in re.findall(r"(?<!`)`([^`]+)`", prose))
    return [each for each in found if TYPED.fullmatch(each)]


def run_elsewhere(block: Block) -> bool:
    return all(any(re.fullmatch(pattern, step.command) for pattern in RUN_BY) for step in block.steps)


@pytest.mark.parametrize("name", NAMES)
def test_each_block_is_run_or_says_why_not(name: str) -> None:
    found = [block for block in blocks(ROOT / name) if block.kind == "console"]
    silent = [block for block in found if not block.not_run and not run_elsewhere(block)]
    if name not in (*PLAYED, *ON_KUBERNETES):
        assert [(block.line, block.steps[0].command) for block in silent] == []
    assert [block.line for block in found if block.not_run and len(block.not_run.split()) < 2] == []
    assert [block.line for block in found if block.not_run and run_elsewhere(block)] == [], "a test does run it"


@pytest.mark.parametrize("name", NAMES)
def test_a_test_that_runs_a_block_instead_is_there(name: str) -> None:
    for block in blocks(ROOT / name):
        for path in re.findall(r"tests/[\w/]+\.py", block.not_run):
            text = (ROOT / path).read_text()
            played = re.findall(r"accel\.kubernetes\.\w+", " ".join(step.command for step in block.steps))
            assert [each for each in played if each not in text] == [], f"line {block.line}: {path} runs it not"


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_its_first_command_early(name: str) -> None:
    before, command, _ = (ROOT / name).read_text().partition("```console")
    words = re.sub(r"<!--.*?-->", "", before, flags=re.DOTALL).split()
    assert not command or len(words) <= EARLY


@pytest.mark.parametrize("name", NAMES)
def test_each_mark_stands_above_a_block_of_commands(name: str) -> None:
    found = [block for block in blocks(ROOT / name) if block.not_run or block.fails]
    assert len(found) == marks(ROOT / name)
    assert {block.kind for block in found} <= {"console"}


def test_pages_that_are_played_exist_and_have_commands_to_type() -> None:
    assert [name for name in (*PLAYED, *ON_KUBERNETES) if name not in NAMES] == []
    for name in (*PLAYED, *ON_KUBERNETES):
        found = [block for block in blocks(ROOT / name) if block.kind == "console"]
        assert any(not block.not_run and not run_elsewhere(block) for block in found), name


def test_commands_are_in_console_blocks_alone() -> None:
    kinds = {block.kind for name in NAMES for block in blocks(ROOT / name)}
    assert not kinds & {"sh", "bash", "shell", "zsh"}


@pytest.mark.parametrize("name", NAMES)
def test_no_command_to_type_is_in_a_sentence(name: str) -> None:
    assert typed_in_sentences((ROOT / name).read_text()) == []


def test_a_command_in_a_sentence_is_told_from_its_name() -> None:
    text = "`kubectl inspect gpu` shows `kubectl get\npods -A`.\n\n```console\n$ make a X=1\n```\n\n| `make b X=1` |"
    assert typed_in_sentences(text) == ["kubectl get pods -A", "make b X=1"]


PAGE = """# Page

<!-- fails: nothing is there yet -->

```console
$ look
```

Save this as `pod.yaml`:

```yaml
a: 1
```

## Run it

1. Type:

   <!-- not run here: needs
   a GPU -->

   ```console
   $ one \\
       --more    # why
   out
   $ two
   ```
"""


def test_a_block_has_its_commands_outputs_marks_and_name(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    looked, saved, typed = blocks(tmp_path / "page.md")
    assert (looked.not_run, looked.fails) == ("", "nothing is there yet")
    assert (saved.saved_as, saved.text, saved.section, saved.line) == ("pod.yaml", "a: 1\n", "# Page", 11)
    assert [(step.command, step.shown) for step in typed.steps] == [("one      --more", ("out",)), ("two", ())]
    assert (typed.not_run, typed.fails, typed.section, typed.before) == ("needs a GPU", "", "## Run it", "1. Type:")
    assert marks(tmp_path / "page.md") == 2


OUTPUT = """NAME    STATUS   AGE   VERSION
gpu-1   Ready    3m2s  v1.36.0-sim
GPU 0: NVIDIA A100 80GB PCIe (UUID: GPU-0123)
"""


@pytest.mark.parametrize(
    ("shown", "same"),
    [
        ("NAME STATUS AGE VERSION\ngpu-1 Ready 9d v1.35.1", True),
        ("GPU 0: NVIDIA A100 80GB PCIe (UUID: GPU-...)", True),
        ("...\ngpu-1 ... v1.36.0\n...", True),
        ("gpu-2 Ready 9d v1.36.0", False),
        ("gpu-1 NotReady 9d v1.36.0", False),
        ("GPU 0: NVIDIA H100 80GB PCIe (UUID: GPU-...)", False),
        ("gpu-1 Ready 9d v1.36.0\nNAME STATUS AGE VERSION", False),
    ],
)
def test_outputs_are_compared_but_for_ages_versions_and_dots(shown: str, same: bool) -> None:
    if same:
        differs(shown.splitlines(), OUTPUT)
    else:
        with pytest.raises(PageError, match="the page shows"):
            differs(shown.splitlines(), OUTPUT)
