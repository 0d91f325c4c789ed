# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which extenders of kube-scheduler do what ours does: those of GPU-Manager, GPU-Share and MPS. No I/O."""

from __future__ import annotations

import re
from typing import Any, FrozenSet, Iterable, Mapping

_KNOWN = re.compile(
    r"[/.:-](?:gpu-quota-admission|gpu-admission|mps-scheduler(?:-plugin|-extender)?|gpushare-schd-extender|"
    r"gpushare-scheduler(?:-extender)?)(?![\w-])"
)
"""Names of their Services, or of their path, in an address: of a Service, or through the API server's proxy."""


def resources_of(extender: Mapping[str, Any]) -> FrozenSet[str]:
    """Return the resources whose pods an extender is asked for; none stands for all pods."""
    return frozenset(str(item.get("name")) for item in extender.get("managedResources") or ())


def replaces(ours: Iterable[Mapping[str, Any]], extender: Mapping[str, Any]) -> bool:
    """Return whether our extenders do the work of another, and are not to be called beside it.

    One of an unknown address is replaced where ours are asked for each of its resources.
    """
    wanted = {name for each in ours for name in resources_of(each)}
    names = resources_of(extender)
    if _KNOWN.search(str(extender.get("urlPrefix"))):
        return bool(wanted & names if names else wanted)
    return bool(names) and names <= wanted
