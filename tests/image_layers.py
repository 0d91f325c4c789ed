# SPDX-License-Identifier: Apache-2.0
"""Layers and image layouts for tests, as builders of every kind write them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
NAME = "io.containerd.image.name"
TAG = "org.opencontainers.image.ref.name"

Blobs = dict[str, bytes]
KINDS = {
    "f": tarfile.REGTYPE,
    "d": tarfile.DIRTYPE,
    "l": tarfile.SYMTYPE,
    "h": tarfile.LNKTYPE,
    "p": tarfile.FIFOTYPE,
}


def layer(*entries: Sequence[str | bytes]) -> bytes:
    """A tar of kinds (file, directory, symbolic link, hard link, pipe), paths, and contents or targets."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for kind, path, *rest in entries:
            info = tarfile.TarInfo(str(path))
            info.type = KINDS[str(kind)]
            info.mode = 0o755
            value = rest[0] if rest else ""
            data = b""
            if kind == "f":
                data = value if isinstance(value, bytes) else value.encode()
                info.size = len(data)
            elif kind in "lh":
                info.linkname = str(value)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def put(blobs: Blobs, data: bytes, algorithm: str = "sha256") -> dict[str, Any]:
    """Keep a blob, and describe it."""
    digest = f"{algorithm}:{hashlib.new(algorithm, data).hexdigest()}"
    blobs[digest] = data
    return {"digest": digest, "size": len(data)}


def manifest(
    blobs: Blobs, layers: Sequence[bytes], architecture: str = "amd64", algorithm: str = "sha256", **config: Any
) -> dict[str, Any]:
    """The descriptor of an image's manifest."""
    diff_ids = [put({}, data, algorithm)["digest"] for data in layers]
    document = {
        "architecture": architecture,
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
        **config,
    }
    packed = [gzip.compress(data, mtime=0) for data in layers]
    described = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, **put(blobs, json.dumps(document).encode(), algorithm)},
        "layers": [{"mediaType": f"{LAYER}+gzip", **put(blobs, data, algorithm)} for data in packed],
    }
    return {"mediaType": MANIFEST, **put(blobs, json.dumps(described).encode(), algorithm)}


def index(blobs: Blobs, *manifests: Mapping[str, Any]) -> dict[str, Any]:
    """The descriptor of an index."""
    document = {"schemaVersion": 2, "mediaType": INDEX, "manifests": list(manifests)}
    return {"mediaType": INDEX, **put(blobs, json.dumps(document).encode())}


def layout_files(blobs: Blobs, *top: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of an image layout whose index.json names what is on top."""
    document = {"schemaVersion": 2, "manifests": list(top)}
    return {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": json.dumps(document).encode(),
        **{"blobs/" + digest.replace(":", "/"): data for digest, data in blobs.items()},
    }


def archive(path: Path, files: Mapping[str, bytes]) -> Path:
    """Files as an archive."""
    path.write_bytes(layer(*(("f", name, data) for name, data in files.items())))
    return path


def directory(path: Path, files: Mapping[str, bytes]) -> Path:
    """Files as a directory."""
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def image(path: Path, *layers: bytes, tag: str = "latest") -> Path:
    """An image of these layers, as a directory."""
    blobs: Blobs = {}
    return directory(path, layout_files(blobs, {**manifest(blobs, layers), "annotations": {TAG: tag}}))
