# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands ``kubectl inspect gpu`` and ``kubectl inspect cgpu`` of a host: one readable file each. Pure."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Iterator, List, Mapping

from ..shared.refusal import Refusal
from ..shared.registers import mapping, results
from .asked import Options

ENTRY = "kube_accel.cli.inspect"
"""The module that has the commands' functions."""
COMMANDS: Mapping[str, str] = {
    "kubectl-inspect-gpu": "kubectl_inspect_gpu",
    "kubectl-inspect-cgpu": "kubectl_inspect_cgpu",
}
"""The function of each command. kubectl takes words for the parts of a file's name."""
OLDEST = (3, 8)
"""The first version of Python that runs them."""
_PYTHON = "/usr/bin/python3"
_MARK = "# Made by the role accel.kubernetes.scheduler. What is changed here is overwritten, and goes with uninstall."
_HEAD = """\
import importlib.abc
import importlib.util
import sys

SOURCES = {}
with open(__file__, encoding="utf-8") as text:
    for line in text:
        if line.startswith("#: "):
            found = SOURCES.setdefault(line[3:].strip(), [])
        elif line.startswith("#|"):
            found.append(line[3:] or "\\n")


class Loader(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name in SOURCES else None

    def get_source(self, name):
        return "".join(SOURCES[name])

    def is_package(self, name):
        return any(other.startswith(name + ".") for other in SOURCES)


sys.meta_path.insert(0, Loader())
"""


@dataclass(frozen=True)
class Command:
    """What becomes of a command on a host."""

    path: str
    """As the tasks see it."""
    state: str
    """``present``, ``absent``, or ``foreign`` where somebody else's file is left as it is."""
    text: str
    """What the file has; empty where it goes."""


def commands(
    options: Options, on_host: bool, python: Mapping[str, Any], found: object, sources: Mapping[str, str]
) -> List[Command]:
    """Return what becomes of each command.

    ``found`` is the result of slurping them in a loop over paths. ``sources`` are the texts of modules by name.
    """
    there = {str(answer.get("item")): _read(answer) for answer in results(found)}
    wanted = options.kubectl_plugin and on_host and not options.removing
    return [_command(path, wanted, there.get(path, ""), python, sources) for path in paths(options, on_host)]


def paths(options: Options, on_host: bool = True) -> List[str]:
    """Return where the commands are, as the tasks see it; none where tasks see no host."""
    return [f"{options.host_root}{options.kubectl_plugin_dir}/{name}" for name in COMMANDS] if on_host else []


def refusals(options: Options, python: Mapping[str, Any]) -> Iterator[Refusal]:
    """Yield why the commands cannot run on a host whose Python Ansible describes so."""
    version = mapping(python.get("version"))
    numbers = version.get("major"), version.get("minor")
    if options.kubectl_plugin and isinstance(numbers[0], int) and isinstance(numbers[1], int) and numbers < OLDEST:
        least, has = (".".join(map(str, each)) for each in (OLDEST, numbers))
        yield Refusal(
            "kubectl_plugin_python",
            f"kubectl inspect gpu needs Python {least}, and {python.get('executable') or _PYTHON} is {has}; set "
            "ansible_python_interpreter to a later one, or scheduler_kubectl_plugin_enabled=false.",
        )


def script(name: str, python: str, sources: Mapping[str, str]) -> str:
    """Return a command as one file: its modules are comments, which it reads."""
    function = COMMANDS[name]
    lines = [f"#!{python} -I", _MARK, *_HEAD.splitlines(), f"from {ENTRY} import {function}  # noqa", ""]
    lines.append(f"sys.exit({function}())")
    for module, text in sources.items():
        lines += ["", f"#: {module}", *(f"#| {line}".rstrip() for line in text.splitlines())]
    return "\n".join(lines) + "\n"


def _command(path: str, wanted: bool, there: str, python: Mapping[str, Any], sources: Mapping[str, str]) -> Command:
    if there and _MARK not in there:
        return Command(path, "foreign", "")
    if not wanted:
        return Command(path, "absent", "")
    executable = str(python.get("executable") or _PYTHON)
    return Command(path, "present", script(path.rpartition("/")[2], executable, sources))


def _read(answer: Mapping[str, Any]) -> str:
    """Return the text of a file that was slurped; what cannot be read is somebody else's."""
    try:
        return base64.b64decode(str(answer.get("content", ""))).decode()
    except ValueError:
        return "unreadable"
