# SPDX-License-Identifier: Apache-2.0
"""A node whose claims get MIG devices that are made for them, by a simulated driver that really cuts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, cast

from kube_accel.dra.checkpoint import Checkpoint, Holdings
from kube_accel.dra.maker import Maker
from kube_accel.dra.offering import Offerer
from kube_accel.dra.partitioner import Partitioner
from kube_accel.dra.slices import Device
from kube_accel.mig import instances
from kube_accel.model import DriverState, Gpu, GpuHealth, Inventory, MigDevice, Snapshot
from kube_accel.nvml.gpus import HeldGpus
from kube_accel.shared.mig_geometry import Card
from kube_accel.shared.mig_offers import parse_offers
from sim.nvml.topology import Topology
from unit.kube_accel.dra.node import ClaimNode
from unit.kube_accel.plugin.fakes import HEALTHY

OFFERS = ({"profiles": ["1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb"]},)


class Killed(BaseException):
    """The daemon ends here."""


class Held:
    """NVML of the daemon, which lets go of it when asked."""

    def quiesce(self, seconds: float, holder: str = "") -> None:
        pass

    def resume(self, holder: str = "") -> None:
        pass

    def snapshot(self) -> Snapshot:
        return Snapshot(1, DriverState.READY, "", None, {})


class MigNode(ClaimNode):
    """With H100 that are not in MIG mode. ``kill_at`` ends the daemon at one of its steps, counted from 1."""

    def __init__(self, root: Path, library: Path, conf: Path, topology: Topology, offers: object = OFFERS) -> None:
        self._library, self.conf = library, conf
        topology.save(conf)
        self.offers = offers
        self.kill_at, self.steps = 0, 0
        super().__init__(root)
        for gpu in topology.gpus:
            (self.root / f"dev/nvidia{gpu.minor}").touch()

    @property
    def topology(self) -> Topology:
        return Topology.load(self.conf)

    def see(self, changed: Mapping[int, GpuHealth] | None = None, gpus: Mapping[int, Gpu] | None = None) -> None:
        known = inventory_of(self.topology)
        health = {gpu.uuid: (changed or {}).get(gpu.index, HEALTHY) for gpu in known.gpus}
        self.devices.see(Snapshot(1, DriverState.READY, "", known, health))

    def maker(self, checkpoint: Checkpoint) -> Maker:
        offerer = Offerer(parse_offers(self.offers))
        offerer.read(self.cards())
        return Maker(self.partitioner(), checkpoint, self.devices, offerer)

    def partitioner(self) -> Partitioner:
        return Partitioner(cast(HeldGpus, Held()), self.state, self._task)

    def cards(self) -> tuple[Card, ...]:
        return Partitioner(cast(HeldGpus, Held()), self.state, self._carry_out).cards()

    def step(self) -> None:
        """A moment at which a daemon may end."""
        self.steps += 1
        if self.steps == self.kill_at:
            raise Killed

    def published(self, rounds: int = 1, allowed: bool = True) -> dict[str, Device]:
        """What a daemon publishes at its so many looks, by name; sets of counters too."""
        offerer = Offerer(parse_offers(self.offers))
        offerer.read(self.cards())
        for _ in range(rounds):
            inventory, holdings = self.devices.state.inventory, self.holdings()
            assert inventory is not None
            found = offerer.look(inventory, holdings, allowed)
        wanted = self.devices.wanted(True, False, holdings.names, shared=True, offering=found)
        return {("counters of " if "counters" in each else "") + each["name"]: each for each in wanted or ()}

    def holdings(self) -> Holdings:
        with Checkpoint(self.state, self.boot_id).locked() as prepared:
            return prepared.holdings

    def cut(self) -> dict[int, list[str]]:
        """The MIG devices of GPUs in MIG mode."""
        topology = self.topology
        return {
            gpu.index: sorted(mig.profile for mig in topology.migs if mig.gpu == gpu.index)
            for gpu in topology.gpus
            if gpu.mig
        }

    def _task(self, task: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        if task["do"] == "cards":
            return self._carry_out(task, timeout)
        self.step()
        found = self._carry_out(task, timeout)
        self.see()
        self.step()
        return found

    def _carry_out(self, task: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        return instances.carry_out(str(self._library), task["do"], task["arguments"], ())


def killing(step: Callable[[], None], act: Callable[..., None], only: Collection[str] = ()) -> Callable[..., None]:
    """A function before and after which a daemon may end; with ``only``, where it is called with one of these words."""

    def acting(*arguments: Any, **words: Any) -> None:
        ends = not only or any(isinstance(each, str) and each in only for each in arguments)
        if ends:
            step()
        act(*arguments, **words)
        if ends:
            step()

    return acting


def inventory_of(topology: Topology) -> Inventory:
    gpus = tuple(
        Gpu(
            uuid=gpu.uuid,
            index=gpu.index,
            minor=gpu.minor or 0,
            model=gpu.model,
            memory_bytes=gpu.mem,
            compute_capability=tuple(map(int, gpu.cc.split("."))),  # type: ignore[arg-type]
            pci_address=gpu.pci,
            numa_node=gpu.numa,
            mig_enabled=bool(gpu.mig),
            mig_capable=gpu.mig is not None,
            mig_devices=tuple(
                MigDevice(mig.uuid, slot, mig.profile, mig.mem)
                for slot, mig in enumerate(mig for mig in topology.migs if mig.gpu == gpu.index)
            ),
        )
        for gpu in topology.gpus
    )
    return Inventory("580.159.04", (13, 0), gpus, {})
