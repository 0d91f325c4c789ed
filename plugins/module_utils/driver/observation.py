# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What was seen of a host: its facts, what ``observe.sh`` printed there, and what the role's tasks were answered.

Everything is read tolerantly. What is missing, or of another type, counts as not there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Any, Dict, Mapping, Optional, Tuple

from ..shared.registers import entries, mapping, mappings


@dataclass(frozen=True)
class Gpu:
    """A GPU on the PCI bus."""

    address: str
    device: str
    """Its PCI device number, such as 0x2330."""
    driver: str
    """The kernel driver that is bound to it."""


@dataclass(frozen=True)
class FreeSpace:
    """The room of the file system that a directory is on."""

    mount: str
    mib: int


@dataclass(frozen=True)
class Observation:
    """A host's GPUs and driver. Each field is one of the object that ``observe.sh`` prints."""

    gpus: Tuple[Gpu, ...] = ()
    nvswitch: bool = False
    loaded: str = ""
    taint: str = ""
    installed: str = ""
    license: str = ""
    vermagic: str = ""
    nouveau: bool = False
    blacklisted: bool = False
    secure_boot: bool = False
    key_enrolled: bool = False
    dgx: bool = False
    operator: bool = False
    runfile: bool = False
    packages: Tuple[str, ...] = ()
    pinning: Tuple[str, ...] = ()
    vendor: str = ""
    held: Tuple[str, ...] = ()
    fabric_manager: str = ""
    persistence_unit: bool = False
    """Whether the persistence daemon's unit is the role's."""
    boot_modules: str = ""
    """Mode and SHA-256 of the role's file of modules to load at boot, with a space between."""
    device_files: bool = False
    """Whether ``/dev/nvidia-uvm`` exists."""
    non_free: bool = False
    keyring: bool = False
    """Whether apt has the keyring of NVIDIA's repository."""
    initramfs: bool = False
    """Whether the kernel starts with an initramfs."""
    free: Mapping[str, FreeSpace] = field(default_factory=dict)
    stream: str = ""

    @property
    def installed_type(self) -> str:
        """Return whether the installed module is ``open`` or ``proprietary``, and "" where none is installed."""
        return {"": "", "NVIDIA": "proprietary"}.get(self.license, "open")

    @property
    def loaded_type(self) -> str:
        """Return the same of the loaded module. A proprietary module leaves its mark on the kernel."""
        return "" if not self.taint else "proprietary" if "P" in self.taint else "open"


@dataclass(frozen=True)
class Host:
    """Facts that Ansible gathered, and how the host is reached."""

    distribution: str = ""
    major: str = ""
    version: str = ""
    architecture: str = ""
    kernel: str = ""
    package_manager: str = ""
    connection: str = "ssh"
    nvml: Optional[Mapping[str, Any]] = None
    """What the module ``nvml_facts`` found, once it was asked."""


@dataclass(frozen=True)
class Answers:
    """What tasks of the role were answered so far. An empty mapping is a task that has not run."""

    check: bool = False
    """Whether this is a dry run."""
    branch_given: bool = False
    """Whether the inventory names a branch, which the role's default does not."""
    runfile_on_controller: bool = False
    packages: Mapping[str, Any] = field(default_factory=dict)
    """The answer of the module ``driver_packages_info``."""
    source: Mapping[str, Any] = field(default_factory=dict)
    """The answer to a request for what the installation needs from elsewhere."""
    installer: Mapping[str, Any] = field(default_factory=dict)
    """The state of the installer, or what was found in its directory."""
    installation: Mapping[str, Any] = field(default_factory=dict)
    fabric: Mapping[str, Any] = field(default_factory=dict)
    """What the installations of the driver and of the fabric manager brought."""
    reload: Mapping[str, Any] = field(default_factory=dict)
    nvml: Mapping[str, Any] = field(default_factory=dict)
    """The answer of the check of role ``gpu_plugins``, which asked NVML in this run."""

    def words(self, name: str) -> Tuple[str, ...]:
        """Return a list of texts of the packages' answer."""
        return _words(self.packages.get(name))


def read_host(facts: Mapping[str, object], connection: object) -> Host:
    """Return what Ansible's facts say of a host."""

    def text(name: str) -> str:
        value = facts.get(name)
        return value if isinstance(value, str) else ""

    nvml = facts.get("accel_nvml")
    return Host(
        distribution=text("distribution"),
        major=text("distribution_major_version"),
        version=text("distribution_version"),
        architecture=text("architecture"),
        kernel=text("kernel"),
        package_manager=text("pkg_mgr"),
        connection=connection if isinstance(connection, str) else "",
        nvml=nvml if isinstance(nvml, Mapping) else None,
    )


def read_answers(seen: Mapping[str, object]) -> Answers:
    """Return the answers among what was seen."""
    flags = ("check", "branch_given", "runfile_on_controller")
    given: Dict[str, Any] = {
        entry.name: mapping(seen.get(entry.name)) for entry in fields(Answers) if entry.name not in flags
    }
    given.update((name, str(seen.get(name)).lower() == "true") for name in flags)
    return Answers(**given)


def read_observation(text: object) -> Optional[Observation]:
    """Return what ``observe.sh`` printed, an empty observation where it has not run, and None where it is no JSON."""
    if not isinstance(text, str) or not text:
        return Observation()
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    texts = (
        *("loaded", "taint", "installed", "license", "vermagic", "vendor"),
        *("fabric_manager", "stream", "boot_modules"),
    )
    flags = (
        *("nvswitch", "nouveau", "blacklisted", "secure_boot", "key_enrolled", "dgx", "operator", "runfile"),
        *("persistence_unit", "device_files", "non_free", "keyring", "initramfs"),
    )
    lists = ("packages", "pinning", "held")
    found: Dict[str, Any] = {name: _text(document.get(name)) for name in texts}
    found.update((name, document.get(name) is True) for name in flags)
    found.update((name, _words(document.get(name))) for name in lists)
    return Observation(gpus=_gpus(document.get("gpus")), free=_free(document.get("free")), **found)


def stat_of(register: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of a file that a task has read, and an empty mapping where it has not."""
    return mapping(register.get("stat"))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _words(value: object) -> Tuple[str, ...]:
    return tuple(entry for entry in entries(value) if isinstance(entry, str))


def _gpus(value: object) -> Tuple[Gpu, ...]:
    names = ("address", "device", "driver")
    return tuple(Gpu(*(_text(entry.get(name)) for name in names)) for entry in mappings(value))


def _free(value: object) -> Dict[str, FreeSpace]:
    return {
        path: FreeSpace(_text(entry.get("mount")), entry["mib"])
        for path, entry in mapping(value).items()
        if isinstance(entry, dict) and isinstance(entry.get("mib"), int)
    }
