# SPDX-License-Identifier: Apache-2.0
"""``kube-accel dra``: the DRA driver of a node."""

from __future__ import annotations

import argparse
import gc
import json
import threading

from kube_accel.cli.daemon import Start, run_daemon
from kube_accel.dra.options import DraOptions, MetricsOptions, ShareOptions, check_directories
from kube_accel.kube.kubeconfig import KubeconfigError, client_in_cluster
from kube_accel.nvml.monitor import GpuMonitor
from kube_accel.plugin.configuration.options import NodeError
from kube_accel.plugin.mode_lock import DRA
from kube_accel.plugin.node.cdi_writer import CdiOptions
from kube_accel.shared.mig_offers import MigOffer, parse_offers
from kube_accel.sharing.delivery import Delivery, Strategy


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code."""

    def prepare() -> Start:
        options = _options(arguments)
        check_directories(options)
        try:
            client = client_in_cluster(options.service_account_dir)
        except KubeconfigError as error:
            raise NodeError(str(error)) from error

        def start(monitor: GpuMonitor, stop: threading.Event) -> int:
            # Loading what serves takes as long as a worker takes to read the GPUs: both at once.
            from kube_accel.dra.daemon import DraDaemon

            daemon = DraDaemon(options, monitor, client, stop)
            gc.freeze()
            return daemon.run()

        return start

    return run_daemon(arguments, DRA, prepare)


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
        pod_resources_socket=arguments.pod_resources_socket,
        state_dir=arguments.state_dir,
        service_account_dir=arguments.service_account_dir,
        dev_root=arguments.dev_root,
        proc_root=arguments.proc_root,
        sysfs_root=arguments.sysfs_root,
        cdi=CdiOptions(arguments.cdi_dir, arguments.nvidia_cdi_hook_path),
        delivery=delivery,
        shares=ShareOptions(
            arguments.shim_dir, arguments.share_capabilities, arguments.context_overhead, arguments.shares
        )
        if arguments.shares or arguments.fixed_shares
        else None,
        mig_offers=_mig_offers(arguments.mig_offers),
        metrics=MetricsOptions(
            arguments.metrics_interval,
            arguments.metrics_aliases,
            arguments.metrics_profiling,
            arguments.metrics_pending,
            arguments.metrics_pending_all,
        ),
    )


def _mig_offers(text: str) -> tuple[MigOffer, ...]:
    try:
        return parse_offers(json.loads(text))
    except ValueError as error:
        raise NodeError(f"--mig-offers: {error}") from error
