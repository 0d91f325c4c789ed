# SPDX-License-Identifier: Apache-2.0
"""What docs and examples have pods ask for is what our nodes offer, and the extender takes it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kube_accel.model import Mode
from kube_accel.sharing import request
from kube_accel.sharing.profile import PROFILES, WHOLE_GPU_RESOURCE, mode_of
from kube_accel.sharing.request import RequestRefused, pod_request
from yaml_files import document

ROOT = Path(__file__).parents[3]
SPAWNER = ROOT / "examples/kubeflow/spawner_ui_config.yml"
EXAMPLES = sorted(
    path
    for name in ("kserve", "kubeflow", "kubernetes")
    for path in (ROOT / "examples" / name).glob("*.yml")
    if path != SPAWNER
)
GUIDES = sorted((ROOT / "docs").glob("*.md"))
SHARED = {name for each in PROFILES.values() for name in (each.core_resource, each.memory_resource) if name}
WHOLE = re.compile(rf"{re.escape(WHOLE_GPU_RESOURCE)}(\.shared)?|nvidia\.com/mig-[1-7]g\.[1-9]\d*gb(\.me)?")


def limits_of(document: Any) -> Iterator[dict[str, Any]]:
    """The limits anywhere in an object of any kind."""
    if isinstance(document, dict):
        for key, value in document.items():
            if key in ("resources", "resourcesPerNode") and isinstance(value, dict):
                yield value.get("limits", {})
            yield from limits_of(value)
    elif isinstance(document, list):
        for value in document:
            yield from limits_of(value)


def modes_asked(document: Any) -> list[Mode]:
    """The mode that each container of it asks for; fails where our nodes or our extender would not do it."""
    asked = []
    for limits in limits_of(document):
        ours = {name: amount for name, amount in limits.items() if "/" in name}
        unknown = {name for name in ours if name not in SHARED and not WHOLE.fullmatch(name)}
        assert not unknown, f"no mode offers {unknown}"
        assert all(type(amount) is int and amount > 0 for amount in ours.values()), ours
        try:
            pod_request({"spec": {"containers": [{"name": "it", "resources": {"limits": ours}}]}})
        except RequestRefused as refused:
            pytest.fail(str(refused))
        modes = {mode_of(name) for name in ours}
        assert len(modes) <= 1, ours
        asked += [mode for mode in modes if mode is not None]
    return asked


def runtime_classes(document: Any) -> set[str]:
    """Those that are named anywhere in an object of any kind."""
    parts = document.values() if isinstance(document, dict) else document if isinstance(document, list) else []
    named = {document["runtimeClassName"]} if isinstance(document, dict) and "runtimeClassName" in document else set()
    return named.union(*map(runtime_classes, parts))


def blocks(path: Path) -> Iterator[Any]:
    """The objects in the YAML blocks of a page; parts of objects are not meant."""
    for text in re.findall(r"^ *```yaml\n(.*?)^ *```", path.read_text(), re.MULTILINE | re.DOTALL):
        yield from yaml.safe_load_all(text)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_example_asks_for_offered_resources_and_names_needs(path: Path) -> None:
    text = path.read_text()
    documents = list(yaml.safe_load_all(text))
    assert all({"apiVersion", "kind", "metadata", "spec"} <= set(each) for each in documents)
    needed = re.search(r"^# Needs: .*?gpu_mode (\w+)", text, re.MULTILINE | re.DOTALL)
    assert needed is not None
    assert {mode.value for mode in modes_asked(documents)} == {needed[1]}
    if needed[1] == Mode.PGPU.value:
        # Nodes without CDI give GPUs to containers of NVIDIA's runtime alone.
        assert "nvidia" in runtime_classes(documents) or "container_runtime_default: true" in text


def test_spawner_offers_resources_that_can_be_asked_for_alone() -> None:
    config = yaml.safe_load(document(SPAWNER)["data"]["spawner_ui_config.yaml"])
    vendors = config["spawnerFormDefaults"]["gpus"]["value"]["vendors"]
    asked = [modes_asked({"resources": {"limits": {vendor["limitsKey"]: 1}}}) for vendor in vendors]
    assert {mode for modes in asked for mode in modes} == {Mode.PGPU, Mode.CGPU}
    (group,) = config["spawnerFormDefaults"]["tolerationGroup"]["options"]
    assert group["groupKey"] == config["spawnerFormDefaults"]["tolerationGroup"]["value"]
    assert "container_runtime_default: true" in SPAWNER.read_text()


def selected_labels(document: Any) -> Iterator[str]:
    """Labels of nodes that an object of any kind selects by affinity."""
    if isinstance(document, dict):
        for term in document.get("nodeSelectorTerms", []):
            yield from (expression["key"] for expression in term["matchExpressions"])
    parts = document.values() if isinstance(document, dict) else document if isinstance(document, list) else []
    for part in parts:
        yield from selected_labels(part)


def test_examples_select_nodes_by_labels_that_the_plugin_writes() -> None:
    selected = {label for path in EXAMPLES for label in selected_labels([*yaml.safe_load_all(path.read_text())])}
    written = (ROOT / "roles/gpu_plugins/files/kube_accel/src/kube_accel/sharing/node_labels.py").read_text()
    assert {"cuda-major-version", "cuda-minor-version"} < selected
    assert all(label.removeprefix("nvidia.com/gpu.") in written for label in selected)


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_a_page_asks_for_what_nodes_offer(path: Path) -> None:
    modes_asked(list(blocks(path)))


def test_the_guide_to_modes_shows_a_pod_for_each() -> None:
    pods = [each for each in blocks(ROOT / "docs/reference/modes.md") if each.get("kind") == "Pod"]
    assert set(modes_asked(pods)) == set(Mode)
    assert all("nvidia" in runtime_classes(pod) for pod in pods if Mode.PGPU in modes_asked(pod))
    names = {name for pod in pods for limits in limits_of(pod) for name in limits}
    assert {WHOLE_GPU_RESOURCE, f"{WHOLE_GPU_RESOURCE}.shared"} | SHARED < names


def test_modes_guide_has_every_gpu_choosing_annotation() -> None:
    page = (ROOT / "docs/reference/modes.md").read_text()
    told = dict(re.findall(r"^\| `(kube-accel\.io/[\w-]+)` \| `([^`]+)` \| .+ \|$", page, re.MULTILINE))
    known = {value for value in vars(request).values() if isinstance(value, str) and value.startswith("kube-accel.io/")}
    assert set(told) == known
    asks = {"spec": {"containers": [{"name": "it", "resources": {"limits": {"aliyun.com/gpu-mem": 4}}}]}}
    for name, value in told.items():
        assert pod_request({**asks, "metadata": {"annotations": {name: value}}}) != pod_request(asks), name


@pytest.mark.parametrize(
    ("limits", "wrong"),
    [
        ({"tencent.com/vcuda-core": 30}, "needs some of its memory"),
        ({"nvidia.com/mps-core": 130, "nvidia.com/mps-memory": 4}, "Ask for 1 to 99"),
        ({"nvidia.com/mps-core": 30, "tencent.com/vcuda-memory": 4}, "no one node offers"),
        ({"nvidia.com/gpumem": 4000}, "no mode offers"),
    ],
)
def test_a_wrong_amount_is_seen(limits: dict[str, int], wrong: str) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception), match=wrong):
        modes_asked({"spec": {"template": {"containers": [{"resources": {"limits": limits}}]}}})
