# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""What plugins measure, from their pages of metrics. Pure, but for threads that ask for several pages at once."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Callable, Dict, Iterator, List, Mapping, Tuple, Type, TypeVar

PAGE_BYTES = 8 << 20
"""The most bytes that are read of a plugin's ``/metrics``: more than a full node says."""
_SERIES = re.compile(r'(accel_[a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)\Z')
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
_AT_ONCE = 8
"""Pods asked at a time."""

Answer = TypeVar("Answer")

Place = Tuple[str, str, str, str]
"""UUID, namespace, pod, container."""


@dataclass(frozen=True)
class Sample:
    """A line of a plugin's ``/metrics``."""

    name: str
    labels: Mapping[str, str]
    value: float

    @property
    def place(self) -> Place:
        """Whose it is. Raises KeyError where it is no container's."""
        return self.labels["uuid"], self.labels["namespace"], self.labels["pod"], self.labels["container"]


def read_used(text: str) -> Dict[Place, int]:
    """Return the bytes in use by container, from what a plugin says on ``/metrics``."""
    found = {}
    for sample in read_samples(text):
        if sample.name == "accel_container_gpu_memory_used_bytes":
            try:
                found[sample.place] = int(sample.value)
            except (KeyError, ValueError, OverflowError):
                continue
    return found


def at_once(ask: Callable[[str], Answer], paths: Mapping[str, str]) -> Dict[str, Callable[[], Answer]]:
    """Ask for all paths, a few at a time; return by name what returns or raises what ``ask`` did."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return {name: pool.submit(ask, path).result for name, path in paths.items()}


def read_pages(pages: Mapping[str, Callable[[], str]], failure: Type[Exception]) -> Tuple[Dict[Place, int], List[str]]:
    """Return the bytes in use by container, from plugins' pages by node, and which pages are missing, and why.

    A page is had by calling for it; ``failure`` is what that raises.
    """
    used, problems = {}, []
    for name, page in pages.items():
        try:
            used.update(read_used(page()))
        except failure as error:
            problems.append(f"node {name}: what is used: {error}")
    return used, problems


def read_samples(text: str) -> Iterator[Sample]:
    """Yield every number on a plugin's ``/metrics``."""
    for name, labels, value in read_series(text):
        try:
            yield Sample(name, labels, float(value))
        except ValueError:
            continue


def read_series(text: str) -> Iterator[Tuple[str, Dict[str, str], str]]:
    """Yield name, labels and value as it is written, of all of ours in a page of Prometheus' text format."""
    # Not splitlines, which divides at what may stand within a label.
    for series in text.split("\n"):
        match = _SERIES.match(series)
        if match is not None:
            labels = {name: _unescaped(value) for name, value in _LABEL.findall(match.group(2) or "")}
            yield match.group(1), labels, match.group(3)


def _unescaped(value: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match.group(1) == "n" else match.group(1), value)
