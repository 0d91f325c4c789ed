# SPDX-License-Identifier: Apache-2.0
"""Whatever of the daemons reads answers of the API server or kubelet is tried with odd ones: a new reader fails."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import kube_accel
from kube_accel.inspect.kubectl import Kubectl, KubectlError
from kube_accel.kube.api import ApiClient
from kube_accel.kube.client import KubeClient
from odd_values import Path as FieldPath
from odd_values import cases, with_value
from readers import Clients, misnamed, readers, untested

ROOT = Path(kube_accel.__file__).parent


def methods(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


CLIENTS = Clients(
    types={"KubeClient", "ApiClient", "PodResourcesClient", "Lister", "Api", "Kubectl"}
    | {"client_in_cluster", "client_from_kubeconfig", "in_cluster"},
    names={"client", "api", "lister", "kubectl"},
    methods=methods(KubeClient) | methods(ApiClient) | methods(Kubectl) | {"list"},
    functions={"Watch"},
)
_EXTENDER = "unit/kube_accel/extender/test_odd_objects.py"
_NOT_BOUND = f"{_EXTENDER}::test_an_odd_answer_about_a_pod_is_why_it_is_not_bound"
_NODE = "unit/kube_accel/plugin/test_odd_answers.py"
_MIG = "unit/kube_accel/plugin/mig/test_odd_nodes.py"
_SHOWN = "unit/kube_accel/test_odd_objects.py"
_DRA = "unit/kube_accel/dra/test_odd_answers.py"
_KUBELET = "unit/kube_accel/kube/test_podresources.py::test_an_odd_text_costs_its_container_alone"

TABLE = {
    "cli/inspect.py::_claims.read": "unit/plugins/module_utils/shared/test_claim_view.py"
    "::test_odd_object_costs_itself_alone",
    "cli/inspect.py::_look": "unit/kube_accel/test_readers.py::test_an_odd_object_of_kubectl_costs_itself_alone",
    "cli/validate.py::check_pod_resources": _KUBELET,
    "cli/validate_shares.py::check_ledger": _KUBELET,
    "dra/pending.py::PendingClaims._is_ours": "unit/kube_accel/dra/test_pending.py::test_odd_claim_costs_its_pod_alone",
    "dra/pods.py::ClaimPods._read": f"{_DRA}::test_odd_pod_owns_no_process_or_has_a_name",
    "dra/preparer.py::Preparer._exists": f"{_DRA}::test_odd_claim_is_refused_in_words_or_prepared",
    "dra/preparer.py::Preparer.prepare": f"{_DRA}::test_odd_claim_is_refused_in_words_or_prepared",
    "dra/publisher.py::Publisher.__init__": f"{_DRA}::test_odd_slice_is_written_over_or_told",
    "dra/publisher.py::Publisher._read_node": f"{_DRA}::test_odd_node_is_told_or_served",
    "dra/publisher.py::Publisher._reread": f"{_DRA}::test_odd_slice_that_is_read_again_harms_nothing",
    "dra/publisher.py::Publisher._write": f"{_DRA}::test_odd_answer_to_a_write_is_told",
    "extender/daemon.py::Extender._watched": f"{_EXTENDER}::test_an_odd_pod_that_waits_costs_itself_alone",
    "extender/leader_lease.py::LeaderLease._read": f"{_EXTENDER}::test_an_odd_lease_is_taken_or_told",
    "extender/leader_lease.py::LeaderLease.change": _NOT_BOUND,
    "extender/leader_lease.py::LeaderLease.look": _NOT_BOUND,
    "kube/watch.py::Watch._follow": "unit/kube_accel/kube/test_watch.py::test_an_odd_object_costs_itself_alone",
    "kube/watch.py::Watch._get": "unit/kube_accel/kube/test_watch.py::test_an_odd_object_costs_itself_alone",
    "plugin/configuration/configurator.py::Configurator._watches": f"{_NODE}::"
    "test_odd_node_leaves_its_configuration_and_is_reported",
    "plugin/daemon.py::Daemon._configure": _KUBELET,
    "plugin/share_runtime.py::Listing.list": _KUBELET,
    "plugin/kubelet/holdings.py::HoldingsReader._ask": _KUBELET,
    "plugin/node/dra_drivers.py::DraDrivers._watch": f"{_DRA}::test_odd_slice_hides_no_driver_from_a_plugin",
    "plugin/node/labels.py::LabelWriter.run.write": f"{_NODE}::test_an_odd_node_is_labelled_or_told",
    "plugin/node/pending_pods.py::count": "unit/kube_accel/plugin/node/test_pending_pods.py"
    "::test_an_odd_pending_pod_costs_itself_alone",
    "plugin/node/pod_warnings.py::PodWarnings.look": "unit/kube_accel/plugin/node/test_pod_warnings.py"
    "::test_an_odd_pod_of_the_node_costs_itself_alone",
    "plugin/mig/drain.py::Drain.empty": f"{_MIG}::test_an_odd_node_is_cut_or_told_and_is_cut_once_it_is_mended",
    "plugin/mig/drain.py::Drain.listed": _KUBELET,
    "plugin/mig/drain.py::Drain.pods": f"{_MIG}::test_who_still_leaves_a_node_is_known_beside_an_odd_pod",
    "plugin/mig/manager.py::MigManager._read": f"{_MIG}::test_an_odd_node_is_cut_or_told_and_is_cut_once_it_is_mended",
    "plugin/mig/manager.py::MigManager.run": f"{_MIG}::test_an_odd_node_is_cut_or_told_and_is_cut_once_it_is_mended",
    "plugin/tenancy/overrides_watch.py::OverridesWatch.__init__": f"{_NODE}::"
    "test_an_odd_override_costs_itself_alone_and_is_told",
    "plugin/allocation/pods_watch.py::PodsWatch.__init__": f"{_SHOWN}::test_a_node_knows_its_other_pods",
    "plugin/allocation/pods_watch.py::PodsWatch._list": f"{_SHOWN}::test_a_node_knows_its_other_pods",
    "plugin/kubelet/device_exclusivity.py::DeviceExclusivity.forget": _KUBELET,
    "plugin/kubelet/device_exclusivity.py::listed_now": _KUBELET,
}
"""The test that tries odd values of what each place reads."""


def test_every_reader_has_a_test_of_odd_answers() -> None:
    assert readers(ROOT, CLIENTS) == TABLE.keys()
    assert untested(TABLE) == set()


def test_every_client_is_called_one() -> None:
    assert misnamed(ROOT, CLIENTS) == set()


def test_a_new_reader_is_found(tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text(
        "class A:\n    def f(self, client: KubeClient, k: KubeClient | None) -> None:\n"
        "        client.post('/x', {})\n        print(client.get('/x'))\n"
        "    def g(self) -> None:\n        self._client.post('/x', {})\n"
    )
    assert readers(tmp_path, CLIENTS) == {"new.py::A.f"}
    assert misnamed(tmp_path, CLIENTS) == {"new.py::k"}
    assert untested({"new.py::A.f": "unit/kube_accel/test_readers.py::nothing"})


def test_only_one_place_reads_pod_resources_messages() -> None:
    found = {path.name for path in ROOT.rglob("*.py") if "import podresources_pb2" in path.read_text()}
    assert found == {"podresources.py"}


ODD = {"metadata": {"name": "odd", "namespace": "team", "labels": {"a": "b"}}, "spec": {}, "status": {}}
FIELDS: list[FieldPath] = [*((key,) for key in ODD), *(("metadata", key) for key in ODD["metadata"])]


@pytest.mark.parametrize(("path", "values"), cases(FIELDS))
def test_an_odd_object_of_kubectl_costs_itself_alone(
    path: FieldPath, values: Mapping[str, Any], tmp_path: Path
) -> None:
    for name, value in values.items():
        odd = with_value(ODD, path, value)
        problems: list[str] = []
        found = kubectl(tmp_path, {"items": [good("a"), odd, good("b")]}).items("pod", problems=problems)
        assert [each for each in found if each in (good("a"), good("b"))] == [good("a"), good("b")], name
        assert len(found) + len(problems) == 3, name
        assert all("kubectl get pod" in problem for problem in problems), name


@pytest.mark.parametrize("answer", [[], None, 7, {}, {"items": 7}, {"items": None}])
def test_an_answer_of_kubectl_that_is_no_list_is_named(answer: object, tmp_path: Path) -> None:
    with pytest.raises(KubectlError, match="get pods: not a list"):
        kubectl(tmp_path, answer).items("pod", problems=[])


@pytest.mark.parametrize("item", [None, 7, "x", [], [[]]])
def test_an_item_of_kubectl_that_is_no_object_is_a_problem(item: object, tmp_path: Path) -> None:
    problems: list[str] = []
    assert kubectl(tmp_path, {"items": [item, good("a")]}).items("pod", problems=problems) == [good("a")]
    assert len(problems) == 1


def good(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}}


def kubectl(tmp_path: Path, answer: object) -> Kubectl:
    """One that prints this answer."""
    (tmp_path / "answer").write_text(json.dumps(answer))
    program = tmp_path / "kubectl"
    program.write_text(f"#!/bin/sh\nexec cat {tmp_path}/answer\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return Kubectl([str(program)])
