# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What kube-scheduler's static pod manifest has to become so that it reads a configuration file. No I/O."""

from __future__ import annotations

import copy
import hashlib
import posixpath
import re
from dataclasses import dataclass
from typing import Any, Callable, Dict, Mapping, Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils import yaml_text
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler_config import ConfigError

CHECKSUM = "kube-accel.io/scheduler-config-checksum"
"""kubelet restarts a static pod when its manifest changes, not when a file in it does."""
VOLUME = "kube-accel-scheduler-config"
_MOUNT_PREFIX = "kube-accel-mount-"
_OLDEST_MINOR = 25


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


class Manifest:
    """A kube-scheduler manifest, edited in place. Raises ConfigError when the text is none."""

    def __init__(self, text: str, path: str) -> None:
        self.path = path
        self._text = text
        try:
            self._data = yaml_text.load(text, path)
        except yaml_text.YamlError as error:
            raise ConfigError(str(error)) from error
        self._before = copy.deepcopy(self._data)
        containers = (self._data.get("spec") or {}).get("containers") or ()
        if self._data.get("kind") != "Pod" or not containers:
            raise ConfigError(f"{path} is no Pod with a container; name kube-scheduler's manifest in manifest_path")
        self._container: Dict[str, Any] = next(
            (item for item in containers if item.get("name") == "kube-scheduler"), containers[0]
        )
        self._refuse_old()

    def flag(self, name: str) -> str | None:
        """Value of a command-line flag, None when it is not given."""
        words = [str(word) for key in ("command", "args") for word in self._container.get(key) or ()]
        for position, word in enumerate(words):
            if word == f"--{name}":
                following = words[position + 1 : position + 2]
                return following[0] if following and not following[0].startswith("--") else "true"
            if word.startswith(f"--{name}="):
                return word.split("=", 1)[1]
        return None

    def config_file(self) -> str | None:
        """Path on the machine of the file ``--config`` names, None without that flag."""
        inside = self.flag("config")
        if inside is None:
            return None
        outside = self.outside(inside)
        if outside is None:
            raise ConfigError(
                f"{self.path} has --config={inside}, but no hostPath volume of the pod holds that file: "
                "mount its directory, then run again"
            )
        return outside

    def mounts_our_file(self) -> bool:
        """Whether the configuration file is one we brought."""
        return any(volume.get("name") == VOLUME for volume in self._spec().get("volumes") or ())

    def bears_checksum(self) -> bool:
        """Whether we have edited it."""
        return CHECKSUM in ((self._data.get("metadata") or {}).get("annotations") or {})

    def add(self, wanted: Wanted) -> None:
        """Make it name the configuration, see what it needs, and restart when the configuration changes."""
        if self.flag("config") is None:
            self._mount(VOLUME, posixpath.dirname(wanted.config_path), "DirectoryOrCreate")
            words = self._words()
            words.insert(1 if words and not str(words[0]).startswith("--") else 0, f"--config={wanted.config_path}")
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
        metadata = self._data.setdefault("metadata", {})
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
        if not annotations and "annotations" in metadata and not (first.get("metadata") or {}).get("annotations"):
            del metadata["annotations"]
        if self.mounts_our_file() and not keep_config:
            words = self._words()
            words[:] = [word for word in words if not str(word).startswith("--config=")]
        self._unmount(lambda name: name.startswith(_MOUNT_PREFIX) or (name == VOLUME and not keep_config))

    def text(self) -> str:
        """The manifest as text; unchanged when nothing was edited."""
        if self._data == self._before:
            return self._text
        try:
            result: str = yaml_text.edit(self._text, self._data, self.path)
        except yaml_text.YamlError as error:
            raise ConfigError(str(error)) from error
        return result

    def _refuse_old(self) -> None:
        match = re.search(r":v?1\.(\d+)", str(self._container.get("image", "")))
        if match and int(match.group(1)) < _OLDEST_MINOR:
            raise ConfigError(
                f"{self.path} runs {self._container['image']}; configuration version v1 exists from "
                f"Kubernetes 1.{_OLDEST_MINOR} on: upgrade the control plane first"
            )

    def _spec(self) -> Dict[str, Any]:
        spec: Dict[str, Any] = self._data["spec"]
        return spec

    def _words(self) -> list[Any]:
        """The list that holds the flags."""
        lists: list[list[Any]] = [self._container[key] for key in ("args", "command") if self._container.get(key)]
        for words in lists:
            if any(str(word).startswith("--") for word in words):
                return words
        if not lists:
            lists = [self._container.setdefault("args", [])]
        return lists[0]

    def outside(self, inside: str) -> str | None:
        """Path on the machine of a path in the container, None when it is not on a hostPath volume."""
        volumes = {volume.get("name"): volume for volume in self._spec().get("volumes") or ()}
        mounts = sorted(self._container.get("volumeMounts") or (), key=lambda item: -len(item.get("mountPath", "")))
        for mount in mounts:
            place = str(mount.get("mountPath", "")).rstrip("/")
            if inside != place and not inside.startswith(place + "/"):
                continue
            host: Mapping[str, Any] = (volumes.get(mount.get("name")) or {}).get("hostPath") or {}
            if "path" not in host:
                return None
            below = (str(mount.get("subPath", "")), inside[len(place) :].lstrip("/"))
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
            if not any(item.get("name") == name for item in owner[key]):
                owner[key].append(entry)

    def _unmount(self, ours: Callable[[str], bool]) -> None:
        for owner, key in ((self._container, "volumeMounts"), (self._spec(), "volumes")):
            items = owner.get(key)
            if items:
                owner[key] = [item for item in items if not ours(str(item.get("name")))]
                if not owner[key]:
                    del owner[key]


def _mount_name(path: str) -> str:
    return _MOUNT_PREFIX + hashlib.sha256(path.encode()).hexdigest()[:8]
