# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line and environment that systemd gives a service, as its unit and their drop-ins say. No I/O.

Source: systemd.unit(5), "Unit File Load Path" and "Specifiers", and systemd.exec(5), "Environment".
"""

from __future__ import annotations

import posixpath
import re
import shlex
from typing import Callable, Dict, List, Mapping, Sequence, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.host.command_line import Given, Start

DIRECTORIES = (
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
"""Where units are, those that win first."""
_SHOWN = re.compile(r"^# (/\S+\.(?:service|conf))$", re.MULTILINE)
_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")


def drop_in_directories(service: str) -> List[str]:
    """Return the names of the directories that drop-ins of a service are in, beside the units."""
    parts = service.split("-")[:-1]
    prefixes = ["-".join(parts[:count]) + "-" for count in range(len(parts), 0, -1)]
    return [f"{name}.service.d" for name in (service, *prefixes)] + ["service.d"]


def chosen(service: str, paths: Sequence[str]) -> List[str]:
    """Returns those files that count, in the order in which systemd reads them."""
    units = [path for path in (f"{directory}/{service}.service" for directory in DIRECTORIES) if path in paths]
    drop_ins: Dict[str, str] = {}
    for name in drop_in_directories(service):
        for directory in DIRECTORIES:
            for path in paths:
                if posixpath.dirname(path) == f"{directory}/{name}" and path.endswith(".conf"):
                    drop_ins.setdefault(posixpath.basename(path), path)
    return units[:1] + [drop_ins[name] for name in sorted(drop_ins)]


def shown(text: str) -> Dict[str, str]:
    """Return the files that ``systemctl cat`` prints, each below a comment with its path, in the order of reading."""
    parts = _SHOWN.split(text)
    return dict(zip(parts[1::2], parts[2::2]))  # noqa: B905 - without strict: Python 3.9


def effective(files: Mapping[str, str], matching: Callable[[str], Mapping[str, str]]) -> Start:
    """Return the start that the files describe, in the order in which they are read.

    ``matching`` gives the texts of the files that a pattern of EnvironmentFile names, by path in the order of names.
    """
    start = Start()
    unit = next((posixpath.basename(path)[: -len(".service")] for path in files if path.endswith(".service")), "")
    line = Given("", "")
    variables: Dict[str, Given] = {}
    sources: List[str] = []
    unset: List[str] = []
    for path, text in files.items():
        for name, raw in _settings(text):
            value = _specified(raw, unit)
            if name == "ExecStart":
                line = Given(value, path)
            elif name == "Environment":
                pairs = (word.partition("=") for word in _words(value))
                variables = {**variables, **{key: Given(item, path) for key, _equals, item in pairs}} if value else {}
            elif name == "EnvironmentFile":
                sources = [*sources, value.lstrip("-")] if value else []
            elif name == "UnsetEnvironment":
                unset = [*unset, *_words(value)] if value else []
    for place, text in ((place, text) for source in sources for place, text in matching(source).items()):
        for word in _assignments(text):
            key, item = word.partition("=")[::2]
            variables[key] = Given(item, place)
    for word in unset:
        # Last of all, wherever it was set; with a value only what has that one.
        key, equals, value = word.partition("=")
        if not equals or (key in variables and variables[key].value == value):
            variables.pop(key, None)
    start.environment = variables
    for word in _words(line.value):
        start.words += _expanded(word, line.path, variables)
    return start


def _settings(text: str) -> List[Tuple[str, str]]:
    """Return the section [Service]. A line that ends with a backslash goes on in the next that is no comment."""
    found = []
    section = ""
    begun = ""
    for row in text.splitlines():
        line = row.strip()
        if line.startswith(("#", ";")):
            continue
        if line.endswith("\\"):
            begun += line[:-1] + " "
            continue
        line, begun = begun + line, ""
        if line.startswith("["):
            section = line
        elif section == "[Service]" and "=" in line:
            name, value = line.partition("=")[::2]
            found.append((name.strip(), value.strip()))
    return found


def _specified(text: str, unit: str) -> str:
    """Return a setting with the specifiers replaced that stand for the unit's name."""
    names = {"%%": "%", "%n": f"{unit}.service", "%N": unit, "%p": unit}
    return re.sub("%[%nNp]", lambda match: names[match[0]], text) if unit else text


def _assignments(text: str) -> List[str]:
    """Lines of an environment's file, without comments and quotes."""
    lines = (line.strip() for line in text.replace("\\\n", "").splitlines())
    return ["".join(_words(line)) if "'" in line or '"' in line else line for line in lines if line[:1] not in "#;"]


def _words(text: str) -> List[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _expanded(word: str, path: str, variables: Mapping[str, Given]) -> List[Given]:
    """Return a word of the command line with variables replaced; one that stands alone becomes as many as it holds."""
    match = _VARIABLE.fullmatch(word)
    if match and match.group(2):
        found = variables.get(match.group(2), Given("", path))
        return [Given(part, found.path) for part in _words(found.value)]
    where = path
    for name in re.findall(r"\$\{(\w+)\}", word):
        found = variables.get(name, Given("", path))
        word, where = word.replace(f"${{{name}}}", found.value), found.path
    return [Given(word, where)]
