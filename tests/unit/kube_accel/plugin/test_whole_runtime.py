# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

from kube_accel.model import Inventory
from kube_accel.plugin.configuration.file import Configuration
from kube_accel.plugin.whole_runtime import WholeGpus
from kube_accel.shared.offers import Replication
from kube_accel.sharing.mig import Strategy
from kube_accel.sharing.whole import Part, whole
from unit.kube_accel.plugin.fakes import STARTING, ready, uuid


def by_numa_node(inventory: Inventory) -> dict[str, tuple[Part, ...]]:
    """A resource for each half of the node, and one that no GPU has."""
    halves = {0: "nvidia.com/left", 1: "nvidia.com/right"}
    found: dict[str, tuple[Part, ...]] = dict.fromkeys((*halves.values(), "nvidia.com/neither"), ())
    for gpu in inventory.gpus:
        if gpu.numa_node is not None:
            found[halves[gpu.numa_node]] += (whole(gpu),)
    return found


def test_resources_are_those_that_the_gpus_make() -> None:
    gpus = WholeGpus(layout=by_numa_node)
    assert set(gpus.resources) == {"nvidia.com/gpu"}
    gpus.see(ready(4))
    assert set(gpus.resources) == {"nvidia.com/left", "nvidia.com/right"}
    assert {part.id for part in gpus.parts} == {uuid(i) for i in range(4)}


def test_resources_stay_while_there_is_no_inventory() -> None:
    gpus = WholeGpus(layout=by_numa_node)
    gpus.see(ready(4))
    gpus.see(STARTING)
    assert set(gpus.resources) == {"nvidia.com/left", "nvidia.com/right"}
    assert list(gpus.parts) == []


def test_a_node_without_a_part_offers_none_by_the_usual_name() -> None:
    gpus = WholeGpus(layout=by_numa_node)
    gpus.see(ready(1))
    assert set(gpus.resources) == {"nvidia.com/gpu"}
    assert list(gpus.parts) == []


def test_gpus_that_are_not_whole_by_the_usual_name_are_divided() -> None:
    snapshot = ready(3)
    assert snapshot.inventory is not None
    cut = replace(snapshot.inventory.gpus[1], mig_enabled=True)
    gpus = (snapshot.inventory.gpus[0], cut, snapshot.inventory.gpus[2])
    node = replace(snapshot, inventory=replace(snapshot.inventory, gpus=gpus))
    replicas = (Replication("nvidia.com/gpu", "nvidia.com/gpu", 2),)
    for found, divided in (
        (WholeGpus(strategy=Strategy.NONE), set()),
        (WholeGpus(strategy=Strategy.MIXED), {uuid(1)}),
        (WholeGpus(Configuration(replications=replicas)), {uuid(0), uuid(1), uuid(2)}),
    ):
        found.see(node)
        assert found.divided == divided


def test_gpus_are_shared_by_mps_where_the_configuration_says_so() -> None:
    node = ready(2).inventory
    assert node is not None
    by_mps = Configuration(replications=(Replication("nvidia.com/gpu", "nvidia.com/gpu", 2, by_mps=True),))
    assert WholeGpus(by_mps).shared_by_mps(node) == {uuid(0), uuid(1)}
    assert WholeGpus().shared_by_mps(node) == frozenset()


def test_more_replicas_than_mps_takes_are_refused_with_the_limit() -> None:
    node = ready(1)
    assert node.inventory is not None
    many = Configuration(replications=(Replication("nvidia.com/gpu", "nvidia.com/gpu", 61, by_mps=True),))
    refused = WholeGpus().try_on(many, node.inventory, ())
    assert refused is not None
    assert "which takes 48 processes with this driver; configure at most 48" in str(refused)
    gpus = WholeGpus(many)
    gpus.see(node)
    assert (list(gpus.parts), "configure at most 48" in gpus.problem) == ([], True)
    assert [part.id for part in gpus.parts_of(many, node.inventory)] == [uuid(0)], "what the hardware has"


def test_the_strategy_of_the_flag_goes_before_that_of_the_file() -> None:
    snapshot = ready(1)
    assert snapshot.inventory is not None
    cut = replace(snapshot.inventory.gpus[0], mig_enabled=True)
    cut_node = replace(snapshot, inventory=replace(snapshot.inventory, gpus=(cut,)))
    of_the_file = WholeGpus(Configuration(mig_strategy="single"))
    of_the_file.see(cut_node)
    assert "no GPU has MIG devices" in of_the_file.problem
    of_the_flag = WholeGpus(Configuration(mig_strategy="single"), Strategy.NONE)
    of_the_flag.see(cut_node)
    assert (of_the_flag.problem, [part.id for part in of_the_flag.parts]) == ("", [uuid(0)])
