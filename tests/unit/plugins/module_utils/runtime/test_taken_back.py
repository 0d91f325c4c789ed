# SPDX-License-Identifier: Apache-2.0
"""Whatever the file, the options and what others edit meanwhile: absent leaves theirs, and nothing of ours."""

from __future__ import annotations

from typing import Any

from ansible_collections.accel.kubernetes.plugins.module_utils.documents import json_text, nested, toml_text
from ansible_collections.accel.kubernetes.plugins.module_utils.documents.nested import Edit
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime import config as runtime_config
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.config import Owned, Wanted
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.dialect import parse
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from unit.plugins.module_utils.documents.test_toml_text import tables
from unit.plugins.module_utils.runtime.test_golden import EDITABLE, FILE, runtime_of, text_of

PLACES = {
    "docker": (("runtimes",), ("default-runtime",), ("features", "cdi")),
    "crio": (("crio", "runtime", "runtimes"), ("crio", "runtime", "default_runtime"), None),
}


def places(runtime: str, data: dict[str, Any]) -> tuple[nested.Path, nested.Path, nested.Path | None]:
    """The places of the runtimes, of the default and of the switch for CDI."""
    if runtime != "containerd":
        return PLACES[runtime]
    version = data["version"]
    cri = ("plugins", "io.containerd.grpc.v1.cri" if version == 2 else "io.containerd.cri.v1.runtime")
    return (*cri, "containerd", "runtimes"), (*cri, "containerd", "default_runtime_name"), (*cri, "enable_cdi")


def full(value: Any) -> Any:
    """It without tables that hold nothing, which say nothing."""
    if not isinstance(value, dict):
        return value
    kept = {key: full(item) for key, item in value.items()}
    return {key: item for key, item in kept.items() if item != {}}


def by_another(runtime: str, text: str, edit: Edit) -> str:
    if runtime != "docker":
        try:
            return str(toml_text.edited(text, [edit]))
        except toml_text.LayoutError:
            # Our tool refuses some layouts, and another's hand is what is played here.
            reject()
    if edit.value is None:
        return str(json_text.delete_member(text, edit.path))
    return str(json_text.set_member(text, edit.path, edit.value))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_what_others_did_meanwhile_is_all_that_is_left(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(EDITABLE))
    runtime, text = runtime_of(path), text_of(path)
    before = parse(runtime, text, FILE)
    runtimes, default, cdi = places(runtime, before)
    wanted = Wanted(
        data.draw(st.sampled_from(["nvidia", "gpu"])),
        "/usr/bin/nvidia-container-runtime",
        data.draw(st.booleans()),
        data.draw(st.sampled_from([None, True, False])) if cdi else None,
    )
    plan = runtime_config.plan_present(runtime, text, wanted, Owned(), text, FILE)
    now = parse(runtime, plan.text, FILE)

    ours = (*runtimes, wanted.name)
    kind = data.draw(st.sampled_from(["nothing", "comment", "value", "table", "gone", "runtime", "default", "field"]))
    shared = [
        place for place in tables(before) if place[: len(ours)] != ours and isinstance(nested.get(now, place), dict)
    ]
    place = data.draw(st.sampled_from(shared))
    edit: Edit | None = None
    if kind == "value":
        edit = Edit((*place, "theirs"), data.draw(st.sampled_from(["it's", 7, True, ["a"]])))
    elif kind == "table":
        edit = Edit((*place, "theirs"), {"key": "value", "deep": {"er": 1}})
    elif kind == "gone":
        assume(place and not any(each[: len(place)] == place for each in (ours, default, cdi) if each))
        assume(place != (*runtimes, str(nested.get(before, default))))
        edit = Edit(place, None)
    elif kind == "runtime":
        edit = Edit((*runtimes, "theirs"), {"path": "/x"} if runtime == "docker" else {"runtime_type": "oci"})
    elif kind == "default":
        edit = Edit(default, "theirs")
    elif kind == "field":
        # Of ours, and goes with it, unless it was there before us.
        edit = Edit((*ours, "theirs"), "x")
    later = plan.text if edit is None else by_another(runtime, plan.text, edit)
    if kind == "comment" and runtime != "docker":
        later += "\n# theirs\n"

    gone = runtime_config.plan_absent(runtime, later, wanted.name, plan.owned, text, FILE)

    expected = before
    if edit is not None and (kind != "field" or nested.get(before, ours) is not None):
        expected = nested.edited(before, [edit])
    found = parse(runtime, gone.text, FILE)
    if kind == "runtime" and plan.owned.base:
        # The runtime of others needs the plain runc beside it as ours did.
        nested.delete(found, (*runtimes, "runc"))
    assert full(found) == full(expected), gone.text
    assert kind != "comment" or runtime == "docker" or "# theirs" in gone.text
