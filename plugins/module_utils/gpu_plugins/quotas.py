# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What namespaces may have of the resources of GPUs, and what they have. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Mapping

from ..shared.modes import RESOURCE
from ..shared.quantity import whole_units
from ..shared.registers import mapping, metadata_of, resources

_REQUESTS = "requests."


@dataclass(frozen=True)
class Quota:
    """What a ResourceQuota says of a resource."""

    namespace: str
    resource: str
    """As the quota names it."""
    used: int
    hard: int

    @property
    def spent(self) -> bool:
        """Whether there is some, and nothing is left of it."""
        return self.used >= self.hard > 0


def quotas(found: Mapping[str, object]) -> List[Quota]:
    """Return the quotas of resources of GPUs, by the result for ResourceQuotas. What is no quantity counts as 0."""
    rows = []
    for quota in resources(found):
        status = mapping(quota.get("status"))
        hard, used = mapping(status.get("hard")), mapping(status.get("used"))
        rows += [
            Quota(
                str(metadata_of(quota).get("namespace", "")),
                name,
                whole_units(used.get(name, 0)) or 0,
                whole_units(amount) or 0,
            )
            for name, amount in hard.items()
            if RESOURCE.match(name[len(_REQUESTS) :] if name.startswith(_REQUESTS) else name)
        ]
    return rows
