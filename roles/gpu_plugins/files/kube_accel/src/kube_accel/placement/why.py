# SPDX-License-Identifier: Apache-2.0
"""Why a pod's containers got their GPUs and no others, in a few words. Pure; asked once a pod, when it is bound."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from kube_accel.model import Assignment, ContainerRequest, Mode, PlacementPolicy, PodRequest
from kube_accel.placement.choose import GpuView, candidates, places
from kube_accel.placement.topology import Connectivity
from kube_accel.shared.quantity import human_bytes

LONGEST = 160
"""Characters about one container."""
_MOST = 16
"""Containers that words are spent on."""
_NVLINK = 0.875
"""Nearness of two GPUs from where on they have an NVLink."""


def why(
    request: PodRequest, assignment: Assignment, gpus: Sequence[GpuView], connectivity: Connectivity | None = None
) -> dict[str, str]:
    """Return by container what decided ``assignment``, which ``place`` made of the same GPUs."""
    views = candidates(request, gpus)
    found = {}
    for container in request.containers[:_MOST]:
        uuids = {share.uuid for share in assignment.containers[container.name]}
        chosen = [view for view in views if view.gpu.uuid in uuids]
        if container.whole:
            text = _whole(container, chosen, views, connectivity)
        elif len(request.containers) > 1:
            text = f"{request.policy.value}, with the pod's other containers; {_free(request, chosen[0])}"
        else:
            text = _share(request, container, chosen[0], views, connectivity)
        doubt = "; its health is not known" if any(view.doubtful for view in chosen) else ""
        found[container.name] = f"{text}{doubt}"[:LONGEST]
    return found


def _share(
    request: PodRequest,
    container: ContainerRequest,
    chosen: GpuView,
    views: Sequence[GpuView],
    connectivity: Connectivity | None,
) -> str:
    fit = [
        view
        for view in views
        if view.free_cores >= container.cores
        and view.free_memory >= container.memory_bytes
        and places(view, request.mode) > 0
    ]
    if len(fit) == 1:
        return f"the only GPU of {len(views)} with room; {_free(request, chosen)}"
    binpack = request.policy is not PlacementPolicy.SPREAD
    if not binpack:
        rule = "spread: the emptiest"
    elif chosen.untouched:
        rule = "binpack: none in use had room; an untouched one"
    else:
        rule = "binpack: the fullest"
    alike = sum(_amounts(view) == _amounts(chosen) for view in fit)
    tie = "the first" if connectivity is None or not (binpack and chosen.untouched) else "the least connected"
    return f"{rule} of {len(fit)} with room{f', {tie} of {alike} alike' if alike > 1 else ''}; {_free(request, chosen)}"


def _whole(
    container: ContainerRequest, chosen: Sequence[GpuView], views: Sequence[GpuView], connectivity: Connectivity | None
) -> str:
    untouched = sum(view.untouched for view in views)
    if untouched <= container.whole:
        return f"the only {container.whole} free of {len(views)} GPUs"
    if container.whole == 1:
        return f"one of {untouched} free GPUs"
    joined = ", all by NVLink" if connectivity is not None and _linked(chosen, connectivity) else ""
    return f"the best connected {container.whole} of {untouched} free GPUs{joined}"


def _linked(chosen: Sequence[GpuView], connectivity: Connectivity) -> bool:
    """Return whether every pair has an NVLink."""
    rows = [connectivity.position.get(view.gpu.uuid, -1) for view in chosen]
    pairs = itertools.combinations(rows, 2)
    return all(min(pair) >= 0 and connectivity.nearness[pair[0]][pair[1]] >= _NVLINK for pair in pairs)


def _free(request: PodRequest, view: GpuView) -> str:
    cores = "" if request.mode is Mode.CGPU else f"{view.free_cores} % and "
    return f"{cores}{human_bytes(view.free_memory)} were free"


def _amounts(view: GpuView) -> tuple[int, int, int, bool, bool]:
    return view.free_cores, view.free_memory, view.gpu.memory_bytes, view.untouched, view.doubtful
