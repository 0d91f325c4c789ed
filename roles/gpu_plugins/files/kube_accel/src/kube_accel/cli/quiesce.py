# SPDX-License-Identifier: Apache-2.0
"""``kube-accel quiesce``: let go of NVML, so that the driver can be replaced under a running daemon."""

from __future__ import annotations

import argparse
import sys

from kube_accel.plugin.admin import AdminError, call
from kube_accel.shared.printable import line

_TIMEOUT = 20.0


def run(arguments: argparse.Namespace) -> int:
    """Return 0 when NVML has been let go (or taken up), or 1 with the reason on stderr."""
    try:
        if arguments.resume:
            answer = call(arguments.state_dir, "resume", _TIMEOUT)
        else:
            answer = call(arguments.state_dir, "quiesce", _TIMEOUT, seconds=arguments.seconds)
    except AdminError as error:
        print(line(f"kube-accel quiesce: {error}"), file=sys.stderr)
        return 1
    print(line(f"driver: {answer['driver']}"))
    return 0
