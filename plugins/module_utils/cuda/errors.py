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
_PROGRAM = "Run with CUDA_LAUNCH_BLOCKING=1, and check the failing call: usually the program or a library is wrong."
_OTHER = ("The program, or one of its libraries, used CUDA incorrectly.", _PROGRAM)
"""What is said of codes that nothing about the node causes."""

_MEANINGS: Dict[int, Tuple[str, str]] = {
    1: (
        "The program passed an invalid argument to a call.",
        _PROGRAM,
    ),
    2: (
        "The container's share of GPU memory is used up, or another program uses memory that nothing accounts for.",
        "Request more memory, make batches smaller, or check who uses the GPU (kubectl describe node, nvidia-smi).",
    ),
    3: (
        "The program used CUDA after a fork, or it ignored a failed cuInit.",
        "Start workers with spawn instead of fork, and look at the first error.",
    ),
    4: (
        "The driver was shut down while the program still used it, usually when the program exits.",
        "Look at the error before this one. End threads and workers before the main program exits.",
    ),
    34: (
        "The program loaded the toolkit's stub libcuda.so, which is only for linking.",
        "Remove .../lib64/stubs from LD_LIBRARY_PATH, and run the container with the runtime nvidia.",
    ),
    35: (
        "The driver is older than the container's CUDA runtime, or the container has no driver.",
        "Upgrade the driver, use an image with an older CUDA, or set runtimeClassName: nvidia.",
    ),
    36: (
        "The program called a function that the driver lacks, and that minor version compatibility does not cover.",
        "Upgrade the driver to the branch that matches the program's CUDA.",
    ),
    46: (
        "The GPU's compute mode is exclusive or prohibited, and another process, such as an MPS server, uses it.",
        "Run the pod as a client of the MPS server (mode mps), or reset the compute mode: nvidia-smi -c DEFAULT.",
    ),
    98: (
        "The program has no kernel of this name for the GPU: it was built for others, or mixes libraries of two"
        " builds.",
        "Build it for the GPU's sm_xx, and install matching versions of its libraries.",
    ),
    100: (
        "The container has no GPU: it requests none, CUDA_VISIBLE_DEVICES hides it, or the device files were lost.",
        "Request a GPU in the container's limits. If systemctl daemon-reload ran on the node, restart the pod.",
    ),
    101: (
        "The program asked for a GPU number that the container does not have. A container numbers its own GPUs from 0.",
        "Do not set CUDA_VISIBLE_DEVICES to the node's GPU numbers.",
    ),
    200: (
        "The driver cannot read kernel images of this CUDA version.",
        "Use a newer driver, or an image with the driver's CUDA version.",
    ),
    205: (
        "The driver could not map memory or devices for the program, for example because device files are missing.",
        "Give the container its GPU with the runtime nvidia or CDI. Check that nvidia-uvm is loaded on the node.",
    ),
    209: (
        "The program has no kernels for this GPU's compute capability, and no PTX to compile them from.",
        "Build it for the GPU's sm_xx, or select nodes by the label nvidia.com/gpu.compute.major.",
    ),
    214: (
        "The GPU's memory had an uncorrectable error.",
        "Reset or replace the GPU. Until then, the device plugin does not allocate it.",
    ),
    216: (
        "Another process or context uses the GPU in exclusive mode.",
        "See nvidia-smi -q -d COMPUTE and the GPU's processes. Reset the compute mode: nvidia-smi -c DEFAULT.",
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
        "Look for XID 74 or 144 to 150 on the node, and see nvidia-smi nvlink -e. Drain the node, and reset its GPUs.",
    ),
    221: (
        "The container lacks libnvidia-ptxjitcompiler, which compiles PTX.",
        "Add compute to NVIDIA_DRIVER_CAPABILITIES, so that the container runtime mounts the library.",
    ),
    222: (
        "The program's PTX needs a newer CUDA than the driver's. Minor version compatibility does not cover PTX.",
        "Recompile for the GPU's sm_xx, which needs no PTX, or upgrade the driver to the program's CUDA.",
    ),
    223: (
        "CUDA_DISABLE_PTX_JIT is set, but the program has only PTX for this GPU.",
        "Unset it, or build for the GPU's sm_xx.",
    ),
    226: (
        "A GPU memory error was contained: the driver ended only this program.",
        "Restart the pod. Reset the GPU after its pods have ended (XID 94).",
    ),
    300: (
        "The kernel was built for another GPU or another CUDA version.",
        "Build for the GPU's sm_xx. Check the image for a second CUDA toolkit.",
    ),
    302: (
        "A CUDA library lacks a function: the image mixes libraries of two versions.",
        "Install CUDA libraries of one version. Remove others from LD_LIBRARY_PATH.",
    ),
    303: (
        "libcuda could not be loaded or initialized: the driver is missing or incomplete in the container.",
        "Set runtimeClassName: nvidia in the pod, and request a GPU in its limits.",
    ),
    304: (
        "The kernel refused the driver's library: device files cannot be opened, or the versions do not match.",
        "Check /dev/nvidia* in the container and dmesg on the node. Restart the pod.",
    ),
    500: (
        "A function or variable is missing: the driver, the program, or libraries do not match.",
        "Upgrade the driver to the program's CUDA. Remove copied driver libraries from the image.",
    ),
    700: (
        "A kernel made an illegal access: the program has a bug, or its runtime is newer than the GPU virtualization.",
        "With GPU virtualization, compare the runtime with its baseline. Otherwise use compute-sanitizer.",
    ),
    701: (
        "A kernel needs more registers, threads, or shared memory than this GPU has.",
        "Launch smaller blocks, or use a GPU with the compute capability that the program was tuned for.",
    ),
    702: (
        "A kernel ran longer than the GPU's time limit: the GPU drives a display, or the kernel hangs.",
        "Use a GPU without a display. Otherwise run the program under compute-sanitizer.",
    ),
    710: (
        "An assertion in a kernel failed, usually for an index out of range, such as a token beyond the model's size.",
        "Run with CUDA_LAUNCH_BLOCKING=1, or on the CPU, to find the assertion. The program or its data is wrong.",
    ),
    716: (
        "A kernel used a misaligned address: the program has a bug, or a library was not built for this GPU.",
        _SANITIZE,
    ),
    719: (
        "A kernel failed, usually for a bad pointer. Under MPS, it also fails if another client of the GPU fails.",
        "Run the program under compute-sanitizer. Under MPS, look at the server's log, and restart the pod.",
    ),
    721: (
        "A kernel ended without freeing its tensor memory.",
        _SANITIZE,
    ),
    800: (
        "The call is not permitted. MPS does not permit some calls.",
        "Use a whole GPU for programs that need it.",
    ),
    801: (
        "This GPU or mode does not offer the call.",
        "Use a GPU that supports the call, or a whole GPU instead of a share.",
    ),
    802: (
        "NVSwitch is not set up: the fabric manager does not run, or its version differs from the driver's.",
        "Start nvidia-fabricmanager on the node, in exactly the driver's version.",
    ),
    803: (
        "The version of libcuda in the container differs from the loaded kernel driver.",
        "After a driver upgrade, reload the modules or reboot, and restart the pod. Remove copied driver libraries.",
    ),
    804: (
        "The image has a forward compatibility package, which this GPU or driver branch does not support.",
        "Upgrade the driver, or remove /usr/local/cuda/compat from LD_LIBRARY_PATH. GeForce GPUs never support it.",
    ),
    805: (
        "The container does not reach its MPS control daemon.",
        "Check the unit kube-accel-mps@<uuid> on the node, and restart the pod.",
    ),
    806: (
        "The MPS control daemon and server do not reach each other.",
        "When no pod uses the GPU, restart kube-accel-mps@<uuid>.",
    ),
    807: (
        "The MPS server is recovering from a fault, or belongs to another user.",
        "Try again. If pods run as several users, see gpu_plugins_mps_multiuser.",
    ),
    808: (
        "The MPS server has its maximum number of clients. Each process is a client.",
        "Start fewer processes, or give the pod another GPU.",
    ),
    809: (
        "The MPS server's connections are used up.",
        "Start fewer processes, or lower CUDA_DEVICE_MAX_CONNECTIONS.",
    ),
    810: (
        "The MPS server ended this client, usually because another client of the GPU had a fault.",
        "Restart the pod. Run programs that cause faults on a whole GPU.",
    ),
    909: (
        "The call took too long.",
        "Check what else keeps the GPU busy, and read dmesg on the node.",
    ),
    999: (
        "Usually the driver is too old for the container's CUDA, was upgraded under a running pod, or lost device"
        " files.",
        "Compare the driver's CUDA with the container's, restart the pod, and read dmesg on the node.",
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
