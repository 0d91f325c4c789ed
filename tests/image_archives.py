# SPDX-License-Identifier: Apache-2.0
"""Image archives for tests: as oci_archive writes them, and as somebody hostile would."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.accel.kubernetes.plugins.module_utils.oci.image import (
    Blob,
    Image,
    Layer,
    Settings,
    archive_members,
    build,
    parse_reference,
)

REPOSITORY = "localhost/kube-accel"
REFERENCE = f"{REPOSITORY}:0.1.0"
Edit = Callable[["Archive"], None]


def image(reference: str = REFERENCE, text: bytes = b"ours\n") -> Image:
    """A small image with one file."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        info = tarfile.TarInfo("text")
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text))
    layer = Layer(Blob.of(gzip.compress(plain.getvalue(), mtime=0)), Blob.of(plain.getvalue()).digest)
    return build(parse_reference(reference), "amd64", Settings(entrypoint=["/text"]), {}, [layer])


@dataclass
class Archive:
    """What an archive is made of: names with their bytes, and headers of other kinds."""

    files: dict[str, bytes] = field(default_factory=dict)
    extra: list[tuple[tarfile.TarInfo, bytes]] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    """The size that the header says, of files that have a header alone."""

    @classmethod
    def of(cls, made: Image) -> Archive:
        return cls({name: blob.read() for name, blob in sorted(archive_members(made).items())})

    def add(self, name: str, data: bytes = b"", **header: Any) -> None:
        """Another entry, whether or not there is one of that name."""
        info = tarfile.TarInfo(name)
        info.size = len(data)
        for key, value in header.items():
            setattr(info, key, value)
        self.extra.append((info, data))

    def write(self, path: Path) -> Path:
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
            for name, data in self.files.items():
                info = tarfile.TarInfo(name)
                info.size = self.sizes.get(name, len(data))
                tar.addfile(info, None if name in self.sizes else io.BytesIO(data))
            for info, data in self.extra:
                tar.addfile(info, io.BytesIO(data))
        path.chmod(0o600)
        return path
