# SPDX-License-Identifier: Apache-2.0
"""Which pod has which part of each GPU, as an SVG document for light and dark screens, and for phones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from demo.allocation import WHOLE, GpuRow, Slice, amounts

COLUMNS = 4
WIDTH, GAP, MARGIN = 131, 10, 14
HEIGHT, LOW = 180, 62
"""Height of a card that is divided, and of one that is not; slices fill it to scale."""
HEAD, HEADING, CAPTION = 66, 50, 24
LINE, LETTER, BOLD = 17, 8.4, 9.2
"""Height of a line of text, widths of a letter and of a bold one, in a slice."""
MODES = {
    "pgpu": "whole GPUs",
    "vgpu": "cores and memory",
    "mps": "cores and memory",
    "cgpu": "memory",
}

LIGHT: dict[str, str] = {
    "back": "#ffffff",
    "text": "#1f2328",
    "note": "#57606a",
    "free": "#eef1f4",
    "edge": "#7d8590",
    "bad": "#b3261e",
    "ink": "#ffffff",
}
DARK: dict[str, str] = {
    "back": "#0d1117",
    "text": "#e6edf3",
    "note": "#9ea7b3",
    "free": "#1b222b",
    "edge": "#7d8590",
    "bad": "#ff8a80",
    "ink": "#0d1117",
}
"""Colors on light and dark screens, by name; ``ink`` is that of text on a pod."""
LIGHT_PODS = (
    *("#2f6db5", "#b4531a", "#2b774a", "#8b4a9c", "#b3324a", "#1b757b"),
    *("#76572f", "#5a5ec4", "#866400", "#56657a", "#a33b7d", "#3b771e"),
)
DARK_PODS = (
    *("#6aa7f0", "#f0935a", "#63bd8a", "#c58be0", "#f27d91", "#55bcc4"),
    *("#cda56c", "#a0a3f5", "#d9b23c", "#9fb0c8", "#e58cc4", "#8cc46a"),
)


def _rules(palette: Mapping[str, str], pods: Sequence[str]) -> str:
    """Fills by class: not every viewer knows variables."""
    return "".join(
        [
            f"svg{{background:{palette['back']}}}text{{fill:{palette['text']}}}.back{{fill:{palette['back']}}}",
            f".note,.card,.free{{fill:{palette['note']}}}.room{{fill:{palette['free']};stroke:{palette['edge']}}}",
            f".bad{{fill:{palette['bad']}}}.lost{{stroke:{palette['bad']}}}.pod,.much{{fill:{palette['ink']}}}",
            *(f".p{number}{{fill:{color}}}" for number, color in enumerate(pods)),
        ]
    )


STYLE = (
    "svg{color-scheme:light dark}"
    "text{font-family:system-ui,'Segoe UI',Roboto,Helvetica,Arial,sans-serif;font-size:15px}"
    ".head{font-size:19px;font-weight:600}.node{font-size:17px;font-weight:600}.pod,.bad{font-weight:600}"
    ".lost{fill:none;stroke-width:4}"
    f"{_rules(LIGHT, LIGHT_PODS)}"
    f"@media screen and (prefers-color-scheme:dark){{{_rules(DARK, DARK_PODS)}}}"
)


def picture(gpus: Sequence[GpuRow]) -> str:
    """Cards of each node, filled from the top by slices that name their pods. A cross and a frame mark a bad GPU."""
    pods = dict.fromkeys(part.pod for gpu in gpus for part in gpu.slices or ())
    kinds = {pod: f"p{number % len(LIGHT_PODS)}" for number, pod in enumerate(pods)}
    shapes: list[str] = []
    top, column, below = HEAD, 0, HEAD
    for node in dict.fromkeys(gpu.node for gpu in gpus):
        mine = [gpu for gpu in gpus if gpu.node == node]
        columns = max(2, min(COLUMNS, len(mine)))
        if column + columns > COLUMNS:
            top, column = below, 0
        below = max(below, top + _node(mine, _left_of(column), top, kinds, shapes))
        column += columns
    width, height = _left_of(COLUMNS) - GAP + MARGIN, below
    used = sum(1 for gpu in gpus if gpu.slices)
    told = f"{used} of {len(gpus)} GPUs in use, by {len(pods)} pods"
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{told}">',
            f"<style>{STYLE}</style>",
            '<rect width="100%" height="100%" class="back"/>',
            f'<text x="{MARGIN}" y="30" class="head">Which pod has which part of each GPU</text>',
            f'<text x="{MARGIN}" y="52" class="note">{told}</text>',
            *shapes,
            "</svg>",
            "",
        ]
    )


def _left_of(column: int) -> int:
    return MARGIN + column * (WIDTH + GAP)


def _node(gpus: Sequence[GpuRow], x: int, top: int, kinds: Mapping[str, str], shapes: list[str]) -> int:
    """Draws the cards of a node; returns how high they are with their heading and what keeps the next apart."""
    first = gpus[0]
    mode = f'<tspan class="note" font-weight="400" font-size="15" dx="8">{escape(_mode(first))}</tspan>'
    shapes.append(f'<text x="{x}" y="{top + 20}" class="node">{escape(first.node)}{mode}</text>')
    shapes.append(f'<text x="{x}" y="{top + 40}" class="note">{escape(first.model)}</text>')
    y = top + HEADING
    for start in range(0, len(gpus), COLUMNS):
        row = gpus[start : start + COLUMNS]
        high = HEIGHT if any(map(_divided, row)) else LOW
        for place, gpu in enumerate(row):
            shapes += _card(gpu, x + place * (WIDTH + GAP), y, high, kinds)
        y += CAPTION + high + GAP
    return y + GAP - top


def _mode(gpu: GpuRow) -> str:
    return f"{gpu.mode}: {MODES[gpu.mode]}" if gpu.mode in MODES else gpu.mode


def _divided(gpu: GpuRow) -> bool:
    return any(_fraction(gpu, part) < 1 for part in gpu.slices or ())


def _card(gpu: GpuRow, x: int, y: int, high: int, kinds: Mapping[str, str]) -> Iterator[str]:
    healthy = gpu.health == "healthy"
    clip = escape(f"{gpu.node}-{gpu.index}", quote=True)
    title = f"{gpu.node} GPU {gpu.index}, {gpu.model}: {gpu.health} {gpu.reason}".rstrip()
    yield f"<g><title>{escape(title)}</title>"
    mark, kind = ("", "card") if healthy else ("\u00d7 ", "bad")
    yield f'<text x="{x}" y="{y + CAPTION - 7}" class="{kind}">{mark}GPU {gpu.index}</text>'
    y += CAPTION
    box = f'x="{x}" y="{y}" width="{WIDTH}" height="{high}" rx="7"'
    yield f'<clipPath id="{clip}"><rect {box}/></clipPath>'
    yield f'<g clip-path="url(#{clip})"><rect {box} class="room" stroke-width="2" stroke-dasharray="4 4"/>'
    bottom = float(y)
    for part in gpu.slices or ():
        tall = high * _fraction(gpu, part)
        yield from _slice(gpu, part, x, bottom, tall, kinds[part.pod])
        bottom += tall
    yield from _rest(gpu, x, bottom, y + high - bottom)
    yield "</g>"
    if not healthy:
        yield f'<rect {box} class="lost"/>'
    yield "</g>"


def _rest(gpu: GpuRow, x: int, y: float, high: float) -> Iterator[str]:
    """What is below the slices: why there is nothing, or how much is free."""
    if gpu.slices is None:
        lines = ["unknown"]
    elif gpu.reason or gpu.health != "healthy":
        lines = [gpu.reason or gpu.health]
    elif not all(gpu.free):
        lines = []
    elif gpu.slices:
        free = _amounts(gpu, *gpu.free)
        lines = ["free", free] if high >= 2 * LINE else [f"{free.partition(' · ')[0]} free"]
    else:
        lines = ["free"]
    kind = "free" if gpu.health == "healthy" else "bad"
    yield from _lines([(line, kind) for line in lines], x, y, high)


def _slice(gpu: GpuRow, part: Slice, x: int, y: float, high: float, kind: str) -> Iterator[str]:
    text = "whole GPU" if part.cores >= WHOLE else _amounts(gpu, part.cores, part.memory_bytes)
    # A line of the background between slices keeps those of one color apart.
    yield f"<g><title>{escape(f'{part.pod}: {text}')}</title>"
    yield f'<rect x="{x}" y="{y:.1f}" width="{WIDTH}" height="{max(high - 1, 1):.1f}" class="{kind}"/>'
    yield from _lines(_words(part.pod.removeprefix("default/"), text, int(high // LINE)), x, y, high)
    yield "</g>"


def _lines(lines: Sequence[tuple[str, str]], x: int, y: float, high: float) -> Iterator[str]:
    """Lines of text with their classes, as many as have room, in the middle of it."""
    shown = lines[: int(high // LINE)]
    first = y + high / 2 - LINE * len(shown) / 2 + 13
    for number, (words, kind) in enumerate(shown):
        yield f'<text x="{x + 8}" y="{first + number * LINE:.1f}" class="{kind}">{escape(_short(words))}</text>'


def _words(pod: str, amount: str, room: int) -> list[tuple[str, str]]:
    """The lines of a slice with so much room, each with its class: a pod's name comes first."""
    namespace, slash, name = pod.rpartition("/")
    lines = [(pod, "pod"), (amount, "much")]
    if slash and room > 2:
        lines = [(f"{namespace}/", "much"), (name, "pod"), (amount, "much")]
    elif room == 1 or len(pod) > _room(BOLD):
        lines[0] = (name, "pod")
    return lines


def _fraction(gpu: GpuRow, part: Slice) -> float:
    return min(1.0, part.cores / 100 if gpu.divides_cores else part.memory_bytes / gpu.memory_bytes)


def _amounts(gpu: GpuRow, cores: int, memory_bytes: int) -> str:
    percent, memory = amounts(gpu, cores, memory_bytes)
    return f"{percent} · {memory}" if gpu.divides_cores else memory


def _room(letter: float) -> int:
    return int((WIDTH - 16) / letter)


def _short(text: str) -> str:
    room = _room(LETTER)
    return text if len(text) <= room else f"{text[: room - 1]}…"
