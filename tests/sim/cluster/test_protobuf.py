# SPDX-License-Identifier: Apache-2.0
"""What ``kubectl create`` sends as protobuf is the object that it means, or is refused."""

from __future__ import annotations

import pytest

from sim.cluster import protobuf


def field(number: int, value: bytes) -> bytes:
    assert len(value) < 128
    return bytes([number * 8 + 2, len(value)]) + value


def sent(kind: str, raw: bytes) -> bytes:
    return b"k8s\0" + field(1, field(1, b"v1") + field(2, kind.encode())) + field(2, raw) + field(3, b"")


NAME = field(1, field(1, b"team-a") + field(2, b"") + field(11, field(1, b"team") + field(2, b"a")))


def test_a_namespace_has_its_name_and_labels() -> None:
    assert protobuf.decode(sent("Namespace", NAME + field(2, b"") + field(3, b"\x08\x01"))) == {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "team-a", "labels": {"team": "a"}},
    }


def test_a_config_map_has_its_texts() -> None:
    pairs = [field(2, field(1, key) + field(2, value)) for key, value in ((b"a", b'{"cores": 60}'), (b"b", b""))]
    assert protobuf.decode(sent("ConfigMap", NAME + b"".join(pairs)))["data"] == {"a": '{"cores": 60}', "b": ""}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"{}", "does not begin"),
        (sent("Pod", NAME), "kind Pod is not simulated"),
        (sent("Namespace", NAME)[:-8], "ends within"),
        (b"k8s\0\x0d", "of type 5"),
    ],
    ids=["json", "kind", "short", "type"],
)
def test_what_is_not_known_is_refused(body: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        protobuf.decode(body)
