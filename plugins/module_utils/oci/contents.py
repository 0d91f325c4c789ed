# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of files in an image's layers, of which nothing is unpacked onto the disk but what zstd packed."""

from __future__ import annotations

import os
import tarfile
import tempfile
from typing import BinaryIO, Callable, Iterator, List, Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.oci.compression import is_zstd, unpack_zstd
from ansible_collections.accel.kubernetes.plugins.module_utils.oci.image import ImageError
from ansible_collections.accel.kubernetes.plugins.module_utils.oci.registry import Registry, StoredLayer
from ansible_collections.accel.kubernetes.plugins.module_utils.oci.store import DAMAGED

MOST_UNPACKED = 32 << 30
MOST_FILES = 2_000_000
"""Bytes and files of a layer, above which it was made to keep its reader busy."""


def names_in_layers(
    registry: Registry, layers: Sequence[StoredLayer], most: int, tells: Callable[[str], bool]
) -> List[str]:
    """Return names of files that tell something: of the last layer with such names, after ``most`` bytes of none.

    A layer that is larger than what is left of ``most`` is left out. Raises RegistryError if a layer cannot be had,
    and ImageError if it cannot be read.
    """
    left = most
    for layer in reversed(layers):
        if layer.size > left:
            continue
        left -= layer.size
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "layer")
            with open(path, "wb") as handle:
                registry.save(layer, handle)
            origin = f"layer {layer.digest} of {registry.reference}"
            names = [name for name in names_in_layer(path, origin) if tells(name)]
        if names:
            return names
    return []


def names_in_layer(path: str, origin: str) -> Iterator[str]:
    """Yield the path of each file in a layer, without a slash before it. Raises ImageError."""
    try:
        with _readable(path, origin) as handle, tarfile.open(fileobj=handle, mode="r|*") as archive:
            for count, member in enumerate(archive):
                if count >= MOST_FILES or member.offset_data + member.size > MOST_UNPACKED:
                    raise ImageError(
                        f"{origin} is larger than {MOST_UNPACKED >> 30} GiB or {MOST_FILES} files; name the program's "
                        "CUDA instead"
                    )
                yield member.name
    except DAMAGED as error:
        raise ImageError(f"{origin} cannot be read: {error}") from error


def _readable(path: str, origin: str) -> BinaryIO:
    """Open what tarfile reads in one pass: the layer, or beside one that zstd packed what was in it."""
    with open(path, "rb") as packed:
        if not is_zstd(packed.read(4)):
            return open(path, "rb")
        packed.seek(0)
        with open(f"{path}.tar", "wb") as plain:
            unpack_zstd(packed, plain, origin)
    return open(f"{path}.tar", "rb")
