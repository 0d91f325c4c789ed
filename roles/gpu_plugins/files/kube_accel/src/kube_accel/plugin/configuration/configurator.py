# SPDX-License-Identifier: Apache-2.0
"""Keeps a node at the configuration that its label names, from a ConfigMap, without a restart."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kube_accel.files import write_whole
from kube_accel.kube.single_object import SingleObjectStore
from kube_accel.plugin.configuration.choice import LABEL, NONE, Chosen, NotChosenError, choose
from kube_accel.plugin.configuration.file import ConfigError, Configuration, parse
from kube_accel.plugin.configuration.options import PluginOptions

if TYPE_CHECKING:
    from kube_accel.kube.client import KubeClient
    from kube_accel.kube.watch import Watch

_log = logging.getLogger(__name__)

_FILE = "configuration.json"
_LOOK = 0.1
"""Seconds from one look to the next until the first lists are complete."""
_AGAIN = 2.0
"""Seconds after which what could not be done is tried again."""


class NotNowError(Exception):
    """It is not known yet whether a configuration may be applied; the message says why."""


class Configurator:
    """The node's configuration: the last good one, kept in a file, until the API server names another."""

    def __init__(self, options: PluginOptions, apply: Callable[[Configuration], None]) -> None:
        """``apply`` has a configuration offered, or raises NotChosenError or NotNowError."""
        assert options.config_map is not None
        self._source = options.config_map
        self._default = options.default_config
        self._node = options.node_name
        self._file = options.state_dir / _FILE
        self._apply = apply
        self._wake = threading.Event()
        self._labels = SingleObjectStore(self._wake.set)
        self._configs = SingleObjectStore(self._wake.set)
        self.current = _stored(self._file)
        """None until there is one."""
        self.problem = ""
        """Why it is not the one that is asked for."""
        self._sent = ""
        self._soon = False
        """Whether to try again though nothing may change."""

    def wake(self) -> None:
        """Look again: with other pods or GPUs, a configuration may have become possible. Returns at once."""
        if self.problem:
            self._wake.set()

    def status(self) -> dict[str, str]:
        """Return the status for the admin socket."""
        name = self.current.name if self.current is not None else ""
        return {"configuration": name, "configuration_problem": self.problem}

    def run(self, client: KubeClient, stop: threading.Event) -> None:
        """Follow label and ConfigMap until stopped."""
        watches = self._watches(client)
        for watch in watches:
            threading.Thread(target=partial(watch.run, stop), name="configuration watch", daemon=True).start()
        while not all(watch.synced.wait(_LOOK) for watch in watches):
            if stop.is_set():
                return
        self._wake.set()
        while not stop.is_set():
            self._wake.wait(_AGAIN if self._soon else None)
            self._wake.clear()
            self.settle(client)

    def _watches(self, client: KubeClient) -> list[Watch]:
        from kube_accel.kube.watch import Watch, Watched

        (namespace, name), labels, configs = self._source, self._labels, self._configs
        node = {"fieldSelector": f"metadata.name={self._node}"}
        one = {"fieldSelector": f"metadata.name={name}"}
        return [
            Watch(client, Watched("/api/v1/nodes", node, metadata_only=True, odd=labels.odd), labels),
            Watch(client, Watched(f"/api/v1/namespaces/{namespace}/configmaps", one, odd=configs.odd), configs),
        ]

    def settle(self, client: KubeClient) -> None:
        """Have the configuration that is asked for now, or say why not."""
        before = self.current
        configs = self._configs.item.get("data") or {}
        label = (self._labels.item.get("metadata", {}).get("labels") or {}).get(LABEL)
        self._soon = False
        try:
            self._check_readable()
            self._use(choose(configs, label, self._default))
        except NotNowError as error:
            self._not_now(error)
        except NotChosenError as error:
            self._stay(client, error)
        else:
            self.problem = self._sent = ""
        if self.current is not None and self.current != before and self.current.configuration.notes:
            notes = "; ".join(self.current.configuration.notes)
            self._send(client, "ConfigurationNotWholly", f"configuration {self.current.name} is applied, but {notes}")

    def _check_readable(self) -> None:
        """Raise NotChosenError where the node or the ConfigMap is there, and is none that the API server writes."""
        namespace, name = self._source
        objects = (
            (self._labels, f"node {self._node}", f"kubectl get node {self._node}"),
            (self._configs, f"ConfigMap {namespace}/{name}", f"kubectl --namespace {namespace} get configmap {name}"),
        )
        for known, shown, command in objects:
            if known.problem:
                why = known.problem.removeprefix(f"{shown.partition(' ')[2]}: ")
                message = f"{shown}: {why}; see {command} --output=yaml, and correct it"
                raise NotChosenError("ConfigurationUnreadable", message)

    def _stay(self, client: KubeClient, why: NotChosenError) -> None:
        if self.current is None:
            # Before there is a good one the node is as without any.
            try:
                self._use(NONE)
            except NotNowError as error:
                self._not_now(error)
                return
            except NotChosenError as error:
                why = error
        stays = "nothing" if self.current is None else self.current.name or "whole GPUs"
        self.problem = f"{why}; the node stays with {stays}"
        self._send_event(client, why.reason, self.problem)

    def _use(self, chosen: Chosen) -> None:
        if chosen == self.current:
            return
        self._apply(chosen.configuration)
        self.current = chosen
        try:
            write_whole(self._file, json.dumps({"name": chosen.name, "text": chosen.text}))
        except OSError as error:
            # It is read from the API server again by the next daemon.
            _log.warning("the configuration is not kept", extra={"file": str(self._file), "reason": str(error)})
        for note in chosen.configuration.notes:
            _log.warning("part of the configuration is not used", extra={"reason": note})
        _log.info("configuration applied", extra={"configuration": chosen.name})

    def _not_now(self, error: NotNowError) -> None:
        if self.problem != str(error):
            _log.info("the configuration is not applied yet", extra={"reason": str(error)})
        self.problem, self._soon = str(error), True

    def _send_event(self, client: KubeClient, reason: str, message: str) -> None:
        if message == self._sent:
            return
        _log.warning("another configuration is wanted, and is not applied", extra={"reason": message})
        if self._send(client, reason, message):
            self._sent = message

    def _send(self, client: KubeClient, reason: str, message: str) -> bool:
        """Send an event of the node, and return whether the API server has it."""
        from kube_accel.kube import events
        from kube_accel.kube.api import ApiError

        try:
            events.send(client, events.of_node(self._node, "Warning", reason, message))
        except ApiError as error:
            _log.warning("an event was not sent", extra={"reason": str(error)})
            return False
        return True


def _stored(file: Path) -> Chosen | None:
    """Return what was applied last on this node, if that is known."""
    try:
        document = json.loads(file.read_text())
        name, text = str(document["name"]), str(document["text"])
        return Chosen(name, text, parse(text)) if name else NONE
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, RecursionError, ConfigError) as error:
        _log.warning("what was configured last is not known", extra={"file": str(file), "reason": str(error)})
        return None
