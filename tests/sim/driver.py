# SPDX-License-Identifier: Apache-2.0
"""The simulated driver's libraries in a directory, as an installer leaves them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from sim import cuda, nvml

STEMS = ("libcuda", "libnvidia-ml")


def installed(directory: Path) -> list[Path]:
    """Whatever is there of any version, links included."""
    return [path for stem in STEMS for path in directory.glob(f"{stem}.so*")]


def install(directory: Path, version: str) -> None:
    """``libcuda.so.<version>`` and NVML's with the links to them; nothing of another version is left."""
    directory.mkdir(parents=True, exist_ok=True)
    old = set(installed(directory))
    with tempfile.TemporaryDirectory(dir=directory) as work:
        for library in (nvml.build(Path(work)), cuda.build(Path(work))):
            stem = library.name.removesuffix(".1")
            names = (f"{stem}.{version}", f"{stem}.1", stem)
            library.replace(directory / names[0])
            for link, leads_to in zip(names[1:], names, strict=False):
                (directory / link).unlink(missing_ok=True)
                (directory / link).symlink_to(leads_to)
            old -= {directory / name for name in names}
    for path in old:
        path.unlink()
