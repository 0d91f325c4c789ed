# SPDX-License-Identifier: Apache-2.0
"""What is known of a node after any changes is what looking at all of it anew finds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kube_accel.extender.cache import Cluster
from kube_accel.extender.decide import Decider, Verdicts
from kube_accel.extender.node import Reservation
from kube_accel.extender.pods import Pod, PodReader, uses_of
from kube_accel.placement.choose import Refusal
from kube_accel.sharing.assignment import ANNOTATION, pod_annotations
from kube_accel.sharing.inventory_annotation import Holding
from unit.kube_accel.extender.world import GIB, node_object, pod_object, share, uuid

NODE, LATER = "node-a", 10_000.0
STEPS = st.tuples(
    st.sampled_from(["reserve", "release", "bound", "claimed", "gone", "report", "unfenced"]),
    st.integers(0, 5),
    st.sampled_from([(10, 2), (30, 20), (60, 8), (200, 0)]),
)


class Kept:
    """A node, and what is done to it."""

    def __init__(self) -> None:
        self.reader = PodReader()
        verdicts = Verdicts()
        self.cluster = Cluster(self.reader, verdicts.forget)
        self.decider = Decider(self.cluster, verdicts)
        self.cluster.keep_node(node_object(NODE, 3))
        self.held: dict[str, tuple[Holding, ...]] = {}

    def pod(self, number: int, size: tuple[int, int]) -> Pod | None:
        """A pod that waits; None when the one of this number is bound."""
        name = f"pod-{number}"
        known = self.cluster.pods.get(f"uid-{name}")
        if known is None:
            self.cluster.keep_pod(pod_object(name, share(*size)))
        pod = self.cluster.pods.get(f"uid-{name}")
        return None if pod is None or pod.node else pod

    def do(self, step: str, number: int, size: tuple[int, int]) -> None:
        name = f"pod-{number}"
        if step == "gone":
            self.cluster.drop_pod(f"uid-{name}", ended=number % 2 == 0)
            self.cluster._gone.clear()  # the next one has its name and its UID
        elif step == "report":
            gpu = uuid(NODE, number % 3)
            holding = Holding("team", name, "main", size[0] % 100, size[1] * GIB)
            self.held = {} if gpu in self.held else {gpu: (holding,)}
            self.cluster.keep_node(node_object(NODE, 3, held=self.held))
        elif pod := self.pod(number, size):
            self.change(step, pod)

    def change(self, step: str, pod: Pod) -> None:
        if step == "reserve":
            self.reserve(pod)
        elif step == "release":
            self.cluster.release(pod.uid)
        elif step == "unfenced":
            self.cluster.leave_room([] if self.cluster._unfenced else [pod])
        else:
            kept = self.cluster.reservation(pod.uid)
            annotations = dict(kept.annotations) if kept is not None and step == "bound" else {}
            item = pod_object(pod.name, share(10, 2), nodeName=NODE)
            item["metadata"]["annotations"] = annotations
            self.cluster.keep_pod(item)

    def reserve(self, pod: Pod) -> None:
        self.cluster.release(pod.uid)
        assert pod.request is not None
        with self.cluster.node(NODE) as node:
            found = self.decider.choose(pod, pod.request, node)
            if isinstance(found, Refusal):
                return
            assignment, view = found
            indexes = {gpu.uuid: gpu.index for gpu in view.node.gpus}
            annotations = pod_annotations(assignment, pod.request.mode, pod.containers, indexes, 0, {})
            assert ANNOTATION in annotations
            kept = Reservation(pod, uses_of(pod.request, assignment), annotations, LATER, assignment, view)
            self.cluster.reserve(node, kept)

    def check(self) -> None:
        with self.cluster.node(NODE) as node:
            seen, anew = node.view(), node.view_without(())
            assert seen is not None
            assert anew is not None
            assert (seen.gpus, seen.room, seen.kind, seen.sums) == (anew.gpus, anew.room, anew.kind, anew.sums)


@given(steps=st.lists(STEPS, max_size=25))
@settings(max_examples=150)
def test_node_is_seen_as_if_all_were_looked_at_anew(steps: list[tuple[str, int, tuple[int, int]]]) -> None:
    kept = Kept()
    for step in steps:
        kept.do(*step)
        kept.check()


def test_bind_that_is_seen_as_it_was_sent_changes_nothing() -> None:
    kept = Kept()
    kept.do("reserve", 0, (30, 20))
    with kept.cluster.node(NODE) as node:
        before = node.view()
    kept.do("bound", 0, (30, 20))
    with kept.cluster.node(NODE) as node:
        assert node.view() is before
        assert [*node.pods] == ["uid-pod-0"]
        assert not node.reserved
    assert not kept.cluster.reservations
