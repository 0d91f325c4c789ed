# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Words by which it is known why a pod does not run: of kubelet, container runtimes, schedulers and device plugins.

Every pattern is looked for in one text of bounded length, and looks at each character a bounded number of times.
"""

from __future__ import annotations

from typing import Dict, Sequence, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.symptoms import (
    CERTAIN,
    POSSIBLE,
    Symptom,
    words,
)

_RUNTIME_REMEDY = "Run site.yml --tags container_runtime for the node."
_DRIVER_REMEDY = "Run nvidia-smi on the node, and the role driver if it fails."
QUOTA_REMEDY = "End pods of the namespace, or raise its ResourceQuota."
_PLUGIN_REMEDY = "Look at the log of the node's device plugin (kubectl logs --previous); then delete the pod."

AT_START: Sequence[Symptom] = (
    Symptom(
        "cuda_mismatch",
        words(r"unsatisfied condition: .{0,80}(?:cuda|driver|brand)"),
        "the image requires another driver or GPU than the node has, so the container is not started",
        "Upgrade the node's driver, or use an image of an older CUDA.",
        CERTAIN,
    ),
    Symptom(
        "cuda_mismatch",
        words(r"requirement error: invalid expression"),
        "what the image requires of the driver (NVIDIA_REQUIRE_CUDA) cannot be read, so the container is not started",
        "Correct NVIDIA_REQUIRE_* of the image or pod, or set NVIDIA_DISABLE_REQUIRE=true.",
        CERTAIN,
    ),
    Symptom(
        "no_room",
        words(r"no-gpu-has-\w{1,40}-to-run"),
        "the device plugin that was asked (gpushare, HAMi) found no GPU with enough memory left",
        "Look at what its scheduler extender assigned, and at what else runs on the node; delete the pod.",
        CERTAIN,
    ),
    Symptom(
        "device_missing",
        words(r"device error: \S{0,10}/var/run/nvidia-container-devices"),
        "GPUs are passed as volume mounts, and the node's toolkit is not set to take them so",
        "Set accept-nvidia-visible-devices-as-volume-mounts in the toolkit's config.toml, or pass GPUs by variable.",
        CERTAIN,
    ),
    Symptom(
        "device_missing",
        words(r"device error: .{0,200}unknown device"),
        "the container is to get a GPU that the node's driver does not have: it is gone, or has another name now",
        "Run nvidia-smi -L on the node and compare; delete the pod so that it is allocated anew.",
        CERTAIN,
    ),
    Symptom(
        "runtime_missing",
        words(r"cgroup subsystem devices not found|failed to add device rules"),
        "libnvidia-container cannot give the container its devices: it is too old for the node's cgroup v2, or may not",
        "Upgrade nvidia-container-toolkit to 1.8 or newer; without root set no-cgroups in its config.toml.",
        CERTAIN,
    ),
    Symptom(
        "runtime_missing",
        words(r"/sys/fs/cgroup/devices/.{1,400}devices\.allow: no such file"),
        "the toolkit looks for the container's device cgroup where the container runtime made none",
        "Give the nvidia runtime the cgroup driver of kubelet (SystemdCgroup), or upgrade the toolkit: "
        + _RUNTIME_REMEDY,
    ),
    Symptom(
        "runtime_missing",
        words(r"ldcache error: "),
        "the toolkit cannot run ldconfig, so libraries of the driver would not be found",
        "Set ldconfig in /etc/nvidia-container-runtime/config.toml to the node's (@/sbin/ldconfig, Ubuntu: .real).",
        CERTAIN,
    ),
    Symptom(
        "gpu_lost",
        words(r"nvml error: gpu is lost|GPU is lost|fallen off the bus"),
        "a GPU of the node is lost",
        "Drain the node, see dmesg for the XID, and reset the GPU or power-cycle the node.",
        CERTAIN,
    ),
    Symptom(
        "device_missing",
        words(r"nvml error: insufficient permissions"),
        "the container runtime's toolkit may not use the node's device files",
        "See SELinux's or AppArmor's denials and ls -l /dev/nvidia* on the node, and the toolkit's user.",
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
        "the image brings files of a driver itself, where the toolkit puts the node's",
        "Build the image without libcuda, libnvidia-* and nvidia-smi; such files are left by a commit of a container.",
    ),
    Symptom(
        "device_missing",
        words(
            r"mount error: |unresolvable CDI devices|CDI device injection failed|failed to inject CDI devices"
            r"|adding custom device \S{0,4}/dev/nvidia"
            r"|/dev/nvidia[\w-]{1,30}.{0,40}no such file|no such file.{0,40}/dev/nvidia"
        ),
        "the container's GPU, or a file of the driver that goes with it, is not there for the container runtime",
        "Delete the pod so that it is allocated anew; if it returns, look at nvidia-smi and the plugin on the node.",
    ),
    Symptom(
        "runtime_missing",
        words(
            r"no runtime for .{1,40} is configured|RuntimeHandler .{1,40} not supported"
            r"|failed to find runtime handler|unknown or invalid runtime name|RuntimeClass .{1,80} not found"
            r"|could not select device driver|nvidia-container-runtime[\w-]{0,10}\S{0,4}: .{0,60}not found"
            r"|nvidia-container-runtime[\w-]{0,10}\S{0,4}: no such file|runc[\w.-]{0,20}nvidia.{0,40}no such file"
        ),
        "the node's container runtime does not know, or does not find, what the pod's runtime class stands for",
        _RUNTIME_REMEDY,
        CERTAIN,
    ),
    Symptom(
        "runtime_missing",
        words(r"invoking the NVIDIA Container Runtime Hook directly"),
        "the toolkit's hook was called on a node where the toolkit expects its runtime to be used",
        "Set runtimeClassName: nvidia in the pod, or make nvidia the default runtime of the node.",
        CERTAIN,
    ),
    Symptom(
        "runtime_missing",
        words(r"nvidia-container-(?:cli|runtime)|nvidia-ctk|NVIDIA Container Runtime"),
        "NVIDIA's container toolkit refused to prepare the container",
        "Read its words; on the node see nvidia-container-cli -k -d /dev/tty info, and " + _RUNTIME_REMEDY,
    ),
    Symptom(
        "driver_missing",
        words(r"exec: \S{0,4}nvidia-smi\S{0,4}: executable file not found"),
        "the container has no nvidia-smi: the container runtime did not bring the driver",
        "Set runtimeClassName: nvidia in the pod, and ask for a GPU in its limits.",
    ),
    Symptom(
        "host_oom",
        words(r"container init was OOM-killed|memory limit too low"),
        "the container's limit of the machine's memory is too low to even start it",
        "Raise resources.limits.memory of the container.",
        CERTAIN,
    ),
    Symptom(
        "image",
        words(r"exec format error"),
        "the image's program is of another architecture than the node, or a script without an interpreter line",
        "Use an image of the node's architecture, or select nodes by the label kubernetes.io/arch.",
    ),
    Symptom(
        "image",
        words(
            r"executable file not found in \$PATH|\bstat (?!/proc/)\S{1,200}: no such file or directory"
            r"|exec:? \S{0,200}: permission denied"
        ),
        "the image does not have the program that the pod names, or it may not be run",
        "Correct command and args of the container, or the image.",
    ),
    Symptom(
        "runtime_missing",
        words(
            r"error mounting \S{0,4}/(?!var/lib/kubelet)\S{0,300}(?:/libnvidia|/libcuda|/nvidia-|nvidia/driver/)"
            r"\S{0,200} to rootfs.{1,400}(?:not a directory|no such file)"
        ),
        "a file of the driver, as the toolkit knows it, is not there: the driver has changed, or its container ended",
        "Run nvidia-ctk cdi generate on the node; with the GPU operator, delete the pod of its toolkit there.",
    ),
    Symptom(
        "container_config",
        words(r"error mounting .{1,400}(?:not a directory|is a directory|are you trying to mount a directory)"),
        "a volume is mounted where the image has a file, or a file where it has a directory",
        "Correct mountPath or subPath of the container's volumeMounts.",
    ),
    Symptom(
        "start_refused",
        words(r"PreStartContainer .{0,200}|GpuShareRefused"),
        "the node's plugin refused to start the container",
        "Delete the pod, so that it is placed anew.",
        CERTAIN,
    ),
    Symptom(
        "image",
        words(
            r"^(?:ErrImagePull|ImagePullBackOff|InvalidImageName|ErrImageNeverPull|ImageInspectError"
            r"|RegistryUnavailable|SignatureValidationFailed)|^Failed to pull image|^Back-off pulling image"
            r"|^Error: (?:ErrImage|ImagePull)|^Failed to inspect image|^Failed to apply default image tag"
        ),
        "the image cannot be had",
        "Correct its name, or the pod's imagePullSecrets; the message has the registry's answer.",
        CERTAIN,
    ),
    Symptom(
        "missing_object",
        words(
            r"\b(?:secret|configmap|serviceaccount|persistentvolumeclaim)s? .{1,253} not found"
            r"|couldn't find key|references non-existent (?:secret|config)|object .{1,253} not registered"
        ),
        "the pod refers to a Secret, ConfigMap or claim, or to a key of one, that is not there",
        "Create what the message names in the pod's namespace, or correct the pod.",
        CERTAIN,
    ),
    Symptom(
        "container_config",
        words(r"failed to sync (?:configmap|secret) cache|services have not yet been read"),
        "kubelet has not read what the container is set up with from the API server",
        "It mostly passes, as after a restart of kubelet; else see journalctl -u kubelet on the node.",
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
        "kubelet could not put the container's configuration together",
        "Do what the message says: mostly the pod, or what it refers to, has to be corrected.",
    ),
)
"""In what kubelet says of a pod that does not start, the first that fits."""

AT_ADMISSION: Sequence[Symptom] = (
    Symptom(
        "gpu_lost",
        words(r"GPU is lost|fallen off the bus|GPU requires restart"),
        "kubelet refused the pod: the node's device plugin met a GPU that is lost",
        "Drain the node, see dmesg for the XID, reset the GPU or power-cycle the node, and restart the plugin.",
        CERTAIN,
    ),
    Symptom(
        "driver_silent",
        words(r"\bnvml: |error creating nvml|Driver/library version mismatch|NVML"),
        "kubelet refused the pod: the node's device plugin got no answer from the driver",
        "Run nvidia-smi on the node; restart the plugin when it answers again, and delete the pod.",
    ),
    Symptom(
        "request",
        words(r"request for .{1,80} too large: maximum request size"),
        "the pod asks for several replicas of a GPU that is shared by time-slicing, and one is all it may have",
        "Ask for 1: several replicas give no more of the GPU.",
        CERTAIN,
    ),
    Symptom(
        "plugin_down",
        words(
            r"error reading from server: EOF|code = Unavailable|transport is closing|connection refused"
            r"|DeadlineExceeded|context deadline exceeded|context canceled|connection reset"
        ),
        "kubelet refused the pod: the node's device plugin ended, or did not answer, while it was asked for devices",
        _PLUGIN_REMEDY,
        CERTAIN,
    ),
    Symptom(
        "admission",
        words(r"no healthy devices present|cannot allocate unhealthy devices"),
        "kubelet refused the pod: none of the node's devices is healthy, or the plugin has not told of any yet",
        "Look at the node's GPUs (nvidia-smi, dmesg for XIDs) and its plugin; then delete the pod.",
        CERTAIN,
    ),
    Symptom(
        "admission",
        words(r"Available: \d|devices unavailable|plugin .{0,80}(?:has gone|not registered)"),
        "kubelet refused the pod: too few devices were there, as after a reboot until the plugin has registered",
        "Delete the pod; a controller makes another. If it returns, look at the node's plugin.",
        CERTAIN,
    ),
    Symptom(
        "admission",
        words(r"has become unhealthy"),
        "kubelet refused the pod: the GPU it was to get had turned bad meanwhile",
        "Delete the pod; a controller makes another. Look at the node's GPUs.",
        CERTAIN,
    ),
    Symptom(
        "admission",
        words(r"left, only \d+ GPUs together|has not enough left|part of a GPU"),
        "kubelet refused the pod: no single GPU of the node had room for its share",
        "Have the scheduler extender place shares (scheduler_layout), and delete the pod.",
        CERTAIN,
    ),
    Symptom(
        "admission",
        words(r"^"),
        "kubelet refused the pod when it came to the node",
        "Do what the message says; look at the log of the device plugin that it names, and delete the pod.",
        CERTAIN,
    ),
)
"""What explains an UnexpectedAdmissionError; the first that fits counts."""

REFUSED: Sequence[Symptom] = (
    Symptom(
        "admission",
        words(r"^OutOf"),
        "kubelet refused the pod: the node has less left of the resource than it asks for. Another scheduler, a pod"
        " with nodeName, or devices that turned unhealthy meanwhile took it",
        "Delete the pod; a controller makes another. If it returns, see who else places pods: kubectl describe node.",
        CERTAIN,
    ),
    Symptom(
        "admission",
        words(r"^TopologyAffinityError"),
        "kubelet's topology manager found no CPUs and devices of one NUMA node for it",
        "Ask for fewer CPUs or GPUs, or relax topologyManagerPolicy of the node's kubelet.",
        CERTAIN,
    ),
    Symptom(
        "admission",
        words(r"^(?:NodeAffinity|NodeName|NodePorts|Taint|Predicate)"),
        "kubelet refused the pod: the node's labels, taints or ports do not fit it any more",
        "Compare the pod's nodeSelector and affinity with the node's labels, and delete the pod.",
        CERTAIN,
    ),
    Symptom(
        "evicted",
        words(
            r"^(?:NodeShutdown|Shutdown|TerminationByKubelet|Terminated\b.{0,10}Pod was terminated in response)"
            r"|node is shutting down|node shutdown"
        ),
        "the node was shut down",
        "Delete the pod; a controller makes another.",
        CERTAIN,
    ),
    Symptom(
        "evicted",
        words(r"^(?:Preempt\w*|PreemptionByScheduler)|preempted in order to"),
        "it was ended to make room for a pod of a higher priority",
        "Give it a higher priorityClassName, or more room: a controller makes another.",
        CERTAIN,
    ),
    Symptom(
        "evicted",
        words(r"^Evicted: .{0,20}(?:Usage of EmptyDir|(?:Pod|Container) .{0,80}exceed.{0,20} .{0,60}limit)"),
        "it was evicted: it wrote more to its disk or to an emptyDir than its limit is",
        "Raise sizeLimit of the volume or the limit of ephemeral-storage, or write to a volume of its own.",
        CERTAIN,
    ),
    Symptom(
        "evicted",
        words(r"^(?:Evicted|TaintManagerEviction|Eviction\w*|DeletionByTaintManager|DeletionByPodGC)"),
        "it was evicted: the node was short of disk, memory or process numbers, had a taint, was drained, or is gone",
        "Read the resource in the message; set requests and limits for it, or free it on the node.",
        CERTAIN,
    ),
    Symptom(
        "evicted",
        words(r"^DeadlineExceeded"),
        "it ran longer than activeDeadlineSeconds allows, and was ended",
        "Raise activeDeadlineSeconds of the pod or Job, or make it end sooner.",
        CERTAIN,
    ),
    Symptom(
        "node_not_ready",
        words(r"^(?:NodeLost|NodeNotReady|NodeControllerEviction)"),
        "its node does not answer",
        "Look at the node and its kubelet: journalctl -u kubelet.",
        CERTAIN,
    ),
    Symptom(
        "admission",
        words(
            r"^(?:Unexpected|SysctlForbidden|AppArmor|PodOS|InvalidNodeInfo|SMTAlignment|Unknown|PodFeature|PodLevel"
            r"|InitContainer|\w{1,60}NotSupported|\w{1,60}Forbidden)|^\w{1,60}: .{0,20}Pod was rejected"
        ),
        "kubelet refused the pod when it came to the node",
        "Do what the message says, and delete the pod.",
        CERTAIN,
    ),
)
"""In reason and message of a pod that ended without its containers, the first that fits."""

BY_EVENT: Sequence[Symptom] = (
    Symptom(
        "missing_object",
        words(r"^Failed(?:Mount|AttachVolume): .{0,400}not (?:found|registered)"),
        "a volume of the pod refers to a Secret, ConfigMap or claim that is not there",
        "Create what the message names in the pod's namespace, or correct the pod.",
        CERTAIN,
    ),
    Symptom(
        "volume",
        words(r"^(?:FailedMount|FailedAttachVolume|FailedMapVolume|VolumeFailedDelete|FileSystemResizeFailed)"),
        "a volume of the pod cannot be attached or mounted",
        "Read the storage driver's words; look at the claim (kubectl describe pvc) and the driver's pods on the node.",
    ),
    Symptom(
        "network",
        words(
            r"^NetworkNotReady|\bcni\b|network is not ready|failed to set ?up (?:network for )?(?:pod )?sandbox"
            r"|failed to assign an IP|NetworkPlugin"
        ),
        "the pod's network cannot be set up",
        "Look at the pods of the node's network plugin (CNI) and at /etc/cni/net.d.",
    ),
    Symptom(
        "device_missing",
        words(r"^FailedPrepareDynamicResources|prepare (?:dynamic )?resources"),
        "the node's DRA driver did not prepare the pod's claim, or kubelet does not know the driver",
        "Look at the ResourceClaim, and at the driver's kubelet plugin on the node: whether it runs, and its log.",
    ),
    Symptom(
        "missing_object",
        words(r"^FailedResourceClaimCreation"),
        "the pod's ResourceClaim cannot be made",
        "Create the ResourceClaimTemplate that the message names, or correct the pod.",
        CERTAIN,
    ),
)
"""In reason and message of events, beside ``AT_START``, of a pod that does not run."""

STATES: Dict[str, Tuple[str, str]] = {
    "RunContainerError": ("the container runtime could not start it", "runtime"),
    "StartError": ("the container runtime could not start it", "runtime"),
    "ContainerCannotRun": ("the container runtime could not start it", "runtime"),
    "CreateContainerError": ("the container runtime could not make it", "runtime"),
    "CreateContainerConfigError": ("kubelet could not put its configuration together", "pod"),
    "PreCreateHookError": ("kubelet's hook before its creation failed", "kubelet"),
    "PreStartHookError": ("the hook before its start failed: device plugins may have one", "kubelet"),
    "PostStartHookError": ("its lifecycle hook postStart failed", "pod"),
    "CrashLoopBackOff": ("it ends again and again, and kubelet waits before the next start", "log"),
    "ContainerStatusUnknown": ("kubelet lost it, as by a reboot or when it was deleted on the node", "kubelet"),
    "PodInitializing": ("the pod's init containers have not all ended yet", "pod"),
    "ContainerCreating": ("kubelet prepares it: volumes, network, image, devices", "kubelet"),
}
"""What states that kubelet names mean, and where to look."""

ENDED_BY_PROBE = Symptom(
    "not_ready",
    words(r"^(?:Unhealthy: (?:Liveness|Startup) probe|Killing: .{1,100} failed (?:liveness|startup) probe)"),
    "kubelet ends it and starts it again, because its liveness or startup probe fails",
    "Look at its log; give a program that loads for long a startupProbe of a larger failureThreshold, or more"
    " timeoutSeconds.",
)
UNREADY_BY_PROBE = Symptom(
    "not_ready",
    words(r"^Unhealthy: Readiness probe"),
    "it runs, and its readiness probe fails, so that no Service sends it anything",
    "Look at its log: a server answers when its model is loaded. Compare the probe's port and path with its own.",
)
"""In reason and message of events of a pod that runs."""

NOT_MADE: Sequence[Symptom] = (
    Symptom(
        "namespace_quota",
        words(r"exceeded quota"),
        "the namespace has all that its ResourceQuota allows, so that no pod is made",
        QUOTA_REMEDY,
        CERTAIN,
    ),
    Symptom(
        "missing_object",
        words(
            r"service ?account .{1,300} not found|no PriorityClass .{1,300} was found|RuntimeClass .{1,300} not found"
        ),
        "the pod refers to an object that is not there, so that no pod is made",
        "Create what the message names, or correct the pod's template.",
        CERTAIN,
    ),
    Symptom(
        "admission",
        words(r"denied the request|violates PodSecurity|is forbidden|is invalid|failed calling webhook"),
        "the API server, or a webhook or policy in it, refused the pod, so that none is made",
        "Do what the message says, in the pod's template or in the policy that it names.",
        CERTAIN,
    ),
)
"""In what a pod's controller says when it could not make the pod, the first that fits."""

WAITING: Sequence[Symptom] = (
    Symptom(
        "namespace_quota",
        words(r"\bResourceQuotaNotFit\b"),
        "HAMi's scheduler: the namespace's quota has no room for what the pod asks",
        QUOTA_REMEDY,
    ),
    Symptom(
        "no_room",
        words(
            r"\bCard(?:TimeSlicing|ComputeUnits)Exhausted\b|\bCardInsufficient(?:Memory|Core)\b|\bNodeInsufficientDevice\b"
            r"|\bAllocatedCardsInsufficientRequest\b|\bExclusiveDeviceAllocateConflict\b"
        ),
        "HAMi's scheduler: no GPU has enough memory, cores or shares left for what the pod asks",
        "Wait, ask for less, or end others: kubectl describe node and the annotations hami.io/* have who has what.",
    ),
    Symptom(
        "selector",
        words(r"\bCard(?:Type|Uuid)Mismatch\b|\bNumaNotFit\b|\bCardNotFoundCustomFilterRule\b|\bModeNotFit\b"),
        "HAMi's scheduler: the pod's annotations ask for a type, UUID or mode that no GPU with room has",
        "Compare the pod's annotations (nvidia.com/use-gputype, use-gpuuuid, vgpu-mode) with the nodes' GPUs.",
    ),
    Symptom(
        "gpu_unhealthy",
        words(r"\bCardNotHealth\b"),
        "HAMi's plugin takes the GPU for unhealthy",
        "See the log of HAMi's plugin on the node, nvidia-smi and dmesg.",
    ),
    Symptom(
        "plugin_down",
        words(r"\bnode unregistered\b"),
        "HAMi's scheduler does not know the node's GPUs: HAMi's plugin does not run there, or has not registered them",
        "See HAMi's plugin on the node, the label gpu=on, and the node's annotation hami.io/node-nvidia-register.",
    ),
    Symptom(
        "scheduler",
        words(r"non-empty scheduling gates|^SchedulingGated|^scheduling gates: "),
        "it has scheduling gates, and no scheduler tries it before they are taken off",
        "Look at who put them there: Kueue takes its own off when the queue admits the pod's workload.",
        CERTAIN,
    ),
    Symptom(
        "namespace_quota",
        words(r"quota of namespace |namespace \S{1,80} may use (?:pool|no pool)"),
        "the namespace has all of the GPUs that its quota allows",
        "End pods of the namespace, or raise its entry in scheduler_quota.",
        CERTAIN,
    ),
    Symptom(
        "extender_down",
        words(
            r"failed (?:filter|prioritize|bind|preempt).{0,40}extender"
            r"|extender.{0,200}(?:connection refused|timeout|deadline)"
        ),
        "kube-scheduler does not reach the extender",
        "Look at the pods of kube-accel-extender; run site.yml --tags scheduler.",
        CERTAIN,
    ),
    Symptom(
        "request",
        words(
            r"ask for 1 to 99|use the resources of one mode|needs some of its memory|add 1 to 99"
            r"|annotation \S{1,80} of the pod: write"
        ),
        "the pod asks for what no mode offers",
        "Write its limits or annotations as the message says.",
        CERTAIN,
    ),
    Symptom(
        "plugin_down",
        words(r"its plugin has not reported GPUs|annotation kube-accel\.io/inventory cannot be read"),
        "a node's plugin has told nothing that the extender can use",
        "Look at the plugin's pod on that node.",
    ),
    Symptom(
        "gpu_unhealthy",
        words(r"left out \(unhealthy"),
        "GPUs that would do are not healthy",
        "Look at the nodes' GPUs below.",
    ),
    Symptom(
        "node_not_ready",
        words(r"taints? \{node\.kubernetes\.io/(?:not-ready|unreachable|network-unavailable|out-of-service)\b"),
        "nodes are not ready",
        "Look at these nodes' kubelets: kubectl describe node, journalctl -u kubelet.",
    ),
    Symptom(
        "no_room",
        words(r"taints? \{node\.kubernetes\.io/(?:disk|memory|pid)-pressure\b|Too many pods"),
        "nodes take no more pods: they are short of disk, memory or process numbers, or have as many as they may",
        "Free it on the nodes (kubectl describe node has the condition), or add nodes.",
    ),
    Symptom(
        "cordoned",
        words(r"node\(s\) were unschedulable|taints? \{node\.kubernetes\.io/unschedulable\b"),
        "nodes take no new pods: they are cordoned",
        "kubectl uncordon them, unless somebody works on them.",
        POSSIBLE,
    ),
    Symptom(
        "taint",
        words(
            r"(?:untolerated|had) taints? \{(?!node-role\.kubernetes\.io/(?:control-plane|master)\b"
            r"|node\.kubernetes\.io/)"
        ),
        "nodes are tainted, and the pod does not tolerate that",
        "Add the toleration to the pod.",
        POSSIBLE,
    ),
    Symptom(
        "selector",
        words(r"didn't (?:match|satisfy).{0,20} (?:pod (?:anti-)?affinity|.{0,20}anti-affinity|pod topology spread)"),
        "other pods keep it off the nodes, by affinity to pods or by topology spread",
        "Compare podAffinity, podAntiAffinity and topologySpreadConstraints, also of others, with what runs where.",
        POSSIBLE,
    ),
    Symptom(
        "selector",
        words(r"didn't match Pod's node affinity|didn't match node selector|node\(s\) didn't match (?!pod )"),
        "the pod selects nodes that do not fit",
        "Compare its nodeSelector and affinity with the nodes' labels.",
        POSSIBLE,
    ),
    Symptom(
        "selector",
        words(r"didn't have free ports"),
        "the ports of the node that the pod asks for are taken",
        "Take hostPort or hostNetwork out of the pod, or have one such pod a node.",
        POSSIBLE,
    ),
    Symptom(
        "missing_object",
        words(
            r"\b(?:persistentvolumeclaim|resourceclaim|storageclass)\S{0,40} \S{1,253} (?:was )?not found"
            r"|device class \S{1,253} does not exist|waiting for .{0,80}create the resourceclaim"
        ),
        "a claim, or the class of devices or storage it names, is not there",
        "Create what the message names; a DeviceClass comes with its DRA driver.",
    ),
    Symptom(
        "volume",
        words(
            r"unbound immediate PersistentVolumeClaims|volume node affinity conflict|max volume count|to bind to claims"
        ),
        "a volume of the pod is not there yet, or is where no node has room for the pod",
        "Look at the claim: kubectl describe pvc; a volume of one zone or node binds the pod to it.",
    ),
    Symptom(
        "no_room",
        words(r"cannot allocate all claims|resourceclaim (?:in use|not available)|ResourceClaim.{0,80}reserved"),
        "no node has devices left that the pod's ResourceClaim selects",
        "Look at the claim and kubectl get resourceslices: whether a DRA driver offers such devices, and who has them.",
    ),
    Symptom(
        "scheduler",
        words(r"binding rejected|running .{1,60} plugin .{0,200}(?:error|fail|cannot be fulfilled)"),
        "the scheduler met an error while it placed the pod, and tries again",
        "Wait for another try; if it stays, look at the scheduler's log.",
        POSSIBLE,
    ),
    Symptom(
        "no_room",
        words(
            r"best has |no room for |whole GPUs?.{0,20}; \d+ free|MPS takes no more|together was found"
            r"|Insufficient \S{1,200}/"
        ),
        "no GPU has enough left for what the pod asks",
        "Wait, ask for less, or see who has what: inspect.yml with inspect_details=true.",
    ),
    Symptom(
        "no_room",
        words(r"Insufficient (?:cpu|memory|ephemeral-storage|pods|hugepages-\w{1,10})\b"),
        "no node has enough CPU, memory or storage left for what the pod asks, whatever its GPUs have",
        "Ask for less of what the message names, or add nodes: kubectl describe node has what is taken.",
    ),
)
"""What explains that no node was found for a pod."""

NODE_EVENTS = (
    "ConfigurationRefused",
    "ConfigurationMissing",
    "ConfigurationInvalid",
    "ConfigurationUnreadable",
    "MigConfigFailed",
    "MigConfigWaiting",
)
"""What explains that the plugin does not apply a configuration, or not yet."""
