# SPDX-License-Identifier: Apache-2.0
"""``kube-accel extender``: the scheduler extender."""

from __future__ import annotations

import argparse
import logging

from kube_accel import logs
from kube_accel.extender.daemon import Extender, ExtenderError, ExtenderOptions
from kube_accel.extender.service import Layout
from kube_accel.kube.kubeconfig import KubeconfigError, client_from_kubeconfig, client_in_cluster
from kube_accel.model import PlacementPolicy
from kube_accel.stopping import stop_event

EXIT_USAGE = 2

_log = logging.getLogger(__name__)


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code."""
    stop = stop_event()
    logs.configure(arguments.log_level)
    options = ExtenderOptions(
        listen=arguments.listen,
        layout=Layout(arguments.layout),
        tls_cert=arguments.tls_cert,
        tls_key=arguments.tls_key,
        client_ca=arguments.client_ca,
        policy=PlacementPolicy(arguments.policy),
        quota_configmap=arguments.quota_configmap,
        manage_whole_gpus=arguments.manage_whole_gpus,
        metrics_listen=arguments.metrics_listen,
    )
    try:
        if arguments.kubeconfig is not None:
            api = client_from_kubeconfig(arguments.kubeconfig)
        else:
            api = client_in_cluster(arguments.service_account_dir)
        return Extender(options, api, stop).run()
    except (ExtenderError, KubeconfigError) as error:
        _log.error("cannot start", extra={"reason": str(error)})
        return EXIT_USAGE
