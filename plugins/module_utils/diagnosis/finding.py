# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a diagnosis consists of, and small questions to evidence that its rules share. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterable, Iterator, List, Optional, Pattern, Set, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.cuda.needs import MODE_OF
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.evidence import Container, Node, Pod
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.symptoms import Symptom
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.inventory_annotation import WHOLE, GpuView
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.plugin_metrics import Sample
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.quantity import whole_units

FRACTIONS = ("vgpu", "mps", "cgpu")
"""Modes that share GPUs."""


@dataclass(frozen=True)
class Said:
    """A fact, and where it was found."""

    where: str
    text: str


@dataclass(frozen=True)
class Finding:
    """What happened to a subject, how sure that is, and the remedy."""

    rule: str
    subject: str
    what: str
    evidence: Tuple[Said, ...]
    remedy: str
    confidence: str


def found(symptom: Symptom, subject: str, *said: Said) -> Finding:
    """Return the finding that a symptom stands for."""
    return Finding(symptom.rule, subject, symptom.what, said, symptom.remedy, symptom.confidence)


def subject_of(pod: Pod, container: Container) -> str:
    """Return how findings name a container."""
    return f"pod {pod.full_name} container {container.name}"


def lines_of(container: Container) -> Iterator[Said]:
    """Yield all lines that the container wrote, those of the run before first."""
    for where, texts in container.logs.items():
        for text in texts:
            yield Said(where, text)
    for text in container.last_words:
        yield Said("state of the container", text)


def last(container: Container, pattern: Pattern[str]) -> Tuple[Said, ...]:
    """Return the last line with these words; none or one."""
    matching = [said for said in lines_of(container) if pattern.search(said.text)]
    return tuple(matching[-1:])


def modes_of(resources: Iterable[str]) -> Set[str]:
    """Return the modes whose resources these are."""
    return {mode for name in resources for pattern, mode in MODE_OF if re.match(pattern, name)}


def has_share(container: Container) -> bool:
    """Return whether it has part of a GPU whose limit is enforced. A multiple of 100 cores is whole GPUs."""
    cores = next((whole_units(amount) for name, amount in container.asks.items() if name.endswith("-core")), None)
    whole = cores is not None and cores % WHOLE == 0
    return bool(modes_of(container.asks) & set(FRACTIONS)) and not whole


def gpus_of(pod: Optional[Pod], node: Optional[Node]) -> List[GpuView]:
    """Return the GPUs it has by its node, and was assigned by its annotation."""
    if pod is None or node is None or node.view is None or node.name != pod.node:
        return []
    return [
        gpu
        for gpu in node.view.gpus
        if gpu.uuid in pod.uuids or any((t.namespace, t.pod) == (pod.namespace, pod.name) for t in gpu.tenants)
    ]


def samples_of(node: Optional[Node], family: str, pod: Pod, container: Container) -> List[Sample]:
    """Return what the node's plugin measures of a container."""
    whose = (pod.namespace, pod.name, container.name)
    measured = () if node is None else node.samples or ()
    return [
        sample
        for sample in measured
        if sample.name == family and tuple(map(sample.labels.get, ("namespace", "pod", "container"))) == whose
    ]
