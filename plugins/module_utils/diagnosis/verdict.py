# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What happened to a pod or a node: every rule's word on the evidence, ranked, for people and as JSON. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Dict, Iterable, List, Mapping, Sequence, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis import node_rules as of_node
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis import pod_rules as of_pod
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis import program_rules as of_program
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.evidence import Evidence
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.finding import Finding, Said
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.redaction import Redaction
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.symptoms import CONFIDENCES
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.printable import document as printable
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.printable import line

_VERSION = 1
_MOST_EVIDENCE = 5
"""Facts named of one finding."""
_LONGEST = 400
"""Characters of one that are quoted."""

RULES: Sequence[Callable[[Evidence], Iterable[Finding]]] = (
    of_program.memory,
    of_program.allocators,
    of_program.words,
    of_program.compatibility,
    of_pod.started,
    of_pod.told,
    of_pod.leaving,
    of_pod.unready,
    of_pod.waiting,
    of_pod.quotas,
    of_node.extender,
    of_node.plugins,
    of_node.nodes,
    of_node.gpus,
)

ORDER = (
    "gpu_lost",
    "xid",
    "driver_silent",
    "node_not_ready",
    "plugin_down",
    "not_registered",
    "extender_down",
    "mode_mismatch",
    "namespace_quota",
    "request",
    "allocator_conflict",
    "quota_oom",
    "device_oom",
    "host_oom",
    "limits_unreadable",
    "bfloat16",
    "float16",
    "fp8",
    "cuda_mismatch",
    "driver_missing",
    "runtime_missing",
    "device_missing",
    "device_files_lost",
    "mps",
    "cuda_error",
    "shm",
    "start_refused",
    "admission",
    "image",
    "missing_object",
    "container_config",
    "evicted",
    "volume",
    "network",
    "gpu_unhealthy",
    "no_room",
    "not_offered",
    "taint",
    "selector",
    "scheduler",
    "configuration",
    "override_refused",
    "account_changed",
    "plugin_silent",
    "cordoned",
    "pending",
    "nccl",
    "not_ready",
    "crashed",
    "not_running",
)
"""What findings are called, causes before what follows from them."""


def diagnose(evidence: Evidence) -> List[Finding]:
    """Return what happened, the surest finding first. This returns whatever the evidence is."""
    kept: Dict[Tuple[str, str], Finding] = {}
    for rule in RULES:
        for finding in rule(evidence):
            key = (finding.rule, finding.subject)
            known = kept.get(key)
            if known is not None:
                said = tuple(dict.fromkeys((*known.evidence, *finding.evidence)))
                finding = replace(min(known, finding, key=_rank), evidence=said)
            kept[key] = finding
    explained = {finding.subject for finding in kept.values()}
    crashed = [finding for finding in of_program.crashed(evidence) if not _explains(explained, finding.subject)]
    explained |= {finding.subject for finding in crashed}
    idle = [finding for finding in of_pod.not_running(evidence, explained) if not _explains(explained, finding.subject)]
    return [_presentable(finding) for finding in sorted((*kept.values(), *crashed, *idle), key=_rank)]


def _explains(subjects: Iterable[str], subject: str) -> bool:
    """Return whether something was found of this subject, or of a part of it."""
    return any(known == subject or known.startswith(f"{subject} ") for known in subjects)


def document(findings: Iterable[Finding], seen: Sequence[str], problems: Sequence[str]) -> Dict[str, Any]:
    """Return the diagnosis as JSON has it; ``seen`` is what was looked at, ``problems`` what could not be."""
    told = {
        "version": _VERSION,
        "findings": [
            {
                "rule": finding.rule,
                "confidence": finding.confidence,
                "subject": finding.subject,
                "what": finding.what,
                "evidence": [{"where": said.where, "text": said.text} for said in finding.evidence],
                "remedy": finding.remedy,
            }
            for finding in findings
        ],
        "looked_at": list(seen),
        "problems": list(problems),
    }
    shown: Dict[str, Any] = printable(told)
    return shown


def lines(told: Mapping[str, Any]) -> List[str]:
    """Return what ``document`` holds as lines for people."""
    text: List[str] = []
    for number, finding in enumerate(told["findings"], 1):
        text.append(f"{number}. {finding['subject']}: {finding['what']} ({finding['rule']}, {finding['confidence']})")
        text += [f"   {said['where']}: {said['text']}" for said in finding["evidence"]]
        text.append(f"   REMEDY: {finding['remedy']}")
    if not text:
        text.append("No known problem was found.")
    text.append(f"LOOKED AT: {'; '.join(told['looked_at']) or 'nothing'}")
    return [*text, *(f"NOT KNOWN: {problem}" for problem in told["problems"])]


def looked_at(evidence: Evidence) -> List[str]:
    """Return what there was to decide from."""
    text, pod, daemons = [], evidence.pod, evidence.daemons
    if pod is not None and pod.exists:
        logs = sum(len(container.logs) for container in pod.containers)
        text.append(f"pod {pod.full_name}: its state, {len(pod.events)} events, {logs} logs")
    elif pod is not None:
        text.append(f"pod {pod.full_name}: {len(pod.events)} events")
    for node in evidence.nodes:
        parts = ["its labels and conditions", f"{len(node.events)} events"]
        parts.append(f"{len(node.view.gpus)} GPUs" if node.view is not None else "no GPUs reported by a device plugin")
        if node.samples is not None:
            parts.append(f"{len(node.samples)} figures of its plugin")
        text.append(f"node {node.name}: {', '.join(parts)}")
    if daemons is not None:
        kinds = [daemon.kind for daemon in daemons]
        text.append(f"{kinds.count('plugin')} pods of plugins, {kinds.count('extender')} of the extender")
    return text


def _rank(finding: Finding) -> Tuple[int, int]:
    return CONFIDENCES.index(finding.confidence), ORDER.index(finding.rule)


def _presentable(finding: Finding) -> Finding:
    """Others' words as one harmless line each, without their secrets."""
    redaction = Redaction()
    said = tuple(
        Said(entry.where, _quoted(redaction.text(entry.text[:4096]))) for entry in finding.evidence if entry.text
    )
    return replace(
        finding, subject=_quoted(finding.subject), what=_quoted(finding.what), evidence=said[:_MOST_EVIDENCE]
    )


def _quoted(text: str) -> str:
    shown: str = line(text.strip(), _LONGEST)
    return shown
