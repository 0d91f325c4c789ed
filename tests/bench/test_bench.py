# SPDX-License-Identifier: Apache-2.0
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import Bench, benches
from bench.__main__ import main as every_bench
from bench.controller import copy_host, unit_name
from bench.controller import measure as measure_site
from bench.dra import Effort as DraEffort
from bench.dra import measure as measure_dra
from bench.interposer import Effort as InterposerEffort
from bench.interposer import measure as measure_interposer
from bench.measure import Result, Series, cpu_seconds, process_tree, pss_bytes, series, table
from bench.metrics import Effort as MetricsEffort
from bench.metrics import measure as measure_metrics
from bench.plugin import PEER, Effort, measure, ours
from bench.scheduler import read_steps
from kube_accel.model import Mode

MIB = 1 << 20
BUSY_CHILD = """
import subprocess, sys, time
block = bytearray(b"x") * (40 << 20)
if len(sys.argv) == 1:
    child = subprocess.Popen([sys.executable, __file__, "child"], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    child.stdout.readline()
begin = time.process_time()
while time.process_time() < begin + 0.2:
    pass
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def parent_and_child(tmp_path):
    """Two processes of 40 MiB each that have used 0.2 s of processor time each."""
    script = tmp_path / "busy.py"
    script.write_text(BUSY_CHILD)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stdin=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.communicate(b"\n")


def test_tree_counts_memory_and_processor_time_of_children(parent_and_child):
    assert len(process_tree(parent_and_child)) == 2
    assert 80 * MIB < pss_bytes(parent_and_child) < 120 * MIB
    assert cpu_seconds(parent_and_child) >= 0.4


def test_memory_is_not_shared_out_to_processes_outside_the_tree(parent_and_child):
    """This process runs the same Python: in the kernel's sum, half of what both use would be missing."""
    kernel = 0
    for pid in process_tree(parent_and_child):
        with Path(f"/proc/{pid}/smaps_rollup").open() as rollup:
            kernel += next(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
    assert pss_bytes(parent_and_child) > kernel * 1024 + MIB


def test_steps_are_the_sums_of_their_histograms():
    text = """# HELP scheduler_framework_extension_point_duration_seconds [STABLE] Latency
scheduler_framework_extension_point_duration_seconds_bucket{extension_point="Filter",status="Success",le="+Inf"} 3
scheduler_framework_extension_point_duration_seconds_sum{extension_point="Filter",status="Success"} 1.5
scheduler_framework_extension_point_duration_seconds_count{extension_point="Filter",status="Success"} 2
scheduler_framework_extension_point_duration_seconds_sum{extension_point="Filter",status="Unschedulable"} 0.5
scheduler_framework_extension_point_duration_seconds_count{extension_point="Filter",status="Unschedulable"} 2
scheduler_scheduling_algorithm_duration_seconds_sum 4
scheduler_scheduling_algorithm_duration_seconds_count 8
accel_extender_request_seconds_sum{verb="bind"} 0.25
accel_extender_request_seconds_count{verb="bind"} 1
accel_extender_request_seconds_sum{verb="preemption"} 7
accel_extender_request_seconds_count{verb="preemption"} 0
"""
    assert read_steps(text) == {
        "kube-scheduler chooses a node": (4, 8),
        "its filter plugins": (2, 4),
        "extender binds": (0.25, 1),
    }


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (1, 100), (0, 1)])
def test_quantile_is_a_sample(share, expected):
    assert Series(tuple(range(1, 101)), 0).quantile(share) == expected


def test_series_leaves_the_warm_up_out():
    taken = iter([9.0, 9.0, 3.0, 1.0, 2.0])
    assert series(lambda: next(taken), samples=3, warm_up=2) == Series((1.0, 2.0, 3.0), 2)


def test_series_out_of_time_still_has_a_sample():
    assert series(lambda: 1.0, samples=1000, warm_up=1000, seconds=0) == Series((1.0,), 0)


def test_result_is_a_line_for_machines_and_a_row_for_people():
    own = Result("plugin", "pss_bytes", 3 * MIB, {"gpus": 8}, "two processes")
    other = Result("plugin", "register_seconds", 0.0015, {"gpus": 8}, peer="theirs")
    assert json.loads(own.json()) == {
        "bench": "plugin",
        "metric": "pss_bytes",
        "value": 3 * MIB,
        "params": {"gpus": 8},
    }
    assert json.loads(other.json())["peer"] == "theirs"
    assert [line.split() for line in table([own, other]).splitlines()[1:]] == [
        ["kube-accel", "gpus=8", "pss_bytes", "3.0", "MiB", "two", "processes"],
        ["theirs", "gpus=8", "register_seconds", "1.50", "ms"],
    ]


@pytest.mark.parametrize("mode", [Mode.PGPU, Mode.VGPU])
def test_plugin_bench_measures_the_shipped_command(mode):
    results = measure("8xh100", mode, ours, "", Effort(starts=1, restarts=1, calls=20, idle_seconds=0.1))
    assert [result.metric for result in results] == [
        "register_seconds",
        "idle_cpu_ratio",
        *(["allocate_p99_seconds", "preferred_p99_seconds"][:: -1 if mode is Mode.PGPU else 1]),
        *(["prestart_p99_seconds"] if mode is not Mode.PGPU else []),
        "after_calls_cpu_ratio",
        "reregister_seconds",
        "pss_bytes",
    ]
    assert all(result.params == {"gpus": 8, "mode": mode.value} for result in results)
    assert all(result.value > 0 for result in results if not result.metric.endswith("cpu_ratio"))


def test_dra_bench_measures_the_shipped_command():
    results = measure_dra(DraEffort(claims=5, failures=1, settling_seconds=0, idle_seconds=0.1))
    assert [result.metric for result in results] == [
        "idle_cpu_ratio",
        "prepare_p99_seconds",
        "unprepare_p99_seconds",
        "taint_seconds",
        "pss_bytes",
    ]
    assert all(result.params == {"gpus": 8, "prepared": 40} for result in results)
    assert all(result.value > 0 for result in results if not result.metric.endswith("cpu_ratio"))


@pytest.mark.parametrize(("mode", "containers"), [(Mode.PGPU, 8), (Mode.VGPU, 64)])
def test_metrics_bench_scrapes_the_shipped_command(mode, containers):
    results = measure_metrics(mode, MetricsEffort(20, 2, idle_seconds=0.1, interval=1, settle_seconds=0))
    assert [result.metric for result in results] == ["collect_seconds", "scrape_p99_seconds", "cpu_ratio", "pss_bytes"]
    assert all(result.params == {"gpus": 8, "containers": containers, "mode": mode.value} for result in results)
    assert all(result.value > 0 for result in results if result.metric != "cpu_ratio")


def test_a_copy_of_a_host_names_its_own_place(tmp_path):
    original, longer = tmp_path / "gpu-1", tmp_path / "gpu-10"
    original.mkdir()
    (original / "command").write_text(f"#!/bin/sh\nexec {original}/bin/real {original} {longer}\n")
    (original / "command").chmod(0o755)
    (original / "link").symlink_to(original / "command")
    (original / "near").symlink_to("command")
    (original / f"{unit_name(original)}-var.mount").touch()
    (original / f"{unit_name(longer)}-var.mount").touch()
    copy = tmp_path / "gpu-2"
    copy_host(original, copy)
    assert (copy / "command").read_text() == f"#!/bin/sh\nexec {copy}/bin/real {copy} {longer}\n"
    assert (copy / "command").stat().st_mode & 0o100
    assert (copy / "link").readlink() == copy / "command"
    assert str((copy / "near").readlink()) == "command"
    assert sorted(unit.name for unit in copy.glob("*.mount")) == [
        f"{unit_name(longer)}-var.mount",
        f"{unit_name(copy)}-var.mount",
    ]
    assert unit_name(original).endswith("-gpu\\x2d1")


@pytest.mark.full
def test_controller_bench_runs_the_site_twice(tmp_path):
    results, runs = measure_site(2, 5, tmp_path)
    values = {result.metric: result.value for result in results}
    assert [name for name, _ in runs] == ["first", "noop"]
    assert 10 < values["noop_tasks"] <= 25
    assert all(values[f"{run}_{kind}_bytes"] > 20 * MIB for run in ("first", "noop") for kind in ("pss", "rss"))
    assert all(cost.cpu_seconds > 1 and len(cost.tasks) > 20 for _, cost in runs)


def test_the_interposers_cost_and_error_are_measured(tmp_path):
    results = measure_interposer(tmp_path, InterposerEffort(rounds=20, virtual_seconds=2, real_seconds=1))
    metrics = {result.metric for result in results}
    assert metrics == {
        "call_added_seconds",
        "told_added_seconds",
        "launch_added_seconds",
        "alloc_added_seconds",
        "quota_error_ratio",
    }
    virtual = [r for r in results if r.metric == "quota_error_ratio" and r.params["clock"] == "virtual"]
    assert [r.params["quota"] for r in virtual] == [10, 30, 50, 90]
    assert all(r.value <= 0.05 for r in virtual)


def test_all_benches_are_told_of_in_one_table(capsys):
    def run(bench, metric):
        return lambda: [Result(bench, metric, 3 * MIB, {"gpus": 8})]

    def fail():
        raise RuntimeError("the node did not come")

    code = every_bench(
        [],
        lambda peer: [
            Bench("first", str, run("plugin", "pss_bytes")),
            Bench("absent", lambda: "no kube-scheduler in /bin", run("never", "never_bytes")),
            Bench("broken", str, fail),
            Bench("last", str, run("site", "rss_bytes")),
        ],
    )
    out, err = capsys.readouterr()
    load, *lines = out.splitlines()
    assert re.fullmatch(r"\d+ cores, load average [\d.]+ before and [\d.]+ after", load)
    assert [line.split()[:4] for line in lines[:3]] == [
        ["bench", "who", "params", "metric"],
        ["plugin", "kube-accel", "gpus=8", "pss_bytes"],
        ["site", "kube-accel", "gpus=8", "rss_bytes"],
    ]
    assert [json.loads(line)["bench"] for line in lines[3:]] == ["plugin", "site"]
    assert "not run: absent: no kube-scheduler in /bin" in err
    assert "failed: broken: RuntimeError: the node did not come" in err
    assert code == 1


def test_what_this_machine_lacks_is_named_per_bench(monkeypatch, tmp_path):
    monkeypatch.setattr("cluster.control_plane.BINARIES", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    lacks = {bench.name: bench.lacks() for bench in benches(tmp_path / "peer")}
    assert {name for name, reason in lacks.items() if not reason} == {"extender"}
    assert "kube-scheduler" in lacks["scheduler"]
    assert "kube-scheduler" in lacks["packing"]
    assert lacks["interposer"] == "no gcc"
    assert str(tmp_path / "peer") in lacks[PEER]
