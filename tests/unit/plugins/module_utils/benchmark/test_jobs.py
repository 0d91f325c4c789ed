# SPDX-License-Identifier: Apache-2.0
"""The Job of a row, how far it is told to be, and what its pods measured."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark.jobs import (
    Measured,
    Place,
    Plugin,
    job,
    job_name,
    measured,
    plugin_of,
    printed,
    progress,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark.rows import INSTANCE, Row
from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark.wish import SECONDS, Wish
from hypothesis import given
from hypothesis import strategies as st

from odd_values import Path, cases, fields_read, with_value
from unit.plugins.module_utils.shared.test_gpu_view import plugin

ROW = Row("vGPU", 2, 2, Fraction(1, 2), {"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 48})
PLACE = Place("kube-system", "kube-accel:1", "Never", ("secret",), "nvidia", "accel-scheduler")
OWN = Wish("a", image="i", figure="took ([0-9.]+)")


def ran(began: int = 0, ended: int = 10, code: int = 0, **status: Any) -> dict[str, Any]:
    times = {"startedAt": f"2026-11-28T03:00:{began:02}Z", "finishedAt": f"2026-11-28T03:00:{ended:02}Z"}
    state = {"terminated": {"exitCode": code, **times}}
    phase = "Failed" if code else "Succeeded"
    return {"metadata": {"name": "p"}, "status": {"phase": phase, "containerStatuses": [{"state": state}], **status}}


def waiting(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "status": {"phase": "Pending", **status}}


RUNNING = {"status": {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}}


def test_pods_of_a_job_run_side_by_side_on_the_node_alone() -> None:
    made = job(Wish("a", launches=7), ROW, {"spec": {"taints": [{"key": "gpu"}]}}, PLACE)
    spec, pod = made["spec"], made["spec"]["template"]["spec"]
    assert (spec["parallelism"], spec["completions"], spec["backoffLimit"]) == (2, 2, 0)
    assert spec["activeDeadlineSeconds"] == 120
    assert "ttlSecondsAfterFinished" in spec
    assert spec["template"]["metadata"]["labels"][INSTANCE] == made["metadata"]["name"] == job_name("a")
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}]
    assert pod["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert (pod["runtimeClassName"], pod["schedulerName"]) == ("nvidia", "accel-scheduler")
    assert pod["imagePullSecrets"] == [{"name": "secret"}]
    container = pod["containers"][0]
    assert (container["image"], container["imagePullPolicy"]) == ("kube-accel:1", "Never")
    assert container["command"] == ["kube-accel", "benchmark", "--launches=7"]
    assert container["resources"]["limits"] == {"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "48"}
    assert pod["securityContext"]["runAsNonRoot"]


def test_an_image_of_ones_own_runs_as_it_is_made() -> None:
    pod = job(Wish("a", image="i"), ROW, {}, Place("team", "i"))["spec"]["template"]["spec"]
    assert {"command", "securityContext"}.isdisjoint(pod["containers"][0])
    assert {"securityContext", "runtimeClassName", "schedulerName", "imagePullSecrets"}.isdisjoint(pod)


@given(st.text(min_size=1, max_size=253))
def test_name_of_a_job_is_a_label_whatever_the_nodes_is(node: str) -> None:
    assert len(job_name(node)) < 52
    assert job_name(node) != job_name(f"{node}x")


def test_image_is_that_of_the_nodes_plugin() -> None:
    found = plugin("a")
    found["spec"]["imagePullSecrets"] = [{"name": "s"}]
    assert plugin_of([plugin("a", "other"), found], "kube-system") == Plugin("i", "IfNotPresent", ("s",))
    assert plugin_of([plugin("a")], "elsewhere") == Plugin()


@pytest.mark.parametrize(
    ("pods", "over", "started"),
    [
        ([], False, False),
        ([waiting()], False, False),
        ([RUNNING, waiting()], False, False),
        ([RUNNING, RUNNING], False, True),
        ([RUNNING, ran()], False, True),
        ([ran(), ran()], True, True),
    ],
)
def test_a_job_is_over_once_all_of_its_pods_succeeded(pods: list[Any], over: bool, started: bool) -> None:
    found = progress({}, pods, 2)
    assert (found.over, found.started, found.problem) == (over, started, "")


@pytest.mark.parametrize(
    ("pod", "told"),
    [
        ({"status": {}}, ""),
        (waiting(conditions=[{"type": "PodScheduled", "status": "False", "message": "no room"}]), "no room"),
        (
            waiting(containerStatuses=[{"state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}]),
            "ErrImagePull: no such image",
        ),
        (waiting(containerStatuses=[{"state": {"waiting": {"reason": "ContainerCreating"}}}]), ""),
    ],
)
def test_why_a_pod_waits_is_told(pod: dict[str, Any], told: str) -> None:
    assert progress({}, [pod], 1).waits == told


def test_a_pod_that_fails_ends_it_and_tells_why() -> None:
    assert progress({}, [RUNNING, ran(code=3)], 2).problem == "a pod failed with exit code 3"
    refused = {"status": {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no GPU"}}
    assert progress({}, [refused], 1).problem == "a pod failed: UnexpectedAdmissionError: no GPU"
    late = {"status": {"conditions": [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}]}}
    assert "DeadlineExceeded" in progress(late, [RUNNING], 1).problem


def test_seconds_are_what_pods_print() -> None:
    logs = ["warm-up took 9.0\ntook 2.5 s", "took 3"]
    assert measured(OWN, [ran(), ran(2, 12)], logs) == Measured(True, (2.5, 3.0), 0.8, started=True)
    assert printed(SECONDS, '{"seconds": 12.345678, "launches": 7}') == 12.345678


def test_seconds_are_those_of_containers_without_a_figure() -> None:
    assert measured(Wish("a", image="i"), [ran(0, 30), ran(20, 59)], ["", ""]).seconds == (30.0, 39.0)


@pytest.mark.parametrize(
    ("wish", "pod", "log", "told"),
    [
        (OWN, ran(), "no luck", "no line that a pod printed matches 'took ([0-9.]+)'; its last lines: no luck"),
        (OWN, ran(), "took 1.2.3", "no line that a pod printed"),
        (OWN, ran(), "took 0", "a pod ended too fast to measure"),
        (Wish("a", image="i"), {"status": {}}, "", "kubelet reported no times"),
        (Wish("a", image="i"), ran(5, 5), "", "a pod ended too fast to measure"),
    ],
)
def test_what_is_no_figure_is_a_problem(wish: Wish, pod: dict[str, Any], log: str, told: str) -> None:
    found = measured(wish, [pod], [log])
    assert told in found.problem
    assert found.seconds == ()


@given(st.text())
def test_a_log_has_seconds_or_none_whatever_it_is(log: str) -> None:
    found = printed("(.*)", log)
    assert found is None or found >= 0


def looked(item: Any) -> tuple[Measured, Measured]:
    return progress(item, [item], 1), measured(Wish("a", image="i"), [item], [""])


@pytest.mark.parametrize(("path", "values"), cases(fields_read(ran(), looked)))
def test_an_odd_pod_is_judged_all_the_same(path: Path, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        far, found = looked(with_value(ran(), path, value))
        assert isinstance(far.over, bool), name
        assert found.seconds or found.problem, name
