# SPDX-License-Identifier: Apache-2.0
"""``python -m sim.cluster up --root DIR --spec FILE``: a cluster until SIGINT or SIGTERM."""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path

from kube_accel.stopping import stop_event
from sim.cluster import Cluster, Spec


def _say(line: str) -> None:
    # Whoever read this may be gone; that must not keep us from cleaning up.
    with suppress(BrokenPipeError):
        print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="sim.cluster", description=__doc__)
    up = parser.add_subparsers(required=True).add_parser("up", help="run a cluster in the foreground")
    up.add_argument("--root", type=Path, required=True, help="a new directory with a short path")
    up.add_argument("--spec", type=Path, required=True, help="YAML: control_plane, nodes [{name, profile}]")
    up.add_argument("--rm", action="store_true", help="delete the directory at the end")
    options = parser.parse_args()
    ended = stop_event()
    try:
        cluster = Cluster(options.root.absolute(), Spec.load(options.spec), _say)
    except (OSError, ValueError) as error:
        parser.exit(1, f"{error}\n")
    try:
        with cluster:
            ended.wait()
            _say("stopping")
    except OSError as error:
        parser.exit(1, f"{error}\n")
    finally:
        if options.rm:
            cluster.remove()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
