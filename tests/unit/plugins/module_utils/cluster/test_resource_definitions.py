# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.resource_definitions import (
    LIMITS,
    REQUESTS,
    Definition,
    configmap,
    definition_of,
    merged,
    ours,
    problems,
    problems_of,
)
from hypothesis import given
from hypothesis import strategies as st

CORE = Definition("tencent.com/vcuda-core", "gpu-manager", "gpu-manager", default_value="20", description_en="Percent.")
TEXT = st.text(max_size=40)
NAMES = st.from_regex(r"[a-z]{1,8}([-._][A-Za-z0-9]{1,4}){0,2}", fullmatch=True)
GOOD = st.builds(
    Definition,
    key=st.builds("{}/{}".format, st.from_regex(r"[a-z]{1,8}(\.[a-z]{1,4}){0,2}", fullmatch=True), NAMES),
    custom_name=NAMES,
    group=NAMES,
    data_type=st.sampled_from(["integer", "string"]),
    default_value=st.integers(0).map(str),
    description_en=TEXT,
    description_zh=TEXT,
    limits=st.sampled_from(["required", "optional"]),
    requests=st.sampled_from(REQUESTS),
    enabled=st.booleans(),
)


def test_the_configmap_is_the_platforms() -> None:
    assert configmap(CORE) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "cf-crl-gpu-manager-vcuda-core",
            "namespace": "kube-public",
            "labels": {
                "features.alauda.io/type": "CustomResourceLimitation",
                "features.alauda.io/group": "gpu-manager",
                "features.alauda.io/enabled": "true",
            },
        },
        "data": {
            "key": "tencent.com/vcuda-core",
            "dataType": "integer",
            "defaultValue": "20",
            "descriptionEn": "Percent.",
            "descriptionZh": "",
            "group": "gpu-manager",
            "limits": "optional",
            "requests": "disabled",
        },
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"key": "gpu"}, "not the name of an extended resource"),
        ({"key": "Nvidia.com/gpu"}, "not the name of an extended resource"),
        ({"key": "nvidia.com/gpu."}, "not the name of an extended resource"),
        ({"key": "node.kubernetes.io/gpu"}, "belongs to Kubernetes"),
        ({"custom_name": "_"}, "custom_name has no letter"),
        ({"custom_name": "x" * 250}, "longer than 253"),
        ({"group": ""}, "group must be"),
        ({"group": "a b"}, "group must be"),
        ({"group": "x" * 64}, "group must be"),
        ({"data_type": ""}, "data_type"),
        ({"default_value": "1.5"}, "not a whole number"),
        ({"default_value": "-1"}, "not a whole number"),
        ({"default_value": "007"}, "not a whole number"),
        ({"limits": "fromLimits"}, "limits must be one of disabled, required, optional"),
        ({"requests": "optional"}, "requests must be one of disabled, required, fromLimits"),
        ({"limits": "disabled", "requests": "fromLimits"}, "requests is fromLimits and limits is disabled"),
        ({"limits": "disabled", "requests": "required"}, "requests is required and limits is disabled"),
        ({"key": "requests.nvidia.com/gpu"}, "key begins with requests."),
        ({"key": "mykubernetes.io/gpu"}, "belongs to Kubernetes"),
    ],
)
def test_each_mistake_is_named_with_its_definition(change: dict[str, str], words: str) -> None:
    wrong = replace(CORE, **change)
    (found,) = problems([wrong], "present")
    assert found.startswith(f"{wrong.key}: ")
    assert words in found


def test_all_mistakes_are_named_with_a_name_taken_twice() -> None:
    other = replace(CORE, key="other.com/vcuda_core", limits="never")
    found = problems([CORE, other], "present")
    assert len(found) == 2
    assert "tencent.com/vcuda-core has the ConfigMap cf-crl-gpu-manager-vcuda-core already" in found[1]


def test_resource_is_defined_once_and_removed_by_any_name() -> None:
    other = replace(CORE, custom_name="other")
    (found,) = problems([CORE, other], "present")
    assert found.startswith("tencent.com/vcuda-core: a definition before cf-crl-other-vcuda-core already defines it")
    assert problems([CORE, other], "absent") == []


def test_to_remove_a_definition_its_names_are_enough() -> None:
    assert problems([Definition(CORE.key, CORE.custom_name)], "absent") == []
    assert problems([Definition("gpu", CORE.custom_name)], "absent") != []
    assert problems([Definition("requests.nvidia.com/gpu", CORE.custom_name)], "absent") == []


@given(GOOD)
def test_what_is_written_is_read_again(definition: Definition) -> None:
    assert problems([definition], "present") == []
    item = configmap(definition)
    assert ours(item)
    assert problems_of(item) == []
    read = definition_of(item)
    assert configmap(read) == item
    assert replace(read, custom_name=definition.custom_name) == definition
    assert merged(item, definition) == item


@given(GOOD, GOOD)
def test_what_others_added_stays(before: Definition, after: Definition) -> None:
    item = configmap(before)
    item["metadata"]["labels"]["theirs"] = "l"
    item["metadata"]["annotations"] = {"theirs": "a"}
    item["data"]["theirs"] = "d"
    result = merged(item, after)
    assert result["metadata"]["labels"]["theirs"] == "l"
    assert result["metadata"]["annotations"] == {"theirs": "a"}
    assert result["data"] == {**configmap(after)["data"], "theirs": "d"}
    assert configmap(definition_of(result))["data"] == configmap(after)["data"]


def test_what_is_wrong_with_an_existing_one_is_said() -> None:
    item = configmap(CORE)
    item["metadata"]["name"] = "cf-crl-other"
    item["data"] |= {"group": "another", "limits": "sometimes"}
    assert problems_of(item) == [
        "its name is not cf-crl-<custom name>-vcuda-core",
        "its label features.alauda.io/group and its data disagree about the group",
    ]
    item["metadata"]["name"] = "cf-crl-gpu-manager-vcuda-core"
    assert "tencent.com/vcuda-core: limits must be one of " + ", ".join(LIMITS) in problems_of(item)
