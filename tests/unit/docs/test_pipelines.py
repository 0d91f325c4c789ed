# SPDX-License-Identifier: Apache-2.0
"""Pipelines and commit hooks run what a contributor runs by hand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from yaml_files import document

ROOT = Path(__file__).parents[3]
TARGETS = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
GITHUB = document(ROOT / ".github/workflows/ci.yml")
GITLAB = document(ROOT / ".gitlab-ci.yml")


def commands(name: str) -> Iterator[str]:
    """What the jobs of a pipeline run."""
    if name == "github":
        for job in GITHUB["jobs"].values():
            yield from (step["run"] for step in job["steps"] if "run" in step)
        return
    for job in GITLAB.values():
        if isinstance(job, dict):
            yield from job.get("script", ())


@pytest.mark.parametrize("name", ["github", "gitlab"])
def test_a_pipeline_runs_targets_of_the_makefile(name: str) -> None:
    asked = {word for command in commands(name) for word in re.findall(r"\bmake ([a-z-]+)", command)}
    assert asked <= TARGETS
    assert {"test", "demo", "test-full", "soak", "native"} <= asked


def test_both_pipelines_run_the_same_versions_of_python() -> None:
    versions = GITHUB["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert GITLAB["test"]["parallel"]["matrix"] == [{"PYTHON_VERSION": versions}]


def test_hooks_run_the_tools_that_setup_installs() -> None:
    pinned = {line.split("==")[0].lower() for line in (ROOT / "requirements-dev.txt").read_text().splitlines()}
    hooks: list[dict[str, Any]] = document(ROOT / ".pre-commit-config.yaml")["repos"][0]["hooks"]
    assert hooks
    for hook in hooks:
        assert re.match(r"\.venv/bin/([a-z-]+)", hook["entry"])[1] in pinned  # type: ignore[index]


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md"])
def test_a_page_names_paths_and_targets_that_are_there(page: str) -> None:
    text = (ROOT / page).read_text()
    asked = {word for words in re.findall(r"(?:`|\$ )make ([a-z -]+)", text) for word in words.split()}
    assert asked <= TARGETS
    named = re.findall(r"`((?:plugins|roles|tests|docs|meta|changelogs|playbooks)/[\w./-]+)`", text)
    assert [path for path in named if not (ROOT / path).exists()] == []
