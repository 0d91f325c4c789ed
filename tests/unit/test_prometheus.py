# SPDX-License-Identifier: Apache-2.0
"""The helper that other tests ask a real Prometheus with."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from prometheus import Refused, backfill, serve


def test_what_was_written_is_answered(tmp_path: Path) -> None:
    now = int(time.time())
    values = [f'a_thing{{of="mine"}} {at} {now - 7200 + 60 * at}' for at in range(60)]
    samples, data = tmp_path / "samples", tmp_path / "data"
    samples.write_text("\n".join(["# TYPE a_thing gauge", *values, "# EOF\n"]))
    backfill(samples, data)
    configuration = tmp_path / "prometheus.yml"
    configuration.write_text("scrape_configs: []\n")
    with serve(configuration, data) as server:
        (series,) = server.query("a_thing", now - 3600)
        assert series["metric"] == {"__name__": "a_thing", "of": "mine"}
        assert series["value"][1] == "59"
        (series,) = server.query_range("a_thing", now - 7200, now - 3660, 60)
        assert [value for _, value in series["values"]] == [str(at) for at in range(60)]
        with pytest.raises(Refused, match="parse error"):
            server.query("a_thing{", now)


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    configuration = tmp_path / "prometheus.yml"
    configuration.write_text("no_such_setting: 1\n")
    with pytest.raises(AssertionError, match="no_such_setting"), serve(configuration, tmp_path / "data"):
        pass
