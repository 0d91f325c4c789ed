# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What of a cluster's objects others may see, and an archive of it that is the same whenever its contents are. Pure."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Set

from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.redaction import (
    REDACTED,
    Redaction,
    secret_name,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.shared import printable

VERSION = 1
ROOT = "gpu-support-bundle"
MANIFEST = "manifest.json"
_SHOWN_VARIABLES = re.compile(
    r"(?:NODE_NAME|POD_IP|POD_NAME|POD_NAMESPACE|NVIDIA_(?:VISIBLE_DEVICES|DRIVER_CAPABILITIES|DISABLE_REQUIRE|REQUIRE_\w+"
    r"|MIG_(?:MONITOR|CONFIG)_DEVICES)|CUDA_(?:VERSION|VISIBLE_DEVICES|DEVICE_ORDER|DEVICE_MAX_CONNECTIONS"
    r"|LAUNCH_BLOCKING|MODULE_LOADING|MPS_\w+)|DP_(?:DISABLE|ENABLE)_HEALTHCHECKS|FLAGS_(?:allocator_strategy"
    r"|fraction_of_gpu_memory_to_use)|TF_FORCE_GPU_ALLOW_GROWTH|XLA_PYTHON_CLIENT_\w+|PYTORCH_CUDA_ALLOC_CONF"
    r"|LD_LIBRARY_PATH|LD_PRELOAD)\Z"
)
"""Environment variables whose values are shown; those of all others are not."""
_LEFT_OUT = ("managedFields", "selfLink")
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_FLAG = re.compile(r"--?[\w-]{1,64}\Z")
_RANDOM = re.compile(r"(?=[^a-zA-Z]*[a-zA-Z])(?=[^0-9]*[0-9])[A-Za-z0-9_~+=-]{12,}\Z")
"""A value that may well be a secret, whatever its variable is called: one word of letters and digits."""


@dataclass
class Bundle:
    """Files by path, and what could not be had."""

    files: Dict[str, bytes] = field(default_factory=dict)
    problems: List[str] = field(default_factory=list)

    def add_json(self, path: str, document: object) -> None:
        """Add a document, readable by people."""
        self.files[path] = printable.json_text(document, sort_keys=True).encode()

    def add_text(self, path: str, text: str) -> None:
        """Text, without what a terminal would obey."""
        self.files[path] = printable.block(text).encode()

    def archive(self) -> bytes:
        """Return the tar.gz; the same files make the same bytes."""
        contents = [{"path": path, "bytes": len(data)} for path, data in sorted(self.files.items())]
        manifest = {"version": VERSION, "contents": contents, "problems": self.problems, "redacted": REDACTED}
        text = printable.json_text(manifest).encode()
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path, data in sorted({**self.files, MANIFEST: text}.items()):
                entry = tarfile.TarInfo(f"{ROOT}/{path}")
                entry.size, entry.mode = len(data), 0o600
                archive.addfile(entry, io.BytesIO(data))
        packed = io.BytesIO()
        with gzip.GzipFile(filename="", fileobj=packed, mode="wb", mtime=0) as compressed:
            compressed.write(plain.getvalue())
        return packed.getvalue()


def file_name(*parts: str) -> str:
    """Return names of objects as part of a path, whoever chose them."""
    return "_".join(re.sub(r"[^A-Za-z0-9.-]", "-", part)[:128].lstrip(".") or "-" for part in parts)


def secrets_of(items: Iterable[Mapping[str, Any]]) -> Set[str]:
    """Values of the pods' variables that are not shown and may be secret, so that they are taken out of all else."""
    found = set()
    for item in items:
        for variable in _variables(item):
            name, value = str(variable.get("name")), variable.get("value")
            hidden = isinstance(value, str) and not _SHOWN_VARIABLES.match(name)
            if hidden and (secret_name(name) or _RANDOM.match(str(value))):
                found.add(str(value))
    return found


def shown(item: object, redaction: Redaction) -> Any:  # noqa: ANN401 - as JSON is
    """Return an object of the API without variables' values, secrets, and what only machines read."""
    return redaction.document(_plain(item))


def _plain(value: object, key: str = "") -> object:
    if isinstance(value, dict):
        kept = {name: entry for name, entry in value.items() if name not in _LEFT_OUT}
        if key == "annotations" and _LAST_APPLIED in kept:
            kept[_LAST_APPLIED] = REDACTED
        if key == "binaryData":
            kept = dict.fromkeys(kept, REDACTED)
        return {name: _plain(entry, name) for name, entry in kept.items()}
    if isinstance(value, list):
        if key == "env":
            return [_variable(entry) for entry in value]
        if key in ("command", "args"):
            return _words(value)
        return [_plain(entry) for entry in value]
    return value


def _variable(entry: object) -> object:
    if not isinstance(entry, dict) or "value" not in entry or _SHOWN_VARIABLES.match(str(entry.get("name"))):
        return entry
    return {**entry, "value": REDACTED if entry["value"] else ""}


def _words(words: List[object]) -> List[object]:
    """Return a command line. What follows a flag that is called a secret is one."""
    kept: List[object] = []
    for word in words:
        before = kept[-1] if kept else ""
        follows = isinstance(before, str) and _FLAG.match(before) is not None and secret_name(before)
        kept.append(REDACTED if follows and not str(word).startswith("-") else word)
    return kept


def _variables(value: object) -> Iterator[Mapping[str, Any]]:
    """Yield all environment variables anywhere in an object."""
    if isinstance(value, dict):
        for name, entry in value.items():
            if name == "env" and isinstance(entry, list):
                yield from (variable for variable in entry if isinstance(variable, dict))
            else:
                yield from _variables(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _variables(entry)
