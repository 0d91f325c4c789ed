# SPDX-License-Identifier: Apache-2.0
"""What shared libraries export, and copies that export less; of 64-bit, little-endian machines. Pure.

The format is that of the System V ABI's generic ELF specification, with the hash table that GNU added to it.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from mmap import mmap

_LOAD, _DYNAMIC = 1, 2
_END, _HASH, _STRINGS, _SYMBOLS, _GNU_HASH = 0, 4, 5, 6, 0x6FFFFEF5
_GLOBAL, _WEAK, _UNIQUE = 1, 2, 10
_INFO = 4
"""Where in a symbol its type and binding are: the low and the high half of a byte."""
_SYMBOL = struct.Struct("<IBBHQQ")


@dataclass(frozen=True, slots=True)
class _Tables:
    """Offsets in the file."""

    symbols: int
    count: int
    strings: int


def exports(library: bytes | mmap) -> frozenset[str]:
    """Return the names of functions and variables that a library offers. Raises ValueError if it is none."""
    return frozenset(name for _, name in _exported(library))


def without(library: bytes, names: Collection[str]) -> bytes:
    """Return a copy that does not offer these names: they become local, which loaders pass over.

    Raises ValueError as ``exports`` does.
    """
    copy = bytearray(library)
    for at, name in _exported(library):
        if name in names:
            copy[at + _INFO] &= 0xF
    return bytes(copy)


def _exported(library: bytes | mmap) -> Iterator[tuple[int, str]]:
    try:
        tables = _tables(library)
        for number in range(1, tables.count):
            at = tables.symbols + number * _SYMBOL.size
            name, info, _, section, _, _ = _SYMBOL.unpack_from(library, at)
            if section and info >> 4 in (_GLOBAL, _WEAK, _UNIQUE):
                begin = tables.strings + name
                yield at, library[begin : library.find(b"\0", begin)].decode()
    except (struct.error, IndexError, OverflowError, UnicodeDecodeError) as error:
        raise ValueError(f"is a damaged library: {error}") from error


def _tables(library: bytes | mmap) -> _Tables:
    if library[:6] != b"\x7fELF\x02\x01":
        raise ValueError("is no 64-bit ELF library")
    (headers,) = struct.unpack_from("<Q", library, 32)
    size, count = struct.unpack_from("<HH", library, 54)
    segments = [struct.unpack_from("<IIQQQQ", library, headers + size * number) for number in range(count)]
    loaded: list[tuple[int, int, int]] = [(to, at, length) for kind, _, at, to, _, length in segments if kind == _LOAD]

    def offset_of(address: int) -> int:
        for begin, offset, length in loaded:
            if begin <= address < begin + length:
                return offset + address - begin
        raise ValueError("is a damaged library: an address is in none of its segments")

    entries: dict[int, int] = {}
    for kind, _, offset, _, _, length in segments:
        if kind == _DYNAMIC:
            for at in range(offset, offset + length, 16):
                tag, value = struct.unpack_from("<QQ", library, at)
                if tag == _END:
                    break
                entries.setdefault(tag, value)
    if _SYMBOLS not in entries or _STRINGS not in entries:
        raise ValueError("is no shared library")
    if _HASH in entries:
        (symbols,) = struct.unpack_from("<I", library, offset_of(entries[_HASH]) + 4)
    elif _GNU_HASH in entries:
        symbols = _counted(library, offset_of(entries[_GNU_HASH]))
    else:
        raise ValueError("has no table of its names")
    return _Tables(offset_of(entries[_SYMBOLS]), symbols, offset_of(entries[_STRINGS]))


def _counted(library: bytes | mmap, at: int) -> int:
    """Return how many symbols there are by GNU's table: the chain of its last bucket ends with the last symbol."""
    buckets: int
    first: int
    bloom: int
    buckets, first, bloom, _ = struct.unpack_from("<IIII", library, at)
    begin = at + 16 + 8 * bloom
    last: int = max(struct.unpack_from(f"<{buckets}I", library, begin), default=0)
    if last < first:
        return first
    chains = begin + 4 * buckets
    while not struct.unpack_from("<I", library, chains + 4 * (last - first))[0] & 1:
        last += 1
    return last + 1
