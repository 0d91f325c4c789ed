# SPDX-License-Identifier: Apache-2.0
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.enforce import policy
from kube_accel.enforce.policy import Feedback, Limit, Policy

NATIVE = Path(__file__).parents[4] / "roles/gpu_plugins/files/kube_accel/native"
UUID = "GPU-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
GIB = 1 << 30
RECORDS = {
    "ka_policy": policy.POLICY_HEADER,
    "ka_policy_device": policy.POLICY_DEVICE,
    "ka_state": policy.STATE_HEADER,
    "ka_state_device": policy.STATE_DEVICE,
}
CONSTANTS = {
    "KA_LAYOUT": policy.NEWEST,
    "KA_DEVICES": policy.MAX_DEVICES,
    "KA_SLOTS": policy.SLOTS,
    "sizeof(struct ka_slot)": policy.SLOT_SIZE,
    "sizeof(struct ka_policy)": policy.policy_size(1),
    "sizeof(struct ka_state)": policy.state_size(1),
    "offsetof(struct ka_state, slot)": policy.state_head(1, policy.MAX_DEVICES),
    "offsetof(struct ka_policy, generation)": policy.GENERATION_OFFSET,
}


def test_the_layouts_are_those_of_the_interposer(tmp_path: Path) -> None:
    expected, lines = {}, []
    for name, fields in RECORDS.items():
        for place, (field, form) in enumerate(fields):
            before = policy.record(fields[:place]).size
            expected[f"{name}.{field}"] = f"{before} {policy.record(((field, form),)).size}"
            lines.append(
                f'printf("{name}.{field}=%zu %zu\\n", offsetof(struct {name}, {field}),'
                f" sizeof(((struct {name} *)0)->{field}));"
            )
    for name, value in CONSTANTS.items():
        expected[name] = str(value)
        lines.append(f'printf("{name}=%zu\\n", (size_t)({name}));')
    lines += ['printf("%s\\n%s\\n", KA_POLICY_MAGIC, KA_STATE_MAGIC);', 'printf("%s\\n", KA_POLICY_PATH);']
    source = tmp_path / "offsets.c"
    source.write_text(f'#include <stdio.h>\n#include "abi.h"\nint main(void) {{\n{chr(10).join(lines)}\n}}\n')
    subprocess.run(["gcc", "-I", NATIVE, "-o", tmp_path / "offsets", source], check=True)
    *told, policy_magic, state_magic, _path = subprocess.run(
        [tmp_path / "offsets"], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert dict(line.split("=") for line in told) == expected
    assert policy.pack_policy(Policy((Limit(UUID, 1, 1),)), 2)[:8] == policy_magic.encode()
    assert policy.fresh_state(1)[:8] == state_magic.encode() + b"\0"


limits = st.builds(
    Limit,
    st.uuids().map(lambda value: f"GPU-{value}"),
    st.integers(0, 2**63),
    st.integers(0, 100),
    st.integers(0, 100),
    st.integers(0, 2**40),
)
told = st.builds(
    Feedback,
    st.none() | st.integers(0, 2**60),
    st.none() | st.integers(0, 1000),
    st.none() | st.integers(0, 1000),
)


@given(st.lists(st.tuples(limits, told), min_size=1, max_size=16), st.integers(0, 2**32 - 1), st.integers(0, 2**63))
def test_what_is_packed_is_read_again(devices: list[tuple[Limit, Feedback]], generation: int, at: int) -> None:
    feedback = tuple(entry for _, entry in devices)
    written = Policy(
        tuple(limit for limit, _ in devices), feedback if any(e != Feedback() for e in feedback) else (), at
    )
    data = policy.pack_policy(written, generation)
    assert len(data) == policy.policy_size(1)
    assert policy.read_policy(data) == (written, generation)
    before = policy.pack_policy(Policy(written.limits), generation)
    assert policy.with_feedback(before, feedback, at) == data


def test_uuids_are_in_the_order_of_their_text() -> None:
    assert policy.uuid_bytes(UUID)[:4] == b"\x0f\x1e\x2d\x3c"


@pytest.mark.parametrize("count", [0, 17])
def test_a_policy_is_for_a_container_of_this_earth(count: int) -> None:
    with pytest.raises(ValueError, match="1 to 16 GPUs"):
        policy.pack_policy(Policy((Limit(UUID, 1, 1),) * count), 2)


def test_an_unknown_layout_is_refused_by_number() -> None:
    good = policy.pack_policy(Policy((Limit(UUID, GIB, 30),)), 2)
    with pytest.raises(ValueError, match="layout 7 is none of 1"):
        policy.read_policy(good[:8] + b"\x07" + good[9:])
    with pytest.raises(ValueError, match="layout 7"):
        policy.pack_policy(Policy((Limit(UUID, GIB, 30),), layout=7), 2)


@given(st.binary(max_size=1200))
def test_a_damaged_policy_is_refused_and_never_believed(data: bytes) -> None:
    good = policy.pack_policy(Policy((Limit(UUID, GIB, 30),)), 2)
    for candidate in (data, good[:12] + data):
        try:
            found, _ = policy.read_policy(candidate)
        except ValueError:
            continue
        assert 1 <= len(found.limits) <= 16


@pytest.mark.attack
@given(st.binary(min_size=policy.state_head(1, 16), max_size=policy.state_head(1, 16)), st.integers(1, 16))
def test_hostile_state_is_read_as_plausible_numbers(data: bytes, devices: int) -> None:
    account = policy.read_state(data, devices, 1)
    assert [use.used_bytes for use in policy.read_use(data, devices, 1)] == [one.used_bytes for one in account.devices]
    assert len(account.devices) == devices
    for device in account.devices:
        assert 0 <= device.denied_limit <= 2**53
        assert 0 <= device.used_bytes <= 2**53
    assert 0 <= account.denied_policy <= 2**53


def test_a_state_that_was_cut_short_says_so() -> None:
    with pytest.raises(ValueError, match="cut short"):
        policy.read_state(policy.fresh_state(1), 1, 1)
    with pytest.raises(ValueError, match="cut short"):
        policy.read_use(policy.fresh_state(1), 1, 1)


def test_a_fresh_state_has_counted_nothing() -> None:
    account = policy.read_state(policy.fresh_state(2).ljust(policy.state_size(1), b"\0"), 2, 1)
    assert account == policy.Account((policy.DeviceAccount(0, 0, 0),) * 2, 0)


@pytest.mark.parametrize(
    ("nvml", "before", "after", "last", "expected"),
    [
        (500, 400, 400, None, 0),
        (500, 400, 400, 100, 100),
        (500, 400, 400, 30, 30),
        (500, 300, 500, 100, 0),
        (500, 500, 300, 100, 0),
        (300, 400, 400, 100, 0),
    ],
)
def test_only_what_two_rounds_saw_is_charged(
    nvml: int, before: int, after: int, last: int | None, expected: int
) -> None:
    assert policy.uncounted(nvml, before, after, last) == expected


def test_whole_gpus_have_no_limits_and_overhead_leaves_room() -> None:
    found = policy.limits_for([(UUID, 100, 80 * GIB), (UUID, 30, GIB), (UUID, 0, 64 * GIB)], 100, GIB)
    assert [(limit.memory_bytes, limit.cores, limit.context_overhead_bytes) for limit in found] == [
        (0, 100, 0),
        (GIB, 30, GIB // 2),
        (64 * GIB, 0, GIB),
    ]
