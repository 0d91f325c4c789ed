# SPDX-License-Identifier: Apache-2.0
"""A page as a scraper sees it, and what promtool does not look for in it."""

from __future__ import annotations

import re
import subprocess

from kube_accel.metrics.exposition import Family, Kind
from kube_accel.metrics.families import ALL
from prometheus import need

_LINE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_UNITS = ("bytes", "seconds", "celsius", "watts", "joules", "hertz", "ratio", "info", "second")
_COUNTS = (
    "healthy",
    "failure",
    "gpus",
    "pods",
    "registered",
    "success",
    "processes",
    "series",
    "errors",
    "failures",
    "attribution",
    "requests",
    "calls",
)
"""How names without a unit end: what is counted, or is 0 or 1."""


class Page:
    """The series of a page by family."""

    def __init__(self, text: bytes) -> None:
        self.text = text.decode()
        self.families: dict[str, list[tuple[dict[str, str], float]]] = {}
        self.kinds: dict[str, str] = {}
        for line in self.text.splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split()
                assert name not in self.kinds, f"{name} is there twice"
                self.kinds[name] = kind
            elif not line.startswith("#"):
                match = _LINE.fullmatch(line)
                assert match is not None, line
                labels = dict(_LABEL.findall(match[2] or ""))
                self.families.setdefault(match[1], []).append((labels, float(match[3])))

    def of(self, family: Family) -> list[dict[str, str]]:
        """The labels of each series."""
        return [labels for labels, _ in self.families.get(family.name, ())]

    def value(self, family: Family, **labels: str) -> float:
        """Return the value of the one series with these labels among others."""
        (found,) = self.values(family, **labels)
        return found

    def values(self, family: Family, **labels: str) -> list[float]:
        series = self.families.get(family.name, ())
        return [value for found, value in series if labels.items() <= found.items()]

    def lint(self) -> None:
        """Fails for what promtool lets pass: families and labels of no registry, ratios above 1, other units."""
        registry = {family.name: family for family in ALL}
        for name, series in self.families.items():
            assert name in registry, f"{name} is in no registry"
            family = registry[name]
            assert self.kinds[name] == family.kind.value
            seen = [tuple(sorted(labels.items())) for labels, _ in series]
            assert len(set(seen)) == len(seen), f"{name} has a series twice"
            for labels, value in series:
                assert set(labels) == set(family.labels), f"{name}{labels}"
                assert value >= 0, f"{name} {value}"
                if name.endswith("_ratio"):
                    assert value <= 1, f"{name} {value}"


def lint_names(family: Family) -> None:
    """Fails for a family whose name does not say its unit or its type."""
    assert family.name.endswith("_total") == (family.kind is Kind.COUNTER)
    if family.name != "paddle_gpu_malloc_failed_total":  # which others' alert rules ask for
        assert family.name.startswith("accel_")
        last = family.name.removesuffix("_total").rpartition("_")[2]
        assert last in _UNITS + _COUNTS, family.name
    assert family.help.endswith(".")
    assert set(family.labels) >= {"node"}
    assert not set(family.labels) & {"pid", "image", "job", "instance"}


def promtool(text: str) -> str:
    """What ``promtool check metrics`` has to say. Skips the test where there is no promtool."""
    done = subprocess.run([need("promtool"), "check", "metrics"], input=text, capture_output=True, text=True)
    return done.stdout + done.stderr if done.returncode or done.stderr else ""
