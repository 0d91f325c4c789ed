# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tells which objects and files of ours are no longer wanted, and whether they can go yet. Pure."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Any, List, Mapping

from ..shared.inventory import CONTROL_PLANES, Inventory
from ..shared.registers import mapping, mappings, resources
from .asked import Options
from .layout import NAME, Plan

QUOTA, SECRET = "kube-accel-quota", "kube-accel-extender-tls"
# What certificates.sh makes.
_CERTIFICATE = re.compile(
    r"(?:ca/ca|extender/(?:ca|server)|scheduler/(?:ca|client-[0-9]+))[.](?:(?:crt|key)(?:[.]new)?|ext)"
)
_DIRECTORIES = ("ca/", "extender/", "scheduler/", "")


@dataclass(frozen=True)
class Leftovers:
    """What earlier runs left."""

    unwanted: List[Mapping[str, Any]]
    """Objects of the cluster."""
    unedited: List[str]
    """Control planes that this run has not come to, or failed on: they may still call the extender that is unwanted."""
    remove: bool
    """Whether to look for all that is ours and remove what is unwanted."""
    report: str
    """The unwanted objects, where they have to stay."""
    files: List[str]
    """What certificates.sh made, and then those of its directories that are empty, relative to scheduler_pki_dir."""


def leftovers(
    options: Options, plan: Plan, inventory: Inventory, swept: Mapping[str, Any], files: Mapping[str, Any]
) -> Leftovers:
    """Tell by the objects that were found in the cluster, and the files in the directory of certificates."""
    kept = [] if options.removing else _kept(plan, inventory)
    unwanted = [item for item in resources(swept) if _name(item) not in kept]
    edited = inventory.each(CONTROL_PLANES, lambda variables: _succeeded(variables.get("__scheduler_configured")))
    unedited = [name for name, done in edited.items() if not done]
    return Leftovers(
        unwanted=unwanted,
        unedited=unedited,
        remove=not unedited and (bool(unwanted) or not kept),
        report=", ".join(map(_name, unwanted)) if unedited else "",
        files=_certificate_files(files, plan.files["pki"]),
    )


def _certificate_files(found: Mapping[str, Any], directory: str) -> List[str]:
    """Return what is ours in a directory that others may use too, by what ``ansible.builtin.find`` found there."""
    paths = [posixpath.relpath(str(each.get("path")), directory) for each in mappings(found.get("files"))]
    removed = [path for path in paths if _CERTIFICATE.fullmatch(path)]
    for below in _DIRECTORIES:
        inside = [path for path in paths if path.startswith(below) and path != below]
        if any(path.startswith(below) for path in removed) and not set(inside) - set(removed):
            removed.append(below[:-1])
    return removed


def _kept(plan: Plan, inventory: Inventory) -> List[str]:
    """Return what the layout has in the cluster, and quotas. The second scheduler is made by localhost."""
    made = inventory.variables("localhost" if plan.layout == "secondary" else plan.host).get("scheduler_objects")
    kept = [*map(_name, mappings(made)), f"ConfigMap {QUOTA}"]
    if plan.layout == "secondary":
        kept.append(f"Secret {SECRET}")
    if plan.layout in ("local", "secondary"):
        kept.append(f"Lease {NAME}")
    return kept


def _name(item: Mapping[str, Any]) -> str:
    return f"{item.get('kind')} {mapping(item.get('metadata')).get('name')}"


def _succeeded(register: object) -> bool:
    return isinstance(register, Mapping) and not register.get("failed", False)
