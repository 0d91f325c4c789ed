# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the pods of a benchmark, and sees that none is left."""

from __future__ import annotations

import contextlib
import signal
import time
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.kubernetes.core.plugins.module_utils.k8s.client import K8SClient

from ..cluster.api_server import ApiServerError, explained, objects, text_at
from ..host.ancestors import ancestors
from ..shared import printable
from ..shared.registers import metadata_of
from . import jobs, report, rows
from .surroundings import NOT_FOUND, look
from .wish import Wish

_POLL_SECONDS = 1.0
_ALIVE_EVERY = jobs.ALIVE_SECONDS / 3
_PATIENCE = 60
"""Seconds without an answer of the API server that a measurement survives."""
_GONE_SECONDS = 120
_ANSIBLE = 2
"""Processes above a module that are Ansible's, beside shells: the worker and the command."""


class Interrupted(Exception):
    """Nobody wants the rest any more. Says why."""


class Run:
    """Runs rows one after the other, each as a Job that is gone when it is done."""

    def __init__(self, client: K8SClient, wish: Wish, place: jobs.Place, node: Mapping[str, Any]) -> None:
        self._client, self._wish, self._place, self._node = client, wish, place, node
        self._name = jobs.job_name(wish.node)
        self._above = ancestors(_ANSIBLE)
        self.asked = ""
        """Why it is to end; empty where nobody asked."""
        self.outcomes: List[report.Outcome] = []
        self.logs: List[str] = []
        """Of the pods that ended last."""

    def all(self, wanted: Sequence[rows.Row]) -> None:
        """Measure each. Raises Interrupted, or ApiServerError where the API server is gone."""
        for row in wanted:
            self.outcomes.append(self._row(row))

    def _row(self, row: rows.Row) -> report.Outcome:
        runs: List[Tuple[float, ...]] = []
        overlaps: List[Optional[float]] = []
        date = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        for _number in range(self._wish.repeats):
            found = self._once(row)
            if found.problem:
                return report.Outcome(row, problem=found.problem, date=date)
            runs.append(found.seconds)
            overlaps.append(found.overlap)
        return report.Outcome(row, tuple(runs), tuple(overlaps), date=date)

    def _once(self, row: rows.Row) -> jobs.Measured:
        self._remove()
        try:
            with explained():
                resource = self._client.resource(jobs.KIND, jobs.API_VERSION)
                made = jobs.job(self._wish, row, self._node, self._place)
                self._client.create(resource, made, namespace=self._place.namespace)
            return self._watched(row)
        finally:
            self._remove()

    def _watched(self, row: rows.Row) -> jobs.Measured:
        began = alive = heard = time.monotonic()
        uneven = ""
        while True:
            self._stop_if_asked()
            now = time.monotonic()
            try:
                job, pods = self.state()
                if now - alive >= _ALIVE_EVERY:
                    self._keep_alive(int(now - began))
                    alive = now
                seen = look(self._client, self._wish.node, self._place.namespace)
                heard = now
            except ApiServerError:
                if now - heard > _PATIENCE:
                    raise
                time.sleep(_POLL_SECONDS)
                continue
            found = jobs.progress(job, pods, row.pods)
            foreign = rows.others(seen.pods, seen.mine)
            if foreign:
                return jobs.Measured(True, problem=f"{', '.join(foreign[:3])} started and also used GPUs of the node")
            if job is None:
                return jobs.Measured(True, problem=f"its Job {self._place.namespace}/{self._name} was deleted")
            if found.started and not uneven:
                names = [str(metadata_of(pod).get("name")) for pod in pods]
                uneven = rows.spread(seen.node, row, names)
            if found.over or found.problem:
                return self._ended(found, pods, uneven)
            if not found.started and now - began > self._wish.start_timeout:
                why = f"not all of its pods ran within {self._wish.start_timeout} s: {found.waits or 'unknown reason'}"
                return jobs.Measured(True, problem=why)
            if now - began > self._wish.timeout:
                why = f"not all of its pods ended within {self._wish.timeout} s; give them less work, or more time"
                return jobs.Measured(True, problem=why)
            time.sleep(_POLL_SECONDS)

    def _ended(self, found: jobs.Measured, pods: Sequence[Mapping[str, Any]], uneven: str) -> jobs.Measured:
        self.logs = logs = [self.log(pod) for pod in pods if found.problem == "" or _phase(pod) == "Failed"]
        if found.problem:
            last = " | ".join(logs[0].strip().splitlines()[-3:]) if logs else ""
            return replace(found, problem=printable.line(f"{found.problem}{': ' if last else ''}{last}"))
        if uneven:
            return jobs.Measured(True, problem=uneven)
        return jobs.measured(self._wish, pods, logs)

    def state(self) -> Tuple[Optional[Dict[str, Any]], List[Dict[str, Any]]]:
        """Return the Job, None where it is gone, and its pods. Raises ApiServerError."""
        where: Dict[str, Any] = {"namespace": self._place.namespace, "label_selector": f"{rows.INSTANCE}={self._name}"}
        with explained():
            found = list(objects(self._client, jobs.KIND, jobs.API_VERSION, **where))
            pods = list(objects(self._client, "Pod", **where))
        return next(iter(found), None), pods

    def log(self, pod: Mapping[str, Any]) -> str:
        """Return the end of a pod's log; empty where it cannot be read."""
        name = metadata_of(pod).get("name")
        path = f"/api/v1/namespaces/{self._place.namespace}/pods/{name}/log?tailLines={jobs.LOG_LINES}"
        try:
            return text_at(self._client, path, jobs.LOG_BYTES)
        except ApiServerError as error:
            return str(error)

    def _keep_alive(self, seconds: int) -> None:
        body = {"spec": {"activeDeadlineSeconds": seconds + 2 * jobs.ALIVE_SECONDS}}
        with explained():
            resource = self._client.resource(jobs.KIND, jobs.API_VERSION)
            how = {"content_type": "application/merge-patch+json", "namespace": self._place.namespace}
            self._client.patch(resource, body, name=self._name, **how)

    def _remove(self) -> None:
        """Remove the Job, be it of an earlier run, and wait for its pods to be gone. Raises ApiServerError."""
        deadline = time.monotonic() + _GONE_SECONDS
        while True:
            try:
                job, pods = self.state()
                if job is None and not pods:
                    return
                if job is not None and not metadata_of(job).get("deletionTimestamp"):
                    self._delete()
            except ApiServerError:
                if time.monotonic() > deadline:
                    raise
            if time.monotonic() > deadline:
                raise ApiServerError(
                    f"the pods of Job {self._place.namespace}/{self._name} are not gone after {_GONE_SECONDS} s; see "
                    f"kubectl --namespace {self._place.namespace} get pods --selector {rows.INSTANCE}={self._name}"
                )
            time.sleep(_POLL_SECONDS)

    def _delete(self) -> None:
        try:
            with explained():
                resource = self._client.resource(jobs.KIND, jobs.API_VERSION)
                how = {"namespace": self._place.namespace, "body": {"propagationPolicy": "Background"}}
                self._client.delete(resource, name=self._name, **how)
        except ApiServerError as error:
            if error.status != NOT_FOUND:
                raise

    def _stop_if_asked(self) -> None:
        if self.asked or ancestors(_ANSIBLE) != self._above:
            raise Interrupted(self.asked or "Ansible is gone")


def _phase(pod: Mapping[str, Any]) -> object:
    return (pod.get("status") or {}).get("phase")


@contextlib.contextmanager
def heeding_signals(run: Run) -> Iterator[None]:
    """Has a signal that asks to end heard between two looks at the pods, so that nothing keeps them from going."""

    def ask(number: int, frame: object) -> None:
        del frame
        run.asked = f"interrupted by {signal.Signals(number).name}"

    before = {each: signal.signal(each, ask) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
