# SPDX-License-Identifier: Apache-2.0
"""What uninstall removes of a directory that a variable names and others may use as well."""

from __future__ import annotations

from typing import Any

import pytest

from yaml_files import document

from .conftest import ROLES, Evaluate, keeping, rendered


@pytest.mark.parametrize(
    ("check", "named", "serve"),
    [(True, {"gpu_plugins_node_name": "a.example.com"}, ["b.example.com"]), (False, {}, ["a.example.com"])],
)
def test_a_check_counts_nodes_by_their_own_names(
    evaluate: Evaluate, check: bool, named: dict[str, str], serve: list[str]
) -> None:
    """A run has taken the labels already."""
    labelled = {"a.example.com", "b"} | {*serve} if check else {*serve}
    words = {
        "ansible_check_mode": check,
        "ansible_play_hosts": ["a", "b"],
        "hostvars": {"a": named, "b": {}},
        "__gpu_plugins_serving": {"resources": [{"metadata": {"name": name}} for name in sorted(labelled)]},
    }
    assert evaluate("gpu_plugins", "__gpu_plugins_uninstall", {}, **words)["serving"] == serve


def removal() -> dict[str, Any]:
    """The task that removes the cluster's objects."""
    tasks = document(ROLES / "gpu_plugins/tasks/uninstall.yml")
    loop = "{{ __gpu_plugins_uninstall.objects }}"
    (found,) = (task for each in tasks for task in each.get("block", ()) if task.get("loop") == loop)
    return dict(found)


def test_what_earlier_settings_made_goes_too() -> None:
    def names(**words: Any) -> set[tuple[str, str]]:
        # Network policies go by a task of their own.
        words = {"__gpu_plugins_runtime_classes": {}, "gpu_plugins_network_policy_enabled": False} | words
        made = rendered("gpu_plugins", "objects.yml.j2", **words)
        return {(item["kind"], item["metadata"]["name"]) for item in made}

    shares = {"__gpu_plugins_kept_slice": keeping(True), "gpu_plugins_dra_fixed_shares": 4}
    once = names(gpu_plugins_configs={"four": {}}, gpu_plugins_mig_label=True, gpu_mode="dra", **shares)
    assert names() < once
    assert names(__gpu_plugins_removed=removal()["vars"]["__gpu_plugins_removed"]) == once


@pytest.mark.parametrize("kind", ["DaemonSet", "ConfigMap"])
def test_an_object_of_others_with_the_name_of_ours_stays(evaluate: Evaluate, kind: str) -> None:
    def removed(kind: str, *ours: tuple[str, str]) -> bool:
        found = [{"kind": kind, "metadata": {"name": name}} for kind, name in ours]
        kinds = ("DaemonSet", "ConfigMap")
        answers = [{"resources": [each for each in found if each["kind"] == kind]} for kind in kinds]
        words = {
            "__gpu_plugins_all_objects": [{"kind": kind, "metadata": {"name": "a"}}],
            "__gpu_plugins_serving": {"resources": []},
            "__gpu_plugins_ours_left": {"results": answers},
            "ansible_check_mode": False,
            "ansible_play_hosts": [],
        }
        return bool(evaluate("gpu_plugins", "__gpu_plugins_uninstall", {}, **words)["objects"])

    assert not removed(kind)
    assert not removed(kind, (kind, "b"), ("DaemonSet" if kind == "ConfigMap" else "ConfigMap", "a"))
    assert removed(kind, (kind, "a"))
    assert removed("ClusterRole")
