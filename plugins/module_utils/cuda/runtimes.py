# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The CUDA runtime a program brings, by names of files and packages and by what an image's history says. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterable, Iterator, Sequence, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.cuda.tables import Version

_SEPARATED = r"[-=_ :@~>]+"
"""Stands between a package and its version: in files of packages, requirements and lists."""
_PATTERNS: Sequence[re.Pattern[str]] = tuple(
    re.compile(pattern, re.IGNORECASE | re.ASCII)
    for pattern in (
        r"\blibcudart(?:-[0-9a-f]{4,64})?\.so\.(?P<library>\d{1,3}(?:\.\d{1,4}){0,3})\b",
        rf"\bnvidia[-_.]cuda[-_.]runtime(?:[-_.]cu\d\d)?{_SEPARATED}(?P<pip>\d{{1,3}}\.\d{{1,4}})\b",
        rf"(?<![\w-])(?:cudatoolkit|cuda-cudart|cuda-runtime|cuda-version){_SEPARATED}(?P<conda>\d{{1,3}}\.\d{{1,4}})\b",
        r"(?<![\w-])cuda-(?:cudart|runtime)-(?P<system>\d{1,3}-\d{1,2})(?![\w])",
        r"\bpytorch-[\w.]+-py[\d.]+_cuda(?P<build>\d{1,3}\.\d{1,2})(?!\d)",
        r"\+cu(?:da)?(?P<wheel>\d{2,3})(?!\d)",
        r"(?<![\w.-])/?usr/local/cuda-(?P<directory>\d{1,3}\.\d{1,2})(?=/|$)",
        r"\bCUDA_VERSION=\"?(?P<variable>\d{1,3}\.\d{1,4})\b",
        r"\bNV_CUDA_CUDART_VERSION=\"?(?P<cudart>\d{1,3}\.\d{1,4})\b",
    )
)
"""Names, each with the part that is the version. A version there is one with a minor, but of a library and a wheel."""

_TAG = re.compile(r"(?:(?<=[-_.])|^)cu(?:da)?-?(?:(\d{1,3}\.\d{1,2})|(\d{3}))(?!\d)", re.IGNORECASE | re.ASCII)
_CUDA_REPOSITORY = re.compile(r"(?:^|/)cuda$")
_SONAMES_WITH_MINOR = 10
"""The last major whose library's SONAME has a minor that is its own: 11.0 is the SONAME of every 11.x."""
_LAST_OF_TWO_DIGITS = 49
"""Above it are a major and a minor of one digit each, as 92; up to it is a major."""


@dataclass(frozen=True)
class Runtime:
    """A CUDA runtime, and the name by which it is known; both empty where none is."""

    version: Version = ()
    """Of one number where the minor is not known."""
    name: str = ""


def runtime_of_names(names: Iterable[str]) -> Runtime:
    """Return the newest runtime that names of files and packages, or words of a history, speak of."""
    return max((found for name in names for found in _spoken_of(name)), key=_rank, default=Runtime())


def runtime_of_reference(reference: str) -> Runtime:
    """Return the runtime that an image's tag names, as ``2.3.0-cuda12.1-cudnn8-runtime`` does."""
    repository, _colon, tag = reference.partition("@")[0].rpartition(":")
    if "/" in tag:
        return Runtime()
    match = _TAG.search(tag)
    if match is None and _CUDA_REPOSITORY.search(repository):
        match = re.match(r"(\d{1,3}\.\d{1,4})()", tag)
    if match is None:
        return Runtime()
    version = _joined(match[2]) if match[2] else _numbers(match[1])
    return Runtime(version, f"tag {tag}") if version else Runtime()


def newest(runtimes: Iterable[Runtime]) -> Runtime:
    """Return the newest of some runtimes, the first of those that agree."""
    return max(runtimes, key=_rank, default=Runtime())


def _spoken_of(name: str) -> Iterator[Runtime]:
    for pattern in _PATTERNS:
        for match in pattern.finditer(name):
            kind = match.lastgroup or ""
            version = _joined(match[kind]) if kind == "wheel" else _numbers(match[kind].replace("-", "."))
            if kind == "library" and len(version) == 2 and version[0] > _SONAMES_WITH_MINOR:
                version = version[:1]
            if version:
                yield Runtime(version, match[0])


def _joined(digits: str) -> Version:
    """Return what ``cu121`` and ``cu92`` mean; of ``cu12`` and ``cuda12`` the major alone."""
    first = int(digits[:2])
    if len(digits) > 2:
        return first, int(digits[2:])
    return (first // 10, first % 10) if first > _LAST_OF_TWO_DIGITS else (first,)


def _numbers(text: str) -> Version:
    return tuple(int(part) for part in text.split("."))


def _rank(runtime: Runtime) -> Tuple[Version, int]:
    """Order by the version that decides; where it is the same, the one that says more."""
    return runtime.version[:2], len(runtime.version)
