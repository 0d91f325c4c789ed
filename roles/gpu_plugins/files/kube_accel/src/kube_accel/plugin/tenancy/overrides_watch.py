# SPDX-License-Identifier: Apache-2.0
"""Follows the ConfigMap with other limits for containers. Apart from ``enforce.overrides``: it loads HTTP and TLS."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from kube_accel.enforce.overrides import Override, parse
from kube_accel.kube.client import KubeClient
from kube_accel.kube.single_object import SingleObjectStore
from kube_accel.kube.watch import Watch, Watched
from kube_accel.plugin.configuration.options import ConfigMapRef

_log = logging.getLogger(__name__)


class OverridesWatch:
    """Reads every entry that can be read; the others are logged, and change nothing."""

    def __init__(self, client: KubeClient, source: ConfigMapRef, use: Callable[[Iterable[Override]], None]) -> None:
        """``use`` gets all that hold from now on."""
        self._source = source
        self._use = use
        self._map = SingleObjectStore(self._changed)
        query = {"fieldSelector": f"metadata.name={source.name}"}
        watched = Watched(f"/api/v1/namespaces/{source.namespace}/configmaps", query, odd=self._map.odd)
        self._watch = Watch(client, watched, self._map)

    def run(self, stop: threading.Event) -> None:
        """Follow it until stopped."""
        self._watch.run(stop)

    def _changed(self) -> None:
        """Apply the ConfigMap; without one every container has what it was given."""
        found = []
        for key, text in sorted((self._map.item.get("data") or {}).items()):
            try:
                found.append(parse(key, text))
            except ValueError as error:
                extra = {"config_map": "/".join(self._source), "key": str(key)[:300], "reason": str(error)}
                _log.warning("an override of limits cannot be read", extra=extra)
        _log.info("overrides of limits", extra={"overrides": len(found)})
        self._use(found)
