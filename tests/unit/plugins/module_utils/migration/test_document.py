# SPDX-License-Identifier: Apache-2.0
"""The plan as a person sees it is the one that docs/how-to/migrate.md shows."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.accel.kubernetes.plugins.module_utils.migration.shown import table

from unit.plugins.module_utils.migration import peer_objects as objects
from unit.plugins.module_utils.migration.peer_objects import chosen, pod
from unit.plugins.module_utils.migration.test_plan import planned

DOCUMENT = Path(__file__).parents[5] / "docs/how-to/migrate.md"


def test_the_table_is_what_the_document_shows() -> None:
    webhook = {"metadata": {"name": "hami-webhook"}, "webhooks": [{"name": "vgpu.hami.io"}]}
    other = {"metadata": {"name": "other"}, "webhooks": [{"name": "x"}]}
    share = pod("share", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"})
    found = chosen("hami", **{"nvidia.com__gpu": "10"})
    files = objects.hami_files()
    document = planned([objects.hami()], [found], share, mode="vgpu", webhooks=[webhook, other], files=files)
    shown = DOCUMENT.read_text().partition("```text\n")[2].partition("```")[0].splitlines()
    assert table(document) == shown
