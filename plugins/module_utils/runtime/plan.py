# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decides what the role container_runtime does on a host. Pure."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any, Dict, Iterator, Mapping, Tuple

from ..shared import printable
from ..shared.minimums import TOOLKIT
from ..shared.refusal import Refusal
from ..shared.registers import mapping
from .options import Options, read_options
from .selection import KUBELET_PATTERN, Host, Selection, read_host, refuse_selection, select
from .toolkit_packages import Toolkit, has_stale_lists, places, plan_toolkit, refuse_toolkit

_CRICTL = "crictl --runtime-endpoint unix:///run/containerd/containerd.sock info"
_QUESTIONS = {
    "docker": ("docker", "info", "--format", "{{json .Runtimes}}"),
    "crio": ("crio", "status", "config"),
    "k3s": ("k3s", "crictl", "info"),
    "rke2": (
        *("/var/lib/rancher/rke2/bin/crictl", "--runtime-endpoint"),
        *("unix:///run/k3s/containerd/containerd.sock", "info"),
    ),
    # It brings no crictl. This is the file that it has written from the template and started with.
    "microk8s": (
        *("/snap/microk8s/current/bin/containerd", "--config"),
        *("/var/snap/microk8s/current/args/containerd.toml", "config", "dump"),
    ),
}
"""Commands that print the runtimes that a running daemon knows."""
_WITH_CDI = ("containerd", "docker", "microk8s")
"""Those for which devices by CDI are a setting."""
_RESTART_KUBERNETES = ("k3s", "rke2")
_CONTROL_PLANES = "kube_control_plane"


@dataclass(frozen=True)
class Refusals:
    """What is refused, by the moment at which the role asks."""

    preflight: Tuple[Refusal, ...]
    """What cannot work."""
    answer: Tuple[Refusal, ...]
    """A runtime that runs and does not know ours."""


@dataclass(frozen=True)
class Plan:
    """What the role does."""

    refusals: Refusals
    look: Tuple[str, ...]
    """The command that runs ``look.sh`` from its standard input: which files to look for, and what kubelet is told."""
    configures: bool
    """Whether there is a runtime to configure."""
    registers: bool
    """Whether to have the module bring the runtime: not where a check of this run, which nothing outdated, found all
    as it should be."""
    state: str
    """``absent`` to take our part away."""
    module: Mapping[str, object]
    """Options of the module ``nvidia_runtime``, without its state."""
    throttle: int
    """How many hosts change their runtime at once, and 0 for all."""
    question: Tuple[str, ...]
    """The command that prints the runtimes that the daemon knows."""
    toolkit: Toolkit
    stale_lists: bool
    """Whether the installation before failed because the host's package lists are old or missing."""


def plan(
    values: Mapping[str, object],
    facts: Mapping[str, object],
    seen: Mapping[str, object],
) -> Plan:
    """Return what to do about a host's container runtime.

    ``values`` are the role's variables, ``facts`` those of Ansible. ``seen`` has the ``host`` and its ``groups``,
    whether the role is ``removing``, and what its tasks registered.
    """
    options, wrong = read_options(values)
    host = read_host(facts, seen)
    selection = select(options, host)
    removing, question = seen.get("removing") is True, _question(options, selection)
    # To take something away, a host need not be one that it could be brought to.
    asked: Iterator[Refusal] = iter(()) if removing else _refuse(options, host, selection)
    answer, module = mapping(seen.get("answer")), _module(options, selection)
    return Plan(
        refusals=Refusals(wrong or tuple(asked), tuple(_refuse_answer(options, host.name, question, answer))),
        look=tuple(_look(options)),
        configures=options.configure and selection.runtime != "",
        registers=not _is_registered(module, seen) and options.configure,
        state="absent" if removing else "present",
        module=module,
        throttle=_throttle(selection, seen.get("groups")),
        question=question,
        toolkit=plan_toolkit(options, host, seen),
        stale_lists=has_stale_lists(seen.get("installation")),
    )


def _look(options: Options) -> Iterator[str]:
    yield from ("sh", "-s", KUBELET_PATTERN)
    yield from (options.host_root + path for path in options.kubelet_files)
    yield "--"
    yield from places(options)
    yield from (options.host_root + path for path in (*(sign.path for sign in options.detect), options.binary))


def _refuse(options: Options, host: Host, selection: Selection) -> Iterator[Refusal]:
    if options.configure:
        yield from refuse_selection(options, host, selection)
    yield from refuse_toolkit(options, host)


def _module(options: Options, selection: Selection) -> Dict[str, object]:
    """Return options of the module: none that is empty, since an empty service is no unit to restart."""
    root, runtime = options.host_root, selection.runtime
    given = {
        "runtime": runtime,
        "runtime_name": options.runtime_name,
        "runtime_binary": options.binary,
        "default_runtime": options.default,
        "cdi": options.cdi if runtime in _WITH_CDI else None,
        "ignore_visible_devices": _ignores_environment(options, selection),
        "toolkit_config_path": root + options.toolkit_config,
        # A version that is asked for comes with the installation.
        "minimum_toolkit": "" if options.toolkit_install and options.toolkit_version else TOOLKIT.words,
        "config_path": root + options.config.get(runtime, ""),
        "settings_path": f"{root}/etc/rancher/{runtime}/config.yaml.d/99-accel-kubernetes.yaml",
        "containerd_command": options.containerd_command,
        "service": options.service,
        "validate": options.validate_command,
        "ready": options.ready_command,
        "cri_socket": options.cri_socket,
        "stop_containers": options.stop_containers,
        "backup_dir": options.backup_dir,
        "timeout": options.timeout,
    }
    return {name: value for name, value in given.items() if value is not None and value != ""}


def _is_registered(module: Mapping[str, object], seen: Mapping[str, object]) -> bool:
    """Return whether the check, asked with the same options, found nothing to change."""
    looked, installation = mapping(seen.get("looked")), mapping(seen.get("installation"))
    asked = mapping(looked.get("options"))
    if looked.get("pending") is not False or looked.get("failed") or installation.get("changed"):
        return False
    # A register has lists where the plan has tuples.
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in module.items()}
    return asked.get("state") == "present" and all(
        value == plain[name] if name in plain else value is None or value == ""
        for name, value in asked.items()
        if name != "state"
    )


def _ignores_environment(options: Options, selection: Selection) -> bool:
    """Return whether a container gets no GPU by an environment variable of its image.

    Whole GPUs by the environment alone are what was asked for, and so is ``docker run --gpus``, which says it that
    way.
    """
    if options.ignore_visible_devices is not None:
        return options.ignore_visible_devices
    return not (options.mode_of_whole_gpus and (selection.runtime == "docker" or options.whole_gpus_by_environment))


def _throttle(selection: Selection, groups: object) -> int:
    """Return 1 for control planes of k3s and rke2: all of Kubernetes restarts with them, etcd too."""
    restarts = selection.runtime in _RESTART_KUBERNETES
    return 1 if restarts and isinstance(groups, (list, tuple)) and _CONTROL_PLANES in groups else 0


def _question(options: Options, selection: Selection) -> Tuple[str, ...]:
    if options.verify_command:
        return options.verify_command
    if selection.runtime != "containerd":
        return _QUESTIONS.get(selection.runtime, ())
    # kubeadm 1.32 and newer bring no crictl. The module has seen containerd start with what it makes of its files.
    words = [*(options.containerd_command or ("containerd",)), "--config"]
    command = shlex.join([*words, options.host_root + options.config["containerd"], "config", "dump"])
    return ("sh", "-c", f"if command -v crictl >/dev/null; then exec {_CRICTL}; fi; exec {command}")


def _refuse_answer(
    options: Options, host: str, question: Tuple[str, ...], answer: Mapping[str, Any]
) -> Iterator[Refusal]:
    """Return why the answer shows that the runtime is not known; none of a question that was not asked."""
    name, code = options.runtime_name, answer.get("rc")
    # The runtime's name and no longer one: microk8s always has an nvidia-container-runtime, k3s an nvidia-cdi.
    named = re.search(rf"(?<![\w/-]){re.escape(name)}(?![\w/-])", str(answer.get("stdout") or ""))
    if code is None or (code == 0 and named):
        return
    reason = printable.line(str(answer.get("stderr") or answer.get("msg") or "").strip())
    found = f"does not name the runtime {name}" if code == 0 else f"ended with {code}: {reason}"
    yield Refusal(
        "runtime_unknown",
        f"'{' '.join(question)}' on {host} {found}; run the role again with --tags container_runtime_configure, or set "
        "container_runtime_verify_command to a command that prints the runtimes.",
    )
