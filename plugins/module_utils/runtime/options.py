# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variables of the role container_runtime. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Mapping, Optional, Tuple

from ..shared.options import OptionReader
from ..shared.refusal import Refusal

DISTRIBUTIONS = ("k3s", "rke2", "microk8s")
"""Distributions of Kubernetes that bring a containerd of their own, and whose kubelet uses no other."""
RUNTIMES = ("containerd", "docker", "crio", *DISTRIBUTIONS)
AUTO = "auto"
_MODE, _STRATEGY = "gpu_mode", "gpu_plugins_device_list_strategy"


@dataclass(frozen=True)
class Sign:
    """A file by which a runtime is recognized."""

    name: str
    path: str


@dataclass(frozen=True)
class Options:
    """The runtime that a host is to have. Each field is the variable ``container_runtime_`` and its name."""

    host_root: str
    name: str
    detect: Tuple[Sign, ...]
    kubelet_files: Tuple[str, ...]
    toolkit_install: bool
    toolkit_version: str
    toolkit_packages: Tuple[str, ...]
    toolkit_repo_key: str
    toolkit_repo_key_sha256: str
    toolkit_repo_obsolete: Tuple[str, ...]
    configure: bool
    runtime_name: str
    binary: str
    default: bool
    cdi: Optional[bool]
    ignore_visible_devices: Optional[bool]
    """None to decide by the mode."""
    toolkit_config: str
    config: Mapping[str, str]
    """The file of each runtime, of the variables ``container_runtime_containerd_config`` and so on."""
    containerd_command: Optional[Tuple[str, ...]]
    service: str
    validate_command: Optional[Tuple[str, ...]]
    ready_command: Optional[Tuple[str, ...]]
    verify_command: Optional[Tuple[str, ...]]
    """A command that is None is the runtime's own."""
    cri_socket: str
    timeout: str
    stop_containers: bool
    backup_dir: str
    whole_gpus_by_environment: bool
    """Whether pods get whole GPUs by ``NVIDIA_VISIBLE_DEVICES`` alone, of two variables of the plugins."""
    mode_of_whole_gpus: bool


class _Reader(OptionReader):
    """Reads variables of which null, and an empty text before ansible-core 2.19, is the runtime's own value."""

    def command(self, name: str) -> Optional[Tuple[str, ...]]:
        """Return the words of a command, and None where it is the runtime's own."""
        return self.words(name) if self._is_given(name) else None

    def optional(self, name: str) -> Optional[bool]:
        """Return a truth value, and None where there is none."""
        return self.boolean(name) if self._is_given(name) else None

    def unless_auto(self, name: str) -> Optional[bool]:
        """Return a truth value, and None for ``auto``."""
        return None if self._values.get(name) == AUTO else self.optional(name)

    def seconds(self, name: str) -> str:
        """Return a number of seconds as text, and "" where there is none."""
        return str(self.number(name, 1, 1 << 31)) if self._is_given(name) else ""

    def signs(self, name: str) -> Tuple[Sign, ...]:
        """Return the files by which runtimes are recognized."""
        found = self.mappings(name)
        read = tuple(Sign(str(entry.get("name")), str(entry.get("path") or "")) for entry in found)
        for sign in read:
            if sign.name not in RUNTIMES or not sign.path:
                self._refuse(name, found, f"a list of a name and a path each; names are {', '.join(RUNTIMES)}")
                return ()
        return read

    def _is_given(self, name: str) -> bool:
        return self._values.get(name) not in (None, "")


def read_options(values: Mapping[str, object]) -> Tuple[Options, Tuple[Refusal, ...]]:
    """Return the options that variables name, and a refusal for each variable whose value has another type."""
    reader = _Reader(values)
    config: Dict[str, str] = {name: reader.text(f"container_runtime_{name}_config") for name in RUNTIMES}
    whole = reader.text(_MODE) in ("", "pgpu")
    options = Options(
        host_root=reader.text("container_runtime_host_root"),
        name=reader.choice("container_runtime_name", (AUTO, *RUNTIMES)),
        detect=reader.signs("container_runtime_detect"),
        kubelet_files=reader.words("container_runtime_kubelet_files"),
        toolkit_install=reader.boolean("container_runtime_toolkit_install"),
        toolkit_version=reader.text("container_runtime_toolkit_version"),
        toolkit_packages=reader.words("container_runtime_toolkit_packages"),
        toolkit_repo_key=reader.text("container_runtime_toolkit_repo_key"),
        toolkit_repo_key_sha256=reader.text("container_runtime_toolkit_repo_key_sha256"),
        toolkit_repo_obsolete=reader.words("container_runtime_toolkit_repo_obsolete"),
        configure=reader.boolean("container_runtime_configure"),
        runtime_name=reader.text("container_runtime_runtime_name"),
        binary=reader.text("container_runtime_binary"),
        default=reader.boolean("container_runtime_default"),
        cdi=reader.optional("container_runtime_cdi"),
        ignore_visible_devices=reader.unless_auto("container_runtime_ignore_visible_devices"),
        toolkit_config=reader.text("container_runtime_toolkit_config"),
        config=config,
        containerd_command=reader.command("container_runtime_containerd_command"),
        service=reader.text("container_runtime_service"),
        validate_command=reader.command("container_runtime_validate_command"),
        ready_command=reader.command("container_runtime_ready_command"),
        verify_command=reader.command("container_runtime_verify_command"),
        cri_socket=reader.text("container_runtime_cri_socket"),
        timeout=reader.seconds("container_runtime_timeout"),
        stop_containers=reader.boolean("container_runtime_stop_containers"),
        backup_dir=reader.text("container_runtime_backup_dir"),
        mode_of_whole_gpus=whole,
        whole_gpus_by_environment=whole and reader.words(_STRATEGY) == ("envvar",),
    )
    return options, tuple(reader.refusals)
