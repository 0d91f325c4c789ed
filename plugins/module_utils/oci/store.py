# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Root file systems and image archives on disk: read, checked, written."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import lzma
import os
import shutil
import stat
import tarfile
import tempfile
import zlib
from dataclasses import dataclass
from typing import BinaryIO, Callable, Dict, Iterator, List, Mapping, Sequence, cast

from ansible_collections.accel.kubernetes.plugins.module_utils.oci.image import (
    CHUNK,
    DEVICE,
    DIRECTORY,
    FILE,
    SYMLINK,
    Blob,
    Content,
    Entry,
    Image,
    ImageError,
    Layer,
    Platform,
    Tree,
    archive_members,
    clean,
    with_parents,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.oci.layers import Layers, Member
from ansible_collections.accel.kubernetes.plugins.module_utils.oci.layout import (
    ALGORITHMS,
    Layout,
    Open,
    is_image,
    refuse_misplaced,
)

from .compression import decompressor

DAMAGED = (
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    gzip.BadGzipFile,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
ZERO_BLOCK = bytes(tarfile.BLOCKSIZE)
UNPACKED = (*tarfile.REGULAR_TYPES[:2], *(tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE))
UNPACKED += (tarfile.CHRTYPE, tarfile.BLKTYPE)
"""Types of what container runtimes unpack of a layer; another one they refuse."""

Files = Dict[str, Open]
Write = Callable[[BinaryIO], None]
Members = Dict[str, tarfile.TarInfo]


@dataclass(frozen=True)
class Base:
    """What an image builds upon: a tree of its own, or the layers of another image and what they hold."""

    tree: Tree
    image: Image | None = None
    doubts: Sequence[str] = ()
    """Where container runtimes differ about what the layers hold."""


class _Tar(tarfile.TarFile):
    """A tar whose global headers say nothing of its members, as container runtimes read it."""

    @property
    def pax_headers(self) -> Dict[str, str]:
        """Have no header for all members."""
        return {}

    @pax_headers.setter
    def pax_headers(self, headers: Mapping[str, str]) -> None:
        """Forget them."""


class Store:
    """Reads and makes what an image consists of. Intermediate files go to ``directory``, its caller's to delete."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def base(self, path: str, architecture: str) -> Base:
        """Return a root file system or a saved image, as directory or tar. Raises ImageError naming the base."""
        origin = f"base {path}"
        try:
            if not os.path.isdir(path):
                archive = self._tar(_file_opener(path), path, origin)
                members = _members(archive, origin)
                if is_image({name.partition("/")[0] for name in members}):
                    return self._image_base(_archived(archive, members), architecture, origin)
                refuse_misplaced(members, origin)
                layers = Layers(origin, strict=True)
                layers.unpack(_entries(archive))
                return Base({name: entry for name, entry in layers.tree.items() if entry.kind != DEVICE})
            if is_image(os.listdir(path)):
                return self._image_base(_directory_files(path, origin), architecture, origin)
        except DAMAGED as error:
            raise ImageError(f"{origin} is neither a directory nor a whole tar or image archive: {error}") from error
        tree = _directory_tree(path, origin)
        refuse_misplaced(tree, origin)
        return Base(tree)

    def image(self, path: str) -> Image | None:
        """Return the image an archive holds; None without an archive, or if anything in it is damaged or unexpected."""
        if not os.path.isfile(path):
            return None
        try:
            archive = self._tar(_file_opener(path), path, path)
            return self._image(_archived(archive, _members(archive, path)), None, path)
        except (*DAMAGED, ImageError):
            return None

    def _image_base(self, files: Files, architecture: str, origin: str) -> Base:
        image = self._image(files, architecture, origin)
        layers = Layers(origin)
        for layer in image.layers:
            layers.unpack(self._layer_entries(layer.blob, origin))
        doubts = [
            f"{origin} has /{path} in a layer above the one with the link /{link}. It is read where the link leads, "
            "but Docker, and containerd with overlayfs, replace the link by a directory. Build the base again, with "
            "the file at its real path."
            for link, path in layers.across.items()
        ]
        doubts += [
            f"{origin} has {name!r} as a hard link to {link!r}, which is in a layer below. It is read as that file, "
            "but Docker, and containerd with overlayfs, cannot unpack it. Build the base again, with both in one layer."
            for name, link in layers.below.items()
        ]
        return Base(layers.tree, image, doubts)

    def layer(self, tree: Tree, known: Mapping[str, Layer]) -> Layer:
        """Return the layer of a tree; one of the known ones, by the digest of its tar, where that is the same."""

        def write(handle: BinaryIO) -> None:
            _write_tree(tree, handle)

        diff_id = _measure(write).digest()
        return known.get(diff_id) or self._compress(write, diff_id)

    def _layer_entries(self, layer: Blob, origin: str) -> List[Member]:
        """Return what a layer holds. Its digest says that it is whole; some tools write no end."""
        path = self._decompress(layer.open, origin)
        if not os.path.getsize(path):
            return []
        tar = self._tar(_file_opener(path), path, origin)
        for member in tar:
            if member.type not in UNPACKED:
                raise ImageError(
                    f"{origin} has {member.name!r} in a layer, of the tar type {member.type!r}, which no container"
                    " runtime unpacks; rebuild the image"
                )
        entries = list(_entries(tar))
        _check_end(tar, origin, (ZERO_BLOCK, b""))
        return entries

    def _compress(self, write: Write, diff_id: str) -> Layer:
        path = self._temporary()
        # No name, no time, one level: the same bytes from the same tar.
        with open(path, "wb") as handle, gzip.GzipFile("", "wb", 6, handle, mtime=0) as compressed:
            write(cast(BinaryIO, compressed))
        return Layer(Blob.at(_file_opener(path)), diff_id)

    def _temporary(self) -> str:
        handle, path = tempfile.mkstemp(dir=self.directory)
        os.close(handle)
        return path

    def _tar(self, content: Open, plain: str, origin: str) -> tarfile.TarFile:
        """Return a tar whose files can be read in any order; ``plain`` is its path when it is not compressed."""
        return _Tar.open(self._decompress(content, origin) or plain, "r:")

    def _decompress(self, content: Open, origin: str) -> str:
        """Return the path of the decompressed bytes, empty when they are not compressed."""
        unpack = decompressor(content)
        if unpack is None:
            return ""
        path = self._temporary()
        with content() as packed, open(path, "wb") as plain:
            unpack(packed, plain, origin)
        return path

    def _image(self, files: Files, architecture: str | None, origin: str) -> Image:
        """Return the image for an architecture among saved ones, everything in it verified. Any damage raises."""
        layout = Layout(files, origin)
        parts = layout.parts(architecture)
        config = layout.configuration(parts.config)
        platform = Platform.of(config)
        if architecture and not platform.fits(architecture):
            raise ImageError(f"{origin} names an image for {architecture} that is for {platform.name}; save it again")
        diff_ids = config["rootfs"]["diff_ids"]
        if len(diff_ids) != len(parts.layers):
            raise ImageError(
                f"{origin} is damaged: {len(parts.layers)} layers, and its configuration names {len(diff_ids)}"
            )
        verified = [self._verified(layer, diff_ids[number], origin) for number, layer in enumerate(parts.layers)]
        return Image(parts.name, config, verified, parts.manifest, parts.config)

    def _verified(self, blob: Blob, diff_id: str, origin: str) -> Layer:
        """Return a layer gzip-compressed, its tar of the digest the configuration gives it."""
        plain = self._decompress(blob.open, origin)
        content = _file_opener(plain) if plain else blob.open
        algorithm = diff_id.partition(":")[0]
        if algorithm not in ALGORITHMS or Blob.at(content, algorithm).digest != diff_id:
            raise ImageError(f"{origin} is damaged: its layer {diff_id} has another digest")
        with blob.open() as handle:
            is_gzip = handle.read(2) == b"\x1f\x8b"
        return Layer(blob, diff_id) if is_gzip else self._compress(_copier(content), diff_id)


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
    """Return what copying a file or directory of this machine to a path in the image adds, owned by root."""
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
    """Yield every path below a directory. Raises ImageError for what cannot be read: half a tree is no tree."""

    def stop(error: OSError) -> None:
        raise ImageError(f"{origin} cannot be read completely: {error}; become root to read a root file system")

    for directory, directories, files in os.walk(root, onerror=stop):
        for name in [*directories, *files]:
            yield os.path.join(directory, name)


def _directory_tree(root: str, origin: str) -> Tree:
    """Return a directory as a root file system: it belongs to root, what is in it keeps its owners; no devices."""
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
    _check_end(archive, origin, (ZERO_BLOCK,))
    members.pop("", None)
    return members


def _archived(archive: tarfile.TarFile, members: Members) -> Files:
    """Return the files of a saved image in a tar. Docker made links of layers that are equal."""
    return {
        name: _opener(archive, member)
        for name, member in members.items()
        if member.isreg() or member.issym() or member.islnk()
    }


def _directory_files(root: str, origin: str) -> Files:
    """Return the files of a saved image in a directory."""
    return {os.path.relpath(path, root): _file_opener(path) for path in _walk(root, origin) if os.path.isfile(path)}


def _check_end(archive: tarfile.TarFile, origin: str, ends: Sequence[bytes]) -> None:
    """Raise ImageError where something else than an end follows: tarfile takes a header that it cannot read for one."""
    handle = cast(BinaryIO, archive.fileobj)
    handle.seek(archive.offset)
    first, second = handle.read(tarfile.BLOCKSIZE), handle.read(tarfile.BLOCKSIZE)
    if first not in ends or (len(second) == tarfile.BLOCKSIZE and second != ZERO_BLOCK):
        raise ImageError(f"{origin} is damaged: it breaks off after {len(archive.getmembers())} entries")


def _entries(archive: tarfile.TarFile) -> Iterator[Member]:
    """Yield what a tar holds, in its order."""
    for member in archive:
        mode, uid, gid = member.mode & 0o7777, member.uid, member.gid
        if member.issym():
            yield Member(member.name, Entry(SYMLINK, 0o777, uid, gid, member.linkname))
        elif member.isdir():
            yield Member(member.name, Entry(DIRECTORY, mode, uid, gid))
        elif member.islnk():
            yield Member(member.name, None, member.linkname)
        elif member.isreg():
            content = Content(member.size, _opener(archive, member), (id(archive), member.offset))
            yield Member(member.name, Entry(FILE, mode, uid, gid, content=content, mtime=int(member.mtime)))
        elif member.isdev():
            yield Member(member.name, Entry(DEVICE, mode, uid, gid))


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


def _write_tree(tree: Tree, handle: BinaryIO) -> None:
    """Write a tree as a tar that depends on nothing else: sorted, without times and names of users."""
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
