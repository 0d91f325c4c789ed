# SPDX-License-Identifier: Apache-2.0
"""No command of a tutorial or how-to is passed over in silence: a test runs it, or the page says why none does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from demo.pages import PLAYED, PageError, differs
from tools.blocks import RUN_BY, Block, blocks, marks

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("docs/tutorials/*.md"), *ROOT.glob("docs/how-to/*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def run_elsewhere(block: Block) -> bool:
    return all(any(re.fullmatch(pattern, step.command) for pattern in RUN_BY) for step in block.steps)


@pytest.mark.parametrize("name", NAMES)
def test_each_block_is_run_or_says_why_not(name: str) -> None:
    found = [block for block in blocks(ROOT / name) if block.kind == "console"]
    silent = [block for block in found if not block.not_run and not run_elsewhere(block)]
    if name not in PLAYED:
        assert [(block.line, block.steps[0].command) for block in silent] == []
    assert [block.line for block in found if block.not_run and len(block.not_run.split()) < 2] == []
    assert [block.line for block in found if block.not_run and run_elsewhere(block)] == [], "a test does run it"


@pytest.mark.parametrize("name", NAMES)
def test_each_mark_stands_above_a_block_of_commands(name: str) -> None:
    found = [block for block in blocks(ROOT / name) if block.not_run or block.fails]
    assert len(found) == marks(ROOT / name)
    assert {block.kind for block in found} <= {"console"}


def test_pages_that_are_played_exist_and_have_commands_to_type() -> None:
    assert [name for name in PLAYED if name not in NAMES] == []
    for name in PLAYED:
        found = [block for block in blocks(ROOT / name) if block.kind == "console"]
        assert any(not block.not_run and not run_elsewhere(block) for block in found), name


def test_commands_are_in_console_blocks_alone() -> None:
    kinds = {block.kind for name in NAMES for block in blocks(ROOT / name)}
    assert not kinds & {"sh", "bash", "shell", "zsh"}


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
