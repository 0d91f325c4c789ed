# SPDX-License-Identifier: Apache-2.0
"""What is read of a kubelet's configuration, and of one that is odd."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.kubelet import configz_path, kubelet_settings

from odd_values import Path, cases, with_value

CONFIGZ = {
    "kubeletconfig": {
        "topologyManagerPolicy": "single-numa-node",
        "topologyManagerScope": "pod",
        "cpuManagerPolicy": "static",
        "memoryManagerPolicy": "Static",
        "maxPods": 110,
    }
}
FIELDS: list[Path] = [("kubeletconfig",), *(("kubeletconfig", key) for key in CONFIGZ["kubeletconfig"])]


def test_settings_are_read_and_a_missing_one_has_its_default() -> None:
    found = kubelet_settings(json.dumps(CONFIGZ))
    assert (found.topology_manager_policy, found.topology_manager_scope) == ("single-numa-node", "pod")
    assert (found.cpu_manager_policy, found.memory_manager_policy) == ("static", "Static")
    assert kubelet_settings('{"kubeletconfig": {}}').topology_manager_policy == "none"
    assert configz_path("gpu/1?x") == "/api/v1/nodes/gpu%2F1%3Fx/proxy/configz"


@pytest.mark.parametrize(("path", "values"), cases(FIELDS))
def test_an_odd_configuration_is_read_or_named(path: Path, values: Mapping[str, Any]) -> None:
    for value in values.values():
        with contextlib.suppress(ValueError):
            found = kubelet_settings(json.dumps(with_value(CONFIGZ, path, value)))
            assert all(isinstance(each, str) for each in vars(found).values())
