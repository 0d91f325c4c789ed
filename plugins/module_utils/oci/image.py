# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a container image consists of, as pure functions: file trees, configuration, manifest, names.

Formats: OCI image specification 1.1 and, for ``docker load``, the archive of its image specification 1.2.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import json
import re
from dataclasses import dataclass
from typing import Any, BinaryIO, Callable, Dict, Iterable, List, Mapping, Sequence, Tuple

FILE, DIRECTORY, SYMLINK, DEVICE = "file", "directory", "symlink", "device"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
NAME_ANNOTATION = "io.containerd.image.name"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
WHEEL_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""The end of a wheel's platform tag."""
# Other words for Go's, and the variant of the oldest processors.
ARCHITECTURES = {"x86_64": "amd64", "x86-64": "amd64", "aarch64": "arm64", "i386": "386", "armhf": "arm"}
BASELINES = {"amd64": 1, "arm64": 8}
MAX_LINKS = 40
CHUNK = 1 << 20


class ImageError(Exception):
    """The image cannot be made from what was given. Says which part, why, and what to do."""


@dataclass(frozen=True)
class Content:
    """Bytes of a file. ``identity`` is equal for the names of one hard-linked file and None for all others."""

    size: int
    open: Callable[[], BinaryIO]
    identity: object = None

    @classmethod
    def of(cls, data: bytes) -> Content:
        """Return content that is held in memory."""
        return cls(len(data), lambda: io.BytesIO(data))

    def read(self) -> bytes:
        """Return all bytes of it."""
        with self.open() as handle:
            return handle.read()


EMPTY = Content.of(b"")


@dataclass(frozen=True)
class Entry:
    """One name in a file tree. ``mtime`` in seconds only tells whether byte code is up to date; none is written.

    ``DEVICE`` is any node that is no file: a pipe too.
    """

    kind: str
    mode: int
    uid: int = 0
    gid: int = 0
    target: str = ""
    content: Content = EMPTY
    mtime: int = 0


Tree = Dict[str, Entry]
"""By path without leading slash; the root itself is not in it."""


@dataclass(frozen=True)
class Blob:
    """Bytes stored under their digest (``sha256:...``)."""

    digest: str
    size: int
    open: Callable[[], BinaryIO]

    @classmethod
    def of(cls, data: bytes) -> Blob:
        """Return a blob held in memory."""
        return cls("sha256:" + hashlib.sha256(data).hexdigest(), len(data), lambda: io.BytesIO(data))

    @classmethod
    def at(cls, content: Callable[[], BinaryIO], algorithm: str = "sha256") -> Blob:
        """Return a blob whose digest and size are read from itself."""
        state, size = hashlib.new(algorithm), 0
        with content() as handle:
            while True:
                chunk = handle.read(CHUNK)
                if not chunk:
                    return cls(f"{algorithm}:{state.hexdigest()}", size, content)
                state.update(chunk)
                size += len(chunk)

    def read(self) -> bytes:
        """Return all bytes of it."""
        with self.open() as handle:
            return handle.read()


@dataclass(frozen=True)
class Layer:
    """A gzip-compressed layer and the digest of its tar."""

    blob: Blob
    diff_id: str


@dataclass(frozen=True)
class Image:
    """An image, complete."""

    reference: str
    config: Mapping[str, Any]
    layers: Sequence[Layer]
    manifest: Blob
    config_blob: Blob

    def blobs(self) -> List[Blob]:
        """Return what the manifest refers to, each once, in the order a registry wants them."""
        return list({blob.digest: blob for blob in [*(layer.blob for layer in self.layers), self.config_blob]}.values())


@dataclass(frozen=True)
class Reference:
    """Name of an image: ``registry/repository:tag``."""

    registry: str
    repository: str
    tag: str

    def __str__(self) -> str:
        return f"{self.registry}/{self.repository}:{self.tag}"


@dataclass(frozen=True)
class Platform:
    """What an image runs on; empty where nothing says."""

    os: str
    architecture: str
    variant: str = ""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Platform:
        """Return the platform that a configuration or an index names, in Go's words."""
        system, machine, variant = (str(document.get(key) or "").lower() for key in ("os", "architecture", "variant"))
        return cls(system or "linux", ARCHITECTURES.get(machine, machine), variant)

    @property
    def name(self) -> str:
        """Return the platform's usual name. Linux goes without saying."""
        return "/".join(filter(None, (self.os if self.os != "linux" else "", self.architecture, self.variant)))

    def fits(self, architecture: str) -> bool:
        """Return whether Linux on this architecture may run it. An image need not say what it is for."""
        return self.os == "linux" and self.architecture in ("", architecture)

    @property
    def level(self) -> int:
        """Return how much newer than the oldest the processor has to be."""
        number = re.match(r"v(\d{1,9})", self.variant)
        return max(0, int(number.group(1)) - BASELINES.get(self.architecture, 0)) if number else 0


@dataclass(frozen=True)
class Settings:
    """How containers of an image start. None leaves what the base says."""

    entrypoint: Sequence[str] | None = None
    command: Sequence[str] | None = None
    env: Mapping[str, str] | None = None
    labels: Mapping[str, str] | None = None
    user: str | None = None


def encode(document: object) -> bytes:
    """JSON of one canonical form."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def clean(name: str, origin: str) -> str:
    """Return a path inside ``origin`` without leading ``./``, empty for the root.

    Raises ImageError for one that leads out.
    """
    parts = name.split("/")
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise ImageError(f"{origin} holds the path {name!r}, which leads out of it; do not use it")
    return "/".join(part for part in parts if part not in ("", "."))


def parents(path: str) -> List[str]:
    """Directories above a path, outermost first."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def with_parents(tree: Tree, origin: str) -> Tree:
    """Return the tree with every directory that was only implied.

    Raises ImageError where a file would have to be one.
    """
    complete = dict(tree)
    for path in tree:
        for parent in parents(path):
            entry = complete.setdefault(parent, Entry(DIRECTORY, 0o755))
            if entry.kind != DIRECTORY:
                raise ImageError(f"{origin} holds {path!r} below {parent!r}, which is a {entry.kind}")
    return complete


def exclude(tree: Tree, patterns: Iterable[str]) -> Tree:
    """Return the tree without what matches a shell pattern, and what is below it."""
    matchers = [re.compile(fnmatch.translate(pattern.strip("/"))) for pattern in patterns]
    return {
        path: entry
        for path, entry in tree.items()
        if not any(matcher.match(name) for matcher in matchers for name in [*parents(path), path])
    }


def resolve(tree: Tree, path: str, last: bool = False) -> str:
    """Return a path with the symbolic links of its directories followed, and with ``last`` its own too."""
    todo = path.split("/")
    done: List[str] = []
    links = 0
    while todo:
        part = todo.pop(0)
        if part in ("", "."):
            continue
        if part == "..":
            del done[-1:]
            continue
        entry = tree.get("/".join([*done, part]))
        if entry is None or entry.kind != SYMLINK or not (todo or last):
            done.append(part)
            continue
        links += 1
        if links > MAX_LINKS:
            raise ImageError(f"the symbolic links on the way to /{path} go round in circles")
        if entry.target.startswith("/"):
            done = []
        todo[:0] = entry.target.split("/")
    return "/".join(done)


def place(base: Tree, additions: Tree) -> Tree:
    """Return the layer that adds files to a base: where they really go, with the directories the base lacks.

    Raises ImageError where something is in the way, in the base or, by a link of the base, among what is added.
    """
    layer: Tree = {}
    for path, entry in additions.items():
        real = resolve(base, path, last=entry.kind == DIRECTORY)
        below = base.get(real)
        if below is not None and DIRECTORY in (below.kind, entry.kind):
            if below.kind == entry.kind:
                continue
            raise ImageError(f"/{path} cannot be added as a {entry.kind}: in the base image it is a {below.kind}")
        for parent in parents(real):
            if parent in base and base[parent].kind != DIRECTORY:
                raise ImageError(f"/{path} cannot be added: /{parent} in the base image is a {base[parent].kind}")
            if parent not in base and layer.setdefault(parent, Entry(DIRECTORY, 0o755)).kind != DIRECTORY:
                raise ImageError(f"/{path} cannot be added: it goes below /{parent}, which is added as no directory")
        if real in layer and layer[real].kind != entry.kind:
            raise ImageError(
                f"/{path} cannot be added as a {entry.kind}: /{real}, where it goes, is a {layer[real].kind}"
            )
        layer[real] = entry
    return layer


def combine(parts: Iterable[Tuple[str, Tree]]) -> Tree:
    """Return one tree of several, each with its origin. Raises ImageError where two differ about a path."""
    combined: Tree = {}
    owner: Dict[str, str] = {}
    for origin, tree in parts:
        for path, entry in tree.items():
            if path in combined and not _same(entry, combined[path]):
                raise ImageError(f"{owner[path]} and {origin} both bring /{path}; leave one of them out")
            combined[path] = entry
            owner[path] = origin
    return with_parents(combined, "what is added")


def _same(one: Entry, other: Entry) -> bool:
    return (one.kind, one.target) == (other.kind, other.target) and one.content.read() == other.content.read()


def parse_reference(text: str) -> Reference:
    """Return an image's full name from a short or full one, as Docker and containerd read it. Raises ImageError."""
    match = re.fullmatch(r"(?:(?P<registry>[^/]+)/)?(?P<path>[^:@]+)(?::(?P<tag>\w[\w.-]{0,127}))?", text, re.ASCII)
    registry = (match.group("registry") or "") if match else ""
    path = match.group("path") if match else ""
    if registry and not re.search(r"[.:]", registry) and registry != "localhost":
        registry, path = "", f"{registry}/{path}"
    component = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
    if (
        match is None
        or not re.fullmatch(rf"{component}(?:/{component})*", path)
        or not re.fullmatch(r"([A-Za-z0-9.-]+(:\d+)?)?", registry, re.ASCII)
    ):
        raise ImageError(f"reference {text!r} is not the name of an image: [registry/]repository[:tag] in lower case")
    if not registry:
        registry, path = "docker.io", path if "/" in path else f"library/{path}"
    return Reference(registry, path, match.group("tag") or "latest")


def build(
    reference: Reference, architecture: str, settings: Settings, base: Mapping[str, Any], layers: Sequence[Layer]
) -> Image:
    """Return the image of these layers; ``base`` is the configuration of the image it builds upon, empty for none."""
    config = {
        "architecture": architecture,
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": _run_config(base.get("config") or {}, settings),
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
    }
    if "variant" in base:
        config["variant"] = base["variant"]
    config_blob = Blob.of(encode(config))
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": _descriptor(CONFIG_TYPE, config_blob),
        "layers": [_descriptor(LAYER_TYPE, layer.blob) for layer in layers],
    }
    return Image(str(reference), config, layers, Blob.of(encode(manifest)), config_blob)


def _run_config(base: Mapping[str, Any], settings: Settings) -> Dict[str, Any]:
    config = {key: value for key, value in base.items() if value}
    env = {"PATH": DEFAULT_PATH}
    env.update(variable.split("=", 1) for variable in base.get("Env") or [] if "=" in variable)
    env.update(settings.env or {})
    config["Env"] = [f"{name}={value}" for name, value in sorted(env.items())]
    if settings.labels:
        config["Labels"] = {**config.get("Labels", {}), **settings.labels}
    if settings.entrypoint is not None:
        # The base's arguments belong to the base's program.
        config.pop("Cmd", None)
        config["Entrypoint"] = list(settings.entrypoint)
    if settings.command is not None:
        config["Cmd"] = list(settings.command)
    if settings.user is not None:
        config["User"] = settings.user
    return config


def _descriptor(media_type: str, blob: Blob) -> Dict[str, Any]:
    return {"mediaType": media_type, "digest": blob.digest, "size": blob.size}


def merged_index(image: Image, before: Mapping[str, Any]) -> Blob:
    """Return an index with this image for its architecture, and the other architectures of an existing index."""
    entry = {**_descriptor(MANIFEST_TYPE, image.manifest), "platform": _platform(image)}
    mine = Platform.of(entry["platform"])
    others = []
    for other in before.get("manifests") or []:
        its = Platform.of(other.get("platform") or {})
        if (its.os, its.architecture) != (mine.os, mine.architecture):
            others.append(other)
    manifests = sorted([entry, *others], key=lambda one: str((one.get("platform") or {}).get("architecture")))
    return Blob.of(encode({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": manifests}))


def _platform(image: Image) -> Dict[str, str]:
    return {"architecture": image.config["architecture"], "os": "linux"}


def blob_path(digest: str) -> str:
    """Return where an archive keeps a blob."""
    return "blobs/" + digest.replace(":", "/")


def archive_members(image: Image) -> Dict[str, Blob]:
    """Return the files of the archive, which is an OCI image layout that ``docker load`` reads as well."""
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX_TYPE,
        "manifests": [
            {
                **_descriptor(MANIFEST_TYPE, image.manifest),
                "platform": _platform(image),
                "annotations": {
                    NAME_ANNOTATION: image.reference,
                    "org.opencontainers.image.ref.name": parse_reference(image.reference).tag,
                },
            }
        ],
    }
    docker = [
        {
            "Config": blob_path(image.config_blob.digest),
            "RepoTags": [image.reference],
            "Layers": [blob_path(layer.blob.digest) for layer in image.layers],
        }
    ]
    members = {blob_path(blob.digest): blob for blob in [*image.blobs(), image.manifest]}
    members["index.json"] = Blob.of(encode(index))
    members["manifest.json"] = Blob.of(encode(docker))
    members["oci-layout"] = Blob.of(encode({"imageLayoutVersion": "1.0.0"}))
    return members


def summary(image: Image | None) -> Dict[str, Any]:
    """Return an image for people, as returned and compared; empty for none."""
    if image is None:
        return {}
    return {
        "reference": image.reference,
        "digest": image.manifest.digest,
        "id": image.config_blob.digest,
        "config": {key: value for key, value in image.config.items() if key != "rootfs"},
        "layers": [
            {"digest": layer.blob.digest, "diff_id": layer.diff_id, "size": layer.blob.size} for layer in image.layers
        ],
    }
