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
from unit.roles.monitoring.history import DAYS, GIB, GPUS, HELD, HOUR, STEP, samples
from unit.roles.monitoring.schema import faults
from unit.roles.monitoring.served import REPOSITORY, unknown

Json = dict[str, Any]
DASHBOARDS: dict[str, Json] = {path.stem: json.loads(path.read_text()) for path in sorted(DIRECTORY.iterdir())}
PANELS = [(name, panel) for name, dashboard in DASHBOARDS.items() for panel in dashboard["panels"]]
VARIABLES = {
    name
    for role in ("gpu_plugins", "dcgm_exporter", "scheduler")
    for name in re.findall(r"^(\w+):", (REPOSITORY / f"roles/{role}/defaults/main.yml").read_text(), re.MULTILINE)
}
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
        return re.sub(r"\$\{?([a-z_]\w*)\}?", lambda match: words[match[1]], text)

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


@pytest.mark.ci
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
    assert there == pytest.approx(len(GPUS) * DAYS * 24, rel=0.01)
    assert total("Chargeback") + total("Free") == pytest.approx(there)
    unknown = sum(
        held.part * (held.end - held.begin) for held in HELD if held.namespace == "sliced" or held.device is not None
    )
    assert total("Chargeback", 1) + total("Chargeback", 2) == pytest.approx(total("Chargeback") - unknown)
    for number in (1, 2, 3):
        told = {
            series["metric"]["namespace"] for series in grafana.ask(panels["Chargeback"]["targets"][number], chosen)
        }
        assert "sliced" not in told, "what it uses is not known"
        assert "team-a" in told
    assert total("Chargeback", 4) == pytest.approx(total("Charged"))


def panel_of(name: str, title: str) -> Json:
    (found,) = (panel for panel in DASHBOARDS[name]["panels"] if panel["title"] == title)
    return found


def by_pod(grafana: Grafana, name: str, title: str, number: int = 0) -> dict[str, float]:
    found = grafana.ask(panel_of(name, title)["targets"][number], everything(DASHBOARDS[name]))
    return {series["metric"]["pod"]: float(series["value"][1]) for series in found}


def test_whole_gpu_that_hardly_runs_is_told_as_wasted(grafana: Grafana) -> None:
    """The notebook has an H100 for itself and uses a hundredth of it; shares and MIG devices are none of it."""
    wasted = by_pod(grafana, "cgpu-app", "Wasted by app")
    assert wasted == {"notebook": pytest.approx(0.99, abs=0.01), "train-0": pytest.approx(0.325, abs=0.01)}
    assert by_pod(grafana, "capacity-chargeback", "Whole GPUs that nobody uses") == wasted
    (part,) = grafana.ask(panel_of("cgpu-app", "Wasted")["targets"][0], everything(DASHBOARDS["cgpu-app"]))
    assert float(part["value"][1]) == pytest.approx(sum(wasted.values()) / 2)
    title = "Apps with a GPU for themselves"
    assert by_pod(grafana, "cgpu-app", title) == {"notebook": 1, "train-0": 1}
    assert by_pod(grafana, "cgpu-app", title, 1)["notebook"] == pytest.approx(0.01, abs=0.005)
    assert by_pod(grafana, "cgpu-app", title, 2) == {"notebook": pytest.approx(0.8), "train-0": pytest.approx(0.8)}


def test_quotas_of_both_kinds_are_shown_beside_each_other(grafana: Grafana) -> None:
    targets = panel_of("capacity-chargeback", "Quotas")["targets"]
    found = [grafana.ask(target, everything(DASHBOARDS["capacity-chargeback"])) for target in targets]
    told = {series["metric"]["resource"]: float(series["value"][1]) for series in found[1]}
    assert told == {"requests.nvidia.com/gpu": 0.5, "requests.aliyun.com/gpu-mem": pytest.approx(4 / 15)}
    assert {series["metric"]["namespace"] for series in found[0]} == {"team-a", "team-b"}


@pytest.mark.parametrize(("absent", "told"), [("accel_pending_gpu_pods", ["0"]), ("accel_", [])])
def test_no_pod_waits_is_told_from_no_extender_is_heard(grafana: Grafana, absent: str, told: list[str]) -> None:
    expression = panel_of("capacity-chargeback", "Pods that wait")["targets"][1]["expr"].replace(absent, "absent_")
    assert [series["value"][1] for series in grafana.server.query(expression, grafana.end)] == told


def test_mig_devices_are_told_by_profile_and_holder(grafana: Grafana) -> None:
    chosen = everything(DASHBOARDS["mig-devices"])
    (row,) = grafana.ask(panel_of("mig-devices", "Who has which MIG device")["targets"][0], chosen)
    labels = {"namespace": "research", "pod": "cut", "profile": "3g.20gb", "index": "0", "slot": "1"}
    assert labels.items() <= row["metric"].items()
    (free,) = grafana.ask(panel_of("mig-devices", "Free MIG devices")["targets"][0], chosen)
    assert free["metric"]["profile"] == "1g.5gb"
    (held,) = grafana.ask(panel_of("mig-devices", "Held")["targets"][0], chosen)
    assert float(held["value"][1]) == 0.5


def test_counters_of_a_real_exporter_are_shown_at_their_gpu(grafana: Grafana) -> None:
    for name, title, tensor in (("node-monitoring", "Pipes", 0.92926), ("mig-devices", "Pipes", 0.930433)):
        (target,) = (each for each in panel_of(name, title)["targets"] if "PIPE_TENSOR" in each["expr"])
        found = grafana.ask(target, everything(DASHBOARDS[name]))
        told = {series["metric"]["node"]: {float(value) for _, value in series["values"]} for series in found}
        assert told["gpu-e"] == {tensor}
        assert {series["metric"].get("GPU_I_PROFILE") for series in found} == (
            {"1g.5gb"} if name == "mig-devices" else {None}
        )


def test_pod_that_bursts_between_scrapes_keeps_its_size(grafana: Grafana) -> None:
    assert set(by_pod(grafana, "capacity-chargeback", "Could do with less")) == {"cgpu-2"}


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


SOURCES = {
    r"accel_(extender|namespace_gpu_quota)": "extender's metrics",
    r"accel_pending": "gpu_plugins_metrics_pending",
    r"accel_namespace_gpu_quota": "scheduler_quota",
    r"kube_resourcequota": "kube-state-metrics",
    r"accel_(mig|container_mig)_": "MIG mode",
    r"DCGM_": "dcgm_exporter_enabled",
    r"_(pipe|sm|engine)_active_ratio|_dram_": "gpu_plugins_metrics_profiling",
    r"accel_gpu_xid": "no error was reported",
    r"alloc_failures": "modes vgpu, cgpu, and dra",
    r'mode="cgpu"': "mode cgpu",
}
"""What a panel says that asks for what is not there on every cluster."""


@pytest.mark.parametrize(("name", "panel"), PANELS, ids=[f"{name}: {panel['title']}" for name, panel in PANELS])
def test_a_panel_without_data_says_what_it_needs(name: str, panel: Json) -> None:
    said = panel["fieldConfig"]["defaults"]["noValue"]
    assert said.startswith("Needs ")
    for asked, words in SOURCES.items():
        if any(re.search(asked, target["expr"]) for target in panel["targets"]):
            assert words in said, asked
    variables = re.findall(r"\b(?:gpu_plugins|dcgm_exporter|scheduler)_\w+", said)
    assert set(variables) <= VARIABLES


@pytest.mark.parametrize("name", DASHBOARDS)
def test_grafana_s_own_schema_takes_the_dashboard(name: str) -> None:
    assert faults(DASHBOARDS[name]) == []


@pytest.mark.parametrize(
    ("place", "value", "fault"),
    [
        (("title",), 7, ".title is 7 and has to be of type"),
        (("panels", 0, "titel"), "x", ".panels[0].titel is not known to Panel"),
        (("panels", 0, "type"), "speedometer", "which is no panel"),
        (("panels", 2, "options", "orientation"), "sideways", ".options.orientation is 'sideways', none of"),
        (("panels", 4, "fieldConfig", "defaults", "custom"), {"fillOpacitty": 1}, "is not known to"),
        (("panels", 0, "targets", 0, "expression"), "up", "is not known to Dataquery"),
        (("panels", 0, "gridPos", "w"), "6", ".gridPos.w is '6' and has to be of type int"),
        (("templating", "list", 1, "type"), "queri", ".type is 'queri', none of"),
    ],
)
def test_what_grafana_s_schema_does_not_have_is_found(place: tuple[str | int, ...], value: object, fault: str) -> None:
    broken = json.loads(json.dumps(DASHBOARDS["cgpu-app"]))
    *way, last = place
    at = broken
    for step in way:
        at = at[step]
    at[last] = value
    assert any(fault in each for each in faults(broken)), faults(broken)


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
    assert len({dashboard["uid"] for dashboard in DASHBOARDS.values()}) == len(DASHBOARDS) == 6
    for dashboard in DASHBOARDS.values():
        spans = [preset["from"] for preset in dashboard["timepicker"]["quick_ranges"]]
        assert spans == [f"now-{span}" for span in ("30m", "1h", "6h", "12h", "24h", "2d", "7d")]
