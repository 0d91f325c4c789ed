# SPDX-License-Identifier: Apache-2.0
"""The page of formats has each file of the daemons, and the versions that the code writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark import start
from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins import state_files

from kube_accel.dra import checkpoint, specifications
from kube_accel.enforce import policy
from kube_accel.metrics import meterstate
from kube_accel.nvml import health_store
from kube_accel.sharing import assignment, cdi, interposition, inventory_annotation

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/reference/formats.md").read_text()
DAEMONS = ROOT / "roles/gpu_plugins/files/kube_accel/src/kube_accel"
VERSIONS = {
    f"| node annotation `{inventory_annotation.ANNOTATION}` ": inventory_annotation.VERSION,
    "| pod annotation `kube-accel.io/assignment` ": assignment.VERSION,
    "| node annotation `kube-accel.io/benchmark` ": start._VERSION,
    "| `STATE/health.json` ": health_store._VERSION,
    f"| `STATE/{checkpoint.FILE}` ": checkpoint.VERSION,
    f"| `STATE/containers/KEY/policy`, `{interposition.POLICY}` ": policy.NEWEST,
    "The ledger records ": meterstate._VERSION,
}
"""How the row or paragraph of a format with a version begins, and the version that the code writes."""


def state_files_of_the_daemons() -> set[str]:
    """Names in the code that are files of the state directory which is removed with the plugin, without its locks."""
    text = "\n".join(path.read_text() for path in DAEMONS.rglob("*.py"))
    names = set(re.findall(r'"([a-z-]+\.(?:json|db|sock))"', text))
    return {name for name in names if state_files._OURS.fullmatch(name)}


def test_page_has_each_file_of_the_state_directory() -> None:
    told = set(re.findall(r"`STATE/([a-z-]+\.[a-z]+)`", PAGE))
    assert len(told) > 6
    assert told == state_files_of_the_daemons()


@pytest.mark.parametrize("begins", VERSIONS)
def test_page_has_the_version_that_the_code_writes(begins: str) -> None:
    (told,) = re.findall(rf"^{re.escape(begins)}[^|]*?(?:\|.*|\n.*)now (\d+)", PAGE, re.MULTILINE)
    assert int(told) == VERSIONS[begins]


def test_no_other_format_on_the_page_has_a_version() -> None:
    assert len(re.findall(r"\bnow \d", PAGE)) == len(VERSIONS)


def test_page_has_the_files_of_cdi_and_of_containers() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `CDI/")]
    assert [f"CDI {cdi.VERSION}" in row for row in rows] == [True] * 4
    for path in (
        f"CDI/{cdi.FILE}",
        f"CDI/{interposition.CDI_FILES}KEY.json",
        f"CDI/{specifications.PREFIX}UID.json",
        f"CDI/{specifications.PREFIX}UID.shares.json",
        interposition.POLICY,
        interposition.STATE,
    ):
        assert f"`{path}`" in PAGE
