# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Iterator

import pytest

from cluster import images, matrix
from cluster import rig as real
from cluster.node import GpuNode
from cluster.rig import Rig


@pytest.fixture(scope="session")
def bare_rig() -> Iterator[Rig]:
    """The cluster without a scheduler."""
    if lacks := real.missing():
        pytest.skip("no real cluster here; missing: " + ", ".join(lacks))
    with real.start() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def rig(bare_rig: Rig) -> Iterator[Rig]:
    """The cluster for the playbooks: our image is there, kube-scheduler is the static pod that kubeadm makes."""
    images.load(images.DAEMONS.read_bytes())
    with bare_rig.static_scheduler():
        yield bare_rig


@pytest.fixture
def ran(record_property: Callable[[str, object], None]) -> matrix.Ran:
    """Says what was run, for the table at the end."""
    return lambda *row: record_property(matrix.PROPERTY, matrix.note(*row))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table of what was run and passed."""
    reports = terminalreporter.getreports("passed")
    rows = [value for report in reports for name, value in report.user_properties if name == matrix.PROPERTY]
    if rows:
        terminalreporter.section("run on a real cluster")
        for line in matrix.lines(rows, matrix.versions()):
            terminalreporter.line(line)


@pytest.fixture
def no_pods_left(bare_rig: Rig) -> Iterator[None]:
    yield
    bare_rig.kubectl("delete", "pods", "--all", "--now", "--wait=true")


@pytest.fixture(scope="module")
def h100(bare_rig: Rig) -> Iterator[GpuNode]:
    """The node with eight H100."""
    with GpuNode(bare_rig, "8xh100") as node:
        yield node


@pytest.fixture(scope="module")
def node(rig: Rig) -> Iterator[GpuNode]:
    """The same before a driver is installed."""
    with GpuNode(rig, "8xh100", driver=False) as made:
        yield made
