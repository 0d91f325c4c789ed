# SPDX-License-Identifier: Apache-2.0
"""When a cluster has what serves nodes by dynamic resource allocation, and which nodes it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.dra import (
    Dra,
    NodeSeen,
    Seen,
    devices_offered,
    dra,
    driver_versions,
    node_refusals,
    slices_of,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.node import Seen as SeenNode
from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.node import node_state
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.dra.changes import changes
from kube_accel.dra.partitions import divided
from kube_accel.dra.slices import DRIVER, devices, in_slices
from kube_accel.shared.mig_geometry import Card, Profile
from kube_accel.shared.modes import DRA_SHARE_CLASS
from unit.kube_accel.plugin.fakes import inventory, uuid
from unit.roles.conftest import keeping

Object = dict[str, Any]
HAS_API: Object = {"results": [{"api_found": True, "resources": []}]}
NO_API: Object = {"results": [{"api_found": False, "resources": []}]}
CLASS: Object = {"results": [{"api_found": True, "resources": [{"metadata": {"name": DRIVER}}]}]}
OPTIONS = tuple(f"gpu_plugins_dra_{name}" for name in ("extended_resource", "shares", "fixed_shares", "mig_offers"))
KEPT, DROPPED = keeping(True), keeping(False)
SHARES: Object = {"results": [{"api_found": True, "resources": [{"metadata": {"name": DRA_SHARE_CLASS}}]}]}


def node(
    mode: str = "", version: str = "v1.36.2", runtime: str = "containerd://2.1.4", cut: str = "", **allocatable: str
) -> Object:
    info = {"kubeletVersion": version, "containerRuntimeVersion": runtime}
    labels = ({"nvidia-device-enable": mode} if mode else {}) | ({"kube-accel.io/fixed-shares": cut} if cut else {})
    head = {"name": "n", "labels": labels}
    return {"metadata": head, "status": {"nodeInfo": info, "allocatable": allocatable}}


def slices_with(*names: str, driver: str = DRIVER) -> Object:
    devices = [{"name": name} for name in names]
    return {"resources": [{"spec": {"driver": driver, "nodeName": "n", "devices": devices}}]}


def planned(
    *nodes: Object,
    modes: Object | None = None,
    extended: object = True,
    shares: object = True,
    number: object = 0,
    offers: object = (),
    target: str = "pgpu",
    **more: Any,
) -> Dra:
    hostvars = {host: {"gpu_mode": mode} for host, mode in (modes or {}).items()}
    seen: Object = {"hosts": list(hostvars), "hostvars": hostvars, "device_classes": HAS_API} | more
    options = dict(zip(OPTIONS, (extended, shares, number, offers), strict=True))
    return dra(Seen({"resources": list(nodes)}, {"target": target}, options, "kube-system", "ds", **seen))


def refused(
    found: Object, mode: str = "dra", classes: Object = HAS_API, *slices: Object, cdi: object = True, **more: Any
) -> list[str]:
    state = node_state(SeenNode({"resources": [found]}, {"gpu_plugins_mode": mode}))
    options = {"container_runtime_cdi": cdi}
    seen = NodeSeen("n", vars(state), classes, {"resources": list(slices)}, options, **more)
    return [refusal.code for refusal in node_refusals(seen)]


def of_driver(driver: str, name: str = "n", devices: int = 1) -> Object:
    found = [{"name": f"gpu-{index:02}"} for index in range(devices)]
    return {"spec": {"driver": driver, "nodeName": name, "devices": found, "pool": {"name": "p"}}}


@pytest.mark.parametrize(
    ("nodes", "modes", "more", "made", "extended"),
    [
        ([node("pgpu")], {"n": "pgpu"}, {}, False, ""),
        ([node("pgpu")], {"n": "pgpu"}, {"removed": True}, True, ""),
        ([node("pgpu")], {"n": "pgpu"}, {"removed": True, "device_classes": NO_API}, False, ""),
        ([node("dra")], {}, {}, True, "nvidia.com/gpu"),
        ([node()], {"n": "dra"}, {}, True, "nvidia.com/gpu"),
        ([node("dra")], {}, {"extended": "false"}, True, ""),
        ([node("dra"), node("dra", "v1.35.1")], {}, {}, True, ""),
        ([node("dra"), node("pgpu", "v1.33.1")], {}, {}, True, "nvidia.com/gpu"),
        ([], {"other": "dra"}, {}, True, ""),
    ],
)
def test_objects_are_made_while_a_node_has_the_mode(
    nodes: list[Object], modes: Object, more: Object, made: bool, extended: str
) -> None:
    found = planned(*nodes, modes=modes, **more)
    assert (found.made, found.extended_resource) == (made, extended)


def test_objects_go_with_the_last_node_of_the_mode() -> None:
    assert planned(node("dra"), device_classes=CLASS).unwanted == []
    assert planned(node("pgpu")).unwanted == []
    gone = planned(node("pgpu"), device_classes=CLASS).unwanted
    kinds = [item["kind"] for item in gone]
    assert kinds == ["DaemonSet", "DeviceClass", "ClusterRoleBinding", "ClusterRole", "ServiceAccount", "DeviceClass"]
    # A run that was killed before this one is gone on with.
    assert gone[-1]["metadata"]["name"] == DRIVER


def test_shares_that_a_claim_keeps_after_the_label_are_looked_at_again() -> None:
    """A check takes them for whole. The run sees what is still cut when the node serves."""
    seen: Object = {"hosts": ["h"], "hostvars": STAYS, "slices": slices_with("gpu-00-1of2", "gpu-01")}
    found = planned(node("dra"), **seen)
    assert (found.fixed, found.differs_later) == (True, True)
    assert planned(node("dra"), settled=["h"], **seen).fixed is False
    assert planned(node("dra"), **{**seen, "hostvars": CUT}).differs_later is False


LEAVES: Object = {"h": {"gpu_plugins_node_name": "n", "gpu_mode": "pgpu"}}
STAYS: Object = {"h": {"gpu_plugins_node_name": "n", "gpu_mode": "dra", "gpu_plugins_dra_fixed_shares": 0}}
CUT: Object = {"h": {"gpu_plugins_node_name": "n", "gpu_mode": "dra", "gpu_plugins_dra_fixed_shares": 2}}


@pytest.mark.parametrize(
    ("found", "inventory", "differs", "before", "after"),
    [
        (node("dra"), LEAVES, True, (True, False), (False, False)),
        (node("dra", cut="2"), LEAVES, True, (True, True), (False, False)),
        (node("dra", cut="2"), STAYS, True, (True, True), (True, False)),
        (node("dra", cut="2"), CUT, False, (True, True), (True, True)),
        (node("dra"), STAYS, False, (True, False), (True, False)),
        (node("pgpu"), LEAVES, False, (False, False), (False, False)),
        # It is to be served so from the first.
        (node("pgpu"), CUT, False, (True, True), (True, True)),
    ],
)
def test_what_labels_keep_goes_in_the_run_that_changes_them(
    found: Object, inventory: Object, differs: bool, before: tuple[bool, bool], after: tuple[bool, bool]
) -> None:
    """A check takes labels from the inventory, and a run reads them again. What --limit leaves out stays as it is."""

    def rolled_out(found: Object, *settled: str) -> Dra:
        seen: Object = {"hosts": ["h"], "hostvars": inventory, "device_classes": CLASS, "settled": settled}
        return planned(found, **seen)

    now, checked = rolled_out(found), rolled_out(found, "h")
    assert (now.differs_later, now.made, now.fixed) == (differs, *before)
    assert (checked.differs_later, checked.made, checked.fixed) == (False, *after)
    assert bool(checked.unwanted) is not checked.made
    mode, number = inventory["h"]["gpu_mode"], inventory["h"].get("gpu_plugins_dra_fixed_shares", 0)
    assert rolled_out(node(mode, cut=str(number or ""))) == checked


@pytest.mark.parametrize(
    ("nodes", "more", "shares"),
    [
        ([node("dra")], {"kept": KEPT}, True),
        ([node("dra", "v1.35.1")], {"kept": KEPT}, True),
        ([node("dra")], {"kept": DROPPED}, False),
        ([node("dra")], {"kept": DROPPED, "device_classes": SHARES}, False),
        # Nobody asked.
        ([node("dra")], {"device_classes": SHARES}, True),
        ([node("dra")], {}, False),
        ([node("dra")], {"shares": "no", "kept": KEPT}, False),
        ([node("pgpu")], {"kept": KEPT}, False),
        ([node("pgpu")], {"removed": True}, True),
        # An earlier inventory may have offered them.
        ([node("pgpu")], {"removed": True, "shares": False}, True),
        ([node("pgpu")], {"removed": True, "device_classes": NO_API}, False),
    ],
)
def test_shares_are_offered_where_the_cluster_keeps_them(nodes: list[Object], more: Object, shares: bool) -> None:
    assert planned(*nodes, **more).shares is shares


@pytest.mark.parametrize(
    ("nodes", "more", "asks"),
    [
        ([node("dra")], {}, True),
        ([node("dra")], {"shares": False}, False),
        ([node("dra")], {"device_classes": NO_API}, False),
        ([node("pgpu")], {}, False),
    ],
)
def test_cluster_is_asked_where_shares_are_wanted(nodes: list[Object], more: Object, asks: bool) -> None:
    assert planned(*nodes, **more).asks is asks


@pytest.mark.parametrize(
    ("nodes", "more", "fixed"),
    [
        ([node("dra")], {}, False),
        ([node("dra", cut="4")], {}, True),
        ([node("dra", cut="0")], {}, False),
        ([node("pgpu", cut="4")], {}, False),
        ([node("pgpu")], {"number": "4", "target": "dra"}, True),
        ([node("pgpu")], {"number": 4}, False),
        ([node()], {"hosts": ["h"], "hostvars": {"h": {"gpu_mode": "dra", "gpu_plugins_dra_fixed_shares": 2}}}, True),
        ([node()], {"hosts": ["h"], "hostvars": {"h": {"gpu_mode": "vgpu", "gpu_plugins_dra_fixed_shares": 2}}}, False),
        ([node("pgpu")], {"removed": True}, True),
        ([node("dra")], {"slices": slices_with("gpu-00-1of4")}, True),
        ([node("dra")], {"slices": slices_with("gpu-00", "gpu-01-mig-1g10gb-3")}, False),
        ([node("dra")], {"slices": slices_with("gpu-00-1of4", driver="gpu.nvidia.com")}, False),
    ],
)
def test_fixed_shares_are_offered_where_a_node_is_cut(nodes: list[Object], more: Object, fixed: bool) -> None:
    assert planned(*nodes, **more).fixed is fixed


def test_driver_sees_mig_devices_where_a_host_of_the_mode_is_cut() -> None:
    cut = {"gpu_mode": "dra", "gpu_plugins_mig_config": "small"}
    assert planned(node("dra"), hosts=["a"], hostvars={"a": cut}).mig is True
    assert planned(node("dra"), hosts=["a"], hostvars={"a": {**cut, "gpu_mode": "pgpu"}}).mig is False


def test_class_of_shares_goes_where_they_are_not_offered() -> None:
    assert planned(node("dra"), device_classes=SHARES).unwanted == []
    (found,) = planned(node("dra"), device_classes=SHARES, shares=False).unwanted
    assert found["metadata"]["name"] == DRA_SHARE_CLASS
    assert planned(node("dra"), shares=False).unwanted == []


def test_old_nodes_are_told_what_they_cannot_do() -> None:
    assert planned(node("dra"), kept=KEPT).warnings == []
    claims, shares = planned(node("dra", "v1.34.1"), kept=DROPPED).warnings
    assert "nvidia.com/gpu is served from Kubernetes 1.36" in claims
    assert "DRAConsumableCapacity is off" in shares
    assert planned(node("dra", "v1.34.1"), extended=False, shares=False).warnings == []


def extending(resource: str) -> Object:
    """Our device class, as an API server answers to it."""
    spec: Object = {"extendedResourceName": resource} if resource else {}
    labels = {"app.kubernetes.io/managed-by": "accel.kubernetes"}
    return {"metadata": {"name": DRIVER, "labels": labels}, "spec": spec}


@pytest.mark.parametrize(
    ("tried", "stored", "extended"),
    [
        ("nvidia.com/gpu", None, "nvidia.com/gpu"),
        ("", None, ""),
        # The gate was turned off, or on, since.
        ("", "nvidia.com/gpu", ""),
        ("nvidia.com/gpu", "", "nvidia.com/gpu"),
        # Who was not asked keeps what it has.
        (None, "nvidia.com/gpu", "nvidia.com/gpu"),
        (None, "", ""),
        (None, None, "nvidia.com/gpu"),
    ],
)
def test_resource_is_served_where_the_cluster_keeps_it(tried: str | None, stored: str | None, extended: str) -> None:
    there = [] if stored is None else [extending(stored)]
    kept = {} if tried is None else {"result": extending(tried)}
    classes = {"results": [{"api_found": True, "resources": there}]}
    found = planned(node("dra"), kept_class=kept, kept=KEPT, device_classes=classes)
    assert (found.extended_resource, found.asks_extended) == (extended, True)
    assert [text for text in found.warnings if "DRAExtendedResource is off" in text] == (
        [] if extended else found.warnings
    )
    assert len(found.warnings) == (0 if extended else 1)
    wished = planned(node("dra"), extended=False, kept_class=kept, kept=KEPT, device_classes=classes)
    assert (wished.extended_resource, wished.asks_extended, wished.warnings) == ("", False, [])


NVIDIA, HAMI = "gpu.nvidia.com", "hami-core-gpu.project-hami.io"


@pytest.mark.parametrize(
    ("theirs", "resource", "slices", "yields"),
    [
        (NVIDIA, "nvidia.com/gpu", [NVIDIA], True),
        (HAMI, "nvidia.com/gpu", [NVIDIA, HAMI], True),
        # The driver was taken off all of its nodes.
        (NVIDIA, "nvidia.com/gpu", [DRIVER], False),
        (NVIDIA, "nvidia.com/mig-1g.5gb", [NVIDIA], False),
        (NVIDIA, "", [NVIDIA], False),
        # Of a driver that nobody knows, nobody knows whether it has ended.
        ("gpu.example.com", "nvidia.com/gpu", [], True),
    ],
)
def test_resource_is_left_to_a_driver_that_serves_it(
    theirs: str, resource: str, slices: list[str], yields: bool
) -> None:
    """kube-scheduler goes by the youngest class of a name, so ours would take the pods of the other's nodes."""
    their_class = extending(resource) | {"metadata": {"name": theirs}}
    classes = {"results": [{"api_found": True, "resources": [their_class]}]}
    found = planned(
        node("dra"),
        kept=KEPT,
        kept_class={"result": extending("nvidia.com/gpu")},
        device_classes=classes,
        slices={"resources": [of_driver(each, "other") for each in slices]},
    )
    assert (found.extended_resource, found.yields) == ("" if yields else "nvidia.com/gpu", yields)
    assert [f"DeviceClass {theirs} serves nvidia.com/gpu" in text for text in found.warnings] == [True] * yields


@pytest.mark.parametrize(
    ("found", "more", "codes"),
    [
        (node(), {}, []),
        (node("dra"), {}, []),
        (node(runtime="cri-o://1.34.0"), {}, []),
        (node(runtime=""), {}, []),
        (node(runtime="containerd://1.7.28"), {}, []),
        (node(runtime="containerd://1.7.28"), {"cdi": "false"}, ["dra_cdi"]),
        (node(runtime="containerd://1.6.8"), {}, ["dra_cdi"]),
        (node(runtime="docker://28.0.1"), {}, ["dra_cdi"]),
        (node(version="v1.33.4"), {}, ["dra_kubernetes"]),
        (node(), {"classes": NO_API}, ["dra_kubernetes"]),
        (node(**{"nvidia.com/gpu": "2"}), {}, ["dra_plugin"]),
        (node(**{"tencent.com/vcuda-core": "100"}), {}, ["dra_plugin"]),
        # NVIDIA's network operator offers it.
        (node(**{"nvidia.com/hostdev": "8"}), {}, []),
        (node(**{"nvidia.com/gpu": "2"}), {"plugin_leaves": True}, []),
        (node(**{"nvidia.com/gpu": "0", "example.com/fpga": "1"}), {}, []),
        # What a node leaves, it still offers.
        (node("pgpu", **{"nvidia.com/gpu": "2", "nvidia.com/mig-1g.5gb": "7"}), {}, []),
        (node("pgpu", **{"tencent.com/vcuda-core": "100"}), {}, ["dra_plugin"]),
        (node("dra"), {"mode": "vgpu"}, []),
        (node("dra", **{"nvidia.com/gpu": "2"}), {"mode": "vgpu"}, ["dra_plugin"]),
        (node("dra", **{"nvidia.com/gpu": "2"}), {}, ["dra_plugin"]),
        (node("vgpu", "v1.33.4"), {}, ["dra_kubernetes"]),
        (node("pgpu", "v1.30.0"), {"mode": "pgpu", "classes": NO_API}, []),
        (node("mps"), {"mode": "pgpu"}, []),
    ],
)
def test_node_is_refused_for_what_it_lacks(found: Object, more: Object, codes: list[str]) -> None:
    assert refused(found, **more) == codes


@pytest.mark.parametrize("mode", ["dra", "pgpu", "vgpu"])
def test_other_drivers_keep_any_mode_off_their_node(mode: str) -> None:
    for driver in ("gpu.nvidia.com", "hami-core-gpu.project-hami.io"):
        assert refused(node(), mode, HAS_API, of_driver(driver)) == ["dra_driver"]
        assert refused(node(), mode, HAS_API, of_driver(driver, "other"), of_driver(driver, devices=0)) == []
    assert refused(node(mode), mode, HAS_API, of_driver("compute-domain.nvidia.com")) == []


@pytest.mark.parametrize(
    ("serves", "mode", "codes"),
    [
        ("", "dra", []),
        ("dra", "dra", []),
        ("dra", "pgpu", []),
        ("pgpu", "dra", []),
        ("", "pgpu", ["dra_left"]),
        ("pgpu", "pgpu", ["dra_left"]),
        ("vgpu", "mps", ["dra_left"]),
    ],
)
def test_plugin_is_kept_off_while_our_slices_stay(serves: str, mode: str, codes: list[str]) -> None:
    assert refused(node(serves), mode, HAS_API, of_driver(DRIVER)) == codes
    assert refused(node(serves), mode, HAS_API, of_driver(DRIVER, "other"), of_driver(DRIVER, devices=0)) == []


def offered(slices: Object, name: str) -> int:
    return devices_offered(slices_of(slices, name))


@given(st.lists(st.booleans(), max_size=150), st.data())
def test_devices_count_once_all_slices_of_a_pool_are_there(sick: list[bool], data: st.DataObject) -> None:
    taint = {"taints": [{"key": f"{DRIVER}/unhealthy", "effect": "NoSchedule"}]}
    devices = [{"name": f"gpu-{n:02}", **(taint if ill else {})} for n, ill in enumerate(sick)]
    slices = in_slices(devices)
    written = list(changes([], slices, slices, "n").writes.values())
    assert offered({"resources": written}, "n") == sick.count(False)
    assert offered({"resources": written}, "other") == 0
    missing = data.draw(st.sampled_from(written))
    rest = [each for each in written if each is not missing]
    assert offered({"resources": rest}, "n") == 0


def test_gpu_that_is_cut_counts_once() -> None:
    found = devices(inventory(2), {uuid(0), uuid(1)}, {}, fixed={"gpu-00": 4})
    written = list(changes([], [found], [found], "n").writes.values())
    assert offered({"resources": written}, "n") == 2


@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda each: st.lists(each) | st.dictionaries(st.text(), each))
)
def test_slices_of_any_form_are_counted(odd: object) -> None:
    spec = {"nodeName": "n", "driver": DRIVER, "pool": odd, "devices": odd}
    found = slices_of({"resources": [{"spec": spec}, {"spec": odd}]}, "n")
    assert devices_offered(found) >= 0
    assert driver_versions([*found, {"spec": {"devices": [{"attributes": odd}, odd]}}]) == set()


def test_offered_mig_devices_are_told_to_the_driver() -> None:
    offers = [{"gpus": ["NVIDIA H200*", 3], "profiles": ["1g.18gb"]}]
    found = planned(node("dra"), offers=offers)
    assert (found.mig, json.loads(found.mig_offers)) == (
        True,
        [{"gpus": ["NVIDIA H200*", "3"], "profiles": ["1g.18gb"]}],
    )
    assert (planned(node("dra")).mig, planned(node("dra")).mig_offers) == (False, "")
    with pytest.raises(ValueError, match="gpu_plugins_dra_mig_offers cannot be used: offer 1: '1g' is not the name"):
        planned(node("dra"), offers=[{"profiles": ["1g"]}])
    with pytest.raises(ValueError, match=r"gpu_plugins_dra_mig_offers is .* set it to a list of mappings"):
        planned(node("dra"), offers="1g.18gb")


def test_gpus_are_counted_without_devices_to_be_made() -> None:
    card = Card(0, uuid(0), "NVIDIA H100", 0, enabled=False, profiles=(Profile("1g.10gb", 19, 1, 1, (0, 1), 2),))
    offered = {uuid(0): divided(card, ["1g.10gb"], (), whole=True)}

    def written(*good: str) -> list[Object]:
        found = in_slices(devices(inventory(2), good, {}, divided=offered))
        return [dict(each) for each in changes([], found, found, "n").writes.values()]

    slices = written(uuid(0), uuid(1))
    assert [len(each["spec"].get("devices", ())) for each in slices] == [0, 4]
    assert devices_offered(slices) == 2
    assert devices_offered(written(uuid(1))) == 1
