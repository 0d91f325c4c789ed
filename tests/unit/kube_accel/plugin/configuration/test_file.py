# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.plugin.configuration.file import ConfigError, Configuration, parse
from kube_accel.shared.offers import Replication
from kube_accel.sharing.delivery import Strategy

FULL: dict[str, Any] = {
    "version": "v1",
    "flags": {
        "migStrategy": "mixed",
        "failOnInitError": True,
        "nvidiaDriverRoot": "/run/nvidia/driver",
        "gdrcopyEnabled": True,
        "gdsEnabled": False,
        "mofedEnabled": None,
        "plugin": {
            "passDeviceSpecs": True,
            "deviceListStrategy": ["cdi-cri", "envvar"],
            "deviceIDStrategy": "index",
            "cdiAnnotationPrefix": "cdi.k8s.io/",
            "containerDriverRoot": "/driver-root",
            "sharedDevicesAllocationPolicy": "packed",
        },
        "gfd": {"oneshot": False, "sleepInterval": "60s"},
    },
    "imex": {"channelIDs": [0], "required": True},
    "sharing": {
        "timeSlicing": {
            "renameByDefault": True,
            "failRequestsGreaterThanOne": True,
            "resources": [
                {"name": "nvidia.com/gpu", "replicas": 4},
                {"name": "mig-1g.10gb", "rename": "small", "replicas": 2, "devices": ["0:1", 3]},
            ],
        }
    },
}


def text(document: object) -> str:
    return yaml.safe_dump(document)


def problems(document: object) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(document if isinstance(document, str) else text(document))
    return str(caught.value)


def test_everything_is_taken() -> None:
    assert parse(text(FULL)) == Configuration(
        mig_strategy="mixed",
        device_list_strategy=(Strategy.CDI_CRI, Strategy.ENVVAR),
        device_id_strategy="index",
        pass_device_specs=True,
        cdi_annotation_prefix="cdi.k8s.io/",
        driver_root="/run/nvidia/driver",
        container_driver_root="/driver-root",
        gdrcopy=True,
        gds=False,
        mofed=None,
        pack_shared=True,
        imex_channels=(0,),
        replications=(
            Replication("nvidia.com/gpu", "nvidia.com/gpu.shared", 4),
            Replication("nvidia.com/mig-1g.10gb", "nvidia.com/small", 2, ("0:1", "3")),
        ),
        one_replica_each=True,
        notes=(
            "flags.failOnInitError has no effect here",
            "flags.gfd.oneshot has no effect here",
            "flags.gfd.sleepInterval has no effect here",
            "imex.required has no effect here: a channel that does not exist is left out",
        ),
    )


@pytest.mark.parametrize(
    "document",
    [
        "",
        "# nothing yet\n",
        "---\n",
        "{}",
        "null",
        "version: v1\n",
        "version:\n",
        'version: ""\n',
        "flags: {}",
        "version: v1\nflags:\nsharing:\n  timeSlicing:\n",
        "flags: {nvidiaDriverRoot: ''}",
        "version: v1\n---\nversion: v2\n",
    ],
)
def test_empty_file_leaves_all_to_flags_and_defaults(document: str) -> None:
    assert parse(document) == Configuration()


def test_strategies_may_be_one_text() -> None:
    document = {"version": "v1", "flags": {"plugin": {"deviceListStrategy": "volume-mounts, envvar"}}}
    assert parse(text(document)).device_list_strategy == (Strategy.VOLUME_MOUNTS, Strategy.ENVVAR)


def test_a_name_given_to_a_shared_resource_beats_the_default_one() -> None:
    document = deepcopy(FULL)
    document["sharing"]["timeSlicing"]["resources"] = [{"name": "gpu", "rename": "gpu", "replicas": 2}]
    assert parse(text(document)).replications == (Replication("nvidia.com/gpu", "nvidia.com/gpu", 2),)


def test_every_mistake_is_named_at_once() -> None:
    document = deepcopy(FULL)
    document["flags"]["plugin"]["passDeviceSpecs"] = "always"
    document["sharing"]["timeSlicing"]["resources"][1]["replicas"] = "four"
    document["flags"]["migStrategy"] = "both"
    said = problems(document)
    assert "flags.plugin.passDeviceSpecs: is 'always'; it must be true or false" in said
    assert "sharing.timeSlicing.resources[1].replicas: is 'four'; it must be a whole number, at least 1" in said
    assert "flags.migStrategy: is 'both'; it must be one of none, single, mixed" in said


SLICES = "sharing: {{timeSlicing: {{resources: [{{name: gpu, {}}}]}}}}"


@pytest.mark.parametrize(
    ("says", "replicas", "devices"),
    [
        ("replicas: 16384", 16384, None),
        ("replicas: 4.0", 4, None),
        ("replicas: 1e2", 100, None),
        ("replicas: 0o10", 8, None),
        ("replicas: 010", 8, None),
        ("replicas: 0x10", 16, None),
        ("replicas: 1_000", 1000, None),
        ("replicas: 2, devices: [1:0, 12:5, 3]", 2, ("1:0", "12:5", "3")),
        ("replicas: 2, devices: 3.0", 2, 3),
    ],
)
def test_numbers_are_read_as_go_reads_them(says: str, replicas: int, devices: object) -> None:
    """sigs.k8s.io/yaml makes JSON of it, by yaml.v2: without numbers of base 60, and with those of a point."""
    gpu = "nvidia.com/gpu"
    assert parse(SLICES.format(says)).replications == (Replication(gpu, gpu, replicas, devices),)  # type: ignore[arg-type]


def test_switches_are_what_go_takes_for_booleans() -> None:
    for says, means in (("y", True), ("On", True), ("n", False), ("NO", False)):
        assert parse(f"flags: {{gdsEnabled: {says}}}").gds is means


def test_keys_differ_in_case_where_go_lets_them() -> None:
    found = parse("Version: v1\nFLAGS: {MigStrategy: mixed, migstrategy: single, Plugin: {DEVICEIDSTRATEGY: index}}")
    assert (found.mig_strategy, found.device_id_strategy, found.notes) == ("single", "index", ())
    both = parse("flags: {migStrategy: mixed, MIGSTRATEGY: single}")
    assert both.mig_strategy == "mixed"


def test_a_type_that_reads_its_keys_exactly_takes_no_other_case() -> None:
    said = problems("sharing: {timeSlicing: {resources: [{name: gpu, Replicas: 4}]}}")
    assert said.startswith("sharing.timeSlicing.resources[0].replicas: is None")


def test_a_resource_may_be_in_the_list_again() -> None:
    """One entry for some devices and one for others."""
    resources = "[{name: gpu, replicas: 2, devices: [0]}, {name: gpu, replicas: 3, devices: [1]}]"
    found = parse(f"sharing: {{timeSlicing: {{resources: {resources}}}}}")
    assert [(each.replicas, each.devices) for each in found.replications] == [(2, ("0",)), (3, ("1",))]
    assert found.notes == ()


def test_two_names_for_a_resource_are_told_of() -> None:
    resources = "[{name: gpu, replicas: 2}, {name: gpu, rename: other, replicas: 3}]"
    (note,) = parse(f"sharing: {{timeSlicing: {{resources: {resources}}}}}").notes
    assert note.startswith("sharing.timeSlicing.resources[1]: nvidia.com/gpu is in the list twice with different names")


@pytest.mark.parametrize(
    ("sharing", "said"),
    [
        ({"mps": {"resources": []}}, "sharing.mps.resources: must be a list"),
        ({"mps": {"resources": [{"name": "gpu", "replicas": 0}]}}, "sharing.mps.resources[0].replicas: is 0"),
        ({"timeSlicing": {"renameByDefault": True}}, "sharing.timeSlicing.resources: must be a list"),
        ({"timeSlicing": {"resources": []}}, "sharing.timeSlicing.resources: must be a list"),
        ({"timeSlicing": {"resources": ["gpu"]}}, "sharing.timeSlicing.resources[0]: is 'gpu'; it must be a mapping"),
        ({"timeSlicing": {"resources": [{"name": "gpu"}]}}, "resources[0].replicas: is None"),
        ({"timeSlicing": {"resources": [{"name": "gpu", "replicas": 0}]}}, "resources[0].replicas: is 0"),
        ({"timeSlicing": {"resources": [{"name": "gpu", "replicas": True}]}}, "resources[0].replicas: is True"),
        ({"timeSlicing": {"resources": [{"replicas": 2}]}}, "resources[0].name: is None"),
        ({"timeSlicing": {"resources": [{"name": "a/b", "replicas": 2}]}}, "resources[0].name: is 'a/b'"),
        ({"timeSlicing": {"resources": [{"name": "g" * 53, "replicas": 2}]}}, "resources[0].name: is 'ggg"),
        (
            {"timeSlicing": {"resources": [{"name": "mps-core", "replicas": 2}]}},
            "resources[0].name: is 'mps-core', which another mode offers",
        ),
        ({"timeSlicing": {"resources": [{"name": "gpu", "replicas": 2.5}]}}, "resources[0].replicas: is 2.5"),
        ({"timeSlicing": {"resources": [{"name": "gpu", "replicas": float("inf")}]}}, "replicas: is inf"),
        (
            {"timeSlicing": {"resources": [{"name": "gpu", "replicas": 2, "devices": "some"}]}},
            "resources[0].devices: is 'some'; it must be all, a number of devices, or a list of indices and UUIDs",
        ),
        (
            {"timeSlicing": {"resources": [{"name": "gpu", "replicas": 2, "devices": []}]}},
            "resources[0].devices: is []",
        ),
        ({"timeSlicing": {"resources": [{"name": "gpu", "replicas": 2, "devices": 0}]}}, "resources[0].devices: is 0"),
    ],
)
def test_what_cannot_be_shared_is_refused(sharing: object, said: str) -> None:
    assert said in problems({"version": "v1", "sharing": sharing})


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("- version", "the file: is ['version']"),
        ("version: v2", "version: is 'v2'; it must be v1"),
        ("version: 1", "version: is 1; it must be v1"),
        ("version: v1\n  flags: {", "not YAML: "),
        ("version: v1\nflags: {plugin: {deviceListStrategy: cdi}}", "flags.plugin.deviceListStrategy: is 'cdi'"),
        ("version: v1\nflags: {plugin: {deviceListStrategy: [[]]}}", "flags.plugin.deviceListStrategy: is [[]]"),
        ("version: v1\nflags: {gdsEnabled: 'yes'}", "flags.gdsEnabled: is 'yes'; it must be true or false"),
        ("version: v1\nflags: {nvidiaDriverRoot: []}", "flags.nvidiaDriverRoot: is []; it must be a text"),
        ("version: v1\nimex: {channelIDs: [1]}", "imex.channelIDs: is [1]; it must be [] or [0]"),
    ],
)
def test_what_is_no_configuration_is_refused(document: str, said: str) -> None:
    assert said in problems(document)


MPS = "sharing: {mps: {resources: [{name: gpu, replicas: 4}]}}"


def test_replicas_by_mps_are_one_a_container_by_default() -> None:
    """NewConfig of NVIDIA's plugin, which preserves what it did before it had the choice."""
    gpu = "nvidia.com/gpu"
    found = parse(MPS)
    assert found.replications == (Replication(gpu, gpu, 4, by_mps=True),)
    assert found.one_replica_each
    for says in (True, False):
        key = f"failRequestsGreaterThanOne: {str(says).lower()}"
        assert parse(MPS.replace("mps: {", f"mps: {{{key}, ")).one_replica_each is says


def test_mps_goes_before_time_slicing_and_shares_all_devices() -> None:
    slices, clients = "[{name: gpu, replicas: 9}]", "[{name: gpu, replicas: 2, devices: 1}]"
    found = parse(f"sharing: {{timeSlicing: {{resources: {slices}}}, mps: {{resources: {clients}}}}}")
    assert [(each.replicas, each.devices, each.by_mps) for each in found.replications] == [(2, None, True)]
    assert found.notes == (
        "sharing.timeSlicing has no effect beside sharing.mps",
        "devices has no effect in sharing.mps: all GPUs of a resource are shared",
    )


def test_mps_does_not_go_with_mig_devices_by_profile() -> None:
    said = problems(f"flags: {{migStrategy: mixed}}\n{MPS}")
    assert said.startswith("flags.migStrategy: is mixed, which MPS does not go with")
    assert parse(f"flags: {{migStrategy: single}}\n{MPS}").mig_strategy == "single"


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
KEYS = st.sampled_from(
    [
        *("version", "flags", "sharing", "timeSlicing", "mps", "resources"),
        *("plugin", "name", "replicas", "devices", "gfd", "imex"),
    ]
) | st.text(max_size=4)
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)


@given(st.dictionaries(KEYS, VALUES) | VALUES)
def test_whatever_comes_is_read_or_refused(document: object) -> None:
    for candidate in (document, {"version": "v1", "sharing": {"timeSlicing": document}, "flags": document}):
        with suppress(ConfigError):
            assert isinstance(parse(yaml.dump(candidate, Dumper=yaml.SafeDumper)), Configuration)


def paths(value: object, found: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Yield the path of every mapping in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    below = [path for key, item in inner for path in paths(item, (*found, key))]
    return [found, *below] if isinstance(value, dict) else below


@given(st.sampled_from(paths(FULL)))
def test_an_unknown_key_is_told_of_wherever_it_is(path: tuple[str | int, ...]) -> None:
    document = deepcopy(FULL)
    section: Any = document
    for step in path:
        section = section[step]
    section["unheardOf"] = 1
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in (*path, "unheardOf"))
    found = parse(text(document))
    (note,) = set(found.notes) - set(parse(text(FULL)).notes)
    assert note.startswith(f"{where.lstrip('.')} has no effect: the key is not known; known are ")
    assert replace(found, notes=()) == replace(parse(text(FULL)), notes=())
