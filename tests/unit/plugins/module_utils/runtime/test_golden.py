# SPDX-License-Identifier: Apache-2.0
"""Files as they are found on hosts, each beside what becomes of it: a .diff of the edit, or a .refused with the reason.

`ACCEL_GOLDEN=write pytest -k test_runtime_golden` writes them anew, to be read in `git diff`.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import subprocess
from pathlib import Path

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.host import outcome as module
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime import config as runtime_config
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.config import Owned, Plan, Wanted
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.dialect import ConfigError, parse

import real_runtimes

FIXTURES = Path(__file__).parents[2] / "fixtures"
FOUND = sorted(
    path
    for path in [*(FIXTURES / "runtimes").iterdir(), FIXTURES / "containerd-1.7.toml", FIXTURES / "containerd-2.1.toml"]
    if path.suffix in {".toml", ".json"}
)
RUNTIMES = {"containerd": "containerd", "microk8s": "containerd", "docker": "docker", "crio": "crio"}
FILE = "/etc/the.file"


def runtime_of(path: Path) -> str:
    return RUNTIMES[path.name.split("-")[0]]


def wanted_for(runtime: str) -> Wanted:
    return Wanted("nvidia", "/usr/bin/nvidia-container-runtime", True, None if runtime == "crio" else True)


def text_of(path: Path) -> str:
    return str(module.text_of(path.read_bytes(), FILE))


def plan_for(path: Path) -> Plan:
    runtime, text = runtime_of(path), text_of(path)
    return runtime_config.plan_present(runtime, text, wanted_for(runtime), Owned(), text, FILE)


def expectation(path: Path) -> tuple[str, str]:
    """Suffix and content of the file beside it."""
    try:
        plan = plan_for(path)
    except ConfigError as error:
        return ".refused", f"{error}\n"
    lines = difflib.unified_diff(text_of(path).split("\n"), plan.text.split("\n"), "before", "after", n=2, lineterm="")
    return ".diff", "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.name)
def test_it_becomes_what_was_reviewed(path: Path) -> None:
    suffix, content = expectation(path)
    beside = {kind: FIXTURES / "runtimes" / f"{path.name}{kind}" for kind in (".diff", ".refused")}
    if os.environ.get("ACCEL_GOLDEN") == "write":
        for kind, file in beside.items():
            file.unlink(missing_ok=True)
            if kind == suffix:
                file.write_bytes(content.encode())
    assert [kind for kind, file in beside.items() if file.exists()] == [suffix], content
    assert content.encode() == beside[suffix].read_bytes()


def test_each_is_said_to_be_found_somewhere() -> None:
    rows = re.findall(r"^\| (\S+\.\w+) \| \S", (FIXTURES / "runtimes/README.md").read_text(), re.MULTILINE)
    assert rows == [path.name for path in FOUND if path.parent.name == "runtimes"]


EDITABLE = [path for path in FOUND if not (FIXTURES / "runtimes" / f"{path.name}.refused").exists()]


@pytest.mark.parametrize("path", EDITABLE, ids=lambda path: path.name)
def test_again_is_nothing_and_absent_is_the_same_bytes(path: Path) -> None:
    runtime, text = runtime_of(path), text_of(path)
    plan = plan_for(path)
    again = runtime_config.plan_present(runtime, plan.text, wanted_for(runtime), plan.owned, text, FILE)
    assert (again.edits, again.text) == ((), plan.text)

    if runtime_config.has_runtime(runtime, parse(runtime, text, FILE), "nvidia", FILE):
        return
    gone = runtime_config.plan_absent(runtime, plan.text, "nvidia", plan.owned, text, FILE)
    assert parse(runtime, gone.text, FILE) == parse(runtime, text, FILE)
    # tomlkit may leave a space in a table that stands on one line.
    left = iter("".join(line.split()) for line in gone.text.split("\n"))
    assert all("".join(line.split()) in left for line in text.split("\n") if line.strip())


def on_disk(path: Path, directory: Path) -> Path:
    """The file as the plan has it, where what it imports is not."""
    file = directory / path.name.replace("template", "config")
    file.write_bytes(module.bytes_like(path.read_bytes(), plan_for(path).text.replace("${", "${_")))
    return file


def said_by(program: Path, *words: str | Path) -> str:
    """What it prints. Fails with what it says is wrong."""
    done = subprocess.run([program, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-1000:]
    return done.stdout


@pytest.mark.parametrize("containerd", real_runtimes.containerds())
@pytest.mark.parametrize(
    "path", [path for path in EDITABLE if runtime_of(path) == "containerd"], ids=lambda path: path.name
)
def test_a_real_containerd_makes_of_it_what_is_wanted(path: Path, containerd: Path, tmp_path: Path) -> None:
    version = parse("containerd", text_of(path), FILE)["version"]
    file = on_disk(path, tmp_path)
    understands = int(said_by(containerd, "config", "default").split("version = ")[1].split()[0])
    if version > understands:
        return  # It reads no file of a version to come.
    merged = parse("containerd", said_by(containerd, "--config", file, "config", "dump"), FILE)
    wanted = wanted_for("containerd")
    if runtime_config.lacks_cdi(merged, FILE):
        wanted = dataclasses.replace(wanted, cdi=None)
    assert runtime_config.unmet("containerd", merged, wanted, FILE) == ""


@pytest.mark.parametrize("dockerd", real_runtimes.dockerds())
@pytest.mark.parametrize(
    "path", [path for path in EDITABLE if runtime_of(path) == "docker"], ids=lambda path: path.name
)
def test_a_real_docker_takes_it(path: Path, dockerd: Path, tmp_path: Path) -> None:
    # docker-proxy, which it looks for, is not what this is about.
    said_by(dockerd, "--userland-proxy=false", "--validate", "--config-file", on_disk(path, tmp_path))
