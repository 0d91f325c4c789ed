# SPDX-License-Identifier: Apache-2.0
"""``kube-accel plugin``: the device plugin daemon of a node."""

from __future__ import annotations

import argparse
import gc
import os
import threading
from functools import partial

from kube_accel.cli.daemon import Start, run_daemon
from kube_accel.nvml.monitor import GpuMonitor
from kube_accel.plugin.configuration.delivery_flags import DeliveryFlags
from kube_accel.plugin.configuration.options import (
    ConfigMapRef,
    MigOptions,
    PluginOptions,
    check_directories,
)
from kube_accel.plugin.node.cdi_writer import CdiOptions


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code."""

    gc.disable()  # nothing of what is loaded until it serves is garbage

    def prepare() -> Start:
        options = _options(arguments)
        check_directories(options)
        return partial(_serve, options)

    return run_daemon(arguments, arguments.mode, prepare)


def _serve(options: PluginOptions, monitor: GpuMonitor, stop: threading.Event) -> int:
    # Loading what serves takes as long as a worker takes to read the GPUs: both at once.
    from kube_accel.plugin.daemon import Daemon

    daemon = Daemon(options, monitor, stop)
    # Modules stay: a look at all of them for garbage takes 30 ms, and every thread waits for it.
    gc.freeze()
    gc.enable()
    code = daemon.run()
    if daemon.handed_over:
        monitor.stop()
        os._exit(code)  # the connections stay open, though a thread may be about to close them
    return code


def _options(arguments: argparse.Namespace) -> PluginOptions:
    return PluginOptions(
        mode=arguments.mode,
        node_name=arguments.node_name,
        device_plugin_dir=arguments.kubelet_device_plugin_dir,
        pod_resources_socket=arguments.pod_resources_socket,
        listen=arguments.listen,
        state_dir=arguments.state_dir,
        dev_root=arguments.dev_root,
        service_account_dir=arguments.service_account_dir,
        takeover=arguments.takeover,
        config_file=arguments.config_file,
        sysfs_root=arguments.sysfs_root,
        config_map=ConfigMapRef(*arguments.config_map) if arguments.config_map else None,
        default_config=arguments.default_config,
        mig_strategy=arguments.mig_strategy,
        mig=_cutting(arguments),
        delivery=_delivery(arguments),
        cdi=CdiOptions(arguments.cdi_dir, arguments.nvidia_cdi_hook_path),
        mps_root=arguments.mps_root,
        mps_control_command=arguments.mps_control_command,
        mps_interval=arguments.mps_interval,
        enforcement=arguments.enforcement,
        allow_unenforced=arguments.allow_unenforced,
        share_capabilities=arguments.share_capabilities,
        shim_dir=arguments.shim_dir,
        proc_root=arguments.proc_root,
        context_overhead_bytes=arguments.context_overhead,
        account_abuse=arguments.account_abuse,
        quota_overrides=ConfigMapRef(*arguments.quota_overrides) if arguments.quota_overrides else None,
        metrics_interval=arguments.metrics_interval,
        metrics_aliases=arguments.metrics_aliases,
        metrics_profiling=arguments.metrics_profiling,
        metrics_pending=arguments.metrics_pending,
        watch_slices=arguments.watch_resource_slices,
        runtime_class=arguments.runtime_class,
    )


def _delivery(arguments: argparse.Namespace) -> DeliveryFlags:
    return DeliveryFlags(
        device_list_strategy=arguments.device_list_strategy,
        device_id_strategy=arguments.device_id_strategy,
        pass_device_specs=arguments.pass_device_specs,
        cdi_annotation_prefix=arguments.cdi_annotation_prefix,
        driver_root=arguments.nvidia_driver_root,
        container_driver_root=arguments.container_driver_root,
        gdrcopy=arguments.gdrcopy_enabled,
        gds=arguments.gds_enabled,
        mofed=arguments.mofed_enabled,
        hooks_by_cdi=arguments.hooks_by_cdi,
    )


def _cutting(arguments: argparse.Namespace) -> MigOptions | None:
    if arguments.mig_configs is None:
        return None
    return MigOptions(
        arguments.mig_configs,
        arguments.mig_drain,
        arguments.mig_drain_force,
        arguments.mig_drain_timeout,
        arguments.proc_root,
    )
