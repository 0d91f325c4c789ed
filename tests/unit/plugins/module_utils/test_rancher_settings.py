# SPDX-License-Identifier: Apache-2.0
"""How k3s and rke2 read their settings."""

from __future__ import annotations

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.rancher_settings import load, merged, rank
from ansible_collections.accel.kubernetes.plugins.module_utils.yaml_text import YamlError

MAIN = "/etc/rancher/k3s/config.yaml"


def test_settings_given_again_replace_or_add_in_the_order_of_the_files() -> None:
    texts = {
        f"{MAIN}.d/20-b.yml": "tls-san+: c\ndebug: false\n",
        f"{MAIN}.d/10-a.yaml": "tls-san: [b]\nnode-label+: x\n",
        MAIN: "---\n# ours\ntls-san: a\ndebug: true\n",
    }
    files = {path: load(texts[path], path) for path in sorted(texts, key=rank)}
    assert list(files) == [MAIN, f"{MAIN}.d/10-a.yaml", f"{MAIN}.d/20-b.yml"]
    assert merged(files) == {"tls-san": ["b", "c"], "debug": False, "node-label": "x"}


def test_a_file_that_says_nothing_has_no_settings_and_one_that_is_no_yaml_is_named() -> None:
    assert load("---\n# nothing\n", MAIN) == load("", MAIN) == {}
    with pytest.raises(YamlError, match=f"^{MAIN} is not YAML"):
        load("a: [", MAIN)
