# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' protobuf of the objects that ``kubectl create`` sends so: Namespaces, and ConfigMaps of text."""

from __future__ import annotations

from collections.abc import Iterator

from sim.cluster.kinds import Object, bad_request

MEDIA = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\0"
_METADATA = {1: "name", 2: "generateName", 3: "namespace"}
_MAPS = {11: "labels", 12: "annotations"}


def parse(data: bytes) -> Object:
    """Return the object. Raises ApiError 400 where ``decode`` refuses it."""
    try:
        return decode(data)
    except ValueError as error:
        raise bad_request(str(error)) from error


def decode(data: bytes) -> Object:
    """Return the object. Raises ValueError for one of another kind, and for bytes that are none."""
    if not data.startswith(_MAGIC):
        raise ValueError("the body does not begin as protobuf of Kubernetes does")
    envelope = dict(_fields(data[len(_MAGIC) :]))
    about = dict(_fields(envelope.get(1, b"")))
    made: Object = {"apiVersion": about.get(1, b"").decode(), "kind": about.get(2, b"").decode(), "metadata": {}}
    if made["kind"] not in ("Namespace", "ConfigMap"):
        raise ValueError(f"protobuf of kind {made['kind']} is not simulated")
    for number, value in _fields(envelope.get(2, b"")):
        if number == 1:
            made["metadata"] = _metadata(value)
        elif number == 2 and made["kind"] == "ConfigMap":
            made.setdefault("data", {}).update(_entry(value))
    return made


def _metadata(data: bytes) -> Object:
    made: Object = {}
    for number, value in _fields(data):
        if number in _METADATA and value:
            made[_METADATA[number]] = value.decode()
        elif number in _MAPS:
            made.setdefault(_MAPS[number], {}).update(_entry(value))
    return made


def _entry(data: bytes) -> dict[str, str]:
    pair = dict(_fields(data))
    return {pair.get(1, b"").decode(): pair.get(2, b"").decode()}


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the fields that have a length, by number; numbers are left out. Raises ValueError."""
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while place < len(data):
            byte = data[place]
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
        raise ValueError("the body ends within a number")

    while place < len(data):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            varint()
        elif kind == 2:
            length = varint()
            if place + length > len(data):
                raise ValueError("the body ends within a field")
            yield number, data[place : place + length]
            place += length
        else:
            raise ValueError(f"the body has a field of type {kind}")
