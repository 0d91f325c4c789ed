# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a program runs on a machine's driver and GPUs: a pure decision over the tables of ``cuda_tables``.

Each rule looks at the machine and at what the program needs. What it finds is ok, unknown (too little is known to say),
unstable (it may work, not always or not fast) or blocked (it does not). The decision is the worst of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Callable, Dict, Iterable, List, Sequence, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.cuda import tables
from ansible_collections.accel.kubernetes.plugins.module_utils.cuda.tables import Version

OK, UNKNOWN, UNSTABLE, BLOCKED = "ok", "unknown", "unstable", "blocked"
VERDICTS = (OK, UNKNOWN, UNSTABLE, BLOCKED)
"""From the best to the worst."""

_NAME_IT = (
    "Name its CUDA in cuda_version, or names of its files or packages in files. Or set layers_mib, so that its layers "
    "are searched."
)

_VERSION = re.compile(r"\s*v?(\d{1,9}(?:\.\d{1,9})*)(?!\d)")
MODES = ("pgpu", "vgpu", "mps", "cgpu")


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU a program may meet."""

    model: str
    capability: Version
    """Empty where it is not known."""


@dataclass(frozen=True)
class Machine:
    """A host's driver and GPUs. Empty versions are not known."""

    available: bool = True
    reason: str = ""
    """Why the driver does not answer."""
    driver: Version = ()
    cuda: Version = ()
    """The newest CUDA the driver supports."""
    gpus: Tuple[Gpu, ...] = ()


@dataclass(frozen=True)
class Needs:
    """What a program was built with and asks for. What is not known is empty or None."""

    cuda: Version = ()
    """Of one number where the minor is not known."""
    compat: Version = ()
    """CUDA of the forward compatibility package its image brings."""
    ptx: bool | None = None
    """Whether it has the driver compile PTX."""
    requires: Tuple[str, ...] = ()
    """NVIDIA_REQUIRE_* of its image, each an expression that has to hold."""
    dtype: str = ""
    mode: str = ""
    cores: int = 0
    """Percent of a GPU; a multiple of 100 is whole ones."""
    virtualization: Version = ()
    """CUDA the GPU virtualization was built for. Empty where there is none."""
    paddle_allocator: str | None = None
    """PaddlePaddle's FLAGS_allocator_strategy, empty for its default; None where it is not PaddlePaddle."""
    known_by: str = ""
    """What its CUDA was read from; empty where it was said."""
    program: bool = False
    """Whether it is a program, whose CUDA matters, and not a number format alone."""

    @property
    def shares(self) -> bool:
        """Return whether the container has part of a GPU. What virtualization demands does not hold for whole cards."""
        return self.interposed and not (self.cores > 0 and self.cores % 100 == 0)

    @property
    def interposed(self) -> bool:
        """Return whether the interposer is in the driver's place, for whole cards too; NVIDIA's runtime idles then."""
        return self.mode in MODES[1:]


@dataclass(frozen=True)
class Finding:
    """What one rule says."""

    verdict: str
    rule: str
    reason: str
    remedy: str = ""


@dataclass(frozen=True)
class Decision:
    """The verdict, the rule that decided it, and all that was found, the worst first."""

    verdict: str
    rule: str
    reason: str
    remedy: str
    findings: List[Finding] = field(default_factory=list)


def decide(machine: Machine, needs: Needs) -> Decision:
    """Return the verdict of every rule. Total: there is one for any input."""
    found = [finding for rule in RULES for finding in rule(machine, needs)]
    found.sort(key=lambda finding: -VERDICTS.index(finding.verdict))
    first = found[0] if found else Finding(UNKNOWN, "none", "nothing is known of what it needs", _NAME_IT)
    return Decision(first.verdict, first.rule, first.reason, first.remedy, found)


def not_read(cause: str, remedy: str) -> Decision:
    """Return the decision about something that cannot be read, which may run or not."""
    found = Finding(UNKNOWN, "cannot_be_read", f"What it needs is not known: {cause}", remedy)
    return Decision(found.verdict, found.rule, found.reason, found.remedy, [found])


def version_of(text: object) -> Version:
    """Return a dotted version's numbers, empty when it has none."""
    match = _VERSION.match(str(text or ""))
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def dotted(version: Version) -> str:
    """Return a version as people write it."""
    return ".".join(str(part) for part in version)


def _driver(machine: Machine, needs: Needs) -> List[Finding]:
    if not machine.available:
        reason = machine.reason or "the NVIDIA driver does not answer"
        return [Finding(BLOCKED, "driver", reason, "Have the role driver install one, and look at dmesg.")]
    if needs.cuda and not machine.cuda:
        return [Finding(UNKNOWN, "driver", "the driver's CUDA version could not be read", "Look at nvidia-smi there.")]
    return []


def _runtime(machine: Machine, needs: Needs) -> List[Finding]:
    """Return a finding where it is not known which CUDA a program was built with."""
    if not machine.available or needs.cuda or not needs.program:
        return []
    return [Finding(UNKNOWN, "runtime", "nothing says which CUDA the program was built with", _NAME_IT)]


def _version(machine: Machine, needs: Needs) -> List[Finding]:
    """Driver against the program's CUDA, in the order in which the driver library is chosen."""
    if not (machine.available and machine.cuda and needs.cuda):
        return []
    have, want = machine.cuda[:2], needs.cuda[:2]
    known_by = f" ({needs.known_by})" if needs.known_by else ""
    words = f"the driver supports CUDA {dotted(have)} and the program was built with {dotted(want)}{known_by}"
    if len(want) == 1 and have[0] == want[0] and have < tables.last_minor(want[0]):
        return [Finding(UNKNOWN, "minor_not_known", f"{words}, of which the minor version is not known", _NAME_IT)]
    if have >= want:
        if have[0] - want[0] > 1:
            remedy = f"Rebuild it with CUDA {have[0]} or {have[0] - 1}, which are tested with this driver."
            return [Finding(UNSTABLE, "major_distance", f"{words}, more than one major version apart", remedy)]
        return [Finding(OK, "driver_is_newer", words)]
    brings = needs.compat[:2] >= want
    if brings and not needs.interposed:
        return [_forward(machine, needs, words)]
    floor = tables.MINOR_FLOORS.get(want[0], ())
    # A driver whose own version is not known is one of its CUDA's branch at least.
    if floor and have[0] == want[0] and (machine.driver or floor) >= floor:
        return [_minor(needs, words), *([_past_limits(needs, words)] if brings and needs.shares else ())]
    if brings:
        return [_not_put_in_place(needs, words)]
    reason = f"{words}: CUDA_ERROR_UNKNOWN (999) or error 35"
    return [Finding(BLOCKED, "driver_is_older", reason, _upgrade(machine, needs))]


def _newer(needs: Needs) -> str:
    branch = tables.branch_for(needs.cuda)
    return f"Upgrade the driver to branch {branch} or newer" if branch else "Upgrade the driver"


def _upgrade(machine: Machine, needs: Needs) -> str:
    want = needs.cuda[:2]
    forward = ""
    branches = machine.driver[:1]
    if (
        not needs.interposed
        and machine.gpus
        and all(_forward_brand(gpu) for gpu in machine.gpus)
        and set(branches) <= set(tables.forward_bases(want))
    ):
        forward = f", add cuda-compat-{want[0]}-{want[1] if len(want) > 1 else 0} to the image" if branches else ""
    return f"{_newer(needs)}{forward}, or use an image of CUDA {dotted(machine.cuda[:2])}."


def _forward_brand(gpu: Gpu) -> bool:
    return tables.brand(gpu.model) in tables.FORWARD_BRANDS


def _forward(machine: Machine, needs: Needs, words: str) -> Finding:
    rule, bases = "forward_compatibility", tables.forward_bases(needs.compat)
    words += f"; its image brings cuda-compat {dotted(needs.compat[:2])}"
    refused = [gpu.model for gpu in machine.gpus if not _forward_brand(gpu)]
    remedy = f"{_newer(needs)}."
    if refused:
        reason = f"{words}, which {refused[0]} may not use: CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE (804)"
        return Finding(BLOCKED, rule, reason, remedy)
    if not machine.driver or not machine.gpus:
        reason = f"{words}, and it is not known whether driver and GPUs may use it"
        return Finding(UNKNOWN, rule, reason, remedy)
    if machine.driver[0] not in bases:
        known = ", ".join(str(base) for base in bases) or "none that is known"
        reason = f"{words}, which runs on driver branches {known} and not on {machine.driver[0]}"
        return Finding(BLOCKED, rule, reason, remedy)
    return Finding(OK, rule, f"{words}, which branch {machine.driver[0]} and these GPUs may use")


def _not_put_in_place(needs: Needs, words: str) -> Finding:
    itself = "escapes its share's limits" if needs.shares else "may run on whole GPUs, which have no limits"
    reason = (
        f"{words}; its image brings cuda-compat {dotted(needs.compat[:2])}, which mode {needs.mode} does "
        f"not use, because the interposer is the driver's library: error 35. An image that loads it itself {itself}"
    )
    remedy = f"{_newer(needs)}, or use a node of mode pgpu."
    return Finding(BLOCKED, "forward_compatibility", reason, remedy)


def _past_limits(needs: Needs, words: str) -> Finding:
    reason = (
        f"{words}; its image brings cuda-compat {dotted(needs.compat[:2])}. Mode {needs.mode} does not use it, but an "
        "image that loads it itself escapes its share's limits"
    )
    remedy = f"{_newer(needs)}, or leave cuda-compat out."
    return Finding(UNSTABLE, "forward_compatibility", reason, remedy)


def _minor(needs: Needs, words: str) -> Finding:
    remedy = f"Build for the GPU's sm_xx without PTX, or upgrade the driver to branch {tables.branch_for(needs.cuda)}."
    if needs.ptx:
        reason = f"{words}, whose PTX this driver does not compile: CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222)"
        return Finding(BLOCKED, "ptx", reason, remedy)
    if needs.ptx is None:
        reason = (
            f"{words}: minor version compatibility runs it, but not what it has in PTX or needs of the newer driver"
        )
        return Finding(UNSTABLE, "minor_version", reason, remedy)
    return Finding(OK, "minor_version", f"{words}: minor version compatibility runs it")


def _image(machine: Machine, needs: Needs) -> List[Finding]:
    """Return what the container toolkit checks before a container starts, unless the interposer replaces it."""
    if not machine.available:
        return []
    gpus: Sequence[Gpu | None] = machine.gpus or (None,)
    found = []
    for expression in needs.requires:
        said = {_holds(expression, machine, gpu) for gpu in gpus}
        short = expression if len(expression) <= 80 else f"{expression[:77]}..."
        if False in said and needs.interposed:
            reason = (
                f"the image requires '{short}', which does not hold here and which nothing checks in mode {needs.mode}"
            )
            remedy = "See that its CUDA is known to run here, or upgrade the driver."
            found.append(Finding(UNSTABLE, "image_requirement", reason, remedy))
        elif False in said:
            reason = f"the image requires '{short}', which does not hold here, so the container does not start"
            remedy = "Upgrade the driver, or set NVIDIA_DISABLE_REQUIRE=1 in the pod where its CUDA is known to run."
            found.append(Finding(BLOCKED, "image_requirement", reason, remedy))
        elif None in said:
            reason = f"the image requires '{short}', and not all of that is known of this machine"
            found.append(Finding(UNKNOWN, "image_requirement", reason, "Give the module the host's facts."))
        else:
            found.append(Finding(OK, "image_requirement", f"the image requires '{short}', which holds here"))
    return found


def _holds(expression: str, machine: Machine, gpu: Gpu | None) -> bool | None:
    """Return whether a condition holds: words are alternatives, commas join. None when that is not known."""
    known: Dict[str, Version | str] = {"driver": machine.driver, "cuda": machine.cuda}
    if gpu is not None:
        known.update(arch=gpu.capability, brand=tables.brand(gpu.model))
    alternatives = [_all(_condition(part, known) for part in word.split(",")) for word in expression.split()]
    return True if True in alternatives or not alternatives else None if None in alternatives else False


def _all(values: Iterable[bool | None]) -> bool | None:
    said = list(values)
    return False if False in said else None if None in said else True


def _condition(text: str, known: Dict[str, Version | str]) -> bool | None:
    match = re.fullmatch(r"(\w+)(>=|<=|!=|=|>|<)(.+)", text)
    value = known.get(match[1]) if match else None
    if match is None or not value:
        return None
    operator, wanted = match[2], match[3]
    if isinstance(value, str):
        return (value == wanted) == (operator == "=") if operator in ("=", "!=") else None
    asked = version_of(wanted)
    size = max(len(value), len(asked))
    left, right = value + (0,) * (size - len(value)), asked + (0,) * (size - len(asked))
    return _COMPARED[operator](left, right)


_COMPARED: Dict[str, Callable[[Version, Version], bool]] = {
    ">=": lambda left, right: left >= right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    "<": lambda left, right: left < right,
    "=": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
}


def _virtualization(machine: Machine, needs: Needs) -> List[Finding]:
    """Check virtualization: its library stands between program and driver, and knows the CUDA it was built for."""
    if not needs.virtualization or not needs.interposed:
        return []
    if not needs.shares:
        return [Finding(OK, "whole_card", f"{needs.cores} % are whole cards, which virtualization leaves alone")]
    base, found = needs.virtualization[:2], []
    words = f"the GPU virtualization is of CUDA {dotted(base)}"
    if needs.cuda and base < needs.cuda[:2]:
        reason = f"{words} and the program of {dotted(needs.cuda[:2])}: CUDA_ERROR_ILLEGAL_ADDRESS (700) and crashes"
        remedy = f"Use an image of CUDA {dotted(base)} or older, or ask for whole cards (a multiple of 100)."
        found.append(Finding(BLOCKED, "virtualization_baseline", reason, remedy))
    majors = {version[0] for version in (base, needs.cuda, machine.cuda) if version}
    if len(majors) > 1:
        # What is older than the virtualization's library may not call what changed in it.
        older_program = bool(needs.cuda) and needs.cuda[0] < base[0] and machine.cuda[:1] in ((), base[:1])
        reason = f"{words}, the driver of {dotted(machine.cuda) or '?'}, the program of {dotted(needs.cuda) or '?'}"
        reason += ", which runs or not case by case" if older_program else ""
        remedy = "Bring all three to one major version, or ask for whole cards (a multiple of 100)."
        found.append(Finding(UNSTABLE if older_program else BLOCKED, "virtualization_major", reason, remedy))
    return found


def _mps(machine: Machine, needs: Needs) -> List[Finding]:
    if needs.mode != "mps" or not machine.available:
        return []
    found = []
    for gpu in _kinds(machine):
        if gpu.capability and gpu.capability < tables.MPS_CAPABILITY:
            reason = f"{gpu.model} is of compute capability {dotted(gpu.capability)}, and MPS limits need 7.0 (Volta)"
            found.append(Finding(BLOCKED, "mps_capability", reason, "Give this node another mode."))
    if machine.cuda and machine.cuda[:2] < tables.MPS_CUDA:
        reason = f"the driver supports CUDA {dotted(machine.cuda)}, and MPS limits memory from 11.5 on"
        found.append(Finding(BLOCKED, "mps_driver", reason, "Upgrade the driver to branch 495 or newer."))
    return found


def _architecture(machine: Machine, needs: Needs) -> List[Finding]:
    """Check the architecture: a toolkit compiles for the GPUs of its time."""
    found = []
    for gpu in _kinds(machine) if needs.cuda else ():
        rows = [row for row in tables.ARCHITECTURES if row[0] <= gpu.capability]
        if not rows:
            continue
        _capability, first, last = rows[-1]
        words = f"{gpu.model} (compute capability {dotted(gpu.capability)})"
        if last and needs.cuda[:2] > last:
            reason = f"CUDA {dotted(needs.cuda[:2])} no longer compiles for {words}: CUDA_ERROR_NO_BINARY_FOR_GPU (209)"
            remedy = f"Use an image of CUDA {dotted(last)} or older."
            found.append(Finding(BLOCKED, "architecture_dropped", reason, remedy))
        elif needs.cuda[:2] < first:
            reason = (
                f"CUDA {dotted(needs.cuda[:2])} is older than {words}, which runs such programs from their PTX only"
            )
            remedy = f"Use an image of CUDA {dotted(first)} or newer."
            found.append(Finding(BLOCKED if needs.ptx is False else UNSTABLE, "architecture_is_newer", reason, remedy))
    return found


def _dtype(machine: Machine, needs: Needs) -> List[Finding]:
    if not needs.dtype:
        return []
    row = tables.DTYPES.get(needs.dtype)
    if row is None:
        reason = f"{needs.dtype} is no number format that is known here"
        return [Finding(UNKNOWN, "dtype", reason, f"Name one of {', '.join(tables.DTYPES)}.")]
    found = []
    for gpu in _kinds(machine):
        words = f"{gpu.model} is of compute capability {dotted(gpu.capability)}"
        if not gpu.capability:
            reason = f"the compute capability of {gpu.model or 'a GPU'} is not known"
            found.append(Finding(UNKNOWN, "dtype", reason, "Give the module the host's facts."))
        elif gpu.capability < row.runs:
            reason = f"{words}, and {needs.dtype} needs {dotted(row.runs)}"
            found.append(Finding(BLOCKED, "dtype", reason, f"{row.remedy[0].upper()}{row.remedy[1:]}."))
        elif gpu.capability < row.native:
            reason = f"{words}, which for {needs.dtype} {row.otherwise}"
            remedy = f"Use a GPU of compute capability {dotted(row.native)} for its full speed."
            found.append(Finding(UNSTABLE, "dtype", reason, remedy))
        else:
            found.append(Finding(OK, "dtype", f"{words}, and {needs.dtype} needs {dotted(row.native)}"))
    return found


def _paddle(machine: Machine, needs: Needs) -> List[Finding]:
    """Return a finding where Paddle's default allocator grows in pieces that a memory limit does not fit."""
    if needs.paddle_allocator is None or not needs.shares or needs.paddle_allocator == "naive_best_fit":
        return []
    reason = "PaddlePaddle's auto-growth allocator and a share of the GPU's memory do not go together: OOM, crashes"
    return [Finding(UNSTABLE, "paddle_allocator", reason, "Set FLAGS_allocator_strategy=naive_best_fit in the pod.")]


def _kinds(machine: Machine) -> List[Gpu]:
    """Return the GPUs, those of one kind once."""
    return sorted(set(machine.gpus), key=lambda gpu: (gpu.capability, gpu.model))


RULES: Sequence[Callable[[Machine, Needs], List[Finding]]] = (
    _driver,
    _runtime,
    _version,
    _image,
    _virtualization,
    _mps,
    _architecture,
    _dtype,
    _paddle,
)
