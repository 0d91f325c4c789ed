# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading of what gzip, zstd, xz or bzip2 packed."""

from __future__ import annotations

import bz2
import lzma
import re
import shutil
import subprocess
import tempfile
import zlib
from importlib import import_module
from typing import Any, BinaryIO, Callable, Dict, Tuple, Type, cast

from ansible_collections.accel.kubernetes.plugins.module_utils.oci.image import (
    CHUNK,
    ImageError,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.oci.layout import (
    Open,
)

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
"""Begins a frame of zstd that holds no data."""
_DECOMPRESSORS: Dict[bytes, Callable[[BinaryIO], Any]] = {b"\xfd7": lzma.open, b"BZ": bz2.open}
"""Docker reads such layers, and containerd does not: an image that is made has all its layers packed by gzip."""


def decompressor(content: Open) -> Callable[[BinaryIO, BinaryIO, str], None] | None:
    """Return what writes from a packed file to a plain one, None where the content is not compressed.

    It is also given the origin, for messages, and raises ImageError.
    """
    with content() as handle:
        magic = handle.read(4)
    if is_zstd(magic):
        return unpack_zstd
    if magic[:2] == _GZIP:
        return _unpack_gzip
    if magic[:2] not in _DECOMPRESSORS:
        return None
    opens = _DECOMPRESSORS[magic[:2]]

    def unpack(source: BinaryIO, plain: BinaryIO, origin: str) -> None:
        del origin
        with opens(source) as read:
            shutil.copyfileobj(read, plain, CHUNK)

    return unpack


def is_zstd(magic: bytes) -> bool:
    """Return whether a file with these first four bytes is packed by zstd, which Python reads from 3.14 on."""
    return magic == _ZSTD or bool(_SKIPPABLE.fullmatch(magic))


def _unpack_gzip(source: BinaryIO, plain: BinaryIO, origin: str) -> None:
    """Write what gzip packed, its members one after the other; containerd refuses what follows them, zeros too."""
    member, data = zlib.decompressobj(31), source.read(CHUNK)
    while data:
        plain.write(member.decompress(data))
        data = member.unused_data if member.eof else b""
        data += source.read(CHUNK)
        if member.eof and data and not data.startswith(_GZIP):
            raise ImageError(
                f"{origin} has data after the end of what gzip packed, which containerd refuses; pack it again"
            )
        if member.eof and data:
            member = zlib.decompressobj(31)
    if not member.eof:
        raise EOFError("it breaks off before the end of what gzip packed")


def unpack_zstd(source: BinaryIO, plain: BinaryIO, origin: str) -> None:
    """Write what zstd packed, by Python's own module, the library zstandard or the program zstd."""
    found = _zstd_reader(source)
    if found is not None:
        reader, damage = found
        try:
            with reader:
                shutil.copyfileobj(reader, plain, CHUNK)
        except damage as error:
            raise EOFError(f"zstd: {error}") from error
        return
    program = shutil.which("zstd")
    if program is None:
        raise ImageError(
            f"{origin} is compressed with zstd, which cannot be read here; install the program zstd, or use gzip or xz"
        )
    with tempfile.TemporaryFile() as packed:
        shutil.copyfileobj(source, packed, CHUNK)
        packed.seek(0)
        done = subprocess.run([program, "-dcq"], stdin=packed, stdout=plain, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        raise EOFError(f"zstd: {done.stderr.decode(errors='replace').strip()}")


def _zstd_reader(source: BinaryIO) -> Tuple[BinaryIO, Type[Exception]] | None:
    """Return what reads all frames, and what it raises for damage; None where Python cannot read zstd."""
    try:
        module = import_module("compression.zstd")
        return cast(BinaryIO, module.open(source)), module.ZstdError
    except ImportError:
        pass
    try:
        module = import_module("zstandard")
    except ImportError:
        return None
    return cast(BinaryIO, module.ZstdDecompressor().stream_reader(source, read_across_frames=True)), module.ZstdError
