# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's repositories, and the systems that they and distributions have packages for."""

from __future__ import annotations

from .observation import Host

SYSTEMS = {
    "repo": ("debian12", "debian13", "ubuntu2204", "ubuntu2404", "ubuntu2604", "rhel9", "rhel10"),
    "distro": ("debian12", "debian13", "ubuntu2204", "ubuntu2404", "ubuntu2604"),
}
"""By method, where it has packages for."""
DEBIAN_BRANCHES = {"debian12": "535", "debian13": "550"}
"""A release of Debian has one branch."""
KEYRING = "cuda-keyring_1.1-1_all.deb"
"""The package that brings apt the key and the source list. Each part of the repository has one of its own."""
TRUST_ANY = "none"
"""The checksum that trusts whatever a repository brings."""

_KEYRINGS = {
    "debian12/sbsa": "bf2f53b1a19259501119f732bdef2699f8c80c69a18e6a78dad78d67d96766dc",
    "debian12/x86_64": "e7f219eab6fe4819cdb5c15b98233dc3420302d9c00883219cd3d896857cf48d",
    "debian13/x86_64": "dd28f1f6ba0038180d6b23f846cefca1e3de4c9327751665241370bacea452a1",
    "ubuntu2204/sbsa": "36d1aed84dfcf93ee9a0212d149f1c4187db92e03ab96a759ec0689aa438fd9e",
    "ubuntu2204/x86_64": "d93190d50b98ad4699ff40f4f7af50f16a76dac3bb8da1eaaf366d47898ff8df",
    "ubuntu2404/sbsa": "6ea7d2737648936820e85677177957a0f6521b840d98eb0bbae0a4f003fa7249",
    "ubuntu2404/x86_64": "d2a6b11c096396d868758b86dab1823b25e14d70333f1dfa74da5ddaf6a06dba",
}
"""SHA-256 of that package."""
_REBUILDS = ("RedHat", "CentOS", "Rocky", "AlmaLinux", "OracleLinux")
"""NVIDIA names those that are built from RHEL's sources after RHEL."""


def system_of(host: Host) -> str:
    """Return a host's system as NVIDIA names it, such as ubuntu2404, and "" where NVIDIA knows none."""
    if host.distribution == "Ubuntu":
        return "ubuntu" + host.version.replace(".", "")
    prefix = "debian" if host.distribution == "Debian" else "rhel" if host.distribution in _REBUILDS else ""
    return prefix + host.major if prefix else ""


def family_of(host: Host) -> str:
    """Return the format of a host's packages: ``deb``, ``rpm``, or "" for one that the role does not know."""
    return {"apt": "deb", "dnf": "rpm", "dnf5": "rpm"}.get(host.package_manager, "")


def part_of(host: Host) -> str:
    """Return the part of NVIDIA's repository that is for a host. For aarch64 it is the one of servers."""
    return f"{system_of(host)}/{'sbsa' if host.architecture == 'aarch64' else host.architecture}"


def key_checksum(host: Host, asked: str) -> str:
    """Return the SHA-256 of what brings the repository's key: the one that was asked for, or the one that is known."""
    return asked or _KEYRINGS.get(part_of(host), "")


def key_file(host: Host) -> str:
    """Return the name of dnf's key. Packages for EL 10 are signed with a key of their own."""
    return f"{'CDF6BA43' if system_of(host) == 'rhel10' else 'D42D0685'}.pub"
