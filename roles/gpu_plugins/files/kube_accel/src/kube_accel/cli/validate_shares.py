# SPDX-License-Identifier: Apache-2.0
"""Checks of ``kube-accel validate`` for the modes that divide GPUs."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from kube_accel.cli.validate import Check, Status
from kube_accel.enforce import selinux
from kube_accel.enforce.mps import UNSEEN, MpsPaths, probe
from kube_accel.kube.podresources import PodResourcesClient, PodResourcesError
from kube_accel.model import Gpu, Inventory, Share
from kube_accel.plugin.allocation.ledger import LedgerError, running
from kube_accel.plugin.allocation.start_check import by_container, held_shares
from kube_accel.plugin.kubelet.holdings import Holder
from kube_accel.shared.offers import client_limit, mps_unfit
from kube_accel.sharing.capabilities import INTERFACES
from kube_accel.sharing.profile import Profile

_ATTEMPTS = 5
_PAUSE = 1.0
"""Seconds: the ledger follows what kubelet does within one."""
_NAMED = 5
"""Containers that are named."""


def check_ledger(state_dir: Path, profile: Profile, gpus: Collection[Gpu], pod_resources: Path) -> Check:
    """Check that the ledger can be read and agrees with kubelet."""
    difference: list[str] = []
    count = 0
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE)
        try:
            listed = PodResourcesClient(pod_resources).list(timeout=5)
            known = {gpu.uuid: gpu for gpu in gpus}
            told = _rows(held_shares(by_container(listed, profile), known, profile))
            written = _ledger(state_dir)
        except (PodResourcesError, LedgerError) as error:
            return Check(
                Status.FAIL,
                "ledger",
                str(error),
                "see the daemon's log; if the file is gone, the daemon creates a new one",
            )
        count, difference = len(told), _differences(told, written)
        if not difference:
            return Check(Status.OK, "ledger", f"agrees with kubelet on {count} containers")
    more = f" and {len(difference) - _NAMED} more" if len(difference) > _NAMED else ""
    detail = f"{'; '.join(difference[:_NAMED])}{more}"
    return Check(Status.FAIL, "ledger", detail, "restart the plugin, which fills it from what kubelet lists")


def check_enforcement(status: Mapping[str, Any]) -> Check:
    """Check that what was asked for enforces shares."""
    name, problem = status.get("enforcement", ""), status.get("enforcement_problem", "")
    if not problem:
        return Check(Status.OK, "enforcement", name or "not reported by this release")
    return Check(
        Status.WARN, "enforcement", f"{name}: {problem}", "see docs/reference/gpu-plugins.md, Enforcement of shares"
    )


def check_capabilities(status: Mapping[str, Any]) -> Check | None:
    """Check what shares have of the driver without a limit. None where the interposer does not enforce them."""
    given = status.get("unlimited")
    if given is None:
        return None
    if not given:
        left_out = ", ".join(INTERFACES.values())
        return Check(Status.OK, "capabilities", f"shares have CUDA and NVML, which are limited, without {left_out}")
    return Check(
        Status.WARN,
        "capabilities",
        f"shares have {given}: nothing limits their memory and GPU time",
        "remove them from gpu_plugins_share_capabilities, and give programs that need them whole GPUs",
    )


def check_mps(inventory: Inventory, paths: MpsPaths, labelled: bool = False) -> Check:
    """Check that every GPU's control daemon answers and takes clients; ``labelled`` where SELinux has to let them."""
    limit = client_limit(inventory.cuda_version)
    unshared = {gpu.index: reason for gpu in inventory.gpus if (reason := mps_unfit(gpu, inventory.driver_version))}
    bad = {
        gpu.index: problem
        for gpu in inventory.gpus
        if gpu.index not in unshared and (problem := probe(paths, gpu.uuid, UNSEEN, limit).problem)
    }
    if bad:
        return Check(Status.FAIL, "mps", "; ".join(f"GPU {index}: {problem}" for index, problem in bad.items()))
    made = [
        path
        for gpu in inventory.gpus
        if labelled and gpu.index not in unshared
        for path in (paths.client(gpu.uuid), paths.client(gpu.uuid) / "control", paths.shm(gpu.uuid))
    ]
    wrong = {path: label for path in made if (label := selinux.unshared(path))}
    if wrong:
        detail = "; ".join(f"{path}: {label}" for path, label in list(wrong.items())[:_NAMED])
        remedy = f"chcon {selinux.LABEL} on them, or restart the unit kube-accel-mps@<uuid> when no pod uses the GPU"
        return Check(Status.WARN, "mps", f"SELinux may keep containers from MPS: {detail}", remedy)
    if unshared:
        detail = "; ".join(f"GPU {index}: {reason}" for index, reason in unshared.items())
        return Check(Status.WARN, "mps", detail, "serve these GPUs in another mode")
    return Check(Status.OK, "mps", f"the control daemons of all {len(inventory.gpus)} GPUs answer")


_Rows = Mapping[Holder, frozenset[Share]]


def _rows(held: Mapping[Holder, Collection[Share]]) -> _Rows:
    return {holder: frozenset(shares) for holder, shares in held.items() if shares}


def _ledger(state_dir: Path) -> _Rows:
    found: defaultdict[Holder, list[Share]] = defaultdict(list)
    for row in running(state_dir):
        found[row.holder].append(row.share)
    return _rows(found)


def _differences(told: _Rows, written: _Rows) -> list[str]:
    names = {"lacks": told.keys() - written.keys(), "still has": written.keys() - told.keys()}
    names["is wrong about"] = {holder for holder in told.keys() & written.keys() if told[holder] != written[holder]}
    return [
        f"it {what} container {holder.container} of {holder.namespace}/{holder.pod}"
        for what, holders in names.items()
        for holder in sorted(holders)
    ]
