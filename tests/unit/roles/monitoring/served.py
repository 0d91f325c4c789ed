# SPDX-License-Identifier: Apache-2.0
"""What the daemons serve, and what an expression asks for."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from kube_accel.extender.daemon import Extender, ExtenderOptions
from kube_accel.extender.service import Layout
from kube_accel.kube.client import Credentials, KubeClient
from kube_accel.metrics.families import ALL
from kube_accel.model import PlacementPolicy
from yaml_files import document

REPOSITORY = Path(__file__).parents[4]
RULES = REPOSITORY / "roles/monitoring/files/rules"
PAGES = Path(__file__).with_name("pages")
"""What other exporters serve, as it was published."""
TARGET = {"job", "instance"}
"""Labels that Prometheus gives."""
_QUOTA = frozenset({"namespace", "model", "resource"})
_SEEN_LATER = {
    "accel_namespace_gpu_quota": _QUOTA,
    "accel_namespace_gpu_quota_used": _QUOTA,
    "accel_pending_gpu_pods": frozenset({"namespace", "mode"}),
}
"""Labels of what an extender that knows nothing has no series of."""
_WORDS = re.compile(
    r"""(?x) "(?:[^"\\]|\\.)*" | \{ | \} | \b (?: by | on | ignoring | group_left | without ) \s* \( [^)]* \)
    | \[[^]]*\] | \d[\w.]* | \$?[a-zA-Z_:][\w:]* (?: \s* \( )? | [^\w\s]"""
)
_AGGREGATORS = {"sum", "min", "max", "avg", "count", "group", "topk", "bottomk", "quantile"}
_OPERATORS = _AGGREGATORS | {"and", "or", "unless", "offset", "bool"}


@cache
def foreign() -> Mapping[str, frozenset[str]]:
    """Labels by name of the series of other exporters: those of their pages, and the fields our dcgm-exporter reads."""
    found: dict[str, frozenset[str]] = {}
    for page in PAGES.iterdir():
        for name, labels in re.findall(r"^(\w+)\{(.*)\}", page.read_text(), re.MULTILINE):
            found[name] = found.get(name, frozenset()) | frozenset(re.findall(r"(\w+)=", labels))
    defaults = document(REPOSITORY / "roles/dcgm_exporter/defaults/main.yml")
    fields = {name for name in found if name.startswith("DCGM_")}
    assert fields <= set(defaults["dcgm_exporter_fields"])
    return found


@cache
def served() -> Mapping[str, frozenset[str]]:
    """Labels by name of every series that the plugin and the extender have."""
    names = {family.name: frozenset(family.labels) for family in ALL}
    for line in extender_page().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            names.update({f"{name}{part}": frozenset() for part in _parts(kind)})
        elif match := re.match(r"(\w+)\{(.*)\}", line):
            names[match[1]] |= frozenset(re.findall(r"(\w+)=", match[2]))
    assert _SEEN_LATER.keys() <= names.keys()
    return names | _SEEN_LATER


def _parts(kind: str) -> tuple[str, ...]:
    return ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)


def extender_page() -> str:
    """The page of an extender that knows nothing of any cluster."""
    options = ExtenderOptions(
        ("127.0.0.1", 0), Layout.PROXIED, None, None, None, PlacementPolicy.BINPACK, ("kube-system", "q"), False
    )
    extender = Extender(options, KubeClient("http://127.0.0.1:9", Credentials()), threading.Event())
    return extender._metrics_page().body.decode()


def rules() -> Mapping[str, str]:
    """The expressions of the recording rules, by name."""
    groups = document(RULES / "recording.yml")["groups"]
    return {rule["record"]: rule["expr"] for group in groups for rule in group["rules"]}


@cache
def recorded() -> Mapping[str, frozenset[str]]:
    """Labels by name of what the recording rules make."""
    return {
        name: frozenset(re.findall(r"\w+", re.search(r"by \(([^)]*)\)", expression)[1]))  # type: ignore[index]
        for name, expression in rules().items()
    }


def asked(expression: str) -> dict[str, set[str]]:
    """The labels that an expression selects by, by the names of its metrics."""
    found: dict[str, set[str]] = {}
    name, inside = "", False
    for word in _WORDS.findall(expression):
        if word == "{":
            inside = True
        elif word == "}":
            inside = False
        elif re.fullmatch(r"[a-zA-Z_:][\w:]*", word):
            if inside:
                found[name].add(word)
            elif word not in _OPERATORS:
                name = word
                found.setdefault(name, set())
    return found


def unknown(expression: str) -> list[str]:
    """Metrics and labels that nobody serves."""
    known = {**served(), **foreign(), **recorded(), "up": frozenset[str]()}
    problems = []
    for name, labels in asked(expression).items():
        if name not in known:
            problems.append(name)
        elif wrong := {label for label in labels if not label.startswith("exported_")} - known[name] - TARGET:
            problems.append(f"{name}{sorted(wrong)}")
    return problems
