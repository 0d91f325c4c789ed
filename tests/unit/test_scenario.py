# SPDX-License-Identifier: Apache-2.0
"""What molecule scenarios hold a role to: what it said is what it did, and what was there is there again."""

from __future__ import annotations

from scenario import broken, changed, differences

LOG = """2026-01-01 10:00:00,000 p=7 u=a n=ansible INFO| TASK [role : Write [a] file] *******
2026-01-01 10:00:00,000 p=7 u=a n=ansible INFO| --- before
+++ after
+changed: [not a host]

2026-01-01 10:00:01,000 p=7 u=a n=ansible INFO| changed: [one]
2026-01-01 10:00:01,000 p=7 u=a n=ansible INFO| ok: [two]
2026-01-01 10:00:02,000 p=7 u=a n=ansible INFO| TASK [role : Create objects] *******
2026-01-01 10:00:03,000 p=7 u=a n=ansible INFO| changed: [one -> localhost] => (item=ConfigMap x)
2026-01-01 10:00:04,000 p=8 u=a n=ansible INFO| TASK [another run] *******
2026-01-01 10:00:04,000 p=8 u=a n=ansible INFO| changed: [one]
"""


def test_a_log_tells_what_the_first_run_changed() -> None:
    assert changed(LOG) == ["role : Write [a] file: one", "role : Create objects: one: ConfigMap x"]


def test_a_broken_word_is_told_both_ways() -> None:
    assert broken(["a", "b"], ["b", "c"]) == ["not told: c", "not done: a"]
    assert broken(["a", "a"], ["a"]) == []


def test_files_that_came_went_or_changed_are_named() -> None:
    assert differences({"a": "1", "b": "1", "c": "1"}, {"b": "2", "c": "1", "d": "1"}) == [
        "a went",
        "b is another",
        "d came",
    ]


def test_an_object_that_changed_names_its_parts() -> None:
    before = {"Node /a": '{"kind": "Node", "metadata": {"name": "a"}, "spec": {"unschedulable": true}}'}
    after = {"Node /a": '{"kind": "Node", "metadata": {"name": "a", "labels": {}}, "spec": {"taints": []}}'}
    assert differences(before, after) == [
        "Node /a differs in metadata.labels, spec.taints, spec.unschedulable",
    ]
