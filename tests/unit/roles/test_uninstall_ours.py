# SPDX-License-Identifier: Apache-2.0
"""What uninstall removes of a directory that a variable names and others may use as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.template import trust_as_template

from .conftest import ROLES, Evaluate, rendered

KEY = "0123456789abcdef" * 2
STATE = (
    *(
        "ledger.db",
        "ledger.db-wal",
        "ledger.db-shm",
        "ledger.db.damaged-1700000000",
        "ledger.db.moved-1700000000",
        "admin.sock",
        "handover.sock",
    ),
    *(
        "configuration.json",
        "health.json",
        "mig.json",
        "reported.json",
        ".reported.json.0a1b2c3d",
        ".admin.sock.0a1b2c",
    ),
    *("tellers", "mig.lock", "modes.lock", "mode-vgpu.lock", "containers/.lock", f"containers/{KEY}/policy"),
    f"containers/.spare-0a1b2c3d/{KEY[:16]}/state",
    *(f"shim/{KEY}/libcuda.so.1", "shim/.0a1b2c3d/libcuda.so.1"),
)


def put(tree: Path, *names: str) -> None:
    for name in names:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("")


def left(tree: Path, removed: list[str]) -> set[str]:
    """The files that stay; what is removed is removed with all below it."""
    gone = [Path(tree, name) for name in removed]
    kept = [path for path in tree.rglob("*") if not {path, *path.parents} & {*gone}]
    return {str(path.relative_to(tree)) for path in kept if not path.is_dir()}


def listed(tree: Path, depth: int = 9) -> dict[str, Any]:
    """As ``find`` says it."""
    paths = [path for path in tree.rglob("*") if len(path.relative_to(tree).parts) <= depth]
    return {"files": [{"path": str(path)} for path in paths]}


def state(evaluate: Evaluate, tree: Path) -> list[str]:
    registered = {"gpu_plugins_state_dir": str(tree), "__gpu_plugins_state_found": listed(tree, 2)}
    found: list[str] = evaluate("gpu_plugins", "__gpu_plugins_state_removed", {}, **registered)
    return found


def test_of_a_directory_with_the_plugins_state_only_that_goes(evaluate: Evaluate, tmp_path: Path) -> None:
    theirs = {"dpkg/status", "containers/storage/db.sql", "notes.json"}
    put(tmp_path, *theirs)
    assert state(evaluate, tmp_path) == []
    put(tmp_path, *STATE)
    removed = state(evaluate, tmp_path)
    assert left(tmp_path, removed) == theirs
    assert {"shim", "containers", ""} & {*removed} == {"shim"}


def test_a_directory_of_the_plugins_own_goes_with_its_state(evaluate: Evaluate, tmp_path: Path) -> None:
    put(tmp_path, *STATE)
    assert state(evaluate, tmp_path)[-1] == ""


def test_a_directory_that_is_a_mount_of_others_stays(evaluate: Evaluate, tmp_path: Path) -> None:
    put(tmp_path, *STATE)
    registered = {"gpu_plugins_state_dir": str(tmp_path), "__gpu_plugins_state_found": listed(tmp_path, 2)}
    registered["__gpu_plugins_accounts"] = {"foreign": True}
    removed = evaluate("gpu_plugins", "__gpu_plugins_state_removed", {}, **registered)
    assert {"containers", ""} & {*removed} == set()
    assert left(tmp_path, removed) == set()


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
    assert evaluate("gpu_plugins", "__gpu_plugins_still_serving", {}, **words) == serve


def removal() -> dict[str, Any]:
    """The task that removes the cluster's objects."""
    tasks = yaml.safe_load((ROLES / "gpu_plugins/tasks/uninstall.yml").read_text())
    (found,) = (task for each in tasks for task in each.get("block", ()) if "objects.yml.j2" in task.get("loop", ""))
    return dict(found)


def test_what_earlier_settings_made_goes_too() -> None:
    def names(**words: Any) -> set[tuple[str, str]]:
        # Network policies go by a task of their own.
        words = {"__gpu_plugins_runtime_classes": {}, "__gpu_plugins_network_wanted": False} | words
        made = rendered("gpu_plugins", "objects.yml.j2", **words)
        return {(item["kind"], item["metadata"]["name"]) for item in made}

    once = names(gpu_plugins_configs={"four": {}}, gpu_plugins_mig_label=True)
    assert names() < once
    assert names(**removal()["vars"]) == once


@pytest.mark.parametrize("kind", ["DaemonSet", "ConfigMap"])
def test_an_object_of_others_with_the_name_of_ours_stays(evaluate: Evaluate, kind: str) -> None:
    def removed(kind: str, *ours: tuple[str, str]) -> bool:
        found = [{"kind": kind, "metadata": {"name": name}} for kind, name in ours]
        kinds = ("DaemonSet", "ConfigMap")
        answers = [{"resources": [each for each in found if each["kind"] == kind]} for kind in kinds]
        words = {
            "item": {"kind": kind, "metadata": {"name": "a"}},
            "__gpu_plugins_serving": {"resources": []},
            "__gpu_plugins_ours_left": {"results": answers},
            "ansible_check_mode": False,
            "ansible_play_hosts": [],
        }
        conditions = [trust_as_template(f"{{{{ {each} }}}}") for each in removal()["when"]]
        return all(evaluate("gpu_plugins", "holds", {}, holds=condition, **words) for condition in conditions)

    assert not removed(kind)
    assert not removed(kind, (kind, "b"), ("DaemonSet" if kind == "ConfigMap" else "ConfigMap", "a"))
    assert removed(kind, (kind, "a"))
    assert removed("ClusterRole")
