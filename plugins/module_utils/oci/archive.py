# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An image archive from elsewhere, as hostile input: checked as a whole, and rewritten for a container runtime.

A runtime never sees the archive. It gets another one, of the image's parts and one name, each part compared once more
with its digest on its way.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from dataclasses import dataclass
from typing import Any, BinaryIO, Dict, Iterator, List, Mapping, NoReturn, Sequence, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.oci.image import (
    NAME_ANNOTATION,
    Blob,
    Image,
    ImageError,
    Layer,
    archive_members,
    blob_path,
    parse_reference,
)

BLOCK = 512
CHUNK = 1 << 20
MAX_DOCUMENT = 4 << 20
MAX_MEMBERS = 1024
TAG_ANNOTATION = "org.opencontainers.image.ref.name"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_REMEDY = "make the archive again with the module oci_archive"


@dataclass(frozen=True)
class Part:
    """A file in an archive: where its bytes begin, and how many there are."""

    offset: int
    size: int


@dataclass(frozen=True)
class Checked:
    """The image of an archive, nothing of which differs from what was asked for."""

    manifest: bytes
    config: bytes
    layers: Sequence[Tuple[str, Part]]
    """Digest and place of each layer, the lowest first."""
    architecture: str


def check(archive: BinaryIO, origin: str, repository: str, digests: Sequence[str]) -> Checked:
    """Check an image layout: one whole image, its manifest among ``digests``, and no name outside ``repository``.

    Raises ImageError that names the archive, what is wrong with it, and what to do.
    """
    return _Archive(archive, origin).image(repository, digests)


def rewritten(archive: BinaryIO, origin: str, image: Checked, name: str) -> Iterator[bytes]:
    """Yield an archive of a checked image under one name, which docker and containerd load.

    What makes the name comes last. Raises ImageError where the bytes of a layer are no longer those that were checked.
    """
    parts = dict(image.layers)
    layers = [Layer(Blob(digest, part.size, io.BytesIO), "") for digest, part in image.layers]
    made = Image(name, {"architecture": image.architecture}, layers, Blob.of(image.manifest), Blob.of(image.config))
    for path, blob in sorted(archive_members(made).items()):
        yield _header(path, blob.size)
        state = hashlib.sha256()
        for chunk in _chunks(archive, parts[blob.digest]) if blob.digest in parts else [blob.read()]:
            state.update(chunk)
            yield chunk
        if f"sha256:{state.hexdigest()}" != blob.digest:
            raise ImageError(f"{origin}: layer {blob.digest} changed while it was read; find out who writes there")
        yield bytes(-blob.size % BLOCK)
    yield bytes(2 * BLOCK)


class _Archive:
    """An archive that is read strictly: whatever oci_archive does not write is refused."""

    def __init__(self, archive: BinaryIO, origin: str) -> None:
        self._archive, self._origin = archive, origin
        self._parts = self._members()

    def image(self, repository: str, digests: Sequence[str]) -> Checked:
        self._exactly(self._document("oci-layout"), {"imageLayoutVersion"}, "oci-layout")
        index = self._exactly(
            self._document("index.json"), {"schemaVersion", "mediaType", "manifests"}, "index.json", "mediaType"
        )
        names = self._names(index)
        foreign = sorted(name for name in names if not _in_repository(name, repository))
        if foreign:
            self._refuse(f"holds images of other names, {', '.join(map(repr, foreign[:5]))}, and is for {repository}")
        if len(names) > 1:
            self._refuse(f"gives its image the names {', '.join(sorted(names))}, and one is expected")
        (entry,) = self._list(index.get("manifests"), "index.json", 1)
        manifest_digest, manifest = self._blob(entry, "manifest")
        described = self._exactly(
            self._json(manifest, "manifest"),
            {"schemaVersion", "mediaType", "config", "layers", "annotations"},
            "manifest",
            "mediaType",
            "annotations",
        )
        config_digest, config = self._blob(described["config"], "configuration")
        # Of the configuration alone, an image may have other layers: its manifest names them.
        if manifest_digest not in digests:
            self._refuse(f"holds the image with the manifest {manifest_digest}, and {' or '.join(digests)} is expected")
        layers = [self._layer(entry) for entry in self._list(described["layers"], "manifest")]
        self._docker(config_digest, [digest for digest, _part in layers])
        used = {blob_path(digest) for digest in (manifest_digest, config_digest, *dict(layers))}
        surplus = sorted(set(self._parts) - used - {"oci-layout", "index.json", "manifest.json"})
        if surplus:
            self._refuse(f"holds {', '.join(map(repr, surplus[:5]))}, which its image has no use for")
        architecture = self._object(self._json(config, "configuration"), "configuration").get("architecture")
        if not isinstance(architecture, str):
            self._refuse("has a configuration that names no architecture")
        return Checked(manifest, config, layers, architecture)

    def _names(self, index: Mapping[str, Any]) -> set[str]:
        """Yield every name that a runtime could give something in the archive."""
        found = set()
        for entry in self._list(index["manifests"], "index.json"):
            annotations = self._object(self._object(entry, "index.json").get("annotations", {}), "index.json")
            name = annotations.get(NAME_ANNOTATION, "")
            tag = annotations.get(TAG_ANNOTATION, "")
            if set(annotations) - {NAME_ANNOTATION, TAG_ANNOTATION} or not isinstance(name, str):
                self._refuse("has annotations in index.json that are unknown")
            found.add(name)
            if tag not in ("", name, name.rpartition(":")[2]):
                found.add(str(tag))
        if "manifest.json" in self._parts:
            for listed in self._list(self._document("manifest.json"), "manifest.json"):
                tags = self._object(listed, "manifest.json").get("RepoTags")
                found.update(map(str, tags) if isinstance(tags, list) else [str(tags)])
        return found

    def _docker(self, config: str, layers: Sequence[str]) -> None:
        """Refuse a list for Docker that names another image than the index."""
        if "manifest.json" not in self._parts:
            return
        (entry,) = self._list(self._document("manifest.json"), "manifest.json", 1)
        listed = self._exactly(entry, {"Config", "RepoTags", "Layers"}, "manifest.json")
        if (listed["Config"], listed["Layers"]) != (blob_path(config), [blob_path(digest) for digest in layers]):
            self._refuse("tells Docker of another image (manifest.json) than containerd (index.json)")

    def _members(self) -> Dict[str, Part]:
        """Return the files by name. Only plain ones, each once, and the directories that blobs are in."""
        self._archive.seek(0, 2)
        end = self._archive.tell()
        parts: Dict[str, Part] = {}
        offset = count = 0
        while True:
            block = self._read(Part(offset, BLOCK), end)
            if not any(block):
                break
            count += 1
            if count > MAX_MEMBERS:
                self._refuse(f"has more than {MAX_MEMBERS} files")
            name, kind, size = self._entry(block, offset)
            offset += BLOCK
            if kind == b"5" and name.rstrip("/") in ("blobs", "blobs/sha256") and not size:
                continue
            known = name in ("oci-layout", "index.json", "manifest.json") or re.fullmatch(
                "blobs/sha256/[0-9a-f]{64}", name
            )
            if kind != b"0" or not known:
                self._refuse(
                    f"holds {name!r} (type {kind.decode('ascii', 'replace')!r}), which no image of this collection has"
                )
            if name in parts:
                self._refuse(f"holds {name!r} twice")
            if size > end - offset:
                self._refuse(f"breaks off in {name!r}")
            parts[name] = Part(offset, size)
            offset += size + -size % BLOCK
        return parts

    def _entry(self, block: bytes, offset: int) -> Tuple[str, bytes, int]:
        """Name, type and size in a header (POSIX 1003.1-1988, ustar), which its checksum has to fit."""
        if block[257:263] != b"ustar\0":
            self._refuse(f"is no uncompressed tar archive (byte {offset})")
        total = sum(block) - sum(block[148:156]) + 8 * ord(" ")
        if self._octal(block[148:156]) != total or any(block[345:500]):
            self._refuse(f"has a damaged header at byte {offset}")
        name = block[:100].rstrip(b"\0").decode("ascii", "backslashreplace")
        return name, block[156:157], self._octal(block[124:136])

    def _octal(self, field: bytes) -> int:
        digits = field.strip(b" \0")
        if not re.fullmatch(rb"[0-7]{1,11}", digits):
            self._refuse(f"has a header with the number {field!r}")
        return int(digits, 8)

    def _read(self, part: Part, end: int) -> bytes:
        if part.offset + part.size > end:
            self._refuse("breaks off")
        return b"".join(_chunks(self._archive, part))

    def _document(self, name: str) -> Any:  # noqa: ANN401
        return self._json(self._content(name), name)

    def _content(self, name: str) -> bytes:
        part = self._parts.get(name)
        if part is None:
            self._refuse(f"lacks {name}")
        if part.size > MAX_DOCUMENT:
            self._refuse(f"has {part.size} bytes in {name}, and {MAX_DOCUMENT} are the most")
        return b"".join(_chunks(self._archive, part))

    def _json(self, data: bytes, name: str) -> Any:  # noqa: ANN401
        """Return a document. Every reader has to understand it alike: a key that is there twice is refused."""

        def once(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
            if len({key.lower() for key, _value in pairs}) != len(pairs):
                self._refuse(f"has a key twice in one object of {name}")
            return dict(pairs)

        try:
            return json.loads(data, object_pairs_hook=once, parse_int=lambda digits: int(digits[:20]))
        except (ValueError, RecursionError) as error:
            self._refuse(f"has no JSON document in {name}: {error}")

    def _blob(self, descriptor: object, what: str) -> Tuple[str, bytes]:
        """Digest and bytes of a document that a descriptor names."""
        digest, _part = self._described(descriptor, what)
        data = self._content(blob_path(digest))
        if Blob.of(data).digest != digest:
            self._refuse(f"is damaged: the {what} {digest} has another digest")
        return digest, data

    def _layer(self, descriptor: object) -> Tuple[str, Part]:
        digest, part = self._described(descriptor, "layer")
        state = hashlib.sha256()
        for chunk in _chunks(self._archive, part):
            state.update(chunk)
        if f"sha256:{state.hexdigest()}" != digest:
            self._refuse(f"is damaged: the layer {digest} has another digest")
        return digest, part

    def _described(self, descriptor: object, what: str) -> Tuple[str, Part]:
        known = {"mediaType", "digest", "size", "platform", "annotations"}
        found = self._exactly(descriptor, known, what, "platform", "annotations")
        digest, size = found["digest"], found["size"]
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            self._refuse(f"names a {what} by {str(digest)[:80]!r}, which is no SHA-256 digest")
        kind = str(found["mediaType"])
        if what == "manifest" and not kind.endswith((".image.manifest.v1+json", ".distribution.manifest.v2+json")):
            self._refuse(f"has {kind[:80]!r} in its index in place of an image's manifest")
        part = self._parts.get(blob_path(digest))
        if part is None or part.size != size:
            self._refuse(f"lacks the {what} {digest}, or has another number of bytes of it")
        return digest, part

    def _exactly(self, found: object, keys: set[str], what: str, *optional: str) -> Dict[str, Any]:
        """Return an object with these keys and no other."""
        document = self._object(found, what)
        other = sorted(set(document) - keys)
        lacking = sorted(keys - set(document) - set(optional))
        if other or lacking:
            self._refuse(f"has an unusual {what}: more than usual {other[:5]}, missing {lacking}")
        return document

    def _object(self, found: object, what: str) -> Dict[str, Any]:
        if not isinstance(found, dict):
            self._refuse(f"has no JSON object where one is expected in {what}")
        return found

    def _list(self, found: object, what: str, count: int | None = None) -> List[Any]:
        if not isinstance(found, list) or (count is not None and len(found) != count) or len(found) > MAX_MEMBERS:
            self._refuse(f"has in {what} not the list of {count or 'some'} that is expected")
        return found

    def _refuse(self, why: str) -> NoReturn:
        raise ImageError(f"{self._origin} {why}; nothing of it was loaded; {_REMEDY}")


def _in_repository(name: str, repository: str) -> bool:
    try:
        return name.startswith(f"{repository}:") and str(parse_reference(name)) == name
    except ImageError:
        return False


def _chunks(archive: BinaryIO, part: Part) -> Iterator[bytes]:
    """Yield the bytes of a part; zeros where the archive has become shorter, which no digest fits."""
    archive.seek(part.offset)
    left = part.size
    while left:
        chunk = archive.read(min(left, CHUNK)) or bytes(min(left, CHUNK))
        left -= len(chunk)
        yield chunk


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.USTAR_FORMAT)
