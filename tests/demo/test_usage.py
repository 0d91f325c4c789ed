# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

import prometheus
from demo.story import Story, until
from demo.usage import scraped


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
