# SPDX-License-Identifier: Apache-2.0
"""A reader of tutorials and how-tos, who types what a page says, and looks whether the output is as shown.

The playground is the cluster, its inventory the one of the pages.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tools.blocks import Block, Step, blocks

PLAYED = (
    "docs/tutorials/first-whole-gpus.md",
    "docs/tutorials/first-shared-gpu.md",
    *(
        f"docs/how-to/{name}.md"
        for name in (
            "share-between-teams",
            "validate-shares",
            "change-limits",
            "use-mig",
            "use-time-slicing",
            "install-driver",
            "run-from-awx",
            "measure-sharing",
            "troubleshoot",
            "run-cuda-programs",
            "run-vllm",
            "set-quotas",
            "report",
            "reset-gpu",
            "roll-out",
            "align-numa",
            "upgrade-kubernetes",
            "monitor",
            "switch-modes",
            "uninstall",
        )
    ),
)
"""The pages that are read at one playground, in this order: each begins where the one before ends."""
ON_KUBERNETES = ("docs/tutorials/first-claims.md",)
"""The pages that are read at a real cluster, in tests/cluster."""
TIMEOUT = 900.0
PATIENCE = 60.0
"""Seconds for a command, and for a pod to become what the page shows."""
_LOOKS = re.compile(r"kubectl (-n \S+ )?(get|describe|logs|inspect)\b")
_STANDS_FOR = (
    (r"^\d+[smhd](\d+[smh])?$", r"\\S+"),  # an age
    (r"^v\d+\.\d+\.\d+$", r"v\\S+"),
    (r"^192\.0\.2\.\d+$", r"[\\d.]+"),
    (r"^-{5,}$", r"-+"),
)
"""Words of a page that stand for another on each cluster, and what may be there."""


class PageError(AssertionError):
    """What a page says is not what happened."""


@dataclass
class Reader:
    """Somebody in a directory with the inventory of a cluster."""

    directory: Path
    kubeconfig: Path
    names: Mapping[str, str] = field(default_factory=dict)
    """What to type in place of words in capitals, and of names and paths that a page takes for an example.

    Words in capitals are headings in what a command prints.
    """

    @property
    def inventory(self) -> Path:
        return self.directory / "inventory.yml"

    def read(self, page: Path, elsewhere: Sequence[str] = ()) -> list[str]:
        """Do what a page says, and return the commands. Commands that a pattern of ``elsewhere`` matches are left out.

        Raises PageError, with the page and the line, when a command fails, or prints something else.
        """
        typed: list[str] = []
        output: str | None = None
        section = ""
        told = list(blocks(page))
        tried = {block.section for block in told if block.kind == "console" and not block.not_run}
        for block in told:
            output, section = output if block.section == section else None, block.section
            try:
                if block.kind == "console":
                    output = self._type(block, elsewhere, typed)
                elif block.kind == "text" and output is not None:
                    differs(block.text.splitlines(), output)
                elif block.saved_as:
                    self._save(block)
                elif block.kind == "yaml" and "inventory" in block.before and block.section in tried:
                    self._set(yaml.safe_load(block.text))
            except PageError as error:
                raise PageError(f"{page.name}, line {block.line}: {error}") from None
        return typed

    def _type(self, block: Block, elsewhere: Sequence[str], typed: list[str]) -> str | None:
        """Returns the output of the last command; None where nothing of the block is run."""
        output = None
        if block.not_run:
            return None
        for number, step in enumerate(block.steps, 1):
            if any(re.fullmatch(pattern, step.command) for pattern in elsewhere):
                continue
            fails = bool(block.fails) and number == len(block.steps)
            output = self._run(step, fails=fails)
            typed.append(step.command)
        return output

    def _run(self, step: Step, *, fails: bool) -> str:
        command = self._meant(step.command, self.names)
        examples = {name: meant for name, meant in self.names.items() if not name.isupper()}
        shown = [self._meant(line, examples) for line in step.shown]
        deadline = time.monotonic() + (PATIENCE if _LOOKS.match(command) else 0)
        while True:
            ended = subprocess.run(
                ["bash", "-c", command],
                cwd=self.directory,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TIMEOUT,
                check=False,
            )
            try:
                if (ended.returncode != 0) != fails:
                    raise PageError(f"{command}: exit status {ended.returncode}:\n{ended.stdout[-4000:]}")
                differs(shown, ended.stdout)
                return ended.stdout
            except PageError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    @staticmethod
    def _meant(text: str, names: Mapping[str, str]) -> str:
        """Return a command or an output of a page as it is here."""
        for name, meant in names.items():
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", meant, text)
        return text

    def _environment(self) -> dict[str, str]:
        return os.environ | {
            "KUBECONFIG": str(self.kubeconfig),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "ANSIBLE_FORCE_COLOR": "0",
            "ANSIBLE_LOCALHOST_WARNING": "0",
            "TMPDIR": str(self.kubeconfig.resolve().parent),
        }

    def _save(self, block: Block) -> None:
        # The page's inventory is of a cluster with SSH; the playground has one of its own.
        if block.saved_as != self.inventory.name:
            (self.directory / block.saved_as).write_text(block.text)

    def _set(self, variables: Mapping[str, Any]) -> None:
        """Write variables into the inventory: those of a host under its name, others for all."""
        inventory = yaml.safe_load(self.inventory.read_text())
        hosts = {name for group in inventory["all"]["children"].values() for name in group["hosts"]}
        for name, value in variables.items():
            if (host := self._meant(name, self.names)) in hosts:
                for found in inventory["all"]["children"].values():
                    if host in found["hosts"]:
                        found["hosts"][host] = (found["hosts"][host] or {}) | value
            else:
                inventory["all"]["vars"][name] = value
        self.inventory.write_text(yaml.safe_dump(inventory, sort_keys=False))


def differs(shown: Sequence[str], output: str) -> None:
    """Raise PageError unless the lines that a page shows are in the output, in that order.

    ``...`` stands for anything, and ages, versions, and addresses for those of another cluster.
    """
    lines = iter(output.splitlines())
    for line in (each for each in shown if each.strip() not in ("", "...")):
        pattern = r"\s+".join(map(_pattern, line.split())).replace(r"\s+.*", ".*").replace(r".*\s+", ".*")
        if not any(re.search(pattern, each) for each in lines):
            raise PageError(f"the page shows {line!r}, which is not in:\n{output[-4000:]}")


def _pattern(word: str) -> str:
    for stands, meant in _STANDS_FOR:
        if re.match(stands, word):
            return re.sub(stands, meant, word)
    return ".*".join(map(re.escape, word.split("...")))
