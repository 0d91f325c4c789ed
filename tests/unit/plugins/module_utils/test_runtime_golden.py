# SPDX-License-Identifier: Apache-2.0
"""Files as they are found on hosts, each beside what becomes of it: a .diff of the edit, or a .refused with the reason.

`ACCEL_GOLDEN=write pytest -k test_runtime_golden` writes them anew, to be read in `git diff`.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils import module, runtime_config
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime_config import ConfigError, Owned, Plan, Wanted

FIXTURES = Path(__file__).parents[1] / "fixtures"
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


EDITABLE = [path for path in FOUND if not (FIXTURES / "runtimes" / f"{path.name}.refused").exists()]


@pytest.mark.parametrize("path", EDITABLE, ids=lambda path: path.name)
def test_again_is_nothing_and_absent_is_the_same_bytes(path: Path) -> None:
    runtime, text = runtime_of(path), text_of(path)
    plan = plan_for(path)
    again = runtime_config.plan_present(runtime, plan.text, wanted_for(runtime), plan.owned, text, FILE)
    assert (again.edits, again.text) == ((), plan.text)

    if runtime_config.has_runtime(runtime, runtime_config.parse(runtime, text, FILE), "nvidia", FILE):
        return
    gone = runtime_config.plan_absent(runtime, plan.text, "nvidia", plan.owned, text, FILE)
    assert runtime_config.parse(runtime, gone.text, FILE) == runtime_config.parse(runtime, text, FILE)
    # tomlkit may leave a space in a table that stands on one line.
    left = iter("".join(line.split()) for line in gone.text.split("\n"))
    assert all("".join(line.split()) in left for line in text.split("\n") if line.strip())
