# SPDX-License-Identifier: Apache-2.0
"""The command ``kube-accel``: flags here, each subcommand's work in a module that is loaded when it is chosen."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from kube_accel.cli.inspect import add_arguments as add_inspect_arguments
from kube_accel.model import Enforcement, Mode, OnAbuse
from kube_accel.sharing import mig
from kube_accel.sharing.capabilities import INTERFACES, LIMITED, Capability
from kube_accel.sharing.capabilities import parse as parse_capabilities
from kube_accel.sharing.delivery import Strategy


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit code."""
    arguments = _parser().parse_args(argv)
    if arguments.command == "plugin":
        from kube_accel.cli.plugin import run
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kube-accel", description="NVIDIA GPUs for Kubernetes nodes.")
    commands = parser.add_subparsers(dest="command", required=True)
    node, state = _node_flags(), _state_flags()
    _add_plugin(commands.add_parser("plugin", parents=[node, state], help="serve GPUs to kubelet"))
    _add_extender(commands.add_parser("extender", help="answer kube-scheduler: which nodes, which GPUs"))
    _add_quiesce(commands.add_parser("quiesce", parents=[state], help="make the daemon let go of NVML for a while"))
    _add_validate(commands.add_parser("validate", parents=[node, state], help="check this node, one line a check"))
    _add_benchmark(commands.add_parser("benchmark", help="do fixed work on a GPU, and say how long it took"))
    add_inspect_arguments(commands.add_parser("inspect", help="who has what of the cluster's GPUs; needs kubectl"))
    return parser


def _node_flags() -> argparse.ArgumentParser:
    node = argparse.ArgumentParser(add_help=False)
    node.add_argument("--kubelet-device-plugin-dir", type=Path, default=Path("/var/lib/kubelet/device-plugins"))
    node.add_argument("--pod-resources-socket", type=Path, default=Path("/var/lib/kubelet/pod-resources/kubelet.sock"))
    node.add_argument("--sysfs-root", type=Path, default=Path("/sys"), help="where the host's /sys is seen")
    node.add_argument("--dev-root", type=Path, default=Path("/dev"), help="where the host's /dev is seen")

    node.add_argument(
        "--mps-root", type=Path, default=Path("/run/nvidia/mps"), help="what MPS shares: <root>/<uuid>/pipe and shm"
    )
    node.add_argument(
        "--mps-control-command", default="nvidia-cuda-mps-control", help="asks the control daemons of MPS"
    )
    return node


def _state_flags() -> argparse.ArgumentParser:
    state = argparse.ArgumentParser(add_help=False)
    state.add_argument("--state-dir", type=Path, default=Path("/var/lib/kube-accel"))
    return state


def _add_plugin(plugin: argparse.ArgumentParser) -> None:
    plugin.add_argument("--mode", type=_mode, default=Mode.PGPU, help=f"one of {_modes()}")
    plugin.add_argument(
        "--node-name",
        default=os.environ.get("NODE_NAME"),
        required="NODE_NAME" not in os.environ,
        help="this node's name (default: $NODE_NAME)",
    )
    plugin.add_argument("--listen", type=_address, default=("0.0.0.0", 9445), help="HOST:PORT of probes, metrics")  # noqa: S104
    plugin.add_argument(
        "--service-account-dir", type=Path, default=Path("/var/run/secrets/kubernetes.io/serviceaccount")
    )
    plugin.add_argument(
        "--kernel-log",
        type=Path,
        action="append",
        default=[],
        help="/dev/kmsg, or the file syslog writes kernel messages to; given repeatedly, the first that can be read",
    )
    plugin.add_argument(
        "--takeover", action="store_true", help="register even where another plugin serves the resource"
    )
    plugin.add_argument("--config-file", type=Path, help="mode pgpu: a configuration as NVIDIA's plugin has it")
    plugin.add_argument(
        "--config-map", type=_namespaced, help="mode pgpu: NAMESPACE/NAME of several; a label of the node names one"
    )
    plugin.add_argument("--default-config", default="", help="which of them a node without the label has")
    _add_delivery(plugin.add_argument_group("how containers are told their GPUs, mode pgpu"))
    plugin.add_argument(
        "--mig-strategy",
        type=mig.Strategy,
        choices=tuple(mig.Strategy),
        help="mode pgpu: what becomes of GPUs in MIG mode (default: what --config-file says, or none)",
    )
    _add_cutting(plugin.add_argument_group("cutting GPUs by MIG, mode pgpu"))
    plugin.add_argument(
        "--proc-root",
        type=Path,
        default=Path("/proc"),
        help="where the host's /proc is seen: MIG's device files, and processes by the host's ids",
    )
    plugin.add_argument(
        "--mps-interval", type=_seconds, default=5.0, help="what MPS shares: seconds between questions (default: 5)"
    )
    _add_metrics(plugin)
    _add_enforcement(plugin.add_argument_group("how shares are enforced, modes vgpu, mps and cgpu"))
    plugin.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")


def _add_cutting(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--mig-configs", type=Path, help="mig-configs file; the node's label nvidia.com/mig.config names one of its"
    )
    group.add_argument("--mig-drain", action="store_true", help="evict pods that hold what would go")
    group.add_argument("--mig-drain-force", action="store_true", help="those too that nothing makes anew")
    group.add_argument(
        "--mig-drain-timeout", type=partial(_seconds, most=86400), default=300.0, help="seconds for it (default: 300)"
    )


def _add_metrics(plugin: argparse.ArgumentParser) -> None:
    plugin.add_argument(
        "--metrics-interval",
        type=_interval,
        default=10.0,
        help="seconds from one collection of metrics to the next, 1 to 300 (default: 10); 0: no metrics",
    )
    plugin.add_argument(
        "--metrics-aliases",
        action="store_true",
        help="serve /metrics/dcgm and /metrics/gpu-manager too, by the names of those exporters",
    )
    plugin.add_argument(
        "--metrics-profiling",
        action="store_true",
        help="read counters of multiprocessors, pipes, memory and links, of GPUs that have them for NVML (Hopper on)",
    )
    plugin.add_argument(
        "--metrics-pending",
        action="store_true",
        help="count the cluster's pods that ask for GPUs and have no node; needs the right to list pods",
    )


def _add_extender(extender: argparse.ArgumentParser) -> None:
    extender.add_argument("--listen", type=_address, default=("127.0.0.1", 9446), help="HOST:PORT")
    extender.add_argument(
        "--metrics-listen", type=_address, help="HOST:PORT for /metrics alone, without TLS (default: no other address)"
    )
    extender.add_argument("--layout", choices=("local", "proxied"), default="local", help="how kube-scheduler calls")
    extender.add_argument("--tls-cert", type=Path, help="PEM file; layout proxied may do without")
    extender.add_argument("--tls-key", type=Path)
    extender.add_argument("--client-ca", type=Path, help="whose certificates kube-scheduler may show")
    extender.add_argument("--kubeconfig", type=Path, help="default: the service account of this pod")
    extender.add_argument(
        "--service-account-dir", type=Path, default=Path("/var/run/secrets/kubernetes.io/serviceaccount")
    )
    extender.add_argument("--policy", choices=("binpack", "spread"), default="binpack", help="for pods that name none")
    extender.add_argument(
        "--quota-configmap", type=_namespaced, default=("kube-system", "kube-accel-quota"), help="NAMESPACE/NAME"
    )
    extender.add_argument("--manage-whole-gpus", action="store_true", help="plain nvidia.com/gpu pods are ours too")
    extender.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")


def _add_quiesce(quiesce: argparse.ArgumentParser) -> None:
    quiesce.add_argument("--seconds", type=float, default=1800, help="for how long at most (default: 1800)")
    quiesce.add_argument("--resume", action="store_true", help="end it now")


def _add_benchmark(benchmark: argparse.ArgumentParser) -> None:
    benchmark.add_argument(
        "--launches", type=_launches, default=20_000, help="how often the kernel is launched (default: 20000)"
    )


def _launches(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 100_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of launches above 0 and at most 100000000")
    return int(text)


def _add_validate(validate: argparse.ArgumentParser) -> None:
    validate.add_argument("--smi-command", default="nvidia-smi", help="tells compute modes (default: nvidia-smi)")
    inside = validate.add_argument_group("in a pod that has GPUs")
    inside.add_argument(
        "--pod", action="store_true", help="check what this pod was given, by NVML and CUDA; one line of JSON"
    )
    inside.add_argument("--gpus", type=int, default=1, help="how many GPUs it asked for (default: 1)")
    inside.add_argument(
        "--memory", type=int, default=0, metavar="BYTES", help="its share of a GPU's memory (default: no share)"
    )


def _add_enforcement(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--enforcement",
        type=Enforcement,
        choices=tuple(Enforcement),
        default=Enforcement.AUTO,
        help="auto: the interposer, in mode mps beside MPS; mps: MPS alone; none: nothing",
    )
    group.add_argument(
        "--allow-unenforced", action="store_true", help="offer shares even where nothing can enforce them"
    )
    group.add_argument(
        "--shim-dir",
        type=Path,
        default=Path("/usr/lib/kube-accel/native"),
        help="a build of the interposer, both libraries and the hook (default: /usr/lib/kube-accel/native)",
    )
    group.add_argument(
        "--share-capabilities",
        type=_capabilities,
        default=LIMITED,
        metavar="NAME,...",
        help="what shares get of the driver, as NVIDIA_DRIVER_CAPABILITIES names it; only compute and utility, which "
        f"they always have, are limited. Others: all, {', '.join(INTERFACES)}",
    )
    group.add_argument(
        "--hooks-by-cdi",
        action="store_true",
        help="with mounts, name a CDI device as well, which enters the libraries into the loader's cache",
    )
    group.add_argument(
        "--context-overhead",
        type=_mebibytes,
        default=0,
        metavar="MIB",
        help="charged to a container for each of its processes on a GPU (default: 0)",
    )
    group.add_argument(
        "--account-abuse",
        type=OnAbuse,
        choices=tuple(OnAbuse),
        default=OnAbuse.DELETE,
        help="what becomes of a pod that misuses its account of GPU memory again and again (default: delete)",
    )
    group.add_argument(
        "--quota-overrides", type=_namespaced, help="NAMESPACE/NAME of a ConfigMap with other limits for containers"
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
    for name, text in (
        ("pass-device-specs", "have kubelet give the device nodes (default: unless CDI brings them)"),
        ("gdrcopy-enabled", "bring GDRCopy's device node"),
        ("gds-enabled", "bring GPUDirect Storage's device nodes"),
        ("mofed-enabled", "bring InfiniBand's device nodes"),
    ):
        group.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, help=text)
    group.add_argument("--cdi-annotation-prefix")
    group.add_argument("--nvidia-driver-root", help="where the driver's files are on the host (default: /)")
    group.add_argument("--container-driver-root", help="where the same directory is seen here")
    group.add_argument(
        "--cdi-dir", type=Path, default=Path("/var/run/cdi"), help="where runtimes read CDI specifications"
    )
    group.add_argument(
        "--nvidia-cdi-hook-path", default="", help="nvidia-cdi-hook or nvidia-ctk on the host, if not found"
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
