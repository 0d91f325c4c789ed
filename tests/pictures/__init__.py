# SPDX-License-Identifier: Apache-2.0
"""The README's pictures, of made-up clusters: ``make pictures`` makes them anew, a test says when they are old.

The report's is a photograph of its page, and carries what the page was, so that its age can be told without a browser.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
import zlib
from fractions import Fraction
from pathlib import Path

import unit.plugins.conftest  # noqa: F401  Makes the checkout a collection, for the imports that follow.

# isort: split
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.accounting import usage
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.counters import window
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.html import page
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.pages import Place
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.sizing import Holding, oversized
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.text import Report

from demo.allocation import GpuRow, Slice
from demo.picture import picture
from unit.plugins.usage_data import GIB, H100, T4, Node, Scrapes, share

IMAGES = Path(__file__).parents[2] / "docs" / "images"
REPORTS = {"report.png": False, "report-dark.png": True}
"""Photographs of the report, and whether each has the dark theme."""
SIZE = (1000, 1335)
"""The size of the photograph, in pixels."""
_HOUR = 3600
_START = 1_793_577_600
"""2026-11-02, midnight."""
_MARK = b"made of"


def allocation() -> str:
    """Who has what of four unlike nodes, one GPU of which is lost."""
    whole, shares = H100.memory_bytes, [("small-1", 30, 8), ("small-2", 30, 8), ("small-3", 30, 8)]
    held: dict[tuple[str, int], list[Slice]] = {
        ("gpu-a", 0): [Slice("default/one-gpu", 100, whole)],
        **{("gpu-a", index): [Slice("research/two-gpus", 100, whole)] for index in (1, 2)},
        ("gpu-b", 0): [Slice(f"team-a/{name}", cores, gib * GIB) for name, cores, gib in shares],
        ("gpu-b", 1): [Slice(f"team-b/half-{number}", 50, 16 * GIB) for number in (1, 2)],
        ("gpu-b", 2): [Slice("default/large", 100, whole)],
        ("gpu-c", 0): [Slice("team-a/mps-1", 30, 4 * GIB), Slice("team-b/mps-2", 50, 8 * GIB)],
        ("gpu-d", 0): [Slice("team-a/cgpu-1", 0, 4 * GIB), Slice("team-b/cgpu-2", 0, 6 * GIB)],
    }
    nodes = [("gpu-a", "pgpu", H100, 4), ("gpu-b", "vgpu", H100, 4), ("gpu-c", "mps", T4, 1), ("gpu-d", "cgpu", T4, 1)]
    rows = []
    for name, mode, model, count in nodes:
        for index in range(count):
            lost = (name, index) == ("gpu-a", 3)
            health = ("unhealthy", "GPU is lost") if lost else ("healthy", "")
            card = (name, mode, index, model.name, model.memory_bytes)
            rows.append(GpuRow(*card, *health, tuple(held.get((name, index), ()))))
    return picture(rows)


def report() -> str:
    """The page of a week of two nodes of four H100 and one of a T4, of which four namespaces have some."""
    cards = {name: {f"{name}-{index}": H100 for index in range(4)} for name in ("a", "b")}
    whole = Node("gpu-a", cards["a"], "pgpu")
    parts, small = Node("gpu-b", cards["b"], "vgpu"), Node("gpu-c", {"t": T4}, "cgpu")
    nodes, scrapes = (whole, parts, small), Scrapes()
    for hour in range(7 * 24 + 1):
        now = float(_START + hour * _HOUR)
        if hour % 24 == 0:
            day = hour // 24
            training = [
                share(f"a-{index}", "research", "train", 1.0) for index in range((2, 4, 4, 3, 3, 1, 1)[day % 7])
            ]
            service = [share(f"b-{index}", "vision", f"serve-{index}", 0.5, 32 * GIB) for index in range(2 + day % 3)]
            notebooks = [share("b-0", "teaching", f"notebook-{n}", 0.25, 16 * GIB) for n in range(2 if day < 5 else 1)]
            whole.at(now, *training)
            parts.at(now, *service, *notebooks)
            small.at(now, share("t", "staging", "smoke", 0.5, 8 * GIB))
        for node, namespace, seconds in ((whole, "research", 6100), (parts, "vision", 1500), (parts, "teaching", 110)):
            if hour and hour % 24:
                node.busy(namespace, seconds)
        scrapes.take(now, nodes)
    found = usage(scrapes.pages(), window(_START, _START + 7 * 24 * _HOUR))
    peaks = [("teaching", "notebook-0", 16, 1.5), ("teaching", "notebook-1", 16, 0), ("vision", "serve-3", 32, 6)]
    held = [
        Holding(Place("gpu-b", "b-0", namespace, pod, "main", "vgpu"), asked * GIB, peak * GIB, 5 * 24 * _HOUR, False)
        for namespace, pod, asked, peak in peaks
    ]
    prices = {H100.name: Fraction("2.5"), T4.name: Fraction("0.35")}
    sized, unknown = oversized(held, 0.3, _HOUR)
    known = {("staging", "cgpu"): 0.0}
    return page(
        Report(found, "Prometheus", "allocated", prices, "EUR", known, tuple(sized), unknown, problems=found.problems)
    )


def browser() -> str | None:
    """A Chromium without a window; None where there is none."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    return next((found for found in map(shutil.which, names) if found is not None), None)


def photograph(html: str, image: Path, *, dark: bool = False) -> None:
    """The page as a browser shows it by day, or at night. Raises where there is no browser, or it fails."""
    program = browser()
    if program is None:
        raise FileNotFoundError("no Chromium on PATH")
    with tempfile.TemporaryDirectory() as directory:
        source, made = Path(directory, "page.html"), Path(directory, "page.png")
        source.write_text(html)
        size = f"--window-size={SIZE[0]},{SIZE[1]}"
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            f"--user-data-dir={directory}/profile",
        ]
        command = [program, *flags, size, f"--screenshot={made}", source.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120, env=os.environ | {"HOME": directory})
        image.write_bytes(marked(made.read_bytes(), html))


def marked(png: bytes, html: str) -> bytes:
    """The picture with the page's checksum in a text of it, before the end."""
    body = _MARK + b"\0" + hashlib.sha256(html.encode()).hexdigest().encode()
    chunk = struct.pack(">I", len(body)) + b"tEXt" + body + struct.pack(">I", zlib.crc32(b"tEXt" + body))
    return png[:-12] + chunk + png[-12:]


def is_of(png: bytes, html: str) -> bool:
    """Whether a picture was made of this page."""
    return _MARK + b"\0" + hashlib.sha256(html.encode()).hexdigest().encode() in png
