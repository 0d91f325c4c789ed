# SPDX-License-Identifier: Apache-2.0
"""What validate.yml reports of control planes and GPU nodes."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.playbooks.validation import report
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.inventory import Inventory

GROUPS = {"kube_control_plane": ["control"], "gpu_nodes": ["gpu-a"]}
SCHEDULER, NODE = {"validate_saw_scheduler": True}, {"validate_saw_node": True}
CONFIGURED = "gpu-a: ok: container runtime: It is configured."
UNSEEN = "blocked: host: It could not be checked. Read the failure above."


def row(verdict: str, what: str, found: str, remedy: str = "") -> dict[str, str]:
    return {"verdict": verdict, "what": what, "found": found, "remedy": remedy}


def told(hosts: list[str] | None = None, **variables: Any) -> list[str]:
    """The lines about hosts with these variables, ``-`` in names being ``_``."""
    known = {name.replace("_", "-"): values for name, values in variables.items()}
    return report(Inventory(known, GROUPS), hosts or ["control", "gpu-a"]).lines


def test_sound_hosts_have_rows_and_nothing_is_wrong() -> None:
    passed = [row("ok", "device plugin", "It serves.")]
    assert told(control=SCHEDULER, gpu_a=NODE | {"gpu_plugins_passed": passed}) == [
        "control: ok: scheduler: Its configuration was read.",
        CONFIGURED,
        "gpu-a: ok: device plugin: It serves.",
        "nothing is wrong",
    ]


@pytest.mark.parametrize(
    ("check", "what"),
    [("driver", "driver"), ("runtime", "container runtime"), ("plugin", "device plugin"), ("pod", "pod")],
)
def test_failed_check_blocks_and_hides_that_it_passed(check: str, what: str) -> None:
    failed = {f"validate_failed_{check}": "It is\nbroken. ", "gpu_plugins_passed": [row("ok", what, "It is well.")]}
    found = report(Inventory({"gpu-a": NODE | failed}, GROUPS), ["gpu-a"])
    assert f"gpu-a: blocked: {what}: It is broken." in found.lines
    assert found.blocked == {"gpu-a": f"Blocked: {what}. The table shows how to fix it."}
    assert not [text for text in found.lines if "well" in text or "nothing is wrong" in text]
    assert (CONFIGURED in found.lines) == (check != "runtime")


def test_only_hosts_on_which_something_cannot_work_are_blocked() -> None:
    known = {"control": SCHEDULER, "gpu-a": NODE | {"validate_failed_driver": "It is broken."}}
    found = report(Inventory(known, GROUPS), ["control", "gpu-a"])
    assert found.blocked == {"gpu-a": "Blocked: driver. The table shows how to fix it."}


def test_scheduler_that_fails_its_check_is_blocked() -> None:
    failed = SCHEDULER | {"validate_failed_scheduler": "It has no configuration."}
    assert told(["control"], control=failed) == ["control: blocked: scheduler: It has no configuration."]


def test_findings_keep_their_order_and_the_trial_comes_last() -> None:
    findings = [row("warning", "labels", "One is missing.", "Run site.yml."), row("unknown", "quota", "Nobody knows.")]
    node = NODE | {"gpu_plugins_findings": findings, "gpu_plugins_trial": row("ok", "pod", "It ran.")}
    assert told(["gpu-a"], gpu_a=node) == [
        CONFIGURED,
        "gpu-a: warning: labels: One is missing. Run site.yml.",
        "gpu-a: unknown: quota: Nobody knows.",
        "gpu-a: ok: pod: It ran.",
    ]


@pytest.mark.parametrize(
    ("hosts", "variables", "lines"),
    [
        (["control", "gpu-a"], {}, [f"control: {UNSEEN}", f"gpu-a: {UNSEEN}"]),
        (["gpu-a"], {}, [f"gpu-a: {UNSEEN}"]),
        # What was found before the host was lost is not all there is.
        (["gpu-a"], {"gpu_a": {"validate_failed_driver": "No."}}, [f"gpu-a: {UNSEEN}"]),
        (["localhost"], {}, ["nothing is wrong"]),
    ],
)
def test_host_that_was_not_looked_at_is_blocked(hosts: list[str], variables: dict[str, Any], lines: list[str]) -> None:
    assert told(hosts, **variables) == lines


def test_host_of_both_groups_has_the_rows_of_both() -> None:
    groups = {"kube_control_plane": ["one"], "gpu_nodes": ["one"]}

    def texts(**variables: Any) -> list[str]:
        return [each["text"] for each in report(Inventory({"one": variables}, groups), ["one"]).rows]

    scheduler, runtime = (
        "one: ok: scheduler: Its configuration was read.",
        "one: ok: container runtime: It is configured.",
    )
    assert texts(**SCHEDULER, **NODE) == [scheduler, runtime]
    assert texts(**SCHEDULER) == [scheduler, f"one: {UNSEEN}"]


def test_the_artifact_has_one_row_for_all_that_is_ok() -> None:
    passed = NODE | {"gpu_plugins_passed": [row("ok", "device plugin", "It serves.")]}
    failed = NODE | {"validate_failed_driver": "It is broken."}
    known = {"gpu-a": passed, "gpu-b": failed}
    found = report(Inventory(known, {"gpu_nodes": ["gpu-a", "gpu-b"]}), ["gpu-a", "gpu-b"]).artifact
    assert [each["text"] for each in found] == [
        "gpu-b: blocked: driver: It is broken.",
        "gpu-a: ok: container runtime, device plugin",
        "gpu-b: ok: container runtime",
    ]


def test_rows_are_harmless_text() -> None:
    failed = NODE | {"validate_failed_plugin": "\x1b[2J" + "x" * 5000}
    (*_, found) = report(Inventory({"gpu-a": failed}, GROUPS), ["gpu-a"]).rows
    assert (found["host"], found["verdict"], found["what"]) == ("gpu-a", "blocked", "device plugin")
    assert "\x1b" not in found["text"]
    assert len(found["words"]) == 4096


def test_offers_and_quotas_come_first() -> None:
    nvml = {"driver_version": "580.95.05", "cuda_version": None, "gpus": [{}, {}]}
    quota = {"namespace": "team-a", "used": "1", "hard": "4", "resource": "nvidia.com/gpu"}
    node = {
        "ansible_facts": {"accel_nvml": nvml},
        "gpu_plugins_offers": {"nvidia.com/gpu": 2, "example.com/x": "1"},
        "gpu_plugins_quotas": [quota],
    }
    assert told(["gpu-a"], gpu_a=NODE | node)[:3] == [
        "gpu-a: driver 580.95.05, CUDA none, 2 GPUs; offers nvidia.com/gpu 2, example.com/x 1",
        "quota of team-a: 1 of 4 nvidia.com/gpu",
        CONFIGURED,
    ]
    bare = NODE | {"ansible_facts": {"accel_nvml": {"gpus": []}}, "gpu_plugins_offers": {}}
    assert told(["gpu-a"], gpu_a=bare)[0] == "gpu-a: driver none, CUDA none, 0 GPUs; offers nothing"


AROUND = {"validate_controller": {"python": "python3", "packages": [], "collections": [], "wheels": ["a.whl"]}}
ANSWERS = {"validate_cluster": {"message": "", "nodes": ["gpu-a"]}}
IMAGE = {"gpu_plugins_image": "example.com/kube-accel:1"}


def around(gpu_a: dict[str, Any] = NODE, **answers: Any) -> Any:
    """What is reported of a controller and a cluster that answered so."""
    variables = {"localhost": AROUND | ANSWERS | answers, "control": SCHEDULER, "gpu-a": gpu_a | IMAGE}
    return report(Inventory(variables, GROUPS), ["localhost", "control", "gpu-a"])


def test_sound_controller_and_cluster_have_rows_and_no_table() -> None:
    found = around()
    assert found.lines[:2] == [
        "controller: ok: packages: All packages that the playbooks import are installed.",
        "cluster: ok: API server: It answers and has 1 nodes.",
    ]
    assert (found.table, found.blocked) == ([], {})


def test_table_has_what_is_wrong_once_and_below_it_what_mends_it() -> None:
    packages = [{"name": "kubernetes", "wanted": ">=24.2", "version": ""}]
    found = around(
        NODE | {"validate_failed_driver": "It is broken; set driver_method=runfile.", "validate_failed_plugin": "Odd."},
        validate_controller=AROUND["validate_controller"] | {"packages": packages},
    )
    assert found.table == [
        "WHERE       WHAT             WHAT IS WRONG",
        "                             > what mends it",
        "controller  Python packages  kubernetes is not installed, for python3.",
        "                             > python3 -m pip install 'kubernetes>=24.2'",
        "gpu-a       driver           It is broken.",
        "                             > set driver_method=runfile.",
        "gpu-a       device plugin    Odd.",
    ]
    assert found.blocked["localhost"] == "Blocked: Python packages (controller). The table shows how to fix it."


def test_hosts_with_the_same_fault_share_a_row() -> None:
    hosts = [f"gpu-{number}" for number in range(5)]
    variables = dict.fromkeys(hosts, NODE | {"validate_failed_driver": "It is broken."})
    found = report(Inventory(variables, {"gpu_nodes": hosts}), hosts)
    assert found.table[2:] == ["gpu-0, gpu-1, gpu-2 and 2 more  driver  It is broken."]
    assert [*found.blocked] == hosts


def test_silent_api_server_is_no_fault_of_hosts() -> None:
    found = around({}, validate_cluster={"message": "refused", "nodes": []})
    assert [row["host"] for row in found.rows if row["verdict"] == "blocked"] == ["cluster"]


def test_host_that_no_node_is_named_after_is_blocked() -> None:
    found = around(validate_cluster={"message": "", "nodes": ["other"]})
    assert "gpu-a: blocked: node: The cluster has no node 'gpu-a'." in " ".join(found.lines)
