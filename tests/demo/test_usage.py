# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

import prometheus
from demo.story import Story, until
from demo.usage import Expected, misjudged, period_start, scraped


def test_a_demo_without_a_prometheus_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prometheus, "find", lambda program: None)
    with scraped(tmp_path, ["192.0.2.1:9445"], Story()) as url:
        assert url is None
    assert "NO PROMETHEUS HERE" in capsys.readouterr().out


def test_a_prometheus_scrapes_the_plugins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with scraped(tmp_path, ["192.0.2.1:9445", "192.0.2.2:9445"], Story()) as url:
        if url is None:
            pytest.skip("no prometheus on PATH and none could be unpacked")
        server = prometheus.Prometheus(url)
        targets = until(
            lambda: server.get("targets", state="active")["activeTargets"], "Prometheus to know its targets"
        )
    assert {target["labels"]["instance"] for target in targets} == {"192.0.2.1:9445", "192.0.2.2:9445"}
    assert {target["labels"]["job"] for target in targets} == {"kube-accel"}
    assert "scrapes the 2 plugins" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("began", "start"),
    [(1000.9, "1970-01-01T00:16:40+00:00"), (1058.9, "1970-01-01T00:16:40+00:00"), (0.0, "1970-01-01T00:00:00+00:00")],
)
def test_a_quick_demo_has_a_period_of_a_minute(began: float, start: str) -> None:
    assert period_start(began, 1060.9) == start


REPORT = """GPU-hours from A to B, by Prometheus
Charged is what was allocated

NAMESPACE  MODE  MODEL     GPU-HOURS   USED   IDLE  MEMORY(GiB-h)  COST(EUR)
default    pgpu  Tesla T4      0.372  0.298  0.074         29.633       0.93
(free)     -     Tesla T4      0.280      -      -              -       0.70
TOTAL                          0.652  0.298  0.074         29.633       1.63

RIGHT-SIZING: pods that never used 30 % of the memory they asked for
NAMESPACE  POD        MODE  ASKED(GiB)  PEAK(GiB)  SEEN(h)  ADVICE
default    six-gpus   vgpu      477.88       0.00      0.0  No memory was used. Delete the pod.
default    half-2     vgpu       16.00       2.25      0.0  Ask for tencent.com/vcuda-memory: 11 (2.75 GiB)."""


@pytest.mark.parametrize(
    ("text", "wasteful", "brief", "why"),
    [
        (REPORT, ("half-2", "six-gpus"), (), ""),
        (REPORT, ("six-gpus",), ("half-2",), ""),
        (REPORT.replace("  0.298", "≥ 0.298"), ("half-2", "six-gpus"), (), ""),
        (REPORT, ("half-2", "six-gpus"), ("small-1-spread",), ""),
        (REPORT, ("six-gpus",), (), "half-2, six-gpus ask for more than they use, and not six-gpus"),
        (REPORT.partition("\n\nRIGHT")[0], ("six-gpus",), (), ""),
        (REPORT.replace("0.298  0.074", "0.000  0.372"), (), (), "namespace default used no GPU time in mode pgpu"),
    ],
)
def test_a_report_that_takes_working_pods_for_idle_ends_the_demo(
    text: str, wasteful: tuple[str, ...], brief: tuple[str, ...], why: str
) -> None:
    assert misjudged(text.splitlines(), Expected(frozenset(wasteful), frozenset(brief))) == why
