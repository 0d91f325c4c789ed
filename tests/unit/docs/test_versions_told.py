# SPDX-License-Identifier: Apache-2.0
"""Which versions it runs with is what code and measurements say; releases are spoken of once there is one."""

from __future__ import annotations

import re
from pathlib import Path

from ansible_collections.accel.kubernetes.plugins.module_utils.shared.minimums import MINIMUMS

from yaml_files import document

ROOT = Path(__file__).parents[3]
COMPATIBILITY = (ROOT / "docs/reference/compatibility.md").read_text()


def test_changelog_has_each_release_and_a_how_to_links_it() -> None:
    releases = document(ROOT / "changelogs/changelog.yaml")["releases"]
    titles = re.findall(r"^v(\d+\.\d+\.\d+)\n=+$", (ROOT / "CHANGELOG.rst").read_text(), re.MULTILINE)
    assert set(titles) == releases.keys()
    assert document(ROOT / "galaxy.yml")["version"] in releases
    assert "(../../CHANGELOG.rst)" in (ROOT / "docs/how-to/roll-out.md").read_text()


def test_readme_and_compatibility_page_name_each_minimum() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    for minimum in MINIMUMS:
        assert f"{minimum.name} {minimum.words} or newer" in readme
    (line,) = re.findall(r"^Runs with .*(?:\n.+)*", (ROOT / "README.md").read_text(), re.MULTILINE)
    told = re.findall(r"((?:NVIDIA )?[\w-]+(?: Toolkit)?) (\d[\d.]*) or newer", line.replace("\n", " "))
    assert {version for _name, version in told} == {minimum.words for minimum in MINIMUMS}
    section = COMPATIBILITY.partition("\n## Supported versions\n")[2].partition("\n## ")[0]
    for minimum in MINIMUMS:
        assert re.search(rf"{minimum.name}(?: \|)? {re.escape(minimum.words)} or newer", section), minimum


def test_readme_names_supported_versions_and_links_the_page() -> None:
    (line,) = re.findall(r"^Runs with .*(?:\n.+)*", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert "(docs/reference/compatibility.md#supported-versions)" in line
    section = COMPATIBILITY.partition("\n## Supported versions\n")[2].partition("\n## ")[0]
    written = (ROOT / "plugins/module_utils/scheduler/schema.py").read_text()
    assert re.findall(r'^API_VERSION = "(.*)"', written, re.MULTILINE)[0] in section
    for page, versions in {
        "cluster": r"^\| (1\.\d+)\.\d+ \|",
        "hosts": r"^\| (Debian \d+) \| (?:containerd|Docker)",
    }.items():
        measured = set(re.findall(versions, (ROOT / f"docs/measurements/{page}.md").read_text(), re.MULTILINE))
        assert measured
        assert all(each in section for each in measured), measured
    minimum = re.findall(r"Kubernetes (1\.\d+)", line)[0]
    assert f"{minimum} or newer" in section
    ansible = document(ROOT / "meta/runtime.yml")["requires_ansible"]
    assert re.findall(r"\d+\.\d+", ansible)[0] in section
