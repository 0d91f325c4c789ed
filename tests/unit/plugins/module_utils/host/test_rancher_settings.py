# SPDX-License-Identifier: Apache-2.0
"""How k3s and rke2 read their settings."""

from __future__ import annotations

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.documents.yaml_text import YamlError
from ansible_collections.accel.kubernetes.plugins.module_utils.host.command_line import Given, started
from ansible_collections.accel.kubernetes.plugins.module_utils.host.rancher_settings import data_dir, load, merged, rank

MAIN = "/etc/rancher/k3s/config.yaml"


def test_repeated_settings_replace_or_add_in_file_order() -> None:
    texts = {
        f"{MAIN}.d/20-b.yml": "tls-san+: c\ndebug: false\n",
        f"{MAIN}.d/10-a.yaml": "tls-san: [b]\nnode-label+: x\n",
        MAIN: "---\n# ours\ntls-san: a\ndebug: true\n",
    }
    files = {path: load(texts[path], path) for path in sorted(texts, key=rank)}
    assert list(files) == [MAIN, f"{MAIN}.d/10-a.yaml", f"{MAIN}.d/20-b.yml"]
    assert merged(files) == {"tls-san": ["b", "c"], "debug": False, "node-label": "x"}


def test_empty_file_has_no_settings_and_bad_yaml_is_named() -> None:
    assert load("---\n# nothing\n", MAIN) == load("", MAIN) == {}
    with pytest.raises(YamlError, match=f"^{MAIN} is not YAML"):
        load("a: [", MAIN)


@pytest.mark.parametrize(
    ("words", "environment", "files", "found"),
    [
        ([], {}, {}, None),
        ([], {}, {MAIN: {"data-dir": "/a"}, f"{MAIN}.d/x.yaml": {"data-dir": "/b"}}, ("/b", f"{MAIN}.d/x.yaml")),
        ([], {"K3S_DATA_DIR": "/c"}, {}, ("/c", "unit")),
        ([], {"K3S_DATA_DIR": "/c"}, {MAIN: {"d": "/a"}}, ("/a", MAIN)),
        (["-data-dir", "/e", "-d=/f"], {"K3S_DATA_DIR": "/c"}, {MAIN: {"data-dir": "/a"}}, ("/f", "unit")),
        ([], {"RKE2_DATA_DIR": "/c"}, {MAIN: {"tls-san": "/a"}}, None),
    ],
)
def test_where_the_distribution_keeps_its_data_is_known(
    words: list[str], environment: dict[str, str], files: dict[str, dict[str, str]], found: tuple[str, str] | None
) -> None:
    start = started(["/usr/bin/k3s", "server", *words], "unit")
    start.environment = {name: Given(value, "unit") for name, value in environment.items()}
    assert data_dir("k3s", start, files) == (Given(*found) if found else None)
