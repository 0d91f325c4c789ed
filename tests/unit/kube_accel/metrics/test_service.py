# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

from kube_accel.metrics import families
from kube_accel.metrics.exposition import Writer
from kube_accel.metrics.service import Call, Outcome, Service, Services
from unit.kube_accel.metrics.page import Page

CALLS = {"allocate": Call({Outcome.OK: 3, Outcome.REFUSED: 1, Outcome.FAILED: 0}, 0.5), "preferred": Call()}
SERVICE = Service(True, True, CALLS)


def page(services: Services, now: float, **told: Service) -> Page:
    made = Page(Writer().page(services.families(told, now)))
    made.lint()
    return made


def test_calls_are_told_by_outcome_and_by_name() -> None:
    found = page(Services("n"), 5, gpu=SERVICE)
    outcomes = {"ok": 3, "refused": 1, "failed": 0}
    assert {o: found.value(families.ALLOCATE_REQUESTS, resource="gpu", outcome=o) for o in outcomes} == outcomes
    assert found.value(families.PLUGIN_CALLS, resource="gpu", call="allocate") == 4
    assert found.value(families.PLUGIN_CALL_SECONDS, resource="gpu", call="allocate") == 0.5
    assert found.value(families.PLUGIN_CALLS, resource="gpu", call="preferred") == 0


def test_the_last_time_that_a_resource_could_be_had_stays() -> None:
    services = Services("n")
    assert not page(services, 5, gpu=replace(SERVICE, registered=False)).of(families.PLUGIN_HEALTHY_AT)
    assert page(services, 6, gpu=SERVICE).value(families.PLUGIN_HEALTHY_AT, resource="gpu") == 6
    assert page(services, 7, gpu=replace(SERVICE, healthy=False)).value(families.PLUGIN_HEALTHY_AT) == 6
    unregistered = page(services, 8, gpu=replace(SERVICE, registered=False))
    assert unregistered.value(families.PLUGIN_HEALTHY_AT) == 6
    assert unregistered.value(families.PLUGIN_REGISTERED) == 0
    assert not page(services, 9).families
