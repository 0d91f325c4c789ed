# SPDX-License-Identifier: Apache-2.0
"""The guides to CUDA, vLLM and Paddle say what the module's tables say."""

from __future__ import annotations

import re
from pathlib import Path

from ansible_collections.accel.kubernetes.plugins.module_utils.cuda import tables
from ansible_collections.accel.kubernetes.plugins.module_utils.cuda.compat import version_of
from ansible_collections.accel.kubernetes.plugins.module_utils.cuda.errors import explain
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.symptoms import IN_LOGS

DOCS = Path(__file__).parents[3] / "docs"
CUDA = (DOCS / "reference/cuda.md").read_text()


def rows(page: str, title: str) -> list[list[str]]:
    """Cells of the first table below a heading, without its head."""
    section = page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_branches_are_those_of_the_table() -> None:
    told = {int(branch): version_of(cuda) for branch, cuda in rows(CUDA, "Drivers and their CUDA")}
    assert told
    assert told.items() <= dict(tables.BRANCHES).items()


def test_formats_of_each_gpu_are_those_of_the_table() -> None:
    for models, capabilities, native, also in rows(CUDA, "GPUs and their number formats"):
        known = [version_of(each) for each in capabilities.split(", ")]
        for model in models.split(", "):
            assert tables.of_gpu(model) in known
        for dtype in native.split(", "):
            assert tables.DTYPES[dtype].native <= known[0], (models, dtype)
        for dtype in re.findall(r"(\w+) \(", also):
            row = tables.DTYPES[dtype]
            assert row.runs <= known[0] < row.native, (models, dtype)


def test_errors_are_known_by_number() -> None:
    for named, _cause, _remedy in rows(CUDA, "Errors"):
        name, number = re.findall(r"`(\w+)` \((\d+)\)", named)[0]
        error = explain(name)
        assert error is not None
        assert error.code == int(number)


def test_messages_of_vllm_are_known_to_diagnose() -> None:
    table = re.findall(r"^\| `([^`]+)` \| .+ \|$", (DOCS / "how-to/run-vllm.md").read_text(), re.MULTILINE)
    assert len(table) == 4
    for message in table:
        said = message.replace("...", "(3/8 GiB) on startup")
        assert any(symptom.pattern.search(said) for symptom in IN_LOGS), message
