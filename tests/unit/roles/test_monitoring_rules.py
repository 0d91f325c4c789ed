# SPDX-License-Identifier: Apache-2.0
"""The rules of role monitoring, by Prometheus' own tool."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from kube_accel.nvml.switches import Switches
from kube_accel.shared.gpu_xids import HARMLESS, OF_PROGRAMS, XIDS, alerting
from prometheus import need
from unit.roles.monitoring.served import REPOSITORY, RULES, asked, recorded, unknown
from yaml_files import document

TESTS = Path(__file__).parent / "monitoring/rules.yml"
RUNBOOKS = REPOSITORY / "docs/runbooks"


def rules(file: str, kind: str) -> dict[str, dict[str, Any]]:
    groups = document(RULES / file)["groups"]
    return {rule[kind]: rule for group in groups for rule in group["rules"]}


ALERTS = rules("alerts.yml", "alert")
RECORDS = rules("recording.yml", "record")
GROUPS = document(TESTS)["tests"]


def promtool(*words: str | Path) -> None:
    done = subprocess.run([need("promtool"), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_takes_the_rules() -> None:
    promtool("check", "rules", *RULES.iterdir())


def test_alerts_fire_and_stay_silent_as_they_should() -> None:
    promtool("test", "rules", TESTS)


def samples(alert: str) -> list[list[str]]:
    """What has to fire, moment by moment, in the groups of promtool's test that bear the alert's name."""
    checks = [
        check
        for group in GROUPS
        if group["name"].partition(",")[0] == alert
        for check in group["promql_expr_test"]
        if f'"{alert}"' in check["expr"]
    ]
    return [[sample["labels"] for sample in check.get("exp_samples", ())] for check in checks]


UNITS = {"m": 1, "h": 60}
MINUTES = {
    alert: int(rule["for"][:-1]) * UNITS[rule["for"][-1]] if "for" in rule else 0 for alert, rule in ALERTS.items()
}


def waits(alert: str, minutes: int) -> list[dict[str, Any]]:
    """promtool's groups, which ask of what fires how many minutes it was pending before."""
    groups = []
    for group in GROUPS:
        checks = []
        for check in group["promql_expr_test"] if group["name"].partition(",")[0] == alert else ():
            for labels in (sample["labels"] for sample in check.get("exp_samples", ()) if alert in sample["labels"]):
                pending = labels.removeprefix("ALERTS").replace('alertstate="firing"', 'alertstate="pending"')
                told = [{"labels": pending, "value": minutes}] if minutes else []
                question = {"expr": f"count_over_time(ALERTS{pending}[1d])", "eval_time": check["eval_time"]}
                checks.append(question | {"exp_samples": told})
        if checks:
            groups.append({**group, "promql_expr_test": checks})
    return groups


def waited(minutes: dict[str, int], directory: Path) -> str:
    """What promtool has against these minutes. Each alert has a file of its own: with all of them it takes long."""
    files = []
    for alert, expected in minutes.items():
        rules_of = [str(RULES / "recording.yml")] if ":" in re.sub("{.*?}", "", ALERTS[alert]["expr"]) else []
        rule, test = directory / f"{alert}.rule.yml", directory / f"{alert}.yml"
        rule.write_text(yaml.safe_dump({"groups": [{"name": alert, "rules": [ALERTS[alert]]}]}))
        head = {"rule_files": [*rules_of, str(rule)], "evaluation_interval": "1m"}
        test.write_text(yaml.safe_dump(head | {"tests": waits(alert, expected)}))
        files.append(test)
    done = subprocess.run([need("promtool"), "test", "rules", *files], capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_every_alert_waits_exactly_as_long_as_it_says(tmp_path: Path) -> None:
    assert all(waits(alert, minutes) for alert, minutes in MINUTES.items())
    assert waited(MINUTES, tmp_path) == ""


@pytest.mark.parametrize("alert", ["GpuUnhealthy", "GpuXidCritical", "GpuMemoryNearLimit"])
def test_a_minute_more_or_less_is_noticed(alert: str, tmp_path: Path) -> None:
    assert alert in waited({alert: MINUTES[alert] + 1}, tmp_path)


def series(alert: str) -> int:
    return sum(len(group["input_series"]) for group in GROUPS if group["name"].partition(",")[0] == alert)


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_is_seen_to_fire_and_to_stay_silent(alert: str) -> None:
    fires = [labels for found in samples(alert) for labels in found]
    assert fires, f"{alert} never fires in {TESTS.name}"
    silent = any(not found for found in samples(alert)) or series(alert) > len(set(fires))
    assert silent, f"{alert} is never silent in {TESTS.name}"


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_says_what_to_do(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description"}
    labels = {name for found in samples(alert) for sample in found for name in re.findall(r"(\w+)=", sample)}
    for text in rule["annotations"].values():
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels, text


SECTIONS = ["Impact", "Check", "Fix", "Confirm", "If that does not help"]


def made_of(expression: str) -> set[str]:
    """The words of an expression, and of the recording rules that it names, and these."""
    found = set(re.findall(r"\w+", expression))
    return found.union(*(made_of(RECORDS[name]["expr"]) for name in re.findall(r"\w+:\w+:\w+", expression)))


@pytest.mark.parametrize("alert", ALERTS)
def test_runbook_says_where_to_go_from_each_cause(alert: str) -> None:
    page = (RUNBOOKS / f"{alert}.md").read_text()
    check = page.partition("\n## Check\n")[2].partition("\n## Fix\n")[0]
    assert re.search(r"^ *\| .+ \| (Cause \| Go to|Meaning) \|$", check, re.MULTILINE)


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    assert {path.stem for path in RUNBOOKS.iterdir()} - {"README"} == set(ALERTS)
    index = (RUNBOOKS / "README.md").read_text()
    for alert, rule in ALERTS.items():
        page = (RUNBOOKS / f"{alert}.md").read_text()
        assert page.startswith(f"# {alert}\n")
        assert re.findall(r"^## (.*)$", page, re.MULTILINE) == SECTIONS, alert
        ((severity, fires, source),) = re.findall(
            r"^\| Severity \| Fires when \| Source \|\n\|---\|---\|---\|\n\| (\w+) \| (.*) \| (.*) \|$",
            page,
            re.MULTILINE,
        )
        assert severity == rule["labels"]["severity"], alert
        assert f"| [{alert}]({alert}.md) | {severity} | {fires} |" in index
        named = re.findall(r"`(\w+)`", source)
        assert named, f"{alert}: no metric is named"
        assert set(named) <= made_of(rule["expr"]), alert


@pytest.mark.parametrize("rule", [*ALERTS.values(), *RECORDS.values()], ids=[*ALERTS, *RECORDS])
def test_rules_ask_for_what_is_served(rule: dict[str, Any]) -> None:
    assert asked(rule["expr"])
    assert unknown(rule["expr"]) == []


def test_what_is_not_served_is_found() -> None:
    assert unknown('sum by (node) (rate(accel_gpu_wear{node="a"}[5m])) > 1') == ["accel_gpu_wear"]
    assert unknown('accel_gpu_healthy{pod="a", node=~"b|c"} == 0') == ["accel_gpu_healthy['pod']"]
    assert unknown('up{job="x"} and on (node) max_over_time(accel_gpu_healthy[1h]) offset 2h') == []
    assert recorded()["model:accel_gpus:count"] == {"model"}


@pytest.mark.parametrize("alert", ["GpuXidCritical", "GpuXidContained"])
def test_xid_alerts_fire_for_those_the_table_gives_them(alert: str) -> None:
    told = re.search(r'xid=~?"([0-9|]+)"', ALERTS[alert]["expr"])
    assert told is not None
    assert [int(number) for number in told[1].split("|")] == list(alerting(alert))


def test_every_xid_leaves_the_gpu_in_use_or_counts_against_it() -> None:
    assert {number for number in XIDS if not Switches().counts(number)} == HARMLESS
    alerts = [*alerting("GpuXidCritical"), *alerting("GpuXidContained"), *alerting("")]
    assert sorted([*alerts, *HARMLESS]) == list(XIDS)


def test_runbook_says_of_each_critical_xid_what_the_table_says() -> None:
    page = (RUNBOOKS / "GpuXidCritical.md").read_text()
    known = [XIDS[number] for number in alerting("GpuXidCritical")]
    meanings = re.findall(r"^\| ([0-9]+) \| (.+) \|$", page, re.MULTILINE)
    assert meanings == [(str(xid.number), xid.meaning) for xid in known]
    remedies = re.findall(r"^\| XID ([0-9, ]+) \| (.+) \|$", page, re.MULTILINE)
    told = {int(number): remedy for numbers, remedy in remedies for number in numbers.split(", ")}
    assert told == {xid.number: xid.remedy for xid in known}


def numbered(text: str) -> set[int]:
    """The numbers that a sentence lists, with spans of them."""
    spans = re.findall(r"([0-9]+)(?: to ([0-9]+))?", text)
    return {number for first, last in spans for number in range(int(first), int(last or first) + 1)}


def test_page_lists_the_xids_that_leave_a_gpu_in_use() -> None:
    page = (REPOSITORY / "docs/explanation/gpu-health.md").read_text()
    told = re.search(r"^\| applications \| (.+) \|\n\| none; NVIDIA ignores them \| (.+) \|$", page, re.MULTILINE)
    assert told is not None
    assert numbered(told[1]) == OF_PROGRAMS
    assert numbered(told[2]) == HARMLESS - OF_PROGRAMS
