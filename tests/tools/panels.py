# SPDX-License-Identifier: Apache-2.0
"""What Grafana's dashboards are made of: queries, panels, variables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

WIDTH = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
PRESETS = {"30m": "30 minutes", "1h": "hour", "6h": "6 hours", "12h": "12 hours", "24h": "24 hours"}
PRESETS |= {"2d": "2 days", "7d": "7 days"}

Json = dict[str, Any]


class Needs(Enum):
    """What a panel says where it has no data: what has to be there."""

    PLUGINS = "Needs the plugins' metrics (gpu_plugins_metrics_enabled)."
    PODS = "Needs pods with GPUs whose use is known: not time-slices, nor MIG's time without counters."
    ALONE = "Needs pods that have a GPU for themselves, and whose use is known."
    LIMITS = "Needs pods whose limits the interposer enforces (modes vgpu, cgpu, and dra)."
    CGPU = "Needs nodes in mode cgpu."
    COUNTERS = "Needs counters: gpu_plugins_metrics_profiling from Hopper on, dcgm_exporter_enabled before."
    MIG = "Needs GPUs in MIG mode."
    MIG_COUNTERS = "Needs GPUs in MIG mode, and gpu_plugins_metrics_profiling or dcgm_exporter_enabled."
    ERRORS = "Needs nothing: no error was reported."
    PENDING = "Needs the extender's metrics (scheduler_metrics_port), or gpu_plugins_metrics_pending."
    QUOTAS = "Needs quotas: scheduler_quota and the extender's metrics, or a ResourceQuota and kube-state-metrics."


@dataclass(frozen=True)
class Target:
    """One query of a panel."""

    expr: str
    legend: str = ""
    instant: bool = False


@dataclass(frozen=True)
class Panel:
    """One panel, laid out from left to right in the order given."""

    title: str
    kind: str
    targets: Sequence[Target]
    says: str
    unit: str = "short"
    width: int = 12
    height: int = 8
    defaults: Json = field(default_factory=dict)
    options: Json = field(default_factory=dict)
    transformations: Sequence[Json] = ()
    needs: Needs = Needs.PLUGINS


def table(*targets: Target) -> tuple[Target, ...]:
    return tuple(Target(target.expr, target.legend, True) for target in targets)


def columns(names: Sequence[str], **labels: str) -> Sequence[Json]:
    """A table of instant queries, one column each beside the labels, which may be renamed. No name: no figures."""
    # Grafana tells the figures of several queries apart, and that of one not.
    values = {f"Value #{chr(65 + index)}" if names[1:] else "Value": name for index, name in enumerate(names)}
    hidden = {"Time": True, **{name: True for name, shown in labels.items() if not shown}}
    hidden |= {} if names else {"Value": True}
    shown = {name: title for name, title in labels.items() if title}
    return (
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {"excludeByName": hidden, "renameByName": {**shown, **values}}},
    )


def units(**by_name: str) -> Json:
    """Units of columns; an underscore stands for a space."""
    matchers = [({"id": "byName", "options": name.replace("_", " ")}, unit) for name, unit in by_name.items()]
    return {"overrides": [{"matcher": m, "properties": [{"id": "unit", "value": unit}]} for m, unit in matchers]}


RATIO: Json = {"min": 0, "max": 1}
STACKED: Json = {"custom": {"fillOpacity": 30, "stacking": {"mode": "normal", "group": "A"}}}
BARS: Json = {"custom": {"drawStyle": "bars", "fillOpacity": 80, "stacking": {"mode": "normal", "group": "A"}}}
HORIZONTAL: Json = {"orientation": "horizontal", "displayMode": "basic"}
AT_GPU = "{{node}} GPU {{index}}"
AT_POD = "{{namespace}}/{{pod}}"


def variable(name: str, label: str, query: str, regex: str = "") -> Json:
    """Filled by a query; all at first."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": f"variable-{name}"},
        "regex": regex,
        "refresh": 2,
        "sort": 3,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def choice(name: str, label: str, choices: dict[str, str]) -> Json:
    """Fixed words, by what is shown."""
    return {
        "name": name,
        "label": label,
        "type": "custom",
        "query": ",".join(f"{shown} : {value}" for shown, value in choices.items()),
        "options": [{"selected": False, "text": shown, "value": value} for shown, value in choices.items()],
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def textbox(name: str, label: str, value: str) -> Json:
    options = [{"selected": True, "text": value, "value": value}]
    return {"name": name, "label": label, "type": "textbox", "query": value, "current": options[0], "options": options}


def dashboard(
    name: str, title: str, says: str, variables: Iterable[Json], panels: Iterable[Panel], since: str = "6h"
) -> Json:
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}}
    presets = [{"display": f"Last {text}", "from": f"now-{span}", "to": "now"} for span, text in PRESETS.items()]
    return {
        "uid": f"kube-accel-{name}",
        "title": title,
        "description": says,
        "tags": ["gpu", "kube-accel"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": f"now-{since}", "to": "now"},
        "timepicker": {"quick_ranges": presets},
        "timezone": "browser",
        "links": [{"type": "dashboards", "title": "GPU", "tags": ["kube-accel"], "asDropdown": True,
                   "includeVars": False, "keepTime": True, "icon": "external link"}],
        "annotations": {"list": [{
            "name": "XIDs", "datasource": SOURCE, "enable": True, "iconColor": "red",
            # Each is a point at its own time; longer than the step of any range, and little of what was before.
            "expr": "(max by (node, uuid, xid) (accel_gpu_xid_last_timestamp_seconds) > time() - 3600) * 1000",
            "useValueForTime": True,
            "titleFormat": "XID {{xid}} on {{node}}"}]},
        "templating": {"list": [source, *variables]},
        "panels": placed(panels),
    }  # fmt: skip


def placed(panels: Iterable[Panel]) -> list[Json]:
    """Left to right, in rows as high as their highest."""
    made: list[Json] = []
    x = y = height = 0
    for panel in panels:
        if x + panel.width > WIDTH:
            x, y, height = 0, y + height, 0
        made.append(drawn(panel, len(made) + 1, {"x": x, "y": y, "w": panel.width, "h": panel.height}))
        x, height = x + panel.width, max(height, panel.height)
    return made


def drawn(panel: Panel, number: int, place: Json) -> Json:
    settings = dict(panel.defaults)
    overrides = settings.pop("overrides", [])
    return {
        "id": number,
        "title": panel.title,
        "description": panel.says,
        "type": panel.kind,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": [
            {
                "refId": chr(65 + index),
                "datasource": SOURCE,
                "expr": target.expr,
                "legendFormat": target.legend or "__auto",
                "instant": target.instant,
                "range": not target.instant,
                "format": "table" if panel.kind == "table" else "time_series",
            }
            for index, target in enumerate(panel.targets)
        ],
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "noValue": panel.needs.value, **settings},
            "overrides": overrides,
        },
        "options": dict(panel.options),
        "transformations": list(panel.transformations),
    }
