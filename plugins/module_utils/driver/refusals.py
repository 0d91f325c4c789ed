# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a driver cannot work on a host, found before anything is changed there. Pure."""

from __future__ import annotations

import re
from typing import Callable, Dict, Iterator, List, Tuple

from ..shared.minimums import DRIVER
from ..shared.refusal import Refusal
from .generations import refuse_gpus
from .repository import SYSTEMS
from .target import Target, is_newer

_BRANCH = re.compile("[0-9]{3}")
_ARCHITECTURES = ("x86_64", "aarch64")
_FIRST_KEPT_BY_APT = 580
"""The first branch that apt has packages for which keep the driver to a version."""


def refuse(target: Target) -> Iterator[Refusal]:
    """Yield what cannot work, each with its remedy."""
    for check in _CHECKS:
        yield from check(target)
    if target.manages:
        asked = target.options.kernel_module_type
        yield from refuse_gpus(target.gpus, target.branch, target.module, asked, target.branch_remedy)


def refuse_older(target: Target) -> Iterator[Refusal]:
    """Yield that a host would go back to an older driver than it has installed or loaded."""
    seen = target.observed
    wanted = target.wanted if target.manages and target.other_version else seen.installed
    there = {"installed": seen.installed, "loaded": "" if target.offline else seen.loaded}
    for how, version in there.items():
        if version and wanted and is_newer(version, wanted):
            yield Refusal(
                "older",
                f"{version} is {how}, and {wanted} is older; ask for a newer driver, or set"
                " upgrade_driver_downgrade=true to go back.",
            )
            return


def missing_room(target: Target) -> List[str]:
    """Return the file systems without the room that an installation needs. One with several directories needs the sum.

    Directories that the options do not name need nothing.
    """
    mounts: Dict[str, List[str]] = {}
    for path, free in target.observed.free.items():
        mounts.setdefault(free.mount, []).append(path)
    found = []
    for mount, paths in mounts.items():
        needed = sum(target.options.free_space.get(path, 0) for path in paths)
        mib = target.observed.free[paths[0]].mib
        if mib < needed:
            found.append(f"{mount} has {mib} MiB free and needs {needed} ({', '.join(paths)})")
    return found


def _refuse_host(target: Target) -> Iterator[Refusal]:
    options, seen, host = target.options, target.observed, target.host
    if not target.gpus and not target.offline:
        other = " that is not handed to virtual machines (vfio-pci)" if seen.gpus else ""
        yield Refusal(
            "no_gpu",
            f"No NVIDIA GPU is on the PCI bus{other}; take the host out of the group gpu_nodes, or name the kernel of"
            " the image it builds in driver_kernel_release.",
        )
    if host.architecture not in _ARCHITECTURES and target.manages:
        yield Refusal(
            "architecture",
            f"This machine is {host.architecture}; NVIDIA has drivers for x86_64 and aarch64 only. Set"
            " driver_method=none.",
        )
    if not _BRANCH.fullmatch(options.branch):
        yield Refusal(
            "branch_malformed",
            f"driver_branch is '{options.branch}', which is no branch; set it to a number such as 580.",
        )
    if not target.manages and not seen.loaded and not target.offline:
        yield Refusal(
            "not_loaded",
            "No NVIDIA driver is loaded and driver_method is none; install one, or set driver_method to repo, distro"
            " or runfile.",
        )


def _refuse_runfile(target: Target) -> Iterator[Refusal]:
    options = target.options
    if options.method != "runfile":
        return
    if not options.runfile:
        yield Refusal(
            "runfile_unset",
            "driver_method is runfile and driver_runfile is not set; set it to the installer's path or URL.",
        )
        return
    if target.runfile_is_url and not options.runfile_sha256:
        yield Refusal(
            "runfile_sha256_unset",
            "driver_runfile is a URL and driver_runfile_sha256 is not set; set it to the file's SHA-256.",
        )
    if not (target.runfile_is_url or options.runfile_remote_src or target.answers.runfile_on_controller):
        yield Refusal(
            "runfile_absent",
            f"driver_runfile {options.runfile} is not on the controller; correct it, or set"
            " driver_runfile_remote_src=true for a file on the host.",
        )
    if not target.version:
        yield Refusal(
            "runfile_without_version",
            "The name of driver_runfile holds no version; set driver_version to the one it installs.",
        )
    if options.version and target.runfile_version not in ("", options.version):
        yield Refusal(
            "runfile_of_other_version",
            f"driver_version is {options.version}, and driver_runfile installs {target.runfile_version}; unset"
            f" driver_version, or set driver_runfile to the installer of {options.version}.",
        )


def _refuse_version(target: Target) -> Iterator[Refusal]:
    options = target.options
    if target.manages and 0 < target.branch < DRIVER.version[0]:
        yield Refusal(
            "branch_too_old",
            f"{DRIVER.complaint(target.wanted)} Set driver_branch, or driver_version or driver_runfile where they name"
            " the driver, to such a one.",
        )
    # A branch that was asked for: the role's own default gives way to a version.
    given = target.answers.branch_given and options.method in ("repo", "runfile") and _BRANCH.fullmatch(options.branch)
    if given and target.version and target.branch != int(options.branch):
        yield Refusal(
            "branch_against_version",
            f"driver_branch is {options.branch}, and {'driver_version' if options.version else 'driver_runfile'} names"
            f" {target.version}; unset driver_branch, or set both to the same branch.",
        )
    if options.method == "repo" and target.system == "rhel10" and not options.version:
        yield Refusal(
            "version_unset",
            "EL 10 has no module streams to keep a branch with; set driver_version to an exact version.",
        )
    by_apt = options.method == "repo" and target.family == "deb"
    if by_apt and options.version and target.branch < _FIRST_KEPT_BY_APT:
        yield Refusal(
            "version_not_kept",
            f"driver_version is {options.version}, and apt has packages to keep to a version from branch"
            f" {_FIRST_KEPT_BY_APT} on; unset it for the newest of driver_branch={options.version.split('.')[0]}, or"
            " set driver_method=runfile.",
        )
    if options.method == "distro" and options.version:
        yield Refusal(
            "version_of_distribution",
            f"driver_version is {options.version}, and a distribution has one version of a branch; unset"
            " driver_version, or set driver_method to repo or runfile.",
        )


def _refuse_system(target: Target) -> Iterator[Refusal]:
    options, host = target.options, target.host
    systems = SYSTEMS.get(options.method, ())
    if target.uses_packages and target.system not in systems:
        yield Refusal(
            "system",
            f"driver_method={options.method} has no packages for {host.distribution} {host.version} (it has for"
            f" {', '.join(systems)}); set driver_method=runfile.",
        )
    built = options.method == "distro" and host.distribution == "Ubuntu"
    if not options.dkms and target.uses_packages and not built:
        yield Refusal(
            "dkms",
            "driver_dkms is false, and only Ubuntu has packages of modules that are built already"
            " (driver_method=distro); set driver_dkms=true, or driver_method=runfile.",
        )
    if target.is_debians_own and not target.observed.non_free:
        yield Refusal(
            "component",
            "Debian's driver is in the component non-free, which no apt source of this host names; add contrib"
            " non-free non-free-firmware.",
        )


def _refuse_installed(target: Target) -> Iterator[Refusal]:
    options, seen = target.options, target.observed
    some = ", ".join(seen.packages[:3])
    if target.uses_packages and seen.runfile:
        yield Refusal(
            "installed_by_runfile",
            "A runfile's driver is installed, which packages would break; run 'nvidia-uninstall --silent', or set"
            " driver_method=runfile.",
        )
    if options.method == "runfile" and seen.packages:
        brought = "repo" if seen.vendor == "nvidia" else "distro"
        yield Refusal(
            "installed_by_packages",
            f"Driver packages are installed ({some}), which a runfile would break; run the role's uninstall with"
            f" driver_method={brought}, or set driver_method to it.",
        )
    if options.method == "repo" and seen.vendor == "distribution":
        yield Refusal(
            "installed_by_distribution",
            f"The distribution's driver packages are installed ({some}), which NVIDIA's do not mix with; run the"
            " role's uninstall with driver_method=distro, or set driver_method=distro.",
        )
    if options.method == "distro" and seen.vendor == "nvidia":
        yield Refusal(
            "installed_by_nvidia",
            f"NVIDIA's own driver packages are installed ({some}), which the distribution's do not mix with; run the"
            " role's uninstall with driver_method=repo, or set driver_method=repo.",
        )


def _refuse_managed(target: Target) -> Iterator[Refusal]:
    options, seen = target.options, target.observed
    if not target.manages or options.force:
        return
    if seen.dgx:
        yield Refusal(
            "dgx",
            "This is a DGX, whose vendor brings its driver; set driver_method=none, or driver_force=true to replace"
            " it.",
        )
    if seen.operator:
        yield Refusal(
            "gpu_operator",
            f"The GPU operator runs a containerised driver here ({options.run_dir}/nvidia/driver); disable it there,"
            " set driver_method=none, or driver_force=true.",
        )


def _refuse_unsigned(target: Target) -> Iterator[Refusal]:
    options, seen = target.options, target.observed
    secret, public = options.module_signing_secret_key, options.module_signing_public_key
    if bool(secret) != bool(public):
        yield Refusal(
            "signing_key_alone",
            "Only one of driver_module_signing_secret_key and driver_module_signing_public_key is set; the installer"
            " needs both or neither.",
        )
    if options.method == "runfile" and seen.secure_boot and not secret:
        yield Refusal(
            "secure_boot",
            "Secure Boot is on and would refuse an unsigned module; set driver_module_signing_secret_key and"
            " driver_module_signing_public_key to an enrolled pair.",
        )
    built_here = target.uses_packages and options.dkms and not target.offline
    if built_here and seen.secure_boot and not seen.key_enrolled:
        signed = "Set driver_method=distro and driver_dkms=false for the modules Canonical signed. Or"
        yield Refusal(
            "secure_boot",
            "Secure Boot is on, and the key DKMS signs with is not enrolled, so the module would not load."
            f" {signed if target.host.distribution == 'Ubuntu' else 'Switch Secure Boot off, or'} install dkms and"
            " mokutil, run 'dkms generate_mok' and 'mokutil --import /var/lib/dkms/mok.pub', confirm the key on the"
            " console at the next boot, and run this again.",
        )


def _refuse_change(target: Target) -> Iterator[Refusal]:
    options, seen = target.options, target.observed
    if target.manages and seen.nouveau and not target.can_reboot and not target.offline:
        yield Refusal(
            "nouveau",
            "nouveau is loaded and goes only with a reboot; set driver_reboot=auto (not on a local connection), or"
            " blacklist it and reboot the host yourself.",
        )
    fits = seen.fabric_manager != "" and target.version in ("", seen.fabric_manager)
    if target.fabric and not target.fabric_package and not fits:
        yield Refusal(
            "fabric_manager",
            "The GPUs are behind NVSwitches, which need a fabric manager of the driver's version, and"
            f" driver_method={options.method} brings none here (found: {seen.fabric_manager or 'none'}); set"
            " driver_method=repo, install it yourself, or set driver_fabricmanager=never.",
        )
    if options.method == "repo" and target.other_version and is_newer(seen.installed, target.wanted):
        yield Refusal(
            "downgrade",
            f"{seen.installed} is installed, and packages do not go back to {target.wanted}. On this host, run the"
            " playbook uninstall with '--tags driver -e driver_uninstall=true', and then this playbook again. Or set"
            f" {'driver_version' if options.version else 'driver_branch'} to the installed one.",
        )
    full = missing_room(target) if target.installs else []
    if full:
        yield Refusal("room", f"{'; '.join(full)}: make room, or correct driver_free_space.")


_CHECKS: Tuple[Callable[[Target], Iterator[Refusal]], ...] = (
    _refuse_host,
    _refuse_runfile,
    _refuse_version,
    _refuse_system,
    _refuse_installed,
    _refuse_managed,
    _refuse_unsigned,
    _refuse_change,
)
