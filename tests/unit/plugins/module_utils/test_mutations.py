# SPDX-License-Identifier: Apache-2.0
"""Configuration files damaged at random: each is edited and given back, or refused with a reason, and nothing else.

KUBE_ACCEL_FUZZ_SECONDS has it go on for that long, with the seed KUBE_ACCEL_FUZZ_SEED.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime import (
    config as runtime_config,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime import dialect as runtime_dialect
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime import (
    effect as runtime_effect,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler import config as scheduler_config
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler import schema as scheduler_schema

FIXTURES = Path(__file__).parents[1] / "fixtures"
FILE = "/etc/the.file"
TRIES = 300
"""Files of a kind, where no time is set."""
PIECES = (
    *('"', "'", "[", "]", "{", "}", "=", ":", "\n", "#", "\ufeff", "\r\n", "\t", "- ", "  ", "? ", "|", ">", ".", "~"),
    *("true", "null", "1e400", "0x", "&a ", "*a", "!!x ", "[[x]]", "nvidia", "version", "plugins", "\ud800", "\x00"),
)
CRIO = '[crio.runtime]\ndefault_runtime = "runc"\n[crio.runtime.runtimes.runc]\nruntime_path = "/usr/bin/runc"\n'
EXTENDERS = [{"urlPrefix": "https://127.0.0.1:9446/x", "managedResources": [{"name": "a/b"}]}]


def files(pattern: str) -> list[str]:
    return [path.read_text() for path in sorted(FIXTURES.rglob(pattern))]


TEXTS = {
    "containerd": files("*containerd*.toml"),
    "docker": [*files("daemon*.json"), '{"runtimes": {"nvidia": {"path": "x"}}, "default-runtime": "nvidia"}'],
    "crio": [CRIO, CRIO.replace("runc", "nvidia")],
    "scheduler": [*files("kubescheduler-config.yaml"), *files("scheduler-config.yaml")],
}


def damaged(text: str, chance: random.Random) -> str:
    """The text with up to four pieces of it removed, doubled or replaced."""
    for _ in range(chance.randint(1, 4)):
        at, kind = chance.randrange(len(text) + 1), chance.randrange(4)
        until = at + chance.randint(0 if kind == 0 else 1, 12)
        put = chance.choice(PIECES) if kind != 2 else ""
        if kind == 3:
            put = text[at : at + 40]
        text = text[:at] + put + text[until:]
    return text


def many(seed: int) -> Iterator[random.Random]:
    chance = random.Random(int(os.environ.get("KUBE_ACCEL_FUZZ_SEED", seed)))
    seconds = float(os.environ.get("KUBE_ACCEL_FUZZ_SECONDS", 0)) / len(TEXTS)
    end, tries = time.monotonic() + seconds, 0
    while tries < TRIES or time.monotonic() < end:
        tries += 1
        yield chance


def try_runtime(runtime: str, text: str, chance: random.Random) -> None:
    """Present changes nothing the second time, and absent gives everything back."""
    cdi = None if runtime == "crio" else chance.choice([None, True, False])
    name = chance.choice(["nvidia", 'nv"idia'])
    wanted = runtime_config.Wanted(name, "/usr/bin/nvidia-container-runtime", chance.random() < 0.5, cdi)
    plan = runtime_config.plan_present(runtime, text, wanted, runtime_config.Owned(), text, FILE)
    again = runtime_config.plan_present(runtime, plan.text, wanted, plan.owned, text, FILE)
    assert not again.edits
    back = runtime_config.plan_absent(runtime, plan.text, name, plan.owned, text, FILE)
    assert runtime_dialect.parse(runtime, back.text, FILE) == runtime_dialect.parse(runtime, text, FILE)
    if runtime != "docker":
        runtime_effect.winner(runtime, [runtime_dialect.parse(runtime, plan.text, FILE)], {"x": text}, wanted, "/etc")


def try_scheduler(_: str, text: str, chance: random.Random) -> None:
    """The same, where nothing of ours was there before."""
    extenders, packed = chance.choice([EXTENDERS, []]), chance.choice([{"c/d": 2}, {}])
    wanted = scheduler_config.Wanted(extenders, packed)
    owned = scheduler_config.Owned(frozenset(map(scheduler_config.key_of, EXTENDERS)), frozenset({"c/d"}))
    there = scheduler_config.holds(text, owned, FILE)
    scheduler_config.binders(text, FILE)
    scheduler_config.election(text, FILE)
    planned = scheduler_config.plan(text, wanted, scheduler_config.Owned(), text, FILE)
    assert scheduler_config.plan(planned, wanted, owned, text, FILE) == planned or there
    scheduler_config.plan(planned, scheduler_config.Wanted(), owned, text, FILE)


@pytest.mark.parametrize("kind", TEXTS)
def test_a_damaged_file_is_edited_and_given_back_or_refused(kind: str) -> None:
    attempt: Callable[[str, str, random.Random], Any] = try_scheduler if kind == "scheduler" else try_runtime
    assert TEXTS[kind]
    refusals = []
    for chance in many(7):
        text = damaged(chance.choice(TEXTS[kind]), chance)
        try:
            attempt(kind, text, chance)
        except (runtime_dialect.ConfigError, scheduler_schema.ConfigError) as error:
            refusals.append(str(error))
        except Exception as error:
            pytest.fail(f"{type(error).__name__}: {error}\n{text!r}")
    assert refusals
    assert [said for said in refusals if FILE not in said and "/etc/x" not in said] == []
