# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CUDA's error codes in words: what each mostly means on a node that shares its GPUs, and what to do.

Source of codes, names and words: ``CUresult`` of cuda.h, ``cudaError`` of driver_types.h and ``cudaGetErrorString``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Iterator, Pattern, Sequence, Tuple

from .error_codes import CODES


@dataclass(frozen=True)
class CudaError:
    """A code that CUDA returns, with its meaning."""

    code: int
    name: str
    """The driver API's, or the runtime API's where the driver has none."""
    cause: str
    remedy: str
    names: Tuple[str, ...]
    """In both APIs."""
    words: str
    """By which the runtime describes it."""


_SANITIZE = "Run the program under compute-sanitizer."
_PROGRAM = "Run with CUDA_LAUNCH_BLOCKING=1 and look at the call: it is mostly the program's or a library's mistake."
_OTHER = ("The program, or a library of it, used CUDA in a way that it may not.", _PROGRAM)
"""What is said of codes that nothing about the node causes."""

_MEANINGS: Dict[int, Tuple[str, str]] = {
    1: (
        "The program passed a call what it may not have.",
        _PROGRAM,
    ),
    2: (
        "The container's share of the GPU's memory is used up, or another program takes what is not accounted for.",
        "Ask for more memory, make batches smaller, or look who holds the GPU (kubectl describe node, nvidia-smi).",
    ),
    3: (
        "The program used CUDA after a fork, or cuInit failed and nobody looked.",
        "Start workers with spawn instead of fork, and look at the first error.",
    ),
    4: (
        "The driver was shut down while the program still used it, mostly at its end.",
        "Look at the error before it; end threads and workers before the main program ends.",
    ),
    34: (
        "The program loaded the toolkit's stub libcuda.so, which is there for linking only.",
        "Take .../lib64/stubs out of LD_LIBRARY_PATH, and run the container with the runtime nvidia.",
    ),
    35: (
        "The driver is older than the CUDA runtime of the container, or the container got no driver at all.",
        "Upgrade the driver, use an image of an older CUDA, or set runtimeClassName nvidia.",
    ),
    36: (
        "The program called what the driver lacks. Minor version compatibility, by which it runs, leaves that out.",
        "Upgrade the driver to the branch of the program's CUDA.",
    ),
    46: (
        "The GPU is in compute mode exclusive or prohibited and another process has it, such as an MPS server.",
        "Let the pod be a client of the MPS server (mode mps), or set the compute mode back: nvidia-smi -c DEFAULT.",
    ),
    98: (
        "The program has no kernel of this name for the GPU: built for others, or libraries of two builds are mixed.",
        "Build it for the GPU's sm_xx, and install matching versions of its libraries.",
    ),
    100: (
        "The container has no GPU: it asked for none, CUDA_VISIBLE_DEVICES hides it, or its device files were lost.",
        "Ask for one in the container's limits. After systemctl daemon-reload on the node, start the pod again.",
    ),
    101: (
        "The program asked for a GPU by a number the container does not have; a container counts its own from 0.",
        "Do not set CUDA_VISIBLE_DEVICES to the node's numbers.",
    ),
    200: (
        "The kernel image is of a CUDA the driver cannot read.",
        "Align the driver's CUDA and the container's: newer driver, or an image of the driver's CUDA.",
    ),
    205: (
        "Memory or devices could not be mapped for the program, as without all device files of the driver.",
        "Give the container its GPU by the runtime nvidia or CDI; see that nvidia-uvm is loaded on the node.",
    ),
    209: (
        "The program has no kernels for this GPU's compute capability, and no PTX to make them from.",
        "Build it for the GPU's sm_xx, or select nodes by the label nvidia.com/gpu.compute.major.",
    ),
    214: (
        "The GPU's memory had an error it could not correct.",
        "Reset or replace the GPU; the node's plugin takes it out of service meanwhile.",
    ),
    216: (
        "The GPU is held by one process in exclusive mode, or by another context.",
        "See nvidia-smi -q -d COMPUTE and its processes; set the compute mode back: nvidia-smi -c DEFAULT.",
    ),
    217: (
        "The GPUs cannot reach each other's memory.",
        "Set NCCL_P2P_DISABLE=1, or place the pod on GPUs with NVLink or one PCIe switch (nvidia-smi topo -m).",
    ),
    218: (
        "The driver's compiler refused the program's PTX.",
        "Upgrade the driver to the program's CUDA, or build for the GPU's sm_xx.",
    ),
    220: (
        "A link between GPUs (NVLink) failed.",
        "See nvidia-smi nvlink -e and XID 74 or 144 to 150 on the node; drain and reset its GPUs.",
    ),
    221: (
        "The container lacks libnvidia-ptxjitcompiler, with which PTX is compiled.",
        "Have NVIDIA_DRIVER_CAPABILITIES hold compute, so that the container runtime brings it.",
    ),
    222: (
        "The program's PTX is of a newer CUDA than the driver's compiler; minor version compatibility leaves it out.",
        "Recompile for the GPU's sm_xx, which needs no PTX, or upgrade the driver to the program's CUDA.",
    ),
    223: (
        "CUDA_DISABLE_PTX_JIT is set, and the program has PTX only for this GPU.",
        "Unset it, or build for the GPU's sm_xx.",
    ),
    226: (
        "A memory error of the GPU was contained: this program alone was ended.",
        "Start the pod again; reset the GPU when its pods have ended (XID 94).",
    ),
    300: (
        "The kernel's source or image is for another GPU or another CUDA than what loads it.",
        "Build for the GPU's sm_xx; look for two CUDA toolkits in the image.",
    ),
    302: (
        "A library of CUDA lacks a function: libraries of two versions are mixed.",
        "Install CUDA's libraries of one version; take others out of LD_LIBRARY_PATH.",
    ),
    303: (
        "libcuda could not be loaded or set up: the container has no driver, or not a whole one.",
        "Set runtimeClassName: nvidia in the pod, and ask for a GPU in its limits.",
    ),
    304: (
        "The kernel refused the driver's library: device files may not be opened, or driver and library do not fit.",
        "See /dev/nvidia* in the container and dmesg on the node; start the pod again.",
    ),
    500: (
        "A function or variable is not in what was loaded: driver and program, or libraries, do not fit.",
        "Upgrade the driver to the program's CUDA; take copied driver libraries out of the image.",
    ),
    700: (
        "A kernel went where it may not: the program's own mistake, or a runtime newer than the virtualization.",
        "With a GPU virtualization, check the runtime against its baseline; else run under compute-sanitizer.",
    ),
    701: (
        "A kernel asks for more registers, threads or shared memory than this GPU has.",
        "Launch smaller blocks, or use a GPU of the capability the program was tuned for.",
    ),
    702: (
        "A kernel ran longer than the GPU may be busy with one: it drives a display, or the kernel hangs.",
        "Use a GPU without a display; else run under compute-sanitizer.",
    ),
    710: (
        "An assertion in a kernel failed: mostly an index out of range, as a label or token beyond the model's size.",
        "Run with CUDA_LAUNCH_BLOCKING=1, or on the CPU, to see which; it is the program's or its data's mistake.",
    ),
    716: (
        "A kernel used an address that is not aligned: the program's own mistake, or a library not for this GPU.",
        _SANITIZE,
    ),
    719: (
        "A kernel died, mostly of a bad pointer; under MPS also because another client of the same GPU died.",
        "Run under compute-sanitizer; under MPS, look at the server's log and start the pod again.",
    ),
    721: (
        "A kernel ended without giving back its tensor memory.",
        _SANITIZE,
    ),
    800: (
        "The call is not allowed here, as some are under MPS.",
        "Use a whole GPU for programs that need it.",
    ),
    801: (
        "This GPU or mode does not offer the call.",
        "Use a GPU that has it, or a whole one instead of a share.",
    ),
    802: (
        "NVSwitch is not set up: the fabric manager does not run, or is not of the driver's version.",
        "Start nvidia-fabricmanager of exactly the driver's version on the node.",
    ),
    803: (
        "libcuda in the container is of another version than the loaded kernel driver.",
        "After an upgrade reload the modules or reboot, and start the pod again; take out copied driver libraries.",
    ),
    804: (
        "The image brought its forward compatibility package, and this GPU or driver branch may not use one.",
        "Upgrade the driver, or take /usr/local/cuda/compat out of LD_LIBRARY_PATH. GeForce cards never may.",
    ),
    805: (
        "The container does not reach its MPS control daemon.",
        "Look at kube-accel-mps@<uuid> on the node, and start the pod again.",
    ),
    806: (
        "The MPS control daemon and server do not reach each other.",
        "Restart kube-accel-mps@<uuid> once no pod uses the GPU.",
    ),
    807: (
        "The MPS server is recovering from a fault, or belongs to another user.",
        "Try again; with pods of several users see gpu_plugins_mps_multiuser.",
    ),
    808: (
        "The MPS server has as many clients as it takes: each process is one.",
        "Start fewer processes, or give the pod another GPU.",
    ),
    809: (
        "The MPS server's connections are used up.",
        "Start fewer processes, or set CUDA_DEVICE_MAX_CONNECTIONS lower.",
    ),
    810: (
        "The MPS server ended this client, mostly because another one on the GPU died of a fault.",
        "Start the pod again; give programs that fault a whole GPU.",
    ),
    909: (
        "The call took too long.",
        "Look what else keeps the GPU busy, and at dmesg on the node.",
    ),
    999: (
        "Mostly a driver older than the container's CUDA, a driver upgraded under a running pod, or lost device files.",
        "Compare the driver's CUDA with the container's, start the pod again, and see dmesg on the node.",
    ),
}
"""What some mostly mean, and what to do."""

_BEFORE_10_1: Dict[int, int] = {
    4: 719,
    6: 702,
    7: 701,
    8: 98,
    10: 101,
    11: 1,
    29: 4,
    30: 999,
    33: 400,
    34: 600,
    38: 100,
    39: 214,
    47: 200,
    48: 209,
    50: 704,
    51: 705,
    59: 710,
    60: 711,
    61: 712,
    62: 713,
    63: 304,
    64: 217,
    70: 800,
    71: 801,
    72: 714,
    73: 715,
    74: 716,
    75: 717,
    76: 718,
    77: 700,
    78: 218,
    79: 219,
    80: 220,
    81: 221,
    82: 720,
}
"""Numbers that the runtime had for some until CUDA 10.0, and those of today."""


def _errors() -> Iterator[CudaError]:
    for code, driver, runtime, words in CODES:
        names = tuple(filter(None, (driver and f"CUDA_ERROR_{driver}", f"cudaError{runtime}")))
        yield CudaError(code, names[0], *_MEANINGS.get(code, _OTHER), names, words)


ERRORS: Dict[int, CudaError] = {error.code: error for error in _errors()}
_BY_NAME = {name.lower(): error for error in ERRORS.values() for name in error.names}
_BY_WORDS = {error.words.lower(): error for error in reversed(list(ERRORS.values()))}
_BY_WORDS["all cuda-capable devices are busy or unavailable"] = ERRORS[46]
_BY_WORDS["operation not supported on this os"] = ERRORS[304]
_BY_WORDS["cuda unknown error"] = ERRORS[999]
_BY_WORDS["cannot re-initialize cuda in forked subprocess"] = ERRORS[3]


def _any_of(words: Sequence[str]) -> Pattern[str]:
    longest_first = sorted(words, key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)", re.IGNORECASE)


_NAMES = re.compile(r"\b(?:CUDA_)?(ERROR_[A-Z_]{3,60})\b|\b(cudaError[A-Z][A-Za-z]{2,60})")
_ONLY_OF_CUDA = tuple(w for w in _BY_WORDS if re.search("cuda|kernel|ptx|mps|nvlink|ecc|illegal|device-side|grid l", w))
"""Words that nothing else says."""
_SURE_WORDS, _ALL_WORDS = _any_of(_ONLY_OF_CUDA), _any_of(tuple(_BY_WORDS))
_SPEAKERS = re.compile(r"(?i:error \[cuda\]|cuda|\bggml|\[TRT\]|tensorrt|\(error code [a-z_])|\bcu[A-Z][A-Za-z]{2,40}")
"""What says that a line is about CUDA."""
_FAILS = re.compile(r"error|fail|\berr\b|returned|exception|results? in", re.IGNORECASE)
_CODE = re.compile(
    r"\bcuda(?: runtime| driver)?(?: error| failure| failed with error)(?: code)?"
    r"(?: in \w{1,60})?[ :=(]{0,3}(\d{1,4})\b"
    r"|\bcode=(\d{1,4})\(|\berror code[ :=]{0,3}(\d{1,4})\b(?!: Cuda)|\bUNKNOWN ERROR \((\d{1,4})\)"
    r"|\bcu(?:da)?[A-Z]\w{2,60}(?:\([^()]{0,60}\))?[ :]{0,2}(?:returned|err|failed|error)"
    r"[\w ]{0,20}[:=( ]{1,3}(\d{1,4})\b"
    r"|\b(?:init failure|lookup failure|device context|failure with error)[: ]{1,3}(\d{1,4})(?!\d)"
    r"|\bError (\d{1,4}): |\berror=(\d{1,4})\b"
    r"|\bCUresult[ (]{1,2}(\d{1,4})\b|\breturn status: (\d{1,4})\b",
    re.IGNORECASE,
)
"""The forms in which programs print a number."""
_UNKNOWN = 999
_OLD = re.compile(r"\bcuda runtime error \(|THCudaCheck", re.IGNORECASE)


def explain(error: str) -> CudaError | None:
    """Return what a code or name stands for; None when it is not in the table."""
    text = error.strip()
    if text.isdigit():
        return ERRORS.get(int(text)) if len(text) < 6 else None
    return _BY_NAME.get(text.lower()) or _BY_NAME.get(f"cuda_{text.lower()}")


def named(line: str) -> Tuple[CudaError, ...]:
    """Return the errors that a line of a log reports, by name, else by words, else by number.

    Words and numbers that other programs use too count where the line says that CUDA failed.
    """
    about = _SPEAKERS.search(line)
    found = [
        error
        for name, runtime in _NAMES.findall(line)
        for error in [explain(name or runtime)]
        if error is not None and (runtime or about or error.words.lower() in line.lower())
    ]
    if not found:
        fails = _FAILS.search(line, about.start()) if about is not None else None
        pattern, start = (_SURE_WORDS, 0) if fails is None or about is None else (_ALL_WORDS, about.start())
        found = [_BY_WORDS[match[0].lower()] for match in pattern.finditer(line, start)]
    if about is not None and all(error.code == _UNKNOWN for error in found):
        numbers = [int(next(filter(None, match.groups()))) for match in _CODE.finditer(line)]
        today = [_BEFORE_10_1.get(number, number) if _OLD.search(line) else number for number in numbers]
        found = [ERRORS[number] for number in today if number in ERRORS] or found
    return tuple(dict.fromkeys(found))
