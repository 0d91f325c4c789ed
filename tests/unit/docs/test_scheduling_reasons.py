# SPDX-License-Identifier: Apache-2.0
"""The page of scheduling reasons has each text that the code gives as one, and no others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "roles/gpu_plugins/files/kube_accel/src/kube_accel"
ADMISSION = (ROOT / "roles/scheduler/templates/admission.yml.j2").read_text()
PAGE = (ROOT / "docs/reference/scheduling-reasons.md").read_text()
OURS, _, OF_KUBERNETES = PAGE.partition("\n## Reasons of Kubernetes\n")

SOURCES: dict[str, set[str]] = {
    "extender/decide.py": set(),
    "extender/service.py": {"admit"},
    "extender/keeper.py": set(),
    "extender/node.py": set(),
    "extender/binder.py": {"_warn"},
    "extender/leader_lease.py": {"_whole", "release"},
    "extender/unheeded.py": set(),
    "placement/choose.py": {"usage"},
    "placement/quota.py": set(),
    "shared/quota.py": {"parse", "_Entry", "_named", "_pool", "_namespace", "_limit"},
    "shared/asked.py": set(),
    "shared/quantity.py": set(),
    "shared/waiting_pods.py": set(),
    "shared/wishes.py": set(),
    "sharing/request.py": set(),
    "sharing/fraction.py": set(),
    "plugin/allocation/call_matcher.py": set(),
    "plugin/allocation/share_service.py": set(),
    "plugin/allocation/start_check.py": set(),
    "plugin/kubelet/device_exclusivity.py": set(),
    "plugin/kubelet/server.py": set(),
    "plugin/tenancy/enforcing.py": {"__init__"},
    "enforce/dmem.py": {"unfit"},
    "enforce/interposer.py": {"unfit", "_interposed"},
    "enforce/mps.py": {"UNSEEN", "MpsMonitor", "incident", "probe", "_problem", "_servers", "_ask"},
}
"""Modules that make reasons, each with what in it holds texts that are none."""

MAKERS = re.compile(
    r"\b(?:Refusal|RequestRefused|StartRefused|RpcError|EnforceError|NotOursError|write_filter_error)\("
)
"""What takes a reason: a module that calls one of these makes reasons."""

PASS_ON = {"extender/quota.py"}
"""Modules that give reasons of others."""

VARIES = "\0"


def texts(tree: ast.AST, spared: set[str]) -> Iterator[str]:
    """Yield the texts of several words, without docstrings, lines of logs, and names of objects."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in spared:
            continue
        if isinstance(node, ast.Assign) and spared & set(map(ast.unparse, node.targets)):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("_log."):
            continue
        if isinstance(node, ast.Constant | ast.JoinedStr):
            text = template(node)
            if " " in text.strip(f" {VARIES}") and "\\" not in text and re.search("[A-Za-z]{2}", text):
                yield text
        else:
            yield from texts(node, spared)


def template(node: ast.Constant | ast.JoinedStr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(template(part) if isinstance(part, ast.Constant) else VARIES for part in node.values)


def pattern(text: str) -> re.Pattern[str]:
    """What a reason on the page looks like that this text makes."""
    words = text.strip(f" :;{VARIES}")
    return re.compile(".*?".join(re.escape(" ".join(part.split(" "))) for part in words.split(VARIES)))


def reasons() -> dict[str, re.Pattern[str]]:
    found = {}
    for file, spared in SOURCES.items():
        for text in texts(ast.parse((PACKAGE / file).read_text()), spared):
            found[f"{file}: {text.replace(VARIES, '_')}"] = pattern(text)
    return found


REASONS = reasons()
LONG = [made for made in REASONS.values() if len(re.findall("[A-Za-z]{2,}", made.pattern)) > 1]
SHOWN = [" ".join(span.split()).replace("POD", "NAMESPACE/NAME") for span in re.findall(r"`([^`]+)`", OURS)]
ROWS = re.findall(r"^\| (`.*?) \| ", OURS, re.MULTILINE)


@pytest.mark.parametrize("reason", REASONS)
def test_reason_of_the_code_is_on_the_page(reason: str) -> None:
    assert any(REASONS[reason].search(shown) for shown in SHOWN)


def spans(rows: list[str]) -> list[str]:
    return [span for row in rows for span in re.findall(r"`([^`]+)`", row)]


@pytest.mark.parametrize("shown", spans(ROWS))
def test_reason_of_the_page_is_one_of_the_code(shown: str) -> None:
    if shown.startswith("pod NAME asks for "):
        said = [part for part in re.split(r"NAME|NODE|tencent\S+|other,|default-scheduler", shown) if len(part) > 12]
        flat = " ".join(re.sub(r"'\s*\+ '?|'\n\s*\+ '", "", ADMISSION).split())
        assert [part for part in said if part.strip(" ,") not in flat] == []
        return
    candidates = REASONS.values() if shown.endswith("...") else LONG
    assert any(made.search(shown.replace("POD", "NAMESPACE/NAME")) for made in candidates)


def test_modules_that_make_reasons_are_looked_at() -> None:
    makers = {
        str(path.relative_to(PACKAGE))
        for folder in ("extender", "placement", "plugin", "enforce", "sharing")
        for path in (PACKAGE / folder).rglob("*.py")
        if MAKERS.search(re.sub("^(class|def) .*$", "", path.read_text(), flags=re.MULTILINE))
    }
    assert makers - PASS_ON <= SOURCES.keys()


@pytest.mark.parametrize("file", SOURCES)
def test_module_makes_reasons_still(file: str) -> None:
    assert any(reason.startswith(f"{file}: ") for reason in REASONS)


def test_reason_that_is_not_on_the_page_is_noticed() -> None:
    tree = ast.parse('def judge(name):\n    return f"{name} wants a window seat on {name}"')
    (text,) = texts(tree, set())
    assert not any(pattern(text).search(shown) for shown in SHOWN)


def test_reasons_of_kubernetes_are_told_apart() -> None:
    told = spans(re.findall(r"^\| (`.*?) \| ", OF_KUBERNETES, re.MULTILINE))
    assert told
    assert not any(made.search(shown) for made in REASONS.values() for shown in told)
