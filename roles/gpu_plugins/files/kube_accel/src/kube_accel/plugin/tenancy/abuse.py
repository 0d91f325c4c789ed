# SPDX-License-Identifier: Apache-2.0
"""Which tenants misuse their accounts again and again, and what is said of each thing they did. No I/O."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

from kube_accel.enforce.accounts import Wrong
from kube_accel.model import OnAbuse
from kube_accel.plugin.kubelet.holdings import Holder

OFFENCES = 5
"""Offences that are abuse within ``SECONDS``: a script that changes all files' modes as it begins makes one a start."""
SECONDS = 60.0

_DONE = "from inside the container, and put right"
SENTENCES: Mapping[Wrong, str] = MappingProxyType(
    {
        Wrong.GROWN: f"its account of GPU memory was grown {_DONE}",
        Wrong.SHORT: f"its account of GPU memory was cut short {_DONE}",
        Wrong.MODE: f"the mode of its account of GPU memory was changed {_DONE}",
        Wrong.OWNER: "the owner of its account of GPU memory was changed from inside the container",
        Wrong.ATTRIBUTES: "its account of GPU memory was given extended attributes from inside the container, which "
        "are removed",
        Wrong.HELD: "its policy or its account of GPU memory was made unreadable for the plugin from inside the "
        "container, by a file lease or as a running program",
    }
)
"""Without what a tenant chooses, as a size: only what was said before is not said again."""


class Offences:
    """How often containers did something lately; for one thread at a time.

    By who has the files, not by their keys: the next pod with the same devices is another's.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times: dict[Holder, deque[float]] = {}

    def count(self, holder: Holder) -> bool:
        """Count one more, and return whether it is abuse by now. Counting starts again after that."""
        now = self._clock()
        times = self._times.setdefault(holder, deque(maxlen=OFFENCES))
        times.append(now)
        if len(times) < OFFENCES or now - times[0] > SECONDS:
            return False
        times.clear()
        return True

    def keep(self, holders: Collection[Holder]) -> None:
        """Forget all others."""
        self._times = {holder: times for holder, times in self._times.items() if holder in holders}


def sentence(wrong: Collection[Wrong], on_abuse: OnAbuse, static: bool) -> str:
    """Return what an event says of abuse, the last of which was this; ``static``: whether the pod is kubelet's own."""
    what = f"{SENTENCES[min(wrong)]}, {OFFENCES} times within {SECONDS:g} s"
    if static:
        return f"{what}; the pod is static: remove its file from the node"
    if on_abuse is OnAbuse.DELETE:
        return f"{what}; the pod is deleted. Set gpu_plugins_account_abuse to event to keep such pods"
    return f"{what}; delete the pod, or set gpu_plugins_account_abuse to delete to have such pods deleted"
