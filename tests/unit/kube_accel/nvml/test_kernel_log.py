# SPDX-License-Identifier: Apache-2.0
"""XIDs in the kernel's log: found in what the kernel wrote and in nothing else, through rotations, each once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.nvml.kernel_log import KernelLog, KernelXid, Sightings, parse

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
FOUND = KernelXid("0000:3b:00", 79)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (f"4,1234,5678901,-;{XID}", FOUND),
        (f"Nov 21 18:29:19 node-1 kernel: {XID}", FOUND),
        (f"Nov 21 18:29:19 node-1 kernel: [   12.345678] {XID}", FOUND),
        (f"Nov  1 18:29:19 node-1 kernel: {XID}", FOUND),
        (f"2026-11-21T18:29:19.123456+00:00 node-1 kernel: {XID}", FOUND),
        (f"2026-11-21T18:29:19Z node-1 kernel: [    1.000000] {XID}", FOUND),
        ("4,1,2,-;NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, Contained", KernelXid("0000:3b:00", 94)),
        ("4,1,2,-;NVRM: Xid (0000:3B:00): 31, Ch 00000003", KernelXid("0000:3b:00", 31)),
        ("4,1,2,-;NVRM: Xid (PCI:00000001:3b:00.0): 31", KernelXid("0001:3b:00", 31)),
        (f"12,1234,5678901,-;{XID}", None),  # a process wrote to /dev/kmsg
        (f"Nov 21 18:29:19 node-1 evil[77]: {XID}", None),
        (f"4,1,2,-;nvidia-smi: {XID}", None),
        (f"Nov 21 18:29:19 node-1 evil[77]: x; kernel: {XID}", None),
        (f"Nov 21 18:29:19 node-1 evil[77]: kernel: {XID}", None),
        (f"2026-11-21T18:29:19Z node-1 evil[77]: x kernel: {XID}", None),
        (f'Nov 21 18:29:19 node-1 kubelet[7]: I1121 prober.go:107] "Probe failed" output="x kernel: {XID}"', None),
        (f"x kernel: {XID}", None),
        ("4,1,2,-;NVRM: GPU at PCI:0000:3b:00: GPU-77", None),
        ("4,1,2,-;NVRM: Xid (PCI:0000:3b:00): many", None),
        (" SUBSYSTEM=pci", None),
        ("", None),
    ],
)
def test_parse(line: str, found: KernelXid | None) -> None:
    assert parse(line.encode()) == found


@given(st.binary(max_size=300))
def test_no_line_breaks_it(line: bytes) -> None:
    parse(line)
    parse(b"4,1,2,-;NVRM: Xid (PCI:" + line)


def line(xid: int) -> str:
    return f"Nov 21 18:29:19 node kernel: NVRM: Xid (PCI:0000:3b:00): {xid}, text\n"


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def numbers(log: KernelLog) -> list[int]:
    return [xid.number for xid in log.read()]


def test_follows_from_the_end_and_through_rotation(tmp_path: Path) -> None:
    path = tmp_path / "messages"
    append(path, line(1))
    log = KernelLog([tmp_path / "absent", path])
    assert log.open()
    assert numbers(log) == []
    append(path, line(2) + line(3)[:20])
    assert numbers(log) == [2]
    append(path, line(3)[20:])
    assert numbers(log) == [3]
    append(path, line(4))
    path.rename(tmp_path / "messages.1")
    append(path, line(5))
    assert numbers(log) == [4, 5]
    os.truncate(path, 0)
    assert numbers(log) == []
    append(path, line(6)[:40])
    append(path, line(6)[40:])
    assert numbers(log) == [6]
    log.close()


def test_a_log_that_comes_late_is_found(tmp_path: Path) -> None:
    path = tmp_path / "messages"
    log = KernelLog([path])
    assert not log.open()
    assert numbers(log) == []
    path.touch()
    assert numbers(log) == []
    append(path, line(7))
    assert numbers(log) == [7]
    log.close()


def test_no_log_is_no_news() -> None:
    log = KernelLog([])
    assert not log.open()
    assert log.read() == []


def test_a_line_without_an_end_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "messages"
    path.touch()
    log = KernelLog([path])
    log.open()
    append(path, "x" * (3 << 20))
    while log.read():
        pass
    append(path, "\n" + line(8))
    seen: list[int] = []
    for _ in range(5):
        seen += numbers(log)
    assert seen == [8]
    log.close()


def test_each_xid_is_news_once() -> None:
    sightings = Sightings()
    assert sightings.first("gpu", 48, "NVML", 100.0)
    assert sightings.first("gpu", 48, "NVML", 101.0)  # it happened twice
    assert not sightings.first("gpu", 48, "log", 102.0)
    assert not sightings.first("gpu", 48, "log", 102.0)
    assert sightings.first("gpu", 48, "log", 102.0)  # and a third time, which the log tells first
    assert not sightings.first("gpu", 48, "NVML", 103.0)
    assert sightings.first("gpu", 79, "log", 104.0)
    assert sightings.first("other", 79, "NVML", 104.0)
    assert sightings.first("gpu", 79, "NVML", 200.0)  # too late to be the same
