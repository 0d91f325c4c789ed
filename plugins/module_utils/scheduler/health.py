# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether kube-scheduler was restarted by kubelet and is well, and where it says so."""

from __future__ import annotations

import http.client
import ipaddress
import os
import ssl
from typing import Callable, FrozenSet, Tuple
from urllib.parse import urlsplit

from ansible_collections.accel.kubernetes.plugins.module_utils.host import command_line
from ansible_collections.accel.kubernetes.plugins.module_utils.host.machine import Host
from ansible_collections.accel.kubernetes.plugins.module_utils.host.outcome import Refused
from ansible_collections.accel.kubernetes.plugins.module_utils.host.service import Watch

PORT = "10259"
"""Where kube-scheduler answers unless its command line says otherwise."""

_TIMES_WELL = 4
_SETTLED = 25.0
"""Seconds after which kubelet has seen a manifest even if it missed the event; it reads them all every 20 s."""


def health_watch(url: str, timeout: float, proc: str, restarts: bool = False) -> Watch:
    """Return a watch for the health endpoint of kube-scheduler.

    The answer of the process that is being replaced counts for nothing. A new process shows by a new certificate (it
    makes its own at each start unless it was given one), by a moment in which nothing answers, or by its number below
    ``proc``. ``restarts`` says that the change itself ends with a new process.
    """

    def watch(host: Host, undoing: bool) -> Callable[[], str]:
        old, _problem = ask(url)
        ran = schedulers(proc)
        began = host.now()
        restarted = restarts
        well = 0

        def probe() -> str:
            nonlocal restarted, well
            certificate, problem = ask(url)
            restarted = restarted or certificate != old or bool(ran and schedulers(proc) - ran)
            well = 0 if problem else well + 1
            if problem:
                return problem
            # What is undone may never have been seen by kubelet.
            if not restarted and not (undoing and host.now() - began >= min(_SETTLED, timeout / 2)):
                return f"{url} is still answered by the old kube-scheduler; is this what kubelet runs it from?"
            return "" if well >= _TIMES_WELL else f"{url} has only just begun to answer"

        return probe

    return watch


def schedulers(proc: str) -> FrozenSet[str]:
    """Numbers of the processes that are a kube-scheduler, those in containers too."""
    numbers = filter(str.isdigit, os.listdir(proc) if os.path.isdir(proc) else ())
    return frozenset(
        number for number in numbers if os.path.basename(command_line.of_process(proc, number)[0]) == "kube-scheduler"
    )


def ask(url: str) -> Tuple[bytes, str]:
    """Return the server's certificate, empty when there was no connection, and what is wrong, empty when it is well."""
    parts = urlsplit(url)
    # kube-scheduler signs its certificate itself and no CA knows it; this is the local host and nothing secret is sent.
    context = ssl._create_unverified_context()  # noqa: S323
    connection = http.client.HTTPSConnection(parts.hostname or "", parts.port or 443, timeout=3, context=context)
    certificate = b""
    try:
        connection.connect()
        certificate = connection.sock.getpeercert(binary_form=True) or b""
        connection.request("GET", parts.path or "/")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return certificate, f"{url} does not answer: {error}"
    finally:
        connection.close()
    return certificate, "" if status == 200 else f"{url} answers with status {status}"


def health_url(flag: Callable[[str], str | None]) -> str:
    """Return where the scheduler of this command line answers for its health. Raises Refused."""
    given, port = flag("bind-address"), flag("secure-port") or PORT
    try:
        address = ipaddress.ip_address("0.0.0.0" if given is None else given)  # noqa: S104
    except ValueError as error:
        raise Refused(_unknown("bind-address", given, "address")) from error
    if port == "0":
        raise Refused(
            "kube-scheduler's --secure-port is 0, so its health cannot be checked: remove this flag, or set"
            " health_url to an empty string"
        )
    if not port.isdecimal():
        raise Refused(_unknown("secure-port", port, "number"))
    host = "127.0.0.1" if address.is_unspecified else f"[{address}]" if address.version == 6 else str(address)
    return f"https://{host}:{port}/healthz"


def _unknown(name: str, value: str | None, what: str) -> str:
    return f"kube-scheduler's --{name} is {value}, which is no {what}; name in health_url where it answers"
