# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Words by which failures of GPU programs, kubelet, schedulers and our daemons are known, as tables.

Every pattern is looked for in one line of bounded length, and looks at each character a bounded number of times.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Pattern, Sequence, Tuple

CERTAIN, LIKELY, POSSIBLE = "certain", "likely", "possible"
CONFIDENCES = (CERTAIN, LIKELY, POSSIBLE)


@dataclass(frozen=True)
class Symptom:
    """Words, and what they stand for."""

    rule: str
    pattern: Pattern[str]
    what: str
    remedy: str
    confidence: str = LIKELY


@dataclass(frozen=True)
class Allocator:
    """A framework that takes memory ahead, or in pieces that a share does not fit."""

    framework: str
    pattern: Pattern[str]
    """In image, variables and log."""
    variable: str
    good: Tuple[str, ...]
    """Its values with which there is no conflict."""
    remedy: str


def words(text: str) -> Pattern[str]:
    """A pattern for words of any case."""
    return re.compile(text, re.IGNORECASE)


OUT_OF_MEMORY = words(
    r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|torch[\w.]{0,40}OutOfMemoryError"
    r"|CUDA error[ :]{0,3}(?:2\b|out of memory)|out of memory error on GPU|OOM when allocating tensor"
    r"|RESOURCE_EXHAUSTED: out of memory|CUBLAS_STATUS_ALLOC_FAILED|failed to allocate .{1,60} from device"
    r"|ggml_cuda.{0,80}out of memory|cudaMalloc failed: out of memory"
)
"""How PyTorch, TensorFlow, JAX, PaddlePaddle, llama.cpp and plain programs run out of the GPU's memory."""

ALLOCATORS: Sequence[Allocator] = (
    Allocator(
        "PaddlePaddle",
        words(r"paddle|FLAGS_allocator_strategy"),
        "FLAGS_allocator_strategy",
        ("naive_best_fit",),
        "Set FLAGS_allocator_strategy=naive_best_fit in the pod: its auto-growth allocator does not fit a share.",
    ),
    Allocator(
        "TensorFlow",
        words(r"tensorflow|TF_FORCE_GPU_ALLOW_GROWTH"),
        "TF_FORCE_GPU_ALLOW_GROWTH",
        ("true", "1"),
        "Set TF_FORCE_GPU_ALLOW_GROWTH=true in the pod: it takes nearly all memory it sees otherwise.",
    ),
    Allocator(
        "JAX",
        words(r"\bjax|XLA_PYTHON_CLIENT"),
        "XLA_PYTHON_CLIENT_PREALLOCATE",
        ("false", "0"),
        "Set XLA_PYTHON_CLIENT_PREALLOCATE=false in the pod: it takes 75 % of the memory it sees otherwise.",
    ),
)
"""Defaults of the frameworks by their own documentation."""

IN_LOGS: Sequence[Symptom] = (
    Symptom(
        "bfloat16",
        words(r"bfloat16 is only supported|bf16.{0,80}compute capability|compute capability of at least 8\.0"),
        "the program computes in bfloat16, which needs compute capability 8.0",
        "Run it in float16 (vLLM: --dtype=half), or select nodes by the label nvidia.com/gpu.compute.major.",
        CERTAIN,
    ),
    Symptom(
        "allocator_conflict",
        words(r"free memory on device .{0,120}less than desired GPU memory utilization"),
        "the server wants a fixed part of the GPU's memory at its start, and others have some of it",
        "Lower its part (vLLM: --gpu-memory-utilization), or give it a GPU or share of its own.",
        CERTAIN,
    ),
    Symptom(
        "driver_missing",
        words(r"(?:libcuda|libnvidia-ml)\.so\.1: cannot open shared object|nvidia-smi: not found"),
        "the container has no driver: the container runtime did not bring it",
        "Set runtimeClassName: nvidia in the pod, and ask for a GPU in its limits.",
    ),
    Symptom(
        "device_files_lost",
        words(r"Failed to initialize NVML: Unknown Error"),
        "the container has lost its device files, as after systemctl daemon-reload on the node",
        "Start the pod again; give containers their GPUs by CDI (gpu_plugins_device_list_strategy) to be rid of it.",
    ),
    Symptom(
        "cuda_mismatch",
        words(r"Driver/library version mismatch"),
        "the driver was upgraded under a running pod, or only in part",
        "Reload the modules or reboot the node, and start the pod again.",
        CERTAIN,
    ),
    Symptom(
        "limits_unreadable",
        words(r"^kube-accel: GPU memory is refused: "),
        "the interposer cannot read the container's limits, and refuses everything",
        "Start the pod again; look at the log of the node's plugin if it returns.",
        CERTAIN,
    ),
    Symptom(
        "gpu_lost",
        words(r"GPU is lost|fallen off the bus|Unable to determine the device handle for GPU"),
        "the program lost its GPU",
        "Look at the node's GPUs below; start the pod again elsewhere.",
    ),
)

CUDA_WORDS: Sequence[Tuple[Pattern[str], int]] = tuple(
    (words(text), code)
    for text, code in (
        (r"CUDA driver version is insufficient for CUDA runtime version", 35),
        (r"no CUDA-capable device is detected", 100),
        (r"CUDA error: invalid device ordinal", 101),
        (r"device kernel image is invalid", 200),
        (r"no kernel image is available for execution", 209),
        (r"uncorrectable ECC error encountered", 214),
        (r"a PTX JIT compilation failed", 218),
        (r"PTX was compiled with an unsupported toolchain", 222),
        (r"an illegal memory access was encountered", 700),
        (r"CUDA error: unspecified launch failure", 719),
        (r"CUDA error: operation not permitted", 800),
        (r"CUDA error: operation not supported", 801),
        (r"system not yet initialized", 802),
        (r"unsupported display driver / cuda driver combination", 803),
        (r"forward compatibility was attempted on non supported HW", 804),
        (r"MPS client failed to connect", 805),
        (r"MPS control daemon failed to communicate", 806),
        (r"MPS server is not ready", 807),
        (r"hardware resources required to create MPS client", 808),
        (r"hardware resources required to device connections", 809),
        (r"MPS client has been terminated", 810),
        (r"CUDA unknown error|CUDA error: unknown error", 999),
    )
)
"""What cudaGetErrorString says for CUDA's codes."""

CUDA_CODE = words(r"\b(CUDA_ERROR_[A-Z_]{3,60})\b|\bCUDA error(?: code)?[ :=]{0,3}([0-9]{1,3})\b")

MISMATCHES = (35, 36, 200, 209, 218, 222, 223, 803, 804, 999)
"""CUDA's codes for a driver and a program that are not for each other."""
OF_MPS = tuple(range(805, 811))


def rule_of(code: int) -> str:
    """What kind of failure one of CUDA's codes is."""
    return "cuda_mismatch" if code in MISMATCHES else "mps" if code in OF_MPS else "cuda_error"
