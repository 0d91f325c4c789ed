# SPDX-License-Identifier: Apache-2.0
"""Kubelet's plugin watcher: it registers the DRA drivers whose sockets appear, and calls none of them."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import grpc

from kube_accel.kube.dra import REGISTRATION_SERVICE
from kube_accel.kube.proto import dra_pb2 as pb
from sim.kubelet.channel import open_channel

_SECONDS = 5.0


def follow_drivers(registry: Path, stopped: threading.Event) -> None:
    """Tell each driver once that it is registered, until stopped."""
    known: dict[Path, int] = {}
    while not stopped.wait(0.2):
        found = {path: path.lstat().st_ino for path in registry.glob("*.sock") if path.is_socket()}
        for path in (path for path, inode in found.items() if known.get(path) != inode):
            if not _register(path):
                found.pop(path, None)
                break
        known = found


def _register(socket: Path) -> bool:
    channel = open_channel(socket)
    with suppress(grpc.RpcError):
        info = channel.unary_unary(
            f"/{REGISTRATION_SERVICE}/GetInfo", pb.InfoRequest.SerializeToString, pb.PluginInfo.FromString
        )
        tell = channel.unary_unary(
            f"/{REGISTRATION_SERVICE}/NotifyRegistrationStatus",
            pb.RegistrationStatus.SerializeToString,
            pb.RegistrationStatusResponse.FromString,
        )
        info(pb.InfoRequest(), timeout=_SECONDS)
        tell(pb.RegistrationStatus(plugin_registered=True), timeout=_SECONDS)
        channel.close()
        return True
    channel.close()
    return False
