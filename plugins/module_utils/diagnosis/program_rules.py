# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules about the programs in a pod's containers: memory, allocators, CUDA, number formats. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Dict, Iterator, Optional, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.cuda import (
    compat as cuda_compat,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.cuda import (
    errors as cuda_errors,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.cuda import (
    needs as cuda_needs,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis import symptoms
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.evidence import Container, Evidence, Node, Pod
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.finding import (
    Finding,
    Said,
    found,
    gpus_of,
    has_share,
    last,
    lines_of,
    samples_of,
    subject_of,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.symptoms import CERTAIN, LIKELY, POSSIBLE
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.gpu_xids import described

_FOREIGN = 512 << 20
"""Bytes of a GPU outside of pods that are worth a word."""
_NEAR = 0.9
"""The ratio of its share from which on a container was near its limit."""
_REFUSED = {
    "over the container's limit": "quota",
    "over the containers' limit": "quota",
    "itself is full": "device",
    "limits could not be read": "policy",
}
_SUBJECT = re.compile(r"containers? ([^:]{1,2000}): ")
_FAILURES = "accel_container_gpu_alloc_failures_total"
_OUT_OF_MEMORY = 2
"""CUDA's code, which has rules of its own."""
_OF_CAPABILITY = ("bfloat16", "float16", "fp8", "cuda_mismatch")
_NVRM = re.compile(r"NVRM: Xid \([^()]{1,60}\): ([0-9]{1,4})\b")
_ENDS = {
    126: "its command is not executable",
    127: "its command is not in the image",
    132: "it was killed by an instruction that the CPU lacks (SIGILL)",
    134: "it aborted itself (SIGABRT)",
    135: "it was killed because memory was not available, for example a full /dev/shm (SIGBUS)",
    136: "it was killed by an arithmetic error (SIGFPE)",
    137: "it was killed from outside (SIGKILL): by a probe, a deletion, or the kernel for lack of memory",
    139: "it was killed by a bad address (SIGSEGV)",
    143: "it was asked to end (SIGTERM)",
}
"""What exit codes of shells and container runtimes stand for."""
_LOST = "kubelet lost it, for example by a reboot or a deletion on the node"
"""What is said of an end that kubelet did not see."""


def _containers(evidence: Evidence) -> Iterator[Tuple[Pod, Container, Optional[Node]]]:
    """Yield the pod's containers, each with the node."""
    pod = evidence.pod
    if pod is not None:
        node = evidence.node(pod.node)
        for container in pod.containers:
            yield pod, container, node


def memory(evidence: Evidence) -> Iterator[Finding]:
    """Yield findings where the memory of the GPU, or of the share, did not suffice."""
    for pod, container, node in _containers(evidence):
        refused = {reason: tuple(_refusals(pod, container, node, reason)) for reason in ("quota", "device", "policy")}
        spoken = _spoken(container)
        where, neighbours = subject_of(pod, container), tuple(_neighbours(pod, node))
        if refused["quota"]:
            said = (*refused["quota"], *_peak(pod, container, node), *spoken)
            yield _quota_oom(where, pod, said, CERTAIN)
        if refused["device"]:
            yield _device_oom(where, (*refused["device"], *spoken, *neighbours), CERTAIN)
        if refused["policy"]:
            what = "GPU memory was refused, because the container's limits could not be read"
            remedy = "Start the pod again. If the error returns, look at the log of the node's plugin."
            yield Finding("limits_unreadable", where, what, refused["policy"], remedy, CERTAIN)
        if spoken and not any(refused.values()):
            yield _unrefused(where, pod, container, node, spoken)


def _unrefused(where: str, pod: Pod, container: Container, node: Optional[Node], spoken: Tuple[Said, ...]) -> Finding:
    """Out of memory by its own words, and no refusal was counted."""
    neighbours, peak = tuple(_neighbours(pod, node)), _peak(pod, container, node)
    if not has_share(container):
        return _device_oom(where, (*spoken, *neighbours), _sure(container, LIKELY))
    if samples_of(node, _FAILURES, pod, container) and not peak:
        told = Said(f"metrics of node {pod.node}", "no allocation of the container was refused")
        return _device_oom(where, (*spoken, told, *neighbours), POSSIBLE)
    return _quota_oom(where, pod, (*spoken, *peak), _sure(container, LIKELY))


def _quota_oom(where: str, pod: Pod, said: Tuple[Said, ...], confidence: str) -> Finding:
    names = [name for name in pod.wants if name.endswith(("-memory", "gpu-mem"))]
    remedy = f"Ask for more {' or '.join(names) or 'memory'}, or make batches or contexts smaller."
    return Finding("quota_oom", where, "it needed more GPU memory than its share has", said, remedy, confidence)


def _device_oom(where: str, said: Tuple[Said, ...], confidence: str) -> Finding:
    remedy = "Use a larger GPU or a whole one, make batches smaller, or end other programs on the GPU."
    return Finding("device_oom", where, "the GPU itself was full", said, remedy, confidence)


def _refusals(pod: Pod, container: Container, node: Optional[Node], reason: str) -> Iterator[Said]:
    for event in pod.events:
        mine = event.reason == "GpuMemoryRefused" and _about(pod, container, event.message)
        if mine and any(words in event.message and meant == reason for words, meant in _REFUSED.items()):
            yield Said("event GpuMemoryRefused", event.message)
    for sample in samples_of(node, _FAILURES, pod, container):
        if sample.labels.get("reason") == reason and sample.value > 0:
            yield Said(f"metrics of node {pod.node}", f"{sample.value:g} allocations were refused, reason {reason}")


def _about(pod: Pod, container: Container, message: str) -> bool:
    """Return whether an event names a container: alone, or with others that have the same claim."""
    found = _SUBJECT.match(message)
    return found is not None and bool(
        {container.name, f"{pod.name}/{container.name}"} & set(found.group(1).split(", "))
    )


def _peak(pod: Pod, container: Container, node: Optional[Node]) -> Tuple[Said, ...]:
    """Return how near to its share the container came, where that was near."""
    family = "accel_container_gpu_memory_"
    asked = {s.labels.get("uuid"): s.value for s in samples_of(node, f"{family}request_bytes", pod, container)}
    for sample in samples_of(node, f"{family}peak_bytes", pod, container):
        share = asked.get(sample.labels.get("uuid"), 0.0)
        if share > 0 and sample.value >= _NEAR * share:
            text = f"it used up to {100 * sample.value / share:.0f} % of its share of GPU memory"
            return (Said(f"metrics of node {pod.node}", text),)
    return ()


def _neighbours(pod: Pod, node: Optional[Node]) -> Iterator[Said]:
    """Yield who else is on the pod's GPUs."""
    for gpu in gpus_of(pod, node):
        others = sorted({f"{t.namespace}/{t.pod}" for t in gpu.tenants} - {pod.full_name})
        if others:
            yield Said(f"annotation of node {pod.node}", f"GPU {gpu.index} is shared with {', '.join(others)}")
        for sample in () if node is None else node.samples or ():
            reason = sample.labels.get("reason")
            foreign = sample.name == "accel_gpu_memory_unattributed_bytes" and reason != "driver"
            if foreign and sample.labels.get("uuid") == gpu.uuid and sample.value > _FOREIGN:
                whose = "are in use by all containers that share it" if reason == "shared" else "belong to no pod"
                yield Said(
                    f"metrics of node {pod.node}", f"{sample.value / (1 << 30):.1f} GiB of GPU {gpu.index} {whose}"
                )


def allocators(evidence: Evidence) -> Iterator[Finding]:
    """Yield findings on a framework's allocator that ran out of memory and does not go with a share."""
    for pod, container, _node in _containers(evidence):
        spoken, settings = _spoken(container), container.environment
        if not spoken or not (has_share(container) or "nvidia.com/gpu.shared" in container.asks):
            continue
        for allocator in symptoms.ALLOCATORS:
            value = settings.get(allocator.variable, "")
            traces = [Said("image", container.image)] if allocator.pattern.search(container.image) else []
            traces += [Said("environment", name) for name in sorted(settings) if allocator.pattern.search(name)]
            traces += last(container, allocator.pattern)
            if traces and value.lower() not in allocator.good:
                what = f"{allocator.framework}'s allocator does not fit a share of GPU memory"
                setting = Said("environment", f"{allocator.variable}={value or '(not set)'}")
                said = (*spoken, *traces[:2], setting)
                yield Finding("allocator_conflict", subject_of(pod, container), what, said, allocator.remedy, LIKELY)


def words(evidence: Evidence) -> Iterator[Finding]:
    """Yield findings on what containers write that is known by its words."""
    for pod, container, node in _containers(evidence):
        where = subject_of(pod, container)
        for symptom in symptoms.IN_LOGS:
            for said in last(container, symptom.pattern):
                facts = (said, *(_capability(node) if symptom.rule in _OF_CAPABILITY else ()))
                yield replace(found(symptom, where, *facts), confidence=_sure(container, symptom.confidence))
        for error, told in _cuda_errors(container).items():
            rule = symptoms.rule_of(error.code)
            subject = f"{where} {error.name}" if rule == "cuda_error" else where
            facts = (told, *_versions(node)) if rule == "cuda_mismatch" else (told,)
            what = f"{error.name}: {error.cause}"
            yield Finding(rule, subject, what, facts, error.remedy, _sure(container, LIKELY))
        for number, told in _xids(container).items():
            xid = described(number)
            yield Finding("xid", f"{where} XID {number}", xid.verdict, (told,), xid.remedy, _sure(container, LIKELY))


def _sure(container: Container, confidence: str) -> str:
    """Return how sure a finding is: a program that goes on, or ended well, got along with what it reported."""
    if container.failed:
        return confidence
    less = LIKELY if confidence == CERTAIN else confidence
    return POSSIBLE if container.code == 0 else less


def _cuda_errors(container: Container) -> Dict[cuda_errors.CudaError, Said]:
    """Return the errors of CUDA that its logs name, each with the last line that does."""
    return {
        error: said
        for said in lines_of(container)
        for error in cuda_errors.named(said.text)
        if error.code != _OUT_OF_MEMORY or symptoms.HOST_MEMORY.search(said.text)
    }


def _xids(container: Container) -> Dict[int, Said]:
    """XIDs that a log quotes from the kernel's."""
    return {int(number): said for said in lines_of(container) for number in _NVRM.findall(said.text)}


def _spoken(container: Container) -> Tuple[Said, ...]:
    """Return the last line by which its program ran out of the GPU's memory; none or one."""
    matching = [
        said
        for said in lines_of(container)
        if not symptoms.HOST_MEMORY.search(said.text)
        and (
            symptoms.OUT_OF_MEMORY.search(said.text)
            or any(error.code == _OUT_OF_MEMORY for error in cuda_errors.named(said.text))
        )
    ]
    return tuple(matching[-1:])


def compatibility(evidence: Evidence) -> Iterator[Finding]:
    """Yield findings where a container failed that does not fit its node, by the rules of ``cuda_compat``."""
    for pod, container, node in _containers(evidence):
        asks = cuda_needs.needs_of_container(cuda_compat.Needs(), {"resources": {"limits": dict(container.asks)}})
        if node is None or asks is None or not container.failed:
            continue
        settings = {name: value[:256] for name, value in container.environment.items()}
        # Its allocator matters where memory did not suffice, which another rule looks at.
        told = cuda_needs.Told(container.image)
        needs = replace(cuda_needs.needs_of_image(asks, settings, {}, told), paddle_allocator=None)
        for finding in cuda_compat.decide(cuda_needs.machine_of_labels(node.labels), needs).findings:
            if finding.verdict in (cuda_compat.UNSTABLE, cuda_compat.BLOCKED):
                what = "the container does not fit the node's driver or GPUs"
                said = (Said("variables of the pod and labels of the node", finding.reason),)
                sure = LIKELY if finding.verdict == cuda_compat.BLOCKED else POSSIBLE
                yield Finding("cuda_mismatch", subject_of(pod, container), what, said, finding.remedy, sure)


def crashed(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for a container that ran and ended badly, where nothing else says why."""
    for pod, container, _node in _containers(evidence):
        if container.failed and not container.never_ran:
            final = [said for said in lines_of(container) if said.text.strip()][-1:]
            lost = container.ended.startswith("ContainerStatusUnknown")
            how = _LOST if lost else _ENDS.get(container.code or 0, "it ended badly")
            what = f"{how}, and its log shows no known cause"
            remedy = f"kubectl logs -n {pod.namespace} {pod.name} -c {container.name} --previous"
            said = (Said("state of the container", container.ended), *final)
            yield Finding("crashed", subject_of(pod, container), what, said, remedy, POSSIBLE)


def _capability(node: Optional[Node]) -> Iterator[Said]:
    labels = {} if node is None else node.labels
    major, minor = (labels.get(f"nvidia.com/gpu.compute.{part}") for part in ("major", "minor"))
    if major:
        product = labels.get("nvidia.com/gpu.product", "its GPU")
        yield Said("labels of the node", f"{product}: compute capability {major}.{minor or 0}")


def _versions(node: Optional[Node]) -> Iterator[Said]:
    labels = {} if node is None else node.labels
    driver = labels.get("nvidia.com/cuda.driver-version.full")
    if driver:
        cuda = labels.get("nvidia.com/cuda.runtime-version.full", "?")
        yield Said("labels of the node", f"driver {driver}, CUDA {cuda}")
