# SPDX-License-Identifier: Apache-2.0
"""The quotas that are shown are such as the extender reads, and what is said to lift one does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kube_accel.shared.quota import NamespaceQuota, parse

ROLE = Path(__file__).parents[3] / "roles/scheduler"
PAGE = (ROLE.parents[1] / "docs/how-to/set-quotas.md").read_text()


def shown() -> dict[str, Any]:
    """The value on the page about quotas."""
    (block,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    value: dict[str, Any] = yaml.safe_load(block)["scheduler_quota"]
    return value


def commented() -> dict[str, Any]:
    """The example in the defaults."""
    text = (ROLE / "defaults/main.yml").read_text()
    (block,) = re.findall(r"^# (scheduler_quota:\n(?:#  .*\n)+)", text, re.MULTILINE)
    value: dict[str, Any] = yaml.safe_load(block.replace("\n#", "\n"))["scheduler_quota"]
    return value


@pytest.mark.parametrize("value", [shown, commented])
def test_a_quota_is_shown_that_is_read_and_has_every_key(value: Any) -> None:
    quota = parse(yaml.safe_dump({"version": 1, **value()}))
    team, others = quota.of("team-a"), quota.of("nobody-named")
    assert team.pools == frozenset({"training"})
    assert any(limit.model and limit.cores and limit.memory_bytes and limit.cards for limit in team.limits)
    assert others.limits
    assert others != team


def test_an_empty_entry_lifts_what_holds_for_the_others() -> None:
    assert "make its entry `{}`" in PAGE
    namespaces = {**shown()["namespaces"], "team-a": {}}
    assert parse(yaml.safe_dump({"version": 1, **shown(), "namespaces": namespaces})).of("team-a") == NamespaceQuota()


def test_a_quota_of_no_namespace_limits_nobody() -> None:
    (lifted,) = re.findall(r"`scheduler_quota: (\{namespaces.*?\})`", PAGE)
    assert parse(yaml.safe_dump({"version": 1, **yaml.safe_load(lifted)})).of("team-a") == NamespaceQuota()
