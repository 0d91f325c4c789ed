# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.kube.cgroups import Place, place, place_of

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
