# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/reference/awx.md are what the example asks for, and what playbooks leave."""

from __future__ import annotations

import re
from pathlib import Path

from yaml_files import document

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/reference/awx.md").read_text()
TEMPLATES = document(ROOT / "examples/awx/templates.yml")["gpu_job_templates"]


def rows(heading: str) -> list[list[str]]:
    """The cells of each row of the table under a heading, without the two rows of its head."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    found = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return found[2:]


def test_the_survey_of_each_template_is_listed() -> None:
    told: dict[str, list[str]] = {}
    for template, variables in rows("Surveys"):
        told.setdefault(template.partition(",")[0], []).extend(re.findall(r"`(\w+)`", variables))
    asked = {each["name"]: [question["variable"] for question in each["survey"]] for each in TEMPLATES}
    assert {name: sorted(each) for name, each in told.items()} == {name: sorted(each) for name, each in asked.items()}


def test_the_artifact_of_each_playbook_is_listed() -> None:
    told = {playbook.strip("`"): artifact.strip("`") for playbook, artifact, _ in rows("Artifacts")}
    assert sorted(told) == sorted(path.stem for path in (ROOT / "playbooks").glob("*.yml"))
    for playbook, artifact in told.items():
        own = [ROOT / f"playbooks/{playbook}.yml", *(ROOT / "playbooks/tasks").glob(f"{playbook}_*.yml")]
        left = re.findall(r"set_stats:\n +data:\n +(\w+):", "".join(path.read_text() for path in own))
        assert left == [artifact]


def test_every_variable_of_the_example_is_listed() -> None:
    text = (ROOT / "examples/awx/configure.yml").read_text()
    told = {variable.strip("`"): default.strip("`") for variable, default, _ in rows("Variables of configure.yml")}
    assert set(told) == set(re.findall(r"\bgpu_awx_[a-z_]+\b", text)) - {"gpu_awx_plan"}
    named = dict(re.findall(r"^    (gpu_awx_\w+): (\S.*)$", text, re.MULTILINE))
    assert {name: told[name] for name, value in named.items() if value != '""'} == {
        name: value for name, value in named.items() if value != '""'
    }
