# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The oldest versions of others' software that the collection works with, and what is known not to work. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Tuple

from .finding import Finding
from .registers import mapping

Version = Tuple[int, ...]


@dataclass(frozen=True)
class Minimum:
    """The oldest version of something."""

    name: str
    version: Version
    remedy: str

    @property
    def words(self) -> str:
        """Return the version as people write it."""
        return ".".join(str(part) for part in self.version)

    def refuses(self, found: str) -> bool:
        """Return whether a version is older; one that cannot be read is not."""
        return () < version_in(found) < self.version

    def complaint(self, found: str) -> str:
        """Return what to say of a version that is older."""
        return f"{self.name} is {found}; {self.words} or newer is needed."


KUBERNETES = Minimum("Kubernetes", (1, 25), "Upgrade the control planes, then the node's kubelet.")
DRIVER = Minimum("NVIDIA driver", (470,), "Run ansible-playbook -i INVENTORY accel.kubernetes.upgrade_driver.")
TOOLKIT = Minimum(
    "NVIDIA Container Toolkit",
    (1, 7),
    "Set container_runtime_toolkit_version, and run ansible-playbook -i INVENTORY accel.kubernetes.site"
    " --tags container_runtime.",
)
_UPGRADE = "Drain the node, and run apt-get install --only-upgrade {}, or the same of its distribution."
CONTAINERD = Minimum("containerd", (1, 6), _UPGRADE.format("containerd.io"))
DOCKER = Minimum("Docker", (20, 10), _UPGRADE.format("docker-ce"))
CRI_O = Minimum("CRI-O", (1, 25), _UPGRADE.format("cri-o"))
MINIMUMS = (KUBERNETES, DRIVER, TOOLKIT, CONTAINERD, DOCKER, CRI_O)

RUNTIMES = {"containerd": CONTAINERD, "docker": DOCKER, "cri-o": CRI_O}
"""By the name that kubelet has for a container runtime."""

TOOLKITS_WITHOUT_MIG = ((1, 18), (1, 19))
"""They bring no files by which a container may cut GPUs, but in mode ``legacy``."""


@dataclass(frozen=True)
class Versions:
    """Versions that were found on a node; empty where nothing is known."""

    kubernetes: str = ""
    runtime: str = ""
    """As kubelet writes it, such as ``containerd://1.7.27``."""
    driver: str = ""
    toolkit: str = ""

    def found(self) -> Dict[Minimum, str]:
        """Return what was found of what has a minimum."""
        name, _between, runtime = self.runtime.partition("://")
        known = {KUBERNETES: self.kubernetes.lstrip("v"), DRIVER: self.driver, TOOLKIT: self.toolkit}
        if name in RUNTIMES:
            known[RUNTIMES[name]] = runtime
        return {minimum: version for minimum, version in known.items() if version_in(version)}

    def words(self) -> str:
        """Return what was found as one text."""
        return ", ".join(f"{minimum.name} {version}" for minimum, version in self.found().items())


def versions_of(node: Mapping[str, Any], driver: object, toolkit: object) -> Versions:
    """Return the versions of a node, as the API server has it, with what its host says of driver and toolkit."""
    info = mapping(mapping(node.get("status")).get("nodeInfo"))
    kubernetes, runtime = (str(info.get(key) or "") for key in ("kubeletVersion", "containerRuntimeVersion"))
    return Versions(kubernetes, runtime, str(driver or ""), str(toolkit or ""))


def too_old(versions: Versions) -> List[Finding]:
    """Return a finding for each version that is older than it has to be."""
    return [
        Finding("blocked", "versions", minimum.complaint(found), minimum.remedy)
        for minimum, found in versions.found().items()
        if minimum.refuses(found)
    ]


def cannot_cut(toolkit: str, mode: str) -> List[Finding]:
    """Return a finding where a toolkit in this mode, by its configuration, keeps the plugin from cutting GPUs."""
    if version_in(toolkit)[:2] not in TOOLKITS_WITHOUT_MIG or mode == "legacy":
        return []
    found = (
        f"{TOOLKIT.name} is {toolkit}, and {' and '.join(_dotted(each) for each in TOOLKITS_WITHOUT_MIG)} do not bring "
        "nvidia-cap1 and nvidia-cap2 into the plugin's container: it may not be allowed to cut GPUs by MIG."
    )
    remedy = 'Set container_runtime_toolkit_version to 1.20 or newer, or mode = "legacy" in the toolkit\'s config.toml.'
    return [Finding("unstable", "versions", found, remedy)]


def version_in(text: str) -> Version:
    """Return the numbers of a version at the beginning of a text, empty where there is none."""
    match = re.match(r"v?(\d{1,9}(?:\.\d{1,9})*)", text)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def _dotted(version: Version) -> str:
    return ".".join(str(part) for part in version)
