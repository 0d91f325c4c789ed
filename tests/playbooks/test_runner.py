# SPDX-License-Identifier: Apache-2.0
"""Each playbook as AWX runs it: from the example's project, by ansible-runner, with no terminal, and what it leaves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from sim.cluster import NodeSpec, Spec

from .conftest import REPOSITORY, Playbooks, Start

PROJECT = REPOSITORY / "examples/awx/project"
CANARY = "gpu-a"
OLD, NEW = "570.195.03", "580.95.05"
LIMIT = 64 * 1024
"""Bytes that the results of a playbook may have on a cluster of this size."""


@dataclass(frozen=True)
class Job:
    """How a playbook is run, and what it tells whoever comes after."""

    result: str
    has: Any
    """What the result is, or of a dictionary some of its keys."""
    variables: dict[str, Any] = field(default_factory=dict)
    refused: str = ""
    """Why it does nothing on this cluster, and leaves no result."""


# In this order: the cluster is served, looked at, changed, and given back.
JOBS = {
    "site": Job(
        "gpu_site",
        {"check": False, "nodes": {"gpu-a": {"mode": "pgpu", "driver": OLD, "gpus": 1, "reboot_required": False}}},
        {"driver_runfile": OLD},
    ),
    "validate": Job("gpu_validation", []),
    "inspect": Job("gpu_inspection", {"problems": []}),
    "diagnose": Job("gpu_diagnosis", {"problems": []}),
    "report": Job("gpu_usage_report", {"problems": []}),
    "benchmark": Job("gpu_benchmark", {"problems": []}, {"benchmark_node": "gpu-a", "benchmark_launches": 100}),
    "validate_share": Job(
        "gpu_share_validation",
        {},
        {"validate_share_node": "gpu-a"},
        "node gpu-a serves mode pgpu, in which",
    ),
    "upgrade_driver": Job("upgraded_drivers", {"gpu-a": {"from": OLD, "to": NEW}}, {"driver_runfile": NEW}),
    "rollout": Job(
        "gpu_rollout", {"result": "kept", "reason": ""}, {"gpu_plugins_log_level": "debug", "rollout_soak": 0}
    ),
    "switch_mode": Job("switched_modes", {}),
    "migrate": Job("gpu_migration", {"peers": [], "notes": []}),
    "uninstall": Job("gpu_uninstall", {"check": False, "nodes": ["gpu-a"], "driver": False}),
}


@dataclass(frozen=True)
class Ended:
    """What a job left."""

    code: int
    output: str
    events: list[dict[str, Any]]

    @property
    def results(self) -> dict[str, Any]:
        """What AWX calls the job's artifacts."""
        (told,) = [event["event_data"] for event in self.events if event["event"] == "playbook_on_stats"]
        data: dict[str, Any] = told["artifact_data"]
        return data


def run(books: Playbooks, directory: Path, book: str, variables: dict[str, Any], *options: str) -> Ended:
    """Runs it as a process of a session of its own, which has no terminal to ask at."""
    given = {"scheduler_layout": "none", **variables}
    if version := given.get("driver_runfile"):
        given["driver_runfile"] = str(next(books.cluster.root.glob(f"NVIDIA-Linux-*-{version}.run")))
    given["driver_reload_plugin_socket"] = (
        f"{books.cluster.root}/{{{{ inventory_hostname }}}}/var/lib/kube-accel/admin.sock"
    )
    shutil.copytree(PROJECT, directory / "project")
    (directory / "env").mkdir()
    (directory / "inventory").mkdir()
    shutil.copyfile(books.cluster.root / "inventory.yml", directory / "inventory/hosts.yml")
    settings = {"idle_timeout": 600, "job_timeout": 1800}
    envvars = {"ANSIBLE_COLLECTIONS_PATH": str(books.collections)}
    for name, content in {"extravars": given, "settings": settings, "envvars": envvars}.items():
        (directory / "env" / name).write_text(yaml.safe_dump(content))
    program = Path(sys.executable).with_name("ansible-runner")
    done = subprocess.run(
        [program, "run", directory, "--playbook", f"{book}.yml", "--ident", "job", *options],
        env=os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
        check=False,
    )
    left = directory / "artifacts/job"
    assert (left / "rc").exists(), done.stderr
    assert int((left / "rc").read_text()) == done.returncode
    events = [json.loads(path.read_text()) for path in (left / "job_events").glob("*.json")]
    return Ended(done.returncode, (left / "stdout").read_text(), sorted(events, key=lambda event: event["counter"]))


@pytest.fixture(scope="module")
def books(start: Start) -> Playbooks:
    return start(Spec("control", (NodeSpec("gpu-a", "t4"),), driver_versions=(OLD, NEW)))


def test_the_project_has_every_playbook_and_each_is_run_here() -> None:
    playbooks = {path.stem for path in (REPOSITORY / "playbooks").glob("*.yml")}
    assert set(JOBS) == playbooks
    for name in playbooks:
        ((play),) = yaml.safe_load((PROJECT / f"{name}.yml").read_text())
        assert play["ansible.builtin.import_playbook"] == f"accel.kubernetes.{name}"
    assert {path.stem for path in PROJECT.glob("*.yml")} == playbooks


def names_of(node: Any) -> Iterator[str]:
    """The variables that tasks and plays set, at any depth."""
    for key, value in node.items() if isinstance(node, dict) else ():
        if key in ("vars", "set_fact", "ansible.builtin.set_fact") and isinstance(value, dict):
            yield from value
        elif key == "register":
            yield value
    for entry in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from names_of(entry)


def test_no_result_is_a_variable_of_a_playbook_or_a_role() -> None:
    # AWX hands results to later jobs of a workflow as extra variables, which win over all others.
    files = [*(REPOSITORY / "playbooks").rglob("*.yml"), *(REPOSITORY / "roles").glob("*/tasks/*.yml")]
    found = [(path.name, name) for path in files for name in names_of(yaml.safe_load(path.read_text()))]
    results = {job.result for job in JOBS.values()}
    assert len(found) > 100
    assert [(path, name) for path, name in found if name in results] == []


def test_the_project_has_awx_fetch_no_collections() -> None:
    # AWX puts what it fetches for these before what the execution environment holds.
    assert [name for name in ("collections", "roles") if (PROJECT / name).exists()] == []


@pytest.mark.parametrize("options", [(), ("--limit", CANARY)], ids=["all", "canary"])
def test_a_job_that_fails_says_so_and_keeps_what_it_found(
    books: Playbooks, tmp_path: Path, options: tuple[str, ...]
) -> None:
    ended = run(books, tmp_path, "validate", {"driver_runfile": OLD}, *options)
    assert ended.code != 0
    # AWX runs a job again on the hosts that failed.
    failed = {
        (event["event_data"]["task"], event["event_data"]["host"])
        for event in ended.events
        if event["event"] == "runner_on_failed"
    }
    assert ("Fail if the host has blocking problems", "gpu-a") in failed
    assert "blocked" in {row["verdict"] for row in ended.results["gpu_validation"]}


@pytest.mark.parametrize("book", JOBS)
def test_it_runs_without_a_terminal_and_leaves_its_result(books: Playbooks, book: str, tmp_path: Path) -> None:
    job = JOBS[book]
    ended = run(books, tmp_path, book, job.variables)
    if job.refused:
        assert ended.code != 0
        assert job.refused in ended.output
        assert job.result not in ended.results
        return
    assert ended.code == 0, ended.output
    found = ended.results[job.result]
    if isinstance(job.has, dict):
        assert {key: found[key] for key in job.has} == job.has
    else:
        assert isinstance(found, type(job.has))
    assert len(json.dumps(ended.results)) < LIMIT
