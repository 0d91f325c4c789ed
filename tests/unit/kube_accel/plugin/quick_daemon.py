# SPDX-License-Identifier: Apache-2.0
"""The daemon of mode pgpu with a monitor that keeps no test waiting: ``python -m ... <root>``, to be killed at will."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from kube_accel.model import Mode
from kube_accel.nvml.monitor import GpuMonitor
from kube_accel.nvml.options import MonitorOptions
from kube_accel.plugin.configuration.options import PluginOptions
from kube_accel.plugin.daemon import Daemon

KERNEL_LOG = "kern.log"


def main() -> int:
    root = Path(sys.argv[1])
    options = PluginOptions(
        mode=Mode.PGPU,
        node_name="node",
        device_plugin_dir=root / "device-plugins",
        pod_resources_socket=root / "pod-resources/kubelet.sock",
        listen=("127.0.0.1", 0),
        state_dir=root,
        dev_root=root / "dev",
        service_account_dir=root,
        takeover=False,
    )
    monitor = GpuMonitor(
        MonitorOptions(
            sysfs_root=root / "sys",
            poll_interval=0.05,
            deadline=1.0,
            retry_initial=0.05,
            retry_max=0.2,
            renew_interval=0.5,
            kernel_logs=(root / KERNEL_LOG,),
            memory=root / "health.json",
        )
    )
    monitor.start()
    return Daemon(options, monitor, threading.Event()).run()


if __name__ == "__main__":
    sys.exit(main())
