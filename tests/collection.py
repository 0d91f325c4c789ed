# SPDX-License-Identifier: Apache-2.0
"""Makes the checkout importable as the collection accel.kubernetes: a conftest.py imports this."""

from __future__ import annotations

from pathlib import Path

from ansible.utils.collection_loader import AnsibleCollectionConfig
from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionFinder

ROOT = Path(__file__).parents[1]
COLLECTIONS = ROOT / ".build" / "link"


def _link_collection() -> None:
    link = COLLECTIONS / "ansible_collections" / "accel" / "kubernetes"
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(ROOT, target_is_directory=True)


_link_collection()
if AnsibleCollectionConfig.collection_finder is None:
    _AnsibleCollectionFinder(paths=[str(COLLECTIONS)])._install()
