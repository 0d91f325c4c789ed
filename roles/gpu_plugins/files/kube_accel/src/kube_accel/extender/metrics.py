# SPDX-License-Identifier: Apache-2.0
"""The extender's own metrics in Prometheus' text format."""

from __future__ import annotations

import bisect
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kube_accel.metrics.exposition import head, labels_text

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Seconds; kube-scheduler gives up after 5 by default."""

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Histogram:
    """Durations in seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect.bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds


class Metrics:
    """What is counted while requests are served. Threads may share it."""

    def __init__(self, verbs: Iterable[str], outcomes: Iterable[str]) -> None:
        """``verbs`` and ``outcomes`` are the labels, all of which are there from the start."""
        self._lock = threading.Lock()
        self._requests = {verb: Histogram() for verb in verbs}
        self._outcomes = Counter(dict.fromkeys(outcomes, 0))

    def request(self, verb: str, seconds: float) -> None:
        """Count a verb that was answered."""
        with self._lock:
            self._requests[verb].observe(seconds)

    def bind(self, outcome: str) -> None:
        """Count a bind that ended."""
        with self._lock:
            self._outcomes[outcome] += 1

    def render(self, gauges: Mapping[str, tuple[str, Mapping[Labels, float]]]) -> str:
        """Return the text; ``gauges`` are help and values by name, for what is looked up now."""
        lines = head("accel_extender_request_seconds", "histogram", "Time to answer kube-scheduler.")
        with self._lock:
            for verb, histogram in self._requests.items():
                below = 0
                for bound, count in zip([*map(str, BUCKETS), "+Inf"], histogram.counts, strict=True):
                    below += count
                    lines.append(f'accel_extender_request_seconds_bucket{{verb="{verb}",le="{bound}"}} {below}')
                lines.append(f'accel_extender_request_seconds_sum{{verb="{verb}"}} {histogram.total:.9g}')
                lines.append(f'accel_extender_request_seconds_count{{verb="{verb}"}} {below}')
            lines += head("accel_extender_binds_total", "counter", "Binds by outcome.")
            for outcome, count in self._outcomes.items():
                lines.append(f'accel_extender_binds_total{{outcome="{outcome}"}} {count}')
        for name, (text, values) in gauges.items():
            lines += head(name, "gauge", text)
            lines += [f"{name}{labels_text(labels)} {value:.15g}" for labels, value in values.items()]
        return "\n".join(lines) + "\n"
