# SPDX-License-Identifier: Apache-2.0
"""What a daemon keeps in its state directory, where it cannot be read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kube_accel.metrics.meterstate import decode
from kube_accel.nvml.health_store import HealthStore, Remembered
from kube_accel.plugin.configuration.configurator import Configurator
from kube_accel.plugin.mig.manager import MigManager
from kube_accel.plugin.node.condition import News
from kube_accel.plugin.node.condition_reporter import ConditionReporter
from unit.kube_accel.plugin.fakes import LOST, ready

UNREADABLE = [b"", b"[]", b"{}", b"null", b"\xff", b"[" * 100_000, b'{"version":' * 20_000]
nobody: Any = None


@pytest.fixture(params=UNREADABLE, ids=["empty", "list", "object", "null", "not UTF-8", "lists", "objects"])
def state_dir(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    for name in ("configuration.json", "reported.json", "mig.json", "health.json"):
        (tmp_path / name).write_bytes(request.param)
    return tmp_path


def test_wanted_configuration_is_taken_without_an_earlier_one(state_dir: Path) -> None:
    options = SimpleNamespace(config_map="configs", default_config="", node_name="n1", state_dir=state_dir)
    assert Configurator(cast(Any, options), nobody).current is None


def test_all_is_told_where_it_is_not_known_what_was(state_dir: Path) -> None:
    teller = ConditionReporter("n1", state_dir, state_dir, lambda: ready(1, {0: LOST}))
    assert isinstance(teller._next_news(), News)


def test_no_geometry_is_put_back_that_is_not_known(state_dir: Path) -> None:
    assert MigManager(nobody, "n1", state_dir, nobody, nobody)._put_back() == ""


def test_health_begins_anew(state_dir: Path) -> None:
    assert HealthStore(state_dir / "health.json").load() == Remembered()


def test_charges_begin_anew(state_dir: Path) -> None:
    assert decode((state_dir / "health.json").read_text(errors="replace")) is None
