# SPDX-License-Identifier: Apache-2.0
"""What a namespace may have: as an administrator writes it, and as a pod meets it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.model import Mode, PodRequest
from kube_accel.placement.demand import Demand
from kube_accel.placement.quota import check_quota
from kube_accel.shared.quota import Limit, NamespaceQuota, Quota, QuotaError, parse
from unit.kube_accel.placement.test_choose import APP, GIB, INIT, pod, share, whole

TEXT = """
version: 1
pools:
  training: {gpu-pool: training}
  inference:
    gpu-pool: inference
    zone: "1"
namespaces:
  team-a:
    pools: [training]
    limits:
      - model: H100
        cores: 800
        memory: 640Gi
        cards: 2
      - memory: 1Ti
  team-b:
    pools: []
  "*":
    limits: [{cores: 100}]
"""
TRAINING, INFERENCE = {"gpu-pool": "training", "other": "x"}, {"gpu-pool": "inference", "zone": "1"}
QUOTA = Quota(
    pools={"training": {"gpu-pool": "training"}, "inference": INFERENCE},
    namespaces={
        "team-a": NamespaceQuota(
            frozenset({"training"}), (Limit("h100", 800, 640 * GIB, 2), Limit(memory_bytes=1024 * GIB))
        ),
        "team-b": NamespaceQuota(frozenset()),
        "*": NamespaceQuota(None, (Limit(cores=100),)),
    },
)
H100 = "NVIDIA H100 80GB HBM3"


def test_what_an_administrator_writes() -> None:
    assert parse(TEXT) == QUOTA


def test_json_is_read_as_well_with_tabs() -> None:
    document = {"version": 1, "pools": {"a": {"x": "1"}}, "namespaces": {"n": {"pools": ["a"], "limits": []}}}
    assert parse(json.dumps(document, indent="\t")) == Quota({"a": {"x": "1"}}, {"n": NamespaceQuota(frozenset({"a"}))})


def test_a_rule_can_be_written_once_for_several_namespaces() -> None:
    quota = parse("{version: 1, namespaces: {a: &rule {limits: [{cores: 1}]}, b: *rule}}")
    assert quota.of("a") == quota.of("b") == NamespaceQuota(None, (Limit(cores=1),))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version: 1", "version: 2", "version: write 1"),
        ("version: 1", "", "version: write 1"),
        ("version: 1", "versoin: 1", "line 2: versoin: unknown key; did you mean version?"),
        ("limits:\n", "limit:\n", "line 11: namespaces.team-a.limit: unknown key; did you mean limits?"),
        ("memory: 640", "memry: 640", "line 14: namespaces.team-a.limits[0].memry: unknown key; did you mean memory?"),
        ("cards: 2", "weight: 2", "line 15: namespaces.team-a.limits[0].weight: unknown key; known are model, cores, "),
        ("cores: 800", "cores: 8h", "line 13: namespaces.team-a.limits[0].cores: '8h' is not a quantity"),
        ("cores: 800", "cores: -1", "line 13: namespaces.team-a.limits[0].cores: '-1' is not a whole number"),
        ("cores: 800", "cores: 1.5", "line 13: namespaces.team-a.limits[0].cores: '1.5' is not a whole number"),
        ("cores: 800", "cores: [800]", "line 13: namespaces.team-a.limits[0].cores: write a single value"),
        ("cores: 800", "cores:", "line 13: namespaces.team-a.limits[0].cores: write a single value"),
        ("cores: 800", "model: A100", "line 13: namespaces.team-a.limits[0].model: stands here a second time"),
        ("model: H100", "model: ''", "line 12: namespaces.team-a.limits[0]: model: write a part of the GPU's name"),
        ("- memory: 1Ti", "- model: T4", "line 16: namespaces.team-a.limits[1]: write at least one of cores, memory"),
        ("- memory: 1Ti", "- {model: h100, cores: 1}", "line 16: namespaces.team-a.limits[1]: a second limit"),
        ("- memory: 1Ti", "- 1Ti", "line 16: namespaces.team-a.limits[1]: write keys with values: model, cores"),
        ("[{cores: 100}]", "{cores: 100}", "line 20: namespaces.*.limits: write a list"),
        ("pools: [training]", "pools: [t]", "line 10: namespaces.team-a.pools[0]: no pool t under pools; known are"),
        ("pools: [training]", "pools: training", "line 10: namespaces.team-a.pools: write a list"),
        ("pools: [training]", "pools:", "line 10: namespaces.team-a.pools: write a list"),
        ("{gpu-pool: training}", "{}", "line 4: pools.training: write at least one label"),
        ("{gpu-pool: training}", "{gpu-pool: {}}", "line 4: pools.training.gpu-pool: write a single value"),
        ("team-b:", "Team_B:", "line 18: namespaces.Team_B: not a name Kubernetes takes"),
        ("team-b:", "team-a:", "line 17: namespaces.team-a: stands here a second time"),
        ("{gpu-pool: training}", "{gpu-pool: training", "not YAML"),
    ],
)  # fmt: skip
def test_error_names_line_key_and_valid_values(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(QuotaError) as raised:
        parse(TEXT.replace(old, new, 1))
    assert message in str(raised.value)


@pytest.mark.parametrize("text", ["", "# nothing\n", "[]", "version", "a: b: c", "\x00", "--- 1\n--- 2", "[" * 5000])
def test_what_is_no_quota_at_all(text: str) -> None:
    with pytest.raises(QuotaError):
        parse(text)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(["version", "pools", "namespaces", "limits", "cores", "team"])


@given(st.text(max_size=60) | st.dictionaries(keys, st.just(1) | json_values).map(json.dumps))
def test_any_text_is_a_quota_or_an_error(text: str) -> None:
    try:
        parse(text)
    except QuotaError:
        return


SHARE = pod(share(30, 8))


@pytest.mark.parametrize(
    ("namespace", "labels", "reason"),
    [
        ("team-a", TRAINING, None),
        ("team-a", INFERENCE, "namespace team-a may use pool training; this node is not in it"),
        ("team-a", {}, "namespace team-a may use pool training; this node is not in it"),
        ("team-b", TRAINING, "namespace team-b may use no pool; this node is not in it"),
        ("team-c", {}, None),
    ],
)
def test_pools(namespace: str, labels: dict[str, str], reason: str | None) -> None:
    assert check_quota(QUOTA, namespace, SHARE, labels, H100, 80 * GIB, {}) == reason


def test_a_node_of_several_pools() -> None:
    quota = Quota(QUOTA.pools, {"n": NamespaceQuota(frozenset({"training", "inference"}))})
    assert check_quota(quota, "n", SHARE, INFERENCE, H100, 80 * GIB, {}) is None
    assert check_quota(quota, "n", SHARE, {"gpu-pool": "inference"}, H100, 80 * GIB, {}) == (
        "namespace n may use pools inference, training; this node is not in it"
    )


@pytest.mark.parametrize(
    ("request_", "model", "used", "reason"),
    [
        pytest.param(SHARE, H100, {H100: Demand(770, 632 * GIB, 2)}, None, id="up to the limit"),
        pytest.param(
            SHARE, H100, {H100: Demand(771, 0, 2)}, "for h100 GPUs: needs 30 % of a GPU; 771 % of 800 % is in use",
            id="cores",
        ),
        pytest.param(
            SHARE, H100, {"NVIDIA H100 PCIe": Demand(0, 636 * GIB, 0)},
            "for h100 GPUs: needs 8 GiB of GPU memory; 636 GiB of 640 GiB is in use", id="memory on all that match",
        ),
        pytest.param(
            SHARE, "Tesla T4", {H100: Demand(800, 600 * GIB, 8), "Tesla T4": Demand(0, 424 * GIB, 0)},
            "for GPUs: needs 8 GiB of GPU memory; 1024 GiB of 1024 GiB is in use", id="all GPUs together",
        ),
        pytest.param(SHARE, "Tesla T4", {H100: Demand(800, 600 * GIB, 8)}, None, id="another model"),
        pytest.param(
            pod(whole(2), mode=Mode.PGPU), H100, {H100: Demand(100, 80 * GIB, 1)},
            "for h100 GPUs: needs 2 whole GPUs; 1 of 2 are in use", id="cards",
        ),
        pytest.param(pod(whole(1)), H100, {H100: Demand(100, 80 * GIB, 1)}, None, id="the last card"),
        pytest.param(
            pod(whole(7)), H100, {H100: Demand(200, 0, 0)},
            "for h100 GPUs: needs 700 % of a GPU; 200 % of 800 % is in use", id="whole cards count as cores",
        ),
        pytest.param(SHARE, H100, {H100: Demand(0, 0, 9)}, None, id="a share needs no card"),
        pytest.param(pod(share(0, 8), mode=Mode.CGPU), H100, {H100: Demand(900, 0, 0)}, None, id="nor memory cores"),
        pytest.param(
            pod(share(90, 8, INIT, "a"), share(30, 8, APP, "b")), H100, {H100: Demand(710, 0, 0)}, None,
            id="init containers end",
        ),
    ],
)  # fmt: skip
def test_limits(request_: PodRequest, model: str, used: dict[str, Demand], reason: str | None) -> None:
    expected = None if reason is None else f"quota of namespace team-a {reason}"
    assert check_quota(QUOTA, "team-a", request_, TRAINING, model, 80 * GIB, used) == expected


def test_no_quota_limits_nobody() -> None:
    assert (
        check_quota(Quota(), "team-a", pod(whole(8)), {}, H100, 80 * GIB, {H100: Demand(10**6, 2**60, 10**4)}) is None
    )


def test_namespaces_without_an_entry_share_a_rule_not_their_use() -> None:
    assert check_quota(QUOTA, "team-x", SHARE, {}, H100, 80 * GIB, {H100: Demand(70, 0, 0)}) is None
    assert check_quota(QUOTA, "team-x", SHARE, {}, H100, 80 * GIB, {H100: Demand(71, 0, 0)}) is not None
