# SPDX-License-Identifier: Apache-2.0
"""A daemon ends by a signal, whichever of its threads the kernel gives it to."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from kube_accel.stopping import EXIT_FAILED, EXIT_OK, Parts
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


def test_a_part_that_fails_ends_the_daemon(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> None:
        raise ValueError("no more")

    stop = threading.Event()
    parts = Parts(stop)
    parts.start("lease", broken).join()
    assert stop.is_set()
    assert parts.exit_code == EXIT_FAILED
    (record,) = caplog.records
    assert (record.message, record.part) == ("a part of the daemon failed", "lease")  # type: ignore[attr-defined]


def test_a_part_that_returns_ends_nothing() -> None:
    stop = threading.Event()
    parts = Parts(stop)
    parts.start("lease", lambda: None).join()
    assert not stop.is_set()
    assert parts.exit_code == EXIT_OK
