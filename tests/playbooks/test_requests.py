# SPDX-License-Identifier: Apache-2.0
"""What site.yml asks the API server when nothing needs a change: as much with four nodes as with two."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bench.controller import MODES, Site, run_site, running_site
from sim.cluster import apiserver

pytestmark = pytest.mark.full
CLIENT = "OpenAPI-Generator"
"""What Ansible's modules call themselves."""


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Requests of Ansible's modules, by method and path."""
    counted: Counter[str] = Counter()
    handle = apiserver._Handler._handle

    def count(handler: Any) -> None:
        if handler.headers.get("User-Agent", "").startswith(CLIENT):
            counted[f"{handler.command} {handler.path}"] += 1
        handle(handler)

    monkeypatch.setattr(apiserver._Handler, "_handle", count)
    return counted


def asked(site: Site, requests: Counter[str], log: Path) -> Counter[str]:
    """The requests of a run that changes nothing."""
    requests.clear()
    cost = run_site(site.inventory(), 4, log)
    assert not any(counted["changed"] for counted in cost.recap.values()), log.read_text()
    return Counter(requests)


def test_site_asks_the_api_server_as_often_for_more_nodes(requests: Counter[str], tmp_path: Path) -> None:
    with running_site() as site:
        site.add(len(MODES))
        run_site(site.inventory(), 4, tmp_path / "first.log")
        few = asked(site, requests, tmp_path / "few.log")
        site.add_copies(len(MODES))
        many = asked(site, requests, tmp_path / "many.log")
    assert sum(few.values()) > 0
    assert many == few
