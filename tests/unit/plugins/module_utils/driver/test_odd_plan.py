# SPDX-License-Identifier: Apache-2.0
"""The driver's plan of values that nobody expects: variables, facts, what the host prints, and answers of tasks."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.accel.kubernetes.plugins.module_utils.driver.observation import Observation
from ansible_collections.accel.kubernetes.plugins.module_utils.driver.options import Options
from ansible_collections.accel.kubernetes.plugins.module_utils.driver.plan import Plan, plan

from odd_values import ODD, shown, with_value
from odd_values import Path as Field

ROLE = Path(__file__).parents[5] / "roles/driver"
DEFAULTS: dict[str, Any] = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
GPU = {"address": "0000:00:00.0", "device": "0x2330", "driver": ""}
PRINTED: dict[str, Any] = {
    "gpus": [GPU],
    **dict.fromkeys(("loaded", "installed", "fabric_manager"), "580.95.05"),
    **{"taint": "POE", "license": "NVIDIA", "vermagic": "6.8 SMP", "vendor": "nvidia", "stream": "580-open"},
    **{name: ["nvidia-smi"] for name in ("packages", "held", "pinning")},
    "free": {"/usr": {"mount": "/", "mib": 60_000}},
    **dict.fromkeys(("nvswitch", "keyring", "initramfs"), True),
}
FACTS = {
    **{"distribution": "Debian", "distribution_major_version": "12", "distribution_version": "12.8", "pkg_mgr": "apt"},
    **{"architecture": "x86_64", "kernel": "6.8"},
    "accel_nvml": {"available": True, "reason": "", "gpus": [{"pci_address": "0000:00:00.0"}], "excluded": []},
}
NAMED = ("prerequisites", "packages", "not_answering", "missing_of_kernel", "candidates", "missing", "conflicts")
SEEN = {
    **{"connection": "ssh", "check": False, "branch_given": True, "runfile_on_controller": True},
    "packages": {name: ["a"] for name in NAMED},
    "source": {"status": 404, "msg": "none"},
    "installer": {"stat": {"exists": True, "checksum": "0" * 64}, "files": [{"path": "/srv/d.run"}]},
    "installation": {"changed": True},
    "fabric": {"changed": True},
    "reload": {"rc": 1, "stderr": "busy"},
}
WHOLE: dict[str, Any] = {"options": DEFAULTS, "facts": FACTS, "printed": PRINTED, "seen": SEEN}


def paths(value: Any, at: Field = ()) -> list[Field]:
    """Every place in nested values."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [*([at] if at else []), *(path for key, entry in entries for path in paths(entry, (*at, key)))]


def decided(whole: dict[str, Any]) -> Plan:
    seen = {"observation": json.dumps(whole["printed"]), **whole["seen"]}
    return plan(whole["options"], whole["facts"], seen)


def test_every_variable_that_is_read_and_every_field_is_tried() -> None:
    assert {f"driver_{field.name}" for field in fields(Options)} <= set(DEFAULTS)
    assert set(PRINTED) <= {field.name for field in fields(Observation)}
    assert len(decided(WHOLE).refusals.unavailable) > 0


@pytest.mark.parametrize("path", [path for path in paths(WHOLE) if len(path) > 1], ids=shown)
def test_an_odd_value_is_refused_by_name_or_read(path: Field) -> None:
    for value in ODD.values():
        found = decided(with_value(WHOLE, path, value)).refusals
        every = [*found.preflight, *found.unavailable, *found.brought, *found.reload, *found.outcome]
        assert all(refusal.code and refusal.message for refusal in every)
        wrong = [refusal.message for refusal in every if refusal.code == "option_type"]
        assert all(path[0] == "options" and message.startswith(f"{path[1]} is ") for message in wrong)
