# SPDX-License-Identifier: Apache-2.0
"""Configurations of kube-scheduler of every layout, which ours comes into and, past hands of others, out of again."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.accel.kubernetes.plugins.module_utils.documents import yaml_text
from ansible_collections.accel.kubernetes.plugins.module_utils.documents.yaml_edit import edit
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler import config as scheduler_config
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.config import Owned, Wanted
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.manifest import Manifest
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.manifest import Wanted as InPod
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.schema import API_VERSION, ConfigError

FIXTURES = Path(__file__).parents[2] / "fixtures"
FILE = "/etc/f.yaml"
HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
FIT = "{name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}}}"
FILES = {
    **{path.name: path.read_text() for path in sorted(FIXTURES.glob("*scheduler-config.yaml"))},
    "base": scheduler_config.base("/etc/kubernetes/scheduler.conf", True),
    "bare": HEAD,
    "no line end": HEAD + "parallelism: 8",
    "empty lists": HEAD + "extenders: [] # none\nprofiles: []  # none\n# end\n",
    "null lists": HEAD + "extenders:\nprofiles: null # none\nparallelism: ~\n",
    "flow": f"{{apiVersion: {API_VERSION}, kind: KubeSchedulerConfiguration, extenders: []}}\n",
    "json": '{\n  "apiVersion": "kubescheduler.config.k8s.io/v1",\n  "kind": "KubeSchedulerConfiguration",\n'
    '  "profiles": [\n    {\n      "schedulerName": "default-scheduler"\n    }\n  ]\n}\n',
    "flow lists": HEAD + f"profiles: [{{pluginConfig: [{FIT}]}}]\n"
    "extenders: [{urlPrefix: 'https://a:1', managedResources: [{name: example.com/a}]}]  # theirs\n",
    "aliases": HEAD + f"profiles:\n- schedulerName: default-scheduler\n  pluginConfig: &pc\n  - {FIT}\n"
    "- schedulerName: other\n  pluginConfig: *pc\n",
    "merges": HEAD + "leaderElection: &e {leaderElect: yes}\nprofiles:\n- schedulerName: default-scheduler\n"
    "  plugins: &p {score: {disabled: [{name: ImageLocality}]}}\n- schedulerName: other\n  plugins: {<<: *p}\n",
    "deep": HEAD + "profiles:\n    -   schedulerName: 'default-scheduler'\n        pluginConfig:\n"
    "        -   name: NodeResourcesFit\n            args:\n                ignoredResources:\n                - a/b\n",
    "comments": "# top\n---\n# head\n"
    + HEAD
    + "# before\nextenders:\n# first\n- urlPrefix: https://a:1 # a\n  # inside\n"
    "  managedResources:\n  - name: example.com/a\n# after\n"
    "profiles:\n# p\n- schedulerName: default-scheduler # d\n# end\n...\n",
    "weightless": HEAD + "profiles:\n- pluginConfig:\n  - name: NodeResourcesFit\n"
    "    args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu}]}}\n",
    "packed": HEAD
    + "profiles:\n- pluginConfig:\n  - name: NodeResourcesFit\n    args: {scoringStrategy: {type: MostAllocated}}\n",
}
EXTENDER: dict[str, Any] = {
    "urlPrefix": "https://127.0.0.1:9446/scheduler",
    "bindVerb": "bind",
    "httpTimeout": "010",
    "managedResources": [{"name": "tencent.com/vcuda-core", "ignoredByScheduler": False}],
    "tlsConfig": {"serverName": "on", "caFile": "/a b/ca.crt"},
}
WANTED = {
    "extender": Wanted([EXTENDER]),
    "packing": Wanted([], {"nvidia.com/gpu": 3}),
    "packing by cpu": Wanted([], {"cpu": 7, "nvidia.com/gpu": 1}),
    "theirs": Wanted(
        [{"urlPrefix": "https://a:1", "filterVerb": "f", "managedResources": [{"name": "example.com/a"}]}]
    ),
    "both": Wanted(
        [EXTENDER, {"urlPrefix": "https://x", "managedResources": [{"name": "o/a"}]}], {"nvidia.com/gpu": 1}
    ),
}


def comment(text: str) -> str:
    return "# a later hand\n" + text


def key(text: str) -> str:
    data = yaml_text.load(text, FILE)
    data["percentageOfNodesToScore"] = 55
    return str(edit(text, data, FILE))


def extender(text: str) -> str:
    data = yaml_text.load(text, FILE)
    data["extenders"] = [
        {"urlPrefix": "https://b:1", "managedResources": [{"name": "b/b"}]},
        *(data.get("extenders") or []),
    ]
    return str(edit(text, data, FILE))


def inside(text: str) -> str:
    """A comment in the midst of what is ours, where that has lines of its own."""
    return re.sub(r"(?m)^( *)bindVerb: bind$", r"\1# inside\n\1bindVerb: bind", text)


def dumped(text: str) -> str:
    """Written anew by a program that keeps neither layout nor comments."""
    return yaml.safe_dump(yaml_text.load(text, FILE), indent=4)


def compact(text: str) -> str:
    return yaml.safe_dump(yaml_text.load(text, FILE), default_flow_style=True, width=10**6)


HANDS = {"comment": comment, "key": key, "extender": extender, "inside": inside, "dumped": dumped, "compact": compact}


def owned_by(wanted: Wanted) -> Owned:
    return Owned(frozenset(map(scheduler_config.key_of, wanted.extenders)), frozenset(wanted.binpack))


def bare(data: Any) -> Any:
    """The data, of which a list or mapping without entries is as good as none."""
    if isinstance(data, dict):
        return {name: bare(item) for name, item in data.items() if bare(item) not in (None, [], {})}
    return [bare(item) for item in data] if isinstance(data, list) else data


def comments(text: str) -> list[str]:
    return sorted(re.findall(r"#.*", text))


@pytest.mark.parametrize("wanted", WANTED.values(), ids=WANTED)
@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_ours_comes_into_every_layout_beside_all_that_is_there(text: str, wanted: Wanted) -> None:
    once = scheduler_config.plan(text, wanted, Owned(), text, FILE)

    assert once != text
    assert comments(once) == comments(text)
    assert scheduler_config.plan(once, wanted, owned_by(wanted), text, FILE) == once
    after = yaml_text.load(once, FILE)
    assert after["extenders" if wanted.extenders else "profiles"]
    assert scheduler_config.packed_by(after).items() >= wanted.binpack.items()
    others = [
        profile
        for profile in yaml_text.load(text, FILE).get("profiles") or []
        if profile.get("schedulerName") == "other"
    ]
    assert [profile for profile in after.get("profiles") or [] if profile.get("schedulerName") == "other"] == others


@pytest.mark.parametrize("hand", HANDS.values(), ids=HANDS)
@pytest.mark.parametrize("wanted", WANTED.values(), ids=WANTED)
@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_what_others_did_since_stays_and_ours_goes(text: str, wanted: Wanted, hand: Callable[[str], str]) -> None:
    once = scheduler_config.plan(text, wanted, Owned(), text, FILE)

    gone = scheduler_config.plan(hand(once), Wanted(), owned_by(wanted), text, FILE)

    assert bare(yaml_text.load(gone, FILE)) == bare(yaml_text.load(hand(text), FILE))
    if hand is inside:
        assert comments(gone) == comments(hand(once))
    else:
        assert hand in (dumped, compact) or comments(gone) == comments(hand(text))


MANIFEST = (FIXTURES / "kube-scheduler.yaml").read_text()
MANIFESTS = {
    "kubeadm": MANIFEST,
    "flow command": re.sub(r"- command:\n(    - .*\n)+", "- command: [kube-scheduler, '--v=2'] # one line\n", MANIFEST),
    "args": MANIFEST.replace("  - command:\n    - kube-scheduler\n", "  - command: [kube-scheduler]\n    args: &a\n"),
    "dumped": yaml.safe_dump(yaml.safe_load(MANIFEST), indent=4),
    "json": yaml.safe_dump(yaml.safe_load(MANIFEST), default_flow_style=True, width=10**6),
    "nulls": re.sub(r"    volumeMounts:\n(    .*\n)+?  host", "    volumeMounts:\n  host", MANIFEST).replace(
        "metadata:\n", "metadata:\n  annotations: {} # none\n"
    ),
}


@pytest.mark.parametrize("later", ["", "- --v=4", "no comments"])
@pytest.mark.parametrize("text", MANIFESTS.values(), ids=MANIFESTS)
def test_ours_comes_into_every_manifest_and_out_again(text: str, later: str) -> None:
    def hand(given: str) -> str:
        data = copy.deepcopy(yaml_text.load(given, FILE))
        container = data["spec"]["containers"][0]
        if later.startswith("-"):
            container["args" if "args" in container else "command"].append(later[2:])
        return str(edit(given, data, FILE)) if later != "no comments" else yaml.safe_dump(data)

    manifest = Manifest(text, FILE)
    manifest.add(InPod("/etc/kubernetes/kube-accel/scheduler.yaml", "content", ["/a"]))
    once = str(manifest.text())
    assert comments(once) == comments(text)
    again = Manifest(once, FILE)
    again.add(InPod("/etc/kubernetes/kube-accel/scheduler.yaml", "content", ["/a"]))
    assert again.text() == once
    assert again.config_file() == "/etc/kubernetes/kube-accel/scheduler.yaml"

    left = Manifest(hand(once), FILE)
    left.remove(text, keep_config=False)

    assert bare(yaml_text.load(str(left.text()), FILE)) == bare(yaml_text.load(hand(text), FILE))


def damaged(data: Any, value: object) -> Iterator[Any]:
    """The data with each of its parts in turn replaced."""
    places = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for place, item in list(places):
        for other in [value, *damaged(item, value)]:
            whole = copy.copy(data)
            whole[place] = other
            yield whole


@pytest.mark.parametrize("value", [None, [], {}, [None], {"x": None}, "x", 5, True], ids=repr)
def test_file_with_a_part_of_another_type_is_edited_or_refused(value: object) -> None:
    for wanted in WANTED.values():
        rich = scheduler_config.plan(FILES["flow lists"], wanted, Owned(), FILES["flow lists"], FILE)
        for data in damaged(yaml_text.load(rich, FILE), value):
            text = yaml.safe_dump(data)
            for asked, owned in ((wanted, Owned()), (Wanted(), owned_by(wanted))):
                with suppress(ConfigError):
                    after = scheduler_config.plan(text, asked, owned, text, FILE)
                    scheduler_config.election(after, FILE)
                    scheduler_config.binders(after, FILE)
                    scheduler_config.holds(after, owned, FILE)
    for data in damaged(yaml.safe_load(MANIFEST), value):
        with suppress(ConfigError):
            manifest = Manifest(yaml.safe_dump(data), FILE)
            manifest.add(InPod("/etc/kubernetes/kube-accel/scheduler.yaml", "content", ["/a"], ["/a/b"]))
            again = Manifest(manifest.text(), FILE)
            again.is_same_pod(MANIFEST)
            again.config_file()
            again.remove(MANIFEST, keep_config=False)
            again.text()
