# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line and environment that OpenRC gives a service, as far as its script says them plainly. No I/O.

Sources: openrc-run(8), and the script that the installer of k3s writes, which reads files of variables.
"""

from __future__ import annotations

import re
import shlex
from typing import Callable, Dict, Mapping

from ansible_collections.accel.kubernetes.plugins.module_utils.host.command_line import Given, Start

_ASSIGNMENT = re.compile(r"(?:export +)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^}]*))?\})")
_REDIRECTION = re.compile(r"\d*(>>?|<).*|&.*")


def started(files: Mapping[str, str], matching: Callable[[str], Mapping[str, str]]) -> Start:
    """Return what a service is started with, by its configuration and then its script, by path.

    ``matching`` gives the texts of a file that the script reads. What cannot be read as words says nothing.
    """
    variables: Dict[str, Given] = {}
    for path, text in files.items():
        _read(text, path, variables, matching)
    words = [variables.get("command", Given("", ""))]
    given = variables.get("command_args", Given("", ""))
    for word in _words(given.value):
        if _REDIRECTION.fullmatch(word):
            break
        words.append(Given(word, given.path))
    return Start(words if words[0].value else [], variables)


def _read(
    text: str, path: str, variables: Dict[str, Given], matching: Callable[[str], Mapping[str, str]] = lambda _name: {}
) -> None:
    """Take the assignments of a shell's text, and those of files that it reads."""
    words = _words(text)
    for position, word in enumerate(words):
        match = _ASSIGNMENT.fullmatch(word)
        if match:
            variables[match[1]] = Given(_expanded(match[2], variables), path)
        elif word in (".", "source") and position + 1 < len(words):
            for name, content in matching(words[position + 1].rstrip(";")).items():
                _read(content, name, variables)


def _words(text: str) -> "list[str]":
    try:
        return shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError:
        return []


def _expanded(text: str, variables: Mapping[str, Given]) -> str:
    def value(match: re.Match[str]) -> str:
        found = variables.get(match[1] or match[2])
        return found.value if found and found.value else match[3] or ""

    return _VARIABLE.sub(value, text)
