# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images saved as files, and which of them is meant: OCI image layouts and what ``docker save`` writes.

Formats: OCI image layout and index 1.1, and Docker's image specification 1.2. Platforms are chosen as containerd does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, BinaryIO, Callable, Collection, Dict, Iterable, Iterator, List, Mapping

from ansible_collections.accel.kubernetes.plugins.module_utils.oci.image import (
    NAME_ANNOTATION,
    Blob,
    ImageError,
    Platform,
    blob_path,
    clean,
)

Open = Callable[[], BinaryIO]
MAX_DOCUMENT = 8 << 20
MAX_DEPTH = 8
TAG_ANNOTATION = "org.opencontainers.image.ref.name"
ATTESTATION_ANNOTATION = "vnd.docker.reference.type"
ALGORITHMS = ("sha256", "sha384", "sha512")
INDEX_TYPES = ("image.index.v1+json", "manifest.list.v2+json")
MANIFEST_TYPES = ("image.manifest.v1+json", "distribution.manifest.v2+json")
CONFIG_TYPES = ("application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json")
LAYER_TYPES = ("application/vnd.oci.image.layer.", "application/vnd.docker.image.rootfs.")
LAYER_FORMS = ("tar", "tar+gzip", "tar+zstd", "tar.gzip", "tar.zstd")
ROOT = {"usr", "etc", "bin"}


@dataclass(frozen=True)
class Parts:
    """The files of an image, and the name that they were saved under."""

    name: str
    manifest: Blob
    config: Blob
    layers: List[Blob]


@dataclass(frozen=True)
class Saved:
    """An image that is named, though it need not be there."""

    identity: str
    name: str
    platform: Platform
    index: str
    """Digest of the index that it is from, empty for none. Of one index, the first that fits is the one to run."""
    parts: Callable[[], Parts]


def is_image(top: Collection[str]) -> bool:
    """Return whether files with these first components of their paths are a saved image, and no root file system."""
    names = set(top)
    layout = "index.json" in names and bool(names & {"oci-layout", "blobs"})
    return layout or (bool(names & {"manifest.json", "repositories"}) and not names & ROOT)


def refuse_misplaced(paths: Iterable[str], origin: str) -> None:
    """Raise ImageError where what is no saved image has one, or an unpacked one, in a directory."""
    names = set(paths)
    if ROOT & {name.partition("/")[0] for name in names}:
        return
    for name in sorted(names):
        above, _slash, file = name.partition("/")
        if file == "oci-layout" or (above == "rootfs" and "config.json" in names):
            what = "a saved image" if file == "oci-layout" else "the root file system of a container"
            raise ImageError(
                f"{origin} is no root file system, but has {what} in its directory {above}; name that instead"
            )


class Layout:
    """The files of a saved image, by name. All methods raise ImageError where something is missing or damaged."""

    def __init__(self, files: Mapping[str, Open], origin: str) -> None:
        self._files, self._origin = files, origin

    def parts(self, architecture: str | None) -> Parts:
        """Return the one image for an architecture; None takes the first."""
        saved = list(self._saved())
        return (saved[0] if saved and architecture is None else self._choose(saved, architecture or "")).parts()

    def configuration(self, blob: Blob) -> Dict[str, Any]:
        """Return the configuration of an image, with the fields that are read from it in the right form."""
        found = self.document(blob)
        run = found.get("config") or {}
        layers = _mapping(found.get("rootfs")).get("diff_ids")
        fits = isinstance(run, dict) and isinstance(run.get("Labels") or {}, dict)
        if not (fits and _is_text(run.get("Env") or []) and _is_text(layers)):
            raise ImageError(f"{self._origin} is damaged: {blob.digest} is no configuration of an image")
        return found

    def document(self, blob: Blob) -> Dict[str, Any]:
        """Return a JSON object."""
        found = self._json(blob)
        if not isinstance(found, dict):
            raise ImageError(f"{self._origin} is damaged: {blob.digest} is no JSON object")
        return found

    def _saved(self) -> Iterator[Saved]:
        if "index.json" in self._files:
            yield from self._indexed(self.document(self._file("index.json")), "", "", 0)
        elif "manifest.json" in self._files:
            if b"Directory Transport" in self._files.get("version", self._files["manifest.json"])().read(80):
                raise ImageError(
                    f"{self._origin} was written by 'skopeo copy ... dir:', which no container runtime reads; "
                    "write it with 'oci:' or 'docker-archive:' in place of 'dir:'"
                )
            for entry in self._objects({"manifest.json": self._json(self._file("manifest.json"))}, "manifest.json"):
                yield self._listed(entry)
        else:
            raise ImageError(
                f"{self._origin} has no manifest.json, so a Docker before 1.10 saved it, in a format that is no longer "
                "read. Load the archive into that Docker, push the image, and save it with a newer Docker"
            )

    def _choose(self, saved: List[Saved], architecture: str) -> Saved:
        fitting: Dict[str, Saved] = {}
        groups = {image.index for image in saved}
        for group in groups:
            images = [image for image in saved if image.index == group and image.platform.fits(architecture)]
            level = min((image.platform.level for image in images), default=0)
            images = [image for image in images if image.platform.level == level]
            fitting.update({image.identity: image for image in (images[:1] if group else images)})
        if len(fitting) == 1:
            return next(iter(fitting.values()))
        if fitting:
            names = ", ".join(sorted(image.name or image.identity for image in fitting.values()))
            raise ImageError(
                f"{self._origin} holds {len(fitting)} images for {architecture}: {names}; save one of them alone"
            )
        there = sorted({image.platform.name for image in saved})
        if not there:
            raise ImageError(f"{self._origin} holds no image that a container runtime can run")
        if len(there) > 1:
            raise ImageError(
                f"{self._origin} holds no image for {architecture}, but for {', '.join(there)}; see 'architecture'"
            )
        raise ImageError(f"{self._origin} is an image for {there[0]}, not for {architecture}; see 'architecture'")

    def _indexed(self, index: Mapping[str, Any], origin: str, name: str, depth: int) -> Iterator[Saved]:
        """Yield the images of an index and of those in it. ``name`` is what the index itself is called."""
        if depth > MAX_DEPTH:
            raise ImageError(f"{self._origin} is damaged: it has more than {MAX_DEPTH} indexes in one another")
        for entry in self._objects(index, "manifests"):
            annotations = _mapping(entry.get("annotations"))
            called = str(annotations.get(NAME_ANNOTATION) or annotations.get(TAG_ANNOTATION) or name)
            digest, kind = str(entry.get("digest")), str(entry.get("mediaType"))
            if kind.endswith(INDEX_TYPES):
                below = self.document(self._blob(digest))
                yield from self._indexed(below, origin or digest, called, depth + 1)
            elif kind.endswith(MANIFEST_TYPES) and ATTESTATION_ANNOTATION not in annotations:
                image = self._described(entry, digest, called, origin)
                if image is not None:
                    yield image

    def _described(self, entry: Mapping[str, Any], digest: str, name: str, index: str) -> Saved | None:
        """Return the image of a descriptor; None for a signature, an attestation or something else that is no image."""
        said = _mapping(entry.get("platform"))
        platform = Platform.of(said)
        if blob_path(digest) in self._files or not platform.architecture:
            manifest = self.document(self._blob(digest))
            config = _mapping(manifest.get("config"))
            kinds = {str(layer.get("mediaType")) for layer in self._objects(manifest, "layers")}
            if (
                manifest.get("artifactType")
                or config.get("mediaType", CONFIG_TYPES[0]) not in CONFIG_TYPES
                or (kinds and not any(kind.startswith(LAYER_TYPES) for kind in kinds))
            ):
                return None
            if not platform.architecture:
                platform = Platform.of(self.document(self._blob(str(config.get("digest")))))
        if "unknown" in (platform.os, platform.architecture) or said.get("os.features"):
            return None
        return Saved(digest, name, platform, index, lambda: self._described_parts(digest, name))

    def _described_parts(self, digest: str, name: str) -> Parts:
        manifest = self._blob(digest)
        document = self.document(manifest)
        config = self._blob(str(_mapping(document.get("config")).get("digest")))
        return Parts(name, manifest, config, [self._layer(layer) for layer in self._objects(document, "layers")])

    def _layer(self, layer: Mapping[str, Any]) -> Blob:
        digest, kind = str(layer.get("digest")), str(layer.get("mediaType"))
        if not (kind.startswith(LAYER_TYPES) and kind.endswith(LAYER_FORMS)):
            raise ImageError(
                f"{self._origin} has a layer of the type {kind}, which cannot be unpacked; "
                "take an image of plain layers, neither encrypted nor of another kind"
            )
        if layer.get("urls") and blob_path(digest) not in self._files:
            raise ImageError(
                f"{self._origin} lacks its blob {digest}, a layer that is fetched from elsewhere; "
                "pull the image, and save it with all its layers"
            )
        return self._blob(digest)

    def _listed(self, entry: Mapping[str, Any]) -> Saved:
        """Return an image that ``docker save`` wrote."""
        name = ", ".join(str(tag) for tag in entry.get("RepoTags") or [])
        config = self._file(str(entry.get("Config")))
        paths = [str(path) for path in entry.get("Layers") or []]

        def parts() -> Parts:
            first = name.split(", ", maxsplit=1)[0]
            return Parts(first, Blob.of(b""), config, [self._file(path) for path in paths])

        return Saved(config.digest, name, Platform.of(self.document(config)), "", parts)

    def _blob(self, digest: str) -> Blob:
        content = self._files.get(blob_path(digest))
        if content is None:
            raise ImageError(
                f"{self._origin} is damaged: it lacks its blob {digest}; save the image again, whole, for the "
                "architecture that is meant"
            )
        algorithm = digest.partition(":")[0]
        if algorithm not in ALGORITHMS:
            raise ImageError(f"{self._origin} names its blobs by {algorithm}, and {', '.join(ALGORITHMS)} are known")
        found = Blob.at(content, algorithm)
        if found.digest != digest:
            raise ImageError(f"{self._origin} is damaged: its blob {digest} has another digest")
        return found if algorithm == ALGORITHMS[0] else Blob.at(content)

    def _file(self, name: str) -> Blob:
        content = self._files.get(clean(name, self._origin))
        if content is None:
            raise ImageError(f"{self._origin} is damaged: it lacks its file {name}")
        return Blob.at(content)

    def _json(self, blob: Blob) -> Any:  # noqa: ANN401
        if blob.size > MAX_DOCUMENT:
            raise ImageError(f"{self._origin} is damaged: {blob.digest} should be JSON, and has {blob.size} bytes")
        try:
            return json.loads(blob.read())
        except (ValueError, RecursionError) as error:
            raise ImageError(f"{self._origin} is damaged: {blob.digest} is no JSON document: {error}") from error

    def _objects(self, document: Mapping[str, Any], key: str) -> List[Mapping[str, Any]]:
        found = document.get(key) or []
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise ImageError(f"{self._origin} is damaged: {key} is no list of objects")
        return found


def _mapping(found: object) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {}


def _is_text(found: object) -> bool:
    return isinstance(found, list) and all(isinstance(one, str) for one in found)
