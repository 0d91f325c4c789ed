# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decides how NVIDIA's container toolkit comes to a host, and how it goes. Pure."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Tuple

from ..shared.minimums import TOOLKIT
from ..shared.refusal import Refusal
from ..shared.registers import mapping
from .options import Options
from .selection import Host

_FAMILIES = {"apt": "deb", "dnf": "rpm", "dnf5": "rpm"}
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_KEY_FILES = {
    "deb": "/usr/share/keyrings/nvidia-container-toolkit.asc",
    "rpm": "/etc/pki/rpm-gpg/RPM-GPG-KEY-accel-nvidia-container-toolkit",
}
_APT_SOURCE = "/etc/apt/sources.list.d/accel-nvidia-container-toolkit.sources"
_DNF_SOURCE = "/etc/yum.repos.d/accel-nvidia-container-toolkit.repo"
_STALE_LISTS = re.compile("No package matching|no available installation candidate|Failed to fetch")
"""What apt says of lists that lack a package, a version of it, or name a file that is gone."""


@dataclass(frozen=True)
class Source:
    """A package source of others that names the same repository with another key."""

    path: str
    kept: str
    """Where it waits for the uninstall."""


@dataclass(frozen=True)
class Toolkit:
    """The toolkit on a host."""

    family: str
    """``deb`` or ``rpm``, and "" for packages that NVIDIA does not make."""
    architecture: str
    """As Debian names it."""
    packages: Tuple[str, ...]
    source: str
    """The file of our package source for apt."""
    key_file: str
    key_checksum: str
    """"" to take whatever comes."""
    replace_key: bool
    """Whether the key that is there may be another one."""
    gpgkey: str
    """Where dnf finds the key."""
    mark: str
    """A directory that exists where the toolkit was not there before this role, which removes no other."""
    ours: bool
    begin: bool
    """Whether the mark is to be made."""
    obsolete: Tuple[Source, ...]
    """The sources of others that are there."""
    waiting: Tuple[Source, ...]
    """Those that an earlier run has put away."""
    kept_files: Tuple[str, ...]
    """Where sources of others may wait."""
    removed_files: Tuple[str, ...]
    """What uninstalling removes."""


def places(options: Options) -> Tuple[str, ...]:
    """Return the files by which the toolkit's owner and the sources are known."""
    return (
        _mark(options),
        *options.toolkit_repo_obsolete,
        *(_kept(options, path) for path in options.toolkit_repo_obsolete),
    )


def plan_toolkit(options: Options, host: Host, seen: Mapping[str, Any]) -> Toolkit:
    """Return how the toolkit comes and goes. ``seen`` has the answer to whose key is there."""
    family = _FAMILIES.get(host.package_manager, "")
    key_file, checksum, mark = _KEY_FILES.get(family, ""), options.toolkit_repo_key_sha256, _mark(options)
    sources = [Source(path, _kept(options, path)) for path in options.toolkit_repo_obsolete]
    version = f"{options.toolkit_version}-1" if options.toolkit_version else ""
    between = ("=" if family == "deb" else "-") if version else ""
    return Toolkit(
        family=family,
        architecture=_ARCHITECTURES.get(host.architecture, host.architecture),
        packages=tuple(f"{name}{between}{version}" for name in options.toolkit_packages),
        source=_APT_SOURCE,
        key_file=key_file,
        key_checksum=f"sha256:{checksum}" if checksum else "",
        replace_key=mapping(seen.get("key")).get("rc", 0) != 0,
        gpgkey=f"file://{key_file}" if checksum else options.toolkit_repo_key,
        mark=mark,
        ours=mark in host.existing,
        begin=not has_binary(options, host) and mark not in host.existing,
        obsolete=tuple(source for source in sources if source.path in host.existing),
        waiting=tuple(source for source in sources if source.kept in host.existing),
        kept_files=tuple(source.kept for source in sources),
        removed_files=(_APT_SOURCE, _DNF_SOURCE, *_KEY_FILES.values(), mark),
    )


def refuse_toolkit(options: Options, host: Host) -> Iterator[Refusal]:
    """Return why the toolkit can neither be installed nor used."""
    if options.toolkit_install and TOOLKIT.refuses(options.toolkit_version):
        yield Refusal(
            "toolkit_too_old",
            f"{TOOLKIT.complaint(options.toolkit_version)} Set container_runtime_toolkit_version to such a one.",
        )
    if options.toolkit_install and host.package_manager not in _FAMILIES:
        yield Refusal(
            "no_packages",
            f"No container toolkit packages on {host.name} for {host.distribution} with {host.package_manager}; "
            "install it yourself and set container_runtime_toolkit_install=false.",
        )
    elif not options.toolkit_install and not has_binary(options, host):
        yield Refusal(
            "no_toolkit",
            f"{options.binary} does not exist on {host.name}; install the container toolkit, set "
            "container_runtime_binary, or set container_runtime_toolkit_install=true.",
        )


def has_binary(options: Options, host: Host) -> bool:
    """Return whether the toolkit's runtime is there."""
    return options.host_root + options.binary in host.existing


def has_stale_lists(installation: object) -> bool:
    """Return whether an installation failed because the package lists of the host are old or missing."""
    return _STALE_LISTS.search(str(mapping(installation).get("msg") or "")) is not None


def _mark(options: Options) -> str:
    return f"{options.backup_dir}/container_runtime-toolkit"


def _kept(options: Options, path: str) -> str:
    return f"{options.backup_dir}/container_runtime-{posixpath.basename(path)}"
