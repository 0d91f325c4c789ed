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
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.modes import MODES, NODE_MODES

from yaml_files import document

from .controller import Controller, can_be_edited, extra_vars, serving

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "examples/awx"
TEMPLATES = document(EXAMPLE / "templates.yml")["gpu_job_templates"]
TYPES = {"str": "text", "int": "integer", "float": "float", "dict": "text"}
ASKED_BY_PLAYBOOKS = ("driver_uninstall",)
"""Booleans of roles that playbooks ask for too, with a default of their own."""
QUESTIONS = [
    pytest.param(template["playbook"], question, id=f"{template['playbook']}-{question['variable']}")
    for template in TEMPLATES
    for question in template["survey"]
]


def specified(variable: str) -> dict[str, Any] | None:
    """What the role says of its variable."""
    for path in (REPOSITORY / "roles").glob("*/meta/argument_specs.yml"):
        options = document(path)["argument_specs"]["main"]["options"]
        if variable in options:
            found: dict[str, Any] = options[variable]
            return found
    if variable == "gpu_mode":
        mode = specified("gpu_plugins_mode")
        assert mode
        default = re.search(r"gpu_mode \| default\('(\w+)'\)", mode["default"])
        assert default
        return mode | {"choices": list(NODE_MODES), "default": default[1]}
    return None


def assert_says_what_else(playbook: str, question: dict[str, Any], default: Any) -> None:
    """The question tells what no answer comes to."""
    text = (REPOSITORY / "playbooks" / playbook).read_text()
    # Ansible asks no inventory how many hosts a play takes at once.
    asks = not re.search(rf"^ +serial: .*\b{question['variable']}\b", text, re.MULTILINE)
    told = question["question_description"]
    start = "Unanswered: as in the inventory, else " if asks else "Unanswered: "
    assert told.startswith(start)
    assert default in ("", {}) or told == f"{start}{default}."


def test_every_playbook_has_a_template() -> None:
    playbooks = sorted(path.name for path in (REPOSITORY / "playbooks").glob("*.yml"))
    assert sorted(template["playbook"] for template in TEMPLATES) == playbooks


@pytest.mark.parametrize(("playbook", "question"), QUESTIONS)
def test_a_question_agrees_with_its_variable(playbook: str, question: dict[str, Any]) -> None:
    name, option = question["variable"], specified(question["variable"])
    if option and option["type"] == "bool" and name not in ASKED_BY_PLAYBOOKS:
        # AWX sends words, which roles take for truths.
        assert question["choices"] == ["true", "false"]
        assert_says_what_else(playbook, question, str(option["default"]).lower())
        return
    if option and option["type"] != "bool":
        if question["type"] == "multiplechoice" and "choices" not in option:
            told = option["description"] if isinstance(option["description"], str) else " ".join(option["description"])
            assert set(question["choices"]) == set(re.findall(r"V\((\w+)\)", told))
        else:
            assert question["type"] == ("multiplechoice" if "choices" in option else TYPES[option["type"]])
            assert question.get("choices") == option.get("choices")
        assert_says_what_else(playbook, question, option["default"])
        return
    playbooks, stem = REPOSITORY / "playbooks", Path(playbook).stem
    own = [playbooks / playbook, *(playbooks / "vars").glob(playbook), *(playbooks / "tasks").glob(f"{stem}_*.yml")]
    text = "".join(path.read_text() for path in own)
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
    # As configure.yml and AWX's own editor of surveys write a question without a default.
    for saved in (question, question | {"default": ""}):
        assert extra_vars([saved], {}) == {}, f"{playbook} is told something that nobody said"
    # An empty answer is left out by AWX's forms, or refused by AWX.
    with pytest.raises(ValueError, match=question["variable"]):
        extra_vars([question], {question["variable"]: ""})


def test_validation_takes_the_driver_of_a_coming_upgrade() -> None:
    asked = {template["playbook"]: {question["variable"] for question in template["survey"]} for template in TEMPLATES}
    coming = {name for name in asked["upgrade_driver.yml"] if name.startswith("driver_")}
    assert asked["validate.yml"] - {"validate_pod"} == coming


def test_surveys_switch_what_a_console_switches() -> None:
    asked = {template["playbook"]: {question["variable"] for question in template["survey"]} for template in TEMPLATES}
    modules = {f"gpu_plugins_{mode}_enabled" for mode in MODES}
    cluster = {"gpu_plugins_taint", "gpu_plugins_cf_crl_enabled", "monitoring_method", "driver_version"}
    assert modules | cluster | {"gpu_plugins_mig_config"} <= asked["site.yml"]
    assert {"gpu_mode", "gpu_plugins_mig_config", "gpu_plugins_drain"} <= asked["switch_mode.yml"]
    assert "validate_pod" in asked["validate.yml"]


PLAYBOOKS = [template["playbook"] for template in TEMPLATES]
HOSTS = ["gpu-b", "gpu-a", "gpu-c"]
KUBECONFIG = yaml.safe_dump({"clusters": [{"name": "c", "cluster": {"server": "https://c"}}], "users": []})
NAMED = {
    "gpu_awx_project_url": "https://git.example.com/gpu/awx.git",
    "gpu_awx_image": "registry.example.com/gpu/accel-kubernetes-ee:0.1.0",
}
CREDENTIAL_TYPES = {"ssh": 1, "vault": 2, "scm": 3, "registry": 4}


def add_cluster(controller: Controller, organization: str) -> None:
    """What the example expects of an organization: an inventory of a cluster, and how to log in to its hosts."""
    number = controller.add("organizations", {"name": organization})["id"]
    inventory = controller.add("inventories", {"name": "GPU cluster", "organization": number})["id"]
    nodes = controller.add("groups", {"name": "gpu_nodes", "inventory": inventory})["id"]
    child = controller.add("groups", {"name": "tesla", "inventory": inventory, "parent": nodes})["id"]
    for host in HOSTS:
        name = host if organization == "Default" else f"{organization}-{host}"
        controller.add("hosts", {"name": name, "inventory": inventory, "groups": [child]})
    for kind, name in (("ssh", "GPU hosts"), ("vault", "GPU vault"), ("scm", "git"), ("registry", "registry")):
        given = {"organization": number, "credential_type": CREDENTIAL_TYPES[kind], "kind": kind}
        controller.add("credentials", {"name": name, "inputs": {}, **given})


@pytest.fixture
def controller() -> Controller:
    """An AWX with two clusters in two organizations, by the same names."""
    found = Controller()
    found.repository = {"": PLAYBOOKS}
    for kind in CREDENTIAL_TYPES:
        found.add("credential_types", {"name": kind, "kind": kind})
    for organization in ("Default", "other"):
        add_cluster(found, organization)
    return found


@pytest.fixture
def kubeconfig(tmp_path: Path) -> str:
    path = tmp_path / "kubeconfig"
    path.write_text(KUBECONFIG)
    return str(path)


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


def steps(controller: Controller, organization: str) -> list[tuple[str, str | None]]:
    """The upgrade workflow of an organization: what runs in turn, and with which limit."""
    workflow = controller.named("workflow_job_templates", organization)["GPU driver upgrade"]
    nodes = [
        node
        for node in controller.objects["workflow_job_template_nodes"].values()
        if node["workflow_job_template"] == workflow["id"]
    ]
    runs = {row["id"]: name for name, row in controller.named("job_templates", organization).items()}
    runs |= {row["id"]: "approval" for row in controller.objects["workflow_approval_templates"].values()}
    later = {number for path, listed in controller.lists.items() if "success_nodes" in path for number in listed}
    found, after = [], [node for node in nodes if node["id"] not in later]
    while after:
        (node,) = after
        assert node["all_parents_must_converge"], "a node put before it in AWX would start it alone"
        found.append((runs[node["unified_job_template"]], node.get("limit")))
        numbers = controller.lists.get(f"{node['url']}success_nodes/", [])
        after = [other for other in nodes if other["id"] in numbers]
    return found


@pytest.mark.ci
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"gpu_awx_canary": "gpu_nodes[0]"}, "gpu_awx_canary is 'gpu_nodes[0]', a pattern"),
        ({"gpu_awx_inventory": "no such"}, "AWX's organization 'Default' has no inventory 'no such'; make it"),
        ({"gpu_awx_kubeconfig_file": ""}, "gpu_awx_kubeconfig_file is empty, and AWX has no kubeconfig"),
    ],
    ids=["index", "inventory", "kubeconfig"],
)
def test_a_first_run_that_cannot_work_makes_nothing(
    controller: Controller, kubeconfig: str, given: dict[str, Any], sentence: str
) -> None:
    with serving(controller) as address:
        said = configure(address, 2, **(NAMED | {"gpu_awx_kubeconfig_file": kubeconfig} | given))
    (told,) = re.findall(r'"msg": "(.*)"', said)
    assert told.startswith(sentence)
    assert told.count(". ") == 0
    assert {method for method, _ in controller.requests} == {"GET"}


@pytest.mark.ci
def test_two_clusters_in_two_organizations_by_the_same_names(controller: Controller, kubeconfig: str) -> None:
    given = NAMED | {"gpu_awx_more_credentials": ["GPU vault"]}
    with serving(controller) as address:
        for organization in ("Default", "other"):
            named = given | {"gpu_awx_organization": organization}
            assert "https://c" not in configure(address, gpu_awx_kubeconfig_file=kubeconfig, **named)
        assert "changed=0" in configure(address, gpu_awx_organization="other", **given)
    (kind,) = [row for row in controller.objects["credential_types"].values() if row["kind"] == "cloud"]
    assert kind["name"] == "accel.kubernetes"
    assert kind["injectors"] == {
        "file": {"template": "{{ kubeconfig }}"},
        "extra_vars": {"gpu_plugins_kubeconfig": "{{ tower.filename }}"},
    }
    for organization, canary in (("Default", "gpu-a"), ("other", "other-gpu-a")):
        credentials = controller.named("credentials", organization)
        assert controller.secrets[credentials["GPU cluster"]["id"]] == {"kubeconfig": KUBECONFIG.rstrip()}
        made = controller.named("job_templates", organization)
        assert list(made) == [template["name"] for template in TEMPLATES]
        for template in TEMPLATES:
            found = made[template["name"]]
            assert found["playbook"] == template["playbook"]
            assert found["project"] == controller.named("projects", organization)["accel.kubernetes"]["id"]
            assert found["inventory"] == controller.named("inventories", organization)["GPU cluster"]["id"]
            assert found["ask_limit_on_launch"] is (template["playbook"] != "rollout.yml")
            assert found["ask_verbosity_on_launch"] is True
            numbers = [credentials[name]["id"] for name in ("GPU hosts", "GPU cluster", "GPU vault")]
            assert sorted(controller.lists[f"{found['url']}credentials/"]) == sorted(numbers)
            assert found["survey_enabled"] is True
            asked = controller.surveys[f"{found['url']}survey_spec/"]["spec"]
            assert [one["variable"] for one in asked] == [one["variable"] for one in template["survey"]]
            assert extra_vars(asked, {}) == {}
            assert all(can_be_edited(question) for question in asked)
        workflow = controller.named("workflow_job_templates", organization)["GPU driver upgrade"]
        asked = controller.surveys[f"{workflow['url']}survey_spec/"]["spec"]
        assert extra_vars(asked, {}) == {}
        assert extra_vars(asked, {"driver_branch": "590"}) == {"driver_branch": "590"}
        assert steps(controller, organization) == [
            ("GPU validate", None),
            ("GPU upgrade driver", canary),
            ("GPU validate", canary),
            ("approval", None),
            ("GPU upgrade driver", None),
            ("GPU validate", None),
        ]
    approvals = controller.objects["workflow_approval_templates"].values()
    assert [row["name"] for row in approvals] == [f"Approve the rest after {name}gpu-a" for name in ("", "other-")]
    assert all("upgraded_drivers" in row["description"] for row in approvals)


@pytest.mark.ci
def test_a_later_run_syncs_a_project_whose_first_sync_failed(controller: Controller, kubeconfig: str) -> None:
    given = NAMED | {"gpu_awx_kubeconfig_file": kubeconfig, "gpu_awx_project_branch": "ours"}
    given |= {"gpu_awx_project_credential": "git", "gpu_awx_image_credential": "registry"}
    with serving(controller) as address:
        assert "Project update failed" in configure(address, 2, **given)
        assert "job_templates" not in controller.objects
        controller.repository["ours"] = PLAYBOOKS
        configure(address, **given)
    assert len(controller.named("job_templates")) == len(TEMPLATES)
    credentials = controller.named("credentials", "Default")
    assert controller.named("projects")["accel.kubernetes"]["credential"] == credentials["git"]["id"]
    environment = controller.named("execution_environments")["accel.kubernetes"]
    assert environment["credential"] == credentials["registry"]["id"]


@pytest.mark.ci
def test_a_repository_without_a_new_playbook_is_told(controller: Controller, kubeconfig: str) -> None:
    controller.repository[""] = [name for name in PLAYBOOKS if name != "report.yml"]
    with serving(controller) as address:
        said = configure(address, 2, **(NAMED | {"gpu_awx_kubeconfig_file": kubeconfig}))
    assert f"{NAMED['gpu_awx_project_url']} has no report.yml: copy examples/awx/project to its top again" in said
    assert "job_templates" not in controller.objects
