# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.nvml.profiles import PROFILES
from sim.nvml.topology import Event, Fault, Gpu, Link, Process, SwitchLinks, System, Topology, TopologyError, edit

words = st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters='"'), min_size=1, max_size=40)
counts = st.integers(min_value=0, max_value=1 << 40)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    count = draw(st.integers(min_value=1, max_value=4))
    gpus = [
        Gpu(
            index=i,
            uuid=f"GPU-{i}",
            pci=f"0000:{i + 1:02x}:00.0",
            model=draw(words),
            mem=draw(counts),
            cc="9.0",
            used=draw(counts),
            numa=draw(st.none() | st.integers(min_value=0, max_value=7)),
            health=draw(st.sampled_from(["ok", "lost"])),
        )
        for i in range(count)
    ]
    index = st.integers(min_value=0, max_value=count - 1)
    return Topology(
        System(driver="580.1", cuda=13000, wedge=draw(st.none() | st.just("nvmlDeviceGetName"))),
        gpus,
        links=[Link(first=0, second=i, nvlink=4) for i in range(1, count)],
        switch_links=draw(st.lists(st.builds(SwitchLinks, gpu=index, links=st.integers(0, 18)), max_size=2)),
        processes=draw(st.lists(st.builds(Process, gpu=index, pid=st.integers(1, 1 << 22), mem=counts), max_size=3)),
        events=draw(st.lists(st.builds(Event, gpu=index, xid=st.integers(1, 200), seq=counts), max_size=3)),
        faults=draw(st.lists(st.builds(Fault, gpu=index, call=st.just("nvmlX"), answer=st.just("999")), max_size=2)),
    )


@given(topologies())
def test_a_topology_written_and_read_is_the_same(topology: Topology) -> None:
    assert Topology.parse(topology.render()) == topology


@pytest.mark.parametrize("profile", PROFILES)
def test_two_nodes_of_a_profile_share_no_gpu(profile: str) -> None:
    first, second = PROFILES[profile]("a"), PROFILES[profile]("b")
    assert Topology.parse(first.render()) == first
    uuids = [gpu.uuid for node in (first, second) for gpu in node.gpus]
    uuids += [mig.uuid for node in (first, second) for mig in node.migs]
    assert len(set(uuids)) == len(uuids)


@pytest.mark.parametrize(
    ("line", "token"),
    [
        ("gpu 0 uuid=a pci=0000:01:00.0 model=x mem=12Q cc=9.0", "mem=12Q"),
        ("gpu 0 uuid=a colour=green", "colour=green"),
        ("gpu zero", "zero"),
        ("gpu 0 uuid=a", "gpu"),
        ("gpus 0", "gpus"),
        ('gpu 0 model="NVIDIA H200', '"NVIDIA'),
        ("link 0", "link"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(line: str, token: str) -> None:
    with pytest.raises(TopologyError, match=r"^node\.conf:2: ") as caught:
        Topology.parse(f"system driver=580.1 cuda=13000\n{line}\n", "node.conf")
    assert f'"{token}"' in str(caught.value)


def test_comments_blank_lines_and_sizes() -> None:
    text = """
    # a node
    system driver=none cuda=13000   # nothing loaded
    gpu 0 uuid=a#b pci=0000:01:00.0 model="NVIDIA # 5" mem=2G cc=9.0
    """
    gpu = Topology.parse(text).gpus[0]
    assert (gpu.uuid, gpu.model, gpu.mem) == ("a#b", "NVIDIA # 5", 2 << 30)


def test_a_value_the_grammar_has_no_room_for_is_refused(tmp_path: Path) -> None:
    topology = PROFILES["t4"]("n")
    topology.gpus[0].model = 'a "quoted" card'
    with pytest.raises(ValueError, match="model"):
        topology.save(tmp_path / "gpusim.conf")
    assert list(tmp_path.iterdir()) == []


def test_every_save_has_an_mtime_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "gpusim.conf"
    stamps = []
    for _ in range(50):
        PROFILES["t4"]("n").save(path)
        stamps.append(path.stat().st_mtime_ns)
    assert stamps == sorted(set(stamps))
    assert [file.name for file in tmp_path.iterdir()] == ["gpusim.conf"]


def _raise_xids(path: Path, count: int) -> None:
    for _ in range(count):
        with edit(path) as node:
            node.raise_xid(0, 79)


def test_edits_of_several_processes_all_arrive(tmp_path: Path) -> None:
    path = tmp_path / "gpusim.conf"
    PROFILES["t4"]("n").save(path)
    editors = [multiprocessing.Process(target=_raise_xids, args=(path, 20)) for _ in range(3)]
    for editor in editors:
        editor.start()
    for editor in editors:
        editor.join()
    assert sorted(event.seq for event in Topology.load(path).events) == list(range(1, 61))


def test_an_edit_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "gpusim.conf"
    PROFILES["t4"]("n").save(path)
    before = path.read_bytes()

    def lose_a_gpu_that_is_not_there() -> None:
        with edit(path) as node:
            node.set_load(0, 90)
            node.set_health(7, "lost")

    with pytest.raises(IndexError):
        lose_a_gpu_that_is_not_there()
    assert path.read_bytes() == before
