# SPDX-License-Identifier: Apache-2.0
"""Every command of the docs is run by a test, or checked as far as that goes without a cluster."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from ansible.cli.playbook import PlaybookCLI

from kube_accel.cli.main import _parser
from tools.blocks import RUN_BY
from yaml_files import document

ROOT = Path(__file__).parents[3]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *ROOT.glob("roles/*/README.md")])
VERSION = document(ROOT / "galaxy.yml")["version"]
DAEMONS = "roles/gpu_plugins/files/kube_accel"

BY_HAND = {
    r"nvidia-smi( -L| -q -i UUID( -d [A-Z_,]+)?)?": "reads, on a host with a GPU",
    r"nvidia-smi --gpu-reset -i UUID": "needs a GPU",
    r"nvidia-smi -i UUID --power-limit=W": "needs a GPU",
    r"lspci -d 10de:": "reads, on a host with a GPU",
    r"dmesg( \| grep -iE? (\S+|'[^']+'))?": "reads, on a host with a GPU",
    r"cat /proc/PID/cgroup": "reads, on a host with a GPU",
    r"systemctl (start|stop) (kube-accel-mps@UUID|nvidia-persistenced)": "changes a service of a host with a GPU",
    r"rm /var/lib/kubelet/cpu_manager_state|systemctl restart kubelet": "changes the kubelet of a host",
    r"mokutil --import KEY": "needs a host with Secure Boot",
    r"sha256sum \S+": "reads",
    r"podman push \S+": "sends it there",
    r"export CONTROLLER_HOST=\S+ CONTROLLER_OAUTH_TOKEN=\S+": "names an AWX",
    r"kubectl config view --raw --minify --flatten > \S+": "writes what kubectl has",
    r"kubectl config current-context": "reads",
    r"cp -r examples/awx/project/\. \S+": "copies; tests/awx runs what it copies",
    r"git -C \S+ (add \.|commit -m '[^']+'|push)": "publishes it",
    r"python3 -m venv ~/accel|\. ~/accel/bin/activate": "makes an environment of Python, and enters it",
    r"export KUBECONFIG=/etc/kubernetes/admin\.conf": "names a kubeconfig, on a control plane",
    r"tar -xf accel-kubernetes-[\d.]+-amd64\.tar -C /srv": "unpacks",
}
"""What nobody of ours answers."""

KUBECTL_FLAGS = re.compile(
    r"-A|-L|-o|-n|-l|--field-selector|--tail=\d+|--previous|--show-labels|--overwrite"
    r"|--ignore-daemonsets|--delete-emptydir-data|-i|-f|--from-literal=.+"
)
MADE_AND_REMOVED = re.compile(
    r"(create|delete) (namespace|configmap) \S+( \S+)*|apply -f \S+\.ya?ml|delete pod \S+( \S+)*"
)
"""What a reader may make, and remove again; never what the cluster or the collection has."""


def commands() -> Iterator[tuple[Path, str]]:
    """The commands in the console blocks, without comments; lines that a backslash ends go on."""
    for page in PAGES:
        for block in re.findall(r"^ *```console\n(.*?)^ *```", page.read_text(), re.MULTILINE | re.DOTALL):
            for line in re.findall(r"^ *\$ (.*)$", block.replace("\\\n", " "), re.MULTILINE):
                yield from ((page, part.strip()) for part in re.sub(r"\s+#\s.*", "", line).split(" && "))


def playbook(words: list[str]) -> None:
    """Its options are Ansible's, its playbooks and variables ours; ours are told the inventory."""
    cli = PlaybookCLI(words)
    cli.init_parser()
    cli.parser.parse_args(words[1:])
    for name in (word for word in words if word.startswith("accel.kubernetes.")):
        path = ROOT / f"playbooks/{name.removeprefix('accel.kubernetes.')}.yml"
        assert path.exists(), f"no playbook {name}"
        assert "-i" in words, f"{name} without -i: localhost gets none of the inventory's variables"
        assert name in _texts("tests/**/*.py", "molecule/*/*.yml"), f"no test runs {name}"
        known = {"gpu_mode", *re.findall(r"\b[a-z]+(?:_[a-z0-9]+)+\b", path.read_text()), *_variables()}
        assert not set(_extra(words)) - known, f"{name} knows no {set(_extra(words)) - known}"


@cache
def _texts(*patterns: str) -> str:
    """What the files of these patterns hold."""
    files = sorted({path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()})
    return "\n".join(path.read_text() for path in files)


@cache
def _variables() -> set[str]:
    """The variables of all roles."""
    specs = [document(spec) for spec in ROOT.glob("roles/*/meta/argument_specs.yml")]
    return {name for spec in specs for name in spec["argument_specs"]["main"]["options"]}


def _extra(words: list[str]) -> Iterator[str]:
    for flag, value in pairwise(words):
        if flag in ("-e", "--extra-vars"):
            yield from json.loads(value) if value.startswith("{") else [value.partition("=")[0]]


def kube_accel(words: list[str]) -> None:
    """The daemons' own parser takes it."""
    _parser().parse_args(words[1:])


def kubectl(words: list[str]) -> None:
    """Its flags are of the few we use; the labels and objects it names are in what we roll out."""
    if words[1:3] == ["inspect", "gpu"]:
        return kube_accel(["kube-accel", "inspect", *words[3:]])
    own, _, inside = " ".join(words).partition(" -- ")
    if inside.startswith("kube-accel "):
        kube_accel(inside.split())
    flags = [word for word in own.split() if word.startswith("-")]
    assert all(KUBECTL_FLAGS.fullmatch(flag) for flag in flags), flags
    verbs = {"get", "describe", "logs", "label", "annotate", "exec", "top", "cordon", "uncordon", "drain"}
    assert verbs & set(words) or MADE_AND_REMOVED.search(own), f"{words}: none of {verbs}"
    rolled_out = _texts(*(f"roles/*/{below}.{ending}" for below in ("*/*", "vars/*/*") for ending in ("j2", "yml")))
    for key, value in re.findall(r"-l (\S+?)=(\S+)", own):
        assert f"{key}: " in rolled_out, f"nothing of ours has a label {key}"
        assert re.search(rf": {re.escape(value)}$", rolled_out, re.MULTILINE), f"none of ours has {key}={value}"
    for kind, name in re.findall(r"\b(lease|configmap|daemonset|deployment) ([a-z][\w-]+)", own):
        assert name in rolled_out or name in _texts(f"{DAEMONS}/src/**/*.py"), f"no {kind} {name} of ours"
    return None


def pip(words: list[str]) -> None:
    """What it installs is here."""
    wanted = words[-1].replace("~/.ansible/collections/ansible_collections/accel/kubernetes/", "")
    assert words[1] == "install"
    assert (ROOT / wanted).exists(), wanted


CHECKS: dict[str, Callable[[list[str]], None]] = {
    "ansible-playbook": playbook,
    "kubectl": kubectl,
    "kube-accel": kube_accel,
    "pip": pip,
}


def check(command: str) -> None:
    """Fails where the command cannot be what it says."""
    for version in re.findall(r"accel-kubernetes-(\d+(?:\.\d+)+)", command):
        assert version == VERSION, f"the collection is {VERSION}"
    for pattern, test in RUN_BY.items():
        if re.fullmatch(pattern, command):
            assert (ROOT / test).exists(), f"{test}, which runs it, is gone"
            targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert command.split()[0] != "make" or command.split()[1] in targets
            return
    if any(re.fullmatch(pattern, command) for pattern in BY_HAND):
        return
    words = shlex.split(command)
    found = CHECKS.get(words[0].rpartition("/")[2])
    assert found is not None, "no test runs it, and nothing here checks it: add it to a table of this file"
    try:
        found(words)
    except SystemExit as ended:
        pytest.fail(f"its options are wrong ({ended})")


@pytest.mark.parametrize("command", sorted({each for _, each in commands()}))
def test_every_command_is_run_by_a_test_or_checked(command: str) -> None:
    check(command)


@pytest.mark.parametrize(
    "command",
    [
        "make coffee",
        "ansible-playbook -i inventory.yml accel.kubernetes.fly",
        "ansible-playbook -i inventory.yml accel.kubernetes.site --chek",
        "ansible-playbook -i inventory.yml accel.kubernetes.site -e gpu_plugin_image=x",
        """ansible-playbook -i inventory.yml accel.kubernetes.report -e '{"report_prize": 1}'""",
        "ansible-playbook accel.kubernetes.inspect",
        "kubectl inspect gpu --detail-pods NODE",
        "kubectl -n kube-system logs -l app.kubernetes.io/name=kube-accel-extnder",
        "kubectl -n kube-system get configmap kube-accel-qouta",
        "kubectl get pods --watch-closely",
        "kubectl delete node gpu-1",
        "kubectl -n kube-system delete configmap kube-accel-qouta-overrides",
        "kubectl -n team-a apply -f share",
        "kubectl -n kube-system exec POD -- kube-accel quiesce --restart",
        "pip install -r requirement.txt",
        "kube-accel validat",
        "rm -rf /var/lib/kube-accel",
        "ansible-galaxy collection install --force accel-kubernetes-9.9.9.tar.gz",
        "ansible-galaxy collection install accel-kubernetes-0.1.0.tar.gz",
        "ansible-galaxy collection build",
    ],
)
def test_a_wrong_command_is_seen(command: str) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check(command)


def test_commands_are_found_in_every_kind_of_page() -> None:
    found = {str(page.relative_to(ROOT)): command for page, command in commands()}
    expected = {"README.md", "docs/how-to/report.md", "docs/runbooks/GpuLost.md", "docs/how-to/install-driver.md"}
    assert expected <= set(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_playbook_in_a_sentence_is_told_the_inventory_too(page: Path) -> None:
    prose = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    told = re.findall(r"`(ansible-playbook [^`]*accel\.kubernetes\.[^`]*)`", prose)
    assert [command for command in told if " -i " not in command] == []


def test_the_quickstart_makes_the_image_that_its_inventory_names() -> None:
    text = (ROOT / "examples/inventory.yml").read_text()
    assert f"```yaml\n{text}```" in PAGES[0].read_text()
    assert len(text.splitlines()) <= 15
    told = [command for page, command in commands() if page == PAGES[0]]
    (site,) = [place for place, command in enumerate(told) if command.endswith("accel.kubernetes.site")]
    assert "make image" in told[:site]
    everywhere = yaml.safe_load(text)["all"]["vars"]
    assert everywhere == {"kube_accel_image_assemble": "/home/admin/accel.kubernetes/.build"}


@pytest.mark.parametrize("path", sorted(ROOT.glob("playbooks/*.yml")), ids=lambda path: path.name)
def test_what_a_playbook_may_be_told_is_in_the_docs(path: Path) -> None:
    text, given = path.read_text(), path.parent / "vars" / path.name
    asked = set(re.findall(rf"\b({path.stem}_\w+) \| default\(", text + (given.read_text() if given.exists() else "")))
    own = set(re.findall(rf"(?:^ +|\{{)(?:register: )?({path.stem}_\w+)(?::|$)", text, re.MULTILINE))
    docs = "\n".join(page.read_text() for page in PAGES)
    assert [name for name in sorted(asked - own) if not re.search(rf"\b{name}\b", docs)] == []


def test_a_page_that_takes_plugins_away_has_a_report_taken_first() -> None:
    taken = re.compile(
        r"`uninstall\.yml|[bB]y `uninstall`|or run `uninstall`|accel\.kubernetes\.uninstall(?! --tags driver)"
    )
    guides = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "measurements"]
    pages = [page for page in guides if taken.search(page.read_text())]
    assert len(pages) > 3
    assert [page.name for page in pages if "ake a report first" not in page.read_text()] == []
