# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run that switches its node begins with: how the node was before, and what a killed run left. Pure.

A run writes down on the node how it was. Whoever may annotate nodes may have written that instead.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

from ..shared.label_names import BENCHMARK, CONFIG
from ..shared.modes import MODES, WHOLE_MODE
from ..shared.reading import read_document, read_objects, read_text
from ..shared.registers import annotations_of, labels_of
from .jobs import job_name
from .layouts import MOST, Layout

_VERSION = 1
_LONGEST = 64 << 10
"""Characters of the annotation."""
_PATTERNS: Mapping[str, "re.Pattern[str]"] = {
    "mode": re.compile("|".join(MODES)),
    "config": re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?"),
    "mig_config": re.compile(r"[ -~]{0,253}"),
}


@dataclass(frozen=True)
class Note:
    """What a run wrote down before it switched the node."""

    before: Layout
    layouts: Tuple[Layout, ...]


@dataclass(frozen=True)
class Seen:
    """What was seen of a node, and what is asked for."""

    host: str
    """The node's name in the inventory."""
    name: str
    node: Mapping[str, Any]
    """How it is, as ``NodeState`` has it."""
    mode: str
    """``gpu_plugins_mode``."""
    mig_config: str
    """``gpu_plugins_mig_config``."""
    layouts: Sequence[Mapping[str, str]]
    """Those that are to be measured, as ``Turns`` has them."""
    check: bool = False
    """Whether this is a dry run."""


@dataclass(frozen=True)
class Start:
    """What a run begins with."""

    before: Mapping[str, str] = field(default_factory=dict)
    """The layout that the node comes back to."""
    steps: Sequence[Mapping[str, Any]] = ()
    """The layouts in turn, with the configurations that they keep. One that is not ``measured`` is on the way."""
    killed: bool = False
    """Whether a run was killed that had written down how the node was."""
    job: str = ""
    """The Job that it may have left."""
    says: str = ""
    """What becomes of the node first; empty where no run was killed."""
    refusals: List[str] = field(default_factory=list)
    remember: Mapping[str, Any] = field(default_factory=dict)
    """Patch of the node by which it is written down."""
    forget: Mapping[str, Any] = field(default_factory=dict)
    """Patch of the node once it is as before."""


def start(seen: Seen) -> Start:
    """Return what a run begins with."""
    text = annotations_of(seen.node["object"]).get(BENCHMARK)
    if text is None:
        before, refusals, says = _as_it_is(seen), _otherwise(seen), ""
    else:
        try:
            note = read(text)
        except ValueError as error:
            return Start(killed=True, refusals=[_unreadable(seen, error)])
        before, refusals = note.before, list(_not_its_own(seen, note))
        will = "would be" if seen.check else "is"
        says = (
            f"Node '{seen.name}': a benchmark was killed there. First its Job {will} removed, and the node {will} "
            f"restored to {before.name}"
        )
    if refusals:
        return Start(killed=text is not None, refusals=refusals)
    layouts = [Layout(*(str(each.get(key) or "") for key in _PATTERNS)) for each in seen.layouts]
    try:
        written = write(Note(before, tuple(layouts)))
    except ValueError as error:
        return Start(refusals=[f"Node '{seen.name}': how it is cannot be written down there: {error}; give it another"])
    steps, job = list(_steps(before, layouts)), job_name(seen.name)
    return Start(_document(before), steps, text is not None, job, says, [], _patch(written), _patch(None))


def write(note: Note) -> str:
    """Return a note as the annotation has it. Raises ValueError if it could not be read again."""
    document = {
        "version": _VERSION,
        "before": vars(note.before),
        "layouts": [vars(layout) for layout in note.layouts],
    }
    text = json.dumps(document, sort_keys=True)
    read(text)
    return text


def read(text: object) -> Note:
    """Return the note in an annotation. Raises ValueError for any other text."""
    found = read_document(text, _VERSION, _LONGEST)
    layouts = tuple(_layout(each) for each in read_objects(found.get("layouts"), "layouts", MOST, 1))
    (before,) = read_objects([found.get("before")], "before", 1)
    return Note(_layout(before), layouts)


def _layout(found: Dict[str, Any]) -> Layout:
    layout = Layout(*(read_text(found, key, pattern) for key, pattern in _PATTERNS.items()))
    if layout.mode != WHOLE_MODE and layout.mig_config:
        raise ValueError(f"mig_config: mode {layout.mode} has none")
    return layout


def _as_it_is(seen: Seen) -> Layout:
    config = str(labels_of(seen.node["object"]).get(CONFIG, ""))
    return Layout(seen.mode, config, seen.mig_config if seen.mode == WHOLE_MODE else "")


def _otherwise(seen: Seen) -> List[str]:
    """Return why a node cannot be switched that nothing is written down of."""
    serves = seen.node["serves"]
    if serves == seen.mode and not seen.node["cordoned"]:
        return []
    how = "is cordoned by us" if serves == seen.mode else f"serves {serves or 'no mode'}"
    return [
        f"Node '{seen.name}' {how}, and the inventory says {seen.mode}; run switch_mode.yml with --limit {seen.host} "
        "first"
    ]


def _not_its_own(seen: Seen, note: Note) -> Iterator[str]:
    """Yield why a node is not brought back to what a note says: inventory and node have to agree with it."""
    said, serves = note.before, seen.node["serves"]
    remedy = (
        f"run switch_mode.yml with --limit {seen.host}, and site.yml for a configuration, so that it is as the "
        f"inventory says, and then kubectl annotate node {seen.name} {BENCHMARK}-"
    )
    if (said.mode, said.mig_config) != (seen.mode, seen.mig_config):
        cut = " with another MIG configuration" if said.mode == seen.mode else ""
        yield (
            f"Node '{seen.name}' was {said.mode}{cut} before a benchmark that was killed, says its annotation "
            f"{BENCHMARK}, and the inventory says {seen.mode}; {remedy}"
        )
        return
    states = (said, *(_kept(said, layout) for layout in note.layouts))
    config = str(labels_of(seen.node["object"]).get(CONFIG, ""))
    if serves not in {state.mode for state in states} or config not in {state.config for state in states}:
        yield (
            f"Node '{seen.name}' serves {serves or 'no mode'} with {config or 'no'} configuration, which is no layout "
            f"of the benchmark that was killed there, by its annotation {BENCHMARK}: it was changed since; {remedy}"
        )


def _unreadable(seen: Seen, error: ValueError) -> str:
    return (
        f"Node '{seen.name}': annotation {BENCHMARK} cannot be read: {error}; how the node was before a benchmark that "
        f"was killed is not known. Run switch_mode.yml with --limit {seen.host}, and site.yml for a configuration, and "
        f"then kubectl annotate node {seen.name} {BENCHMARK}-"
    )


def _kept(before: Layout, layout: Layout) -> Layout:
    """Return a layout with what it keeps of how the node was. Only mode pgpu has its GPUs cut."""
    mig_config = (layout.mig_config or before.mig_config) if layout.mode == WHOLE_MODE else ""
    return replace(layout, config=layout.config or before.config, mig_config=mig_config)


def _steps(before: Layout, layouts: Sequence[Layout]) -> Iterator[Dict[str, Any]]:
    """Yield the layouts in turn. GPUs are cut as before on the way to a mode that has no MIG."""
    cut = before.mig_config
    for layout in layouts:
        kept = _kept(before, layout)
        if kept.mode != WHOLE_MODE and cut != before.mig_config:
            yield {**_document(before), "measured": False}
        cut = kept.mig_config if kept.mode == WHOLE_MODE else before.mig_config
        yield {**_document(kept), "name": layout.name, "measured": True}


def _document(layout: Layout) -> Dict[str, str]:
    return {**vars(layout), "name": layout.name}


def _patch(text: "str | None") -> Dict[str, Any]:
    return {"metadata": {"annotations": {BENCHMARK: text}}}
