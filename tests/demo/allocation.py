# SPDX-License-Identifier: Apache-2.0
"""Who holds which GPU: read from what the nodes' plugins publish, shown as a table and as a picture."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

ANNOTATION = "kube-accel.io/inventory"


@dataclass(frozen=True)
class GpuRow:
    """One GPU of one node, and the pod that holds it."""

    node: str
    index: int
    model: str
    health: str
    reason: str
    holder: str
    """``namespace/pod``, or empty."""


def rows(nodes: Iterable[Mapping[str, Any]]) -> list[GpuRow]:
    """The GPUs of every node object that carries an inventory annotation, by node and index.

    Raises ValueError when an annotation has a version this reader does not know.
    """
    found = []
    for node in nodes:
        metadata = node["metadata"]
        text = (metadata.get("annotations") or {}).get(ANNOTATION)
        if text is None:
            continue
        inventory = json.loads(text)
        if inventory["version"] != 1:
            raise ValueError(f"node {metadata['name']}: inventory version {inventory['version']} is not 1")
        for gpu in inventory["gpus"]:
            # Absent when kubelet has not told who holds what.
            holders = [f"{held['namespace']}/{held['pod']}" for held in gpu["held"]] if "held" in gpu else ["unknown"]
            found.append(
                GpuRow(
                    node=metadata["name"],
                    index=gpu["index"],
                    model=gpu["model"],
                    health=gpu["health"],
                    reason=gpu.get("reason", ""),
                    holder=", ".join(holders),
                )
            )
    return sorted(found, key=lambda row: (row.node, row.index))


def table(gpus: Sequence[GpuRow]) -> str:
    """The rows as aligned text."""
    lines = [("NODE", "GPU", "MODEL", "HEALTH", "POD")]
    for gpu in gpus:
        health = f"{gpu.health}: {gpu.reason}" if gpu.reason else gpu.health
        lines.append((gpu.node, str(gpu.index), gpu.model, health, gpu.holder or "-"))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


COLUMNS = 8
CELL, GAP, LABEL, HEAD = 96, 8, 184, 56
PALETTE = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d", "#eeca3b")
FREE, BAD = "#e8eaed", "#c5221f"


def picture(gpus: Sequence[GpuRow]) -> str:
    """The rows as an SVG document: a line of boxes a node, a colour a pod, a red frame round an unhealthy GPU."""
    nodes = list(dict.fromkeys(gpu.node for gpu in gpus))
    holders = list(dict.fromkeys(gpu.holder for gpu in gpus if gpu.holder))
    colour = {holder: PALETTE[number % len(PALETTE)] for number, holder in enumerate(holders)}
    shapes, top = [], HEAD
    for node in nodes:
        mine = [gpu for gpu in gpus if gpu.node == node]
        shapes.append(f'<text x="16" y="{top + CELL / 2}" class="node">{escape(node)}</text>')
        shapes.append(f'<text x="16" y="{top + CELL / 2 + 18}" class="note">{escape(mine[0].model)}</text>')
        for place, gpu in enumerate(mine):
            row, column = divmod(place, COLUMNS)
            x, y = LABEL + column * (CELL + GAP), top + row * (CELL + GAP)
            healthy = gpu.health == "healthy"
            title = f"{gpu.node} GPU {gpu.index}: {gpu.holder or 'free'}, {gpu.health} {gpu.reason}".strip()
            frame = "none" if healthy else BAD
            fill = colour.get(gpu.holder, FREE)
            short = gpu.holder.rpartition("/")[2]
            shapes += [
                f'<g><title>{escape(title)}</title><rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" rx="8"'
                f' fill="{fill}" stroke="{frame}" stroke-width="4"/>',
                f'<text x="{x + 8}" y="{y + 20}" class="{"on" if gpu.holder else "off"}">GPU {gpu.index}</text>',
                f'<text x="{x + 8}" y="{y + CELL / 2 + 6}" class="{"on" if gpu.holder else "off"}">'
                f"{escape(short or 'free')}</text>",
                "" if healthy else f'<text x="{x + 8}" y="{y + CELL - 10}" class="bad">{escape(gpu.health)}</text>',
                "</g>",
            ]
        top += (len(mine) - 1) // COLUMNS * (CELL + GAP) + CELL + GAP * 2
    width, height = LABEL + COLUMNS * (CELL + GAP) + 8, top + 8
    size = f'width="{width}" height="{height}"'
    used = sum(1 for gpu in gpus if gpu.holder)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width} {height}">',
            "<style>text{font-family:system-ui,sans-serif;font-size:13px;fill:#202124}"
            ".head{font-size:18px;font-weight:600}"
            ".node{font-size:14px;font-weight:600}.note,.off{fill:#5f6368;font-size:12px}.on{fill:#fff}"
            f".bad{{fill:{BAD};font-weight:600}}</style>",
            '<rect width="100%" height="100%" fill="#fff"/>',
            f'<text x="16" y="34" class="head">GPUs in use: {used} of {len(gpus)}</text>',
            *(shape for shape in shapes if shape),
            "</svg>",
            "",
        ]
    )
