# SPDX-License-Identifier: Apache-2.0
"""The command ``kube-accel``: flags here, each subcommand's work in a module that is loaded when it is chosen."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from kube_accel.model import Enforcement, Mode, OnAbuse
from kube_accel.sharing import mig
from kube_accel.sharing.capabilities import INTERFACES, LIMITED, Capability
from kube_accel.sharing.capabilities import parse as parse_capabilities
from kube_accel.sharing.delivery import Strategy


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit code."""
    words = sys.argv[1:] if argv is None else argv
    arguments = _parser(words[0] if words else "").parse_args(words)
    if arguments.command == "plugin":
        from kube_accel.cli.plugin import run
    elif arguments.command == "dra":
        from kube_accel.cli.dra import run
    elif arguments.command == "extender":
        from kube_accel.cli.extender import run
    elif arguments.command == "quiesce":
        from kube_accel.cli.quiesce import run
    elif arguments.command == "inspect":
        from kube_accel.cli.inspect import run
    elif arguments.command == "benchmark":
        from kube_accel.cli.benchmark import run
    else:
        from kube_accel.cli.validate import run
    return run(arguments)


def _parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of all subcommands, with the flags of the chosen one; None has those of all.

    Somebody waits for a daemon that starts, and the flags of the others take long to load.
    """
    parser = argparse.ArgumentParser(prog="kube-accel", description="Serves NVIDIA GPUs on Kubernetes nodes.")
    commands = parser.add_subparsers(dest="command", required=True)
    host, node, state = _host_flags(), _node_flags(), _state_flags()
    for name, parents, text, add in (
        ("plugin", [node, host, state], "run the device plugin of this node", _add_plugin),
        ("dra", [host, state], "run the DRA driver of this node", _add_dra),
        ("extender", [], "run the scheduler extender", _add_extender),
        ("quiesce", [state], "make the device plugin release NVML for a while", _add_quiesce),
        ("validate", [node, host, state], "check this node, with one line per check", _add_validate),
        ("benchmark", [], "do a fixed amount of work on a GPU, and print how long it took", _add_benchmark),
        ("inspect", [], "show which pods have which GPUs of the cluster (needs kubectl)", _add_inspect),
    ):
        command = commands.add_parser(name, parents=parents, help=text)
        if chosen in (None, name):
            add(command)
    return parser


def _add_inspect(inspect: argparse.ArgumentParser) -> None:
    from kube_accel.cli.inspect import add_arguments

    add_arguments(inspect)


def _host_flags() -> argparse.ArgumentParser:
    host = argparse.ArgumentParser(add_help=False)
    host.add_argument("--sysfs-root", type=Path, default=Path("/sys"), help="path of the host's /sys")
    host.add_argument("--dev-root", type=Path, default=Path("/dev"), help="path of the host's /dev")
    return host


def _node_flags() -> argparse.ArgumentParser:
    node = argparse.ArgumentParser(add_help=False)
    node.add_argument("--kubelet-device-plugin-dir", type=Path, default=Path("/var/lib/kubelet/device-plugins"))
    _add_pod_resources(node)
    node.add_argument(
        "--mps-root",
        type=Path,
        default=Path("/run/nvidia/mps"),
        help="directory with <uuid>/pipe and <uuid>/shm of MPS",
    )
    node.add_argument(
        "--mps-control-command", default="nvidia-cuda-mps-control", help="command that queries the MPS control daemons"
    )
    return node


def _add_pod_resources(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pod-resources-socket", type=Path, default=Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    )


def _state_flags() -> argparse.ArgumentParser:
    state = argparse.ArgumentParser(add_help=False)
    state.add_argument("--state-dir", type=Path, default=Path("/var/lib/kube-accel"))
    return state


def _add_plugin(plugin: argparse.ArgumentParser) -> None:
    plugin.add_argument("--mode", type=_mode, default=Mode.PGPU, help=f"one of {_modes()}")
    _add_daemon(plugin)
    plugin.add_argument("--takeover", action="store_true", help="register even if another plugin serves the resource")
    plugin.add_argument(
        "--watch-resource-slices",
        action="store_true",
        help="offer no GPU while a DRA driver has ResourceSlices with the node's GPUs",
    )
    plugin.add_argument("--config-file", type=Path, help="mode pgpu: configuration file of NVIDIA's plugin")
    plugin.add_argument(
        "--config-map", type=_namespaced, help="mode pgpu: NAMESPACE/NAME; a label of the node selects a configuration"
    )
    plugin.add_argument("--default-config", default="", help="configuration of a node without the label")
    _add_delivery(plugin.add_argument_group("how containers get their GPUs, mode pgpu"))
    plugin.add_argument(
        "--mig-strategy",
        type=mig.Strategy,
        choices=tuple(mig.Strategy),
        help="mode pgpu: how to offer GPUs in MIG mode (default: as in --config-file, or none)",
    )
    _add_cutting(plugin.add_argument_group("splitting GPUs by MIG, mode pgpu"))
    plugin.add_argument(
        "--mps-interval",
        type=_seconds,
        default=5.0,
        help="seconds between two queries of the MPS control daemons (default: 5)",
    )
    _add_metrics(plugin)
    _add_pending(plugin)
    _add_enforcement(plugin.add_argument_group("how shares are enforced, modes vgpu, mps, and cgpu"))


def _add_daemon(daemon: argparse.ArgumentParser) -> None:
    """Add the flags of a daemon that serves kubelet."""
    daemon.add_argument(
        "--node-name",
        default=os.environ.get("NODE_NAME"),
        required="NODE_NAME" not in os.environ,
        help="name of this node (default: $NODE_NAME)",
    )
    daemon.add_argument("--listen", type=_address, default=("0.0.0.0", 9445), help="HOST:PORT for probes and metrics")  # noqa: S104
    daemon.add_argument(
        "--service-account-dir", type=Path, default=Path("/var/run/secrets/kubernetes.io/serviceaccount")
    )
    daemon.add_argument(
        "--kernel-log",
        type=Path,
        action="append",
        default=[],
        help="/dev/kmsg, or the file with the kernel's messages; if repeated, the first readable one counts",
    )
    daemon.add_argument(
        "--proc-root",
        type=Path,
        default=Path("/proc"),
        help="path of the host's /proc, with MIG's device files and the host's process IDs",
    )
    daemon.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")


def _add_dra(dra: argparse.ArgumentParser) -> None:
    dra.add_argument("--kubelet-plugins-dir", type=Path, default=Path("/var/lib/kubelet/plugins"))
    dra.add_argument("--kubelet-registry-dir", type=Path, default=Path("/var/lib/kubelet/plugins_registry"))
    dra.add_argument(
        "--instance",
        default=os.environ.get("POD_UID", ""),
        metavar="UID",
        help="what tells this driver from its successor on the node (default: $POD_UID)",
    )
    # The GPUs are watched as in mode pgpu.
    dra.set_defaults(mode=Mode.PGPU)
    _add_daemon(dra)
    _add_pod_resources(dra)
    _add_metrics(dra)
    dra.add_argument(
        "--metrics-pending",
        action="store_true",
        help="list pods: count those that wait for GPUs by claims",
    )
    dra.add_argument(
        "--metrics-pending-all",
        action="store_true",
        help="with --metrics-pending, also count those that wait for GPUs by extended resources",
    )
    _add_driver_files(dra.add_argument_group("what containers with GPUs get"))
    shares = dra.add_argument_group("shares of GPUs")
    shares.add_argument("--shares", action="store_true", help="let claims say how much of a GPU they want")
    shares.add_argument("--fixed-shares", action="store_true", help="cut GPUs into equal shares if a label says so")
    _add_interposer(shares)
    help_ = "MIG devices to make for claims, as gpu_plugins_dra_mig_offers has them"
    dra.add_argument("--mig-offers", default="[]", metavar="JSON", help=help_)


def _add_cutting(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--mig-configs",
        type=Path,
        help="file with MIG configurations; the node's label nvidia.com/mig.config selects one",
    )
    group.add_argument(
        "--mig-drain", action="store_true", help="evict pods that hold devices which the new configuration removes"
    )
    group.add_argument(
        "--mig-drain-force",
        action="store_true",
        help="also evict pods without a controller, which nothing creates again",
    )
    group.add_argument(
        "--mig-drain-timeout",
        type=partial(_seconds, most=86400),
        default=300.0,
        help="seconds for the eviction (default: 300)",
    )


def _add_metrics(daemon: argparse.ArgumentParser) -> None:
    daemon.add_argument(
        "--metrics-interval",
        type=_interval,
        default=10.0,
        help="seconds between two collections of metrics, 1 to 300 (default: 10); 0 serves no metrics",
    )
    daemon.add_argument(
        "--metrics-aliases",
        action="store_true",
        help="also serve /metrics/dcgm and /metrics/gpu-manager, with the names of these exporters",
    )
    daemon.add_argument(
        "--metrics-profiling",
        action="store_true",
        help="also read NVML's profiling counters of Hopper and newer GPUs",
    )


def _add_pending(plugin: argparse.ArgumentParser) -> None:
    plugin.add_argument(
        "--metrics-pending",
        action="store_true",
        help="list pods: count those that wait for GPUs, and send events about unused annotations",
    )
    plugin.add_argument(
        "--runtime-class",
        default="",
        metavar="NAME",
        help="with --metrics-pending, send events about pods with whole GPUs and without this class",
    )


def _add_extender(extender: argparse.ArgumentParser) -> None:
    extender.add_argument(
        "--listen", type=_address, default=("127.0.0.1", 9446), help="HOST:PORT for kube-scheduler's calls"
    )
    extender.add_argument(
        "--metrics-listen", type=_address, help="HOST:PORT for only /metrics, without TLS (default: none)"
    )
    extender.add_argument(
        "--layout",
        choices=("local", "proxied"),
        default="local",
        help="local: kube-scheduler calls by TLS on the same host; proxied: through the API server's proxy",
    )
    extender.add_argument("--tls-cert", type=Path, help="PEM file with the certificate; required with --layout local")
    extender.add_argument("--tls-key", type=Path)
    extender.add_argument(
        "--client-ca", type=Path, help="PEM file with the certificate authority of kube-scheduler's client certificate"
    )
    extender.add_argument("--kubeconfig", type=Path, help="kubeconfig to use (default: the pod's service account)")
    extender.add_argument(
        "--service-account-dir", type=Path, default=Path("/var/run/secrets/kubernetes.io/serviceaccount")
    )
    extender.add_argument(
        "--policy",
        choices=("binpack", "spread"),
        default="binpack",
        help="placement of pods without the annotation kube-accel.io/placement",
    )
    extender.add_argument(
        "--quota-configmap",
        type=_namespaced,
        default=("kube-system", "kube-accel-quota"),
        help="NAMESPACE/NAME of the ConfigMap with quotas",
    )
    extender.add_argument(
        "--manage-whole-gpus", action="store_true", help="also place pods that request whole nvidia.com/gpu"
    )
    extender.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")


def _add_quiesce(quiesce: argparse.ArgumentParser) -> None:
    quiesce.add_argument(
        "--seconds", type=float, default=1800, help="seconds after which it ends by itself (default: 1800)"
    )
    quiesce.add_argument("--resume", action="store_true", help="use NVML again now")


def _add_benchmark(benchmark: argparse.ArgumentParser) -> None:
    benchmark.add_argument(
        "--launches", type=_launches, default=20_000, help="number of kernel launches (default: 20000)"
    )


def _launches(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 100_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of launches above 0 and at most 100000000")
    return int(text)


def _add_validate(validate: argparse.ArgumentParser) -> None:
    validate.add_argument(
        "--smi-command", default="nvidia-smi", help="command that shows compute modes (default: nvidia-smi)"
    )
    inside = validate.add_argument_group("in a pod with GPUs")
    inside.add_argument(
        "--share",
        action="store_true",
        help="measure this pod's share: memory to the last byte, and GPU time; print a table, and a line of JSON",
    )
    inside.add_argument(
        "--cores",
        type=int,
        default=0,
        metavar="PERCENT",
        help="the share of a GPU's time, for --share (default: no limit)",
    )
    inside.add_argument(
        "--seconds", type=_seconds, default=10.0, help="for how long --share measures GPU time (default: 10)"
    )
    inside.add_argument(
        "--pod", action="store_true", help="check this pod's GPUs with NVML and CUDA, and print one line of JSON"
    )
    inside.add_argument("--gpus", type=int, default=1, help="number of GPUs that the pod requests (default: 1)")
    inside.add_argument(
        "--memory", type=int, default=0, metavar="BYTES", help="the pod's share of a GPU's memory (default: no share)"
    )


def _add_enforcement(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--enforcement",
        type=Enforcement,
        choices=tuple(Enforcement),
        default=Enforcement.AUTO,
        help="auto: the interposer, in mode mps beside MPS; mps: only MPS; none: nothing",
    )
    group.add_argument("--allow-unenforced", action="store_true", help="offer shares even if nothing can enforce them")
    _add_interposer(group)
    group.add_argument(
        "--hooks-by-cdi",
        action="store_true",
        help="with mounts, also name a CDI device, which adds the libraries to the loader's cache",
    )
    group.add_argument(
        "--account-abuse",
        type=OnAbuse,
        choices=tuple(OnAbuse),
        default=OnAbuse.DELETE,
        help="what to do with a pod that damages its account of GPU memory repeatedly (default: delete)",
    )
    group.add_argument(
        "--quota-overrides", type=_namespaced, help="NAMESPACE/NAME of a ConfigMap that changes limits of containers"
    )


def _add_interposer(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--shim-dir",
        type=Path,
        default=Path("/usr/lib/kube-accel/native"),
        help="directory with the interposer's libraries and hook (default: /usr/lib/kube-accel/native)",
    )
    group.add_argument(
        "--share-capabilities",
        type=_capabilities,
        default=LIMITED,
        metavar="NAME,...",
        help=f"what shares also get of the driver, without limits: all, {', '.join(INTERFACES)}",
    )
    group.add_argument(
        "--context-overhead",
        type=_mebibytes,
        default=0,
        metavar="MIB",
        help="memory charged to a container for each of its processes on a GPU (default: 0)",
    )


def _mebibytes(text: str) -> int:
    if not text.isdecimal() or len(text) > 6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of MiB")
    return int(text) << 20


def _add_delivery(group: argparse._ArgumentGroup) -> None:
    """Add the flags that NVIDIA's plugin has too; each overrides what a configuration says."""
    known = ",".join(Strategy)
    group.add_argument("--device-list-strategy", type=_strategies, help=f"one or several of {known}")
    group.add_argument("--device-id-strategy", choices=("uuid", "index"))
    group.add_argument(
        "--pass-device-specs",
        action=argparse.BooleanOptionalAction,
        help="let kubelet add the device nodes (default: unless CDI adds them)",
    )
    group.add_argument("--cdi-annotation-prefix")
    _add_driver_files(group)


def _add_driver_files(group: argparse._ArgumentGroup) -> None:
    for name, text in (
        ("gdrcopy-enabled", "add GDRCopy's device node"),
        ("gds-enabled", "add GPUDirect Storage's device nodes"),
        ("mofed-enabled", "add InfiniBand's device nodes"),
    ):
        group.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, help=text)
    group.add_argument("--nvidia-driver-root", help="directory of the driver's files on the host (default: /)")
    group.add_argument("--container-driver-root", help="path of the same directory in this container")
    group.add_argument(
        "--cdi-dir", type=Path, default=Path("/var/run/cdi"), help="directory where runtimes read CDI specifications"
    )
    group.add_argument(
        "--nvidia-cdi-hook-path",
        default="",
        help="path of nvidia-cdi-hook or nvidia-ctk on the host (default: search for it)",
    )


def _capabilities(text: str) -> frozenset[Capability]:
    try:
        return parse_capabilities(name.strip() for name in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _strategies(text: str) -> tuple[Strategy, ...]:
    try:
        return tuple(dict.fromkeys(Strategy(name.strip()) for name in text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not one or several of {', '.join(Strategy)}") from None


def _modes() -> str:
    return ", ".join(mode.value for mode in Mode)


def _mode(text: str) -> Mode:
    try:
        return Mode(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"unknown mode {text!r}; known: {_modes()}") from None


def _seconds(text: str, most: float = 3600) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0 and at most {most:g}")
    return seconds


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if seconds != 0 and not 1 <= seconds <= 300:
        raise argparse.ArgumentTypeError(f"{text!r} is neither 0 nor a number of seconds from 1 to 300")
    return seconds


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _namespaced(text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAMESPACE/NAME")
    return namespace, name


if __name__ == "__main__":
    sys.exit(main())
