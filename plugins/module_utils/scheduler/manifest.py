# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What kube-scheduler's static pod manifest has to become so that it reads a configuration file. No I/O."""

from __future__ import annotations

import copy
import hashlib
import posixpath
import re
import shlex
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.documents import yaml_text
from ansible_collections.accel.kubernetes.plugins.module_utils.documents.yaml_edit import edit
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.schema import ConfigError
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.api_json import ApiJsonError, fit

CHECKSUM = "kube-accel.io/scheduler-config-checksum"
"""kubelet restarts a static pod when its manifest changes, not when a file in it does."""
VOLUME = "kube-accel-scheduler-config"
_MOUNT_PREFIX = "kube-accel-mount-"
_OLDEST_MINOR = 25
_SHELLS = ("sh", "ash", "bash", "dash")
_SWITCHES = ("leader-elect", "profiling", "contention-profiling")
"""Flags that take no word after them for their value."""
_HOPELESS = {
    "write-config-to": "with which kube-scheduler writes its configuration and ends",
    "policy-config-file": "which Kubernetes 1.23 took away with policies",
    "policy-configmap": "which Kubernetes 1.23 took away with policies",
    "algorithm-provider": "which Kubernetes 1.23 took away with providers",
}


@dataclass(frozen=True)
class Wanted:
    """What the manifest is to hold. Paths are the machine's."""

    config_path: str
    """Mounted and named by ``--config`` unless the manifest names another."""
    config: str
    """Content of the file, for its checksum."""
    mounts: Sequence[str] = ()
    """Directories the pod has to see at their own path."""
    files: Sequence[str] = ()
    """Files that have to be visible in the pod."""


def _word(value: object) -> None:
    """Check a shape: what can be a word of a command line. Raises ValueError."""
    if value is None or isinstance(value, (dict, list)):
        raise ValueError("no text")


_SHAPE: Dict[str, Any] = {
    "metadata": {"annotations": {}},
    "spec": {
        "containers": [
            {"command": [_word], "args": [_word], "volumeMounts": [{"name": str, "mountPath": str, "subPath": str}]}
        ],
        "volumes": [{"name": str, "hostPath": {"path": str}}],
    },
}


class Manifest:
    """A kube-scheduler manifest, edited in place. Raises ConfigError when the text is none."""

    def __init__(self, text: str, path: str) -> None:
        self.path = path
        self._text = text
        try:
            self._data = yaml_text.load(text, path)
        except yaml_text.YamlError as error:
            raise ConfigError(str(error)) from error
        if self._data.get("kind") == "Pod":
            try:
                fit(self._data, _SHAPE, path)
            except ApiJsonError as error:
                raise ConfigError(f"{error}, so kubelet does not run it: correct it, then run again") from error
        self._before = copy.deepcopy(self._data)
        containers = (self._data.get("spec") or {}).get("containers") or ()
        if self._data.get("kind") != "Pod" or not containers:
            raise ConfigError(f"{path} is no Pod with a container; name kube-scheduler's manifest in manifest_path")
        self._container = _container_of(self._data)
        self.minor = _minor(str(self._container.get("image", "")))
        """Minor version of the kube-scheduler that it runs; None where its image does not say."""
        if self.minor is not None and self.minor < _OLDEST_MINOR:
            raise ConfigError(
                f"{path} runs {self._container['image']}; configuration version v1 exists from "
                f"Kubernetes 1.{_OLDEST_MINOR} on: upgrade the control plane first"
            )

    def flag(self, name: str) -> str | None:
        """Value of a command-line flag, None when it is not given. The last one holds (pflag)."""
        return dict(self._flags()).get(name)

    def config_file(self) -> str | None:
        """Return the path on the machine of the file ``--config`` names, None without that flag."""
        inside = self.flag("config")
        if inside is None:
            return None
        if not inside:
            raise ConfigError(
                f"{self.path} has --config without the name of a file, which wins over an earlier one: take it out"
            )
        if "$" in inside:
            raise ConfigError(f"{self.path} has --config={inside}, a variable, so the file is unknown: write its path")
        outside = self.outside(inside)
        if outside is None:
            raise ConfigError(
                f"{self.path} has --config={inside}, but no hostPath volume of the pod holds that file: "
                "mount its directory, then run again"
            )
        return outside

    def mounts_our_file(self) -> bool:
        """Return whether the configuration file is one we brought."""
        return any(volume.get("name") == VOLUME for volume in self._spec().get("volumes") or ())

    def reads_our_file(self) -> bool:
        """Return whether the configuration that it reads is the one we brought."""
        ours = self._our_directory()
        return ours != "" and (self.flag("config") or "").startswith(f"{ours}/")

    def bears_checksum(self) -> bool:
        """Return whether we have edited it."""
        return CHECKSUM in ((self._data.get("metadata") or {}).get("annotations") or {})

    def is_same_pod(self, text: str) -> bool:
        """Return whether a text is another manifest of this pod."""
        if "Pod" not in text:
            return False
        try:
            other = yaml_text.load(text, "")
        except yaml_text.YamlError:
            return False  # Nothing that kubelet runs.
        return other.get("kind") == "Pod" and _identity(other) == _identity(self._data)

    def add(self, wanted: Wanted) -> None:
        """Make it name the configuration, see what it needs, and restart when the configuration changes."""
        self._refuse_without_effect()
        if self.flag("config") is None:
            self._mount(VOLUME, posixpath.dirname(wanted.config_path), "DirectoryOrCreate")
            words, place = self._place()
            words.insert(place, f"--config={wanted.config_path}")
            seen = self.outside(wanted.config_path)
            if seen != wanted.config_path:
                raise ConfigError(
                    f"{self.path} mounts {seen or 'what is no hostPath'} at {wanted.config_path}, so kube-scheduler "
                    "would not see the file of that name: name another in scheduler_config_path"
                )
        names = {_mount_name(path): path for path in wanted.mounts}
        self._unmount(lambda name: name.startswith(_MOUNT_PREFIX) and name not in names)
        for name, path in names.items():
            self._mount(name, path, "Directory")
        for path in wanted.files:
            if self.outside(path) is None:
                raise ConfigError(
                    f"kube-scheduler cannot see {path}, which an extender's tls_config names: "
                    f"add {posixpath.dirname(path)} to mounts"
                )
        if self._data.get("metadata") is None:
            self._data["metadata"] = {}
        metadata = self._data["metadata"]
        if metadata.get("annotations") is None:
            metadata["annotations"] = {}
        checksum = hashlib.sha256(wanted.config.encode()).hexdigest()
        if metadata["annotations"].get(CHECKSUM) != checksum:
            metadata["annotations"][CHECKSUM] = checksum

    def remove(self, original: str | None, keep_config: bool) -> None:
        """Take out all that add() put in, or with ``keep_config`` all but the configuration file."""
        first = yaml_text.load(original, self.path) if original is not None else {}
        metadata = self._data.get("metadata") or {}
        annotations = metadata.get("annotations") or {}
        annotations.pop(CHECKSUM, None)
        old = first.get("metadata") or {}
        if not annotations and "annotations" in metadata and not old.get("annotations"):
            _as_at_first(metadata, "annotations", old)
        spec = first.get("spec") or {}
        container = _container_of(first) if spec.get("containers") else {}
        if self.mounts_our_file() and not keep_config:
            for key in ("command", "args"):
                if self._container.get(key):
                    self._container[key] = self._without_our_file(self._container[key])
                    if not self._container[key]:
                        _as_at_first(self._container, key, container)
        ours = (_MOUNT_PREFIX,) if keep_config else (_MOUNT_PREFIX, VOLUME)
        self._unmount(lambda name: name.startswith(ours), container, spec)

    def text(self) -> str:
        """Return the manifest as text; unchanged when nothing was edited."""
        if self._data == self._before:
            return self._text
        try:
            result: str = edit(self._text, self._data, self.path)
        except yaml_text.YamlError as error:
            raise ConfigError(str(error)) from error
        return result

    def _spec(self) -> Dict[str, Any]:
        spec: Dict[str, Any] = self._data["spec"]
        return spec

    def _without_our_file(self, words: List[Any]) -> List[Any]:
        """Return the command line without the flag that names our file, whether its value is a separate word or not."""
        inside = f"{self._our_directory()}/"
        kept: List[Any] = []
        for word in words:
            if kept and kept[-1] == "--config" and str(word).startswith(inside):
                kept.pop()
            elif inside == "/" or not str(word).startswith(f"--config={inside}"):
                kept.append(word)
        return kept

    def _our_directory(self) -> str:
        """Return where the configuration that we brought is mounted, empty without one."""
        mounts = self._container.get("volumeMounts") or ()
        return next((str(mount.get("mountPath") or "") for mount in mounts if mount.get("name") == VOLUME), "")

    def _refuse_without_effect(self) -> None:
        """Raise ConfigError where kube-scheduler would not heed what is added."""
        given = list(self._flags())
        for name, value in given:
            if name in _HOPELESS:
                raise ConfigError(f"{self.path} has --{name}={value}, {_HOPELESS[name]}: take it out, then run again")
        files = [value for name, value in given if name == "config"]
        ours = self._our_directory()
        if ours and any(value.startswith(f"{ours}/") for value in files) and not files[-1].startswith(f"{ours}/"):
            raise ConfigError(
                f"{self.path} has --config={files[-1]} besides the module's own, but kube-scheduler reads only the"
                " last one: remove one of them, or run with state=absent first"
            )
        if self._script() is not None and not files:
            raise ConfigError(
                f"{self.path} starts kube-scheduler from a shell's text, to which no flag can be added safely. Write "
                "its command as a list that begins with kube-scheduler, or add --config to the text"
            )

    def _flags(self) -> Iterator[Tuple[str, str]]:
        """Flags and their values, as kube-scheduler takes them."""
        script = self._script()
        words = self._command()[self._program() :] if script is None else _of_kube_scheduler(script, self.path)
        for position, word in enumerate(words):
            if not word.startswith("--"):
                continue
            name, equals, value = word[2:].partition("=")
            name = name.replace("_", "-")
            if not equals:
                following = words[position + 1 : position + 2]
                takes = name not in _SWITCHES and following and not following[0].startswith("--")
                value = following[0] if takes else "true"
            yield name, value

    def _command(self) -> List[str]:
        return [str(word) for key in ("command", "args") for word in self._container.get(key) or ()]

    def _script(self) -> str | None:
        """Return the text from which a shell starts kube-scheduler, None where it is started without one."""
        words = self._command()
        # What starts the shell, such as env or busybox, comes before it.
        shell = next((place for place, word in enumerate(words) if posixpath.basename(word) in _SHELLS), len(words))
        if 0 < self._program() <= shell:
            return None
        for position, word in enumerate(words[shell + 1 : -1], shell + 1):
            if re.fullmatch(r"-[a-z]*c", word):
                return words[position + 1]
        return None

    def _program(self) -> int:
        """Return how many words come before kube-scheduler's flags in the command line, 0 where it does not name it.

        What starts it and has flags of its own, such as go-runner, comes before it.
        """
        for place, word in enumerate(self._command(), 1):
            if not word.startswith("-") and posixpath.basename(word) == "kube-scheduler":
                return place
        return 0

    def _place(self) -> Tuple[List[Any], int]:
        """Return the list to which a flag is added, and where in it."""
        command, args = (self._container.get(key) or [] for key in ("command", "args"))
        program = self._program()
        if args and program >= len(command):
            inside = program - len(command)
            return args, inside or (0 if program or str(args[0]).startswith("-") else 1)
        if program:
            return command, program
        flagged = (words for words in (args, command) if any(str(word).startswith("--") for word in words))
        words = next(flagged, args or command)
        if words:
            return words, 0 if str(words[0]).startswith("-") else 1
        self._container["args"] = []
        return self._container["args"], 0

    def outside(self, inside: str) -> str | None:
        """Return the path on the machine of a path in the container, None when it is not on a hostPath volume."""
        volumes = {volume.get("name"): volume for volume in self._spec().get("volumes") or ()}
        mounts = sorted(self._container.get("volumeMounts") or (), key=lambda item: -len(item.get("mountPath") or ""))
        for mount in mounts:
            place = str(mount.get("mountPath") or "").rstrip("/")
            if inside != place and not inside.startswith(place + "/"):
                continue
            host: Mapping[str, Any] = (volumes.get(mount.get("name")) or {}).get("hostPath") or {}
            if "path" not in host or mount.get("subPathExpr"):
                return None
            below = (str(mount.get("subPath") or ""), inside[len(place) :].lstrip("/"))
            return posixpath.normpath(posixpath.join(str(host["path"]), *filter(None, below)))
        return None

    def _mount(self, name: str, path: str, kind: str) -> None:
        entries = {
            "volumeMounts": (self._container, {"mountPath": path, "name": name, "readOnly": True}),
            "volumes": (self._spec(), {"hostPath": {"path": path, "type": kind}, "name": name}),
        }
        for key, (owner, entry) in entries.items():
            if owner.get(key) is None:
                owner[key] = []
            if any(item.get("name") == name for item in owner[key]):
                continue
            there = next((item for item in owner[key] if item.get("mountPath") == path), None)
            if key == "volumeMounts" and there is not None:
                remedy = (
                    "name another directory in scheduler_config_path" if name == VOLUME else "take it out of mounts"
                )
                raise ConfigError(
                    f"{self.path} mounts the volume {there.get('name')} at {path}, and a pod has one volume at a path: "
                    f"{remedy}"
                )
            owner[key].append(entry)

    def _unmount(self, ours: Callable[[str], bool], *first: Mapping[str, Any]) -> None:
        """Take out mounts and volumes; ``first`` are the container and the specification before our first change."""
        before = first or ({}, {})
        for owner, key, old in ((self._container, "volumeMounts", before[0]), (self._spec(), "volumes", before[1])):
            items = owner.get(key)
            if items:
                owner[key] = [item for item in items if not ours(str(item.get("name")))]
                if not owner[key]:
                    _as_at_first(owner, key, old)


def _minor(image: str) -> int | None:
    match = re.search(r":v?1\.(\d+)", image)
    return int(match.group(1)) if match else None


def _container_of(pod: Mapping[str, Any]) -> Dict[str, Any]:
    """Return kube-scheduler's container of a pod."""
    containers: List[Dict[str, Any]] = pod["spec"]["containers"]
    return next((item for item in containers if item.get("name") == "kube-scheduler"), containers[0])


def _as_at_first(data: Dict[str, Any], key: str, first: Mapping[str, Any]) -> None:
    """Leave what has no entries, or its absence, as it was at first."""
    if key in first and not first[key]:
        data[key] = copy.deepcopy(first[key])
    else:
        del data[key]


def _of_kube_scheduler(script: str, path: str) -> List[str]:
    """Return the words after kube-scheduler in a shell's text, up to the shell's own."""
    try:
        reader = shlex.shlex(script, posix=True, punctuation_chars=True)
        words = list(reader)
    except ValueError as error:
        raise ConfigError(f"{path} starts kube-scheduler from a shell's text that cannot be read: {error}") from error
    for position, word in enumerate(words):
        if posixpath.basename(word) == "kube-scheduler":
            rest = words[position + 1 :]
            ends = (place for place, item in enumerate(rest) if set(item) <= set("();<>|&"))
            return rest[: next(ends, len(rest))]
    return []


def _identity(pod: Mapping[str, Any]) -> Tuple[str, str]:
    metadata = pod.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    return str(metadata.get("namespace") or "default"), str(metadata.get("name"))


def _mount_name(path: str) -> str:
    return _MOUNT_PREFIX + hashlib.sha256(path.encode()).hexdigest()[:8]
