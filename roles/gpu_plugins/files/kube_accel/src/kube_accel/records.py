# SPDX-License-Identifier: Apache-2.0
"""Data classes that are made in a third of the time: a daemon makes over a hundred before it can serve. Pure.

The standard library compiles each method of each class when it is loaded. Here one method of a class is compiled,
``__init__``. The others are closures over the names of the fields, and as fast.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final


class _Later(ModuleType):
    """A module that is loaded when something of it is used."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


if "inspect" not in sys.modules:
    # Asked for the signature of classes without a docstring alone, it loads the parser of Python's source.
    sys.modules["inspect"] = _Later("inspect")
import dataclasses  # noqa: E402
from dataclasses import asdict, field, replace  # noqa: E402

if isinstance(sys.modules["inspect"], _Later):
    del sys.modules["inspect"]

__all__ = ["asdict", "dataclass", "field", "replace"]

_OWN: Final = frozenset(
    ("__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__", "__getstate__", "__setstate__")
)
"""Methods of which a class may have its own; then it is the standard library's in all respects."""
_set: Final = object.__setattr__
_delete: Final = object.__delattr__

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, **options: Any) -> Any:  # noqa: ANN401
        """Do what ``dataclasses.dataclass`` does.

        The standard library makes what is unusual: classes that inherit fields, have an order, or have fields that are
        not like the others.
        """
        if cls is None:
            return lambda each: dataclass(each, **options)
        if not _is_usual(cls, options):
            return dataclasses.dataclass(**options)(cls)
        frozen, slots = options.get("frozen", False), options.get("slots", False)
        made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
        fields = dataclasses.fields(made)
        names = tuple(each.name for each in fields)
        _add(made, _init(made, fields, frozen))
        _add(made, *_reading(names))
        if frozen:
            made.__dataclass_params__.frozen = True
            _add(made, *_freezing(made, frozenset(names)))
        if frozen and slots:
            _add(made, *_copying(names))
        if not frozen:
            made.__hash__ = None
        return made


def _is_usual(cls: type, options: dict[str, Any]) -> bool:
    annotations = cls.__dict__.get("__annotations__", {})  # noqa: RUF063 - inspect takes long to load
    odd = [value for value in cls.__dict__.values() if isinstance(value, dataclasses.Field) and not _is_plain(value)]
    inherits = any(hasattr(base, "__dataclass_fields__") for base in cls.__mro__[1:])
    special = any("ClassVar" in str(kind) or "InitVar" in str(kind) for kind in annotations.values())
    return (
        bool(annotations)
        and options.keys() <= {"frozen", "slots"}
        and not (odd or inherits or special or _OWN & cls.__dict__.keys())
    )


def _is_plain(value: dataclasses.Field[Any]) -> bool:
    return value.init and value.repr and value.compare and value.hash is None and value.kw_only is not True


def _init(cls: type, fields: tuple[dataclasses.Field[Any], ...], frozen: bool) -> Callable[..., Any]:
    known: dict[str, Any] = {"__set": _set, "__absent": dataclasses.MISSING}
    heads, lines = ["self"], []
    for each in fields:
        name = value = each.name
        if each.default is not dataclasses.MISSING:
            known[f"__default_{name}"] = each.default
            heads.append(f"{name}=__default_{name}")
        elif each.default_factory is not dataclasses.MISSING:
            known[f"__make_{name}"] = each.default_factory
            heads.append(f"{name}=__absent")
            value = f"__make_{name}() if {name} is __absent else {name}"
        else:
            heads.append(name)
        lines.append(f" __set(self, {name!r}, {value})" if frozen else f" self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    exec(f"def __init__({', '.join(heads)}):\n" + "\n".join(lines), known)  # noqa: S102 - names of fields alone
    init: Callable[..., Any] = known["__init__"]
    init.__annotations__ = {each.name: each.type for each in fields} | {"return": None}
    return init


def _reading(names: tuple[str, ...]) -> tuple[Callable[..., Any], ...]:
    values = attrgetter(*names)

    def __eq__(self: object, other: object) -> bool:  # noqa: N807
        if other.__class__ is not self.__class__:
            return NotImplemented
        return self is other or bool(values(self) == values(other))

    def __hash__(self: object) -> int:  # noqa: N807
        return hash(values(self))

    def __repr__(self: object) -> str:  # noqa: N807
        told = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({told})"

    return __eq__, __hash__, __repr__


def _freezing(cls: type, names: frozenset[str]) -> tuple[Callable[..., Any], ...]:
    def __setattr__(self: object, name: str, value: object) -> None:  # noqa: N807
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        _set(self, name, value)

    def __delattr__(self: object, name: str) -> None:  # noqa: N807
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        _delete(self, name)

    return __setattr__, __delattr__


def _copying(names: tuple[str, ...]) -> tuple[Callable[..., Any], ...]:
    def __getstate__(self: object) -> list[Any]:  # noqa: N807
        return [getattr(self, name) for name in names]

    def __setstate__(self: object, state: list[Any]) -> None:  # noqa: N807
        for name, value in zip(names, state, strict=True):
            _set(self, name, value)

    return __getstate__, __setstate__


def _add(cls: type, *methods: Callable[..., Any]) -> None:
    for method in methods:
        method.__qualname__ = f"{cls.__qualname__}.{method.__name__}"
        setattr(cls, method.__name__, method)
