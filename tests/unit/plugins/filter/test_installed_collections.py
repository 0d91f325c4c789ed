# SPDX-License-Identifier: Apache-2.0
"""Filter installed_collections, where Ansible finds collections."""

from __future__ import annotations

from ansible_collections.accel.kubernetes.plugins.filter.installed_collections import installed_collections


def test_versions_are_read_where_there_is_a_manifest() -> None:
    wanted = [
        {"name": "kubernetes.core", "version": ">=5.0.0"},
        {"name": "accel.kubernetes"},
        {"name": "no.such", "version": "*"},
    ]
    core, ours, none = installed_collections(wanted)
    assert int(core["version"].split(".")[0]) >= 5
    assert (core["name"], core["wanted"]) == ("kubernetes.core", ">=5.0.0")
    assert ours == {"name": "accel.kubernetes", "wanted": "", "version": "unknown"}
    assert none == {"name": "no.such", "wanted": "*", "version": ""}
