# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules about a pod's way to its GPUs: scheduled, admitted, started. Pure."""

from __future__ import annotations

import re
from typing import Dict, Iterable, Iterator, List, Optional, Set, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis import claim_rules as of_claims
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis import pod_symptoms as symptoms
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.admission_symptoms import AT_ADMISSION, REFUSED
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.evidence import Container, Event, Evidence, Pod
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.finding import (
    Finding,
    Said,
    found,
    modes_of,
    subject_of,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.symptoms import (
    CERTAIN,
    LIKELY,
    POSSIBLE,
    Symptom,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.waiting_symptoms import (
    NOT_MADE,
    QUOTA_REMEDY,
    WAITING,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.modes import DRA_MODE, WHOLE_MODE

_LONGEST = 8192
"""Characters of a message that are looked at."""
_ADMISSION = "UnexpectedAdmissionError"
_EVENTS_SHOWN = 3
"""The latest events that are shown of a pod that does not run."""
_TRIED = ("FailedScheduling", "FilteringFailed")
"""Events of schedulers, HAMi's extender among them, that found no node."""
_INITIALIZING = "PodInitializing"
_WHERE = {
    "runtime": "Read the runtime's message, and journalctl -u containerd (or crio) on {node}: a container that was not"
    " started has no log.",
    "pod": "Correct what the message names in the pod. {describe} shows the events.",
    "kubelet": "See the events ({describe}) and journalctl -u kubelet on {node}.",
    "log": "kubectl logs -n {pod.namespace} {pod.name} -c {container.name} --previous",
}
"""Where to look, by whose words they are."""
_EVENTS = {
    "GpuShareRefused": (
        "start_refused",
        "the node's plugin refused to start a container",
        "Delete the pod, so that the scheduler places it again.",
        CERTAIN,
    ),
    "MpsInterrupted": (
        "mps",
        "the GPU's MPS server ended with all its clients, for example after a fault of one of them",
        "Start the pod again. Give a whole GPU to programs that cause faults.",
        CERTAIN,
    ),
    "GpuAccountChanged": (
        "account_changed",
        "a container changed its own account of GPU memory, and the plugin corrected it",
        "Check what the container runs. No CUDA program does this by itself.",
        LIKELY,
    ),
    "QuotaOverrideRefused": (
        "override_refused",
        "the limit that an administrator wrote for a container is not used",
        "Correct the ConfigMap kube-accel-quota-overrides as the event says.",
        CERTAIN,
    ),
    "RemovedForReplacement": (
        "admission",
        "it failed admission and was removed, so that its controller creates another",
        "Look at the pod that replaced it.",
        CERTAIN,
    ),
}
"""Rule, what, remedy and confidence, by the reason of an event that our plugin tells of a pod."""


def started(evidence: Evidence) -> Iterator[Finding]:
    """Yield findings for a pod that came to a node and does not run there."""
    pod = evidence.pod
    if pod is None:
        return
    yield from _refused(pod)
    explained = set()
    for container in pod.containers:
        for finding in _unstarted(pod, container):
            explained.add(finding.rule)
            yield finding
    states = [Said(subject_of(pod, c), c.waiting[:_LONGEST]) for c in pod.containers if c.waiting]
    for event in reversed(pod.events if _not_running(pod) else ()):
        said = _said(event)
        symptom = _first(symptoms.AT_START, said) or _first(symptoms.BY_EVENT, Said("", f"{event.reason}: {said.text}"))
        if symptom is not None and not event.normal and symptom.rule not in explained:
            explained.add(symptom.rule)
            yield found(symptom, f"pod {pod.full_name}", said, *states)


def _refused(pod: Pod) -> Iterator[Finding]:
    """Yield why kubelet, the scheduler or a controller ended the pod as a whole."""
    subject = f"pod {pod.full_name}"
    rejected = [_said(event) for event in pod.events if event.reason == _ADMISSION]
    if pod.reason == _ADMISSION:
        rejected.append(Said("state of the pod", pod.message[:_LONGEST]))
    for said in rejected[-1:]:
        fitting = _first(AT_ADMISSION, said)
        if fitting is not None:
            yield found(fitting, subject, said)
    text = ": ".join(filter(None, (pod.reason, pod.message))) or pod.disrupted
    if rejected or pod.phase not in ("Failed", "Unknown") or not text:
        return
    state = Said("state of the pod", text[:_LONGEST])
    symptom = _first(REFUSED, state)
    if symptom is not None:
        yield found(symptom, subject, state)


def _unstarted(pod: Pod, container: Container) -> Iterator[Finding]:
    """Yield findings for a container whose state has words that are known."""
    where = subject_of(pod, container)
    texts = (container.waiting, container.ended if container.never_ran else "")
    states = [Said("state of the container", text[:_LONGEST]) for text in texts if text]
    for said in states:
        symptom = _first(symptoms.AT_START, said)
        if symptom is not None:
            yield found(symptom, where, said)
            break
    if container.killed:
        what = "the kernel killed it because of host memory, not GPU memory"
        remedy = "Raise resources.limits.memory of the container, or load less at a time."
        said = Said("state of the container", container.ended[:_LONGEST])
        yield Finding("host_oom", where, what, (said,), remedy, CERTAIN)


def not_running(evidence: Evidence, explained: Set[str]) -> Iterator[Finding]:
    """Yield the least that can be said of a pod that does not run: whose words there are, and where to look.

    ``explained`` are the subjects of what was found already.
    """
    pod = evidence.pod
    if pod is None or f"pod {pod.full_name}" in explained:
        return
    told = [_said(event) for event in pod.events if not event.normal][-_EVENTS_SHOWN:][::-1]
    describe = f"kubectl describe pod -n {pod.namespace} {pod.name}"
    if not pod.exists:
        what = "the pod does not exist; only its events are left" if told else "the pod does not exist"
        remedy = f"Check its name, its namespace, and its controller: kubectl get events -n {pod.namespace}."
        yield Finding("not_running", f"pod {pod.full_name}", what, tuple(told), remedy, POSSIBLE)
        return
    waits = [container for container in pod.containers if container.waiting or container.never_ran]
    unfinished = _unfinished(pod)
    for container in waits:
        where = subject_of(pod, container)
        if container.waiting.startswith(_INITIALIZING) and unfinished:
            # The finding names one of these.
            if not any(subject_of(pod, other) in explained or other.waiting for other in unfinished):
                yield _initializing(pod, container, unfinished[0])
        elif where not in explained:
            state = container.waiting if container.waiting and not container.never_ran else container.ended
            said = (Said("state of the container", state[:_LONGEST]), *told)
            meaning, look = _state(state)
            remedy = _WHERE[look].format(pod=pod, container=container, node=pod.node or "its node", describe=describe)
            yield Finding("not_running", where, meaning, said, remedy, LIKELY)
    if waits or not _not_running(pod) or any(subject.startswith(f"pod {pod.full_name} ") for subject in explained):
        return
    text = ": ".join(filter(None, (pod.reason, pod.message))) or f"phase {pod.phase or 'not set'}"
    said = (Said("state of the pod", text[:_LONGEST]), *told)
    what = "it does not run, and kubelet says why" if told else "it does not run, and no source gives a reason"
    remedy = _WHERE["kubelet"].format(pod=pod, node=pod.node or "its node", describe=describe)
    yield Finding("not_running", f"pod {pod.full_name}", what, said, remedy, LIKELY if told else POSSIBLE)


def _unfinished(pod: Pod) -> List[Container]:
    """Containers that others of the pod wait for."""
    return [container for container in pod.containers if container.first and (container.code != 0 or container.waiting)]


def _initializing(pod: Pod, container: Container, first: Container) -> Finding:
    what = f"it starts after init container {first.name}, which has not ended"
    remedy = f"kubectl logs -n {pod.namespace} {pod.name} -c {first.name}"
    said = Said("state of the container", container.waiting[:_LONGEST])
    return Finding("not_running", subject_of(pod, container), what, (said,), remedy, POSSIBLE)


def _state(text: str) -> Tuple[str, str]:
    """Return what the state of a container that does not run means, and where to look."""
    reason = re.match(r"\w{0,64}", text)
    known = symptoms.STATES.get(reason[0]) if reason is not None else None
    return known or ("it does not run, and kubelet says why", "kubelet")


def _not_running(pod: Pod) -> bool:
    """Return whether a pod, or a container of it, is to run and does not."""
    ended_well = pod.phase in ("Succeeded", "Running")
    return (
        pod.exists
        and pod.unscheduled is None
        and (not ended_well or any(container.waiting for container in pod.containers))
    )


def _first(table: Iterable[Symptom], said: Said) -> Optional[Symptom]:
    return next((symptom for symptom in table if symptom.pattern.search(said.text)), None)


def _said(event: Event) -> Said:
    return Said(f"event {event.reason}", (event.message or event.reason)[:_LONGEST])


def told(evidence: Evidence) -> Iterator[Finding]:
    """Yield what our plugin and the makers of pods reported about the pod."""
    pod = evidence.pod
    if pod is None:
        return
    for event in pod.events:
        said = Said(f"event {event.reason}", event.message)
        if event.reason in _EVENTS:
            rule, what, remedy, confidence = _EVENTS[event.reason]
            yield Finding(rule, f"pod {pod.full_name}", what, (said,), remedy, confidence)
        elif event.reason == "FailedCreate":
            symptom = _first(NOT_MADE, Said("", event.message[:_LONGEST]))
            if symptom is not None:
                quota = symptom.rule == "namespace_quota"
                yield found(symptom, f"namespace {pod.namespace}" if quota else f"pod {pod.full_name}", said)


def leaving(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for a pod that is deleted and still there."""
    pod = evidence.pod
    if pod is None or pod.finalizers is None:
        return
    if pod.finalizers:
        what = "it is deleted, and stays until its finalizers are removed"
        remedy = "Look at the controller of each finalizer. The controller removes it when its work is done."
        said = Said("metadata.finalizers", ", ".join(pod.finalizers)[:_LONGEST])
    else:
        what = "it is being deleted, and kubelet has not ended it yet"
        remedy = f"Wait for its grace period. Then look at journalctl -u kubelet on {pod.node or 'its node'}."
        said = Said("metadata.deletionTimestamp", "set")
    events = [_said(event) for event in pod.events if not event.normal][-_EVENTS_SHOWN:]
    yield Finding("not_running", f"pod {pod.full_name}", what, (said, *reversed(events)), remedy, LIKELY)


def unready(evidence: Evidence) -> Iterator[Finding]:
    """Yield findings for a pod that runs and is not ready, or that kubelet keeps ending over a probe."""
    pod = evidence.pod
    if pod is None or pod.phase != "Running" or pod.finalizers is not None:
        return
    probed = False
    for container in pod.containers:
        for symptom, shows in (
            (symptoms.ENDED_BY_PROBE, container.restarts > 0 or container.failed),
            (symptoms.UNREADY_BY_PROBE, container.unready),
        ):
            said = _probed(pod, container, symptom) if shows else None
            if said is not None:
                probed = True
                yield found(symptom, subject_of(pod, container), said)
    slow = ", ".join(container.name for container in pod.containers if container.unready)
    if (pod.unready or slow) and not probed and not any(c.waiting or c.failed for c in pod.containers):
        state = Said("condition Ready", pod.unready or f"not ready: {slow}")
        said = (state, *[_said(e) for e in pod.events if not e.normal][-_EVENTS_SHOWN:])
        remedy = f"Look at its log and events: kubectl describe pod -n {pod.namespace} {pod.name}."
        yield Finding("not_ready", f"pod {pod.full_name}", "it runs, but is not ready", said, remedy, POSSIBLE)


def _may_be_killed(container: Container) -> bool:
    """Return whether kubelet may have ended it: by SIGTERM, and by SIGKILL after its grace period."""
    return container.code in (None, 0, 137, 143)


def _probed(pod: Pod, container: Container, symptom: Symptom) -> Optional[Said]:
    """Return the last event of a probe that may be this container's."""
    for event in reversed(pod.events):
        named = re.match(r"Container (\S{1,63}) failed ", event.message)
        mine = named[1] == container.name if named is not None else _may_be_killed(container) or container.unready
        if mine and symptom.pattern.search(f"{event.reason}: {event.message[:_LONGEST]}"):
            return _said(event)
    return None


def waiting(evidence: Evidence) -> Iterator[Finding]:
    """Yield findings for a pod that no node was found for."""
    pod = evidence.pod
    if pod is None or pod.unscheduled is None or pod.phase not in ("", "Pending"):
        return
    subject = f"pod {pod.full_name}"
    mismatched = [*_modes(evidence, pod), *of_claims.waiting(evidence)]
    yield from mismatched
    gates = [Said("spec", f"scheduling gates: {', '.join(pod.gates)}"[:_LONGEST])] if pod.gates else []
    if not pod.unscheduled and not gates:
        name = pod.scheduler or "default-scheduler"
        said = Said("state of the pod", f"no condition PodScheduled; schedulerName is {name}")
        remedy = f"Check whether scheduler {name} runs: kubectl get pods -A, leases in kube-system."
        yield Finding("scheduler", subject, "no scheduler has tried it", (said,), remedy, LIKELY)
        return
    sources = [*gates, Said("condition PodScheduled", pod.unscheduled[:_LONGEST])]
    tried = [_said(event) for event in pod.events if event.reason in _TRIED]
    sources += reversed(tried)
    known = [
        found(symptom, f"namespace {pod.namespace}" if symptom.rule == "namespace_quota" else subject, said)
        for symptom in WAITING
        for said in [entry for entry in sources if symptom.pattern.search(entry.text)][:1]
        # What no node serves there is not enough of either.
        if symptom.rule != "no_room" or all(finding.rule == "no_room" for finding in mismatched)
    ]
    yield from known
    if not known and not mismatched:
        what = "the scheduler found no node for it"
        remedy = "Read the scheduler's message. The playbook inspect shows what each node has left."
        yield Finding("pending", subject, what, tuple(sources[:1]), remedy, POSSIBLE)


def _modes(evidence: Evidence, pod: Pod) -> Iterator[Finding]:
    """Yield findings on what the pod asks for that nodes' modes do not serve."""
    modes, subject = modes_of(pod.wants), f"pod {pod.full_name}"
    asks = Said("limits of the pod", f"requests {', '.join(pod.wants)}")
    if len(modes) > 1:
        what = f"it requests resources of modes {' and '.join(sorted(modes))}, but a node serves one mode"
        yield Finding("mode_mismatch", subject, what, (asks,), "Use the resources of one mode.", CERTAIN)
        return
    served: Dict[str, List[str]] = {}
    for node in evidence.nodes:
        if node.view is not None and node.view.mode:
            served.setdefault(node.view.mode, []).append(node.name)
    if DRA_MODE in served:
        # Its device class may serve the resource too.
        modes = modes - {WHOLE_MODE}
    there = "; ".join(f"{kind}: {', '.join(names[:8])}" for kind, names in sorted(served.items())) or "none"
    said = (asks, Said("modes of the nodes", there))
    for mode in modes - set(served) if evidence.everywhere else ():
        what = f"it requests resources of mode {mode}, which no node serves"
        remedy = f"Set gpu_mode: {mode} for a node and run site.yml, or use the resources of a mode that a node serves."
        yield Finding("mode_mismatch", subject, what, said, remedy, CERTAIN)
    for mode in modes & set(served):
        offers = [node.offers for node in evidence.nodes if node.name in served[mode]]
        for resource in pod.wants:
            if not any(offer.get(resource) for offer in offers):
                what = f"no node of mode {mode} offers {resource}"
                remedy = "Find what is wrong with these nodes. For time-slicing and MIG, check the configuration."
                yield Finding("not_offered", subject, what, said, remedy, LIKELY)


def quotas(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for a ResourceQuota that is used up, where the pod is absent or pending."""
    pod = evidence.pod
    if pod is None or (pod.exists and pod.unscheduled is None):
        return
    for quota in evidence.quotas:
        if quota.full and (not pod.exists or quota.resource.rpartition("requests.")[2] in pod.wants):
            said = Said(f"ResourceQuota {quota.name}", f"{quota.resource}: {quota.used} of {quota.hard}")
            what = "the namespace has used up its ResourceQuota"
            yield Finding("namespace_quota", f"namespace {pod.namespace}", what, (said,), QUOTA_REMEDY, POSSIBLE)
