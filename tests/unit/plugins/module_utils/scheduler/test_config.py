# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.accel.kubernetes.plugins.module_utils.documents import yaml_text
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler import config as scheduler_config
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.config import Owned, Wanted
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.schema import API_VERSION, ConfigError
from hypothesis import given, settings
from hypothesis import strategies as st

FILE = "/etc/kubernetes/kube-accel/scheduler.yaml"
THEIRS = (Path(__file__).parents[2] / "fixtures" / "scheduler-config.yaml").read_text()
BARE = scheduler_config.base("/etc/kubernetes/scheduler.conf", True)
OURS: dict[str, Any] = {
    "urlPrefix": "https://127.0.0.1:9446/scheduler",
    "filterVerb": "predicates",
    "bindVerb": "bind",
    "managedResources": [{"name": "tencent.com/vcuda-core", "ignoredByScheduler": False}],
}


def owned_by(wanted: Wanted) -> Owned:
    return Owned(frozenset(map(scheduler_config.key_of, wanted.extenders)), frozenset(wanted.binpack))


def plan(text: str, wanted: Wanted, owned: Owned | None = None, original: str | None = None) -> str:
    return str(scheduler_config.plan(text, wanted, owned or Owned(), text if original is None else original, FILE))


def data_of(text: str) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(text)
    return data


def test_extenders_and_bin_packing_merge_with_foreign_settings() -> None:
    after = data_of(plan(THEIRS, Wanted([OURS], {"nvidia.com/gpu": 3})))

    theirs = data_of(THEIRS)
    assert after["extenders"] == [*theirs["extenders"], OURS]
    default, batch = after["profiles"]
    assert batch == {"schedulerName": "batch"}
    assert default["plugins"] == theirs["profiles"][0]["plugins"]
    assert default["pluginConfig"] == [
        *theirs["profiles"][0]["pluginConfig"],
        {
            "name": "NodeResourcesFit",
            "args": {
                "scoringStrategy": {"type": "MostAllocated", "resources": [{"name": "nvidia.com/gpu", "weight": 3}]}
            },
        },
    ]
    assert after["percentageOfNodesToScore"] == 50


def test_no_line_of_others_changes() -> None:
    after = plan(THEIRS, Wanted([OURS], {"nvidia.com/gpu": 1})).splitlines()

    position = -1
    for line in THEIRS.splitlines():
        position = after.index(line, position + 1)


def test_an_extender_given_again_replaces_the_old_one_in_place() -> None:
    last = {**OURS, "urlPrefix": "https://other:1", "bindVerb": "", "managedResources": [{"name": "other.com/a"}]}
    first = Wanted([{**OURS, "httpTimeout": "5s"}, last])
    text = plan(BARE, first)

    after = data_of(plan(text, Wanted([{**OURS, "filterVerb": "filter"}, last]), owned_by(first), BARE))

    assert after["extenders"] == [{**OURS, "filterVerb": "filter"}, last]


@pytest.mark.parametrize("none", ["extenders: []", "extenders:", "extenders: null", "extenders: [] # none so far"])
def test_extenders_come_where_a_list_without_any_was_written(none: str) -> None:
    text = BARE + none + "\nparallelism: 8\n"

    once = plan(text, Wanted([OURS]))

    assert data_of(once) == {**data_of(text), "extenders": [OURS]}
    assert ("# none so far" in once) == ("# none so far" in none)
    assert not data_of(plan(once, Wanted(), owned_by(Wanted([OURS])), text))["extenders"]


def test_foreign_fields_of_a_matching_extender_stay() -> None:
    theirs = plan(BARE, Wanted([{**OURS, "httpTimeout": "5s"}]))

    after = data_of(plan(theirs, Wanted([OURS])))

    assert after["extenders"] == [{**OURS, "httpTimeout": "5s"}]


def test_an_extender_no_longer_listed_goes() -> None:
    first = Wanted([OURS], {"nvidia.com/gpu": 1})
    text = plan(THEIRS, first)

    after = data_of(plan(text, Wanted(binpack={"nvidia.com/gpu": 1}), owned_by(first), THEIRS))

    assert after["extenders"] == data_of(THEIRS)["extenders"]


def test_a_weight_given_anew_replaces_the_old_one() -> None:
    first = Wanted(binpack={"nvidia.com/gpu": 1, "cpu": 1})
    text = plan(BARE, first)

    after = data_of(plan(text, Wanted(binpack={"nvidia.com/gpu": 5}), owned_by(first), BARE))

    strategy = after["profiles"][0]["pluginConfig"][0]["args"]["scoringStrategy"]
    assert strategy == {"type": "MostAllocated", "resources": [{"name": "nvidia.com/gpu", "weight": 5}]}


def test_packing_by_cpu_and_memory_that_names_neither_goes_on() -> None:
    """Resources that are named take the place of the defaults."""
    fit = "- name: NodeResourcesFit\n    args: {scoringStrategy: {type: MostAllocated}}\n"
    text = BARE + "profiles:\n- pluginConfig:\n  " + fit
    wanted = Wanted(binpack={"nvidia.com/gpu": 3})
    once = plan(text, wanted)

    (profile,) = data_of(once)["profiles"]
    weights = {
        item["name"]: item["weight"] for item in profile["pluginConfig"][0]["args"]["scoringStrategy"]["resources"]
    }
    assert weights == {"cpu": 1, "memory": 1, "nvidia.com/gpu": 3}
    assert data_of(plan(once, Wanted(), owned_by(wanted), text)) == data_of(text)

    heavy = Wanted(binpack={"cpu": 5})
    swapped = plan(plan(text, heavy), wanted, owned_by(heavy), text)
    assert data_of(swapped) == data_of(once)


REFUSED: list[tuple[str, Wanted, list[str]]] = [
    (BARE + "extender: []\n", Wanted(), ["extender is no field", FILE]),
    (BARE + "extenders:\n- urlPrefix: x\n  filterverb: f\n", Wanted(), ["extenders[0].filterverb"]),
    (BARE + "profiles:\n- plugins:\n    scores: {}\n", Wanted(), ["profiles[0].plugins.scores"]),
    (
        BARE + "profiles:\n- pluginConfig:\n  - name: NodeResourcesFit\n    args: {strategy: {}}\n",
        Wanted(),
        ["profiles[0].pluginConfig[0].args.strategy"],
    ),
    (BARE + "parallelism: '16'\n", Wanted(), ["parallelism", "'16'", "int"]),
    (BARE + "parallelism: true\n", Wanted(), ["parallelism", "int"]),
    (BARE + "extenders: {}\n", Wanted(), ["extenders", "list"]),
    (BARE.replace("/v1", "/v1beta1"), Wanted(), ["v1beta1", "convert"]),
    ("a: [\n", Wanted(), [FILE, "line"]),
    ("- a\n", Wanted(), [FILE, "mapping"]),
    ("a: 1\n---\nb: 2\n", Wanted(), [FILE, "single"]),
    (
        BARE + "extenders:\n- urlPrefix: https://theirs\n  bindVerb: bind\n",
        Wanted([OURS]),
        ["https://theirs", OURS["urlPrefix"], "one binder"],
    ),
    (
        BARE + "extenders:\n- urlPrefix: https://theirs\n  managedResources: [{name: tencent.com/vcuda-core}]\n",
        Wanted([OURS]),
        ["tencent.com/vcuda-core", "https://theirs"],
    ),
    (BARE, Wanted([{**OURS, "prioritizeVerb": "p"}]), ["weight"]),
    (BARE, Wanted([OURS, OURS]), ["same url_prefix"]),
    (BARE + "profiles:\n- schedulerName: batch\n", Wanted(binpack={"a": 1}), ["default-scheduler", "binpack"]),
    (
        BARE
        + "profiles:\n- pluginConfig:\n  - name: NodeResourcesFit\n"
        + "    args: {scoringStrategy: {type: LeastAllocated}}\n",
        Wanted(binpack={"a": 1}),
        ["LeastAllocated", "MostAllocated"],
    ),
]


@pytest.mark.parametrize(("text", "wanted", "words"), REFUSED)
def test_what_kube_scheduler_would_not_start_with_is_refused(text: str, wanted: Wanted, words: list[str]) -> None:
    with pytest.raises(ConfigError) as refusal:
        plan(text, wanted)
    assert all(word in str(refusal.value) for word in words)


FIT = (
    "pluginConfig:\n  - name: NodeResourcesFit\n"
    "    args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}}\n"
)
SHARED = (
    BARE
    + f"profiles:\n- schedulerName: default-scheduler\n  {FIT.replace(':', ': &pc', 1)}"
    + "- schedulerName: other\n  pluginConfig: *pc\n"
)


@pytest.mark.parametrize("swapped", [False, True])
def test_profile_with_aliased_plugins_packs_alone(swapped: bool) -> None:
    text = SHARED
    if swapped:
        text = (
            text.replace("default-scheduler", "x").replace("other", "default-scheduler").replace(": x\n", ": other\n")
        )
    before = {profile["schedulerName"]: profile for profile in data_of(text)["profiles"]}
    wanted = Wanted(binpack={"nvidia.com/gpu": 3})

    once = plan(text, wanted)

    after = {profile["schedulerName"]: profile for profile in data_of(once)["profiles"]}
    assert after["other"] == before["other"]
    strategy = after["default-scheduler"]["pluginConfig"][0]["args"]["scoringStrategy"]
    assert strategy["resources"] == [{"name": "cpu", "weight": 1}, {"name": "nvidia.com/gpu", "weight": 3}]
    assert plan(once, wanted, owned_by(wanted), text) == once
    assert data_of(plan(once, Wanted(), owned_by(wanted), text)) == data_of(text)


NEEDED = "enabled: [{name: PrioritySort}, {name: DefaultBinder}]"
PLUGINS: list[tuple[str, str]] = [
    ("score: {disabled: [{name: NodeResourcesFit}]}", "score.disabled has NodeResourcesFit"),
    ("score: {disabled: [{name: '*'}], enabled: [{name: ImageLocality}]}", "score.disabled has '*'"),
    (
        "multiPoint: {disabled: [{name: '*'}], enabled: [{name: PrioritySort}, {name: DefaultBinder}]}",
        "multiPoint.disabled has '*'",
    ),
    ("{score: {disabled: [{name: '*'}]}, multiPoint: {enabled: [{name: NodeResourcesFit}]}}", "score.disabled"),
    ("score: {disabled: [{name: '*'}], enabled: [{name: NodeResourcesFit, weight: 2}]}", ""),
    ("{multiPoint: {disabled: [{name: '*'}], " + NEEDED + "}, score: {enabled: [{name: NodeResourcesFit}]}}", ""),
    ("multiPoint: {disabled: [{name: '*'}], " + NEEDED[:-1] + ", {name: NodeResourcesFit}]}", ""),
    ("filter: {disabled: [{name: NodeResourcesFit}]}", ""),
    ("score:", ""),
]


def disabling(plugins: str) -> str:
    return BARE + f"profiles:\n- plugins:\n    {plugins}\n"


@pytest.mark.parametrize(("plugins", "words"), PLUGINS)
def test_bin_packing_is_refused_where_nodes_are_not_scored_by_it(plugins: str, words: str) -> None:
    text = disabling(plugins)
    if not words:
        assert plan(text, Wanted(binpack={"nvidia.com/gpu": 1})) != text
        return
    with pytest.raises(ConfigError, match="would have no effect") as refusal:
        plan(text, Wanted(binpack={"nvidia.com/gpu": 1}))
    assert f"profiles[0].plugins.{words}" in str(refusal.value)
    assert "NodeResourcesFit to " in str(refusal.value)
    # Extenders are called all the same.
    assert plan(text, Wanted([OURS])) != text


OF_GO = [
    ("leaderElect: true", "leaderElect: yes"),
    ("leaderElect: true", "leaderElect: Off"),
    ("leaderElect: true", "leaderElect: true\nparallelism: 0x10\npercentageOfNodesToScore: 010"),
]


@pytest.mark.parametrize(("old", "new"), OF_GO)
def test_values_that_go_reads_in_its_way_are_taken_and_kept(old: str, new: str) -> None:
    text = BARE.replace(old, new)
    after = plan(text, Wanted([OURS]))
    assert after.startswith(text)
    assert (scheduler_config.election(text, FILE) is None) == ("Off" in new)


def test_names_that_go_would_read_as_other_values_are_quoted() -> None:
    named = {**OURS, "tlsConfig": {"serverName": "on"}, "httpTimeout": "010"}
    after = plan(BARE, Wanted([named]))
    assert 'serverName: "on"' in after
    assert 'httpTimeout: "010"' in after


@pytest.mark.parametrize("wanted", [Wanted([OURS], {"nvidia.com/gpu": 1}), Wanted()], ids=["present", "absent"])
def test_a_text_is_parsed_once_however_often_it_is_asked_about(wanted: Wanted, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    composed = yaml_text._composed
    monkeypatch.setattr(yaml_text, "_composed", lambda text: parsed.append(text) or composed(text))
    yaml_text.parsed.cache_clear()
    ours = Wanted([OURS], {"nvidia.com/gpu": 1})
    text = THEIRS if wanted.extenders else plan(THEIRS, ours)
    parsed.clear()

    after = plan(text, wanted, owned_by(ours), THEIRS)
    scheduler_config.holds(text, owned_by(ours), FILE)
    scheduler_config.binders(text, FILE)
    scheduler_config.election(after, FILE)

    assert after != text
    assert len(parsed) == len(set(parsed)) <= 2


KUBE_SCHEDULER = shutil.which(
    "kube-scheduler", path=os.pathsep.join([os.environ.get("KUBEBUILDER_ASSETS", ""), "/usr/local/kubebuilder/bin"])
)


def kube_scheduler_says(text: str, tmp_path: Path) -> str:
    """Empty when a real kube-scheduler reads the configuration, else its complaint."""
    kubeconfig = {
        "clusters": [{"name": "a", "cluster": {"server": "https://127.0.0.1:1"}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "current-context": "a",
        "users": [{"name": "a", "user": {"token": "t"}}],
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    (tmp_path / "config").write_text(text.replace("/etc/kubernetes/scheduler.conf", str(tmp_path / "kubeconfig")))
    command = [str(KUBE_SCHEDULER), "--config", str(tmp_path / "config"), "--secure-port", "0"]
    done = subprocess.run(
        [*command, "--write-config-to", str(tmp_path / "out")], capture_output=True, text=True, timeout=60, check=False
    )
    return done.stderr if done.returncode else ""


@pytest.mark.skipif(not KUBE_SCHEDULER, reason="no kube-scheduler in KUBEBUILDER_ASSETS or /usr/local/kubebuilder/bin")
@pytest.mark.parametrize("text", [BARE, THEIRS])
def test_a_real_kube_scheduler_reads_what_is_planned(text: str, tmp_path: Path) -> None:
    extender = {**OURS, "enableHTTPS": True, "httpTimeout": "5s", "nodeCacheCapable": True, "ignorable": True}

    planned = plan(text, Wanted([extender], {"nvidia.com/gpu": 3, "cpu": 1}))

    assert kube_scheduler_says(planned, tmp_path) == ""


@pytest.mark.skipif(not KUBE_SCHEDULER, reason="no kube-scheduler in KUBEBUILDER_ASSETS or /usr/local/kubebuilder/bin")
@pytest.mark.parametrize("text", [BARE.replace(old, new) for old, new in OF_GO])
def test_real_kube_scheduler_reads_values_as_we_do(text: str, tmp_path: Path) -> None:
    assert kube_scheduler_says(text, tmp_path) == ""
    its, ours = yaml.safe_load((tmp_path / "out").read_text()), yaml_text.load(text, FILE)
    assert its["leaderElection"]["leaderElect"] is ours["leaderElection"]["leaderElect"]
    for key in ("parallelism", "percentageOfNodesToScore"):
        assert its[key] == ours.get(key, its[key])


@pytest.mark.skipif(not KUBE_SCHEDULER, reason="no kube-scheduler in KUBEBUILDER_ASSETS or /usr/local/kubebuilder/bin")
@pytest.mark.parametrize(("plugins", "words"), PLUGINS)
def test_a_real_kube_scheduler_scores_by_what_is_not_refused(plugins: str, words: str, tmp_path: Path) -> None:
    assert kube_scheduler_says(disabling(plugins), tmp_path) == ""
    (profile,) = data_of((tmp_path / "out").read_text())["profiles"]
    score, multi = (profile["plugins"].get(point, {}) for point in ("score", "multiPoint"))
    names = [{item["name"] for item in found} for found in (score.get("enabled", ()), score.get("disabled", ()))]
    everywhere = (
        {item["name"] for item in multi["enabled"]} if names[1].isdisjoint({"*", "NodeResourcesFit"}) else set()
    )
    assert ("NodeResourcesFit" in names[0] | everywhere) is not bool(words)


@pytest.mark.skipif(not KUBE_SCHEDULER, reason="no kube-scheduler in KUBEBUILDER_ASSETS or /usr/local/kubebuilder/bin")
@pytest.mark.parametrize("text", [text for text, wanted, _words in REFUSED if wanted == Wanted()])
def test_a_real_kube_scheduler_refuses_what_is_refused(text: str, tmp_path: Path) -> None:
    assert kube_scheduler_says(text, tmp_path)


FLAGS = {
    "profiling": "false",
    "contention-profiling": "F",
    "kube-api-qps": "120.5",
    "kube-api-burst": "240",
    "kube-api-content-type": "application/json",
}


def test_configuration_repeats_the_flags_it_overrides() -> None:
    text = scheduler_config.base("/etc/kubernetes/scheduler.conf", True, FLAGS.get)

    assert plan(text, Wanted()) == text
    assert data_of(text) == {
        **data_of(BARE),
        "clientConnection": {
            **data_of(BARE)["clientConnection"],
            "contentType": "application/json",
            "qps": 120.5,
            "burst": 240,
        },
        "enableProfiling": False,
        "enableContentionProfiling": False,
    }
    for name in FLAGS:
        with pytest.raises(ConfigError, match=rf"--{name} is \$\(X\)"):
            scheduler_config.base("/c", True, {name: "$(X)"}.get)


@pytest.mark.skipif(not KUBE_SCHEDULER, reason="no kube-scheduler in KUBEBUILDER_ASSETS or /usr/local/kubebuilder/bin")
def test_a_real_kube_scheduler_is_by_file_what_it_was_by_flags(tmp_path: Path) -> None:
    text = scheduler_config.base("/etc/kubernetes/scheduler.conf", True, FLAGS.get)
    assert kube_scheduler_says(text, tmp_path) == ""
    by_file = data_of((tmp_path / "out").read_text())

    flags = [f"--{name}={value}" for name, value in FLAGS.items()]
    command = [str(KUBE_SCHEDULER), "--kubeconfig", str(tmp_path / "kubeconfig"), "--secure-port", "0", *flags]
    subprocess.run([*command, "--write-config-to", str(tmp_path / "flags")], timeout=60, check=True)
    assert by_file == data_of((tmp_path / "flags").read_text())


RESOURCES = ["nvidia.com/gpu", "cpu", "tencent.com/vcuda-core", "nvidia.com/mps-core"]


@st.composite
def wants(draw: st.DrawFn) -> Wanted:
    names = draw(st.lists(st.sampled_from(RESOURCES), unique=True, max_size=3))
    extenders = []
    for number, name in enumerate(names):
        extender: dict[str, Any] = {
            "urlPrefix": f"https://127.0.0.1:{9446 + number}/scheduler",
            "managedResources": [{"name": name}],
        }
        if draw(st.booleans()):
            extender["filterVerb"] = draw(st.sampled_from(["predicates", "filter"]))
        if draw(st.booleans()):
            extender["tlsConfig"] = {"caFile": "/a b/ca.crt"}
        extenders.append(extender)
    return Wanted(extenders, draw(st.dictionaries(st.sampled_from(RESOURCES), st.integers(1, 100), max_size=3)))


@st.composite
def configurations(draw: st.DrawFn) -> str:
    """The fixture less any of its parts, with or without bin packing of others."""
    data = data_of(THEIRS)
    for key in draw(
        st.sets(st.sampled_from(["percentageOfNodesToScore", "profiles", "extenders", "clientConnection"]))
    ):
        del data[key]
    for profile in data.get("profiles", []):
        for key in draw(st.sets(st.sampled_from(["plugins", "pluginConfig"]))):
            profile.pop(key, None)
    if "profiles" in data and draw(st.booleans()):
        strategy: dict[str, Any] = {"type": "MostAllocated"}
        if draw(st.booleans()):
            strategy["resources"] = [{"name": "memory", "weight": 7}]
        data["profiles"][0].setdefault("pluginConfig", []).append(
            {"name": "NodeResourcesFit", "args": {"ignoredResources": ["a/b"], "scoringStrategy": strategy}}
        )
    return "# keep me\n" + yaml.safe_dump(data, sort_keys=draw(st.booleans()))


def less(data: dict[str, Any], wanted: Wanted) -> dict[str, Any]:
    """The data less what is wanted, and less what is empty then."""
    data = copy.deepcopy(data)
    urls = {extender["urlPrefix"] for extender in wanted.extenders}
    data["extenders"] = [item for item in data.get("extenders", []) if item["urlPrefix"] not in urls]
    for profile in data.get("profiles", []):
        for plugin in profile.get("pluginConfig", []):
            strategy = plugin.get("args", {}).get("scoringStrategy")
            if strategy:
                strategy.setdefault("resources", [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}])
            if strategy and "resources" in strategy:
                strategy["resources"] = [item for item in strategy["resources"] if item["name"] not in wanted.binpack]
                if not strategy["resources"]:
                    del strategy["resources"]
                if strategy == {"type": "MostAllocated"}:
                    del plugin["args"]["scoringStrategy"]
            if strategy == {"type": "MostAllocated"}:
                plugin["args"].pop("scoringStrategy", None)
        profile["pluginConfig"] = [item for item in profile.get("pluginConfig", []) if item.get("args") != {}]

    def pruned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: pruned(item) for key, item in value.items() if pruned(item) not in ({}, [])}
        return [pruned(item) for item in value] if isinstance(value, list) else value

    result: dict[str, Any] = pruned(data)
    result["profiles"] = [item for item in result.get("profiles", []) if item != {"schedulerName": "default-scheduler"}]
    return result


@settings(max_examples=50)
@given(configurations(), wants(), wants())
def test_any_file_gets_changes_and_loses_our_part_alone(text: str, first: Wanted, second: Wanted) -> None:
    once = plan(text, first)
    assert plan(once, first, owned_by(first), text) == once

    twice = plan(once, second, owned_by(first), text)
    after = data_of(twice)
    for extender in second.extenders:
        assert extender in after["extenders"]
    scored = {
        item["name"]: item["weight"]
        for profile in after.get("profiles", [])
        for plugin in profile.get("pluginConfig", [])
        if plugin["name"] == "NodeResourcesFit"
        for item in plugin["args"]["scoringStrategy"].get("resources", [])
    }
    assert second.binpack.items() <= scored.items()
    assert less(after, second) == less(data_of(text), second)
    assert twice.startswith("# keep me\n")

    gone = plan(twice, Wanted(), owned_by(second), text)
    assert data_of(gone) == data_of(text)


EMPTY = (
    *("profiles: []  # none\n", "profiles: []\n", "profiles:\n", "profiles: null # x\n", "profiles: []\n# end\n", ""),
    *("extenders: []  # none\n", "extenders:\n", "profiles: [] # none\nextenders: [] # also\n# end\n"),
)


@pytest.mark.parametrize("edited", ["", "# a later hand\n", "percentageOfNodesToScore: 50\n"])
@pytest.mark.parametrize(
    "wanted", [Wanted([], {"a/b": 3}), Wanted([OURS], {}), Wanted([OURS], {"a/b": 3})], ids=["pack", "extend", "both"]
)
@pytest.mark.parametrize("tail", EMPTY)
def test_of_lists_without_entries_what_others_wrote_since_stays(tail: str, wanted: Wanted, edited: str) -> None:
    before = f"apiVersion: {API_VERSION}\nkind: KubeSchedulerConfiguration\n{tail}"
    text = scheduler_config.plan(before, wanted, Owned(), before, "F") + edited
    owned = Owned(frozenset(map(scheduler_config.key_of, wanted.extenders)), frozenset(wanted.binpack))
    after = scheduler_config.plan(text, Wanted(), owned, before, "F")
    first = {key: value or None for key, value in yaml.safe_load(before).items()}
    then = {key: value or None for key, value in yaml.safe_load(after).items()}
    assert then == first | (yaml.safe_load(edited) or {})
    for comment in ("# none", "# x", "# also", "# end", "# a later hand"):
        assert after.count(comment) == (before + edited).count(comment)
    assert scheduler_config.plan(after, Wanted(), owned, before, "F") == after


FIT = "profiles:\n- schedulerName: default-scheduler\n  pluginConfig:\n  - name: NodeResourcesFit\n"


@pytest.mark.parametrize(
    "fit",
    [
        *("    args:\n", "    args: null # x\n", "    args: {}\n", "    args:\n      scoringStrategy:\n", ""),
        *("    args: {scoringStrategy: {}}\n", "    args: {scoringStrategy: null}\n"),
        "    args:\n      scoringStrategy: {type: MostAllocated, resources: []}\n",
        "    args:\n      scoringStrategy:\n        resources: null\n        type: MostAllocated\n",
    ],
)
def test_a_strategy_that_says_nothing_is_given_back_as_it_was(fit: str) -> None:
    before = THEIRS[: THEIRS.index("profiles:")] + FIT + fit
    wanted = Wanted([], {"nvidia.com/gpu": 1, "cpu": 4})
    after = plan(before, wanted) + "parallelism: 7\n"
    gone = plan(after, Wanted(), owned_by(wanted), before)
    assert yaml_text.load(gone, FILE) == yaml_text.load(before + "parallelism: 7\n", FILE)


def test_a_strategy_that_others_made_another_since_stays() -> None:
    wanted = Wanted([], {"nvidia.com/gpu": 1})
    before = THEIRS[: THEIRS.index("profiles:")]
    ratio = "RequestedToCapacityRatio\n        requestedToCapacityRatio: {shape: [{utilization: 0, score: 0}]}"
    after = plan(before, wanted).replace("MostAllocated", ratio)
    (fit,) = data_of(plan(after, Wanted(), owned_by(wanted), before))["profiles"][0]["pluginConfig"]
    assert fit["args"]["scoringStrategy"].keys() == {"type", "requestedToCapacityRatio"}


def test_a_second_run_leaves_what_others_gave_the_same_extender() -> None:
    theirs = "extenders:\n- urlPrefix: https://127.0.0.1:9446/scheduler\n  ignorable: true\n  filterVerb: theirs\n"
    theirs += "  managedResources: [{name: tencent.com/vcuda-core}]\n"
    before, wanted = BARE + theirs, Wanted([OURS])
    after = plan(before, wanted)
    assert data_of(after)["extenders"] == [{**OURS, "ignorable": True}]
    assert plan(after, wanted, owned_by(wanted), before) == after
    less = Wanted([{name: value for name, value in OURS.items() if name != "filterVerb"}])
    (found,) = data_of(plan(after, less, owned_by(wanted), before))["extenders"]
    assert found["filterVerb"] == "theirs"
    assert found["ignorable"]


PROXY = "https://192.0.2.10:6443/api/v1/namespaces/kube-system/services"
SHARES = {
    **OURS,
    "managedResources": [{"name": f"{name}"} for name in ("tencent.com/vcuda-core", "tencent.com/vcuda-memory")]
    + [{"name": name} for name in ("nvidia.com/mps-core", "nvidia.com/mps-memory", "aliyun.com/gpu-mem")],
}
GPU_MANAGER = {"urlPrefix": f"{PROXY}/gpu-quota-admission/proxy/scheduler", "filterVerb": "predicates"}
REPLACED: list[dict[str, Any]] = [
    {**GPU_MANAGER, "managedResources": [{"name": "tencent.com/vcuda-core"}]},
    {**GPU_MANAGER, "urlPrefix": f"{PROXY}/https:gpu-admission:3456/proxy/scheduler", "managedResources": []},
    {"urlPrefix": "http://gpu-admission.kube-system:3456/scheduler", "filterVerb": "predicates"},
    {
        "urlPrefix": f"{PROXY}/nvidia-mps-scheduler-plugin/proxy/scheduler",
        "filterVerb": "predicates",
        "managedResources": [{"name": "nvidia.com/mps-core", "ignoredByScheduler": False}],
    },
    {
        "urlPrefix": "http://127.0.0.1:32766/gpushare-scheduler",
        "bindVerb": "bind",
        "managedResources": [{"name": "aliyun.com/gpu-mem"}, {"name": "aliyun.com/gpu-core.percentage"}],
    },
    {"urlPrefix": "http://theirs:1/x", "managedResources": [{"name": "nvidia.com/mps-memory"}]},
]
KEPT: list[dict[str, Any]] = [
    {"urlPrefix": "http://fpga:1", "managedResources": [{"name": "example.com/fpga"}]},
    {"urlPrefix": f"{PROXY}/volcano/proxy", "filterVerb": "predicates"},
    {"urlPrefix": f"{PROXY}/gpu-admission-of-fpgas/proxy", "managedResources": [{"name": "example.com/npu"}]},
]


@given(
    st.permutations([*REPLACED[:1], *KEPT]) | st.permutations([*REPLACED[1:], *KEPT]),
    st.sampled_from(["v1", "v1beta2", "v1beta3"]),
)
def test_takeover_replaces_extenders_and_gives_them_back(order: list[Any], version: str) -> None:
    text = f"{BARE.replace('/v1', f'/{version}')}{yaml.safe_dump({'extenders': order})}"
    wanted = Wanted([SHARES], takeover=True)
    out = scheduler_config.replaced(text, wanted, Owned(), FILE)

    once = plan(text, wanted)

    assert data_of(once)["extenders"] == [*(each for each in order if each in KEPT), SHARES]
    assert out == {scheduler_config.key_of(each) for each in order if each in REPLACED}
    assert scheduler_config.binders(text, FILE, wanted) == frozenset()
    owned = Owned(frozenset([scheduler_config.key_of(SHARES)]), replaced=out)
    # Asked once, it holds: a run that says nothing of it goes on without them.
    again = Wanted([SHARES])
    assert plan(once, again, owned, text) == once
    assert scheduler_config.replaced(once, again, owned, FILE) == out
    assert data_of(plan(once, Wanted(), owned, text))["extenders"] == order


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta3"])
@pytest.mark.parametrize("names", [["tencent.com/vcuda-core"], ["tencent.com/vcuda-core", "tencent.com/vcuda-memory"]])
def test_takeover_in_layout_proxied_where_both_have_one_address(version: str, names: list[str]) -> None:
    ours = {**GPU_MANAGER, "managedResources": [{"name": name} for name in names], "nodeCacheCapable": True}
    theirs = [REPLACED[0], KEPT[0]]
    text = BARE.replace("/v1", f"/{version}") + yaml.safe_dump({"extenders": theirs})
    wanted = Wanted([ours], takeover=True)
    out = scheduler_config.replaced(text, wanted, Owned(), FILE)
    owned = Owned(frozenset([scheduler_config.key_of(ours)]), replaced=out)

    once = plan(text, wanted)

    assert [each for each in data_of(once)["extenders"] if each["urlPrefix"] == ours["urlPrefix"]] == [ours]
    assert data_of(plan(once, Wanted(), owned, text))["extenders"] == theirs


@pytest.mark.parametrize("theirs", REPLACED)
def test_extender_that_ours_would_replace_is_refused_unasked(theirs: dict[str, Any]) -> None:
    text = BARE + yaml.safe_dump({"extenders": [theirs]})

    with pytest.raises(ConfigError, match="scheduler_takeover=true") as refusal:
        plan(text, Wanted([SHARES]))

    assert theirs["urlPrefix"] in str(refusal.value)


def test_extender_for_more_than_ours_stays_in_the_way() -> None:
    theirs = {"urlPrefix": "http://x", "managedResources": [{"name": "nvidia.com/mps-core"}, {"name": "a.com/b"}]}

    with pytest.raises(ConfigError, match=r"nvidia\.com/mps-core is managed by both"):
        plan(BARE + yaml.safe_dump({"extenders": [theirs]}), Wanted([SHARES], takeover=True))


def test_extender_returns_once_ours_has_let_go_of_its_resources() -> None:
    text = BARE + yaml.safe_dump({"extenders": [REPLACED[0], KEPT[0]]})
    wanted = Wanted([SHARES], takeover=True)
    owned = Owned(
        frozenset([scheduler_config.key_of(SHARES)]), replaced=frozenset([scheduler_config.key_of(REPLACED[0])])
    )
    less = Wanted([{**OURS, "managedResources": [{"name": "nvidia.com/mps-core"}]}])
    once = plan(text, wanted)

    assert data_of(plan(once, less, owned, text))["extenders"] == [REPLACED[0], KEPT[0], *less.extenders]
    assert scheduler_config.replaced(once, less, owned, FILE) == frozenset()
    taken = {"urlPrefix": "http://new", "managedResources": REPLACED[0]["managedResources"]}
    other = plan(once, Wanted([taken]), owned, BARE)
    assert data_of(plan(other, Wanted(), owned, text))["extenders"] == [KEPT[0], taken]
