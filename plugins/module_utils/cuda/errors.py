# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CUDA's error codes in words: what each mostly means on a node that shares its GPUs, and what to do.

Source of codes, names and words: ``CUresult`` of cuda.h, ``cudaError`` of driver_types.h and ``cudaGetErrorString``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Iterator, Pattern, Sequence, Tuple


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

_CODES: Sequence[Tuple[int, str, str, str]] = (
    (1, "INVALID_VALUE", "InvalidValue", "invalid argument"),
    (2, "OUT_OF_MEMORY", "MemoryAllocation", "out of memory"),
    (3, "NOT_INITIALIZED", "InitializationError", "initialization error"),
    (4, "DEINITIALIZED", "CudartUnloading", "driver shutting down"),
    (5, "PROFILER_DISABLED", "ProfilerDisabled", "profiler disabled while using external profiling tool"),
    (
        6,
        "PROFILER_NOT_INITIALIZED",
        "ProfilerNotInitialized",
        "profiler not initialized: call cudaProfilerInitialize()",
    ),
    (7, "PROFILER_ALREADY_STARTED", "ProfilerAlreadyStarted", "profiler already started"),
    (8, "PROFILER_ALREADY_STOPPED", "ProfilerAlreadyStopped", "profiler already stopped"),
    (9, "", "InvalidConfiguration", "invalid configuration argument"),
    (12, "", "InvalidPitchValue", "invalid pitch argument"),
    (13, "", "InvalidSymbol", "invalid device symbol"),
    (16, "", "InvalidHostPointer", "invalid host pointer"),
    (17, "", "InvalidDevicePointer", "invalid device pointer"),
    (18, "", "InvalidTexture", "invalid texture reference"),
    (19, "", "InvalidTextureBinding", "texture is not bound to a pointer"),
    (20, "", "InvalidChannelDescriptor", "invalid channel descriptor"),
    (21, "", "InvalidMemcpyDirection", "invalid copy direction for memcpy"),
    (22, "", "AddressOfConstant", "cannot fetch the address of a constant"),
    (23, "", "TextureFetchFailed", "fetch from texture failed"),
    (24, "", "TextureNotBound", "cannot fetch from a texture that is not bound"),
    (25, "", "SynchronizationError", "incorrect use of __syncthreads()"),
    (26, "", "InvalidFilterSetting", "linear filtering not supported for non-float type"),
    (27, "", "InvalidNormSetting", "read as normalized float not supported for 32-bit non float type"),
    (28, "", "MixedDeviceExecution", "device emulation mode and device execution mode cannot be mixed"),
    (31, "", "NotYetImplemented", "feature not yet implemented"),
    (32, "", "MemoryValueTooLarge", "memory size or pointer value too large to fit in 32 bit"),
    (34, "STUB_LIBRARY", "StubLibrary", "CUDA driver is a stub library"),
    (35, "", "InsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"),
    (
        36,
        "CALL_REQUIRES_NEWER_DRIVER",
        "CallRequiresNewerDriver",
        "API call is not supported in the installed CUDA driver",
    ),
    (37, "", "InvalidSurface", "invalid surface reference"),
    (43, "", "DuplicateVariableName", "duplicate global variable looked up by string name"),
    (44, "", "DuplicateTextureName", "duplicate texture looked up by string name"),
    (45, "", "DuplicateSurfaceName", "duplicate surface looked up by string name"),
    (46, "DEVICE_UNAVAILABLE", "DevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"),
    (49, "", "IncompatibleDriverContext", "incompatible driver context"),
    (52, "", "MissingConfiguration", "__global__ function call is not configured"),
    (53, "", "PriorLaunchFailure", "unspecified launch failure in prior launch"),
    (65, "", "LaunchMaxDepthExceeded", "launch would exceed maximum depth of nested launches"),
    (66, "", "LaunchFileScopedTex", "launch failed because kernel uses unsupported, file-scoped textures"),
    (67, "", "LaunchFileScopedSurf", "launch failed because kernel uses unsupported, file-scoped surfaces"),
    (
        68,
        "",
        "SyncDepthExceeded",
        "cudaDeviceSynchronize failed because caller's grid depth exceeds cudaLimitDevRuntimeSyncDepth",
    ),
    (
        69,
        "",
        "LaunchPendingCountExceeded",
        "launch failed because launch would exceed cudaLimitDevRuntimePendingLaunchCount",
    ),
    (98, "", "InvalidDeviceFunction", "invalid device function"),
    (100, "NO_DEVICE", "NoDevice", "no CUDA-capable device is detected"),
    (101, "INVALID_DEVICE", "InvalidDevice", "invalid device ordinal"),
    (102, "DEVICE_NOT_LICENSED", "DeviceNotLicensed", "device doesn't have valid Grid license"),
    (103, "", "SoftwareValidityNotEstablished", "integrity checks failed"),
    (127, "", "StartupFailure", "startup failure in cuda runtime"),
    (200, "INVALID_IMAGE", "InvalidKernelImage", "device kernel image is invalid"),
    (201, "INVALID_CONTEXT", "DeviceUninitialized", "invalid device context"),
    (205, "MAP_FAILED", "MapBufferObjectFailed", "mapping of buffer object failed"),
    (206, "UNMAP_FAILED", "UnmapBufferObjectFailed", "unmapping of buffer object failed"),
    (207, "ARRAY_IS_MAPPED", "ArrayIsMapped", "array is mapped"),
    (208, "ALREADY_MAPPED", "AlreadyMapped", "resource already mapped"),
    (209, "NO_BINARY_FOR_GPU", "NoKernelImageForDevice", "no kernel image is available for execution on the device"),
    (210, "ALREADY_ACQUIRED", "AlreadyAcquired", "resource already acquired"),
    (211, "NOT_MAPPED", "NotMapped", "resource not mapped"),
    (212, "NOT_MAPPED_AS_ARRAY", "NotMappedAsArray", "resource not mapped as array"),
    (213, "NOT_MAPPED_AS_POINTER", "NotMappedAsPointer", "resource not mapped as pointer"),
    (214, "ECC_UNCORRECTABLE", "ECCUncorrectable", "uncorrectable ECC error encountered"),
    (215, "UNSUPPORTED_LIMIT", "UnsupportedLimit", "limit is not supported on this architecture"),
    (
        216,
        "CONTEXT_ALREADY_IN_USE",
        "DeviceAlreadyInUse",
        "exclusive-thread device already in use by a different thread",
    ),
    (217, "PEER_ACCESS_UNSUPPORTED", "PeerAccessUnsupported", "peer access is not supported between these two devices"),
    (218, "INVALID_PTX", "InvalidPtx", "a PTX JIT compilation failed"),
    (219, "INVALID_GRAPHICS_CONTEXT", "InvalidGraphicsContext", "invalid OpenGL or DirectX context"),
    (220, "NVLINK_UNCORRECTABLE", "NvlinkUncorrectable", "uncorrectable NVLink error detected during the execution"),
    (221, "JIT_COMPILER_NOT_FOUND", "JitCompilerNotFound", "PTX JIT compiler library not found"),
    (
        222,
        "UNSUPPORTED_PTX_VERSION",
        "UnsupportedPtxVersion",
        "the provided PTX was compiled with an unsupported toolchain",
    ),
    (223, "JIT_COMPILATION_DISABLED", "JitCompilationDisabled", "PTX JIT compilation was disabled"),
    (224, "UNSUPPORTED_EXEC_AFFINITY", "UnsupportedExecAffinity", "the provided execution affinity is not supported"),
    (
        225,
        "UNSUPPORTED_DEVSIDE_SYNC",
        "UnsupportedDevSideSync",
        "the provided PTX contains unsupported call to cudaDeviceSynchronize",
    ),
    (226, "CONTAINED", "Contained", "invalidates context due to a contained error"),
    (300, "INVALID_SOURCE", "InvalidSource", "device kernel image is invalid"),
    (301, "FILE_NOT_FOUND", "FileNotFound", "file not found"),
    (302, "SHARED_OBJECT_SYMBOL_NOT_FOUND", "SharedObjectSymbolNotFound", "shared object symbol not found"),
    (303, "SHARED_OBJECT_INIT_FAILED", "SharedObjectInitFailed", "shared object initialization failed"),
    (304, "OPERATING_SYSTEM", "OperatingSystem", "OS call failed or operation not supported on this OS"),
    (400, "INVALID_HANDLE", "InvalidResourceHandle", "invalid resource handle"),
    (401, "ILLEGAL_STATE", "IllegalState", "the operation cannot be performed in the present state"),
    (402, "LOSSY_QUERY", "LossyQuery", "attempted introspection would be semantically lossy"),
    (500, "NOT_FOUND", "SymbolNotFound", "named symbol not found"),
    (600, "NOT_READY", "NotReady", "device not ready"),
    (700, "ILLEGAL_ADDRESS", "IllegalAddress", "an illegal memory access was encountered"),
    (701, "LAUNCH_OUT_OF_RESOURCES", "LaunchOutOfResources", "too many resources requested for launch"),
    (702, "LAUNCH_TIMEOUT", "LaunchTimeout", "the launch timed out and was terminated"),
    (703, "LAUNCH_INCOMPATIBLE_TEXTURING", "LaunchIncompatibleTexturing", "launch uses incompatible texturing mode"),
    (704, "PEER_ACCESS_ALREADY_ENABLED", "PeerAccessAlreadyEnabled", "peer access is already enabled"),
    (705, "PEER_ACCESS_NOT_ENABLED", "PeerAccessNotEnabled", "peer access has not been enabled"),
    (708, "PRIMARY_CONTEXT_ACTIVE", "SetOnActiveProcess", "cannot set while device is active in this process"),
    (709, "CONTEXT_IS_DESTROYED", "ContextIsDestroyed", "context is destroyed"),
    (710, "ASSERT", "Assert", "device-side assert triggered"),
    (711, "TOO_MANY_PEERS", "TooManyPeers", "peer mapping resources exhausted"),
    (
        712,
        "HOST_MEMORY_ALREADY_REGISTERED",
        "HostMemoryAlreadyRegistered",
        "part or all of the requested memory range is already mapped",
    ),
    (
        713,
        "HOST_MEMORY_NOT_REGISTERED",
        "HostMemoryNotRegistered",
        "pointer does not correspond to a registered memory region",
    ),
    (714, "HARDWARE_STACK_ERROR", "HardwareStackError", "hardware stack error"),
    (715, "ILLEGAL_INSTRUCTION", "IllegalInstruction", "an illegal instruction was encountered"),
    (716, "MISALIGNED_ADDRESS", "MisalignedAddress", "misaligned address"),
    (717, "INVALID_ADDRESS_SPACE", "InvalidAddressSpace", "operation not supported on global/shared address space"),
    (718, "INVALID_PC", "InvalidPc", "invalid program counter"),
    (719, "LAUNCH_FAILED", "LaunchFailure", "unspecified launch failure"),
    (720, "COOPERATIVE_LAUNCH_TOO_LARGE", "CooperativeLaunchTooLarge", "too many blocks in cooperative launch"),
    (721, "TENSOR_MEMORY_LEAK", "TensorMemoryLeak", "tensor memory not completely freed"),
    (800, "NOT_PERMITTED", "NotPermitted", "operation not permitted"),
    (801, "NOT_SUPPORTED", "NotSupported", "operation not supported"),
    (802, "SYSTEM_NOT_READY", "SystemNotReady", "system not yet initialized"),
    (
        803,
        "SYSTEM_DRIVER_MISMATCH",
        "SystemDriverMismatch",
        "system has unsupported display driver / cuda driver combination",
    ),
    (
        804,
        "COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "CompatNotSupportedOnDevice",
        "forward compatibility was attempted on non supported HW",
    ),
    (
        805,
        "MPS_CONNECTION_FAILED",
        "MpsConnectionFailed",
        "MPS client failed to connect to the MPS control daemon or the MPS server",
    ),
    (
        806,
        "MPS_RPC_FAILURE",
        "MpsRpcFailure",
        "the remote procedural call between the MPS server and the MPS client failed",
    ),
    (807, "MPS_SERVER_NOT_READY", "MpsServerNotReady", "MPS server is not ready to accept new MPS client requests"),
    (
        808,
        "MPS_MAX_CLIENTS_REACHED",
        "MpsMaxClientsReached",
        "the hardware resources required to create MPS client have been exhausted",
    ),
    (
        809,
        "MPS_MAX_CONNECTIONS_REACHED",
        "MpsMaxConnectionsReached",
        "the hardware resources required to support device connections have been exhausted",
    ),
    (810, "MPS_CLIENT_TERMINATED", "MpsClientTerminated", "the MPS client has been terminated by the server"),
    (
        811,
        "CDP_NOT_SUPPORTED",
        "CdpNotSupported",
        "is using CUDA Dynamic Parallelism, but the current configuration, like MPS, does not support it",
    ),
    (
        812,
        "CDP_VERSION_MISMATCH",
        "CdpVersionMismatch",
        "unsupported interaction between different versions of CUDA Dynamic Parallelism",
    ),
    (900, "STREAM_CAPTURE_UNSUPPORTED", "StreamCaptureUnsupported", "operation not permitted when stream is capturing"),
    (
        901,
        "STREAM_CAPTURE_INVALIDATED",
        "StreamCaptureInvalidated",
        "operation failed due to a previous error during capture",
    ),
    (
        902,
        "STREAM_CAPTURE_MERGE",
        "StreamCaptureMerge",
        "operation would result in a merge of separate capture sequences",
    ),
    (903, "STREAM_CAPTURE_UNMATCHED", "StreamCaptureUnmatched", "capture was not ended in the same stream as it began"),
    (904, "STREAM_CAPTURE_UNJOINED", "StreamCaptureUnjoined", "capturing stream has unjoined work"),
    (
        905,
        "STREAM_CAPTURE_ISOLATION",
        "StreamCaptureIsolation",
        "dependency created on uncaptured work in another stream",
    ),
    (
        906,
        "STREAM_CAPTURE_IMPLICIT",
        "StreamCaptureImplicit",
        "operation would make the legacy stream depend on a capturing blocking stream",
    ),
    (907, "CAPTURED_EVENT", "CapturedEvent", "operation not permitted on an event last recorded in a capturing stream"),
    (
        908,
        "STREAM_CAPTURE_WRONG_THREAD",
        "StreamCaptureWrongThread",
        "attempt to terminate a thread-local capture sequence from another thread",
    ),
    (909, "TIMEOUT", "Timeout", "wait operation timed out"),
    (
        910,
        "GRAPH_EXEC_UPDATE_FAILURE",
        "GraphExecUpdateFailure",
        "the graph update was not performed because it included changes which violated constraints",
    ),
    (911, "EXTERNAL_DEVICE", "ExternalDevice", "an async error has occurred in external entity outside of CUDA"),
    (
        912,
        "INVALID_CLUSTER_SIZE",
        "InvalidClusterSize",
        "a kernel launch error has occurred due to cluster misconfiguration",
    ),
    (913, "FUNCTION_NOT_LOADED", "FunctionNotLoaded", "the function handle is not loaded"),
    (914, "INVALID_RESOURCE_TYPE", "InvalidResourceType", "the resource type is not supported for this operation"),
    (915, "INVALID_RESOURCE_CONFIGURATION", "InvalidResourceConfiguration", "the resource configuration is invalid"),
    (999, "UNKNOWN", "Unknown", "unknown error"),
)
"""Code, name in the driver API (CUDA_ERROR_...) and in the runtime API (cudaError...), words."""

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
    for code, driver, runtime, words in _CODES:
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
