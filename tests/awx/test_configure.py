# SPDX-License-Identifier: Apache-2.0
"""The example that configures AWX: what it makes by `awx.awx`. Its surveys ask for what there is and decide nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from .controller import Controller, extra_vars, serving

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "examples/awx"
TEMPLATES = yaml.safe_load((EXAMPLE / "templates.yml").read_text())["gpu_job_templates"]
TYPES = {"str": "text", "int": "integer", "float": "float"}
QUESTIONS = [
    pytest.param(template["playbook"], question, id=f"{template['playbook']}-{question['variable']}")
    for template in TEMPLATES
    for question in template["survey"]
]


def specified(variable: str) -> dict[str, Any] | None:
    """What the role says of its variable."""
    for path in (REPOSITORY / "roles").glob("*/meta/argument_specs.yml"):
        options = yaml.safe_load(path.read_text())["argument_specs"]["main"]["options"]
        if variable in options:
            found: dict[str, Any] = options[variable]
            return found
    return None


def assert_says_what_else(playbook: str, question: dict[str, Any], default: Any) -> None:
    """The question tells what no answer comes to."""
    text = (REPOSITORY / "playbooks" / playbook).read_text()
    # Ansible asks no inventory how many hosts a play takes at once.
    asks = not re.search(rf"^ +serial: .*\b{question['variable']}\b", text, re.MULTILINE)
    told = question["question_description"]
    start = "Unanswered: as in the inventory, else " if asks else "Unanswered: "
    assert told.startswith(start)
    assert default == "" or told == f"{start}{default}."


def test_every_playbook_has_a_template() -> None:
    playbooks = sorted(path.name for path in (REPOSITORY / "playbooks").glob("*.yml"))
    assert sorted(template["playbook"] for template in TEMPLATES) == playbooks


@pytest.mark.parametrize(("playbook", "question"), QUESTIONS)
def test_a_question_agrees_with_its_variable(playbook: str, question: dict[str, Any]) -> None:
    name, option = question["variable"], specified(question["variable"])
    if option and option["type"] != "bool":
        if question["type"] == "multiplechoice" and "choices" not in option:
            assert set(question["choices"]) == set(re.findall(r"V\((\w+)\)", " ".join(option["description"])))
        else:
            assert question["type"] == ("multiplechoice" if "choices" in option else TYPES[option["type"]])
            assert question.get("choices") == option.get("choices")
        assert_says_what_else(playbook, question, option["default"])
        return
    playbooks = REPOSITORY / "playbooks"
    text = "".join(path.read_text() for path in (playbooks / playbook, playbooks / "vars" / playbook) if path.exists())
    uses = re.findall(rf"\b{name} \| default\((.*?)(?:, true)?\)( \| bool)?", text)
    assert uses, f"{playbook} does not ask for {name}"
    for default, is_truth in uses:
        if is_truth:
            # AWX sends words, which the playbook takes for truths.
            assert question["choices"] == ["true", "false"]
            assert_says_what_else(playbook, question, default)
        else:
            value = "" if default == "omit" else yaml.safe_load(default)
            assert_says_what_else(playbook, question, value)
            assert question["type"] == ("integer" if isinstance(value, int) else "text")


@pytest.mark.parametrize(("playbook", "question"), QUESTIONS)
def test_who_answers_nothing_leaves_the_inventory_as_it_is(playbook: str, question: dict[str, Any]) -> None:
    assert "default" not in question
    # As AWX's own editor of surveys writes a question without a default.
    for saved in (question, question | {"default": ""}):
        assert extra_vars([saved], {}) == {}, f"{playbook} is told something that nobody said"
    # An empty answer is left out by AWX's forms, or refused by AWX.
    with pytest.raises(ValueError, match=question["variable"]):
        extra_vars([question], {question["variable"]: ""})


def test_validation_takes_the_driver_of_a_coming_upgrade() -> None:
    asked = {template["playbook"]: {question["variable"] for question in template["survey"]} for template in TEMPLATES}
    assert asked["validate.yml"] == {name for name in asked["upgrade_driver.yml"] if name.startswith("driver_")}


@pytest.fixture
def controller() -> Controller:
    """An AWX with what the example expects to be there."""
    found = Controller()
    for kind, name in (("organizations", "Default"), ("inventories", "GPU cluster")):
        found.add(kind, {"name": name})
    for name in ("GPU hosts", "GPU vault"):
        found.add("credentials", {"name": name, "inputs": {}})
    return found


NAMED = {
    "gpu_awx_project_url": "https://git.example.com/gpu/awx.git",
    "gpu_awx_image": "registry.example.com/gpu/accel-kubernetes-ee:0.1.0",
}


def configure(address: str, code: int = 0, **variables: Any) -> str:
    words = ["--extra-vars", json.dumps(variables)]
    environment = os.environ | {"CONTROLLER_HOST": address, "CONTROLLER_OAUTH_TOKEN": "token", "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), EXAMPLE / "configure.yml", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", [*NAMED, "gpu_awx_canary"])
def test_what_would_take_templates_or_nodes_away_is_refused(controller: Controller, name: str) -> None:
    given = NAMED | {"gpu_awx_canary": " "} if name == "gpu_awx_canary" else NAMED | {name: ""}
    before = {kind: len(rows) for kind, rows in controller.objects.items()}
    with serving(controller) as address:
        assert f"{name} is empty: " in configure(address, 2, **given)
    assert {kind: len(rows) for kind, rows in controller.objects.items()} == before


@pytest.mark.full
def test_playbook_makes_templates_surveys_and_an_approval(controller: Controller, tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text("secret")
    with serving(controller) as address:
        given = NAMED | {"gpu_awx_more_credentials": ["GPU vault"]}
        said = configure(address, gpu_awx_kubeconfig_file=str(tmp_path / "kubeconfig"), **given)
        assert "secret" not in said
        again = configure(address, **given)
    assert "changed=0" in again
    assert controller.secrets["GPU cluster"] == {"kubeconfig": "secret"}
    (kind,) = controller.objects["credential_types"].values()
    assert kind["injectors"] == {
        "file": {"template": "{{ kubeconfig }}"},
        "extra_vars": {"gpu_plugins_kubeconfig": "{{ tower.filename }}"},
    }

    made = controller.named("job_templates")
    assert list(made) == [template["name"] for template in TEMPLATES]
    credentials = [controller.named("credentials")[name]["id"] for name in ("GPU hosts", "GPU cluster", "GPU vault")]
    for template in TEMPLATES:
        found = made[template["name"]]
        assert found["playbook"] == template["playbook"]
        assert found["project"] == controller.named("projects")["accel.kubernetes"]["id"]
        assert sorted(controller.lists[f"{found['url']}credentials/"]) == sorted(credentials)
        assert found["survey_enabled"] is True
        asked = controller.surveys[f"{found['url']}survey_spec/"]["spec"]
        assert [question["variable"] for question in asked] == [question["variable"] for question in template["survey"]]
        assert extra_vars(asked, {}) == {}

    (workflow,) = controller.objects["workflow_job_templates"].values()
    asked = controller.surveys[f"{workflow['url']}survey_spec/"]["spec"]
    assert extra_vars(asked, {}) == {}
    assert extra_vars(asked, {"driver_branch": "590"}) == {"driver_branch": "590"}
    nodes = list(controller.objects["workflow_job_template_nodes"].values())
    runs = {found["id"]: name for name, found in made.items()}
    runs |= {found["id"]: name for name, found in controller.named("workflow_approval_templates").items()}
    later = {number for listed in controller.lists.values() for number in listed}
    steps, after = [], [node for node in nodes if node["id"] not in later]
    while after:
        (node,) = after
        assert node["workflow_job_template"] == workflow["id"]
        assert node["all_parents_must_converge"], "a node put before it in AWX would start it alone"
        steps.append((runs[node["unified_job_template"]], node.get("limit")))
        numbers = controller.lists.get(f"{node['url']}success_nodes/", [])
        after = [found for found in nodes if found["id"] in numbers]
    canary = "gpu_nodes[0]"
    assert steps == [
        ("GPU validate", None),
        ("GPU upgrade driver", canary),
        ("GPU validate", canary),
        ("Approve the rest", None),
        ("GPU upgrade driver", None),
        ("GPU validate", None),
    ]
