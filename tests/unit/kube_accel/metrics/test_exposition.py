# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from kube_accel.metrics.exposition import Family, Kind, Writer, labels_text, number

USED = Family("accel_used_bytes", Kind.GAUGE, "Used.", ("node", "pod"))
UP = Family("accel_up", Kind.GAUGE, "Up.")


def test_a_page_is_prometheus_text() -> None:
    page = Writer().page([(USED, {("n", "a"): 2**40, ("n", "b"): 0.25}), (UP, {(): 1})])
    assert page.decode() == (
        "# HELP accel_used_bytes Used.\n"
        "# TYPE accel_used_bytes gauge\n"
        'accel_used_bytes{node="n",pod="a"} 1099511627776\n'
        'accel_used_bytes{node="n",pod="b"} 0.25\n'
        "# HELP accel_up Up.\n"
        "# TYPE accel_up gauge\n"
        "accel_up 1\n"
    )


def test_a_family_that_nothing_is_known_of_is_left_out() -> None:
    assert Writer().page([(USED, {})]) == b""


def test_label_values_are_escaped() -> None:
    assert labels_text([("a", 'x"y\\z\n')]) == '{a="x\\"y\\\\z\\n"}'
    assert labels_text([]) == ""


def test_numbers_keep_their_digits() -> None:
    assert [number(value) for value in (0, 1.0, 2**53 - 1, 0.1, 1e300, True)] == [
        "0",
        "1",
        "9007199254740991",
        "0.1",
        "1e+300",
        "1",
    ]


def test_label_strings_of_series_that_ended_are_forgotten() -> None:
    writer = Writer()
    for pod in range(100):
        page = writer.page([(USED, {("n", str(pod)): 1})])
        assert f'pod="{pod}"'.encode() in page
    assert len(writer._known) == 1
