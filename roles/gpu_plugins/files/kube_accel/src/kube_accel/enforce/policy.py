# SPDX-License-Identifier: Apache-2.0
"""The bytes between this daemon and the interposer in a container: ``native/abi.h``, by layout. Pure.

The policy is ours alone to write. The state is mapped writable into the container: whatever it says is a tenant's word,
good for counting and for nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

NEWEST: Final = 1
"""The layout that containers start with."""
MAX_DEVICES: Final = 16
GENERATION_OFFSET: Final = 16
"""Place of the policy's sequence number, which is odd while the rest is written; the same in every layout."""

_POLICY_MAGIC, _STATE_MAGIC = b"KAPOLICY", b"KASTATE\0"
_UNKNOWN64, _UNKNOWN32 = 2**64 - 1, 2**32 - 1
_MOST = 2**53
"""What a number of a state is taken for at most: more bytes or refusals than any container can have."""

Fields = tuple[tuple[str, str], ...]
"""Names, and formats of the module ``struct``, little-endian; together without gaps."""

POLICY_HEADER: Final[Fields] = (
    ("magic", "8s"),
    ("layout", "I"),
    ("size", "I"),
    ("generation", "I"),
    ("flags", "I"),
    ("device_count", "I"),
    ("reserved", "I"),
    ("feedback_at_ns", "Q"),
    ("reserved2", "24s"),
)
POLICY_DEVICE: Final[Fields] = (
    ("uuid", "16s"),
    ("memory_limit_bytes", "Q"),
    ("context_overhead_bytes", "Q"),
    ("core_percent", "I"),
    ("core_soft_percent", "I"),
    ("feedback_uncounted_bytes", "Q"),
    ("feedback_busy_permille", "I"),
    ("feedback_others_permille", "I"),
    ("reserved", "Q"),
)
STATE_HEADER: Final[Fields] = (
    ("magic", "8s"),
    ("layout", "I"),
    ("size", "I"),
    ("device_count", "I"),
    ("slot_count", "I"),
    ("slots_high", "I"),
    ("reserved", "I"),
    ("denied_policy", "Q"),
    ("reserved2", "24s"),
)
STATE_DEVICE: Final[Fields] = (
    ("used_bytes", "Q"),
    ("changes", "Q"),
    ("denied_limit", "Q"),
    ("denied_device", "Q"),
    ("held_bytes", "Q"),
    ("reserved", "24s"),
    ("budget_ns", "q"),
    ("refilled_at_ns", "Q"),
    ("busy_ns", "Q"),
    ("launches", "Q"),
    ("throttled_ns", "Q"),
    ("gate", "88s"),
)
SLOTS: Final = 1024
SLOT_SIZE: Final = 192


def record(fields: Fields) -> struct.Struct:
    """Return the format of one record."""
    return struct.Struct("<" + "".join(form for _, form in fields))


_POLICY_HEADER, _POLICY_DEVICE = record(POLICY_HEADER), record(POLICY_DEVICE)


def _place(fields: Fields, names: Sequence[str]) -> tuple[int, struct.Struct]:
    """Return where these fields, which follow one another, begin, and their format."""
    first = [name for name, _ in fields].index(names[0])
    return record(fields[:first]).size, record(fields[first : first + len(names)])


_AT_PLACE, _AT = _place(POLICY_HEADER, ["feedback_at_ns"])
_TOLD_PLACE, _FEEDBACK = _place(
    POLICY_DEVICE, ["feedback_uncounted_bytes", "feedback_busy_permille", "feedback_others_permille"]
)
_STATE_HEADER, _STATE_DEVICE = record(STATE_HEADER), record(STATE_DEVICE)
_TOLD: Final = ("denied_policy", "used_bytes", "denied_limit", "denied_device")
"""What is read of a state every second; the rest changes all the time."""
_USED: Final = ("used_bytes", "busy_ns")
"""What is read of it for metrics."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What a container may use of one GPU."""

    uuid: str
    """As NVML gives it."""
    memory_bytes: int
    """0 for no limit."""
    cores: int
    """Percent of the GPU's time; 0, or 100 and more, for no limit."""
    soft_cores: int = 0
    """Percent while no other container uses the GPU; 0 for ``cores``."""
    context_overhead_bytes: int = 0
    """Charged once a process, for what a CUDA context takes by itself."""


class Feedback(NamedTuple):
    """What NVML sees of a container on one GPU; None where that is not known."""

    uncounted_bytes: int | None = None
    """Memory that the container's own account does not have."""
    busy_permille: int | None = None
    others_permille: int | None = None


UNSEEN: Final = Feedback()


@dataclass(frozen=True, slots=True)
class Policy:
    """A container's limits, in the order of devices that it keeps for its life, and what was last seen of it."""

    limits: tuple[Limit, ...]
    feedback: tuple[Feedback, ...] = ()
    """One a limit, or none at all."""
    feedback_at_ns: int = 0
    """On the clock ``time.monotonic_ns``."""
    layout: int = NEWEST


class DeviceAccount(NamedTuple):
    """A container's account of one GPU, as its processes keep it."""

    used_bytes: int
    denied_limit: int
    """Allocations refused because of the limit."""
    denied_device: int
    """Allocations refused because the GPU itself is full."""


class Use(NamedTuple):
    """What a container's processes say that they use of one GPU."""

    used_bytes: int
    busy_ns: int
    """GPU time charged since the container started; 0 where none is measured."""


class Account(NamedTuple):
    """What a container's processes say of themselves."""

    devices: tuple[DeviceAccount, ...]
    denied_policy: int
    """Allocations refused for want of a policy that can be read, or on a GPU it does not name."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """Bytes of a policy and of a state."""

    policy_size: int
    state_size: int


_LAYOUTS: Mapping[int, _Layout] = MappingProxyType(
    {
        1: _Layout(
            policy_size=_POLICY_HEADER.size + MAX_DEVICES * _POLICY_DEVICE.size,
            state_size=_STATE_HEADER.size + MAX_DEVICES * _STATE_DEVICE.size + SLOTS * SLOT_SIZE,
        )
    }
)


def policy_size(layout: int) -> int:
    """Return bytes of a policy file."""
    return _LAYOUTS[layout].policy_size


def state_size(layout: int) -> int:
    """Return bytes of a state file."""
    return _LAYOUTS[layout].state_size


@lru_cache(maxsize=MAX_DEVICES)
def state_head(layout: int, devices: int) -> int:
    """Return how many bytes of a state file ``read_state`` and ``read_use`` want for so many GPUs."""
    _known(layout)
    return _account(devices).size


def slots(layout: int) -> tuple[int, int]:
    """Return the bytes of a state file that a living process has a lock on one of: the first, and how many."""
    size = SLOTS * SLOT_SIZE
    return state_size(layout) - size, size


def pack_policy(policy: Policy, generation: int) -> bytes:
    """Return a policy file, whole. Raises ValueError where a layout cannot say it."""
    layout = _known(policy.layout)
    if not 1 <= len(policy.limits) <= MAX_DEVICES:
        raise ValueError(f"a policy is for 1 to {MAX_DEVICES} GPUs, not {len(policy.limits)}")
    told = policy.feedback or (UNSEEN,) * len(policy.limits)
    head = _POLICY_HEADER.pack(
        _POLICY_MAGIC,
        policy.layout,
        layout.policy_size,
        generation % 2**32,
        0,
        len(policy.limits),
        0,
        policy.feedback_at_ns,
        b"",
    )
    body = b"".join(_pack_device(*pair) for pair in zip(policy.limits, told, strict=True))
    return (head + body).ljust(layout.policy_size, b"\0")


def _pack_device(limit: Limit, told: Feedback) -> bytes:
    return _POLICY_DEVICE.pack(
        uuid_bytes(limit.uuid),
        limit.memory_bytes,
        limit.context_overhead_bytes,
        limit.cores,
        limit.soft_cores,
        *_feedback(told),
        0,
    )


def _feedback(told: Feedback) -> tuple[int, int, int]:
    extra, busy, others = told
    return (
        _UNKNOWN64 if extra is None else extra,
        _UNKNOWN32 if busy is None else busy,
        _UNKNOWN32 if others is None else others,
    )


def with_feedback(data: bytes, feedback: Sequence[Feedback], at_ns: int) -> bytes:
    """Return the same policy with another feedback for each of its GPUs. Much less work than packing it again."""
    changed = bytearray(data)
    _AT.pack_into(changed, _AT_PLACE, at_ns)
    place = _POLICY_HEADER.size + _TOLD_PLACE
    for told in feedback:
        _FEEDBACK.pack_into(changed, place, *_feedback(told))
        place += _POLICY_DEVICE.size
    return bytes(changed)


def read_policy(data: bytes) -> tuple[Policy, int]:
    """Return a file's policy and its generation. Raises ValueError for what ``pack_policy`` never wrote."""
    if len(data) < _POLICY_HEADER.size:
        raise ValueError(f"a policy of {len(data)} bytes is cut short")
    magic, number, size, generation, _flags, count, _, at, _ = _POLICY_HEADER.unpack_from(data)
    if magic != _POLICY_MAGIC:
        raise ValueError("not a policy")
    layout = _known(number)
    if size != layout.policy_size or len(data) < size or not 1 <= count <= MAX_DEVICES:
        raise ValueError(f"a policy of {len(data)} bytes for {count} GPUs says that it has {size}")
    limits, told = [], []
    for place in range(count):
        raw, memory, overhead, cores, soft, uncounted, busy, others, _ = _POLICY_DEVICE.unpack_from(
            data, _POLICY_HEADER.size + place * _POLICY_DEVICE.size
        )
        limits.append(Limit(_uuid_text(raw), memory, cores, soft, overhead))
        told.append(
            Feedback(
                None if uncounted == _UNKNOWN64 else uncounted,
                None if busy == _UNKNOWN32 else busy,
                None if others == _UNKNOWN32 else others,
            )
        )
    known = tuple(told) if any(entry != UNSEEN for entry in told) else ()
    return Policy(tuple(limits), known, at, number), generation


def fresh_state(devices: int, layout: int = NEWEST) -> bytes:
    """Return the beginning of a state file that no process has used; the rest of it is zero."""
    known = _known(layout)
    return _STATE_HEADER.pack(_STATE_MAGIC, layout, known.state_size, devices, SLOTS, 0, 0, 0, b"")


def read_state(head: bytes, devices: int, layout: int) -> Account:
    """Return what a state file says of so many GPUs; ``layout`` is the one that its container started with.

    A tenant may have written anything: numbers are cut off at what is possible. Raises ValueError when too short.
    """
    wanted = _account(devices)
    if layout not in _LAYOUTS or len(head) < wanted.size:
        raise ValueError(f"a state of {len(head)} bytes was cut short, or its layout {layout} is not known")
    return _understood(wanted.unpack_from(head))


def read_use(head: bytes, devices: int, layout: int) -> tuple[Use, ...]:
    """Return what a state file says is used of so many GPUs. Hostile input, and errors, as ``read_state`` has them."""
    wanted = _account(devices, _USED)
    if layout not in _LAYOUTS or len(head) < wanted.size:
        raise ValueError(f"a state of {len(head)} bytes was cut short, or its layout {layout} is not known")
    told = iter(wanted.unpack_from(head))
    return tuple(Use(min(used, _MOST), busy) for used, busy in zip(told, told, strict=True))


@lru_cache(maxsize=256)
def _understood(told: tuple[int, ...]) -> Account:
    first, *rest = [min(value, _MOST) for value in told]
    per_device = len(_TOLD) - 1
    found = [DeviceAccount(*rest[begin : begin + per_device]) for begin in range(0, len(rest), per_device)]
    return Account(tuple(found), first)


@lru_cache(maxsize=2 * MAX_DEVICES)
def _account(devices: int, names: tuple[str, ...] = _TOLD) -> struct.Struct:
    """Return what is wanted of a state of so many GPUs, in the order of ``names``."""
    fields = (*STATE_HEADER, *STATE_DEVICE * devices)
    return record(tuple((name, form if name in names else f"{struct.calcsize(form)}x") for name, form in fields))


@lru_cache(maxsize=256)
def uuid_bytes(name: str) -> bytes:
    """Return a GPU's UUID as ``cuDeviceGetUuid`` gives it. Raises ValueError for what is none."""
    raw = bytes.fromhex(name.removeprefix("GPU-").replace("-", ""))
    if len(raw) != 16:
        raise ValueError(f"{name!r} is no UUID of a GPU")
    return raw


@lru_cache(maxsize=256)
def _uuid_text(raw: bytes) -> str:
    digits = raw.hex()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def uncounted(nvml_bytes: int, before: int, after: int, last: int | None) -> int:
    """Return the memory that NVML sees of a container and its own account does not.

    ``before`` and ``after`` are the account's sums read before and after NVML was asked; the smaller of two rounds
    counts, so that an allocation in between is not charged twice. ``last`` is what the round before found; None for
    the first, which charges nothing.
    """
    found = max(0, nvml_bytes - max(before, after))
    return min(found, 0 if last is None else last)


def feedback_for(uuids: Sequence[str], seen: Mapping[str, Feedback]) -> tuple[Feedback, ...]:
    """Return the feedback for a container's GPUs, in their order; unknown where nothing was seen."""
    return tuple([seen.get(name, UNSEEN) for name in uuids])


def limits_for(
    shares: Iterable[tuple[str, int, int]], whole_cores: int = 100, context_overhead_bytes: int = 0
) -> tuple[Limit, ...]:
    """Return the limits of a container with these ``(uuid, cores, memory_bytes)``; a whole GPU has none."""
    return tuple(
        Limit(name, 0, whole_cores)
        if cores >= whole_cores
        else share_limit(name, cores, memory, context_overhead_bytes)
        for name, cores, memory in shares
    )


def share_limit(uuid: str, cores: int, memory_bytes: int, context_overhead_bytes: int) -> Limit:
    """Return the limit of a share. A context is charged half of its memory at most."""
    return Limit(uuid, memory_bytes, cores, context_overhead_bytes=min(context_overhead_bytes, memory_bytes // 2))


def _known(layout: int) -> _Layout:
    found = _LAYOUTS.get(layout)
    if found is None:
        raise ValueError(f"layout {layout} is none of {', '.join(map(str, _LAYOUTS))}")
    return found
