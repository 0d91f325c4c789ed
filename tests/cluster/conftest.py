# SPDX-License-Identifier: Apache-2.0
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ansible.plugins.loader import init_plugin_loader

import collection  # noqa: F401 -- its code is importable from here on
from cluster import images, matrix
from cluster import rig as real
from cluster.node import STATE, GpuNode, show_to_containers
from cluster.rig import Rig
from sim.driver import installed


@pytest.fixture(scope="session", autouse=True)
def _plugins() -> None:
    with warnings.catch_warnings():
        # It finds collections by what `collection` has installed.
        warnings.simplefilter("ignore")
        init_plugin_loader([])


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


@pytest.fixture
def files(h100: GpuNode) -> None:
    show_to_containers()


@pytest.fixture
def mappable(h100: GpuNode, tmp_path: Path) -> Iterator[Path]:
    """The driver's root, of a node as a user namespace needs it.

    What is mounted lies on file systems that can be mapped, which the overlay of this machine is not. And a sysfs is to
    be seen whole somewhere: the simulated GPUs cover parts of the first.
    """
    driver = Path(tempfile.mkdtemp(prefix="driver-", dir="/run"))
    driver.chmod(0o755)
    subprocess.run(["mount", "-t", "sysfs", "sysfs", tmp_path], check=True)
    for directory, size in ((STATE, "64m"), (STATE / "containers", "16m")):
        directory.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "state", directory], check=True)
    for library in installed(Path("/usr/lib")):
        copy = driver / library.relative_to("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, copy, follow_symlinks=False)
    yield driver
    subprocess.run(["umount", "--lazy", STATE / "containers", STATE, tmp_path], check=True)
