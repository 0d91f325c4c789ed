# SPDX-License-Identifier: Apache-2.0
"""A kube-scheduler as its extender sees it, in a process of its own: it leads while it holds the lease, a locked file.

The lease is taken as kube-scheduler takes it: not before nobody has held it for a while.
"""

from __future__ import annotations

import argparse
import fcntl
import http.client
import json
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.api_stub import node_name
from unit.kube_accel.extender.outside import Scheduler

RETRY_SECONDS = 2.0
"""kube-scheduler's ``retryPeriod``, the least time between two leaders."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="leader")
    for name in ("port", "api", "nodes"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("root", "lease"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    arguments = parser.parse_args()
    context = ssl.create_default_context(cafile=arguments.root / "ca.crt")
    context.load_cert_chain(arguments.root / "client.pem")
    names = [node_name(number) for number in range(arguments.nodes)]
    with arguments.lease.open("r+") as lease:
        fcntl.flock(lease, fcntl.LOCK_EX)
        time.sleep(RETRY_SECONDS)
        lease.truncate(0)
        lease.write(f"{arguments.port}")
        lease.flush()
        lead(Scheduler(arguments.port, context), arguments.port, arguments.api, context, names)


def lead(scheduler: Scheduler, port: int, api: int, context: ssl.SSLContext, names: list[str]) -> None:
    """Schedule what waits, for ever; binds go on beside that."""
    connection = http.client.HTTPSConnection("127.0.0.1", api, context=context, timeout=30)

    def bind(item: dict[str, Any], node: str) -> None:
        mine = Scheduler(port, context)
        mine.bind(item, node)
        mine.close()

    with ThreadPoolExecutor(4) as binds:
        while True:
            connection.request("GET", "/stub/pods")
            waiting = json.loads(connection.getresponse().read())
            under_way = []
            for item in waiting:
                node = scheduler.best(item, names)
                if node:
                    under_way.append(binds.submit(bind, item, node))
            for one in under_way:
                one.result()


if __name__ == "__main__":
    main()
