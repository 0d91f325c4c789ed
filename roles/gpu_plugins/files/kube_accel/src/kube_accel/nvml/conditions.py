# SPDX-License-Identifier: Apache-2.0
"""The conditions of a node's GPUs, as polls, XIDs and silences change them, and what a restart must not forget."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from kube_accel.model import Health, Inventory
from kube_accel.nvml import translate
from kube_accel.nvml.expected_gpus import Seen, follow
from kube_accel.nvml.health import Condition, Observation, Poll, Rules, Xid, observe
from kube_accel.nvml.health_store import HealthStore, Remembered, Xids
from kube_accel.nvml.kernel_log import Sightings

_log = logging.getLogger(__name__)


class Conditions:
    """What was observed of GPUs. One thread writes; any may read ``xids`` and ``seen``, which are replaced whole."""

    def __init__(self, rules: Rules, store: HealthStore) -> None:
        self._rules = rules
        self._store = store
        self._sightings = Sightings()
        self._observed = False
        """Whether something may have changed since the last save."""
        self.by_uuid: dict[str, Condition] = {}
        self.xids: Xids = {}
        self.seen: Mapping[str, Seen] = {}

    def load(self) -> None:
        """Take what was saved last."""
        remembered = self._store.load()
        self.by_uuid = dict(remembered.conditions)
        self.xids, self.seen = remembered.xids, remembered.seen

    def save(self) -> None:
        """Save what may have changed."""
        if self._observed:
            self._observed = False
            self._store.save(Remembered(self.by_uuid, self.xids, self.seen))

    def observe(self, uuid: str, observation: Observation, now: float) -> None:
        """Take an observation of one GPU."""
        self._observed = True
        before = self.by_uuid.get(uuid, Condition())
        after = self.by_uuid[uuid] = observe(before, observation, now, self._rules)
        if after.health != before.health:
            health = after.health
            news = {"gpu": uuid, "health": health.health.value, "reason": health.reason, "advice": health.advice}
            _log.warning("GPU health changed", extra=news)

    def observe_all(self, observation: Observation, now: float) -> None:
        """Take an observation of every GPU."""
        for uuid in self.by_uuid:
            self.observe(uuid, observation, now)

    def observe_polls(self, polls: Mapping[str, Poll], inventory: Inventory | None, now: float) -> None:
        """Take what a poll found, by UUID."""
        # A GPU that was lost before this daemon began is known only from what was saved.
        absent = dict.fromkeys(self.by_uuid.keys() - polls.keys(), translate.NOT_ENUMERATED)
        for uuid, poll in ({**polls} | absent).items():
            self.observe(uuid, poll, now)
        gpus = inventory.gpus if inventory is not None else ()
        answered = {uuid for uuid, poll in polls.items() if poll.answered}
        healthy = {uuid for uuid in polls if self.by_uuid[uuid].health.health is Health.HEALTHY}
        self._observed = True
        self.seen = follow(self._expected(inventory), gpus, answered, healthy, time.time())

    def observe_xid(self, uuid: str, number: int, source: str, now: float) -> bool:
        """Count an XID and take it as an observation; return False for one that another source reported before."""
        if not self._sightings.first(uuid, number, source, now):
            return False
        _log.warning("XID reported", extra={"gpu": uuid, "xid": number, "by": source})
        count, _ = self.xids.get((uuid, number), (0, 0.0))
        self.xids = {**self.xids, (uuid, number): (count + 1, time.time())}
        self.observe(uuid, Xid(number), now)
        return True

    def _expected(self, inventory: Inventory | None) -> Mapping[str, Seen]:
        """Return the GPUs that answered lately and that are not excluded."""
        excluded = {gpu.uuid for gpu in inventory.excluded} if inventory is not None else set()
        return {uuid: seen for uuid, seen in self.seen.items() if uuid not in excluded}
