# SPDX-License-Identifier: Apache-2.0
"""The file that says what a simulated node's GPUs are and do: read, written, edited while others read it.

Grammar, one record a line, ``#`` starts a comment, ``"..."`` keeps blanks, numbers may end in K, M or G (1024-based)::

    system driver=580.159.04 cuda=13000 [wedge=<nvml function>|all]      driver=none: library there, driver not loaded
    gpu 0 uuid=GPU-.. pci=0000:1a:00.0 model="NVIDIA H200" mem=143771M cc=9.0 numa=0 mig=0 health=ok|lost ..
    migprofile "NVIDIA H200" id=19 nvml=0 name=1g.18gb slices=1 size=1 starts=0,1,2 count=7 mem=16G sms=16
    gi 0 id=1 profile=19 start=0                                         a GPU instance, on a GPU with mig=1
    mig 0 gi=1 ci=0 profile=1g.18gb mem=16G uuid=MIG-.. [slot=2]
    link 0 1 nvlink=4                                                    NVLinks between two GPUs
    switch 0 18                                                          NVLinks of GPU 0 to the NVSwitches
    nvswitch 0 pci=0000:05:00.0 pciid=0x22a310de
    topo 0 1 PIX|PXB|PHB|NODE|SYS                                        without: NODE or SYS, by numa
    proc 0 pid=1234 mem=2048M sm=40 type=C|G|C+G|M|M+C|-         -: holds the GPU, and NVML does not list it
    event 0 xid=79 seq=1                                                 told once to whoever had registered before
    fault 0 call=nvmlDeviceGetName answer=999|nothing|garbage|hang       what this function answers about this GPU

NVML's calls that change MIG edit the file, so that every process sees what one of them made.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, get_type_hints

Health = Literal["ok", "lost"]
Ancestor = Literal["PIX", "PXB", "PHB", "NODE", "SYS"]

_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class TopologyError(ValueError):
    """A topology file that cannot be read; the message names file, line and token."""


_POSITIONAL = {"positional": True}


@dataclass(kw_only=True)
class Record:
    """A line: its kind, then the positional fields, then ``name=value`` for each other field that is not None."""

    kind: ClassVar[str]


@dataclass(kw_only=True)
class System(Record):
    kind: ClassVar[str] = "system"
    driver: str
    cuda: int = 13000
    wedge: str | None = None


@dataclass(kw_only=True)
class Gpu(Record):
    """Sizes in bytes, power in milliwatts, clocks in MHz, ``util`` in percent, ``energy`` in millijoules, throttling in
    nanoseconds, ``gpm`` in percent of everything that counters tell; None: the card does not report it. ``unified``:
    the host's memory is its memory, of which NVML tells nothing.
    """

    kind: ClassVar[str] = "gpu"
    index: int = field(metadata=_POSITIONAL)
    uuid: str
    pci: str
    model: str
    mem: int
    cc: str
    reserved: int = 0
    used: int = 0
    util: int | None = 0
    memutil: int | None = 0
    numa: int | None = None
    cpus: str | None = None
    mig: int | None = None
    mig_pending: int | None = None
    mig_reset: int = 0
    health: Health = "ok"
    minor: int | None = None
    serial: str | None = None
    pciid: int = 0
    subsys: int = 0
    temp: int | None = None
    power: int | None = None
    power_limit: int | None = None
    sm_clock: int | None = None
    mem_clock: int | None = None
    ecc: int | None = None
    ecc_corrected: int = 0
    ecc_uncorrected: int = 0
    remap_corrected: int | None = None
    remap_uncorrected: int = 0
    remap_pending: int = 0
    remap_failed: int = 0
    recovery: int | None = 0
    compute_mode: int | None = 0
    persistence: int | None = 0
    mem_temp: int | None = None
    energy: int | None = None
    power_throttle: int | None = None
    thermal_throttle: int | None = None
    gpm: int | None = None
    unified: int = 0
    retire_pending: int | None = None


@dataclass(kw_only=True)
class MigProfile(Record):
    """What cards of a model can be cut into: ``nvml`` is its ``NVML_GPU_INSTANCE_PROFILE_*``, ``size`` and ``starts``
    count slices of memory.
    """

    kind: ClassVar[str] = "migprofile"
    model: str = field(metadata=_POSITIONAL)
    id: int
    nvml: int
    name: str
    slices: int
    size: int
    starts: str
    count: int
    mem: int
    sms: int


@dataclass(kw_only=True)
class GpuInstance(Record):
    kind: ClassVar[str] = "gi"
    gpu: int = field(metadata=_POSITIONAL)
    id: int
    profile: int
    start: int


@dataclass(kw_only=True)
class Mig(Record):
    kind: ClassVar[str] = "mig"
    gpu: int = field(metadata=_POSITIONAL)
    gi: int
    ci: int
    profile: str
    mem: int
    uuid: str
    sms: int = 0
    slot: int | None = None


@dataclass(kw_only=True)
class Link(Record):
    kind: ClassVar[str] = "link"
    first: int = field(metadata=_POSITIONAL)
    second: int = field(metadata=_POSITIONAL)
    nvlink: int


@dataclass(kw_only=True)
class SwitchLinks(Record):
    kind: ClassVar[str] = "switch"
    gpu: int = field(metadata=_POSITIONAL)
    links: int = field(metadata=_POSITIONAL)


@dataclass(kw_only=True)
class NvSwitch(Record):
    kind: ClassVar[str] = "nvswitch"
    index: int = field(metadata=_POSITIONAL)
    pci: str
    pciid: int
    numa: int | None = None


@dataclass(kw_only=True)
class Topo(Record):
    kind: ClassVar[str] = "topo"
    first: int = field(metadata=_POSITIONAL)
    second: int = field(metadata=_POSITIONAL)
    ancestor: Ancestor = field(metadata=_POSITIONAL)


@dataclass(kw_only=True)
class Process(Record):
    kind: ClassVar[str] = "proc"
    gpu: int = field(metadata=_POSITIONAL)
    pid: int
    mem: int = 0
    sm: int = 0
    memutil: int = 0
    type: str = "C"
    gi: int | None = None
    ci: int | None = None


@dataclass(kw_only=True)
class Event(Record):
    kind: ClassVar[str] = "event"
    gpu: int = field(metadata=_POSITIONAL)
    xid: int
    seq: int


@dataclass(kw_only=True)
class Fault(Record):
    """What a function answers about a GPU, -1 for calls about none: a ``nvmlReturn_t``, ``nothing`` (success, and no
    answer is written), ``garbage`` (success, text that is not UTF-8, huge numbers) or ``hang`` (until this is gone).
    """

    kind: ClassVar[str] = "fault"
    gpu: int = field(metadata=_POSITIONAL)
    call: str
    answer: str


_Record = TypeVar("_Record", bound=Record)


_WORD = re.compile(r"""\s*(?:(?P<word>(?:[^\s"]|"[^"]*")+)|(?P<stray>\S+))""")


def _tokens(line: str) -> list[str]:
    tokens: list[str] = []
    for match in _WORD.finditer(line):
        if match["stray"]:
            raise ValueError(match["stray"], "a quote is not closed")
        if match["word"].startswith("#"):
            break
        tokens.append(match["word"].replace('"', ""))
    return tokens


def _number(text: str) -> int:
    if text[-1:] in _SIZES:
        return int(text[:-1], 0) * _SIZES[text[-1]]
    return int(text, 0)


def _parse_value(hint: Any, text: str) -> Any:
    return _number(text) if hint in (int, int | None) else text


def _parse_record(cls: type[_Record], tokens: list[str]) -> _Record:
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    positional = [f.name for f in fields(cls) if f.metadata.get("positional")]
    if len(tokens) < len(positional):
        raise ValueError(cls.kind, f"a {cls.kind} line begins with {' '.join(positional)}")
    for name, token in zip(positional, tokens, strict=False):
        values[name] = _checked(token, hints[name], token)
    keys = {f.name for f in fields(cls)} - set(positional)
    for token in tokens[len(positional) :]:
        name, equals, text = token.partition("=")
        if not equals or name not in keys:
            raise ValueError(token, f"a {cls.kind} line takes {', '.join(sorted(keys)) or 'no keys'}")
        values[name] = _checked(token, hints[name], text)
    try:
        return cls(**values)
    except TypeError as error:
        raise ValueError(cls.kind, str(error).partition(" ")[2]) from error


def _checked(token: str, hint: Any, text: str) -> Any:
    try:
        return _parse_value(hint, text)
    except ValueError:
        raise ValueError(token, "not a number (decimal or 0x..., with K, M or G for a size)") from None


def _render_value(name: str, value: int | str) -> str:
    if isinstance(value, int):
        if name in ("pciid", "subsys"):
            return f"{value:#010x}"
        size = _SIZES["M"]
        return f"{value // size}M" if value >= size and value % size == 0 else str(value)
    if '"' in value or "\n" in value:
        raise ValueError(f"{name}: {value!r} cannot be written to a topology file: it has a quote or ends a line")
    return f'"{value}"' if any(c in value for c in " \t#") else value


def _render_record(record: Record) -> str:
    words = [record.kind]
    for f in fields(record):
        value = getattr(record, f.name)
        if value is not None:
            text = _render_value(f.name, value)
            words.append(text if f.metadata.get("positional") else f"{f.name}={text}")
    return " ".join(words)


@dataclass
class Topology:
    """One node. Change the records or use the methods, then ``save``; or do both in ``edit(path)``."""

    system: System
    gpus: list[Gpu] = field(default_factory=list)
    mig_profiles: list[MigProfile] = field(default_factory=list)
    gpu_instances: list[GpuInstance] = field(default_factory=list)
    migs: list[Mig] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    switch_links: list[SwitchLinks] = field(default_factory=list)
    nvswitches: list[NvSwitch] = field(default_factory=list)
    topos: list[Topo] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str, name: str = "topology") -> Topology:
        """Reads the grammar above; ``name`` stands for the file in a TopologyError."""
        systems: list[System] = []
        topology = cls(System(driver="none"))
        lists: dict[type[Any], list[Any]] = {
            System: systems,
            Gpu: topology.gpus,
            MigProfile: topology.mig_profiles,
            GpuInstance: topology.gpu_instances,
            Mig: topology.migs,
            Link: topology.links,
            SwitchLinks: topology.switch_links,
            NvSwitch: topology.nvswitches,
            Topo: topology.topos,
            Process: topology.processes,
            Event: topology.events,
            Fault: topology.faults,
        }
        kinds = {record.kind: record for record in lists}
        for number, line in enumerate(text.splitlines(), 1):
            try:
                tokens = _tokens(line)
                if not tokens:
                    continue
                if tokens[0] not in kinds:
                    raise ValueError(tokens[0], f"not a kind of line ({', '.join(kinds)})")
                record = kinds[tokens[0]]
                lists[record].append(_parse_record(record, tokens[1:]))
            except ValueError as error:
                token, why = error.args
                raise TopologyError(f'{name}:{number}: "{token}": {why}') from None
        if len(systems) != 1:
            raise TopologyError(f"{name}: has {len(systems)} system lines, must have one")
        topology.system = systems[0]
        return topology

    @classmethod
    def load(cls, path: Path) -> Topology:
        """Reads a file. Raises OSError, TopologyError."""
        return cls.parse(path.read_text(), str(path))

    def render(self) -> str:
        """The file's text."""
        records: list[Record] = [
            self.system,
            *self.gpus,
            *self.mig_profiles,
            *self.gpu_instances,
            *self.migs,
            *self.links,
            *self.switch_links,
            *self.nvswitches,
            *self.topos,
            *self.processes,
            *self.events,
            *self.faults,
        ]
        return "".join(_render_record(record) + "\n" for record in records)

    def save(self, path: Path) -> None:
        """Replaces the file in one step, with an mtime no earlier version had: readers go by inode and mtime."""
        text = self.render()
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o644)
        before = path.stat().st_mtime_ns if path.exists() else 0
        stamp = max(time.time_ns(), before + 1)
        os.utime(temporary, ns=(stamp, stamp))
        Path(temporary).replace(path)

    def set_health(self, index: int, health: Health) -> None:
        """A lost GPU answers nothing but GPU_IS_LOST."""
        self.gpus[index].health = health

    def raise_xid(self, index: int, xid: int) -> None:
        """Tells every event set registered for this GPU by now, once."""
        seq = max((event.seq for event in self.events), default=0) + 1
        self.events.append(Event(gpu=index, xid=xid, seq=seq))

    def set_load(self, index: int, util: int, *, memutil: int = 0, used: int | None = None) -> None:
        """Utilization in percent, and memory in bytes on top of what processes hold."""
        gpu = self.gpus[index]
        gpu.util, gpu.memutil = util, memutil
        if used is not None:
            gpu.used = used

    def add_process(self, index: int, pid: int, *, mem: int, sm: int = 0, type: str = "C") -> None:
        """A process that holds ``mem`` bytes and ``sm`` percent of a GPU."""
        self.processes.append(Process(gpu=index, pid=pid, mem=mem, sm=sm, type=type))

    def remove_process(self, pid: int) -> None:
        """The process is gone from every GPU."""
        self.processes = [process for process in self.processes if process.pid != pid]

    def fail(self, index: int, function: str, answer: str) -> None:
        """Has a function answer so about a GPU, or about none with -1: see ``Fault``."""
        self.faults.append(Fault(gpu=index, call=function, answer=answer))

    def wedge(self, function: str | None) -> None:
        """Calls of this NVML function, or of ``all``, block until this is set to something else."""
        self.system.wedge = function


@contextmanager
def edit(path: Path) -> Iterator[Topology]:
    """Changes a file others read and edit: ``with edit(path) as node: node.set_health(3, "lost")``.

    Nothing is written when the block raises.
    """
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        topology = Topology.load(path)
        yield topology
        topology.save(path)
    finally:
        os.close(directory)
