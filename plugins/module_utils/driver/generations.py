# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which branches of NVIDIA's driver and which kernel modules support a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Iterator, Sequence, Tuple

from ..shared.refusal import Refusal
from .observation import Gpu

PROPRIETARY, OPEN = "proprietary", "open"
FIRST_OPEN = 515
OPEN_BY_DEFAULT = 560
"""The first branch whose installer chooses the open module by itself."""
ONLY_OPEN = 620
"""The first branch without a proprietary module."""
_NEVER = 9999
_BOTH = (PROPRIETARY, OPEN)


@dataclass(frozen=True)
class Generation:
    """Datacenter GPUs whose PCI device numbers begin at ``start``. The numbers grow with the generations."""

    start: int
    name: str
    first: int
    """The branch that they came with."""
    last: int
    """The last branch that supports them."""
    modules: Tuple[str, ...]


_GENERATIONS = (
    Generation(0x0000, "Kepler or older", 0, 470, (PROPRIETARY,)),
    Generation(0x1340, "Maxwell, Pascal or Volta", 0, 580, (PROPRIETARY,)),
    Generation(0x1E00, "Turing or Ampere", 450, _NEVER, _BOTH),
    Generation(0x2300, "Hopper", 525, _NEVER, _BOTH),
    Generation(0x2340, "Grace Hopper", 535, _NEVER, (OPEN,)),
    Generation(0x2380, "Ampere", 470, _NEVER, _BOTH),
    Generation(0x2680, "Ada", 525, _NEVER, _BOTH),
    Generation(0x2900, "Blackwell", 570, _NEVER, (OPEN,)),
    Generation(0x3180, "Blackwell Ultra", 580, _NEVER, (OPEN,)),
)


@dataclass(frozen=True)
class KnownGpu:
    """A GPU with its generation."""

    gpu: Gpu
    generation: Generation

    def __str__(self) -> str:
        return f"{self.gpu.address} ({self.generation.name}, {self.gpu.device})"

    @property
    def needs(self) -> str:
        """Return the one kernel module that drives it, or "" where both do."""
        return self.generation.modules[0] if len(self.generation.modules) == 1 else ""


def recognize(gpus: Iterable[Gpu]) -> Tuple[KnownGpu, ...]:
    """Return GPUs with their generations. A device number that cannot be read is one of the oldest."""
    return tuple(KnownGpu(gpu, _generation(gpu.device)) for gpu in gpus)


def choose_module(gpus: Sequence[KnownGpu], branch: int) -> str:
    """Return the kernel module that NVIDIA's installer of this branch would choose for these GPUs."""
    needs = {gpu.needs for gpu in gpus}
    early = branch < OPEN_BY_DEFAULT and OPEN not in needs
    return PROPRIETARY if early or PROPRIETARY in needs else OPEN


def refuse_gpus(gpus: Sequence[KnownGpu], branch: int, module: str, asked: str, remedy: str) -> Iterator[Refusal]:
    """Yield why GPUs would not work with a branch and a kernel module.

    ``asked`` is the module that the inventory asks for, or ``auto``; ``remedy`` says how to take another branch.
    """
    yield from _refuse_branch(gpus, branch, remedy)
    proprietary, open_ = (_named(gpu for gpu in gpus if gpu.needs == kind) for kind in (PROPRIETARY, OPEN))
    if proprietary and open_:
        yield Refusal(
            "gpus_exclude_each_other",
            f"No kernel module drives both {proprietary}, which needs the proprietary one, and {open_}, which needs"
            " the open one; bind one of them to vfio-pci, or remove it from the host.",
        )
    elif module == OPEN and proprietary:
        yield Refusal(
            "module_without_gpu",
            f"The GPU {proprietary} is older than Turing, which the open kernel module does not support; set"
            " driver_kernel_module_type=proprietary.",
        )
    elif module == PROPRIETARY and open_:
        yield Refusal(
            "module_without_gpu",
            f"The GPU {open_} is one that only the open kernel module supports; set driver_kernel_module_type=open.",
        )
    if module == OPEN and 0 < branch < FIRST_OPEN:
        yield Refusal(
            "branch_without_module",
            f"Branch {branch} has no open kernel module, {FIRST_OPEN} is the first that has; set"
            " driver_kernel_module_type=proprietary.",
        )
    if asked == PROPRIETARY and branch >= ONLY_OPEN:
        yield Refusal(
            "branch_without_module",
            f"Branch {branch} has no proprietary kernel module; set driver_kernel_module_type=open, or"
            " driver_branch=580.",
        )


def _refuse_branch(gpus: Sequence[KnownGpu], branch: int, remedy: str) -> Iterator[Refusal]:
    gone = [gpu for gpu in gpus if gpu.generation.last < branch]
    coming = [gpu for gpu in gpus if branch and gpu.generation.first > branch]
    if gone:
        last = min(gpu.generation.last for gpu in gone)
        yield Refusal(
            "branch_too_new",
            f"{last} is the last branch that supports the GPU {_named(gone)}, and this would install {branch};"
            f" {remedy}",
        )
    if coming:
        first = max(gpu.generation.first for gpu in coming)
        yield Refusal(
            "branch_too_old",
            f"{first} is the first branch that supports the GPU {_named(coming)}, and this would install {branch};"
            f" {remedy}",
        )


def _generation(device: str) -> Generation:
    try:
        number = int(device, 16)
    except ValueError:
        number = 0
    return [each for each in _GENERATIONS if each.start <= max(number, 0)][-1]


def _named(gpus: Iterable[KnownGpu]) -> str:
    return ", ".join(map(str, gpus))
