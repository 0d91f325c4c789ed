# SPDX-License-Identifier: Apache-2.0
"""What metrics show of claims, and what the ledger has of them: from the checkpoint, kubelet, and the accounts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol

from kube_accel.dra.checkpoint import CheckpointError, PreparedClaim
from kube_accel.dra.pods import ClaimPods
from kube_accel.dra.refusals import Refusals, grown
from kube_accel.dra.shares import Shares
from kube_accel.dra.slices import DRIVER
from kube_accel.dra.tenants import Tenant, holdings, shares, tenants
from kube_accel.kube.podresources import PodClaim, PodResourcesError
from kube_accel.metrics.tenancy import Account, Charged, Holdings, Tenancy
from kube_accel.model import Gpu, Share
from kube_accel.plugin.allocation.ledger import Ledger
from kube_accel.plugin.kubelet.holdings import Holder
from kube_accel.plugin.tenancy.metering import refused

_log = logging.getLogger(__name__)

_LOOK: Final = 5.0
"""Seconds from one look to the next."""
_LISTED: Final = 0.5
"""Seconds from a change to the look at who has the claim: kubelet lists a pod once its claims are prepared."""
_KUBELET: Final = 5.0
"""Seconds that kubelet may take."""


class Lister(Protocol):
    """Kubelet's PodResources."""

    def claims(self, driver: str, timeout: float) -> frozenset[PodClaim]:
        """Return every container with a claim of a driver. Raises PodResourcesError."""


class ClaimMetering:
    """Follows who has which claim. ``run`` is for one thread, the rest for any."""

    def __init__(
        self,
        prepared: Callable[[], Mapping[str, PreparedClaim]],
        lister: Lister,
        gpus: Callable[[], Iterable[Gpu] | None],
        claim_shares: Shares,
        pods: ClaimPods | None,
        ledger: Ledger,
        refusals: Refusals | None = None,
    ) -> None:
        """``prepared`` may raise CheckpointError and OSError; ``pods`` is None where no processes are looked at.

        ``refusals`` tells the owners of pods.
        """
        self._refusals = refusals
        self._prepared = prepared
        self._lister = lister
        self._gpus = gpus
        self._shares = claim_shares
        self._pods = pods
        self._ledger = ledger
        self._seen: tuple[Mapping[str, PreparedClaim], Mapping[str, Tenant]] = {}, {}
        """The prepared claims at the last look, and the tenant of each, both by the claim's UID."""
        self._listed: frozenset[PodClaim] | None = None
        """None until kubelet was asked: under other names a claim would be charged to nobody meanwhile."""
        self._recorded: Mapping[Holder, tuple[Share, ...]] | None = None
        self._counted: Mapping[str, Mapping[str, Mapping[str, int]]] = {}
        """Refusals that were counted last."""
        self._problems: dict[str, str] = {}
        self._wake = threading.Event()
        self.on_change: Callable[[], None] = lambda: None
        """Called after each look at which anybody has got or lost something."""

    def tenancy(self) -> Tenancy:
        """Return what metrics are made of."""
        owner = self._pods.owner if self._pods is not None else None
        return Tenancy(self.holdings, owner, self._accounts, lambda: refused(self._ledger))

    def seen(self) -> tuple[Mapping[str, PreparedClaim], Mapping[str, Tenant]]:
        """Return the prepared claims at the last look, and the tenant of each, both by the claim's UID."""
        return self._seen

    def changed(self) -> None:
        """Note that claims were prepared or released just now. Returns at once."""
        self._wake.set()

    def run(self, stop: threading.Event) -> None:
        """Look until stopped."""
        self.look()
        while not stop.is_set():
            woken = self._wake.wait(_LOOK)
            self._wake.clear()
            if stop.is_set():
                return
            self.look(ask=not woken)
            if woken:
                # At once for who pays, and once more for its name.
                stop.wait(_LISTED)
                self.look()

    def look(self, ask: bool = True) -> None:
        """Take in what is prepared; ``ask`` kubelet whose it is, too."""
        if ask or self._listed is None:
            self._ask()
        claims = self._seen[0]
        # Read last: what is asked may take a while.
        with self._told("claims are not counted", CheckpointError, OSError):
            claims = self._prepared()
        self._seen = claims, tenants(claims, self._listed or ())
        self._record()

    def _ask(self) -> None:
        with self._told("holders of claims are not known", PodResourcesError):
            self._listed = self._lister.claims(DRIVER, _KUBELET)
        self._listed = self._listed or frozenset()
        if self._pods is not None:
            self._pods.look((each.namespace, each.pod) for each in self._listed)

    def _record(self) -> None:
        found, gpus = self.holdings(), self._gpus()
        if found is None or gpus is None:
            return
        held = shares(found, gpus)
        if held != self._recorded:
            self._ledger.reconcile(held, self._uid)
            self._recorded = held
            self.on_change()
        claims, names = self._seen
        told = self._shares.refusals(claims)
        news = grown(told, self._counted, {uid: tenant.name for uid, tenant in names.items()})
        limits = self._accounts() if news else {}
        tenants_by_name = {tenant.name: tenant for tenant in names.values()}
        for name, counts in news.items():
            for gpu, reasons in counts.items():
                more = self._ledger.refused(Holder(*name), gpu, reasons)
                # The claim may have been released since its refusals were read.
                if more and self._refusals is not None and (limit := limits.get(Account(name, gpu))) is not None:
                    self._refusals.tell(tenants_by_name[name], gpu, limit.limit_bytes, more)
        self._counted = told

    def _uid(self, holder: Holder) -> str:
        return self._pods.uid(holder.namespace, holder.pod) if self._pods is not None else ""

    def holdings(self) -> Holdings | None:
        """Return what claims have, by GPU; None while it is not known."""
        gpus = self._gpus()
        if gpus is None or self._listed is None:
            return None
        return holdings(*self._seen, gpus, self._pods.paddle if self._pods is not None else {})

    def _accounts(self) -> Mapping[Account, Charged]:
        claims, names = self._seen
        found: dict[Account, Charged] = {}
        for (uid, gpu), (limit, use) in self._shares.uses(claims).items():
            account = Account(names[uid].name, gpu)
            one = found.get(account, Charged(0, 0, 0))
            found[account] = Charged(
                one.used_bytes + use.used_bytes, one.limit_bytes + limit.memory_bytes, one.busy_ns + use.busy_ns
            )
        return found

    @contextmanager
    def _told(self, what: str, *errors: type[Exception]) -> Iterator[None]:
        """Log a problem when it is new, and go on without what was to be known."""
        try:
            yield
        except errors as error:
            if str(error) != self._problems.get(what):
                _log.warning(what, extra={"reason": str(error)})
            self._problems[what] = str(error)
        else:
            self._problems.pop(what, None)
