# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings of a program of a DaemonSet: flags as Go reads them, environment, and files of ConfigMaps. Pure."""

from __future__ import annotations

import posixpath
import re
import shlex
from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, Mapping, Sequence, Tuple

Object = Mapping[str, Any]
Maps = Mapping[str, Mapping[str, str]]
"""The data of ConfigMaps, by ``namespace/name``."""

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)")
_SHELL_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::?-([^}]*))?\})")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*", re.MULTILINE)
_BEFORE_COMMANDS = ("env", "exec", "export", "nohup", "readonly")
"""What may stand before a command, and leave its environment to what follows."""
_SHELLS = ("sh", "bash", "ash", "dash")

ANYTHING = "*"
"""Among variables that are not to be had, whichever a Secret has."""


@dataclass(frozen=True)
class Program:
    """How a program is recognized, and how it reads flags and environment."""

    names: FrozenSet[str]
    """Last parts of its path."""
    booleans: FrozenSet[str]
    """Flags that take no value of their own."""
    variables: Mapping[str, Tuple[str, ...]]
    """By flag; the first that is set counts, where there is no flag."""
    posix: bool = False
    """Whether it reads flags as package ``pflag`` does, and not as ``flag``."""


@dataclass(frozen=True)
class File:
    """One that a ConfigMap gives a container."""

    configmap: str
    """``namespace/name``."""
    key: str
    text: str


@dataclass(frozen=True)
class ProgramSettings:
    """One container's settings."""

    values: Mapping[str, str]
    """By flag, wherever it was said."""
    environment: Mapping[str, str]
    unread: Mapping[str, str]
    """Variables whose value is not to be had, with where it is."""
    files: Mapping[str, File]
    """By absolute path."""


def containers(daemonset: Object) -> List[Object]:
    """Return the pod's containers, those that run first included."""
    spec = daemonset["spec"]["template"]["spec"]
    return [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]


def configmaps(daemonset: Object) -> List[str]:
    """Return the ``namespace/name`` of every ConfigMap that it reads."""
    names: List[str] = []
    for container in containers(daemonset):
        names += [(each.get("configMapRef") or {}).get("name") or "" for each in container.get("envFrom") or ()]
        sources = (each.get("valueFrom") or {} for each in container.get("env") or ())
        names += [(source.get("configMapKeyRef") or {}).get("name") or "" for source in sources]
    for volume in daemonset["spec"]["template"]["spec"].get("volumes") or ():
        names += [source.get("name") or "" for source in _sources(volume)]
    namespace = daemonset["metadata"]["namespace"]
    return list(dict.fromkeys(f"{namespace}/{name}" for name in names if name))


def runs(container: Object, names: Iterable[str]) -> bool:
    """Return whether one of these programs is named in its command, arguments or script."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    parts = {posixpath.basename(part) for word in words for part in re.split(r"[\s;&|()]+", str(word))}
    return bool(parts & set(names))


def program_settings(
    daemonset: Object, container: Object, program: Program, maps: Maps, node: str = ""
) -> ProgramSettings:
    """Return a container's settings on a node. The last of several counts; flags come before the environment."""
    environment, unread = _environment(container, daemonset["metadata"]["namespace"], maps, node)
    files = dict(_files(daemonset, container, maps))
    words, set_there = _words(container, program, environment, files)
    environment.update(set_there)
    values = (posix_flags if program.posix else flags)(words, program.booleans)
    for name, variables in program.variables.items():
        said = next((environment[each] for each in variables if environment.get(each)), None)
        if said is not None:
            values.setdefault(name, said)
    return ProgramSettings(values, environment, unread, files)


def flags(words: Sequence[str], booleans: Iterable[str]) -> Dict[str, str]:
    """Read flags as Go's package ``flag`` does, up to the first word that is none or ``--``."""
    found: Dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        match = re.fullmatch(r"--?([^-=][^=]*)(=?)(.*)", word, re.DOTALL)
        if match is None:
            break
        name, has_value, value = match.groups()
        if not has_value:
            value = "true" if name in booleans else next(rest, "")
        found[name] = value
    return found


def posix_flags(words: Sequence[str], booleans: Iterable[str]) -> Dict[str, str]:
    """Read flags as Go's package ``pflag`` does: among other words too, and with one letter after a single dash."""
    found: Dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if word == "--":
            break
        match = re.fullmatch(r"(?:--([^-=][^=]*)|-([^-=]))(=?)(.*)", word, re.DOTALL)
        if match is None:
            continue
        name, value = match[1] or match[2], match[4]
        if not match[3] and not value:
            value = "true" if name in booleans else next(rest, "")
        found[name] = value
    return found


def truth(value: str) -> bool:
    """Return whether Go's ``strconv.ParseBool`` takes it for true."""
    return value in ("1", "t", "T", "TRUE", "true", "True")


def _environment(container: Object, namespace: str, maps: Maps, node: str) -> Tuple[Dict[str, str], Dict[str, str]]:
    values: Dict[str, str] = {}
    unread: Dict[str, str] = {}
    for each in container.get("envFrom") or ():
        name = (each.get("configMapRef") or {}).get("name")
        for key, value in (maps.get(f"{namespace}/{name}") or {}).items():
            values[f"{each.get('prefix') or ''}{key}"] = str(value)
        if each.get("secretRef"):
            unread[ANYTHING] = f"Secret {each['secretRef'].get('name')}"
    for each in container.get("env") or ():
        source = each.get("valueFrom") or {}
        if not source:
            values[each["name"]] = _expanded(each.get("value") or "", values)
            continue
        if (source.get("fieldRef") or {}).get("fieldPath") == "spec.nodeName":
            values[each["name"]] = node
            continue
        reference = source.get("configMapKeyRef") or {}
        data = maps.get(f"{namespace}/{reference.get('name')}") or {}
        if reference.get("key") in data:
            values[each["name"]] = str(data[reference["key"]])
        elif not reference.get("optional"):
            unread[each["name"]] = next(iter(source))
    return values, unread


def _expanded(text: str, values: Mapping[str, str]) -> str:
    """Return the text with ``$(NAME)`` replaced as kubelet does; a name that is not known stays as it is."""

    def value(match: "re.Match[str]") -> str:
        return "$" if match[0] == "$$" else values.get(match[1], match[0])

    return _REFERENCE.sub(value, text)


def _words(
    container: Object, program: Program, environment: Mapping[str, str], files: Mapping[str, File]
) -> Tuple[List[str], Dict[str, str]]:
    """Return the words after the program's name, and the environment that its command line sets."""
    command = [_expanded(str(word), environment) for word in container.get("command") or ()]
    words = command + [_expanded(str(word), environment) for word in container.get("args") or ()]
    values = dict(environment)
    set_there: Dict[str, str] = {}
    for segment in _commands(words, values, files):
        leading = True
        for position, word in enumerate(segment):
            match = _ASSIGNMENT.fullmatch(word)
            if posixpath.basename(word) in program.names:
                return segment[position + 1 :], set_there
            if match and leading:
                set_there[match[1]] = values[match[1]] = match[2]
            leading = leading and (match is not None or word in _BEFORE_COMMANDS)
    # The image's own entry point, or a program by another name.
    first = next((position for position, word in enumerate(words) if word.startswith("-")), len(words))
    return ([] if _script(words, files) else words[first:]), set_there


def _script(words: Sequence[str], files: Mapping[str, File]) -> "Tuple[str, Sequence[str]] | None":
    """Return the script that is run, given to a shell or from a ConfigMap's file, and its arguments."""
    if not words:
        return None
    position = 0
    if posixpath.basename(words[0]) in _SHELLS:
        for position, word in enumerate(words[1:], 1):
            if re.fullmatch(r"-[a-z]*c[a-z]*", word):
                text, rest = "".join(words[position + 1 : position + 2]), words[position + 3 :]
                file = files.get(posixpath.normpath(text.strip() or "."))
                return file.text if file else text, rest
            if not word.startswith("-"):
                break
    file = files.get(posixpath.normpath(words[position]))
    return (file.text, words[position + 1 :]) if file else None


def _commands(words: Sequence[str], values: Mapping[str, str], files: Mapping[str, File]) -> Iterator[List[str]]:
    """Yield the commands that are run, each as its words: one, or those of a shell's script."""
    found = _script(words, files)
    if found is None:
        yield list(words)
        return
    script, given = found
    text = _COMMENT.sub("", script.replace("\\\n", " ")).replace("\n", " ; ")
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|()")
    lexer.commenters, lexer.whitespace_split = "", True
    try:
        tokens = list(lexer)
    except ValueError:
        tokens = text.split()
    command: List[str] = []
    for token in tokens:
        if token and not token.strip(";&|()"):
            yield command
            command = []
        elif token in ("$@", "$*"):
            command += given
        else:
            known = _SHELL_VARIABLE.sub(lambda match: values.get(match[1] or match[2], match[3] or ""), token)
            # A variable alone may be several words, or none.
            command += known.split() if _SHELL_VARIABLE.fullmatch(token) else [known]
    yield command


def _sources(volume: Object) -> List[Object]:
    """Return the ConfigMaps of a volume, later ones over earlier ones."""
    projected = (volume.get("projected") or {}).get("sources") or ()
    found = [volume.get("configMap"), *(each.get("configMap") for each in projected)]
    return [each for each in found if each]


def _files(daemonset: Object, container: Object, maps: Maps) -> Iterator[Tuple[str, File]]:
    namespace = daemonset["metadata"]["namespace"]
    volumes = {each["name"]: each for each in daemonset["spec"]["template"]["spec"].get("volumes") or ()}
    for mount in container.get("volumeMounts") or ():
        under = (mount.get("subPath") or "").strip("/")
        for source in _sources(volumes.get(mount["name"]) or {}):
            name = f"{namespace}/{source.get('name')}"
            data = maps.get(name) or {}
            items = source.get("items")
            paths = [(each["key"], each["path"]) for each in items] if items else [(key, key) for key in data]
            for key, path in paths:
                if key in data and (not under or path == under or path.startswith(f"{under}/")):
                    inner = posixpath.relpath(path, under) if under else path
                    yield (
                        posixpath.normpath(posixpath.join(mount.get("mountPath") or "/", inner)),
                        File(name, key, data[key]),
                    )
