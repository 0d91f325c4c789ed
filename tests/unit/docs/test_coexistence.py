# SPDX-License-Identifier: Apache-2.0
"""What docs/explanation/coexistence.md says of our own side is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kube_accel.extender.accounting import Kinds
from kube_accel.extender.node import Node
from kube_accel.sharing.profile import mode_of
from yaml_files import document

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/explanation/coexistence.md").read_text()
MODES = document(ROOT / "roles/gpu_plugins/vars/main/modes.yml")["__gpu_plugins_modes"]


def _block(holding: str) -> Any:
    texts = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (found,) = (text for text in texts if holding in text)
    return yaml.safe_load(found)


def _matches(expressions: list[dict[str, Any]], labels: dict[str, str]) -> bool:
    kinds = {
        "In": lambda each: labels.get(each["key"]) in each["values"],
        "NotIn": lambda each: labels.get(each["key"]) not in each["values"],
        "DoesNotExist": lambda each: each["key"] not in labels,
    }
    return all(kinds[each["operator"]](each) for each in expressions)


@pytest.mark.parametrize("enabled", [None, "pgpu", "vgpu", "mps", "cgpu"])
@pytest.mark.parametrize("cgpu", [None, "true", "false"])
def test_no_node_has_one_of_our_plugins_and_a_driver_of_dra(enabled: str | None, cgpu: str | None) -> None:
    given = {"nvidia-device-enable": enabled, "cgpu": cgpu}
    labels = {key: value for key, value in given.items() if value is not None}
    needed = _block("affinity:")["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = needed["nodeSelectorTerms"]
    ours = [mode for mode, each in MODES.items() if _matches(each["nodes"], labels)]
    theirs = _matches(term["matchExpressions"], labels)
    assert len(ours) + theirs <= 1
    assert theirs == (not labels or labels == {"cgpu": "false"})


def test_documented_refusal_of_nodes_without_our_plugin() -> None:
    assert f"(`{Node('gpu-dra', Kinds(), lambda name: None).problem}`)" in PAGE


def test_the_quota_of_kueue_names_resources_of_one_mode() -> None:
    (group,) = _block("kind: ClusterQueue")["spec"]["resourceGroups"]
    (flavor,) = group["flavors"]
    names = [each["name"] for each in flavor["resources"]]
    assert names == group["coveredResources"]
    assert len({mode_of(name) for name in names}) == 1


def test_every_variable_that_is_named_exists() -> None:
    known = (ROOT / "docs/variables.md").read_text()
    named = set(re.findall(r"`((?:driver|container_runtime|scheduler|gpu_plugins)_\w+)", PAGE))
    assert named
    assert not [name for name in named if f"| `{name}` |" not in known]
