# SPDX-License-Identifier: Apache-2.0
"""``kube-accel inspect``, and as plugins of kubectl ``kubectl inspect gpu`` and ``kubectl inspect cgpu``.

The role scheduler has it run on hosts too: by Python 3.8 and later, with its standard library alone.
"""

from __future__ import annotations

import argparse
import io
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TextIO

from kube_accel.inspect.kubectl import Kubectl, KubectlError
from kube_accel.shared.claim_view import ClaimObjects, read_objects
from kube_accel.shared.gpu_view import ClusterView, absent, narrowed, not_ready, view
from kube_accel.shared.gpu_view_text import comma_separated, details, json_text, summary
from kube_accel.shared.modes import NODE_MODES
from kube_accel.shared.plugin_metrics import at_once, read_pages
from kube_accel.shared.plugin_pods import NAMESPACE, metrics_paths
from kube_accel.shared.printable import line

EXIT_OK, EXIT_FAILED, EXIT_PARTIAL = 0, 1, 3

_CLEAR = "\x1b[H\x1b[2J"
_OUTPUTS: Mapping[str, Callable[[ClusterView], str]] = {
    "table": summary,
    "wide": partial(summary, wide=True),
    "details": details,
    "csv": comma_separated,
    "json": json_text,
}


def add_arguments(parser: argparse.ArgumentParser, mode: str = "") -> None:
    """Add the flags; ``mode`` is what is shown unless another is asked for."""
    parser.add_argument(
        "nodes", nargs="*", metavar="NODE", help="names of nodes to show (default: every node with GPUs)"
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=tuple(_OUTPUTS),
        default="table",
        help="output format; csv and json count in bytes, tables in GiB",
    )
    parser.add_argument(
        "-d",
        "--details",
        dest="output",
        action="store_const",
        const="details",
        help="show each pod, as --output=details",
    )
    parser.add_argument("--mode", choices=NODE_MODES, default=mode, help="show only nodes of this mode")
    parser.add_argument(
        "-u",
        "--used",
        action="store_true",
        help="ask plugins for the memory in use (needs the right to proxy to their pods)",
    )
    parser.add_argument(
        "--plugins-namespace",
        default=NAMESPACE,
        metavar="NAME",
        help=f"namespace of the plugins (default: {NAMESPACE})",
    )
    parser.add_argument(
        "-w", "--watch", type=float, nargs="?", const=5.0, metavar="SECONDS", help="repeat every SECONDS (default: 5)"
    )
    parser.add_argument(
        "--kubectl", default="kubectl", metavar="COMMAND", help="command that reads from the cluster (default: kubectl)"
    )
    parser.add_argument("--kubeconfig", help="kubeconfig to use (default: kubectl's)")
    parser.add_argument("--context", help="context of the kubeconfig (default: the current one)")


def run(arguments: argparse.Namespace, out: TextIO = sys.stdout) -> int:
    """Show the GPUs. Return 0, 1 with the reason on stderr when no GPU, or 3 when not every GPU can be seen."""
    flags = [f"--{name}={value}" for name in ("kubeconfig", "context") if (value := getattr(arguments, name))]
    kubectl = Kubectl([arguments.kubectl, *flags])
    for stream in (out, sys.stderr):
        # Names of GPUs may have letters that a terminal's encoding lacks.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    with suppress(KeyboardInterrupt):
        while True:
            try:
                found = _look(kubectl, arguments)
                text, code = _OUTPUTS[arguments.output](found), EXIT_PARTIAL if found.problems else EXIT_OK
            except KubectlError as error:
                text, code = f"{line(f'kube-accel inspect: {error}')}\n", EXIT_FAILED
                if arguments.watch is None:
                    sys.stderr.write(text)
                    return code
            out.write(text if arguments.watch is None else f"{_CLEAR}{time.strftime('%H:%M:%S')}\n{text}")
            out.flush()
            if arguments.watch is None:
                return code
            time.sleep(max(0.1, arguments.watch))
    return EXIT_OK


def _look(kubectl: Kubectl, arguments: argparse.Namespace) -> ClusterView:
    odd: list[str] = []
    nodes = kubectl.items("node", problems=odd)
    pods = kubectl.items("pod", "--all-namespaces", problems=odd)
    paths = metrics_paths(pods, arguments.plugins_namespace) if arguments.used else {}
    away = not_ready(nodes)
    pages = at_once(kubectl.raw, {name: path for name, path in paths.items() if name not in away})
    used, problems = read_pages(pages, KubectlError)
    objects = _claims(kubectl, nodes, odd)
    found = view(nodes, pods, used, [*odd, *problems], arguments.plugins_namespace, objects)
    if missing := absent(found, arguments.nodes):
        raise KubectlError(f"no node with GPUs has the name {', '.join(missing)}")
    return narrowed(found, arguments.mode, arguments.nodes)


def _claims(kubectl: Kubectl, nodes: list[dict[str, Any]], problems: list[str]) -> ClaimObjects | None:
    """Return slices and claims where a node gives GPUs by claims; None where none does, or they cannot be read."""

    def read(kind: str) -> list[dict[str, Any]] | None:
        try:
            return kubectl.items(kind.lower(), "--all-namespaces", problems=problems)
        except KubectlError as error:
            problems.append(str(error))
            return None

    return read_objects(nodes, read)


def kubectl_inspect_gpu() -> int:
    """Run ``kubectl inspect gpu``, which shows all nodes with GPUs."""
    return _plugin("gpu", "")


def kubectl_inspect_cgpu() -> int:
    """Run ``kubectl inspect cgpu``, which shows the nodes that share GPUs by memory."""
    return _plugin("cgpu", "cgpu")


def _plugin(name: str, mode: str) -> int:
    parser = argparse.ArgumentParser(prog=f"kubectl inspect {name}", description="Show which pods have which GPUs.")
    add_arguments(parser, mode)
    return run(parser.parse_args())
