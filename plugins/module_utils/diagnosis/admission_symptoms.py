# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Words by which kubelet says why it does not take a pod that a scheduler gave its node."""

from __future__ import annotations

from typing import Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.symptoms import (
    CERTAIN,
    Symptom,
    words,
)

_PLUGIN_REMEDY = "Look at the log of the node's device plugin (kubectl logs --previous). Then delete the pod."

AT_ADMISSION: Sequence[Symptom] = (
    Symptom(
        "gpu_lost",
        words(r"GPU is lost|fallen off the bus|GPU requires restart"),
        "kubelet refused the pod: the node's device plugin found a lost GPU",
        "Drain the node, and read the XID in dmesg. Reset the GPU or power-cycle the node, and restart the plugin.",
        CERTAIN,
    ),
    Symptom(
        "driver_silent",
        words(r"\bnvml: |error creating nvml|Driver/library version mismatch|NVML"),
        "kubelet refused the pod: the node's device plugin got no answer from the driver",
        "Run nvidia-smi on the node. Restart the plugin when it answers again, and delete the pod.",
    ),
    Symptom(
        "request",
        words(r"request for .{1,80} too large: maximum request size"),
        "the pod requests several replicas of a time-sliced GPU, but only one is allowed",
        "Ask for 1. Several replicas give no more of the GPU.",
        CERTAIN,
    ),
    Symptom(
        "plugin_down",
        words(
            r"error reading from server: EOF|code = Unavailable|transport is closing|connection refused"
            r"|DeadlineExceeded|context deadline exceeded|context canceled|connection reset"
        ),
        "kubelet refused the pod: the node's device plugin ended, or did not answer, during the allocation",
        _PLUGIN_REMEDY,
        CERTAIN,
    ),
    Symptom(
        "admission",
        words(r"no healthy devices present|cannot allocate unhealthy devices"),
        "kubelet refused the pod: none of the node's devices is healthy, or the plugin has not reported any yet",
        "Look at the node's GPUs (nvidia-smi, dmesg for XIDs) and its plugin. Then delete the pod.",
        CERTAIN,
    ),
    Symptom(
        "admission",
        words(r"Available: \d|devices unavailable|plugin .{0,80}(?:has gone|not registered)"),
        "kubelet refused the pod: too few devices were available, for example before the plugin registered",
        "Delete the pod. Its controller creates another. If the error returns, look at the node's plugin.",
        CERTAIN,
    ),
    Symptom(
        "admission",
        words(r"has become unhealthy"),
        "kubelet refused the pod: the GPU that it should get has become unhealthy",
        "Delete the pod. Its controller creates another. Look at the node's GPUs.",
        CERTAIN,
    ),
    Symptom(
        "admission",
        words(r"left, only \d+ GPUs together|has not enough left|part of a GPU"),
        "kubelet refused the pod: no single GPU of the node had room for its share",
        "Let the scheduler extender place shares (scheduler_layout), and delete the pod.",
        CERTAIN,
    ),
    Symptom(
        "admission",
        words(r"^"),
        "kubelet refused the pod when it came to the node",
        "Do what the message says. Look at the log of the device plugin that it names, and delete the pod.",
        CERTAIN,
    ),
)
"""What explains an UnexpectedAdmissionError; the first that fits counts."""

REFUSED: Sequence[Symptom] = (
    Symptom(
        "admission",
        words(r"^OutOf"),
        "kubelet refused the pod: the node has less of the resource left than the pod requests. Another scheduler, a"
        " pod with nodeName, or devices that became unhealthy took it",
        "Delete the pod. Its controller creates another. If it returns, find what else places pods there.",
        CERTAIN,
    ),
    Symptom(
        "admission",
        words(r"^TopologyAffinityError"),
        "kubelet's topology manager found no NUMA node with enough CPUs and devices for the pod",
        "Request fewer CPUs or GPUs, or relax topologyManagerPolicy of the node's kubelet.",
        CERTAIN,
    ),
    Symptom(
        "admission",
        words(r"^(?:NodeAffinity|NodeName|NodePorts|Taint|Predicate)"),
        "kubelet refused the pod: the node's labels, taints, or ports no longer fit the pod",
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
        "Delete the pod. Its controller creates another.",
        CERTAIN,
    ),
    Symptom(
        "evicted",
        words(r"^(?:Preempt\w*|PreemptionByScheduler)|preempted in order to"),
        "the scheduler preempted it for a pod with a higher priority",
        "Set a higher priorityClassName, or add capacity. A controller creates another pod.",
        CERTAIN,
    ),
    Symptom(
        "evicted",
        words(r"^Evicted: .{0,20}(?:Usage of EmptyDir|(?:Pod|Container) .{0,80}exceed.{0,20} .{0,60}limit)"),
        "kubelet evicted it: it wrote more to its disk or to an emptyDir than its limit allows",
        "Raise the volume's sizeLimit or the ephemeral-storage limit, or write to a separate volume.",
        CERTAIN,
    ),
    Symptom(
        "evicted",
        words(r"^(?:Evicted|TaintManagerEviction|Eviction\w*|DeletionByTaintManager|DeletionByPodGC)"),
        "it was evicted: the node ran short of disk, memory, or process IDs, has a taint, was drained, or is gone",
        "Read the resource in the message. Set requests and limits for it, or free it on the node.",
        CERTAIN,
    ),
    Symptom(
        "evicted",
        words(r"^DeadlineExceeded"),
        "it was ended because it ran longer than activeDeadlineSeconds allows",
        "Raise activeDeadlineSeconds of the pod or Job, or make the program end sooner.",
        CERTAIN,
    ),
    Symptom(
        "node_not_ready",
        words(r"^(?:NodeLost|NodeNotReady|NodeControllerEviction)"),
        "its node does not answer",
        "Check the node and its kubelet: journalctl -u kubelet.",
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
