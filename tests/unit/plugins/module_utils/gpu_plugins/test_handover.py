# SPDX-License-Identifier: Apache-2.0
"""What has to be gone before a node goes over between a device plugin and the DRA driver."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.handover import Handover, Seen, handover
from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.node import Seen as SeenNode
from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.node import node_state
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.dra.slices import DRIVER
from kube_accel.shared.modes import NODE_MODES, dra_pool

Object = dict[str, Any]
MODE, HELD = "nvidia-device-enable", "kube-accel.io/served-by-another"


def going(
    serves: str,
    target: str,
    *claims: Object,
    labels: Object | None = None,
    annotations: Object | None = None,
    configs: Object | None = None,
    **offer: str,
) -> Handover:
    metadata = {"name": "n", "labels": {MODE: serves, **(labels or {})}, "annotations": annotations or {}}
    node = {"metadata": metadata, "status": {"allocatable": offer}}
    state = node_state(SeenNode({"resources": [node]}, {"gpu_plugins_mode": target}))
    return handover(Seen("n", vars(state), {"resources": list(claims)}, configs or {}))


def claim(name: str, *devices: tuple[str, str]) -> Object:
    found = [{"driver": driver, "pool": of, "device": "gpu-00", "request": "r"} for driver, of in devices]
    allocation = {"allocation": {"devices": {"results": found}}} if found else {}
    return {"metadata": {"namespace": "team", "name": name}, "status": allocation}


@given(st.sampled_from(["", *NODE_MODES]), st.sampled_from(NODE_MODES))
def test_node_goes_over_between_plugin_and_driver_alone(serves: str, target: str) -> None:
    assert going(serves, target).due is ((serves == "dra") != (target == "dra") and serves != "")


@given(st.sampled_from([mode for mode in NODE_MODES if mode != "cgpu"]), st.sampled_from(NODE_MODES))
def test_cut_off_node_is_still_due_and_ends_without_the_hold(serves: str, target: str) -> None:
    first = going(serves, target)
    labels = {MODE: serves, **first.held_labels}
    node = {"metadata": {"name": "n", "labels": labels}}
    state = node_state(SeenNode({"resources": [node]}, {"gpu_plugins_mode": target}))
    assert handover(Seen("n", vars(state))).due is first.due
    assert state.wanted_labels[HELD] is None
    # As does one that is to stay as it was.
    back = node_state(SeenNode({"resources": [node]}, {"gpu_plugins_mode": serves}))
    assert (back.switching, back.wanted_labels[HELD]) == (False, None)


def test_claims_of_the_node_are_waited_for() -> None:
    ours, other = (DRIVER, dra_pool("n")), (DRIVER, dra_pool("other"))
    claims = (
        claim("mine", ours),
        claim("second", other, ours),
        claim("other", other),
        claim("theirs", ("gpu.nvidia.com", dra_pool("n"))),
        claim("pending"),
    )
    assert going("dra", "pgpu", *claims).claims == ["team/mine", "team/second"]


@pytest.mark.parametrize(
    ("offered", "left"),
    [
        ({"nvidia.com/gpu": "0", "cpu": "8"}, []),
        ({"nvidia.com/gpu": "1", "cpu": "8", "example.com/fpga": "1"}, ["nvidia.com/gpu"]),
        ({"aliyun.com/gpu-mem": "15", "nvidia.com/mig-1g.5gb": "7"}, ["aliyun.com/gpu-mem", "nvidia.com/mig-1g.5gb"]),
    ],
)
def test_what_kubelet_offers_for_a_plugin_is_waited_for(offered: dict[str, str], left: list[str]) -> None:
    assert going("pgpu", "dra", **offered).offered == left


def test_what_is_no_gpu_is_not_waited_for() -> None:
    """Names of NVIDIA's that are no GPUs, as its network operator has them, stay while the node goes over."""
    others = {"nvidia.com/hostdev": "8", "nvidia.com/mlnxnics": "2"}
    assert going("pgpu", "dra", **others).offered == []
    assert going("pgpu", "dra", **others, **{"nvidia.com/gpu.shared": "4"}).offered == ["nvidia.com/gpu.shared"]


@pytest.mark.parametrize(
    "config",
    [
        {"sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "rename": "tenth", "replicas": 10}]}}},
        "sharing: {mps: {resources: [{name: nvidia.com/gpu, rename: nvidia.com/tenth, replicas: 10}]}}",
    ],
)
def test_what_a_configuration_renames_is_waited_for(config: object) -> None:
    offered = {"nvidia.com/tenth": "40", "nvidia.com/hostdev": "8"}
    configs = {"odd": "[", "worse": "sharing: 3", "none": None, "c": config}
    assert going("pgpu", "dra", configs=configs, **offered).offered == ["nvidia.com/tenth"]


def test_what_the_plugin_wrote_is_removed_and_no_more() -> None:
    told = {"kube-accel.io/labels": "nvidia.com/gpu.count", "kube-accel.io/taint": "{}"}
    left = going("pgpu", "dra", annotations=told, labels={"nvidia.com/gpu.count": "8", "theirs": "x"}).left
    assert left["labels"] == {"nvidia.com/gpu.count": None}
    assert set(left["annotations"]) == {"kube-accel.io/inventory", "kube-accel.io/labels", "kube-accel.io/mig-configs"}


@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda each: st.lists(each) | st.dictionaries(st.text(), each))
)
def test_claims_of_any_form_are_read(odd: object) -> None:
    claims: list[Any] = [odd, {"status": odd}, {"status": {"allocation": {"devices": odd}}}]
    claims.append({"status": {"allocation": {"devices": {"results": odd}}}})
    assert going("dra", "pgpu", *claims).claims == []
