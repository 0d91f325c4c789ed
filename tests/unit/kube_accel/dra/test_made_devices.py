# SPDX-License-Identifier: Apache-2.0
"""MIG devices that are made for claims and destroyed after them, also by a daemon that is killed at any step."""

from __future__ import annotations

from pathlib import Path

import pytest

from kube_accel.dra import specifications
from kube_accel.dra.checkpoint import Prepared
from kube_accel.dra.claims import ClaimError
from kube_accel.shared.nvml_library import Nvml
from sim.nvml.conftest import library  # noqa: F401
from sim.nvml.profiles import PROFILES
from sim.nvml.topology import edit
from unit.kube_accel.dra.mig_node import Killed, MigNode, killing
from unit.kube_accel.nvml.test_mig_faults import CHANGES

MANY = 60
"""More steps than any daemon takes."""


@pytest.fixture
def node(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> MigNode:  # noqa: F811
    monkeypatch.setenv("GPUSIM_FILE", str(tmp_path / "gpusim.conf"))
    topology = PROFILES["8xh100"]("node")
    del topology.gpus[2:], topology.switch_links[2:]
    made = MigNode(tmp_path / "node", library, tmp_path / "gpusim.conf", topology)
    monkeypatch.setattr(Prepared, "save", killing(made.step, Prepared.save))
    monkeypatch.setattr(specifications, "write_document", killing(made.step, specifications.write_document))
    monkeypatch.setattr(Nvml, "call", killing(made.step, Nvml.call, CHANGES))
    return made


def prepare(node: MigNode, name: str) -> list[str]:
    return [each.device for each in node.preparer().prepare(f"uid-{name}", "team", name)]


def release(node: MigNode, name: str) -> None:
    node.preparer().release(f"uid-{name}")


def test_device_is_made_for_its_claim_and_destroyed_after_it(node: MigNode) -> None:
    node.api.claim("a", "gpu-00-mig-3g40gb-at-4")
    node.api.claim("b", "gpu-00-mig-1g10gb-at-0")
    assert prepare(node, "a") == ["gpu-00-mig-3g40gb-at-4"]
    assert prepare(node, "b") == ["gpu-00-mig-1g10gb-at-0"]
    assert node.cut() == {0: ["1g.10gb", "3g.40gb"]}
    (held,) = node.checkpoint()["claims"]["uid-a"]["devices"]
    (mig,) = (mig for mig in node.topology.migs if mig.profile == "3g.40gb")
    assert (held["uuid"], held["parentUuid"]) == (mig.uuid, node.topology.gpus[0].uuid)
    assert node.checkpoint()["version"] == 4
    assert node.files() == ["kube-accel.io-claim-uid-a.json", "kube-accel.io-claim-uid-b.json"]
    release(node, "a")
    assert node.cut() == {0: ["1g.10gb"]}
    release(node, "b")
    # The GPU is out of MIG mode again, and nobody is told to read what is not there.
    assert (node.cut(), node.files(), node.checkpoint()["version"]) == ({}, [], 1)


@pytest.mark.parametrize("kind", ["gpu-00", "gpu-00-mig-2g20gb-at-0", "gpu-00-mig-7g80gb-at-0"])
def test_what_overlaps_is_refused_until_it_is_free(node: MigNode, kind: str) -> None:
    node.api.claim("a", "gpu-00-mig-3g40gb-at-0")
    node.api.claim("b", kind)
    prepare(node, "a")
    with pytest.raises(ClaimError, match=r"in MIG mode still|is still prepared for claim team/a"):
        prepare(node, "b")
    assert node.cut() == {0: ["3g.40gb"]}
    release(node, "a")
    assert prepare(node, "b") == [kind]


def test_gpu_with_a_share_is_not_cut(node: MigNode) -> None:
    node.api.claim("a", "gpu-00")
    node.api.claim("b", "gpu-00-mig-1g10gb-at-0")
    prepare(node, "a")
    with pytest.raises(ClaimError, match="still prepared for claim team/a"):
        prepare(node, "b")
    assert (node.cut(), list(node.checkpoint()["claims"])) == ({}, ["uid-a"])


@pytest.mark.parametrize("act", ["prepare", "release"])
def test_daemon_killed_anywhere_leaves_nothing_behind(node: MigNode, act: str) -> None:
    device, other = "gpu-00-mig-3g40gb-at-4", "gpu-00-mig-1g10gb-at-5"
    node.api.claim("a", device)
    node.api.claim("twice", other)
    before = node.topology.render()
    for step in range(1, MANY):
        killed = cycle(node, act, step)
        # Nothing is given twice, and no MIG device is one that nobody knows of.
        if "uid-a" in node.preparer().claims():
            with pytest.raises(ClaimError):
                prepare(node, "twice")
            assert "uid-twice" not in node.preparer().claims()
        assert not [name for name, each in node.published(2).items() if "taints" in each], step
        if step % 2 and act == "prepare":
            assert prepare(node, "a") == [device]
            assert node.cut() == {0: ["3g.40gb"]}
        release(node, "a")
        node.preparer()._maker.end_modes()
        assert (node.topology.render(), node.files(), node.holdings().switched) == (before, [], frozenset()), step
        if not killed:
            break
    assert 10 < step < MANY - 1


def cycle(node: MigNode, act: str, step: int) -> bool:
    """Prepare and release a claim, by a daemon that is killed at a step of one of the two; whether it was."""
    try:
        for each, done in (("prepare", prepare), ("release", release)):
            node.steps, node.kill_at = 0, step if each == act else 0
            done(node, "a")
    except Killed:
        node.see()
        return True
    finally:
        node.kill_at = 0
    return False


def test_mig_mode_that_was_on_stays_on(node: MigNode) -> None:
    with edit(node.conf) as topology:
        topology.gpus[1].mig = 1
    node.see()
    node.api.claim("a", "gpu-01-mig-2g20gb-at-2")
    prepare(node, "a")
    assert node.cut() == {1: ["2g.20gb"]}
    release(node, "a")
    assert node.cut() == {1: []}
    assert "gpu-01" not in node.published()


def test_foreign_device_stays_and_its_gpu_is_tainted(node: MigNode) -> None:
    node.api.claim("a", "gpu-00-mig-1g10gb-at-0")
    node.api.claim("b", "gpu-00-mig-2g20gb-at-2")
    prepare(node, "a")
    mine = node.topology.migs[0].uuid
    node.partitioner()._do("make", {"gpu": node.topology.gpus[0].uuid, "profile": "1g.10gb", "start": 3, "size": 1})
    node.see()
    assert not [name for name, each in node.published().items() if "taints" in each]
    tainted = {name for name, each in node.published(2).items() if "taints" in each}
    assert tainted == {name for name in node.published() if name.startswith("gpu-00")}
    with pytest.raises(ClaimError, match=r"has an instance of 1g.10gb there that was not made for a claim"):
        prepare(node, "b")
    release(node, "a")
    node.preparer()._maker.end_modes()
    (left,) = node.topology.migs
    assert left.uuid != mine
    # Once it is destroyed, the GPU leaves MIG mode.
    gpu = node.topology.gpus[0].uuid
    node.partitioner()._do("remove", {"gpu": gpu, "uuid": left.uuid, "profile": "1g.10gb", "start": 3, "off": False})
    node.see()
    node.preparer()._maker.end_modes()
    assert (node.cut(), node.holdings().switched) == ({}, frozenset())


def test_gpu_in_use_refuses_and_is_free_again(node: MigNode) -> None:
    node.api.claim("a", "gpu-00-mig-1g10gb-at-0")
    with edit(node.conf) as topology:
        topology.add_process(0, 4711, mem=1 << 30)
    with pytest.raises(ClaimError, match=r"is not made: in use: GPU 0 .*4711"):
        prepare(node, "a")
    assert (node.cut(), node.preparer().claims()) == ({}, {})
    with edit(node.conf) as topology:
        topology.remove_process(4711)
    assert prepare(node, "a") == ["gpu-00-mig-1g10gb-at-0"]
    with edit(node.conf) as topology:
        (mig,) = topology.migs
        topology.add_process(0, 4712, mem=1 << 30)
        topology.processes[-1].gi, topology.processes[-1].ci = mig.gi, mig.ci
    with pytest.raises(ClaimError, match="is not destroyed: in use"):
        release(node, "a")
    assert "uid-a" in node.preparer().claims()


def test_device_that_is_gone_is_made_again(node: MigNode) -> None:
    node.api.claim("a", "gpu-00-mig-1g10gb-at-0")
    prepare(node, "a")
    with edit(node.conf) as topology:
        topology.migs.clear()
        topology.gpu_instances.clear()
        topology.gpus[0].mig = 0
    node.see()
    assert prepare(node, "a") == ["gpu-00-mig-1g10gb-at-0"]
    assert node.cut() == {0: ["1g.10gb"]}


def test_claim_allocated_anew_gives_its_device_back(node: MigNode) -> None:
    node.api.claim("a", "gpu-00-mig-1g10gb-at-0")
    prepare(node, "a")
    node.api.claim("a", "gpu-01-mig-2g20gb-at-0")
    prepare(node, "a")
    assert node.cut() == {1: ["2g.20gb"]}
    node.api.claim("a", "gpu-01")
    assert prepare(node, "a") == ["gpu-01"]
    assert node.cut() == {}


def test_lost_gpu_holds_no_claim_back(node: MigNode) -> None:
    node.api.claim("a", "gpu-00-mig-1g10gb-at-0")
    prepare(node, "a")
    with edit(node.conf) as topology:
        topology.set_health(0, "lost")
    release(node, "a")
    assert node.preparer().claims() == {}


@pytest.mark.parametrize("device", ["gpu-00-mig-4g40gb-at-0", "gpu-00-mig-1g10gb-at-9", "gpu-07-mig-1g10gb-at-0"])
def test_device_that_is_not_offered_is_not_made(node: MigNode, device: str) -> None:
    node.api.claim("a", device)
    with pytest.raises(ClaimError, match=f"MIG device {device} cannot be made"):
        prepare(node, "a")
    assert (node.cut(), node.preparer().claims()) == ({}, {})


def test_claim_of_several_devices_is_made_whole_or_not_at_all(node: MigNode) -> None:
    node.api.claim("a", "gpu-00-mig-1g10gb-at-0", "gpu-01-mig-1g10gb-at-0")
    with edit(node.conf) as topology:
        topology.add_process(1, 4711, mem=1 << 30)
    with pytest.raises(ClaimError, match="in use"):
        prepare(node, "a")
    assert (node.cut(), node.preparer().claims()) == ({}, {})
    with edit(node.conf) as topology:
        topology.remove_process(4711)
    prepare(node, "a")
    assert node.cut() == {0: ["1g.10gb"], 1: ["1g.10gb"]}


def test_administrators_claim_watches_no_device_that_is_made(node: MigNode) -> None:
    node.api.claim("admin", "gpu-00-mig-1g10gb-at-0", adminAccess=True)
    with pytest.raises(ClaimError, match="is not watched by another"):
        prepare(node, "admin")


def test_nothing_is_made_for_a_claim_that_kubelet_released(node: MigNode) -> None:
    node.api.claim("a", "gpu-00-mig-1g10gb-at-0")
    with pytest.raises(ClaimError, match="kubelet waits for it no more"):
        node.preparer().prepare("uid-a", "team", "a", lambda: False)
    assert (node.cut(), node.preparer().claims()) == ({}, {})
