# SPDX-License-Identifier: Apache-2.0
"""A daemon ends by a signal, whichever of its threads the kernel gives it to."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from unit.kube_accel.threads import signal_thread

DAEMON = """
import threading
from kube_accel.stopping import stop_event
stop = stop_event()
other = threading.Thread(target=threading.Event().wait, daemon=True)
other.start()
print(threading.main_thread().native_id, other.native_id, flush=True)
stop.wait()
print("ended", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("taker", [0, 1], ids=["main thread", "another"])
def test_it_ends(number: signal.Signals, taker: int) -> None:
    with subprocess.Popen([sys.executable, "-c", DAEMON], stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        threads = [int(word) for word in daemon.stdout.readline().split()]
        signal_thread(daemon.pid, threads[taker], number)
        try:
            said, _ = daemon.communicate(timeout=40)
        finally:
            daemon.kill()
    assert said == "ended\n"
    assert daemon.returncode == 0
