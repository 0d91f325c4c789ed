# SPDX-License-Identifier: Apache-2.0
"""Who holds which slice of which GPU, as an SVG document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from demo.allocation import WHOLE, GpuRow, Slice, amounts

COLUMNS = 8
WIDTH, HEIGHT, GAP = 118, 112, 10
"""The size of a card: as high as its slices together, a pixel and a bit for each percent."""
LABEL, HEAD, CAPTION, MARGIN = 196, 78, 20, 20
LINE, LETTER = 14, 6.1
"""Height of a line of text, width of a letter, in a slice."""
PALETTE = (
    *("#2f6db5", "#b4531a", "#2e7d4f", "#8b4a9c", "#b3324a", "#1b7a80"),
    *("#76572f", "#5a5ec4", "#8f6b00", "#56657a", "#a33b7d", "#3f7d20"),
)
"""White text is readable on each."""
FREE, BAD = "#e8eaed", "#c5221f"
STYLE = (
    "text{font-family:system-ui,'Segoe UI',Roboto,Helvetica,Arial,sans-serif;font-size:11px;fill:#202124}"
    ".head{font-size:19px;font-weight:600}.node{font-size:15px;font-weight:600}"
    ".note{font-size:12px;fill:#5f6368}.card,.free{fill:#5f6368}"
    ".pod{fill:#fff;font-weight:600}.much{fill:#fff}"
    f".bad{{fill:{BAD};font-weight:600}}"
)
MODES = {
    "pgpu": "whole GPUs",
    "vgpu": "cores and memory",
    "mps": "cores and memory",
    "cgpu": "memory",
}


def picture(gpus: Sequence[GpuRow]) -> str:
    """A line of cards a node, each filled by its slices from the top: a colour a pod, a red frame round a bad GPU."""
    pods = dict.fromkeys(part.pod for gpu in gpus for part in gpu.slices or ())
    colours = {pod: PALETTE[number % len(PALETTE)] for number, pod in enumerate(pods)}
    shapes: list[str] = []
    top = HEAD
    for node in dict.fromkeys(gpu.node for gpu in gpus):
        mine = [gpu for gpu in gpus if gpu.node == node]
        shapes += _heading(mine[0], top)
        for place, gpu in enumerate(mine):
            row, column = divmod(place, COLUMNS)
            x, y = LABEL + column * (WIDTH + GAP), top + row * (CAPTION + HEIGHT + GAP)
            shapes += _card(gpu, x, y, colours)
        top += ((len(mine) - 1) // COLUMNS + 1) * (CAPTION + HEIGHT + GAP) + GAP
    width, height = LABEL + COLUMNS * (WIDTH + GAP) - GAP + MARGIN, top - GAP + MARGIN
    size = f'width="{width}" height="{height}"'
    used = sum(1 for gpu in gpus if gpu.slices)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width} {height}">',
            f"<style>{STYLE}</style>",
            '<rect width="100%" height="100%" fill="#fff"/>',
            f'<text x="{MARGIN}" y="36" class="head">Who has which slice of which GPU</text>',
            f'<text x="{MARGIN}" y="56" class="note">{used} of {len(gpus)} GPUs in use, by {len(pods)} pods</text>',
            *shapes,
            "</svg>",
            "",
        ]
    )


def _heading(gpu: GpuRow, top: int) -> Iterator[str]:
    middle = top + CAPTION + HEIGHT // 2
    yield f'<text x="{MARGIN}" y="{middle - 14}" class="node">{escape(gpu.node)}</text>'
    yield f'<text x="{MARGIN}" y="{middle + 5}" class="note">{escape(gpu.mode)}: {MODES.get(gpu.mode, "")}</text>'
    yield f'<text x="{MARGIN}" y="{middle + 22}" class="note">{escape(gpu.model)}</text>'


def _card(gpu: GpuRow, x: int, y: int, colours: dict[str, str]) -> Iterator[str]:
    healthy = gpu.health == "healthy"
    clip = escape(f"{gpu.node}-{gpu.index}", quote=True)
    title = f"{gpu.node} GPU {gpu.index}, {gpu.model}: {gpu.health} {gpu.reason}".rstrip()
    yield f"<g><title>{escape(title)}</title>"
    yield f'<text x="{x}" y="{y + CAPTION - 7}" class="card">GPU {gpu.index}</text>'
    if not healthy:
        yield f'<text x="{x + WIDTH}" y="{y + CAPTION - 7}" class="bad" text-anchor="end">{escape(gpu.health)}</text>'
    y += CAPTION
    yield f'<clipPath id="{clip}"><rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="7"/></clipPath>'
    yield f'<g clip-path="url(#{clip})"><rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" fill="{FREE}"/>'
    bottom = float(y)
    for part in gpu.slices or ():
        high = HEIGHT * _fraction(gpu, part)
        yield from _slice(gpu, part, x, bottom, high, colours[part.pod])
        bottom += high
    rest = y + HEIGHT - bottom
    if rest >= LINE:
        yield f'<text x="{x + 8}" y="{bottom + rest / 2 + 4:.1f}" class="free">{escape(_left(gpu))}</text>'
    yield "</g>"
    if not healthy:
        yield (
            f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="7" fill="none" stroke="{BAD}"'
            ' stroke-width="3"/>'
        )
    yield "</g>"


def _left(gpu: GpuRow) -> str:
    if gpu.slices is None:
        return "unknown"
    if not all(gpu.free):
        return ""
    return f"{_amounts(gpu, *gpu.free)} free" if gpu.slices else "free"


def _slice(gpu: GpuRow, part: Slice, x: int, y: float, high: float, colour: str) -> Iterator[str]:
    text = "whole GPU" if part.cores >= WHOLE else _amounts(gpu, part.cores, part.memory_bytes)
    # A line of the background between slices keeps those of one colour apart.
    yield f"<g><title>{escape(f'{part.pod}: {text}')}</title>"
    yield f'<rect x="{x}" y="{y:.1f}" width="{WIDTH}" height="{max(high - 1, 1):.1f}" fill="{colour}"/>'
    lines = [(part.pod.removeprefix("default/"), "pod"), (text, "much")][: int(high // LINE)]
    first = y + high / 2 - LINE * len(lines) / 2 + 11
    for number, (words, kind) in enumerate(lines):
        yield f'<text x="{x + 8}" y="{first + number * LINE:.1f}" class="{kind}">{escape(_short(words))}</text>'
    yield "</g>"


def _fraction(gpu: GpuRow, part: Slice) -> float:
    return min(1.0, part.cores / 100 if gpu.divides_cores else part.memory_bytes / gpu.memory_bytes)


def _amounts(gpu: GpuRow, cores: int, memory_bytes: int) -> str:
    percent, memory = amounts(gpu, cores, memory_bytes)
    return f"{percent} · {memory}" if gpu.divides_cores else memory


def _short(text: str) -> str:
    room = int((WIDTH - 16) / LETTER)
    return text if len(text) <= room else f"{text[: room - 1]}…"
