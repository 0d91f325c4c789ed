# SPDX-License-Identifier: Apache-2.0
"""``kube-accel dra``: the DRA driver of a node."""

from __future__ import annotations

import argparse
import ctypes
import gc
import logging
from contextlib import suppress

from kube_accel import logs
from kube_accel.cli.plugin import EXIT_NODE, EXIT_OK, M_ARENA_MAX, watching
from kube_accel.dra.options import DraOptions, check_directories
from kube_accel.kube.kubeconfig import KubeconfigError, client_in_cluster
from kube_accel.nvml.monitor import GpuMonitor
from kube_accel.plugin.configuration.options import NodeError
from kube_accel.plugin.mode_lock import DRA, ModeLock
from kube_accel.plugin.node.cdi_writer import CdiOptions
from kube_accel.plugin.turns import take_turns
from kube_accel.sharing.delivery import Delivery, Strategy
from kube_accel.stopping import stop_event

_log = logging.getLogger(__name__)


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code."""
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
    stop = stop_event()
    logs.configure(arguments.log_level)
    options = _options(arguments)
    monitor = GpuMonitor(watching(arguments))
    try:
        check_directories(options)
        client = client_in_cluster(options.service_account_dir)
        if not take_turns(options.listen, ModeLock(options.state_dir, DRA), stop):
            return EXIT_OK
        monitor.start()
        # Loading what serves takes as long as a worker takes to read the GPUs: both at once.
        from kube_accel.dra.daemon import DraDaemon

        daemon = DraDaemon(options, monitor, client, stop)
        gc.freeze()
        return daemon.run()
    except (NodeError, KubeconfigError) as error:
        _log.error("cannot start", extra={"reason": str(error)})
        return EXIT_NODE
    finally:
        monitor.stop()


def _options(arguments: argparse.Namespace) -> DraOptions:
    root = arguments.nvidia_driver_root or "/"
    delivery = Delivery(
        strategies=(Strategy.CDI_CRI,),
        device_nodes=False,
        gdrcopy=bool(arguments.gdrcopy_enabled),
        gds=bool(arguments.gds_enabled),
        mofed=bool(arguments.mofed_enabled),
        driver_root=root,
        driver_root_here=arguments.container_driver_root or root,
    )
    return DraOptions(
        node_name=arguments.node_name,
        instance=arguments.instance,
        plugins_dir=arguments.kubelet_plugins_dir,
        registry_dir=arguments.kubelet_registry_dir,
        listen=arguments.listen,
        state_dir=arguments.state_dir,
        service_account_dir=arguments.service_account_dir,
        dev_root=arguments.dev_root,
        proc_root=arguments.proc_root,
        sysfs_root=arguments.sysfs_root,
        cdi=CdiOptions(arguments.cdi_dir, arguments.nvidia_cdi_hook_path),
        delivery=delivery,
    )
