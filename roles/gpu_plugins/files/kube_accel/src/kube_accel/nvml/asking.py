# SPDX-License-Identifier: Apache-2.0
"""How the worker asks NVML: what fails costs no more than itself and is reported. Part of the worker: few imports.

A function that never returns cannot be given up on here. It is noted for which GPU it was called, where the parent can
read that, and a worker that knows of such a function does not call it for that GPU.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

_T = TypeVar("_T")

Record = dict[str, object]

_TOKEN = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_PROFILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,39}")
_MOST = 2**63 - 1
"""The largest number that every reader can keep."""
_SHOWN = 64
"""Characters of an odd answer."""
_NOTHING = b"\n"


class OddAnswerError(ValueError):
    """NVML said success, and what it answered cannot be used. Says what it was."""


class NotAskedError(Exception):
    """A function that did not return for this GPU is not called for it again."""


def number(value: object, most: int = _MOST, least: int = 0) -> int:
    """Return an integer as NVML should have answered it. Raises OddAnswerError."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise OddAnswerError(f"{_shown(value)} is no number from {least} to {most}")
    return value


def text(value: object) -> str:
    """Return text as NVML should have answered it. Raises OddAnswerError."""
    if not isinstance(value, str) or not value.strip():
        raise OddAnswerError(f"{_shown(value)} is no text")
    return value


def token(value: object) -> str:
    """Return an identifier that may stand in a device's name. Raises OddAnswerError for other answers."""
    if not isinstance(value, str) or _TOKEN.fullmatch(value) is None:
        raise OddAnswerError(f"{_shown(value)} is no identifier")
    return value


def profile(value: object) -> str:
    """Return a MIG profile, which becomes part of a resource's name. Raises OddAnswerError for other answers."""
    if not isinstance(value, str) or _PROFILE.fullmatch(value) is None:
        raise OddAnswerError(f"{_shown(value)} is no profile")
    return value


def cause(error: Exception) -> str:
    """Describe what went wrong."""
    if isinstance(error, UnicodeDecodeError):
        return f"the answer {_shown(error.object)} is not UTF-8"
    if isinstance(error, (OddAnswerError, NotAskedError)) or hasattr(error, "value"):
        return str(error)
    return f"the answer cannot be read: {_shown(error)}"


def _shown(value: object) -> str:
    return repr(value)[:_SHOWN]


class Calls(ModuleType):
    """NVML's functions and constants. A call about a GPU is noted for as long as it lasts."""

    def __init__(self, nvml: ModuleType) -> None:
        super().__init__("nvml")
        self._nvml = nvml
        self.function = ""
        """What was called last."""
        self.gpu: int | None = None
        """The index of the GPU that calls are about, None for calls about the driver."""
        self._note: int | None = None
        self._hung: Collection[tuple[int, str]] = ()

    def watched(self, note: int | None, hung: Iterable[tuple[int, str]]) -> None:
        """Note calls in this file, and do not call these functions for these GPUs."""
        self._note, self._hung = note, {(gpu, function) for gpu, function in hung}

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        found = getattr(self._nvml, name)
        if name.startswith("nvml") and callable(found) and not isinstance(found, type):
            found = partial(self._call, name)
            setattr(self, name, found)
        return found

    def _call(self, name: str, *arguments: object) -> object:
        self.function = name
        if self.gpu is not None and (self.gpu, name) in self._hung:
            raise NotAskedError("it did not return when it was called last")
        function = getattr(self._nvml, name)
        if self.gpu is None or self._note is None:
            return function(*arguments)
        os.pwrite(self._note, b"%d %s %f\n" % (self.gpu, name.encode(), time.monotonic()), 0)
        try:
            return function(*arguments)
        finally:
            os.pwrite(self._note, _NOTHING, 0)


class Attempts:
    """Reads GPUs one by one. Errors are kept by what they are about, whatever their type."""

    def __init__(self, calls: Calls) -> None:
        nvml = self._calls = calls
        self._nvml_error: type[Exception] = nvml.NVMLError
        self.unsupported = (
            nvml.NVML_ERROR_NOT_SUPPORTED,
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            nvml.NVML_ERROR_NO_PERMISSION,
            nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        )
        """Codes of what GPU or driver do not offer."""
        self._of_driver = (
            nvml.NVML_ERROR_UNINITIALIZED,
            nvml.NVML_ERROR_DRIVER_NOT_LOADED,
            nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        )
        self._faults: list[Record] = []
        self._claims: dict[int, Exception] = {}
        self._asked: set[int] = set()

    @contextlib.contextmanager
    def all(self) -> Iterator[None]:
        """Read all GPUs within. Raises NVML's error when every GPU says that it is the driver that fails."""
        self._claims, self._asked = {}, set()
        yield
        if self._asked and self._claims.keys() == self._asked:
            raise next(iter(self._claims.values()))

    @contextlib.contextmanager
    def about(self, gpu: int) -> Iterator[list[Record]]:
        """Read one GPU within, by index; yield the faults that are met, which cost a value each."""
        self._calls.gpu, self._faults = gpu, []
        self._asked.add(gpu)
        try:
            yield self._faults
        finally:
            self._calls.gpu = None

    @contextlib.contextmanager
    def into(self, record: Record) -> Iterator[None]:
        """Store anything that goes wrong within as the record's ``error``."""
        try:
            yield
        except Exception as error:
            record["error"] = self._fault(error)

    def optional(self, read: Callable[[], _T]) -> _T | None:
        """Return what is read; None where this GPU or driver does not offer it, or errs, which is a fault."""
        try:
            return read()
        except Exception as error:
            self.failed(error)
            return None

    def failed(self, error: Exception) -> None:
        """Note that a value could not be read: a fault, unless GPU or driver do not offer it."""
        fault = self._fault(error)
        if fault["code"] not in self.unsupported and fault not in self._faults:
            self._faults.append(fault)

    def _fault(self, error: Exception) -> Record:
        code = getattr(error, "value", None) if isinstance(error, self._nvml_error) else None
        if code in self._of_driver and self._calls.gpu is not None:
            self._claims[self._calls.gpu] = error
        fault: Record = {"code": code, "text": cause(error), "function": self._calls.function}
        return fault | {"hung": True} if isinstance(error, NotAskedError) else fault
