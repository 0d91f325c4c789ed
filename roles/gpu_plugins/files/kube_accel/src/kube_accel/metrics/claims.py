# SPDX-License-Identifier: Apache-2.0
"""What interposers charged containers, and how much of it counts beyond what NVML says. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kube_accel.metrics.tenancy import Account, Charged, Container


class Claim(NamedTuple):
    """What the interposer charged a container on one GPU: a tenant's word."""

    memory_bytes: int
    """No more than the container's limit."""
    busy_seconds: float | None = None
    """Since the last collection; None where nothing is measured, or the account is new."""


def divided(claims: Mapping[Container, int], spare: int) -> dict[Container, int]:
    """Return what each claim gets of ``spare``, in the unit of both.

    None gets more than it claims, and all together no more than there is. Who claims no more than an equal part gets
    all of its claim, whatever the others claim: an account that says too much takes nothing from one that does not.
    """
    found: dict[Container, int] = {}
    left = max(0, spare)
    smallest_first = sorted((max(0, claim), container) for container, claim in claims.items())
    for place, (claim, container) in enumerate(smallest_first):
        found[container] = min(claim, left // (len(smallest_first) - place))
        left -= found[container]
    return found


def claims(
    before: Mapping[Account, Charged], now: Mapping[Account, Charged], capacity: Mapping[str, int]
) -> dict[str, dict[Container, Claim]]:
    """Return what accounts say by GPU, of GPUs whose ``capacity`` in bytes is known.

    GPU time is what an account grew by since ``before``, which the last collection read: not known of a new one.
    """
    found: dict[str, dict[Container, Claim]] = {}
    for account, charged in now.items():
        if (most := capacity.get(account.uuid)) is None:
            continue
        last = before.get(account)
        grown = None if last is None or charged.busy_ns < last.busy_ns else (charged.busy_ns - last.busy_ns) / 1e9
        claim = Claim(min(charged.used_bytes, charged.limit_bytes or most, most), grown)
        found.setdefault(account.uuid, {})[account.container] = claim
    return found
