# SPDX-License-Identifier: Apache-2.0
"""The commands kubectl inspect gpu and cgpu as the role scheduler writes them to a host, run by its Python alone."""

from __future__ import annotations

import ast
import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.filter.kubectl_plugin import kubectl_plugin, sources
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.kubectl_plugin import COMMANDS, OLDEST

from unit.plugins.module_utils.shared.test_gpu_view import SHARE, TRAIN, node, plugin, pod
from unit.plugins.scheduler_asked import Asked

KUBECTL = """#!/bin/sh
case "$*" in
  *"get nodes "*) exec cat "$0.nodes" ;;
  *"get pods "*) exec cat "$0.pods" ;;
esac
"""
PYTHON = {"executable": sys.executable, "version": {"major": 3, "minor": 11}}


def planned(found: dict[str, str] | None = None, python: Any = PYTHON, **given: Any) -> list[dict[str, str]]:
    """What becomes of the commands where there are files with these texts, by path."""
    asked = Asked(seen={"python": python}, **given)
    answers = [
        {"item": path, "content": base64.b64encode(text.encode()).decode()} for path, text in (found or {}).items()
    ]
    return kubectl_plugin(asked.asked, asked.hostvars, asked.groups, {"results": answers})


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A directory in PATH with both commands, and a kubectl that knows two nodes."""
    for command in planned(host_root=f"{tmp_path}/", kubectl_plugin_dir="/"):
        Path(command["path"]).write_text(command["text"])
        Path(command["path"]).chmod(0o755)
    (tmp_path / "kubectl").write_text(KUBECTL)
    (tmp_path / "kubectl").chmod(0o755)
    nodes = [node("a", {0: (TRAIN,)}), node("b", {})]
    pods = [pod("train", SHARE, "a"), pod("late", SHARE), plugin("a"), plugin("b")]
    for name, items in (("nodes", nodes), ("pods", pods)):
        (tmp_path / f"kubectl.{name}").write_text(json.dumps({"items": items}))
    return tmp_path


def run(host: Path, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    # Neither the collection nor what a caller's environment names is there to import.
    environment = {"PATH": f"{host}:{os.defpath}", "PYTHONPATH": str(host / "theirs")}
    return subprocess.run([host / name, *words], env=environment, capture_output=True, text=True, cwd="/", check=False)


def test_command_shows_gpus_and_pending_pods(host: Path) -> None:
    done = run(host, "kubectl-inspect-gpu")
    assert done.returncode == 0, done.stderr
    assert "8/104" in done.stdout
    assert "late" in done.stdout.partition("PENDING")[2]
    told = json.loads(run(host, "kubectl-inspect-gpu", "-o", "json").stdout)
    assert [each["name"] for each in told["nodes"]] == ["a", "b"]
    assert run(host, "kubectl-inspect-gpu", "--help").stdout.startswith("usage: kubectl inspect gpu ")
    assert json.loads(run(host, "kubectl-inspect-cgpu", "-o", "json").stdout)["nodes"] == []


def test_command_imports_no_module_of_its_caller(host: Path) -> None:
    (host / "theirs").mkdir()
    for name in ("argparse", "kube_accel", "json"):
        (host / "theirs" / f"{name}.py").write_text("raise SystemExit('theirs')")
    assert run(host, "kubectl-inspect-gpu").returncode == 0


@pytest.mark.parametrize("name", sources())
def test_modules_are_of_the_oldest_python_and_its_library(name: str) -> None:
    tree = ast.parse(sources()[name], feature_version=OLDEST)
    imported = {alias.name for each in ast.walk(tree) if isinstance(each, ast.Import) for alias in each.names}
    imported |= {each.module or "" for each in ast.walk(tree) if isinstance(each, ast.ImportFrom) and not each.level}
    assert {each.split(".")[0] for each in imported} <= sys.stdlib_module_names | {"kube_accel"}
    assert not name.startswith("kube_accel.model"), "needs a later Python"


def test_text_has_nothing_that_ansible_takes_for_an_expression() -> None:
    for command in planned():
        assert [line for line in command["text"].splitlines() if re.search(r"\{[{%#]", line)] == []


def test_second_run_writes_the_same_text() -> None:
    first = planned()
    assert [command["state"] for command in first] == ["present", "present"]
    assert [command["path"] for command in first] == [f"/usr/local/bin/{name}" for name in COMMANDS]
    assert planned({command["path"]: command["text"] for command in first}) == first


def test_file_of_somebody_else_stays() -> None:
    theirs = {"/usr/local/bin/kubectl-inspect-gpu": "#!/usr/bin/python3\nimport theirs\n"}
    for given in ({}, {"kubectl_plugin_enabled": False}, {"removing": True}):
        assert planned(theirs, **given)[0] == {"path": next(iter(theirs)), "state": "foreign", "text": ""}


@pytest.mark.parametrize("given", [{"kubectl_plugin_enabled": "no"}, {"removing": True}])
def test_commands_go_where_they_are_not_wanted(given: dict[str, Any]) -> None:
    ours = {command["path"]: command["text"] for command in planned()}
    assert [command["state"] for command in planned(ours, **given)] == ["absent", "absent"]


def test_controller_gets_no_commands() -> None:
    assert planned(host="localhost", layout="secondary") == []


@pytest.mark.parametrize(("minor", "enabled", "refused"), [(7, True, True), (8, True, False), (7, False, False)])
def test_python_that_is_too_old_is_refused(minor: int, enabled: bool, refused: bool) -> None:
    python = {"executable": "/usr/bin/python3", "version": {"major": 3, "minor": minor}}
    found = Asked(seen={"python": python}, kubectl_plugin_enabled=enabled).refusals()
    messages = [each["message"] for each in found if each["code"] == "kubectl_plugin_python"]
    assert bool(messages) is refused
    if refused:
        assert "needs Python 3.8, and /usr/bin/python3 is 3.7" in messages[0]
        assert "scheduler_kubectl_plugin_enabled=false" in messages[0]


def test_host_whose_python_is_not_known_gets_the_usual_one() -> None:
    assert planned(python={})[0]["text"].startswith("#!/usr/bin/python3 -I\n")
    assert not [each for each in Asked().refusals() if each["code"] == "kubectl_plugin_python"]
