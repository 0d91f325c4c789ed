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
    """Return a pattern for words of any case."""
    return re.compile(text, re.IGNORECASE)


OUT_OF_MEMORY = words(
    r"CUDA out of memory|torch[\w.]{0,40}OutOfMemoryError|out of memory error on GPU|OOM when allocating tensor"
    r"|RESOURCE[_ ]EXHAUSTED: (?:out of memory|failed to allocate request)|"
    r"CU(?:BLAS|DNN)_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)"
    r"|failed to allocate .{1,60} from device|ran out of memory trying to allocate"
    r"|ggml_(?:backend_)?cuda.{0,120}out of memory|(?:unable|failed) to allocate CUDA\d{0,3}(?:_Host)? buffer"
    r"|failed to allocate compute (?:\w{1,8} )?buffers|Error Code \d{1,3}: OutOfMemory|Dst tensor is not initialized"
    r"|Error Code \d{1,3}: Cuda Runtime \(out of memory"
    r"|failed to allocate memory for requested buffer of size|OutOfMemoryError: out of memory allocating"
    r"|GPU memory \(\d{1,20} bytes\) could not be allocated|std::bad_alloc: .{0,40}CUDA"
    r"|NVML_SUCCESS == r INTERNAL ASSERT FAILED.{0,80}CUDACachingAllocator"
    r"|no available memory for the cache blocks|KV cache.{0,160}available KV cache memory"
    r"|tokens that can be stored in (?:the )?KV cache|not enough memory.{0,20} try to increase --mem-fraction-static"
    r"|HAMI-core ERROR.{0,120}: Device \d{1,3} OOM"
    r"|(?:insufficient|not enough) (?:free )?(?:GPU|CUDA|device|video) memory"
)
"""How programs say that the GPU's memory did not suffice, beside CUDA's own error."""

HOST_MEMORY = words(r"on host: CUDA_ERROR|cudaMallocHost|cudaHostAlloc|pinned host memory|CUDA_Host buffer")
"""Words by which it was the machine's memory, pinned for the GPU."""

ALLOCATORS: Sequence[Allocator] = (
    Allocator(
        "PaddlePaddle",
        words(r"paddle|FLAGS_allocator_strategy"),
        "FLAGS_allocator_strategy",
        ("naive_best_fit",),
        "Set FLAGS_allocator_strategy=naive_best_fit in the pod. Its auto-growth allocator does not fit a share.",
    ),
    Allocator(
        "TensorFlow",
        words(r"tensorflow|TF_FORCE_GPU_ALLOW_GROWTH"),
        "TF_FORCE_GPU_ALLOW_GROWTH",
        ("true", "1"),
        "Set TF_FORCE_GPU_ALLOW_GROWTH=true in the pod. Otherwise it takes nearly all memory that it sees.",
    ),
    Allocator(
        "JAX",
        words(r"\bjax|XLA_PYTHON_CLIENT"),
        "XLA_PYTHON_CLIENT_PREALLOCATE",
        ("false", "0"),
        "Set XLA_PYTHON_CLIENT_PREALLOCATE=false in the pod. Otherwise it takes 75 % of the memory that it sees.",
    ),
)
"""Defaults of the frameworks by their own documentation."""

IN_LOGS: Sequence[Symptom] = (
    Symptom(
        "bfloat16",
        words(
            r"bfloat16 is only supported|(?:bf16|bfloat16).{0,120}(?:compute capability|ampere|sm_80|doesn't support)"
            r"|doesn't support bf16|does not support bf(?:loat)?16"
        ),
        "the program computes in bfloat16, which needs compute capability 8.0",
        "Run it in float16 (vLLM: --dtype=half), or select nodes by the label nvidia.com/gpu.compute.major.",
        CERTAIN,
    ),
    Symptom(
        "float16",
        words(
            r"(?<![a-z])float16 (?:is|are) only supported|do(?:es)?(?: not|n't) support efficient float16 computation"
            r"|(?<![a-z])(?:float16|fp16|half precision) (?:is not|isn't) supported on (?:this|the) (?:gpu|device)"
        ),
        "the program computes in float16, and the GPU is too old for it or slow in it",
        "Run it in float32 (vLLM: --dtype=float32), or select nodes by the label nvidia.com/gpu.compute.major.",
        CERTAIN,
    ),
    Symptom(
        "fp8",
        words(
            r"type fp8\w{1,12} not supported in this architecture"
            r"|quantization method \w{0,24}fp8\w{0,24} is not supported"
            r"|\b(?:fp8|float8)\b.{0,80}(?:only supported|requires?|not supported|needs?).{0,80}"
            r"(?:compute capability|capability [>\d]|hopper|ada\b|sm_?(?:89|90)|this gpu)"
            r"|capability .{0,40}(?:required|needed) for (?:fp8|float8)"
            r"|_scaled_mm.{0,40}only supported.{0,40}compute capability"
            r"|(?:fp8|float8)\S{0,16} kv.?cache.{0,20} not supported"
        ),
        "the program or its model uses fp8, which needs compute capability 8.9",
        "Use the model in 16 bits (before 8.0, vLLM: --dtype=half), AWQ, or GPTQ, remove --kv-cache-dtype=fp8, or"
        " select nodes by the label nvidia.com/gpu.compute.major.",
        CERTAIN,
    ),
    Symptom(
        "allocator_conflict",
        words(
            r"free memory on device .{0,120}less than desired GPU memory utilization"
            r"|Error in memory profiling.{0,160}free memory"
        ),
        "the server reserves a fixed part of the GPU's memory at its start, and other programs use some of it",
        "Lower this part (vLLM: --gpu-memory-utilization), or give the server its own GPU or share.",
        CERTAIN,
    ),
    Symptom(
        "host_oom",
        words(
            r"model requires? more system memory|model request too large for system"
            r"|cannot allocate memory.{0,40}(?:pinned|host)|DefaultCPUAllocator"
        ),
        "host memory, or the container's limit of it, was too small; GPU memory was not the cause",
        "Raise resources.limits.memory of the container, or load less at a time.",
    ),
    Symptom(
        "shm",
        words(
            r"insufficient shared memory \(shm\)|worker .{0,40}killed by signal: Bus error"
            r"|creating shared memory segment|failed to extend /dev/shm|shared memory pool.{0,400}no space left"
            r"|unable to open shared memory object (?!.{0,120}too many open files)"
            r"|/dev/shm.{0,120}(?:no space left|too small|bus error)"
            r"|no space left on device.{0,80}/dev/shm|unable to (?:allocate|create|write).{0,60}shared memory"
            r"|unable to (?:mmap|write to file) .{0,80}torch_"
            r"|process was signaled to shutdown with signal 7\b"
        ),
        "the container's /dev/shm is full: its default size is 64 MiB",
        "Mount an emptyDir with medium: Memory at /dev/shm, or use fewer workers.",
    ),
    Symptom(
        "driver_missing",
        words(
            r"(?:libcuda|libnvidia-ml)\.so(?:\.1)?: cannot open shared object|nvidia-smi: (?:command )?not found"
            r"|found no NVIDIA driver|NVML shared library not found"
            r"|NVML_ERROR_LIBRARY_NOT_FOUND|NVMLError_LibraryNotFound"
            r"|could not find cuda drivers|NVIDIA driver was not detected|failed to infer device type"
            r"|couldn't communicate with the NVIDIA driver|failed to find CUDA library|driver not loaded"
            r"|kernel driver does not appear to be running|couldn't find libnvidia-ml|NVMLError_DriverNotLoaded"
            r"|unable to load (?:cuda driver library|nvcuda|libcuda)|CUDA driver library cannot be found"
            r"|libcuda\.so cannot (?:be )?found|could not load NVML library|Module nvidia not found"
            r"|NVIDIA probe routine (?:failed|was not called)|no NVIDIA graphics adapter probed"
            r"|nvidia-smi\S{0,3}: executable file not found"
        ),
        "the container has no driver: the container runtime did not mount it, or the node's driver does not answer",
        "Set runtimeClassName: nvidia in the pod, and ask for a GPU in its limits. Run nvidia-smi on the node.",
    ),
    Symptom(
        "host_oom",
        words(
            r"signaled to shutdown with signal 9\b|exitcode ?: ?-9\b|Signal 9 \(SIGKILL\) received by PID"
            r"|exited? (?:with|code|due to) signal (?:9\b|SIGKILL)|killed by signal: Killed"
        ),
        "a worker process of the program was killed, usually because of the container's host memory, not GPU memory",
        "See dmesg on the node for oom-kill. Raise resources.limits.memory, or load less at a time.",
        POSSIBLE,
    ),
    Symptom(
        "runtime_missing",
        words(
            r"Incompatible (?:platform|strategy) detected|did you configure the NVIDIA Container Toolkit"
            r"|waiting for nvidia container stack to be setup"
        ),
        "NVIDIA's plugin or operator finds no driver in its container, where NVIDIA's container toolkit mounts it",
        "Use the nvidia runtime in the pod (runtimeClassName: nvidia), and run site.yml --tags container_runtime.",
    ),
    Symptom(
        "driver_silent",
        words(r"failed to finish discovery before timeout|GPU discovery timed out"),
        "the driver took longer to answer than the program waits",
        "On the node, check dmesg and how long nvidia-smi takes. Persistence mode keeps the driver initialized.",
    ),
    Symptom(
        "driver_missing",
        words(
            r"no CUDA GPUs are available|no compatible GPUs were discovered|no devices were found"
            r"|no GPU/TPU found"
            r"|torch\.cuda\.is_available\(\) is False|unable to initialize backend 'cuda'|no GPUs are available"
            r"|no (?:supported )?(?:NVIDIA )?GPUs? (?:was |were )?(?:detected|found)"
            r"|no usable GPU found|usable CUDA device"
            r"|CUDA is not available|no CUDA runtime is found|cannot find (?:any )?GPU"
            r"|CUDA backend failed to initialize|CUDA driver initialization failed, you might not have"
            r"|device < num_gpus INTERNAL ASSERT(?!.{0,200}num_gpus=[1-9])|\b0 active drivers"
        ),
        "the program found no usable GPU",
        "Ask for one in the container's limits. Set runtimeClassName: nvidia. Do not hide it by CUDA_VISIBLE_DEVICES.",
    ),
    Symptom(
        "image",
        words(
            r"torch not compiled with CUDA enabled|is not in available provider names|cannot dlopen some GPU libraries"
            r"|lib(?:cudart|cublas\w{0,3}|cudnn\w{0,24}|cufft|curand|cusolver|cusparse|nccl|nvrtc|nvinfer\w{0,12}|cupti"
            ")"
            r"\.so[\w.]{0,12}'?(?:; dlerror)?: cannot open shared|could not load dynamic library"
            r"|failed to load library libonnxruntime_providers_cuda|unable to load cuDNN|could not load library libcu"
            r"|compiled without (?:GPU|CUDA) support|not compiled with GPU offload|libNVVM cannot be found"
            r"|failed to create (?:CUDA|Tensorrt)ExecutionProvider|CUDA-enabled jaxlib is not installed"
            r"|CUDA_PATH is set but CUDA was ?n.?t able to be loaded"
            r"|CUDA_HOME environment variable is not set|failed to find C compiler"
        ),
        "the image's program was built without CUDA, or lacks a CUDA library or tool",
        "Use an image with the program's CUDA build, and with the library in that version.",
    ),
    Symptom(
        "image",
        words(
            r"undefined symbol: (?:_ZNK?\d{0,3}(?:S\w_)?\d{0,2}(?:c10|at|torch)|_ZNK?\d{1,3}\w{0,3}(?:torch|caffe2)"
            r"|__nvJitLink|nccl|cudnn|cublas|cusparse)|operator torchvision::nms does not exist"
        ),
        "an extension or library of the image was built for another version of PyTorch or CUDA than the installed one",
        "Install the build for that version, or build it again. Remove other copies from LD_LIBRARY_PATH.",
    ),
    Symptom(
        "request",
        words(
            r"(?:world size|tensor.parallel.size|number of (?:required )?GPUs|nproc.per.node)\b.{0,80}"
            r"(?:larger|greater|more) than .{0,40}(?:available|visible) GPUs"
            r"|world_size \(\d{1,5}\) .{0,40}less than .{0,40}(?:gpu count|visible devices)"
            r"|number of required GPUs exceeds|requested .{0,20}GPUs?,? but only \d{1,3} (?:are|is) available"
            r"|tensor.parallel.size \(\d{1,5}\) .{0,40}less than .{0,40}gpu count|device=\d{1,3}, num_gpus=[1-9]"
        ),
        "the program is configured for more GPUs than its container has",
        "Request that many in the container's limits, or lower the number (--tensor-parallel-size, --nproc-per-node).",
    ),
    Symptom(
        "device_files_lost",
        words(r"Failed to initialize NVML: (?:Unknown|Insufficient|GPU access|N/A)|NVMLError_(?:Unknown|NoPermission)"),
        "the container lost access to its device files, for example after systemctl daemon-reload on the node",
        "Start the pod again. To prevent it, give containers their GPUs by CDI (gpu_plugins_device_list_strategy).",
    ),
    Symptom(
        "cuda_mismatch",
        words(
            r"Driver/library version mismatch|NVML_ERROR_LIB_RM_VERSION_MISMATCH|NVMLError_LibRmVersionMismatch"
            r"|API mismatch: the client has the version|kernel version .{1,40} does not match DSO version"
        ),
        "the driver was upgraded under a running pod, or only partly",
        "Reload the modules or reboot the node, and restart the pod.",
        CERTAIN,
    ),
    Symptom(
        "cuda_mismatch",
        words(
            r"NVIDIA driver on your system is too old|insufficient driver version|symbol lookup for cu\w{1,60} failed"
            r"|undefined symbol: cu[A-Z]\w{1,60}|requires (?:NVIDIA )?driver (?:release|version|>=)"
            r"|container was built for NVIDIA driver|CUDA version is .{1,20}older than the ptxas CUDA version"
        ),
        "the node's driver is older than the program's CUDA",
        "Upgrade the node's driver, or use an image with an older CUDA.",
    ),
    Symptom(
        "cuda_mismatch",
        words(
            r"is not compatible with the current PyTorch installation|PyTorch no longer supports this GPU"
            r"|min(?:imum)?\.? capability: \d{1,4}\b|capability below \d.{0,20}not supported"
            r"|requires? (?:an )?(?:ampere|hopper|turing|volta|blackwell)\b"
            r"|only supports? .{0,80}(?:ampere|hopper|capability|sm_?\d)"
            r"|requires? .{0,40}(?:compute|cuda) capability|ignoring visible gpu device"
            r"|minimum (?:supported|required) cuda"
            r"|compute capability of at least"
            r"|compute capability .{0,60}(?:lesser|lower|less) than|requires \.target sm_"
            r"|'sm_\w{2,5}' is not defined|unsupported gpu architecture"
            r"|invalid value for --gpu-architecture"
            r"|compute capability \d.{0,40}not supported|out of resource: shared memory"
            r"|not supported (?:on|for) (?:the current|this) GPU|unsupported SM version|requires sm_?\d{2}"
        ),
        "the program, or one of its kernels, was not built for a GPU with this compute capability",
        "Use a build for this GPU, another kernel or quantization, or select nodes by nvidia.com/gpu.compute.major.",
    ),
    Symptom(
        "cuda_mismatch",
        words(
            r"engine plan file is (?:not compatible|generated on an incompatible)|engine deserialization failed"
            r"|serialization (?:error in verifyHeader|assertion)|deserialize the cuda engine failed"
        ),
        "a TensorRT engine was built with another version of TensorRT, or for another GPU",
        "Build the engine again with this image, on a GPU of this kind.",
    ),
    Symptom(
        "cuda_mismatch",
        words(
            r"found cuDNN version|outdated (?:cuDNN|cuBLAS|CUDA|cuSPARSE|cuFFT|CUPTI) |Loaded runtime CuDNN library"
            r"|cuDNN version incompatib|detected CUDA version .{0,60}mismatches|DNN library initialization failed"
            r"|Could not create cudnn handle|CUDNN_STATUS_\w{0,16}(?:VERSION|ARCH)_MISMATCH"
            r"|Mismatched NCCL version|Unsupported \.version \d|NCCL library is (?:too old|not backwards)"
        ),
        "a CUDA library in the image, such as cuDNN, has another version than the program was built with",
        "Install the library version that the message names. Remove other copies from LD_LIBRARY_PATH.",
    ),
    Symptom(
        "cuda_error",
        words(
            r"CU(?:BLAS|DNN|SOLVER|SPARSE)_STATUS_(?!SUCCESS|ALLOC_FAILED|NOT_INITIALIZED)[A-Z_]{3,40}"
            r"|failed to (?:get|determine best cudnn) convolution algorithm|unable to find an engine to execute"
            r"|blas x?\w{4,5} launch failed|cuDNN failed to initialize"
        ),
        "a CUDA library failed, usually for lack of memory, after an earlier error, or because its version does not"
        " fit",
        "Look at the first error of the log and at the GPU's memory. Compare versions. Set CUDA_LAUNCH_BLOCKING=1.",
        POSSIBLE,
    ),
    Symptom(
        "limits_unreadable",
        words(r"^kube-accel: GPU memory is refused: "),
        "the interposer cannot read the container's limits, and refuses all memory",
        "Start the pod again. If the error returns, look at the log of the node's plugin.",
        CERTAIN,
    ),
    Symptom(
        "gpu_lost",
        words(r"GPU is lost|fallen off the bus|Unable to determine the device handle for GPU|NVMLError_GpuIsLost"),
        "the program lost its GPU",
        "Look at the node's GPUs below. Start the pod again elsewhere.",
    ),
    Symptom(
        "gpu_lost",
        words(r"RmInitAdapter failed|rm_init_adapter failed"),
        "the driver could not start a GPU",
        "See dmesg on the node for what NVRM says. Reset the GPU, power-cycle the node, or reinstall the driver.",
    ),
    Symptom(
        "xid",
        words(r"\bSXid \([^()]{1,40}\): \d{1,5}"),
        "the driver reported an error of NVSwitch (SXid)",
        "Check whether it is fatal. Read the fabric manager's log and XIDs of the link's GPUs. Reset these GPUs.",
    ),
    Symptom(
        "mps",
        words(
            r"failed to send command to MPS|nvidia-cuda-mps-\w{1,8}.{0,60}(?:exited|fail)"
            r"|Legacy Server .{0,20}Failed to start|Server \d{1,8} exited with status [1-9]"
        ),
        "the GPU's MPS daemon or server failed",
        "Look at its log on the node. Check that its version is the driver's. Start the pod again.",
    ),
    Symptom(
        "nccl",
        words(r"duplicate GPU detected|multiple ranks? .{0,40}same (?:GPU|CUDA device)"),
        "two NCCL ranks have the same GPU, for example in two pods with shares of one GPU",
        "Give each rank a GPU of its own. NCCL does not work between shares of one GPU.",
    ),
    Symptom(
        "nccl",
        words(
            r"NCCL WARN .{0,160}(?:connect|socket|bootstrap|timed? ?out|ibv_|NET[/ ]|remote process|peer access|p2p)"
            r"|watchdog caught collective operation timeout|nccl(?:System|Remote|Internal)Error|ncclInvalidUsage"
            r"|client socket has (?:timed out|failed to connect)|server socket has failed to listen|C10d store"
            r"|Rendezvous(?:Connection|Timeout|Closed)?Error|store->get\(|process group in store based barrier"
            r"|NCCL operations have failed or timed out|taking the entire process down"
            r"|no socket interface found|NCCL communicator was aborted|unhandled (?:system|cuda) error"
            r"|NCCL error|ncclUnhandledCudaError|TCPStore|connection closed by (?:remote )?peer|Gloo connect"
        ),
        "NCCL, or the program that joins the ranks, failed between GPUs or nodes, usually because another rank"
        " ended, or because of the network",
        "Look at the first rank that failed. Set NCCL_DEBUG=INFO and NCCL_SOCKET_IFNAME, and see NetworkPolicies.",
        POSSIBLE,
    ),
)

MISMATCHES = (35, 36, 98, 200, 209, 218, 222, 223, 300, 302, 500, 803, 804, 999)
"""CUDA's codes for a driver and a program that are not for each other."""
OF_MPS = tuple(range(805, 813))
WITHOUT_DRIVER = (34, 303)


def rule_of(code: int) -> str:
    """Return what kind of failure one of CUDA's codes is."""
    for rule, codes in (("cuda_mismatch", MISMATCHES), ("mps", OF_MPS), ("driver_missing", WITHOUT_DRIVER)):
        if code in codes:
            return rule
    return "cuda_error"
