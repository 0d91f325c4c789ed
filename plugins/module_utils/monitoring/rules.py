# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Chooses the rules that Prometheus gets, and labels its alerts. Pure."""

from __future__ import annotations

from typing import Any, Collection, Dict, List, Mapping, Sequence

from ..shared.registers import mapping, mappings


def alert_names(groups: Sequence[Mapping[str, Any]]) -> List[str]:
    """Return the names of all alerts of these groups of rules."""
    return [str(rule["alert"]) for group in groups for rule in mappings(group.get("rules")) if rule.get("alert")]


def planned_rules(
    groups: Sequence[Mapping[str, Any]], left_out: Collection[str], labels: Mapping[str, Any], runbook_url: str
) -> Dict[str, Any]:
    """Return the groups without the alerts that are left out, and with labels and runbooks for the others."""
    kept = [
        {"name": group.get("name"), "rules": [_rule(rule, labels, runbook_url) for rule in _kept(group, left_out)]}
        for group in groups
        if _kept(group, left_out)
    ]
    return {"groups": kept}


def _kept(group: Mapping[str, Any], left_out: Collection[str]) -> List[Mapping[str, Any]]:
    return [rule for rule in mappings(group.get("rules")) if rule.get("alert", "") not in left_out]


def _rule(rule: Mapping[str, Any], labels: Mapping[str, Any], runbook_url: str) -> Dict[str, Any]:
    if "alert" not in rule:
        return dict(rule)
    return {
        **rule,
        "labels": {**labels, **mapping(rule.get("labels"))},
        "annotations": {**mapping(rule.get("annotations")), "runbook_url": f"{runbook_url}/{rule['alert']}.md"},
    }
