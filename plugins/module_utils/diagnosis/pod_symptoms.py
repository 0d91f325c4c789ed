# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Words by which kubelet, container runtimes and device plugins say why a pod on its node does not run.

Every pattern is looked for in one text of bounded length, and looks at each character a bounded number of times.
"""

from __future__ import annotations

from typing import Dict, Sequence, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.symptoms import (
    CERTAIN,
    Symptom,
    words,
)

_RUNTIME_REMEDY = "Run site.yml --tags container_runtime for the node."
_DRIVER_REMEDY = "Run nvidia-smi on the node. If it fails, run the role driver."

AT_START: Sequence[Symptom] = (
    Symptom(
        "cuda_mismatch",
        words(r"unsatisfied condition: .{0,80}(?:cuda|driver|brand)"),
        "the container does not start, because the image requires a different driver or GPU than the node's",
        "Upgrade the node's driver, or use an image with an older CUDA.",
        CERTAIN,
    ),
    Symptom(
        "cuda_mismatch",
        words(r"requirement error: invalid expression"),
        "the container does not start, because the image's driver requirement (NVIDIA_REQUIRE_CUDA) is unreadable",
        "Correct NVIDIA_REQUIRE_* of the image or pod, or set NVIDIA_DISABLE_REQUIRE=true.",
        CERTAIN,
    ),
    Symptom(
        "no_room",
        words(r"no-gpu-has-\w{1,40}-to-run"),
        "the device plugin (gpushare, HAMi) found no GPU with enough memory left",
        "Look at what its scheduler extender assigned, and at what else runs on the node. Delete the pod.",
        CERTAIN,
    ),
    Symptom(
        "device_missing",
        words(r"device error: \S{0,10}/var/run/nvidia-container-devices"),
        "GPUs are passed as volume mounts, which the node's toolkit is not configured to accept",
        "Set accept-nvidia-visible-devices-as-volume-mounts in the toolkit's config.toml, or pass GPUs by variable.",
        CERTAIN,
    ),
    Symptom(
        "device_missing",
        words(r"device error: .{0,200}unknown device"),
        "the container should get a GPU that the node's driver does not list: it is gone, or has a new name",
        "Run nvidia-smi -L on the node and compare. Delete the pod so that it gets a GPU again.",
        CERTAIN,
    ),
    Symptom(
        "runtime_missing",
        words(r"cgroup subsystem devices not found|failed to add device rules"),
        "libnvidia-container cannot give the container its devices: it is too old for cgroup v2, or lacks permission",
        "Upgrade nvidia-container-toolkit to 1.8 or newer. Without root, set no-cgroups in its config.toml.",
        CERTAIN,
    ),
    Symptom(
        "runtime_missing",
        words(r"/sys/fs/cgroup/devices/.{1,400}devices\.allow: no such file"),
        "the toolkit looks for the container's device cgroup where the container runtime created none",
        "Give the nvidia runtime the cgroup driver of kubelet (SystemdCgroup), or upgrade the toolkit: "
        + _RUNTIME_REMEDY,
    ),
    Symptom(
        "runtime_missing",
        words(r"ldcache error: "),
        "the toolkit cannot run ldconfig, so programs would not find the driver's libraries",
        "Set ldconfig in /etc/nvidia-container-runtime/config.toml to the node's (@/sbin/ldconfig, Ubuntu: .real).",
        CERTAIN,
    ),
    Symptom(
        "gpu_lost",
        words(r"nvml error: gpu is lost|GPU is lost|fallen off the bus"),
        "a GPU of the node is lost",
        "Drain the node, and read the XID in dmesg. Reset the GPU, or power-cycle the node.",
        CERTAIN,
    ),
    Symptom(
        "device_missing",
        words(r"nvml error: insufficient permissions"),
        "the container runtime's toolkit lacks permission for the node's device files",
        "Check denials by SELinux or AppArmor, ls -l /dev/nvidia* on the node, and the toolkit's user.",
    ),
    Symptom(
        "driver_missing",
        words(
            r"nvml error: |failed to locate libcuda|libcuda\.so\S{0,20} not found"
            r"|nvidia-container-cli[\w.]{0,8}: (?:initialization|detection) error|driver rpc error"
            r"|failed to (?:initialize|init) NVML|could not load NVML library|ERROR_LIBRARY_NOT_FOUND"
            r"|libnvidia-ml\.so\.1: cannot open shared object"
        ),
        "the node's driver does not answer the container runtime",
        _DRIVER_REMEDY,
        CERTAIN,
    ),
    Symptom(
        "image",
        words(r"mount error: file creation failed: .{0,300}(?:nvidia|cuda).{0,80}file exists"),
        "the image contains driver files in the place where the toolkit mounts the node's driver",
        "Build the image without libcuda, libnvidia-* and nvidia-smi. A commit of a container leaves such files.",
    ),
    Symptom(
        "device_missing",
        words(
            r"mount error: |unresolvable CDI devices|CDI device injection failed|failed to inject CDI devices"
            r"|adding custom device \S{0,4}/dev/nvidia"
            r"|/dev/nvidia[\w-]{1,30}.{0,40}no such file|no such file.{0,40}/dev/nvidia"
        ),
        "the container runtime does not find the container's GPU, or a driver file for it",
        "Delete the pod so that it gets a GPU again. If it fails again, look at nvidia-smi and the plugin there.",
    ),
    Symptom(
        "runtime_missing",
        words(
            r"no runtime for .{1,40} is configured|RuntimeHandler .{1,40} not supported"
            r"|failed to find runtime handler|unknown or invalid runtime name|RuntimeClass .{1,80} not found"
            r"|could not select device driver|nvidia-container-runtime[\w-]{0,10}\S{0,4}: .{0,60}not found"
            r"|nvidia-container-runtime[\w-]{0,10}\S{0,4}: no such file|runc[\w.-]{0,20}nvidia.{0,40}no such file"
        ),
        "the node's container runtime does not know, or does not find, the handler of the pod's runtime class",
        _RUNTIME_REMEDY,
        CERTAIN,
    ),
    Symptom(
        "runtime_missing",
        words(r"invoking the NVIDIA Container Runtime Hook directly"),
        "the toolkit's hook was called on a node where the toolkit expects pods to use its runtime",
        "Set runtimeClassName: nvidia in the pod, or make nvidia the default runtime of the node.",
        CERTAIN,
    ),
    Symptom(
        "runtime_missing",
        words(r"nvidia-container-(?:cli|runtime)|nvidia-ctk|NVIDIA Container Runtime"),
        "NVIDIA's container toolkit refused to prepare the container",
        "Read its message. On the node, run nvidia-container-cli -k -d /dev/tty info, and " + _RUNTIME_REMEDY,
    ),
    Symptom(
        "driver_missing",
        words(r"exec: \S{0,4}nvidia-smi\S{0,4}: executable file not found"),
        "the container has no nvidia-smi: the container runtime did not mount the driver",
        "Set runtimeClassName: nvidia in the pod, and request a GPU in its limits.",
    ),
    Symptom(
        "host_oom",
        words(r"container init was OOM-killed|memory limit too low"),
        "the container's limit of host memory is too low for it to start",
        "Raise resources.limits.memory of the container.",
        CERTAIN,
    ),
    Symptom(
        "image",
        words(r"exec format error"),
        "the image's program is for another architecture than the node's, or a script without an interpreter line",
        "Use an image for the node's architecture, or select nodes by the label kubernetes.io/arch.",
    ),
    Symptom(
        "image",
        words(
            r"executable file not found in \$PATH|\bstat (?!/proc/)\S{1,200}: no such file or directory"
            r"|exec:? \S{0,200}: permission denied"
        ),
        "the image lacks the program that the pod names, or the program is not executable",
        "Correct command and args of the container, or the image.",
    ),
    Symptom(
        "runtime_missing",
        words(
            r"error mounting \S{0,4}/(?!var/lib/kubelet)\S{0,300}(?:/libnvidia|/libcuda|/nvidia-|nvidia/driver/)"
            r"\S{0,200} to rootfs.{1,400}(?:not a directory|no such file)"
        ),
        "a driver file that the toolkit expects does not exist: the driver changed, or its container ended",
        "Run nvidia-ctk cdi generate on the node. With the GPU operator, delete the pod of its toolkit there.",
    ),
    Symptom(
        "container_config",
        words(r"error mounting .{1,400}(?:not a directory|is a directory|are you trying to mount a directory)"),
        "a volume is mounted over a file of the image, or a file over a directory",
        "Correct mountPath or subPath of the container's volumeMounts.",
    ),
    Symptom(
        "start_refused",
        words(r"PreStartContainer .{0,200}|GpuShareRefused"),
        "the node's plugin refused to start the container",
        "Delete the pod, so that the scheduler places it again.",
        CERTAIN,
    ),
    Symptom(
        "image",
        words(
            r"^(?:ErrImagePull|ImagePullBackOff|InvalidImageName|ErrImageNeverPull|ImageInspectError"
            r"|RegistryUnavailable|SignatureValidationFailed)|^Failed to pull image|^Back-off pulling image"
            r"|^Error: (?:ErrImage|ImagePull)|^Failed to inspect image|^Failed to apply default image tag"
        ),
        "the image cannot be pulled",
        "Correct its name, or the pod's imagePullSecrets. The message has the registry's answer.",
        CERTAIN,
    ),
    Symptom(
        "missing_object",
        words(
            r"\b(?:secret|configmap|serviceaccount|persistentvolumeclaim)s? .{1,253} not found"
            r"|couldn't find key|references non-existent (?:secret|config)|object .{1,253} not registered"
        ),
        "the pod refers to a Secret, ConfigMap, claim, or key that does not exist",
        "Create what the message names in the pod's namespace, or correct the pod.",
        CERTAIN,
    ),
    Symptom(
        "container_config",
        words(r"failed to sync (?:configmap|secret) cache|services have not yet been read"),
        "kubelet has not yet read the container's ConfigMaps, Secrets, or Services from the API server",
        "This usually passes, as after a restart of kubelet. If it stays, see journalctl -u kubelet on the node.",
    ),
    Symptom(
        "container_config",
        words(r"runAsNonRoot|no command specified|invalid environment variable|failed to prepare subPath"),
        "the container cannot be set up as the pod describes it",
        "Correct the container's securityContext, variables, mounts or command as the message says.",
        CERTAIN,
    ),
    Symptom(
        "container_config",
        words(r"^CreateContainerConfigError"),
        "kubelet could not create the container's configuration",
        "Do what the message says. Usually the pod, or an object that it names, needs a correction.",
    ),
)
"""In what kubelet says of a pod that does not start, the first that fits."""

BY_EVENT: Sequence[Symptom] = (
    Symptom(
        "missing_object",
        words(r"^Failed(?:Mount|AttachVolume): .{0,400}not (?:found|registered)"),
        "a volume of the pod refers to a Secret, ConfigMap, or claim that does not exist",
        "Create what the message names in the pod's namespace, or correct the pod.",
        CERTAIN,
    ),
    Symptom(
        "volume",
        words(r"^(?:FailedMount|FailedAttachVolume|FailedMapVolume|VolumeFailedDelete|FileSystemResizeFailed)"),
        "a volume of the pod cannot be attached or mounted",
        "Read the storage driver's message. Check the claim (kubectl describe pvc) and the driver's pods on the node.",
    ),
    Symptom(
        "network",
        words(
            r"^NetworkNotReady|\bcni\b|network is not ready|failed to set ?up (?:network for )?(?:pod )?sandbox"
            r"|failed to assign an IP|NetworkPlugin"
        ),
        "the pod's network cannot be set up",
        "Check the pods of the node's network plugin (CNI), and /etc/cni/net.d.",
    ),
    Symptom(
        "missing_object",
        words(r"^FailedPrepareDynamicResources: .{0,400}ResourceClaim not created yet"),
        "kubelet does not find in the pod's status which ResourceClaim it has",
        "If this lasts, delete the pod, so that its controller makes another one. A pod with several"
        " ResourceClaimTemplates may lose one of them (kubernetes#138407): give it one template with several requests.",
    ),
    Symptom(
        "device_missing",
        words(r"^FailedPrepareDynamicResources|prepare (?:dynamic )?resources"),
        "the node's DRA driver did not prepare the pod's claim, or kubelet does not know the driver",
        "Look at the ResourceClaim. Check that the driver's kubelet plugin runs on the node, and read its log.",
    ),
    Symptom(
        "missing_object",
        words(r"^FailedResourceClaimCreation"),
        "the pod's ResourceClaim cannot be created",
        "Create the ResourceClaimTemplate that the message names, or correct the pod.",
        CERTAIN,
    ),
)
"""In reason and message of events, beside ``AT_START``, of a pod that does not run."""

STATES: Dict[str, Tuple[str, str]] = {
    "RunContainerError": ("the container runtime could not start it", "runtime"),
    "StartError": ("the container runtime could not start it", "runtime"),
    "ContainerCannotRun": ("the container runtime could not start it", "runtime"),
    "CreateContainerError": ("the container runtime could not create it", "runtime"),
    "CreateContainerConfigError": ("kubelet could not create its configuration", "pod"),
    "PreCreateHookError": ("kubelet's hook before its creation failed", "kubelet"),
    "PreStartHookError": ("the hook before its start failed; device plugins can have one", "kubelet"),
    "PostStartHookError": ("its lifecycle hook postStart failed", "pod"),
    "CrashLoopBackOff": ("it ends again and again, and kubelet waits before the next start", "log"),
    "ContainerStatusUnknown": ("kubelet lost it, for example by a reboot or a deletion on the node", "kubelet"),
    "PodInitializing": ("the pod's init containers have not all ended yet", "pod"),
    "ContainerCreating": ("kubelet prepares it: volumes, network, image, devices", "kubelet"),
}
"""What states that kubelet names mean, and where to look."""

ENDED_BY_PROBE = Symptom(
    "not_ready",
    words(r"^(?:Unhealthy: (?:Liveness|Startup) probe|Killing: .{1,100} failed (?:liveness|startup) probe)"),
    "kubelet restarts it, because its liveness or startup probe fails",
    "Look at its log. Give a program that loads for long a startupProbe of a larger failureThreshold, or more"
    " timeoutSeconds.",
)
UNREADY_BY_PROBE = Symptom(
    "not_ready",
    words(r"^Unhealthy: Readiness probe"),
    "it runs, but no Service sends it traffic, because its readiness probe fails",
    "Look at its log. A server answers when its model is loaded. Compare the probe's port and path with the server's.",
)
"""In reason and message of events of a pod that runs."""
