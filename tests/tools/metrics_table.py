# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of metrics and alerts into docs/reference: ``python tests/tools/metrics_table.py``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from kube_accel.metrics.families import ALL
from tools.dashboards import dashboards
from tools.panels import Needs
from unit.roles.monitoring.served import asked, extender_page, recorded, rules, served

ROOT = Path(__file__).parents[2]
METRICS = ROOT / "docs/reference/metrics.md"
ALERTS = ROOT / "docs/reference/alerts.md"
_METRICS = ("Metric", "Type", "Labels", "Meaning")


def families() -> str:
    """One row a family of the plugin."""
    return _table(_METRICS, ((f"`{each.name}`", each.kind.value, _code(each.labels), each.help) for each in ALL))


def extender() -> str:
    """One row a family of the extender, as its page has them."""
    page = extender_page()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))
    helps = re.findall(r"^# HELP (\S+) (.*)$", page, re.MULTILINE)
    labels = {name: served()[f"{name}_sum" if kind == "histogram" else name] for name, kind in kinds.items()}
    return _table(_METRICS, ((f"`{name}`", kinds[name], _code(sorted(labels[name])), text) for name, text in helps))


def recording() -> str:
    """One row a recording rule."""
    rows = (
        (f"`{name}`", _code(sorted(recorded()[name])), _code(asked(expression))) for name, expression in rules().items()
    )
    return _table(("Series", "Labels", "Made of"), rows)


def panels() -> str:
    """One row for the panels of a dashboard that need the same beside the plugins' metrics."""
    found: dict[tuple[str, str], list[str]] = {}
    for dashboard in dashboards().values():
        for panel in dashboard["panels"]:
            needs = panel["fieldConfig"]["defaults"]["noValue"]
            if needs != Needs.PLUGINS.value:
                found.setdefault((dashboard["title"], needs.removeprefix("Needs ")), []).append(panel["title"])
    rows = ((title, "; ".join(names), f"{needs[:1].upper()}{needs[1:]}") for (title, needs), names in found.items())
    return _table(("Dashboard", "Panels", "What they need"), rows)


def alerts(group: str) -> str:
    """One row an alert of a group of rules; when it fires is what its runbook says."""
    rows = []
    for rule in _groups()[group]:
        name, severity = rule["alert"], rule["labels"]["severity"]
        runbook = (ROOT / f"docs/runbooks/{name}.md").read_text()
        (fires,) = re.findall(rf"^\| {severity} \| (.*?) \| .* \|$", runbook, re.MULTILINE)
        rows.append((f"[{name}](../runbooks/{name}.md)", severity, fires, _code(asked(rule["expr"]))))
    return _table(("Alert", "Severity", "Fires when", "Made of"), rows)


def _groups() -> dict[str, list[dict[str, Any]]]:
    text = (ROOT / "roles/monitoring/files/rules/alerts.yml").read_text()
    return {group["name"]: group["rules"] for group in yaml.safe_load(text)["groups"]}


TABLES: Final[Mapping[str, tuple[Path, Callable[[], str]]]] = {
    "families": (METRICS, families),
    "the extender's families": (METRICS, extender),
    "recording rules": (METRICS, recording),
    "panels": (METRICS, panels),
    **{f"alerts of {group}": (ALERTS, partial(alerts, group)) for group in _groups()},
}


def marks(name: str) -> tuple[str, str]:
    """What stands before and after a table."""
    return f"<!-- {name}: made by tests/tools/metrics_table.py -->", f"<!-- end of {name} -->"


def _code(words: Iterable[str]) -> str:
    return " ".join(f"`{word}`" for word in words)


def _table(head: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    head = [*head]
    shown = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([shown[0], "|---" * len(head) + "|", *shown[1:]])


def main() -> None:
    for name, (document, table) in TABLES.items():
        begin, end = marks(name)
        before, rest = document.read_text().split(begin)
        document.write_text(f"{before}{begin}\n{table()}\n{end}{rest.split(end)[1]}")


if __name__ == "__main__":
    main()
