# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Words by which schedulers and controllers say why a pod waits for a node, or is not made."""

from __future__ import annotations

from typing import Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.symptoms import (
    CERTAIN,
    POSSIBLE,
    Symptom,
    words,
)

QUOTA_REMEDY = "Delete pods of the namespace, or raise its ResourceQuota."

NOT_MADE: Sequence[Symptom] = (
    Symptom(
        "namespace_quota",
        words(r"exceeded quota"),
        "no pod is created, because the namespace has used up its ResourceQuota",
        QUOTA_REMEDY,
        CERTAIN,
    ),
    Symptom(
        "missing_object",
        words(
            r"service ?account .{1,300} not found|no PriorityClass .{1,300} was found|RuntimeClass .{1,300} not found"
        ),
        "no pod is created, because its template refers to an object that does not exist",
        "Create what the message names, or correct the pod's template.",
        CERTAIN,
    ),
    Symptom(
        "admission",
        words(r"denied the request|violates PodSecurity|is forbidden|is invalid|failed calling webhook"),
        "no pod is created, because the API server, a webhook, or a policy refused it",
        "Do what the message says, in the pod's template or in the policy that the message names.",
        CERTAIN,
    ),
)
"""In what a pod's controller says when it could not make the pod, the first that fits."""

WAITING: Sequence[Symptom] = (
    Symptom(
        "namespace_quota",
        words(r"\bResourceQuotaNotFit\b"),
        "HAMi's scheduler: the namespace's quota has no room for the pod's request",
        QUOTA_REMEDY,
    ),
    Symptom(
        "no_room",
        words(
            r"\bCard(?:TimeSlicing|ComputeUnits)Exhausted\b|\bCardInsufficient(?:Memory|Core)\b|\bNodeInsufficientDevice\b"
            r"|\bAllocatedCardsInsufficientRequest\b|\bExclusiveDeviceAllocateConflict\b"
        ),
        "HAMi's scheduler: no GPU has enough memory, cores, or shares left for the pod's request",
        "Wait, ask for less, or end other pods. kubectl describe node and the annotations hami.io/* show who has what.",
    ),
    Symptom(
        "selector",
        words(r"\bCard(?:Type|Uuid)Mismatch\b|\bNumaNotFit\b|\bCardNotFoundCustomFilterRule\b|\bModeNotFit\b"),
        "HAMi's scheduler: the pod's annotations request a type, UUID, or mode that no GPU with room has",
        "Compare the pod's annotations (nvidia.com/use-gputype, use-gpuuuid, vgpu-mode) with the nodes' GPUs.",
    ),
    Symptom(
        "gpu_unhealthy",
        words(r"\bCardNotHealth\b"),
        "HAMi's plugin considers the GPU unhealthy",
        "Check nvidia-smi, dmesg, and the log of HAMi's plugin on the node.",
    ),
    Symptom(
        "plugin_down",
        words(r"\bnode unregistered\b"),
        "HAMi's scheduler does not know the node's GPUs: HAMi's plugin does not run there, or has not registered them",
        "Check HAMi's plugin on the node, the label gpu=on, and the node's annotation hami.io/node-nvidia-register.",
    ),
    Symptom(
        "scheduler",
        words(r"non-empty scheduling gates|^SchedulingGated|^scheduling gates: "),
        "it has scheduling gates, and no scheduler tries it before they are removed",
        "Find what added them. Kueue removes its own when the queue admits the pod's workload.",
        CERTAIN,
    ),
    Symptom(
        "namespace_quota",
        words(r"quota of namespace |namespace \S{1,80} may use (?:pool|no pool)"),
        "the namespace has used up its GPU quota",
        "Delete pods of the namespace, or raise its entry in scheduler_quota.",
        CERTAIN,
    ),
    Symptom(
        "extender_down",
        words(
            r"failed (?:filter|prioritize|bind|preempt).{0,40}extender"
            r"|extender.{0,200}(?:connection refused|timeout|deadline)"
        ),
        "kube-scheduler does not reach the extender",
        "Look at the pods of kube-accel-extender. Run site.yml --tags scheduler.",
        CERTAIN,
    ),
    Symptom(
        "request",
        words(
            r"ask for 1 to 99|use the resources of one mode|needs some of its memory|add 1 to 99"
            r"|annotation \S{1,80} of the pod: write"
        ),
        "the pod requests what no mode offers",
        "Write its limits or annotations as the message says.",
        CERTAIN,
    ),
    Symptom(
        "plugin_down",
        words(r"its plugin has not reported GPUs|annotation kube-accel\.io/inventory cannot be read"),
        "a node's plugin has reported nothing that the extender can use",
        "Look at the plugin's pod on that node.",
    ),
    Symptom(
        "gpu_unhealthy",
        words(r"left out \(unhealthy"),
        "GPUs that would fit are unhealthy",
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
        "nodes take no more pods: they lack disk, memory, or process IDs, or have their maximum number of pods",
        "Free the resource on the nodes (kubectl describe node shows the condition), or add nodes.",
    ),
    Symptom(
        "cordoned",
        words(r"node\(s\) were unschedulable|taints? \{node\.kubernetes\.io/unschedulable\b"),
        "nodes take no new pods: they are cordoned",
        "Run kubectl uncordon, unless the nodes are under maintenance.",
        POSSIBLE,
    ),
    Symptom(
        "taint",
        words(
            r"(?:untolerated|had) taints? \{(?!node-role\.kubernetes\.io/(?:control-plane|master)\b"
            r"|node\.kubernetes\.io/)"
        ),
        "nodes have a taint that the pod does not tolerate",
        "Add the toleration to the pod.",
        POSSIBLE,
    ),
    Symptom(
        "selector",
        words(r"didn't (?:match|satisfy).{0,20} (?:pod (?:anti-)?affinity|.{0,20}anti-affinity|pod topology spread)"),
        "other pods keep it off the nodes, by pod affinity or topology spread",
        "Compare podAffinity, podAntiAffinity and topologySpreadConstraints, also of other pods, with the pods on"
        " each node.",
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
        "the node ports that the pod requests are in use",
        "Remove hostPort or hostNetwork from the pod, or run one such pod per node.",
        POSSIBLE,
    ),
    Symptom(
        "missing_object",
        words(
            r"\b(?:persistentvolumeclaim|resourceclaim|storageclass)\S{0,40} \S{1,253} (?:was )?not found"
            r"|device class \S{1,253} does not exist|waiting for .{0,80}create the resourceclaim"
        ),
        "a claim, or the device class or storage class that it names, does not exist",
        "Create what the message names. A DeviceClass comes with its DRA driver.",
    ),
    Symptom(
        "volume",
        words(
            r"unbound immediate PersistentVolumeClaims|volume node affinity conflict|max volume count|to bind to claims"
        ),
        "a volume of the pod does not exist yet, or is in a place where no node has room for the pod",
        "Look at the claim: kubectl describe pvc. A volume of one zone or node binds the pod to it.",
    ),
    Symptom(
        "no_room",
        words(r"cannot allocate all claims|resourceclaim (?:in use|not available)|ResourceClaim.{0,80}reserved"),
        "no node has devices left that the pod's ResourceClaim selects",
        "Look at the claim. kubectl get resourceslices shows whether a DRA driver offers such devices.",
    ),
    Symptom(
        "scheduler",
        words(r"binding rejected|running .{1,60} plugin .{0,200}(?:error|fail|cannot be fulfilled)"),
        "the scheduler failed to place the pod because of an error, and tries again",
        "Wait for another try. If it stays, look at the scheduler's log.",
        POSSIBLE,
    ),
    Symptom(
        "no_room",
        words(
            r"best has |no room for |whole GPUs?.{0,20}; \d+ free|MPS takes no more|together was found"
            r"|Insufficient \S{1,200}/"
        ),
        "no GPU has enough left for the pod's request",
        "Wait, or ask for less. The playbook inspect with inspect_details=true shows who has what.",
    ),
    Symptom(
        "no_room",
        words(r"Insufficient (?:cpu|memory|ephemeral-storage|pods|hugepages-\w{1,10})\b"),
        "no node has enough CPU, memory, or storage left for the pod's request, even if its GPUs have room",
        "Ask for less of what the message names, or add nodes. kubectl describe node shows what is taken.",
    ),
)
"""What explains that no node was found for a pod."""
