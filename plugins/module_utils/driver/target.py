# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver that a host is to have, and how far it is from it. Pure."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Tuple

from . import repository
from .generations import OPEN, KnownGpu, choose_module, recognize
from .observation import Answers, Host, Observation
from .options import Options

_VERSION = re.compile(r"[0-9]+[.][0-9]+([.][0-9]+)?")
_URL = re.compile("https?://")
_LOCAL = ("local", "ansible.builtin.local")


def branch_of(version: str) -> int:
    """Return the branch that a version begins with, and 0 where it begins with no number."""
    match = re.match("[0-9]{1,9}(?![0-9])", version)
    return int(match[0]) if match else 0


def is_newer(version: str, other: str) -> bool:
    """Return whether a version is newer than another one, or than any of a branch's."""
    found, others = _numbers(version), _numbers(other)
    return found[:1] > others if len(others) == 1 else found > others


def _numbers(version: str) -> Tuple[int, ...]:
    return tuple(int(number) for number in re.findall("[0-9]{1,18}", version))


@dataclass(frozen=True)
class Target:
    """What the role's options mean on a host that looks like this."""

    options: Options
    host: Host
    observed: Observation
    answers: Answers

    @property
    def manages(self) -> bool:
        """Return whether the role brings the driver."""
        return self.options.method != "none"

    @property
    def uses_packages(self) -> bool:
        """Return whether the driver comes by packages."""
        return self.options.method in ("repo", "distro")

    @cached_property
    def system(self) -> str:
        """Return the host's system as NVIDIA names it."""
        return repository.system_of(self.host)

    @property
    def family(self) -> str:
        """Return the format of the host's packages."""
        return repository.family_of(self.host)

    @property
    def is_debians_own(self) -> bool:
        """Return whether the driver is Debian's own, of which a release has one branch."""
        return self.options.method == "distro" and self.host.distribution == "Debian"

    @property
    def kernel(self) -> str:
        """Return the kernel that the module is for."""
        return self.options.kernel_release or self.host.kernel

    @property
    def offline(self) -> bool:
        """Return whether another kernel runs, as in a node image. Then nothing of the driver can be loaded or asked."""
        return self.kernel != self.host.kernel

    @property
    def runfile_is_url(self) -> bool:
        """Return whether the host downloads the installer."""
        return _URL.match(self.options.runfile) is not None

    @property
    def runfile_version(self) -> str:
        """Return the version in the installer's name."""
        match = _VERSION.search(posixpath.basename(self.options.runfile))
        return match[0] if match else ""

    @property
    def version(self) -> str:
        """Return the exact version that is wanted, or "" for any of the branch."""
        return self.options.version or (self.runfile_version if self.options.method == "runfile" else "")

    @cached_property
    def branch(self) -> int:
        """Return the branch that is wanted, and 0 where none can be read."""
        if self.options.method == "distro":
            return branch_of(repository.DEBIAN_BRANCHES.get(self.system, self.options.branch))
        return branch_of(self.version or self.options.branch)

    @property
    def wanted(self) -> str:
        """Return the version or the branch, for people."""
        return self.version or str(self.branch)

    @cached_property
    def gpus(self) -> Tuple[KnownGpu, ...]:
        """Return the GPUs that are not handed to virtual machines."""
        return recognize(gpu for gpu in self.observed.gpus if gpu.driver != "vfio-pci")

    @cached_property
    def module(self) -> str:
        """Return the kernel module that is wanted. One that works, and that a driver of the branch came with, stays."""
        if self.options.kernel_module_type != "auto":
            return self.options.kernel_module_type
        installed = self.observed.installed_type
        works = installed and all(installed in gpu.generation.modules for gpu in self.gpus)
        if works and self.observed.installed and branch_of(self.observed.installed) == self.branch:
            return installed
        return choose_module(self.gpus, self.branch)

    @property
    def stream(self) -> str:
        """Return the module stream of dnf that keeps the branch."""
        return f"{self.branch}-{'open' if self.module == OPEN else 'dkms'}"

    @property
    def other_module(self) -> bool:
        """Return whether the installed kernel module is of the other type."""
        return self.observed.installed_type not in ("", self.module)

    @property
    def other_version(self) -> bool:
        """Return whether another driver is installed. A branch is left alone while it is the right one."""
        installed = self.observed.installed
        if not installed:
            return False
        return (
            installed != self.version
            if self.version
            else not self.is_debians_own and branch_of(installed) != self.branch
        )

    @property
    def installs(self) -> bool:
        """Return whether a driver is to be installed. Installing the same one again would not be without effect."""
        return self.manages and (not self.observed.installed or self.other_version or self.other_module)

    @property
    def fabric(self) -> bool:
        """Return whether a fabric manager is wanted. NVSwitches of NVLink 5 are no PCI devices: it is asked for."""
        auto = self.options.fabricmanager == "auto" and self.observed.nvswitch
        return auto or self.options.fabricmanager == "always"

    @property
    def fabric_package(self) -> str:
        """Return the package of the fabric manager in the driver's version, and "" where there is none."""
        if not self.fabric or not self.uses_packages or self.is_debians_own:
            return ""
        if self.family == "rpm":
            name = "nvidia-fabricmanager" if self.branch >= 580 else "nvidia-fabric-manager"
            return f"{name}-{self.observed.installed}"
        suffix = "" if self.options.method == "repo" and self.branch >= 580 else f"-{self.branch}"
        return f"nvidia-fabricmanager{suffix}={self.observed.installed}-*"

    @property
    def can_reboot(self) -> bool:
        """Return whether the host may be rebooted. The controller itself is never."""
        return self.options.reboot != "never" and self.host.connection not in _LOCAL

    @property
    def needs_reboot(self) -> bool:
        """Return whether the installed driver is not the loaded one, or nouveau is loaded."""
        seen = self.observed
        other = seen.loaded != "" and seen.installed not in ("", seen.loaded)
        other_type = seen.loaded_type != "" and seen.installed_type not in ("", seen.loaded_type)
        return not self.offline and (seen.nouveau or other or other_type)

    @property
    def branch_remedy(self) -> str:
        """Return how to take another branch."""
        if self.is_debians_own:
            return "set driver_method to repo or runfile with another branch."
        if self.options.method == "runfile":
            return "set driver_runfile to an installer of another branch."
        return f"set driver_branch{' and driver_version' if self.options.version else ''} to another branch."
