# SPDX-License-Identifier: Apache-2.0
"""What the plugin reads of its node and of ConfigMaps is odd in any field: what was known holds, and it is told."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kube_accel.enforce.overrides import Override
from kube_accel.kube.api import ApiClient
from kube_accel.kube.watch import Watch
from kube_accel.plugin.configuration.configurator import Configurator
from kube_accel.plugin.configuration.file import Configuration
from kube_accel.plugin.configuration.options import ConfigMapRef
from kube_accel.plugin.node import labels
from kube_accel.plugin.node.labels import LabelWriter
from kube_accel.plugin.tenancy.overrides_watch import OverridesWatch
from kube_accel.shared.api_json import checked
from kube_accel.sharing import node_labels
from kube_accel.sharing.node_labels import NFD_OWNED, OWNED
from odd_values import Path as FieldPath
from odd_values import cases, fields_read, with_value

NODE, MAP = "odd-node", "odd-map"
CONFIG_LABEL = "nvidia.com/device-plugin.config"
SLICED = "{version: v1, sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}}"
NEVER = threading.Event()


class Server:
    """An API server that has these objects, by the last part of what is listed, and keeps what it is told."""

    def __init__(self, **items: dict[str, Any]) -> None:
        self.items: dict[str, dict[str, Any]] = items
        self.events: list[str] = []

    def send(self, method: str, path: str, **_: object) -> bytes:
        item = self.items.get(path.rpartition("/")[2])
        return json.dumps({"metadata": {"resourceVersion": "9"}, "items": [] if item is None else [item]}).encode()

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        json.dumps(body).encode()
        self.events.append(f"{body['reason']}: {body['message']}")
        return {}


def list_again(watches: Iterable[Watch]) -> None:
    for watch in watches:
        watch._list(NEVER)


def said(server: Server, caplog: pytest.LogCaptureFixture) -> str:
    return " ".join([*server.events, *(json.dumps(record.__dict__, default=str) for record in caplog.records)])


def config_map(**data: str) -> dict[str, Any]:
    return {"metadata": {"name": MAP, "namespace": "kube-system", "uid": "u"}, "data": data}


def labeled(**labels: str) -> dict[str, Any]:
    return {"metadata": {"name": NODE, "uid": "n", "labels": labels, "annotations": {}}}


class Configured:
    """A plugin's configurator, whose node and ConfigMap are what the server has."""

    def __init__(self, state_dir: Path, node: dict[str, Any], configs: dict[str, Any]) -> None:
        (state_dir / "configuration.json").unlink(missing_ok=True)
        self.applied: list[Configuration] = []
        self.server: Any = Server(nodes=node, configmaps=configs)
        options: Any = SimpleNamespace(
            config_map=ConfigMapRef("kube-system", MAP), default_config="", node_name=NODE, state_dir=state_dir
        )
        self.configurator = Configurator(options, self.applied.append)
        self.watches = self.configurator._watches(self.server)
        self.settle()

    def settle(self, **items: dict[str, Any]) -> Configured:
        self.server.items.update(items)
        list_again(self.watches)
        self.configurator.settle(self.server)
        return self

    @property
    def name(self) -> str | None:
        return None if self.configurator.current is None else self.configurator.current.name


GOOD_MAP = config_map(good=SLICED, other="{version: v1}")
GOOD_NODE = labeled(**{CONFIG_LABEL: "good"})


def read_of_map(item: dict[str, Any]) -> None:
    """A server answers in text, so that what is read of it is found below the watch."""
    from kube_accel.plugin.configuration.choice import choose

    checked(item)
    choose(item.get("data") or {}, "good", "")


def read_of_node(item: dict[str, Any]) -> None:
    (checked(item)["metadata"].get("labels") or {}).get(CONFIG_LABEL)


@pytest.mark.parametrize(("path", "values"), cases(fields_read(GOOD_MAP, read_of_map)))
def test_odd_config_map_leaves_the_node_and_is_reported(
    path: FieldPath, values: Mapping[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in values.items():
        odd = with_value(GOOD_MAP, path, value)
        caplog.clear()
        serving = Configured(tmp_path, GOOD_NODE, GOOD_MAP)
        assert serving.name == "good", name
        serving.settle(configmaps=odd)
        assert serving.name == "good", name
        if path[0] == "data" and path != ("data", "other") and value != "":
            assert MAP in said(serving.server, caplog) or "good" in " ".join(serving.server.events), name
        first = Configured(tmp_path, GOOD_NODE, odd)
        assert first.name is not None, name
        assert first.name == "good" or any("Configuration" in event for event in first.server.events), name
        assert first.settle(configmaps=GOOD_MAP).name == "good", name


@pytest.mark.parametrize(("path", "values"), cases(fields_read(GOOD_NODE, read_of_node)))
def test_odd_node_leaves_its_configuration_and_is_reported(
    path: FieldPath, values: Mapping[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in values.items():
        serving = Configured(tmp_path, GOOD_NODE, GOOD_MAP)
        caplog.clear()
        odd = with_value(GOOD_NODE, path, value)
        serving.settle(nodes=odd)
        if serving.name != "good":
            assert serving.name == "", name
            assert not (odd["metadata"].get("labels") or {}).get(CONFIG_LABEL), name
        elif path[-1] in ("labels", CONFIG_LABEL):
            assert serving.server.events, name
        assert serving.settle(nodes=GOOD_NODE).name == "good", name


def test_unreadable_map_is_reported_by_an_event_with_a_remedy(tmp_path: Path) -> None:
    serving = Configured(tmp_path, GOOD_NODE, with_value(GOOD_MAP, ("data",), ["x"]))
    (event,) = serving.server.events
    assert event == (
        "ConfigurationUnreadable: ConfigMap kube-system/odd-map: data is no JSON object; see kubectl --namespace "
        "kube-system get configmap odd-map --output=yaml, and correct it; the node stays with whole GPUs"
    )
    assert "gone" not in serving.settle().configurator.problem


def test_an_odd_map_that_is_gone_is_gone(tmp_path: Path) -> None:
    serving = Configured(tmp_path, GOOD_NODE, with_value(GOOD_MAP, ("data",), ["x"]))
    del serving.server.items["configmaps"]
    assert "there are: none" in serving.settle().configurator.problem


OVERRIDES = config_map(**{"team.good.main": '{"cores": 20}', "team.other.main": '{"memory": "6Gi", "softCores": 50}'})


class Followed:
    """The overrides in force after lists of these ConfigMaps."""

    def __init__(self) -> None:
        self.overrides: list[Override] = []
        self.server: Any = Server()
        self.watch = OverridesWatch(self.server, ConfigMapRef("kube-system", MAP), self._use)

    def _use(self, overrides: Iterable[Override]) -> None:
        self.overrides = list(overrides)

    def list(self, item: dict[str, Any]) -> set[str]:
        self.server.items["configmaps"] = item
        list_again([self.watch._watch])
        return {each.key for each in self.overrides}


def read_of_overrides(item: dict[str, Any]) -> None:
    watch = OverridesWatch(Server(), ConfigMapRef("kube-system", MAP), lambda _: None)  # type: ignore[arg-type]
    watch._map.keep(checked(item))


@pytest.mark.parametrize(("path", "values"), cases(fields_read(OVERRIDES, read_of_overrides)))
def test_an_odd_override_costs_itself_alone_and_is_told(
    path: FieldPath, values: Mapping[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in values.items():
        followed = Followed()
        assert followed.list(OVERRIDES) == {"team.good.main", "team.other.main"}
        caplog.clear()
        odd = with_value(copy.deepcopy(OVERRIDES), path, value)
        found = followed.list(odd)
        if name == "absent" or (path == ("data",) and (value is None or isinstance(value, dict))):
            continue  # taken away, as administrators do
        lost = {"team.good.main", "team.other.main"} - found
        assert lost <= {path[-1]}, name
        if lost or path[0] == "data":
            told = said(followed.server, caplog)
            assert MAP in told, name
            assert str(path[-1]) in told, name


def labelled_node() -> dict[str, Any]:
    labels = {"cuda-major-version": "12", "nvidia.com/gpu.count": "4", "pool": "a"}
    annotations = {OWNED: "cuda-major-version,nvidia.com/gpu.count", f"x.{NFD_OWNED}": "pool"}
    return {"metadata": {"name": NODE, "labels": labels, "annotations": annotations}}


def written(item: dict[str, Any]) -> list[dict[str, Any]]:
    """The patches of a plugin that is to label this node, and ends then."""
    wanted, patches = iter([{"cuda-major-version": "13"}]), list[dict[str, Any]]()

    def tell() -> dict[str, str]:
        writer.wake()
        for each in wanted:
            return each
        raise SystemExit

    def send(self: ApiClient, method: str, path: str, content_type: str = "", body: Any = None) -> bytes:
        if method == "PATCH":
            patches.append(json.loads(json.dumps(body)))
        return json.dumps(item).encode()

    writer = LabelWriter(NODE, Path("/none"), tell)
    writer.wake()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBERNETES_SERVICE_HOST", "192.0.2.1")
        patch.setenv("KUBERNETES_SERVICE_PORT", "443")
        patch.setattr(ApiClient, "_send", send)
        patch.setattr(labels, "_BETWEEN_WRITES", 0)
        patch.setattr(labels, "_BACK_OFF", (0, 0))
        with pytest.raises(SystemExit):
            writer.run()
    return patches


def read_of_labelled_node(item: dict[str, Any]) -> None:
    metadata = checked(item)["metadata"]
    node_labels.plan(metadata["labels"], metadata["annotations"], {"cuda-major-version": "13"}, 0)


@pytest.mark.parametrize(("path", "values"), cases(fields_read(labelled_node(), read_of_labelled_node)))
def test_an_odd_node_is_labelled_or_told(
    path: FieldPath, values: Mapping[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in values.items():
        caplog.clear()
        patches = written(with_value(labelled_node(), path, value))
        given = [patch["metadata"].get("labels", {}) for patch in patches]
        assert all("pool" not in each for each in given), name
        records = [record for record in caplog.records if record.levelname == "WARNING"]
        told = [record for record in records if getattr(record, "node", "") == NODE]
        assert any(each.get("cuda-major-version") == "13" for each in given) or told, name
