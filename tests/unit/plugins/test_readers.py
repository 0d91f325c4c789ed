# SPDX-License-Identifier: Apache-2.0
"""Whatever of the modules reads the API server's answers is tried with odd ones: a new reader fails here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.api_server import (
    ApiServerError,
    explained,
    objects,
    one,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis import (
    collect as gpu_collect,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis import (
    verdict as gpu_diagnosis,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.api_json import ApiJsonError
from ansible_collections.accel.kubernetes.plugins.modules import gpu_usage_report

from odd_values import Path as FieldPath
from odd_values import cases, with_value
from readers import Clients, misnamed, readers, untested
from unit.plugins.module_utils.diagnosis.test_odd_diagnosis import NAMESPACE, Cluster, good, rules
from unit.plugins.odd_api import Client

ROOT = Path(__file__).parents[3] / "plugins"

CLIENTS = Clients(
    types={"K8SClient", "get_api_client"},
    names={"client"},
    methods={"get"},
    functions={"objects", "one", "text_at"},
)
_HERE = "unit/plugins/test_readers.py"
_READERS = "unit/plugins/module_utils/test_odd_readers.py"
_BENCHMARK = "unit/plugins/modules/test_gpu_benchmark.py"
_DIAGNOSIS = "unit/plugins/module_utils/diagnosis/test_odd_diagnosis.py"

_INSPECTED = "unit/kube_accel/test_odd_objects.py"
_COLLECT = "module_utils/diagnosis/collect.py::Collector"

TABLE = {
    "module_utils/benchmark/run.py::Run.log": f"{_BENCHMARK}::test_an_odd_log_is_a_figure_or_none",
    "module_utils/benchmark/run.py::Run.state": f"{_BENCHMARK}::test_an_odd_pod_of_it_is_judged_or_named",
    "module_utils/benchmark/surroundings.py::exists": f"{_BENCHMARK}::test_an_odd_object_beside_it_hides_nothing",
    "module_utils/benchmark/surroundings.py::look": f"{_BENCHMARK}::test_an_odd_node_is_seen_or_named",
    "module_utils/benchmark/surroundings.py::scheduler": f"{_BENCHMARK}::test_an_odd_object_beside_it_hides_nothing",
    "module_utils/cluster/api_server.py::_answer": f"{_HERE}::test_an_answer_that_the_client_cannot_take_is_named",
    f"{_COLLECT}._all": f"{_DIAGNOSIS}::test_an_odd_object_beside_it_keeps_nothing_from_the_bundle",
    f"{_COLLECT}._one": f"{_DIAGNOSIS}::test_a_pod_that_is_odd_itself_is_diagnosed_by_the_rest",
    f"{_COLLECT}._page": f"{_HERE}::test_an_odd_text_keeps_nothing_from_the_diagnosis",
    f"{_COLLECT}.log": f"{_HERE}::test_an_odd_text_keeps_nothing_from_the_diagnosis",
    f"{_COLLECT}.version": f"{_HERE}::test_an_odd_version_is_a_problem_or_none",
    "modules/cf_crl.py::get": f"{_READERS}::test_odd_wanted_definition_is_named_with_a_remedy",
    "modules/cf_crl.py::others": f"{_READERS}::test_an_odd_definition_keeps_none_from_being_written",
    "modules/cf_crl_info.py::main": f"{_READERS}::test_an_odd_definition_is_listed_or_named_beside_the_others",
    "modules/cuda_compat.py::Asked._get": f"{_READERS}::test_an_odd_container_is_named_and_the_others_are_judged",
    "modules/gpu_inspect_info.py::main": f"{_INSPECTED}::test_an_odd_pod_that_waits_is_shown_or_named",
    "modules/gpu_migration_info.py::cluster.listed": "unit/plugins/module_utils/migration/test_odd_migration.py"
    "::test_an_odd_object_leaves_the_plan_of_the_others_and_is_told",
    "modules/gpu_usage_report.py::_from_plugins": f"{_HERE}::test_an_odd_object_of_a_list_costs_itself_alone",
    "modules/gpu_usage_report.py::_units": f"{_HERE}::test_an_odd_namespace_is_summed_up_or_named",
    "module_utils/cluster/claims.py::claim_objects.read": "unit/plugins/module_utils/shared/test_claim_view.py"
    "::test_odd_object_costs_itself_alone",
    "modules/kubelet_info.py::main": "unit/plugins/module_utils/cluster/test_kubelet.py"
    "::test_an_odd_configuration_is_read_or_named",
    "modules/node_condition.py::found": f"{_READERS}::test_a_condition_is_found_beside_an_odd_one",
    "modules/node_taint.py::found": f"{_READERS}::test_a_taint_is_put_beside_an_odd_one",
}
"""The test that tries odd values of what each place reads."""


def test_every_reader_has_a_test_of_odd_answers() -> None:
    assert readers(ROOT, CLIENTS) == TABLE.keys()
    assert untested(TABLE) == set()


def test_every_client_is_called_one() -> None:
    assert misnamed(ROOT, CLIENTS) == set()


def test_whoever_logs_in_has_a_reader_of_the_table() -> None:
    """A module reads by functions of its own, the collector, those of its room, or those of kubernetes.core."""
    who = {path for path in (ROOT / "modules").glob("*.py") if "get_api_client(" in path.read_text()}
    others = ("Collector(", "benchmark.surroundings import", "K8sService(")
    by_others = {path for path in who if any(words in path.read_text() for words in others)}
    assert {path.name for path in who - by_others} == {
        Path(place.split("::")[0]).name for place in TABLE if place.startswith("modules/")
    }


ODD = {"metadata": {"name": "odd", "namespace": "team", "labels": {"a": "b"}}, "spec": {}, "status": {}}
FIELDS: list[FieldPath] = [*((key,) for key in ODD), *(("metadata", key) for key in ODD["metadata"])]


@pytest.mark.parametrize(("path", "values"), cases(FIELDS))
def test_an_odd_object_of_a_list_costs_itself_alone(path: FieldPath, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        problems: list[str] = []
        items = [{"metadata": {"name": "a"}}, with_value(ODD, path, value), {"metadata": {"name": "b"}}]
        found = list(objects(Client({"Pod": items}), "Pod", problems=problems))
        assert [items[0], items[2]] == [each for each in found if each in (items[0], items[2])], name
        assert len(found) + len(problems) == 3, name
        assert all("see kubectl get pod" in problem for problem in problems), name


@pytest.mark.parametrize(("path", "values"), cases([*FIELDS, ("metadata", "labels", "a")]))
def test_an_odd_namespace_is_summed_up_or_named(path: FieldPath, values: Mapping[str, Any]) -> None:
    whole = [{"metadata": {"name": name, "labels": {"a": "c"}}} for name in ("first", "last")]
    for name, value in values.items():
        problems: list[str] = []
        namespaces = [whole[0], with_value(ODD, path, value), whole[1]]
        units = gpu_usage_report._units(Client({"Namespace": namespaces}), "a", problems)
        assert units["first"] == units["last"] == "c", name
        assert all(isinstance(text, str) for text in (*units, *units.values())), name
        assert all("see kubectl get namespace" in problem for problem in problems), name


class Refusing(Client):
    """The client makes objects of what came, which a list with an item that is none does not survive."""

    def __init__(self, error: Exception) -> None:
        super().__init__({})
        self.error = error

    def get(self, kind: str, **selected: Any) -> Any:
        raise self.error


@pytest.mark.parametrize("error", [TypeError("no container"), AttributeError("x"), ValueError("not JSON"), KeyError(1)])
def test_an_answer_that_the_client_cannot_take_is_named(error: Exception) -> None:
    with pytest.raises(ApiJsonError, match=r"^Pods cannot be read: "):
        list(objects(Refusing(error), "Pod"))
    with (
        pytest.raises(ApiServerError, match=r"^pod team/x cannot be read: .*; see kubectl --namespace team get pod x "),
        explained(),
    ):
        one(Refusing(error), "Pod", "x", "team")


TEXTS = (
    "",
    "\x00\x1b[2J",
    "{" * 9999,
    "x" * (1 << 17),
    "kube_accel_gpu_info{",
    'a{b="\\',
    "a 1e999\nb NaN\nc -1",
    "\ud800",
    "9" * 9999,
)


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_an_odd_text_keeps_nothing_from_the_diagnosis(text: str) -> None:
    collector = gpu_collect.Collector(Cluster(good()), NAMESPACE)
    with patch.object(gpu_collect, "text_at", lambda client, path, most: text):
        evidence = collector.evidence(("team", "train"), "")
    found = gpu_diagnosis.diagnose(evidence)
    document = gpu_diagnosis.document(found, gpu_diagnosis.looked_at(evidence), collector.problems)
    json.dumps(document)
    assert {"quota_oom", "plugin_down"} <= set(rules(document))


@pytest.mark.parametrize("text", [*TEXTS, "[]", "7", "null", "{}", '{"gitVersion": 7}', '{"gitVersion": null}'])
def test_an_odd_version_is_a_problem_or_none(text: str) -> None:
    collector = gpu_collect.Collector(Cluster(good()), NAMESPACE)
    with patch.object(gpu_collect, "text_at", lambda client, path, most: text):
        assert collector.version() == ""
    assert collector.problems[0].startswith("version of the API server: ")
