# SPDX-License-Identifier: Apache-2.0
"""A daemon whose GPUs' health is read from a file: ``python -m ... <root>``, to be killed at will."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from kube_accel.model import GpuHealth, Health, Mode
from kube_accel.plugin.daemon import Daemon
from kube_accel.plugin.options import PluginOptions
from unit.kube_accel.plugin.fakes import FakeMonitor, ready

HEALTH = "health.json"
"""A list of ``Health`` values, one a GPU; replaced in one step."""


def follow(path: Path, monitor: FakeMonitor) -> None:
    said: list[str] | None = None
    while True:
        health = json.loads(path.read_text())
        if health != said:
            monitor.set(ready(len(health), {i: GpuHealth(Health(value)) for i, value in enumerate(health)}))
            said = health
        time.sleep(0.005)


def main() -> int:
    root = Path(sys.argv[1])
    options = PluginOptions(
        mode=Mode.PGPU,
        node_name="node",
        device_plugin_dir=root / "device-plugins",
        pod_resources_socket=root / "pod-resources/kubelet.sock",
        listen=("127.0.0.1", 0),
        state_dir=root,
        dev_root=root,
        service_account_dir=root,
        takeover=False,
    )
    monitor = FakeMonitor()
    threading.Thread(target=follow, args=(root / HEALTH, monitor), daemon=True).start()
    return Daemon(options, monitor, threading.Event()).run()


if __name__ == "__main__":
    sys.exit(main())
