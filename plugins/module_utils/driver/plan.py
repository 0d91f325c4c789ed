# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decides what the role does about a host's driver. Pure."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import List, Mapping, Tuple

from ..shared.refusal import Refusal
from ..shared.registers import mappings
from . import availability, outcome, repository
from .generations import OPEN, OPEN_BY_DEFAULT
from .observation import Observation, read_answers, read_host, read_observation
from .options import read_options
from .refusals import refuse, refuse_older
from .target import Target

_OURS = "accel-kubernetes"
"""A directory with this name in its path is ours alone."""
_DEBIANS_HELPERS = ("glx-alternative-nvidia", "nvidia-installer-cleanup", "nvidia-kernel-common", "nvidia-support")
"""Parts of Debian's driver that are of no branch."""
_FIRST_PINNED = 580
"""The first branch that apt has pinning packages for. Older ones are kept by the names of their packages."""
_FIRST_BESIDE_RUNNING, _FIRST_WITHOUT_LOADING = 545, 550
"""The first branches whose installers know these options."""
_KEY_FILE = "/etc/pki/rpm-gpg/RPM-GPG-KEY-accel-nvidia-driver"


@dataclass(frozen=True)
class Refusals:
    """What is refused, by the moment at which the role asks."""

    preflight: Tuple[Refusal, ...]
    """What cannot work."""
    unavailable: Tuple[Refusal, ...]
    """What an installation needs and cannot have."""
    brought: Tuple[Refusal, ...]
    """An installation that brought another driver."""
    reload: Tuple[Refusal, ...]
    """A loaded driver that was not replaced."""
    outcome: Tuple[Refusal, ...]
    """A driver that does not work."""


@dataclass(frozen=True)
class State:
    """The role's public answer: what is there, and whether the role would install."""

    installed: str
    loaded: str
    installs: bool
    older: Tuple[Refusal, ...]
    """That the host would go back to an older driver."""


@dataclass(frozen=True)
class Packages:
    """Packages by what becomes of them."""

    prerequisites: Tuple[str, ...]
    driver: Tuple[str, ...]
    state: str
    """``latest`` to leave another version, else ``present``."""
    unlocked: Tuple[str, ...]
    """Those that dnf keeps at a version and that are to change."""
    unheld: Tuple[str, ...]
    """Those to keep at their version. Modules of a kernel to come must be free to come with it."""
    removed: Tuple[str, ...]


@dataclass(frozen=True)
class Repository:
    """NVIDIA's repository."""

    url: str
    system: str
    lacks_keyring: bool
    keyring_url: str
    keyring_file: str
    keyring_checksum: str
    """For a download, and "" to take whatever comes."""
    key_url: str
    key_file: str
    key_checksum: str
    gpgkey: str
    """Where dnf finds the key."""
    pinning: str
    """apt's package that keeps the driver to a branch or version, and "" where the names of packages do."""
    stream: str
    """dnf's module stream to change to, and "" for none."""


@dataclass(frozen=True)
class Runfile:
    """NVIDIA's installer."""

    is_url: bool
    path: str
    args: Tuple[str, ...]
    dir_is_ours: bool
    """Whether its directory holds nothing of others."""


@dataclass(frozen=True)
class Reboot:
    """What makes the installed driver the loaded one."""

    needed: bool
    reload: bool
    """Whether to unload and load the modules first."""
    now: bool


@dataclass(frozen=True)
class Fabric:
    """The fabric manager."""

    package: str
    install: bool
    start: bool
    service: str
    """The state that its service gets, and "" to leave it as it is."""


@dataclass(frozen=True)
class Plan:
    """What the role does."""

    refusals: Refusals
    state: State
    observed: Observation
    kernel: str
    offline: bool
    family: str
    branch: int
    wanted: str
    module: str
    """The kernel module, ``open`` or ``proprietary``."""
    installs: bool
    unverified: bool
    """Whether NVML has to be asked whether the driver works."""
    source_url: str
    """What is asked for to see whether the source answers."""
    refresh_lists: bool
    builds_module: bool
    blacklist_nouveau: bool
    packages: Packages
    repository: Repository
    runfile: Runfile
    initramfs: Tuple[str, ...]
    """The command that makes the initramfs again, which may hold nouveau, and () where that is not needed."""
    reboot: Reboot
    fabric: Fabric
    removed_files: Tuple[str, ...]
    remove_packages: bool


def plan(values: Mapping[str, object], facts: Mapping[str, object], seen: Mapping[str, object]) -> Plan:
    """Return what to do about a driver.

    ``values`` are the role's variables, ``facts`` those of Ansible, and ``seen`` has the text that ``observe.sh``
    printed as ``observation``, the ``connection``, and the registered answers of the role's tasks.
    """
    options, wrong = read_options(values)
    observed = read_observation(seen.get("observation"))
    target = Target(options, read_host(facts, seen.get("connection")), observed or Observation(), read_answers(seen))
    if observed is None:
        unread = "the host's GPUs and driver could not be read: observe.sh printed no JSON; see its output with -v."
        wrong = (*wrong, Refusal("observation", unread))
    prerequisites = target.answers.words("prerequisites")
    return Plan(
        refusals=Refusals(
            wrong or tuple(refuse(target)),
            tuple(availability.refuse_unavailable(target)),
            tuple(outcome.refuse_brought(target)),
            tuple(outcome.refuse_reload(target)),
            tuple(outcome.refuse_outcome(target)),
        ),
        state=State(target.observed.installed, target.observed.loaded, target.installs, tuple(refuse_older(target))),
        observed=target.observed,
        kernel=target.kernel,
        offline=target.offline,
        family=target.family,
        branch=target.branch,
        wanted=target.wanted,
        module=target.module,
        installs=target.installs,
        unverified=outcome.is_unverified(target),
        source_url=availability.source_url(target),
        refresh_lists=target.installs and target.family == "deb" and (target.uses_packages or prerequisites != ()),
        builds_module=options.dkms and not target.observed.installed,
        blacklist_nouveau=target.observed.nouveau or (target.offline and not target.observed.blacklisted),
        packages=_packages(target, prerequisites),
        repository=_repository(target),
        runfile=_runfile(target),
        initramfs=_initramfs(target),
        reboot=_reboot(target),
        fabric=_fabric(target),
        removed_files=_removed_files(target),
        remove_packages=target.uses_packages and target.observed.vendor == _vendor(options.method),
    )


def _vendor(method: str) -> str:
    return "nvidia" if method == "repo" else "distribution"


def _packages(target: Target, prerequisites: Tuple[str, ...]) -> Packages:
    seen = target.observed
    unheld = [name for name in seen.packages if name not in seen.held and not name.startswith("linux-")]
    changes = target.other_version or target.other_module
    return Packages(
        prerequisites=prerequisites,
        driver=target.answers.words("packages"),
        state="latest" if target.other_version else "present",
        unlocked=seen.held if changes else (),
        unheld=tuple(unheld) if target.options.hold else (),
        removed=(*seen.packages, *(_DEBIANS_HELPERS if target.options.method == "distro" else ())),
    )


def _repository(target: Target) -> Repository:
    options, host = target.options, target.host
    key_url = f"{availability.repository_url(target)}/{repository.key_file(host)}"
    checksum = repository.key_checksum(host, options.repo_key_sha256)
    given = checksum if checksum != repository.TRUST_ANY else ""
    pinning = f"nvidia-driver-pinning-{options.version or options.branch}" if target.branch >= _FIRST_PINNED else ""
    other_stream = target.system == "rhel9" and target.observed.stream != target.stream
    return Repository(
        url=availability.repository_url(target),
        system=target.system,
        lacks_keyring=availability.lacks_keyring(target),
        keyring_url=availability.keyring_url(target),
        keyring_file=f"/var/cache/apt/archives/{repository.KEYRING}",
        keyring_checksum=f"sha256:{given}" if checksum != repository.TRUST_ANY else "",
        key_url=key_url,
        key_file=_KEY_FILE,
        key_checksum=f"sha256:{given}" if given else "",
        gpgkey=f"file://{_KEY_FILE}" if given else key_url,
        pinning=pinning,
        stream=target.stream if other_stream else "",
    )


def _installer_path(target: Target) -> str:
    options = target.options
    return (
        options.runfile
        if options.runfile_remote_src
        else f"{options.runfile_dir}/{posixpath.basename(options.runfile)}"
    )


def _runfile(target: Target) -> Runfile:
    return Runfile(
        is_url=target.runfile_is_url,
        path=_installer_path(target),
        args=tuple(_installer_args(target)),
        dir_is_ours=_OURS in target.options.runfile_dir.split("/"),
    )


def _installer_args(target: Target) -> List[str]:
    """Return the options of the installer that a branch knows and this host needs."""
    options, branch, loaded = target.options, target.branch, target.observed.loaded != ""
    args = ["--silent", "--dkms" if options.dkms else "--no-dkms"]
    if branch >= OPEN_BY_DEFAULT:
        args.append(f"--kernel-module-type={target.module}")
    elif target.module == OPEN:
        args.append("--kernel-module-build-directory=kernel-open")
    if options.module_signing_secret_key:
        args.append(f"--module-signing-secret-key={options.module_signing_secret_key}")
        args.append(f"--module-signing-public-key={options.module_signing_public_key}")
    if target.offline:
        args.append(f"--kernel-name={target.kernel}")
    if loaded and branch >= _FIRST_BESIDE_RUNNING:
        args.append("--allow-installation-with-running-driver")
    if (loaded or target.offline) and branch >= _FIRST_WITHOUT_LOADING:
        args.append("--skip-module-load")
    return [*args, *options.runfile_extra_args]


def _initramfs(target: Target) -> Tuple[str, ...]:
    # nouveau is loaded early in boot, from there. That an earlier run got this far says nothing: it still is loaded.
    if not (target.observed.initramfs if target.offline else target.observed.nouveau):
        return ()
    if target.family == "deb":
        return ("update-initramfs", "-u", "-k", target.kernel)
    return ("dracut", "--force", "--kver", target.kernel)


def _reboot(target: Target) -> Reboot:
    options, needed = target.options, target.needs_reboot
    always = options.reboot == "always" and target.answers.installation.get("changed") is True
    return Reboot(
        needed=needed,
        reload=options.reload and needed and not target.observed.nouveau,
        now=target.can_reboot and not target.offline and (needed or always),
    )


def _fabric(target: Target) -> Fabric:
    seen, package = target.observed, target.fabric_package
    install = package != "" and (seen.fabric_manager != seen.installed or not seen.installed)
    changed = target.answers.fabric.get("changed") is True
    service = "" if target.offline else "restarted" if changed else "started"
    return Fabric(package, install, target.fabric and not target.needs_reboot, service)


def _removed_files(target: Target) -> Tuple[str, ...]:
    """Return the files that uninstalling removes.

    Others may use the directory for the installer too. Of such a directory the installer that the role brought goes,
    and the directory if it then is empty.
    """
    options, path = target.options, _installer_path(target)
    found = [entry.get("path") for entry in mappings(target.answers.installer.get("files"))]
    ours = [path] if path in found and path != options.runfile else []
    whole = _runfile(target).dir_is_ours or (ours and ours == found)
    return (
        f"{options.etc_dir}/modules-load.d/accel-nvidia.conf",
        f"{options.etc_dir}/modprobe.d/accel-nouveau.conf",
        _KEY_FILE,
        *([options.runfile_dir] if whole else ours),
    )
