# SPDX-License-Identifier: Apache-2.0
"""A configuration in YAML of any form: whoever reads it says that it cannot be used, and goes on."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.documents import yaml_text
from ansible_collections.accel.kubernetes.plugins.modules.gpu_migration_info import parsed

from kube_accel.kube.kubeconfig import KubeconfigError, client_from_kubeconfig
from kube_accel.mig import worker
from kube_accel.plugin.configuration.choice import NotChosenError, choose
from kube_accel.shared import quota
from odd_values import ODD_YAML


def refusal(text: str) -> str:
    """Why the plugin does not use it; empty where it does."""
    try:
        choose({"odd": text}, "odd", "")
    except NotChosenError as error:
        return str(error)
    return ""


pytestmark = pytest.mark.parametrize("text", ODD_YAML, ids=lambda text: ascii(text[:20]))


def test_a_configuration_of_the_plugin_is_not_chosen_and_named(text: str) -> None:
    why = refusal(text)
    assert not why or re.fullmatch(r"configuration odd: .+; nothing of it was applied", why)


def test_configurations_of_mig_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def given(_library: str, document: Any, *_: object) -> dict[str, Any]:
        return {"document": document}

    monkeypatch.setattr(worker.mig_nvml, "carry_out", given)
    answer = worker._result({"text": text, "config": "all-1g", "check": True, "excluded": ""})
    assert "document" in answer or answer["refused"]


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (quota.parse, quota.QuotaError),
        (parsed, ValueError),
        (lambda text: yaml_text.load(text, "file"), yaml_text.YamlError),
    ],
    ids=["quota", "migration", "file of a host"],
)
def test_it_is_refused_by_each(text: str, read: Callable[[str], object], error: type[Exception]) -> None:
    with suppress(error):
        read(text)


def test_a_kubeconfig_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "odd-kubeconfig"
    path.write_text(text, errors="replace")
    with pytest.raises(KubeconfigError, match="odd-kubeconfig cannot be used"):
        client_from_kubeconfig(path)
