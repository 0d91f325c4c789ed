# SPDX-License-Identifier: Apache-2.0
"""What validate.yml says a person has to bring before the first site.yml, and the command that brings it."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.playbooks import readiness
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.finding import Finding
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.inventory import Inventory

from odd_values import ODD

PYTHON = "/usr/bin/python3"
IMAGE = {"gpu_plugins_image": "registry.example.com/kube-accel:1"}


def package(version: str, wanted: str = ">=24.2") -> dict[str, str]:
    return {"name": "kubernetes", "wanted": wanted, "version": version}


def said(findings: Any) -> list[tuple[str, str]]:
    """Name and remedy of each, all of which block."""
    found = list(findings)
    assert {finding.verdict for finding in found} <= {"blocked"}
    return [(finding.what, finding.remedy) for finding in found]


def looked(variables: dict[str, Any] = IMAGE, **answers: Any) -> list[Finding]:
    inventory = Inventory({"gpu-a": variables}, {"gpu_nodes": ["gpu-a"]})
    return list(readiness.controller(inventory, {"python": PYTHON} | answers))


@pytest.mark.parametrize("version", ["24.2", "24.2.0", "36.0.2", "unknown"])
def test_what_is_new_enough_is_not_missing(version: str) -> None:
    assert looked(packages=[package(version)], collections=[package(version)]) == []


def test_packages_and_collections_come_with_their_commands() -> None:
    missing, old = package(""), package("5.0.1") | {"name": "jmespath"}
    found = looked(packages=[missing, old], collections=[package("4.0.0", ">=5.0.0") | {"name": "kubernetes.core"}])
    assert said(found) == [
        ("Python packages", f"{PYTHON} -m pip install 'kubernetes>=24.2' 'jmespath>=24.2'"),
        ("collections", "ansible-galaxy collection install --upgrade 'kubernetes.core:>=5.0.0'"),
    ]
    assert found[0].found == (f"kubernetes is not installed, jmespath is 5.0.1, but must be >=24.2, for {PYTHON}.")


@pytest.mark.parametrize(
    ("variables", "wheels", "missing"),
    [
        ({}, [], "No variable names an image"),
        (
            {"kube_accel_image_assemble": "/home/admin/.build"},
            [],
            "'/home/admin/.build', where 'make image' left nothing",
        ),
        ({"kube_accel_image_assemble": "/home/admin/.build"}, ["kube_accel-1.whl"], ""),
        ({"kube_accel_image_assemble": {"amd64": {"base": "base.tar"}}}, [], ""),
        (IMAGE, [], ""),
    ],
    ids=["none", "empty", "made", "parts", "named"],
)
def test_image_of_the_daemons_is_named_and_there(variables: Any, wheels: list[str], missing: str) -> None:
    found = looked(variables, wheels=wheels)
    assert [missing in finding.found and "make image" in finding.remedy for finding in found] == [True] * bool(missing)


def test_api_server_that_does_not_answer_names_the_kubeconfig() -> None:
    assert list(readiness.cluster({"message": "", "nodes": []})) == []
    [finding] = readiness.cluster({"message": "refused.\nTwice", "kubeconfig": "/root.conf"})
    assert finding.found == "It did not answer: refused. Twice."
    assert finding.remedy.startswith("kubectl --kubeconfig /root.conf get nodes must work")
    [finding] = readiness.cluster({"message": "refused", "context": "prod"})
    assert finding.remedy.startswith("kubectl --kubeconfig ~/.kube/config --context prod get nodes")


@pytest.mark.parametrize(
    ("answers", "found", "remedy"),
    [
        (
            {"validate_reached": {"unreachable": True, "msg": "no route"}},
            "cannot be reached: no route.",
            "ssh 10.0.0.7",
        ),
        ({"validate_reached": {"rc": 127, "module_stderr": "python3: not found\n"}}, "not found.", "raw"),
        ({"validate_reached": {"rc": 1, "msg": "odd"}}, "Python does not run on it: odd.", "ansible gpu-a -i"),
        (
            {"validate_reached": {"ping": "pong"}, "validate_root": {"msg": "Missing sudo password"}},
            "The user cannot become root on it: Missing sudo password.",
            "--ask-become-pass",
        ),
        (
            {"validate_reached": {"ping": "pong"}, "validate_root": {"unreachable": True, "msg": "gone"}},
            "cannot be reached: gone.",
            "ssh",
        ),
    ],
    ids=["unreachable", "no python", "odd", "no root", "lost"],
)
def test_host_on_which_tasks_do_not_run_has_a_reason(answers: Any, found: str, remedy: str) -> None:
    [finding] = readiness.host("gpu-a", {"ansible_host": "10.0.0.7"} | answers)
    assert found in finding.found
    assert remedy in finding.remedy


def test_host_on_which_tasks_run_lacks_nothing() -> None:
    assert not [*readiness.host("gpu-a", {"validate_reached": {"ping": "pong"}, "validate_root": {"rc": 0}})]
    assert not [*readiness.host("gpu-a", {})]


def test_host_that_is_no_node_is_to_join() -> None:
    assert not [*readiness.node("gpu-a", {}, ["gpu-a"])]
    assert not [*readiness.node("gpu-a", {"gpu_plugins_node_name": "n1"}, ["n1"])]
    [finding] = readiness.node("gpu-a", {"gpu_plugins_node_name": "n1"}, ["gpu-a"])
    assert "no node 'n1'" in finding.found
    assert "kubeadm token create" in finding.remedy


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_odd_answers_raise_nothing(odd: Any) -> None:
    looked({"kube_accel_image_assemble": odd})
    list(readiness.cluster({"message": odd, "kubeconfig": odd}))
    list(readiness.host("gpu-a", {"validate_reached": odd, "validate_root": odd}))
