# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Root file systems and image archives on disk: read, checked, written."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import json
import lzma
import os
import shutil
import stat
import tarfile
import tempfile
import zlib
from dataclasses import dataclass
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, Mapping, Tuple, cast

from ansible_collections.accel.kubernetes.plugins.module_utils.oci_image import (
    DIRECTORY,
    FILE,
    NAME_ANNOTATION,
    SYMLINK,
    Blob,
    Content,
    Entry,
    Image,
    ImageError,
    Layer,
    Tree,
    archive_members,
    blob_path,
    clean,
    with_parents,
)

CHUNK = 1 << 20
MAX_DOCUMENT = 8 << 20
DAMAGED = (tarfile.TarError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, EOFError, LookupError, ValueError, TypeError)
ZERO_BLOCK = bytes(tarfile.BLOCKSIZE)
DECOMPRESSORS: Dict[bytes, Callable[[BinaryIO], Any]] = {b"\x1f\x8b": gzip.open, b"\xfd7": lzma.open}

Open = Callable[[], BinaryIO]
Write = Callable[[BinaryIO], None]
Members = Dict[str, tarfile.TarInfo]


@dataclass(frozen=True)
class Base:
    """What an image builds upon: a tree of its own, or the layers of another image and what they hold."""

    tree: Tree
    image: Image | None = None


class Store:
    """Reads and makes what an image consists of. Intermediate files go to ``directory``, its caller's to delete."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def base(self, path: str, architecture: str) -> Base:
        """A root file system (directory or tar) or an image archive. Raises ImageError naming the base."""
        origin = f"base {path}"
        if os.path.isdir(path):
            return Base(_directory_tree(path, origin))
        try:
            archive = self._tar(_file_opener(path), path, origin)
            members = _members(archive, origin)
            if not _is_image(members):
                return Base(with_parents(_tar_tree(archive, members, {}, origin), origin))
            image = self._image(archive, members, architecture, origin)
            tree: Tree = {}
            for layer in image.layers:
                tar = self._tar(layer.blob.open, "", origin)
                tree.update(_tar_tree(tar, _members(tar, origin), tree, origin))
        except DAMAGED as error:
            raise ImageError(f"{origin} is neither a directory nor a whole tar or image archive: {error}") from error
        return Base(with_parents(tree, origin), image)

    def image(self, path: str) -> Image | None:
        """The image an archive holds; None when there is no archive or anything in it is damaged or in another form."""
        if not os.path.isfile(path):
            return None
        try:
            archive = self._tar(_file_opener(path), path, path)
            return self._image(archive, _members(archive, path), None, path)
        except (*DAMAGED, ImageError):
            return None

    def layer(self, tree: Tree, known: Mapping[str, Layer]) -> Layer:
        """The layer of a tree; one of the known ones, by the digest of its tar, where that is the same."""

        def write(handle: BinaryIO) -> None:
            _write_tree(tree, handle)

        diff_id = _measure(write).digest()
        return known.get(diff_id) or self._compress(write, diff_id)

    def _compress(self, write: Write, diff_id: str) -> Layer:
        path = self._temporary()
        # No name, no time, one level: the same bytes from the same tar.
        with open(path, "wb") as handle, gzip.GzipFile("", "wb", 6, handle, mtime=0) as compressed:
            write(cast(BinaryIO, compressed))
        return Layer(_blob(_file_opener(path)), diff_id)

    def _temporary(self) -> str:
        handle, path = tempfile.mkstemp(dir=self.directory)
        os.close(handle)
        return path

    def _tar(self, content: Open, plain: str, origin: str) -> tarfile.TarFile:
        """A tar whose files can be read in any order; ``plain`` is its path when it is not compressed."""
        return tarfile.open(self._decompress(content, origin) or plain, "r:")

    def _decompress(self, content: Open, origin: str) -> str:
        """Path of the decompressed bytes, empty when they are not compressed."""
        with content() as handle:
            magic = handle.read(4)
        if magic == b"\x28\xb5\x2f\xfd":
            raise ImageError(f"{origin} is compressed with zstd, which cannot be read here; use gzip or xz")
        if magic[:2] not in DECOMPRESSORS:
            return ""
        path = self._temporary()
        with content() as handle, DECOMPRESSORS[magic[:2]](handle) as source, open(path, "wb") as plain:
            shutil.copyfileobj(source, plain, CHUNK)
        return path

    def _image(self, archive: tarfile.TarFile, members: Members, architecture: str | None, origin: str) -> Image:
        """The image in an archive, everything in it verified. Any damage raises."""

        def blob(digest: str) -> Blob:
            member = members.get(blob_path(digest))
            if member is None:
                raise ImageError(f"{origin} is damaged: it lacks its blob {digest}")
            found = _blob(_opener(archive, member))
            if found.digest != digest:
                raise ImageError(f"{origin} is damaged: its blob {digest} has another digest")
            return found

        def named(name: str) -> Blob:
            return _blob(_opener(archive, members[clean(name, origin)]))

        manifest = Blob.of(b"")
        if "index.json" in members:
            digest, reference = _choose(_document(named("index.json"), origin), blob, architecture, origin)
            manifest = blob(digest)
            described = _document(manifest, origin)
            config_blob = blob(described["config"]["digest"])
            layers = [blob(layer["digest"]) for layer in described["layers"]]
        else:
            listed = _document(named("manifest.json"), origin)[0]
            reference = (listed.get("RepoTags") or [""])[0]
            config_blob = named(listed["Config"])
            layers = [named(name) for name in listed["Layers"]]
        config = _document(config_blob, origin)
        if architecture and config["architecture"] != architecture:
            raise ImageError(
                f"{origin} is an image for {config['architecture']}, not for {architecture}; see 'architecture'"
            )
        diff_ids = config["rootfs"]["diff_ids"]
        if len(diff_ids) != len(layers):
            raise ImageError(f"{origin} is damaged: {len(layers)} layers, and its configuration names {len(diff_ids)}")
        verified = [self._verified(layer, diff_ids[number], origin) for number, layer in enumerate(layers)]
        return Image(reference, config, verified, manifest, config_blob)

    def _verified(self, blob: Blob, diff_id: str, origin: str) -> Layer:
        """A layer gzip-compressed, its tar of the digest the configuration gives it."""
        plain = self._decompress(blob.open, origin)
        write = _copier(_file_opener(plain) if plain else blob.open)
        if _measure(write).digest() != diff_id:
            raise ImageError(f"{origin} is damaged: its layer {diff_id} has another digest")
        with blob.open() as handle:
            is_gzip = handle.read(2) == b"\x1f\x8b"
        return Layer(blob, diff_id) if is_gzip else self._compress(write, diff_id)


def write_archive(image: Image, path: str, move: Callable[[str, str], None]) -> None:
    """Replace the archive atomically; ``move`` renames and keeps owner, mode and label of what was there."""
    directory, name = os.path.split(os.path.realpath(path))
    temporary = os.path.join(directory, f".accel-{name}.tmp")
    lock = os.open(directory, os.O_RDONLY)
    try:
        # One writer at a time: the name is fixed, so that the next run removes what a killed one left.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.lexists(temporary):
            os.unlink(temporary)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "wb") as handle:
            _write_archive(image, handle)
            handle.flush()
            os.fsync(handle.fileno())
        move(temporary, os.path.join(directory, name))
    finally:
        if os.path.lexists(temporary):
            os.unlink(temporary)
        os.close(lock)


def files_tree(source: str, target: str, mode: int | None, origin: str) -> Tree:
    """What copying a file or directory of this machine to a path in the image adds, owned by root."""
    where = clean(target.lstrip("/"), origin)
    tree = {where: _local_entry(source, mode)} if where else {}
    if os.path.isdir(source):
        for path in _walk(source, origin):
            name = os.path.relpath(path, source)
            tree[f"{where}/{name}" if where else name] = _local_entry(path, mode)
    elif not where or target.endswith("/"):
        raise ImageError(f"{origin} is a file and its 'dest' {target} a directory; name the file in it")
    return with_parents(tree, origin)


def _local_entry(path: str, mode: int | None) -> Entry:
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return Entry(SYMLINK, 0o777, target=os.readlink(path))
    if stat.S_ISDIR(status.st_mode):
        return Entry(DIRECTORY, 0o755)
    if not stat.S_ISREG(status.st_mode):
        raise ImageError(f"{path} is neither a file nor a directory nor a symbolic link")
    if mode is None:
        mode = 0o755 if status.st_mode & 0o111 else 0o644
    return Entry(FILE, mode, content=Content(status.st_size, _file_opener(path)))


def _walk(root: str, origin: str) -> Iterator[str]:
    """Every path below a directory. Raises ImageError for what cannot be read: half a tree is no tree."""

    def stop(error: OSError) -> None:
        raise ImageError(f"{origin} cannot be read completely: {error}; become root to read a root file system")

    for directory, directories, files in os.walk(root, onerror=stop):
        for name in [*directories, *files]:
            yield os.path.join(directory, name)


def _directory_tree(root: str, origin: str) -> Tree:
    """A directory as a root file system: owners kept, but for the directory's own, who becomes root; no devices."""
    owner = os.stat(root)
    tree: Tree = {}
    for path in _walk(root, origin):
        status = os.lstat(path)
        name = os.path.relpath(path, root)
        uid = 0 if status.st_uid == owner.st_uid else status.st_uid
        gid = 0 if status.st_gid == owner.st_gid else status.st_gid
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISLNK(status.st_mode):
            tree[name] = Entry(SYMLINK, 0o777, uid, gid, os.readlink(path))
        elif stat.S_ISDIR(status.st_mode):
            tree[name] = Entry(DIRECTORY, mode, uid, gid)
        elif stat.S_ISREG(status.st_mode):
            identity = (status.st_dev, status.st_ino) if status.st_nlink > 1 else None
            content = Content(status.st_size, _file_opener(path), identity)
            tree[name] = Entry(FILE, mode, uid, gid, content=content, mtime=int(status.st_mtime))
    return tree


def _members(archive: tarfile.TarFile, origin: str) -> Members:
    """Members by clean path, the last of a name. Raises ImageError when the archive breaks off."""
    members = {clean(member.name, origin): member for member in archive}
    handle = cast(BinaryIO, archive.fileobj)
    handle.seek(archive.offset)
    # tarfile takes a header that is cut short for the end.
    if handle.read(tarfile.BLOCKSIZE) != ZERO_BLOCK:
        raise ImageError(f"{origin} is damaged: it breaks off after {len(members)} entries")
    members.pop("", None)
    return members


def _tar_tree(archive: tarfile.TarFile, members: Members, below: Tree, origin: str) -> Tree:
    """The tree of a tar; a hard link may lead to a file of the layers below. Whiteouts and devices are left out."""
    tree: Tree = {}
    links: List[Tuple[str, str]] = []
    for path, member in members.items():
        if path.rpartition("/")[2].startswith(".wh."):
            continue
        mode = member.mode & 0o7777
        if member.issym():
            tree[path] = Entry(SYMLINK, 0o777, member.uid, member.gid, member.linkname)
        elif member.isdir():
            tree[path] = Entry(DIRECTORY, mode, member.uid, member.gid)
        elif member.islnk():
            links.append((path, clean(member.linkname, origin)))
        elif member.isreg():
            content = Content(member.size, _opener(archive, member), (id(archive), member.offset))
            tree[path] = Entry(FILE, mode, member.uid, member.gid, content=content, mtime=int(member.mtime))
    for path, target in links:
        found = tree.get(target) or below.get(target)
        if found is None:
            raise ImageError(f"{origin} is damaged: {path} is a hard link to {target}, which is not in it")
        tree[path] = found
    return tree


def _is_image(members: Members) -> bool:
    return "manifest.json" in members or ("oci-layout" in members and "index.json" in members)


def _choose(
    index: Mapping[str, Any], blob: Callable[[str], Blob], architecture: str | None, origin: str
) -> Tuple[str, str]:
    """Digest of the manifest an index has for an architecture, the first for None, and the image's name."""
    for entry in index["manifests"]:
        if architecture and (entry.get("platform") or {}).get("architecture", architecture) != architecture:
            continue
        if entry["mediaType"].endswith(("image.index.v1+json", "manifest.list.v2+json")):
            return _choose(_document(blob(entry["digest"]), origin), blob, architecture, origin)
        return entry["digest"], (entry.get("annotations") or {}).get(NAME_ANNOTATION, "")
    raise ImageError(f"{origin} holds no image for {architecture}; see 'architecture'")


def _document(blob: Blob, origin: str) -> Any:  # noqa: ANN401
    if blob.size > MAX_DOCUMENT:
        raise ImageError(f"{origin} is damaged: {blob.digest} is to be a JSON document and has {blob.size} bytes")
    with blob.open() as handle:
        return json.loads(handle.read())


def _file_opener(path: str) -> Open:
    return lambda: open(path, "rb")


def _opener(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Open:
    def content() -> BinaryIO:
        handle = archive.extractfile(member)
        if handle is None:
            raise ValueError(f"{member.name} is not a file")
        return cast(BinaryIO, handle)

    return content


class _Meter:
    """A sink that keeps only digest and size of what is written."""

    def __init__(self) -> None:
        self.size = 0
        self._state = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._state.update(data)
        self.size += len(data)
        return len(data)

    def digest(self) -> str:
        return "sha256:" + self._state.hexdigest()


def _measure(write: Write) -> _Meter:
    meter = _Meter()
    write(cast(BinaryIO, meter))
    return meter


def _copier(content: Open) -> Write:
    def copy(sink: BinaryIO) -> None:
        with content() as handle:
            shutil.copyfileobj(handle, sink, CHUNK)

    return copy


def _blob(content: Open) -> Blob:
    """Content as a blob, its digest and size read from itself."""
    meter = _measure(_copier(content))
    return Blob(meter.digest(), meter.size, content)


def _write_tree(tree: Tree, handle: BinaryIO) -> None:
    """A tree as a tar that depends on nothing else: sorted, without times and names of users."""
    first: Dict[object, str] = {}
    with tarfile.open(fileobj=handle, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for path, entry in sorted(tree.items()):
            info = tarfile.TarInfo(path)
            info.mode, info.uid, info.gid = entry.mode, entry.uid, entry.gid
            identity = entry.content.identity
            if entry.kind == DIRECTORY:
                info.type = tarfile.DIRTYPE
            elif entry.kind == SYMLINK:
                info.type, info.linkname = tarfile.SYMTYPE, entry.target
            elif identity is not None and identity in first:
                info.type, info.linkname = tarfile.LNKTYPE, first[identity]
            else:
                first[identity] = path
                info.size = entry.content.size
                with entry.content.open() as source:
                    tar.addfile(info, source)
                continue
            tar.addfile(info)


def _write_archive(image: Image, handle: BinaryIO) -> None:
    with tarfile.open(fileobj=handle, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for directory in ("blobs", "blobs/sha256"):
            info = tarfile.TarInfo(directory)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(info)
        for name, blob in sorted(archive_members(image).items()):
            info = tarfile.TarInfo(name)
            info.size = blob.size
            with blob.open() as source:
                tar.addfile(info, source)
