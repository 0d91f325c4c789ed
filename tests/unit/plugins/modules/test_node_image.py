# SPDX-License-Identifier: Apache-2.0
"""Which container runtime of a node is asked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.modules import node_image

K3S, MICROK8S = "/run/k3s/containerd/containerd.sock", "/var/snap/microk8s/common/run/containerd.sock"
CRIO, CRI_DOCKERD = "/run/crio/crio.sock", "/run/cri-dockerd.sock"
PRESENT: dict[str, Any] = {"state": "present", "tag": "1", "digests": ["sha256:1"]}
USUAL, SNAP = "/usr/bin/ctr", "/snap/microk8s/current/bin/ctr"


class Node:
    """As much of an AnsibleModule as is asked, on a machine that has these files."""

    check_mode = True
    run_command_environ_update: dict[str, str]

    def __init__(self, files: Sequence[str], options: dict[str, Any]) -> None:
        self.files, self.ran = files, list[str]()
        given = {"state": "absent", "repository": "localhost/a", "runtime": "auto", **options}
        self.params = {name: given.get(name) for name in (*given, "tag", "digests", "archive", "command", "socket")}

    def get_bin_path(self, name: str, opt_dirs: Sequence[str] = ()) -> str | None:
        places = ["/usr/bin", *opt_dirs]
        return next((path for path in (f"{place}/{name}" for place in places) if path in self.files), None)

    def run_command(self, command: Sequence[str]) -> tuple[int, str, str]:
        self.ran.append(" ".join(command))
        return 0, "", ""


def asked(monkeypatch: pytest.MonkeyPatch, files: Sequence[str], **options: Any) -> str:
    node = Node(files, options)
    monkeypatch.setattr(os.path, "exists", lambda path: path in files)
    node_image.NodeImage(node).run()  # type: ignore[arg-type]
    return node.ran[0]


@pytest.mark.parametrize(
    ("files", "client"),
    [
        ([USUAL], USUAL),
        ([USUAL, K3S], f"{USUAL} --address {K3S}"),
        (["/usr/bin/k3s", K3S], f"/usr/bin/k3s ctr --address {K3S}"),
        ([SNAP, MICROK8S], f"{SNAP} --address {MICROK8S}"),
        # Docker's containerd beside it, which kubelet does not use.
        ([USUAL, SNAP, MICROK8S], f"{USUAL} --address {MICROK8S}"),
        ([USUAL, SNAP, MICROK8S, CRIO], f"{USUAL} --address {MICROK8S}"),
        (["/usr/bin/docker", USUAL, CRI_DOCKERD], "/usr/bin/docker image ls"),
    ],
)
def test_the_runtime_kubelet_uses_is_asked(monkeypatch: pytest.MonkeyPatch, files: list[str], client: str) -> None:
    assert asked(monkeypatch, files).startswith(client)


def test_crio_is_refused_unless_another_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(node_image.NodeImageError, match="push the image to a registry"):
        asked(monkeypatch, [USUAL, CRIO], **PRESENT)

    assert asked(monkeypatch, [USUAL, CRIO], **PRESENT, runtime="containerd").startswith(USUAL)
    assert asked(monkeypatch, [USUAL, CRIO], **PRESENT, socket="/run/a").startswith(f"{USUAL} --address /run/a")
    assert asked(monkeypatch, [USUAL, CRIO], state="absent").startswith(USUAL)
