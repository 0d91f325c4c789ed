# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CUDA's error codes in words: what each mostly means on a node that shares its GPUs, and what to do.

Source of codes and names: ``CUresult`` of cuda.h, and ``cudaError`` of driver_types.h for those of the runtime alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Sequence


@dataclass(frozen=True)
class CudaError:
    """One code."""

    code: int
    name: str
    cause: str
    remedy: str


_TABLE: Sequence[CudaError] = (
    CudaError(
        2,
        "CUDA_ERROR_OUT_OF_MEMORY",
        "The container's share of the GPU's memory is used up, or another program takes what is not accounted for.",
        "Ask for more memory, make batches smaller, or look who holds the GPU (kubectl describe node, nvidia-smi).",
    ),
    CudaError(
        3,
        "CUDA_ERROR_NOT_INITIALIZED",
        "The program used CUDA after a fork, or cuInit failed and nobody looked.",
        "Start workers with spawn instead of fork, and look at the first error.",
    ),
    CudaError(
        34,
        "CUDA_ERROR_STUB_LIBRARY",
        "The program loaded the toolkit's stub libcuda.so, which is there for linking only.",
        "Take .../lib64/stubs out of LD_LIBRARY_PATH, and run the container with the runtime nvidia.",
    ),
    CudaError(
        35,
        "cudaErrorInsufficientDriver",
        "The driver is older than the CUDA runtime of the container, or the container got no driver at all.",
        "Upgrade the driver, use an image of an older CUDA, or set runtimeClassName nvidia.",
    ),
    CudaError(
        36,
        "cudaErrorCallRequiresNewerDriver",
        "The program called what the driver lacks. Minor version compatibility, by which it runs, leaves that out.",
        "Upgrade the driver to the branch of the program's CUDA.",
    ),
    CudaError(
        46,
        "CUDA_ERROR_DEVICE_UNAVAILABLE",
        "The GPU is in compute mode exclusive or prohibited and another process has it, such as an MPS server.",
        "Let the pod be a client of the MPS server (mode mps), or set the compute mode back: nvidia-smi -c DEFAULT.",
    ),
    CudaError(
        100,
        "CUDA_ERROR_NO_DEVICE",
        "The container has no GPU: it asked for none, CUDA_VISIBLE_DEVICES hides it, or its device files were lost.",
        "Ask for one in the container's limits. After systemctl daemon-reload on the node, start the pod again.",
    ),
    CudaError(
        101,
        "CUDA_ERROR_INVALID_DEVICE",
        "The program asked for a GPU by a number the container does not have; a container counts its own from 0.",
        "Do not set CUDA_VISIBLE_DEVICES to the node's numbers.",
    ),
    CudaError(
        200,
        "CUDA_ERROR_INVALID_IMAGE",
        "The kernel image is of a CUDA the driver cannot read.",
        "Align the driver's CUDA and the container's: newer driver, or an image of the driver's CUDA.",
    ),
    CudaError(
        209,
        "CUDA_ERROR_NO_BINARY_FOR_GPU",
        "The program has no kernels for this GPU's compute capability, and no PTX to make them from.",
        "Build it for the GPU's sm_xx, or select nodes by the label nvidia.com/gpu.compute.major.",
    ),
    CudaError(
        214,
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "The GPU's memory had an error it could not correct.",
        "Reset or replace the GPU; the node's plugin takes it out of service meanwhile.",
    ),
    CudaError(
        218,
        "CUDA_ERROR_INVALID_PTX",
        "The driver's compiler refused the program's PTX.",
        "Upgrade the driver to the program's CUDA, or build for the GPU's sm_xx.",
    ),
    CudaError(
        222,
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        "The program's PTX is of a newer CUDA than the driver's compiler; minor version compatibility leaves it out.",
        "Recompile for the GPU's sm_xx, which needs no PTX, or upgrade the driver to the program's CUDA.",
    ),
    CudaError(
        223,
        "CUDA_ERROR_JIT_COMPILATION_DISABLED",
        "CUDA_DISABLE_PTX_JIT is set, and the program has PTX only for this GPU.",
        "Unset it, or build for the GPU's sm_xx.",
    ),
    CudaError(
        700,
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "A kernel went where it may not: the program's own mistake, or a runtime newer than the virtualization.",
        "With a GPU virtualization, check the runtime against its baseline; else run under compute-sanitizer.",
    ),
    CudaError(
        719,
        "CUDA_ERROR_LAUNCH_FAILED",
        "A kernel died, mostly of a bad pointer; under MPS also because another client of the same GPU died.",
        "Run under compute-sanitizer; under MPS, look at the server's log and start the pod again.",
    ),
    CudaError(
        800,
        "CUDA_ERROR_NOT_PERMITTED",
        "The call is not allowed here, as some are under MPS.",
        "Use a whole GPU for programs that need it.",
    ),
    CudaError(
        801,
        "CUDA_ERROR_NOT_SUPPORTED",
        "This GPU or mode does not offer the call.",
        "Use a GPU that has it, or a whole one instead of a share.",
    ),
    CudaError(
        802,
        "CUDA_ERROR_SYSTEM_NOT_READY",
        "NVSwitch is not set up: the fabric manager does not run, or is not of the driver's version.",
        "Start nvidia-fabricmanager of exactly the driver's version on the node.",
    ),
    CudaError(
        803,
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "libcuda in the container is of another version than the loaded kernel driver.",
        "After an upgrade reload the modules or reboot, and start the pod again; take out copied driver libraries.",
    ),
    CudaError(
        804,
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "The image brought its forward compatibility package, and this GPU or driver branch may not use one.",
        "Upgrade the driver, or take /usr/local/cuda/compat out of LD_LIBRARY_PATH. GeForce cards never may.",
    ),
    CudaError(
        805,
        "CUDA_ERROR_MPS_CONNECTION_FAILED",
        "The container does not reach its MPS control daemon.",
        "Look at kube-accel-mps@<uuid> on the node, and start the pod again.",
    ),
    CudaError(
        806,
        "CUDA_ERROR_MPS_RPC_FAILURE",
        "The MPS control daemon and server do not reach each other.",
        "Restart kube-accel-mps@<uuid> once no pod uses the GPU.",
    ),
    CudaError(
        807,
        "CUDA_ERROR_MPS_SERVER_NOT_READY",
        "The MPS server is recovering from a fault, or belongs to another user.",
        "Try again; with pods of several users see gpu_plugins_mps_multiuser.",
    ),
    CudaError(
        808,
        "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED",
        "The MPS server has as many clients as it takes: each process is one.",
        "Start fewer processes, or give the pod another GPU.",
    ),
    CudaError(
        809,
        "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED",
        "The MPS server's connections are used up.",
        "Start fewer processes, or set CUDA_DEVICE_MAX_CONNECTIONS lower.",
    ),
    CudaError(
        810,
        "CUDA_ERROR_MPS_CLIENT_TERMINATED",
        "The MPS server ended this client, mostly because another one on the GPU died of a fault.",
        "Start the pod again; give programs that fault a whole GPU.",
    ),
    CudaError(
        999,
        "CUDA_ERROR_UNKNOWN",
        "Mostly a driver older than the container's CUDA, a driver upgraded under a running pod, or lost device files.",
        "Compare the driver's CUDA with the container's, start the pod again, and see dmesg on the node.",
    ),
)
ERRORS: Dict[int, CudaError] = {error.code: error for error in _TABLE}
_BY_NAME = {error.name.lower(): error for error in _TABLE}


def explain(error: str) -> CudaError | None:
    """What a code or name stands for; None when it is not in the table."""
    text = error.strip()
    return ERRORS.get(int(text)) if text.isdigit() else _BY_NAME.get(text.lower())
