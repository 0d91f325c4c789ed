# SPDX-License-Identifier: Apache-2.0
"""Files of v1beta2 and v1beta3 as v1 has them, read by the simulated cluster's decoder of v1, which is another."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler import config as scheduler_config
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler import versions
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.config import Owned, Wanted
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.schema import API_VERSION, ConfigError
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.schedulerconfig import load

FILE = "/etc/kubernetes/scheduler-config.yaml"
OURS: dict[str, Any] = {
    "urlPrefix": "https://127.0.0.1:9446/scheduler",
    "filterVerb": "predicates",
    "managedResources": [{"name": "tencent.com/vcuda-core"}],
}


def head(version: str) -> str:
    return f"apiVersion: kubescheduler.config.k8s.io/{version} # theirs\nkind: KubeSchedulerConfiguration\n"


def converted(text: str) -> dict[str, Any]:
    """The file once it holds an extender of ours, without that."""
    planned = scheduler_config.plan(text, Wanted([OURS]), Owned(), text, FILE)
    data: dict[str, Any] = yaml.safe_load(planned)
    assert data.pop("apiVersion") == API_VERSION
    assert data.pop("extenders")[-1] == OURS
    del data["kind"]
    return data


def scoring(*, enabled: list[str] = [], disabled: list[str] = [], configured: str = "") -> str:  # noqa: B006
    sets = {"enabled": [{"name": name} for name in enabled], "disabled": [{"name": name} for name in disabled]}
    return f"profiles:\n- plugins:\n    score: {sets}\n{configured}"


SPREAD_ALONE = {"enabled": [{"name": "PodTopologySpread"}], "disabled": [{"name": "*"}]}
CONVERTED: list[tuple[str, str, dict[str, Any]]] = [
    ("v1beta2", "healthzBindAddress: ''\nmetricsBindAddress: 0.0.0.0:0\nparallelism: 4\n", {"parallelism": 4}),
    ("v1beta2", "healthzBindAddress:\nparallelism: 4\n", {"parallelism": 4}),
    (
        "v1beta3",
        "leaderElection: {leaderElect: true, resourceLock: endpointsleases}\n",
        {"leaderElection": {"leaderElect": True, "resourceLock": "leases"}},
    ),
    (
        "v1beta2",
        "leaderElection: {leaderElect: false, resourceLock: endpoints}\n",
        {"leaderElection": {"leaderElect": False, "resourceLock": "endpoints"}},
    ),
    (
        "v1beta3",
        scoring(enabled=["SelectorSpread", "Mine"]),
        {"profiles": [{"plugins": {"score": {"enabled": [{"name": "Mine"}], "disabled": []}}}]},
    ),
    ("v1beta3", scoring(disabled=["SelectorSpread"]).replace("'enabled': [], ", ""), {"profiles": [{}]}),
    (
        "v1beta3",
        scoring(disabled=["NodeLabel"], configured="  pluginConfig: []\n"),
        {"profiles": [{"plugins": {"score": {"enabled": []}}, "pluginConfig": []}]},
    ),
    (
        "v1beta2",
        scoring(enabled=["SelectorSpread"], disabled=["*"]),
        {
            "profiles": [
                {"plugins": {"score": {"enabled": [{"name": "PodTopologySpread"}], "disabled": [{"name": "*"}]}}}
            ]
        },
    ),
    (
        "v1beta2",
        scoring(enabled=["PodTopologySpread", "SelectorSpread", "EBSLimits"], disabled=["*", "NodePreferAvoidPods"]),
        {
            "profiles": [
                {"plugins": {"score": {"enabled": [{"name": "PodTopologySpread"}], "disabled": [{"name": "*"}]}}}
            ]
        },
    ),
    (
        "v1beta3",
        "profiles:\n- schedulerName: a\n  pluginConfig: [{name: SelectorSpread}]\n",
        {"profiles": [{"schedulerName": "a"}]},
    ),
    (
        "v1beta2",
        "profiles:\n- pluginConfig:\n  - name: NodeResourcesFit\n    args:\n"
        "      apiVersion: kubescheduler.config.k8s.io/v1beta2\n      kind: NodeResourcesFitArgs\n"
        "      ignoredResources: [example.com/fpga]\n",
        {
            "profiles": [
                {
                    "pluginConfig": [
                        {
                            "name": "NodeResourcesFit",
                            "args": {
                                "apiVersion": API_VERSION,
                                "kind": "NodeResourcesFitArgs",
                                "ignoredResources": ["example.com/fpga"],
                            },
                        }
                    ]
                }
            ]
        },
    ),
]


@pytest.mark.parametrize(("version", "rest", "wanted"), CONVERTED)
def test_older_file_becomes_v1_with_what_v1_has(version: str, rest: str, wanted: dict[str, Any]) -> None:
    assert converted(head(version) + rest) == wanted


REFUSED: list[tuple[str, str]] = [
    ("healthzBindAddress: 0.0.0.0:10251\n", "healthzBindAddress is '0.0.0.0:10251'"),
    ("metricsBindAddress: 127.0.0.1:10251\n", "metricsBindAddress is '127.0.0.1:10251'"),
    ("leaderElection: {resourceLock: configmaps}\n", "leaderElection.resourceLock is configmaps"),
    ("algorithmSource: {policy: {file: {path: /p}}}\n", "algorithmSource is no field"),
    ("policy: {}\n", "policy is no field"),
    ("hardPodAffinitySymmetricWeight: 1\n", "hardPodAffinitySymmetricWeight is no field"),
    ("disablePreemption: true\n", "disablePreemption is no field"),
    ("profiles: 3\n", "profiles has to be a list"),
    (scoring(enabled=["Mine", "NodeLabel"]), r"profiles\[0\].plugins.score.enabled\[1\] is NodeLabel"),
    (scoring(enabled=["NodeResourcesMostAllocated"]), "is NodeResourcesMostAllocated.*scoringStrategy"),
    (
        scoring(enabled=["SelectorSpread"], disabled=["PodTopologySpread"]),
        r"enabled\[0\] is SelectorSpread.*PodTopologySpread does its work, and is disabled",
    ),
    (
        scoring(
            enabled=["SelectorSpread"],
            configured="  pluginConfig: [{name: PodTopologySpread, args: {defaultingType: List}}]\n",
        ),
        "defaultingType List",
    ),
    (
        "profiles:\n- pluginConfig: [{name: NodeLabel, args: {presentLabels: [a]}}]\n",
        r"profiles\[0\].pluginConfig\[0\] is of NodeLabel",
    ),
]


@pytest.mark.parametrize(("rest", "words"), REFUSED)
@pytest.mark.parametrize("version", ["v1beta2", "v1beta3"])
def test_field_that_v1_has_nothing_for_is_refused_by_name(version: str, rest: str, words: str) -> None:
    text = head(version) + rest
    with pytest.raises(ConfigError, match=words) as refusal:
        scheduler_config.plan(text, Wanted([OURS]), Owned(), text, FILE)
    assert FILE in str(refusal.value)
    assert str(refusal.value).endswith("then run again") or "has to be" in str(refusal.value)


def test_weights_that_rise_from_v1beta2_are_told() -> None:
    mine = scoring(enabled=["NodeAffinity"], disabled=["InterPodAffinity"])

    (note,) = versions.read(head("v1beta2") + mine, FILE).notes

    assert note.endswith(": TaintToleration 3")
    assert not versions.read(head("v1beta3") + mine, FILE).notes
    assert not versions.read(head("v1beta2") + scoring(disabled=["*"]), FILE).notes


DISABLED = [{"name": name} for name in ("NodeLabel", "SelectorSpread", "*")]
CONFIGURED = [{"name": "SelectorSpread"}, {"name": "Mine", "args": {"apiVersion": "example.com/v1beta2"}}]
LOCKS = ["leases", "configmapsleases", ""]
NAMES = st.sampled_from(["SelectorSpread", "EBSLimits", "Mine", "NodeResourcesFit", "PodTopologySpread"])
SETS = st.fixed_dictionaries(
    {},
    optional={
        "enabled": st.lists(st.fixed_dictionaries({"name": NAMES, "weight": st.integers(1, 9)}), max_size=3),
        "disabled": st.lists(st.sampled_from(DISABLED), max_size=2),
    },
)
PROFILE = st.fixed_dictionaries(
    {},
    optional={
        "plugins": st.dictionaries(st.sampled_from(["preScore", "score", "filter"]), st.none() | SETS, max_size=3),
        "pluginConfig": st.lists(
            st.sampled_from(
                [{"name": "SelectorSpread"}, {"name": "Mine", "args": {"apiVersion": "example.com/v1beta2"}}]
            ),
            max_size=2,
        ),
    },
)
OLDER = st.fixed_dictionaries(
    {"kind": st.just("KubeSchedulerConfiguration")},
    optional={
        "parallelism": st.integers(1, 64),
        "healthzBindAddress": st.sampled_from(["", ":0", "[::]:0", None]),
        "metricsBindAddress": st.sampled_from(["", "127.0.0.1:0"]),
        "enableProfiling": st.booleans(),
        "leaderElection": st.fixed_dictionaries(
            {"leaderElect": st.just(True)},
            optional={"resourceLock": st.sampled_from(LOCKS)},
        ),
        "podMaxBackoffSeconds": st.integers(10, 20),
        "profiles": st.lists(PROFILE, max_size=1),
        "extenders": st.just([{"urlPrefix": "http://fpga:80", "managedResources": [{"name": "example.com/fpga"}]}]),
    },
)


def kept_plugins(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The enabled plugins that v1 has, in the order of the file."""
    points = [point for profile in data.get("profiles") or () for point in (profile.get("plugins") or {}).values()]
    enabled = [item for point in points for item in (point or {}).get("enabled") or ()]
    return [item for item in enabled if item["name"] in ("Mine", "NodeResourcesFit")]


@given(
    OLDER,
    st.sampled_from(["v1beta2", "v1beta3"]),
    st.sampled_from([None, True]),
    st.lists(st.sampled_from(["# a remark", ""]), max_size=3),
)
def test_any_older_file_becomes_one_that_v1_decodes(
    data: dict[str, Any], version: str, flow: bool | None, remarks: list[str]
) -> None:
    group = API_VERSION.partition("/")[0]
    document = yaml.safe_dump({"apiVersion": f"{group}/{version}", **data}, default_flow_style=flow, sort_keys=False)
    text = "".join(f"{line}\n" for line in remarks) + document

    planned = scheduler_config.plan(text, Wanted([OURS]), Owned(), text, FILE)

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "config")
        path.write_text(planned)
        taken = load(path, Path)
    assert [each["urlPrefix"] for each in taken.extenders] == [
        *(each["urlPrefix"] for each in data.get("extenders", ())),
        OURS["urlPrefix"],
    ]
    after = yaml.safe_load(planned)
    assert not {"SelectorSpread", "EBSLimits", "NodeLabel"} & set(planned.replace(":", " ").replace(",", " ").split())
    for name in ("parallelism", "enableProfiling", "podMaxBackoffSeconds"):
        assert after.get(name) == data.get(name)
    assert kept_plugins(after) == kept_plugins(data)
    assert [line for line in remarks if line] == [line for line in planned.splitlines() if line == "# a remark"]
    # Nothing to put in or take out: not even the version changes.
    assert scheduler_config.plan(text, Wanted(), Owned(), text, FILE) == text
