# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers the filter of the role monitoring, from what the role was asked for and saw to plain values. No I/O."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

from ..shared.inventory import Inventory
from ..shared.registers import mapping, mappings
from .files import files
from .plan import plan, read_options

try:
    import yaml
except ImportError:  # Filters run on the controller, and Ansible brings it there.
    yaml = None  # type: ignore[assignment,unused-ignore]


def monitoring_plan(
    asked: Mapping[str, Any],
    hostvars: Mapping[str, Mapping[str, Any]],
    groups: Mapping[str, Sequence[str]],
    rule_files: Sequence[str] = (),
) -> Dict[str, Any]:
    """Return what becomes of the cluster's monitoring, a ``plan.Plan`` and ``files.Files``.

    ``rule_files`` are the texts of all files with rules, which take long to read; without them there are no rules in
    it, and no refusal of an alert.
    """
    inventory = Inventory(hostvars, groups)
    seen = mapping(asked.get("seen"))
    options, refusals = read_options(mapping(asked.get("options")), inventory)
    rules: List[Mapping[str, Any]] = [
        group for text in rule_files for group in mappings(mapping(yaml.safe_load(text)).get("groups"))
    ]
    planned = plan(options, inventory, seen, rules)
    found = [*(dict(vars(each)) for each in refusals), *planned.refusals]
    return {**vars(planned), **vars(files(seen, options.reload_url)), "refusals": found}
