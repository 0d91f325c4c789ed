# SPDX-License-Identifier: Apache-2.0
"""What the example makes in AWX, and what it refuses before it makes anything."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given as with_given
from hypothesis import strategies as st

PATH = Path(__file__).parents[2] / "examples/awx/filter_plugins/gpu_awx.py"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("gpu_awx", PATH)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_awx"] = module
    spec.loader.exec_module(module)
    return module


AWX = load()
KUBECONFIG = yaml.safe_dump({"clusters": [{"name": "c", "cluster": {"server": "https://c"}}]})
OURS, OTHERS = 7, 8
GIVEN = {
    "project_url": "https://git.example.com/gpu/awx.git",
    "image": "registry.example.com/ee:1",
    "organization": "Default",
    "inventory": "GPU cluster",
    "machine_credential": "GPU hosts",
    "more_credentials": [],
    "project_credential": "",
    "image_credential": "",
    "kubeconfig_file": "/k",
    "kubeconfig": KUBECONFIG,
}


def credential(number: int, name: str, kind: str | None, organization: int | None = OURS) -> dict[str, Any]:
    return {"id": number, "name": name, "kind": kind, "organization": organization}


def named(*names: str) -> list[dict[str, Any]]:
    return [{"name": name} for name in names]


FOUND: dict[str, Any] = {
    "users": [{"username": "admin", "is_superuser": True}],
    "organizations": [{"id": OURS, "name": "Default"}],
    "inventories": [{"id": 3, "name": "GPU cluster"}],
    "nodes": named("gpu-a", "gpu-b", "gpu-c"),
    "canary_hosts": [],
    "credentials": [credential(1, "GPU hosts", "ssh"), credential(2, "GPU hosts", "ssh", None)],
    "kubeconfigs": [],
}


def decide(given: dict[str, Any] | None = None, **found: Any) -> Any:
    return AWX.plan(GIVEN | (given or {}), FOUND | found)


def refused(given: dict[str, Any] | None = None, **found: Any) -> str:
    """The one sentence."""
    (sentence,) = decide(given, **found).refusals
    return str(sentence)


def test_canary_is_the_first_node_by_name_unless_one_is_named() -> None:
    found = decide()
    assert (found.refusals, found.canary, found.first, found.rest) == ([], "gpu-a", ["gpu-a"], ["gpu-b", "gpu-c"])
    assert decide({"canary": "gpu-c"}).rest == ["gpu-a", "gpu-b"]


def test_a_group_is_a_canary_of_its_gpu_nodes() -> None:
    found = decide({"canary": "early"}, canary_hosts=named("gpu-b", "gpu-a", "login"))
    assert (found.refusals, found.canary, found.first, found.rest) == ([], "early", ["gpu-a", "gpu-b"], ["gpu-c"])


def test_a_cluster_of_one_node_has_a_canary_too() -> None:
    found = decide(nodes=named("gpu-a"))
    assert (found.refusals, found.canary, found.rest) == ([], "gpu-a", [])


@pytest.mark.parametrize("canary", ["", " ", None])
def test_an_empty_canary_is_refused(canary: str | None) -> None:
    assert "before anybody approves" in refused({"canary": canary})


@pytest.mark.parametrize(
    "canary",
    [
        *("gpu_nodes[0]", "gpu_nodes[-1]", "gpu_nodes[0:1]", "gpu-*", "gpu-?", "gpu-a:gpu-b", "gpu-a,gpu-b", "~gpu-.*"),
        *("!gpu-a", "gpu_nodes:&early", "@retry", "gpu-a gpu-b"),
    ],
)
def test_a_pattern_is_no_canary(canary: str) -> None:
    assert f"gpu_awx_canary is '{canary}', a pattern" in refused({"canary": canary})


@with_given(st.text(min_size=1), st.sampled_from("[]*?:,&!~@"), st.text())
def test_no_pattern_of_ansible_passes_for_a_name(before: str, sign: str, after: str) -> None:
    assert decide({"canary": before + sign + after}, canary_hosts=named("gpu-a")).refusals


@pytest.mark.parametrize("nodes", [["gpu-a", "gpu-b", "gpu-c"], ["gpu-a", "gpu-b", "gpu-c", "login"]])
def test_a_canary_that_is_all_nodes_leaves_none_to_approve(nodes: list[str]) -> None:
    assert "leaves none to approve" in refused({"canary": "gpu_nodes"}, canary_hosts=named(*nodes))


@pytest.mark.parametrize("hosts", [[], ["login"]])
def test_a_canary_without_a_gpu_node_is_refused(hosts: list[str]) -> None:
    assert "no GPU node of that name or group" in refused({"canary": "gpu-x"}, canary_hosts=named(*hosts))


@pytest.mark.parametrize(
    ("given", "found", "sentence"),
    [
        ({"project_url": " "}, {}, "gpu_awx_project_url is empty"),
        ({"image": ""}, {}, "gpu_awx_image is empty"),
        ({}, {"organizations": []}, "AWX has no organization 'Default'"),
        ({}, {"inventories": [], "nodes": []}, "no inventory 'GPU cluster'"),
        ({}, {"nodes": []}, "no enabled host in the group gpu_nodes"),
        (
            {},
            {"users": [{"username": "alice", "is_superuser": False}]},
            "AWX's user 'alice' is no system administrator",
        ),
        ({"machine_credential": "x"}, {}, "no credential of the kind ssh named 'x'"),
        ({"machine_credential": ""}, {}, "no credential of the kind ssh named ''"),
        ({"project_credential": "GPU hosts"}, {}, "no credential of the kind scm named 'GPU hosts'"),
        ({"image_credential": "x"}, {}, "name another in gpu_awx_image_credential"),
        ({"more_credentials": "vault"}, {}, "no credential named 'vault'"),
        ({"kubeconfig_file": "", "kubeconfig": ""}, {}, "AWX has no kubeconfig of an earlier run"),
        (
            {"kubeconfig_file": "", "kubeconfig": ""},
            {"kubeconfigs": [{"inputs": {"kubeconfig": ""}}]},
            "AWX has no kubeconfig of an earlier run",
        ),
        ({"kubeconfig": ""}, {}, "gpu_awx_kubeconfig_file /k holds no cluster"),
        ({"kubeconfig": "a: ]"}, {}, "gpu_awx_kubeconfig_file /k holds no cluster"),
    ],
)
def test_what_cannot_work_is_refused_in_one_sentence(
    given: dict[str, Any], found: dict[str, Any], sentence: str
) -> None:
    assert sentence in refused(given, **found)


@pytest.mark.parametrize("key", ["client-certificate", "client-key", "tokenFile", "exec"])
def test_a_kubeconfig_that_needs_its_machine_is_refused(key: str) -> None:
    kubeconfig = yaml.safe_load(KUBECONFIG) | {"users": [{"name": "u", "user": {key: {"command": "aws"}}}]}
    assert f"jobs in AWX do not have ({key})" in refused({"kubeconfig": yaml.safe_dump(kubeconfig)})


def test_a_later_run_keeps_the_kubeconfig() -> None:
    kept = [{"inputs": {"kubeconfig": "$encrypted$"}}]
    assert decide({"kubeconfig_file": "", "kubeconfig": ""}, kubeconfigs=kept).refusals == []


def test_credentials_are_the_organizations_own_or_of_none() -> None:
    others = [credential(10, "git", "scm", OTHERS), credential(11, "git", "scm", None), credential(12, "git", None)]
    found = decide(
        {"more_credentials": ["vault"], "project_credential": "git"},
        credentials=[*FOUND["credentials"], *others, credential(13, "vault", "vault")],
    )
    assert (found.refusals, found.credentials, found.project_credential) == ([], [1, 13], 11)


def test_a_credential_that_is_there_twice_is_refused() -> None:
    twice = [credential(5, "GPU hosts", "ssh", None), credential(6, "GPU hosts", "ssh", None)]
    assert "has 2 credentials of the kind ssh named 'GPU hosts'; rename all but one" in refused(credentials=twice)
