# SPDX-License-Identifier: Apache-2.0
"""The dashboards of role monitoring, asked of a real Prometheus with seven days of samples as Grafana would ask."""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from prometheus import Prometheus, backfill, serve
from tools.dashboards import DIRECTORY, WIDTH, made
from unit.roles.monitoring.history import DAYS, GIB, HELD, HOUR, STEP, samples
from unit.roles.monitoring.served import unknown

Json = dict[str, Any]
DASHBOARDS: dict[str, Json] = {path.stem: json.loads(path.read_text()) for path in sorted(DIRECTORY.iterdir())}
PANELS = [(name, panel) for name, dashboard in DASHBOARDS.items() for panel in dashboard["panels"]]
UNITS = {"short", "percentunit", "bytes", "watt", "s", "celsius", "hertz", "h"}


@dataclass(frozen=True)
class Grafana:
    """What it makes of a dashboard's words before it asks."""

    server: Prometheus
    end: int

    @property
    def start(self) -> int:
        return self.end - DAYS * 24 * HOUR

    def choices(self, variable: Json, chosen: dict[str, str]) -> list[str]:
        """What the variable's dropdown offers."""
        if variable["type"] == "custom":
            return [option["value"] for option in variable["options"]]
        if variable["type"] == "textbox":
            return [variable["query"]]
        query = self.put(variable["query"]["query"], chosen)
        if found := re.fullmatch(r"label_values\((.*), (\w+)\)", query):
            times = {"start": self.start, "end": self.end}
            values: list[str] = self.server.get(f"label/{found[2]}/values", **{"match[]": found[1]}, **times)
            return values
        result = re.fullmatch(r"query_result\((.*)\)", query)
        assert result, query
        texts = [_text(series["metric"]) for series in self.server.query(result[1], self.end)]
        return [match[1] for text in texts if (match := re.search(variable["regex"].strip("/"), text))]

    def put(self, text: str, chosen: dict[str, str]) -> str:
        """The text with values for variables."""
        words = {"__range": f"{DAYS}d", "__interval": "1h", "__rate_interval": f"{4 * STEP}s"} | chosen
        return re.sub(r"\$\{?(\w+)\}?", lambda match: words[match[1]], text)

    def ask(self, target: Json, chosen: dict[str, str]) -> list[Json]:
        expression = self.put(target["expr"], chosen)
        if target["instant"]:
            return self.server.query(expression, self.end)
        return self.server.query_range(expression, self.start, self.end, 2 * HOUR)


def _text(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def values(series: Json) -> list[str]:
    pairs = series.get("values") or [series["value"]]
    return [value for _, value in pairs if value not in ("NaN", "+Inf", "-Inf")]


@pytest.fixture(scope="module")
def grafana() -> Iterator[Grafana]:
    end = int(time.time()) // STEP * STEP - STEP
    with tempfile.TemporaryDirectory(prefix="history-") as name:
        root = Path(name)
        (root / "samples").write_text(samples(end))
        backfill(root / "samples", root / "data")
        (root / "prometheus.yml").write_text("scrape_configs: []\n")
        # A sample counts until the next one.
        with serve(root / "prometheus.yml", root / "data", f"--query.lookback-delta={STEP + 60}s") as server:
            yield Grafana(server, end)


def everything(dashboard: Json) -> dict[str, str]:
    """As it is opened: all of each variable."""
    variables = dashboard["templating"]["list"]
    return {each["name"]: each.get("allValue") or each["query"] for each in variables}


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_variable_has_something_to_choose(grafana: Grafana, name: str) -> None:
    chosen = everything(DASHBOARDS[name])
    for variable in DASHBOARDS[name]["templating"]["list"]:
        if variable["type"] != "datasource":
            assert grafana.choices(variable, chosen), variable["name"]


@pytest.mark.parametrize(("name", "panel"), PANELS, ids=[f"{name}: {panel['title']}" for name, panel in PANELS])
def test_no_panel_is_empty(grafana: Grafana, name: str, panel: Json) -> None:
    chosen = everything(DASHBOARDS[name])
    for target in panel["targets"]:
        found = grafana.ask(target, chosen)
        assert any(values(series) for series in found), target["expr"]
        for series in found:
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert label in series["metric"], f"{target['legendFormat']} of {series['metric']}"
    if panel["type"] == "table":
        (organized,) = (each["options"] for each in panel["transformations"] if each["id"] == "organize")
        labels = {
            label for target in panel["targets"] for each in grafana.ask(target, chosen) for label in each["metric"]
        }
        shown = set(organized["renameByName"]) | set(organized["excludeByName"])
        ids = [target["refId"] for target in panel["targets"]]
        figures = {f"Value #{each}" for each in ids} if len(ids) > 1 else {"Value"}
        assert (labels - {"__name__"}) | figures <= shown, "columns without a title"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_one_choice_narrows_every_panel(grafana: Grafana, name: str) -> None:
    """The query is one that Prometheus takes, and tells of nothing else."""
    dashboard = DASHBOARDS[name]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] not in ("query", "custom"):
            continue
        chosen = everything(dashboard)
        chosen[variable["name"]] = grafana.choices(variable, chosen)[0]
        label = {"type": "mode", "gpu": "index"}.get(variable["name"], variable["name"])
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                if f"${variable['name']}" in target["expr"]:
                    told = {series["metric"].get(label) for series in grafana.ask(target, chosen)}
                    assert told <= {None, chosen[variable["name"]]}, target["expr"]


def test_the_chargeback_adds_up(grafana: Grafana) -> None:
    panels = {panel["title"]: panel for panel in DASHBOARDS["capacity-chargeback"]["panels"]}
    chosen = everything(DASHBOARDS["capacity-chargeback"])

    def total(title: str, number: int = 0) -> float:
        return sum(float(series["value"][1]) for series in grafana.ask(panels[title]["targets"][number], chosen))

    there = total("GPU-hours there were")
    assert there == pytest.approx(5 * DAYS * 24, rel=0.01)
    assert total("Chargeback") + total("Free") == pytest.approx(there)
    unknown = sum(held.part * (held.end - held.begin) for held in HELD if held.namespace == "sliced")
    assert total("Chargeback", 1) + total("Chargeback", 2) == pytest.approx(total("Chargeback") - unknown)
    for number in (1, 2, 3):
        told = {
            series["metric"]["namespace"] for series in grafana.ask(panels["Chargeback"]["targets"][number], chosen)
        }
        assert "sliced" not in told, "what it uses is not known"
        assert "team-a" in told
    assert total("Chargeback", 4) == pytest.approx(total("Charged"))


def test_pod_that_bursts_between_scrapes_keeps_its_size(grafana: Grafana) -> None:
    (panel,) = (p for p in DASHBOARDS["capacity-chargeback"]["panels"] if p["title"] == "Could do with less")
    found = grafana.ask(panel["targets"][0], everything(DASHBOARDS["capacity-chargeback"]))
    assert {series["metric"]["pod"] for series in found} == {"cgpu-2"}


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_xid_is_marked_at_its_time_also_the_first(grafana: Grafana, name: str) -> None:
    (annotation,) = DASHBOARDS[name]["annotations"]["list"]
    assert annotation["useValueForTime"], "in milliseconds"
    found = grafana.server.query_range(annotation["expr"], grafana.start, grafana.end, HOUR)
    marked = {float(value) / 1000 for series in found for _, value in series["values"]}
    assert marked == {grafana.start + days * 24 * HOUR for days in (0, 2, 4, 6)}


@pytest.mark.parametrize(
    ("name", "title", "number"), [("pod-monitoring", "Used of what it has", 0), ("cgpu-app", "Apps", 2)]
)
def test_a_container_whose_use_is_unknown_lowers_no_ratio(grafana: Grafana, name: str, title: str, number: int) -> None:
    (held,) = (held for held in HELD if held.pod == "cgpu-1" and held.known)
    (panel,) = (panel for panel in DASHBOARDS[name]["panels"] if panel["title"] == title)
    found = grafana.ask(panel["targets"][number], everything(DASHBOARDS[name]))
    (value,) = (float(series["value"][1]) for series in found if series["metric"]["pod"] == held.pod)
    (used,) = grafana.server.query(f'accel_container_gpu_memory_used_bytes{{pod="{held.pod}"}}', grafana.end)
    assert value == pytest.approx(float(used["value"][1]) / (held.gib * GIB))


def test_what_is_shipped_is_what_the_source_makes() -> None:
    assert {path.name: path.read_text() for path in DIRECTORY.iterdir()} == made()


@pytest.mark.parametrize(("name", "panel"), PANELS, ids=[f"{name}: {panel['title']}" for name, panel in PANELS])
def test_panels_ask_for_what_is_served(name: str, panel: Json) -> None:
    for target in panel["targets"]:
        assert unknown(target["expr"]) == []
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert panel["datasource"]["uid"] == "${datasource}"
    assert (panel["type"] == "table") == any(target["format"] == "table" for target in panel["targets"])


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_lie_beside_each_other(name: str) -> None:
    panels = DASHBOARDS[name]["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= WIDTH
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)


def test_dashboards_are_told_apart_and_offer_the_presets() -> None:
    assert len({dashboard["uid"] for dashboard in DASHBOARDS.values()}) == len(DASHBOARDS) == 5
    for dashboard in DASHBOARDS.values():
        spans = [preset["from"] for preset in dashboard["timepicker"]["quick_ranges"]]
        assert spans == [f"now-{span}" for span in ("30m", "1h", "6h", "12h", "24h", "2d", "7d")]
