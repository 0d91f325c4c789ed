# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How written files take effect, and how that is seen."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Callable, Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.host.machine import CommandError, Host

Watch = Callable[[Host, bool], Callable[[], str]]
"""Called before files are written, with True when that undoes a change. What it returns is polled afterwards and says
what is wrong, nothing when all is well."""


@dataclass(frozen=True)
class Service:
    """How written files take effect and how that is seen."""

    apply: Sequence[str] = ()
    """Command that makes the files effective; empty when something watches them."""
    watch: Watch | None = None
    timeout: float = 60
    """Seconds for ``apply``, for its second try, and again for the wait."""
    reset: Sequence[str] = ()
    """Run before ``apply``, whatever comes of it: clears what keeps a service from starting, as a start limit does."""

    def make_effective(self, host: Host) -> None:
        """Run ``apply``, and again should it fail: on a busy machine dockerd does not start each time it is asked."""
        try:
            self._reset_and_apply(host)
        except CommandError:
            self._reset_and_apply(host)

    def _reset_and_apply(self, host: Host) -> None:
        if self.reset:
            with contextlib.suppress(CommandError):
                host.run(self.reset, timeout=10)
        if self.apply:
            host.run(self.apply, self.timeout)


def command_watch(argv: Sequence[str]) -> Watch:
    """Return a watch that calls the service well when the command ends with 0."""

    def watch(host: Host, undoing: bool) -> Callable[[], str]:
        del undoing

        def probe() -> str:
            try:
                host.run(argv, timeout=10)
            except CommandError as error:
                return str(error)
            return ""

        return probe

    return watch
