# SPDX-License-Identifier: Apache-2.0
"""``kube-accel inspect`` as a person runs it, with a kubectl that tells what it is given."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from unit.plugins.module_utils.shared import test_claim_view as claims
from unit.plugins.module_utils.shared.test_gpu_view import SHARE, TRAIN, USED, node, plugin, pod

KUBECTL = """#!/bin/sh
echo "$@" >> "$0.asked"
case "$*" in
  *" nodes "*|"get nodes "*) exec cat "$0.nodes" ;;
  *" pods "*|"get pods "*) exec cat "$0.pods" ;;
  *resourceslices*|*resourceclaims*) test -f "$0.claims" && exec cat "$0.$2" ;;
  *--raw=*) exec cat "$0.metrics" ;;
  *) echo "unknown" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def kubectl(tmp_path: Path) -> Path:
    command = tmp_path / "kubectl"
    command.write_text(KUBECTL)
    command.chmod(0o755)
    tell(command, [node("a", {0: (TRAIN,)})], [pod("train", SHARE, "a"), pod("late", SHARE), plugin("a")])
    return command


def tell(kubectl: Path, nodes: list[dict[str, Any]], pods: list[dict[str, Any]]) -> None:
    for name, items in (("nodes", nodes), ("pods", pods)):
        kubectl.with_name(f"kubectl.{name}").write_text(json.dumps({"items": items}))


def command(kubectl: Path | str, *words: str) -> list[str]:
    return [sys.executable, "-m", "kube_accel.cli.main", "inspect", f"--kubectl={kubectl}", *words]


def run(kubectl: Path | str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(kubectl, *words), capture_output=True, text=True, timeout=60, check=False)


def test_tables_csv_and_json_say_the_same(kubectl: Path) -> None:
    assert "8/104" in run(kubectl).stdout
    assert "vgpu  30/200" in run(kubectl, "-o", "wide").stdout
    assert "train  team       8 (30%)" in run(kubectl, "-d").stdout
    assert "team,train,main,30,8589934592," in run(kubectl, "-o", "csv").stdout
    told = json.loads(run(kubectl, "-o", "json").stdout)
    assert told["nodes"][0]["gpus"][0]["containers"][0]["memory_bytes"] == 8 << 30


def test_the_cluster_is_chosen_as_with_kubectl(kubectl: Path) -> None:
    assert run(kubectl, "--kubeconfig=/k", "--context=prod").returncode == 0
    asked = kubectl.with_name("kubectl.asked").read_text().splitlines()
    assert asked[0] == "--kubeconfig=/k --context=prod get nodes --output=json"


def test_what_is_not_known_is_an_exit_code_of_its_own(kubectl: Path) -> None:
    tell(kubectl, [node("a", None)], [plugin("a")])
    done = run(kubectl)
    assert done.returncode == 3
    assert "NOT KNOWN: node a: kubelet has not told who holds what" in done.stdout
    tell(kubectl, [node("a", {0: (TRAIN,)})], [plugin("b", "gpu"), pod("train", SHARE, "a")])
    done = run(kubectl, "--plugins-namespace=gpu")
    assert done.returncode == 3
    assert "NOT KNOWN: node a: no plugin of it runs in gpu, and this was last told" in done.stdout


def test_what_is_used_is_asked_of_the_plugins(kubectl: Path) -> None:
    tell(kubectl, [node("a", {0: (TRAIN,)})], [plugin("a"), plugin("b", namespace="team"), pod("train", SHARE, "a")])
    done = run(kubectl, "-d", "--used")
    assert done.returncode == 3
    assert "NOT KNOWN: node a: what is used: " in done.stdout
    assert "kubectl.metrics: No such file" in done.stdout
    kubectl.with_name("kubectl.metrics").write_text(USED)
    done = run(kubectl, "-d", "--used")
    assert done.returncode == 0
    [line] = [line.split() for line in done.stdout.splitlines() if line.startswith("train")]
    assert line == ["train", "team", "8", "(30%)", "0", "3"]
    asked = kubectl.with_name("kubectl.asked").read_text().splitlines()
    assert [line for line in asked if "raw" in line] == [
        "get --raw=/api/v1/namespaces/kube-system/pods/plugin-a:9445/proxy/metrics"
    ] * 2


@pytest.mark.parametrize(
    ("words", "message"),
    [(("gone",), "no node with GPUs has the name gone"), (("--context=",), ""), (("--mode=vcuda",), "invalid choice")],
)
def test_wrong_words_are_named(kubectl: Path, words: tuple[str, ...], message: str) -> None:
    done = run(kubectl, *words)
    assert message in done.stderr
    assert done.returncode == {"gone": 1, "--context=": 0, "--mode=vcuda": 2}[words[0]]


def test_a_kubectl_that_is_not_there_or_fails_is_quoted(kubectl: Path, tmp_path: Path) -> None:
    done = run(tmp_path / "none")
    assert done.returncode == 1
    assert "cannot be run: No such file or directory; install it or give --kubectl" in done.stderr
    kubectl.write_text("#!/bin/sh\necho connection refused >&2\nexit 1\n")
    done = run(kubectl)
    assert done.returncode == 1
    assert "connection refused" in done.stderr
    kubectl.write_text("#!/bin/sh\necho '[]'\n")
    assert "not a list" in run(kubectl).stderr


def test_it_watches_until_it_is_interrupted(kubectl: Path) -> None:
    process = subprocess.Popen(command(kubectl, "--watch=0.1"), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    heads = (line for line in process.stdout if line.startswith("NAME "))
    assert len(list(itertools.islice(heads, 2))) == 2
    process.send_signal(signal.SIGINT)
    process.stdout.read()
    assert process.wait(60) == 0


def test_it_watches_on_when_kubectl_fails_once(kubectl: Path) -> None:
    nodes = kubectl.with_name("kubectl.nodes")
    text = nodes.read_text()
    nodes.write_text("{}")
    process = subprocess.Popen(command(kubectl, "--watch=0.1"), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert any("kube-accel inspect: " in line and "get nodes: not a list" in line for line in process.stdout)
    nodes.write_text(text)
    assert any(line.startswith("NAME ") for line in process.stdout)
    process.send_signal(signal.SIGINT)
    process.stdout.read()
    assert process.wait(60) == 0


@pytest.mark.parametrize(("name", "shown"), [("gpu", ["a", "b"]), ("cgpu", ["b"])])
def test_it_is_a_plugin_of_kubectl(kubectl: Path, name: str, shown: list[str]) -> None:
    from kube_accel.model import Mode

    tell(kubectl, [node("a", {}), node("b", {}, mode=Mode.CGPU)], [plugin("a"), plugin("b")])
    code = f"import sys; from kube_accel.cli.inspect import kubectl_inspect_{name} as run; sys.exit(run())"
    environment = {**os.environ, "PATH": f"{kubectl.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-c", code, "-o", "json"], capture_output=True, text=True, env=environment, check=True
    )
    assert [found["name"] for found in json.loads(done.stdout)["nodes"]] == shown


def test_nodes_of_mode_dra_are_told_by_slices_and_claims(kubectl: Path) -> None:
    held, driver = claims.pod("train", {"mine": "third"}, "main"), claims.system()
    tell(kubectl, [claims.node()], [held, driver])
    for name, items in (
        ("resourceslices", [claims.slices(claims.device(0))]),
        ("resourceclaims", [claims.claim("third", "train")]),
    ):
        kubectl.with_name(f"kubectl.{name}").write_text(json.dumps({"items": items}))
    denied = run(kubectl)
    assert (denied.returncode, "these were not read" in denied.stdout) == (3, True)
    kubectl.with_name("kubectl.claims").touch()
    found = run(kubectl, "-d", "--mode=dra")
    assert (found.returncode, "train  team       8 (30%)" in found.stdout) == (0, True), found


def test_claims_are_not_asked_for_without_nodes_of_mode_dra(kubectl: Path) -> None:
    assert run(kubectl).returncode == 0
    assert "resourceclaims" not in kubectl.with_name("kubectl.asked").read_text()
