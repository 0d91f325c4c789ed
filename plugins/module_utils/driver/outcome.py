# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a driver that was brought is not the one that works. Pure."""

from __future__ import annotations

from typing import Iterator, List

from ..shared.refusal import Refusal
from ..shared.registers import mappings
from .target import Target


def silent_gpus(target: Target) -> List[str]:
    """Return the addresses of GPUs that NVML does not list. A GPU that fell off the bus still is in sysfs."""
    nvml = target.host.nvml or {}
    entries = [gpu for name in ("gpus", "excluded") for gpu in mappings(nvml.get(name))]
    listed = [gpu.get("pci_address") for gpu in entries]
    return [known.gpu.address for known in target.gpus if known.gpu.address not in listed]


def is_unverified(target: Target) -> bool:
    """Return whether NVML has to be asked about the driver: not where the check of this run asked the same one."""
    if target.offline:
        return False
    nvml, answers = target.host.nvml or {}, target.answers
    replaced = bool(answers.reload) or answers.installation.get("changed") is True
    asked = bool(answers.nvml) and nvml.get("available") is True
    return replaced or not asked or nvml.get("driver_version") != target.observed.loaded or bool(silent_gpus(target))


def refuse_brought(target: Target) -> Iterator[Refusal]:
    """Yield that another driver came than was asked for.

    dnf calls it done when what is installed is newer, a branch that is over may be another by another name, and a
    runfile without a version in its name is taken at its word.
    """
    if not target.other_version:
        return
    options, installed = target.options, target.observed.installed
    if options.method == "runfile":
        brought = f"{options.runfile} brought {installed}; correct driver_version or driver_runfile."
    else:
        brought = f"the package sources brought {installed}; {target.branch_remedy}"
    yield Refusal("brought_other", f"{target.wanted} was asked for, and {brought}")


def refuse_reload(target: Target) -> Iterator[Refusal]:
    """Yield that the loaded driver was not replaced, where no reboot does it."""
    if target.answers.reload.get("rc", 0) == 0 or target.can_reboot:
        return
    seen = target.observed
    yield Refusal(
        "not_reloaded",
        f"the driver {seen.installed} is installed and {seen.loaded or 'none'} loaded:"
        f" {target.answers.reload.get('stderr', '')}. Reboot the host, or set driver_reboot=auto.",
    )


def refuse_outcome(target: Target) -> Iterator[Refusal]:
    """Yield what the role's verification finds wrong. A dry run on a bare host has no driver yet."""
    if target.offline:
        yield from _refuse_module(target)
    elif target.observed.loaded or not target.answers.check:
        yield from _refuse_nvml(target)
    seen = target.observed
    if target.fabric and not target.answers.check and seen.fabric_manager != seen.installed:
        yield Refusal(
            "fabric_manager",
            f"the fabric manager is {seen.fabric_manager or 'absent'} and the driver {seen.installed}, which CUDA"
            " answers with error 802; install the fabric manager of that version, or set driver_fabricmanager=never.",
        )


def _refuse_module(target: Target) -> Iterator[Refusal]:
    """Yield that a kernel that does not run is without the module, which is all that can be looked at."""
    seen = target.observed
    if seen.installed and seen.vermagic.split(" ")[0] == target.kernel:
        return
    if seen.installed or not target.answers.check:
        holds = f"a module nvidia built for {seen.vermagic}" if seen.installed else "no module nvidia"
        yield Refusal(
            "module_missing",
            f"/lib/modules/{target.kernel} holds {holds}; see 'dkms status', or correct driver_kernel_release.",
        )


def _refuse_nvml(target: Target) -> Iterator[Refusal]:
    reboot = " The host needs a reboot: do it, or set driver_reboot=auto." if target.needs_reboot else ""
    nvml = target.host.nvml or {}
    if not nvml.get("available"):
        yield Refusal("nvml", f"NVML does not answer: {nvml.get('reason', '')}{reboot}")
        return
    silent = silent_gpus(target)
    if silent:
        yield Refusal(
            "gpu_silent",
            f"NVML does not list the GPU at {', '.join(silent)}; see the kernel log for the cause.{reboot}",
        )
