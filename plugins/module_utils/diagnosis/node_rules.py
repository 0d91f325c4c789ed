# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules about nodes, their GPUs and our daemons. Pure."""

from __future__ import annotations

import re
from typing import Dict, Iterator

from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.evidence import Evidence, Node
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.finding import (
    FRACTIONS,
    Finding,
    Said,
    gpus_of,
    modes_of,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.symptoms import CERTAIN, LIKELY, POSSIBLE
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.gpu_view import NodeView
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.gpu_xids import DEVICE, XIDS, described
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.inventory_annotation import GpuView
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.modes import DRA_MODE

_NODE_EVENTS = (
    "ConfigurationRefused",
    "ConfigurationMissing",
    "ConfigurationInvalid",
    "ConfigurationUnreadable",
    "MigConfigFailed",
    "MigConfigWaiting",
)
"""What explains that the plugin does not apply a configuration, or not yet."""

_XID = re.compile(r"\bXID ([0-9]{1,5})\b", re.IGNORECASE)
_LOST = re.compile(r"lost|fallen off|not enumerated", re.IGNORECASE)
_FALLEN_OFF = 79


def extender(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding if the extender is needed and not up."""
    pod, daemons = evidence.pod, evidence.daemons
    if daemons is None:
        return
    waits = pod is not None and pod.unscheduled is not None and bool(modes_of(pod.wants) & set(FRACTIONS))
    asked = waits or pod is None
    modes = set(FRACTIONS) if pod is None else modes_of(pod.wants) & set(FRACTIONS)
    shared = any(node.view is not None and node.view.mode in modes for node in evidence.nodes)
    extenders = [daemon for daemon in daemons if daemon.kind == "extender"]
    down = [daemon for daemon in extenders if not daemon.ready]
    said = tuple(Said(f"pod {daemon.name}", text) for daemon in down for text in daemon.told)
    remedy = "Look at its pods and their log. Run site.yml --tags scheduler."
    if down and len(down) == len(extenders):
        what = "no pod of the extender is ready: pods that request a share stay pending"
        yield Finding("extender_down", "extender", what, said, remedy, CERTAIN if asked else POSSIBLE)
    elif down:
        what = "a pod of the extender is not ready: its control plane's scheduler places no shares"
        yield Finding("extender_down", "extender", what, said, remedy, LIKELY if asked else POSSIBLE)
    elif not extenders and asked and shared:
        what = "the cluster has no extender, but nodes share GPUs: a share may not fit any GPU of a node with several"
        none = Said("pods", "no pod runs kube-accel extender")
        yield Finding("extender_down", "extender", what, (none,), remedy, POSSIBLE)


def plugins(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for each node whose plugin is not up or not known to kubelet."""
    modes = modes_of(evidence.pod.wants) if evidence.pod is not None else set()
    for node in evidence.nodes:
        if node.view is not None and node.view.mode and (not modes or node.view.mode in modes):
            yield from _plugin(evidence, node, node.view)


def _plugin(evidence: Evidence, node: Node, view: NodeView) -> Iterator[Finding]:
    subject = f"node {node.name}"
    # Why a pod failed may be something else.
    sure = CERTAIN if evidence.pod is None else LIKELY
    mine = [daemon for daemon in evidence.daemons or () if daemon.kind == "plugin" and daemon.node == node.name]
    if evidence.daemons is not None and not mine:
        command = "dra" if view.mode == DRA_MODE else "plugin"
        said = Said(
            "labels and pods of the node",
            f"it should serve mode {view.mode}, and no pod of it runs kube-accel {command}",
        )
        remedy = "Run site.yml --tags gpu_plugins. If the node has a taint, check the DaemonSet's tolerations."
        yield Finding("plugin_down", subject, "no plugin runs on it", (said,), remedy, sure)
        return
    if mine and not any(daemon.ready for daemon in mine):
        states = tuple(Said(f"pod {daemon.name}", text) for daemon in mine for text in daemon.told)
        remedy = "Look at the pod and its log. It usually waits for the driver or the container runtime."
        yield Finding("plugin_down", subject, "its plugin is not ready", states, remedy, sure)
        return
    facts = [
        Said(f"metrics of node {node.name}", f"kubelet does not know the plugin of {sample.labels.get('resource')}")
        for sample in node.samples or ()
        # The page may be older than the registration; what kubelet offers is not.
        if sample.name == "accel_device_plugin_registered"
        and sample.value == 0
        and not node.offers.get(sample.labels.get("resource", ""))
    ]
    by_claims = view.mode == DRA_MODE
    if mine and not by_claims and not any(node.offers.values()) and any(gpu.health == "healthy" for gpu in view.gpus):
        offers = ", ".join(f"{name}: {count}" for name, count in sorted(node.offers.items()))
        facts.append(Said("status.allocatable", offers or "no GPU resources"))
    if facts:
        what, remedy = "its plugin runs, but kubelet does not know it", "Look at the plugin's log. Restart kubelet."
        yield Finding("not_registered", subject, what, tuple(facts), remedy, sure)
    if view.problem and mine:
        what = "the inventory of its plugin is incomplete or unreadable"
        remedy = "Look at the plugin's log. The versions of plugin and controller must be neighbors."
        said = Said("ResourceSlices of the node" if by_claims else "annotation of the node", view.problem)
        yield Finding("plugin_silent", subject, what, (said,), remedy, LIKELY)


def nodes(evidence: Evidence) -> Iterator[Finding]:
    """Yield findings for nodes that are not well, GPUs aside."""
    for node in evidence.nodes:
        subject = f"node {node.name}"
        own = evidence.pod is None or evidence.pod.node == node.name
        if node.not_ready:
            said = Said("condition Ready", node.not_ready)
            remedy = "Look at its kubelet: journalctl -u kubelet."
            yield Finding("node_not_ready", subject, "it is not ready", (said,), remedy, CERTAIN if own else POSSIBLE)
        if node.cordoned:
            said = Said("spec.unschedulable", "true")
            remedy = "Unless the node is under maintenance, uncordon it (kubectl uncordon)."
            yield Finding("cordoned", subject, "it takes no new pods", (said,), remedy, POSSIBLE)
        silent = _silent(node)
        if silent is not None:
            remedy = "Run nvidia-smi on the node. If it hangs, drain and reboot the node."
            sure = CERTAIN if own else POSSIBLE
            yield Finding("driver_silent", subject, "its driver does not answer", (silent,), remedy, sure)
        for event in node.events:
            if event.reason in _NODE_EVENTS:
                what = "a configuration of its GPUs is not applied"
                said = Said(f"event {event.reason}", event.message)
                remedy = "Correct the configuration, or do what the event waits for."
                yield Finding("configuration", subject, what, (said,), remedy, LIKELY if own else POSSIBLE)


def _silent(node: Node) -> Said | None:
    status, message = node.condition
    if status == "Unknown":
        return Said("condition GpusHealthy", message)
    for sample in node.samples or ():
        nvml = sample.name == "accel_collector_success" and sample.labels.get("collector") == "nvml"
        if nvml and sample.value == 0:
            return Said(f"metrics of node {node.name}", "NVML does not answer")
    return None


def gpus(evidence: Evidence) -> Iterator[Finding]:
    """GPUs that are not well, and the XIDs they had."""
    pod = evidence.pod
    for node in evidence.nodes:
        own = {gpu.uuid for gpu in gpus_of(pod, node)}
        for gpu in () if node.view is None else node.view.gpus:
            if not own or gpu.uuid in own:
                sure = CERTAIN if pod is None else LIKELY if own else POSSIBLE
                yield from _gpu(node, gpu, sure)
        if not any(gpu.health == "unhealthy" for gpu in (() if node.view is None else node.view.gpus)):
            yield from _missing(node, CERTAIN if pod is None else LIKELY if pod.node == node.name else POSSIBLE)
        yield from _over(node, LIKELY if pod is None else POSSIBLE)


def _gpu(node: Node, gpu: GpuView, confidence: str) -> Iterator[Finding]:
    """``confidence`` is that of what is so now."""
    subject = f"node {node.name} GPU {gpu.index}"
    now = Said("annotation of the node", f"GPU {gpu.index} ({gpu.model}) is {gpu.health}: {gpu.reason or '-'}")
    numbers = [int(number) for number in _XID.findall(gpu.reason)]
    for number in numbers:
        yield _xid(number, subject, now, confidence)
    for number, said in _counted(node, gpu).items():
        if number not in numbers:
            device = number in XIDS and XIDS[number].fault == DEVICE
            yield _xid(number, subject, said, LIKELY if device and confidence != POSSIBLE else POSSIBLE)
    if gpu.health == "unhealthy" and not numbers:
        lost = _LOST.search(gpu.reason) is not None
        rule, what = ("gpu_lost", "it is lost") if lost else ("gpu_unhealthy", "it is not healthy")
        remedy = XIDS[_FALLEN_OFF].remedy if lost else "Do what nvidia-smi -q shows as GPU Recovery Action."
        yield Finding(rule, subject, f"{what}, and not allocated", (now,), remedy, confidence)


def _missing(node: Node, confidence: str) -> Iterator[Finding]:
    """GPUs that the annotation does not have, because they do not even report their UUID."""
    states = {s.labels.get("state"): s.value for s in node.samples or () if s.name == "accel_node_gpus"}
    expected, visible = states.get("expected", 0.0), states.get("visible", 0.0)
    said = [Said("condition GpusHealthy", node.condition[1])] if node.condition[0] == "False" else []
    if expected > visible:
        said.append(Said(f"metrics of node {node.name}", f"{visible:g} of {expected:g} GPUs answer"))
    if said:
        remedy = XIDS[_FALLEN_OFF].remedy
        yield Finding("gpu_lost", f"node {node.name}", "one of its GPUs is gone", tuple(said), remedy, confidence)


def _counted(node: Node, gpu: GpuView) -> Dict[int, Said]:
    """XIDs of a GPU that its plugin has counted."""
    told = {}
    for sample in node.samples or ():
        number = sample.labels.get("xid", "")
        mine = sample.name == "accel_gpu_xid_errors_total" and sample.labels.get("uuid") == gpu.uuid
        if mine and sample.value > 0 and re.fullmatch("[0-9]{1,5}", number):
            told[int(number)] = Said(f"metrics of node {node.name}", f"counted {sample.value:g} times")
    return told


def _over(node: Node, confidence: str) -> Iterator[Finding]:
    """XIDs reported for GPUs that are well again. For GPUs that are not, the annotation says what is wrong."""
    bad = {gpu.index for gpu in node.view.gpus if gpu.health == "unhealthy"} if node.view is not None else set()
    for event in node.events:
        match = re.match(r"GPU ([0-9]{1,3})\b", event.message)
        if event.reason == "GpuUnhealthy" and match is not None and int(match[1]) not in bad:
            for number in dict.fromkeys(_XID.findall(event.message)):
                said = Said("event GpuUnhealthy", event.message)
                yield _xid(int(number), f"node {node.name} GPU {int(match[1])}", said, confidence)


def _xid(number: int, subject: str, said: Said, confidence: str) -> Finding:
    xid = described(number)
    return Finding("xid", f"{subject} XID {number}", xid.verdict, (said,), xid.remedy, confidence)
