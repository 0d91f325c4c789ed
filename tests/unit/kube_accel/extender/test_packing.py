# SPDX-License-Identifier: Apache-2.0
"""Many small shares on a cluster of large nodes: how many nodes and GPUs are touched in the end."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from unit.kube_accel.extender.world import Api, Extender, node_object, pod_object, share, taken

NODES = tuple(f"node-{number:03}" for number in range(100))


def cluster() -> tuple[Api, Extender]:
    api = Api()
    extender = Extender(api)
    for name in NODES:
        extender.cluster.keep_node(node_object(name, gpus=8))
    return api, extender


def touched(api: Api) -> tuple[int, int]:
    """Nodes and GPUs of which somebody has some."""
    gpus = taken(api)
    return len({gpu.removeprefix("GPU-").rpartition("-")[0] for gpu in gpus}), len(gpus)


def schedule(api: Api, extender: Extender, percents: Iterable[int], **metadata: str) -> None:
    for number, percent in enumerate(percents):
        item = pod_object(f"p{number}", share(percent, 2))
        item["metadata"]["annotations"].update(metadata)
        pod = api.create(item)
        extender.listen()
        assert extender.schedule(pod, *NODES) == ""


def fewest(percents: Sequence[int]) -> int:
    """No fewer GPUs can hold these shares (bound L2 of Martello and Toth)."""
    found = math.ceil(sum(percents) / 100)
    for most in range(51):
        large = sum(each > 100 - most for each in percents)
        middle = [each for each in percents if 50 < each <= 100 - most]
        small = sum(each for each in percents if most <= each <= 50)
        beside = 100 * len(middle) - sum(middle)
        found = max(found, large + len(middle) + max(0, math.ceil((small - beside) / 100)))
    return found


@pytest.mark.parametrize(("count", "nodes", "gpus"), [(101, 2, 11), (1001, 13, 101)])
def test_small_shares_lie_close_together(count: int, nodes: int, gpus: int) -> None:
    api, extender = cluster()
    schedule(api, extender, [10] * count)
    assert touched(api) == (nodes, gpus)


def test_spread_touches_a_node_a_pod_while_it_can() -> None:
    api, extender = cluster()
    schedule(api, extender, [10] * 110, **{"kube-accel.io/placement": "spread"})
    assert touched(api) == (100, 110)


@pytest.mark.parametrize("seed", range(3))
def test_a_mix_of_shares_touches_hardly_more_gpus_than_it_must(seed: int) -> None:
    percents = [random.Random(seed).randrange(5, 101, 5) for _ in range(600)]
    api, extender = cluster()
    schedule(api, extender, percents)
    assert touched(api)[1] <= 1.05 * fewest(percents)


def choose(extender: Extender, pod: dict[str, Any], rng: random.Random) -> str:
    """The node of kube-scheduler, which takes any of the best."""
    names = extender.filter(pod, *NODES)["NodeNames"]
    scores = extender.call("priorities", {"Pod": pod, "NodeNames": names})
    best = max(entry["Score"] for entry in scores)
    return rng.choice([str(entry["Host"]) for entry in scores if entry["Score"] == best])


def test_fifty_binds_at_once_lie_close_together() -> None:
    """kube-scheduler chooses for one pod after the other, while the binds of those before are on their way."""
    api, extender = cluster()
    rng = random.Random(0)
    waiting = [api.create(pod_object(f"p{number}", share(10, 2))) for number in range(100)]
    extender.listen()
    with ThreadPoolExecutor(50) as pool:
        while waiting:
            chosen = [(pod, choose(extender, pod, rng)) for pod in waiting[:50]]
            answers = list(pool.map(lambda each: extender.bind(*each), chosen))
            waiting = [pod for (pod, _), answer in zip(chosen, answers, strict=True) if answer] + waiting[50:]
            extender.listen()
    assert touched(api) == (2, 10)
