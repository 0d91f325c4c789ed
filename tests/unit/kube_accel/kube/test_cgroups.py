# SPDX-License-Identifier: Apache-2.0
import itertools
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.kube import cgroups
from kube_accel.kube.cgroups import Place, Places, place, place_of

UID = "3f2a7c1e-0b6d-4a55-9f10-6a1c2b3d4e5f"
SLICE = UID.replace("-", "_")
ID = "0123456789abcdef" * 4
OTHER = "fedcba9876543210" * 4


@pytest.mark.parametrize(
    "text",
    [
        f"11:memory:/kubepods/burstable/pod{UID}/{ID}\n1:name=systemd:/kubepods/burstable/pod{UID}/{ID}\n",
        f"4:memory:/kubepods/pod{UID}/{ID}\n",
        f"0::/kubepods/besteffort/pod{UID}/{ID}\n",
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/cri-containerd-{ID}.scope\n",
        f"0::/kubepods.slice/kubepods-pod{SLICE}.slice/crio-{ID}.scope/container\n",
        f"0::/kubepods.slice/kubepods-pod{SLICE}.slice/docker-{ID}.scope\n",
        f"0::/system.slice/containerd.service/kubepods-besteffort-pod{SLICE}.slice:cri-containerd:{ID}\n",
        f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope\n",
        f"0::/../../kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/cri-containerd-{ID}.scope\n",
        f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '')}.slice/cri-containerd-{ID}.scope\n",
        f"0::/docker/{OTHER}/kubelet/kubepods/burstable/pod{UID}/{ID}\n",
        f"3:cpu:/\n2:memory:/kubepods/pod{UID}/{ID}\n",
    ],
)
def test_every_runtime_and_driver_names_pod_and_container(text: str) -> None:
    assert place(text) == Place(UID, ID)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0::/\n",
        "0::/system.slice/sshd.service\n",
        f"0::/system.slice/docker-{ID}.scope\n",
        f"0::/kubepods/pod{UID}\n",
        f"0::/kubepods.slice/kubepods-pod{SLICE}.slice/crio-conmon-{ID}.scope\n",
        f"0::/{ID}/kubepods/pod{UID}\n",
        f"0::/kubepods/pod{UID}/{ID}0\n",
    ],
)
def test_what_is_in_no_container_of_a_pod_has_no_place(text: str) -> None:
    assert place(text) is None


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    place(text)


def test_a_process_that_has_gone_has_no_place(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text(f"0::/kubepods/pod{UID}/{ID}\n")
    assert place_of(7, tmp_path) == Place(UID, ID)
    assert place_of(8, tmp_path) is None


def test_cgroups_are_read_once_in_a_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def counted(pid: int, root: Path) -> Place | None:
        read.append(pid)
        return place_of(pid, root)

    monkeypatch.setattr(cgroups, "place_of", counted)
    clock = itertools.count(step=60)
    places = Places(tmp_path, lambda: next(clock))
    _runs(tmp_path, 7, f"0::/kubepods/pod{UID}/{ID}\n")
    assert [places.of(7), places.of(7)] == [Place(UID, ID)] * 2
    assert read == [7]
    # Another process, which has the number now.
    shutil.rmtree(tmp_path / "7")
    assert places.of(7) is None
    _runs(tmp_path, 7, "0::/init.scope\n")
    assert places.of(7) is None
    assert read == [7, 7]


def test_reused_process_number_is_another_process(tmp_path: Path) -> None:
    now = 0.0
    places = Places(tmp_path, lambda: now)
    _runs(tmp_path, 7, f"0::/kubepods/pod{UID}/{ID}\n")
    assert places.of(7) == Place(UID, ID)
    (tmp_path / "7").rename(tmp_path / "ended")
    _runs(tmp_path, 7, "0::/init.scope\n")
    assert places.of(7) == Place(UID, ID), "numbers go round, they are not given anew within seconds"
    now = 6.0
    assert places.of(7) is None


def test_this_very_process_is_found_in_a_real_proc() -> None:
    places = Places()
    assert [places.of(os.getpid()), places.of(os.getpid())] == [place_of(os.getpid())] * 2


def test_processes_without_end_take_no_memory_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_MOST_KNOWN", 2)
    places = Places(tmp_path)
    for pid in (1, 2, 3):
        _runs(tmp_path, pid, f"0::/kubepods/pod{UID}/{ID}\n")
        assert places.of(pid) == Place(UID, ID)
    assert len(places._known) == 1


def _runs(root: Path, pid: int, text: str) -> None:
    (root / str(pid)).mkdir()
    (root / str(pid) / "cgroup").write_text(text)
