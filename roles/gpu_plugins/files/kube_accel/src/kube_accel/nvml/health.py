# SPDX-License-Identifier: Apache-2.0
"""When a GPU may be handed out: a pure state machine, (condition, observation, time) -> condition.

A GPU is unhealthy after a complaint (a poll that found it lost, or the driver asking for a reset) or an incident (a
critical XID, new uncorrectable memory errors). It is healthy again after ``recovery_polls`` good polls in a row. An
incident leaves no state that a poll could see, so it has to age as well: ``incident_seconds`` without another one
and without a bad poll, unless the GPU was reset in between. A GPU that was lost, was not enumerated, whose driver
was unloaded, or that was released to an administrator counts as reset: there is no other way back from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kube_accel.model import GpuHealth, Health
from kube_accel.nvml.switches import Switches
from kube_accel.shared.gpu_xids import XIDS

_FIRST_ERRORS = "uncorrectable memory errors since the driver was loaded"


@dataclass(frozen=True, slots=True)
class Rules:
    """How forgiving to be."""

    recovery_polls: int = 3
    incident_seconds: float = 300.0
    switches: Switches = field(default_factory=Switches)


@dataclass(frozen=True, slots=True)
class Poll:
    """What one poll found on one GPU."""

    complaint: str = ""
    """Why the GPU must not be handed out; empty when the poll was good."""
    lost: bool = False
    """The complaint is of a kind that only a reset or a new enumeration ends."""
    ecc: int | None = None
    """Uncorrectable memory errors since the driver was loaded; None where it cannot be read. Not the count of the
    card's whole life: a row that was remapped once is no reason to withhold the card for ever."""
    answered: bool = True
    """The GPU could be asked: a complaint is what the driver says of it."""
    advice: str = ""
    """What the GPU needs some day although it may be handed out until then."""


@dataclass(frozen=True, slots=True)
class Xid:
    """The driver reported this XID for the GPU."""

    number: int


@dataclass(frozen=True, slots=True)
class Silence:
    """NVML did not answer: what it would have said is unknown."""


@dataclass(frozen=True, slots=True)
class Reset:
    """The driver was unloaded, or we let go of the GPU so that someone could reset it."""


Observation = Poll | Xid | Silence | Reset


@dataclass(frozen=True, slots=True)
class Condition:
    """What is remembered of one GPU. The default is a GPU nothing bad is known of."""

    complaint: str = ""
    incidents: tuple[str, ...] = ()
    incident_until: float = 0.0
    """Not healthy before this time; 0 when no incident has to age."""
    lost: bool = False
    """The last poll found it so: what happens meanwhile is over when it is back, and has not to age."""
    good_polls: int = 0
    """In a row, since the last bad news; counted only while unhealthy."""
    ecc: int | None = None
    """The highest count so far since the driver was loaded; None before it could be read, where any error is new."""
    advice: str = ""

    @property
    def health(self) -> GpuHealth:
        """Return HEALTHY, or UNHEALTHY with every known reason."""
        reason = "; ".join(filter(None, (*self.incidents, self.complaint)))
        return GpuHealth(Health.UNHEALTHY if reason else Health.HEALTHY, reason, self.advice)


def observe(condition: Condition, observation: Observation, now: float, rules: Rules) -> Condition:
    """Return the condition after this observation; ``now`` in seconds of a monotonic clock."""
    match observation:
        case Xid(number):
            if not rules.switches.counts(number):
                return condition
            known = XIDS.get(number)
            return _incident(condition, f"XID {number} ({known.meaning})" if known else f"XID {number}", now, rules)
        case Silence():
            return _setback(condition, now, rules)
        case Reset():
            return replace(condition, incident_until=0.0, good_polls=0)
        case Poll(complaint, lost):
            condition = replace(condition, advice=observation.advice)
            if complaint and (rules.switches.driver_word or not observation.answered):
                worse = replace(_setback(condition, now, rules), complaint=complaint, lost=lost)
                return replace(worse, incident_until=0.0) if lost else worse
            return _good_poll(condition, observation, now, rules)


def _good_poll(condition: Condition, poll: Poll, now: float, rules: Rules) -> Condition:
    known, ecc = condition.ecc, poll.ecc
    condition = replace(condition, ecc=known if ecc is None else ecc, lost=False)
    if rules.switches.driver_word and ecc is not None and ecc > (known or 0):
        since = "new uncorrectable memory errors" if known is not None else _FIRST_ERRORS
        return _incident(condition, since, now, rules)
    if not condition.complaint and not condition.incidents:
        return condition
    good = min(condition.good_polls + 1, rules.recovery_polls)
    if good >= rules.recovery_polls and now >= condition.incident_until:
        return Condition(ecc=condition.ecc, advice=condition.advice)
    return replace(condition, good_polls=good)


def _incident(condition: Condition, incident: str, now: float, rules: Rules) -> Condition:
    incidents = (*(known for known in condition.incidents if known != incident), incident)
    until = 0.0 if condition.lost else now + rules.incident_seconds
    return replace(condition, incidents=incidents, incident_until=until, good_polls=0)


def _setback(condition: Condition, now: float, rules: Rules) -> Condition:
    """Start the count of good polls over, and the wait after an incident that no reset has ended."""
    until = now + rules.incident_seconds if condition.incident_until else 0.0
    return replace(condition, good_polls=0, incident_until=until)
