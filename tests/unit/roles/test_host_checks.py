# SPDX-License-Identifier: Apache-2.0
"""What container_runtime and scheduler make of the files of a host."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .conftest import Evaluate

DEBIAN = {"pkg_mgr": "apt", "architecture": "x86_64", "distribution": "Debian", "os_family": "Debian"}
ROCKY = {"pkg_mgr": "dnf", "architecture": "aarch64", "distribution": "Rocky", "os_family": "RedHat"}
ARCH = {"pkg_mgr": "pacman", "architecture": "x86_64", "distribution": "Archlinux", "os_family": "Archlinux"}
CONTAINERD = "/etc/containerd/config.toml"
K3S_CONTAINERD = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"


def found(*existing: str) -> dict[str, Any]:
    """The register of a host on which exactly these paths exist."""
    return {"stdout_lines": existing}


@pytest.mark.parametrize(
    ("existing", "runtime"),
    [
        ([CONTAINERD], "containerd"),
        (["/run/containerd/containerd.sock"], "containerd"),
        # Docker brings a containerd of its own; kubelet uses the one its shim serves.
        (["/run/cri-dockerd.sock", "/run/containerd/containerd.sock", CONTAINERD], "docker"),
        (["/run/crio/crio.sock", "/run/containerd/containerd.sock"], "crio"),
        # A distribution's kubelet uses its own, whatever else is there.
        ([K3S_CONTAINERD, "/run/containerd/containerd.sock", "/run/cri-dockerd.sock"], "k3s"),
        ([K3S_CONTAINERD.replace("k3s", "rke2"), CONTAINERD], "rke2"),
        (["/var/snap/microk8s/current/args/containerd-template.toml", CONTAINERD], "microk8s"),
        ([], ""),
    ],
)
def test_the_runtime_kubelet_uses_is_found(evaluate: Evaluate, existing: list[str], runtime: str) -> None:
    register = found(*existing)
    name = "__container_runtime_selected"
    given = {"__container_runtime_found": register, "__container_runtime_kubelet": {}}
    assert evaluate("container_runtime", name, DEBIAN, **given) == runtime


KUBEADM = 'KUBELET_KUBEADM_ARGS="--config=/etc/x --container-runtime-endpoint=unix:///'
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"


@pytest.mark.parametrize(
    ("lines", "existing", "runtime"),
    [
        ([f"{KUBEADM}var/run/crio/crio.sock"], [CONTAINERD_SOCKET], "crio"),
        (["containerRuntimeEndpoint: unix:///run/containerd/containerd.sock"], ["/run/crio/crio.sock"], "containerd"),
        (['  "containerRuntimeEndpoint": "/run/cri-dockerd.sock'], [CONTAINERD_SOCKET], "docker"),
        (["containerRuntimeEndpoint: unix:///run/crio/crio.sock", f"{KUBEADM}{CONTAINERD_SOCKET}"], [], "containerd"),
        ([f"{KUBEADM}run/other.sock"], [CONTAINERD_SOCKET], "containerd"),
        # What kubeadm left on a host that k3s has taken over.
        ([f"{KUBEADM}run/crio/crio.sock"], [K3S_CONTAINERD], "k3s"),
    ],
)
def test_what_kubelet_is_told_to_use_wins(
    evaluate: Evaluate, lines: list[str], existing: list[str], runtime: str
) -> None:
    given = {"__container_runtime_found": found(*existing)}
    given["__container_runtime_kubelet"] = {"stdout_lines": lines}
    assert evaluate("container_runtime", "__container_runtime_selected", DEBIAN, **given) == runtime
    assert evaluate("container_runtime", "__container_runtime_problems", DEBIAN, **given) == []


@pytest.mark.parametrize(
    "said",
    [
        "containerRuntimeEndpoint: unix:///run/crio/crio.sock",
        'containerRuntimeEndpoint: "unix:///run/crio/crio.sock"',
        '  "containerRuntimeEndpoint": "unix:///run/crio/crio.sock",',
        'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///run/crio/crio.sock --node-ip=10.0.0.1"',
        "KUBELET_EXTRA_ARGS=--node-ip=::1 --container-runtime-endpoint /run/crio/crio.sock",
    ],
)
def test_where_kubelet_says_what_it_uses_is_read(evaluate: Evaluate, tmp_path: Path, said: str) -> None:
    (tmp_path / "file").write_text(f"# --container-runtime-endpoint=/run/no.sock\n{said}\n")
    command = ["grep", "-hosE", evaluate("container_runtime", "__container_runtime_endpoint_said", DEBIAN)]
    found = subprocess.run(
        [*command, tmp_path / "none", tmp_path / "file"], capture_output=True, text=True, check=False
    )
    register = {"stdout_lines": found.stdout.splitlines()}
    endpoint = evaluate(
        "container_runtime", "__container_runtime_endpoint", DEBIAN, __container_runtime_kubelet=register
    )
    assert endpoint == "/run/crio/crio.sock"


@pytest.mark.parametrize(
    ("answer", "known"),
    [
        ('  "runtimes": {"nvidia": {"type": "io.containerd.runc.v2"}, "runc": {}}', True),
        ('{"io.containerd.runc.v2":{"path":"runc"},"nvidia":{"path":"nvidia-container-runtime"}}', True),
        ("[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]", True),
        ('[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]', True),
        ("    [crio.runtime.runtimes.nvidia]", True),
        ("nvidia runc\n", True),
        # What stays when ours is gone: the template of microk8s, NVIDIA's operator, an image.
        ('runtimes.nvidia-container-runtime.options]\n  BinaryName = "nvidia-container-runtime"', False),
        ("[crio.runtime.runtimes.nvidia-cdi]\nruntime_path = '/usr/local/nvidia/toolkit/x'", False),
        ('"sandboxImage": "nvcr.io/nvidia/pause"', False),
    ],
)
def test_a_runtime_is_known_by_its_whole_name(evaluate: Evaluate, answer: str, known: bool) -> None:
    pattern = evaluate("container_runtime", "__container_runtime_named", DEBIAN)
    assert bool(re.search(pattern, answer)) == known


@pytest.mark.parametrize("crictl", [True, False])
def test_containerd_is_asked_with_and_without_crictl(evaluate: Evaluate, tmp_path: Path, crictl: bool) -> None:
    given = {"__container_runtime_found": found(CONTAINERD), "__container_runtime_kubelet": {}}
    asked = evaluate("container_runtime", "__container_runtime_asked", DEBIAN, **given)
    for name in ["crictl", "containerd"] if crictl else ["containerd"]:
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
        (tmp_path / name).chmod(0o755)

    said = subprocess.run(
        ["/bin/sh", *asked[1:]], capture_output=True, text=True, check=True, env={"PATH": str(tmp_path)}
    )

    by_crictl = "crictl --runtime-endpoint unix:///run/containerd/containerd.sock info\n"
    assert said.stdout == (by_crictl if crictl else f"containerd --config {CONTAINERD} config dump\n")


def test_microk8s_is_asked_by_a_program_that_it_brings(evaluate: Evaluate) -> None:
    given = {"__container_runtime_found": found(), "container_runtime_name": "microk8s"}
    asked = evaluate("container_runtime", "__container_runtime_asked", DEBIAN, **given)
    assert asked[0].startswith("/snap/microk8s/current/bin/")


@pytest.mark.parametrize("root", ["", "/srv/a.b"])
def test_files_below_another_root_are_found_by_their_own_names(evaluate: Evaluate, root: str) -> None:
    register = found(root + CONTAINERD, f"{root}/usr/bin/nvidia-container-runtime")
    variables = {"container_runtime_host_root": root, "__container_runtime_found": register}
    assert evaluate("container_runtime", "__container_runtime_selected", DEBIAN, **variables) == "containerd"


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (DEBIAN, "nvidia-container-toolkit=1.18.1-1"),
        (ROCKY, "nvidia-container-toolkit-1.18.1-1"),
    ],
)
def test_all_toolkit_packages_are_of_one_version(evaluate: Evaluate, facts: dict[str, str], expected: str) -> None:
    name = "__container_runtime_packages"
    packages = evaluate("container_runtime", name, facts, container_runtime_toolkit_version="1.18.1")
    assert len(packages) == 4
    assert expected in packages
    assert all(package.endswith("1.18.1-1") for package in packages)
    assert all("1.18" not in package for package in evaluate("container_runtime", name, facts))


@pytest.mark.parametrize(
    ("facts", "existing", "variables", "says"),
    [
        (DEBIAN, [CONTAINERD], {}, None),
        (DEBIAN, [], {}, "No container runtime found"),
        (DEBIAN, [], {"container_runtime_name": "docker"}, None),
        (DEBIAN, [K3S_CONTAINERD, CONTAINERD], {}, None),
        (
            DEBIAN,
            [K3S_CONTAINERD, CONTAINERD],
            {"container_runtime_name": "containerd", "inventory_hostname": "gpu-1"},
            f"kubelet on gpu-1 uses the containerd of k3s ({K3S_CONTAINERD} exists); containerd is a second one "
            "that runs no pods; set container_runtime_name=k3s or auto",
        ),
        (DEBIAN, [K3S_CONTAINERD], {"container_runtime_name": "docker", "container_runtime_configure": False}, None),
        (
            DEBIAN,
            [CONTAINERD],
            {"container_runtime_name": "docker"},
            "node-1 has containerd and not docker, of which /run/cri-dockerd.sock, /run/docker.sock would tell; "
            "set container_runtime_name to what kubelet uses or to auto, or start docker",
        ),
        (DEBIAN, [CONTAINERD, "/run/docker.sock"], {"container_runtime_name": "docker"}, None),
        (
            DEBIAN,
            [CONTAINERD, "/run/crio/crio.sock"],
            {
                "container_runtime_name": "containerd",
                "__container_runtime_kubelet": {"stdout_lines": [f"{KUBEADM}run/crio/crio.sock"]},
            },
            "kubelet on node-1 uses /run/crio/crio.sock, which is crio; containerd runs no pods there; "
            "set container_runtime_name=crio or auto",
        ),
        (ARCH, [CONTAINERD], {}, "set container_runtime_toolkit_install=false"),
        (
            DEBIAN,
            [CONTAINERD],
            {"container_runtime_toolkit_install": False},
            "/usr/bin/nvidia-container-runtime does not exist",
        ),
        (ARCH, [CONTAINERD, "/usr/bin/nvidia-container-runtime"], {"container_runtime_toolkit_install": False}, None),
    ],
)
def test_container_runtime_refusals(
    evaluate: Evaluate, facts: dict[str, str], existing: list[str], variables: dict[str, Any], says: str | None
) -> None:
    given = {"__container_runtime_found": found(*existing), "__container_runtime_kubelet": {}} | variables
    problems = evaluate("container_runtime", "__container_runtime_problems", facts, **given)
    assert len(problems) == (says is not None), problems
    assert (says or "") in "".join(problems)


@pytest.mark.parametrize(
    ("variables", "ignored"),
    [
        ({}, True),
        ({"gpu_mode": "pgpu"}, True),
        ({"gpu_mode": "cgpu"}, True),
        ({"gpu_plugins_device_list_strategy": ["envvar"]}, False),
        ({"gpu_plugins_device_list_strategy": ["volume-mounts", "envvar"]}, True),
        ({"gpu_mode": "vgpu", "gpu_plugins_device_list_strategy": ["envvar"]}, True),
        ({"container_runtime_name": "docker"}, False),
        ({"container_runtime_name": "docker", "gpu_mode": "mps"}, True),
        ({"container_runtime_ignore_visible_devices": False}, False),
        ({"gpu_mode": "vgpu", "container_runtime_ignore_visible_devices": False}, False),
        ({"container_runtime_ignore_visible_devices": "true"}, True),
    ],
)
def test_where_an_image_cannot_name_gpus(evaluate: Evaluate, variables: dict[str, Any], ignored: bool) -> None:
    given = {"__container_runtime_found": found(CONTAINERD), "__container_runtime_kubelet": {}} | variables
    arguments = evaluate("container_runtime", "__container_runtime_settings", DEBIAN, **given)
    assert arguments["ignore_visible_devices"] is ignored
    assert arguments["cdi"] is True
    assert arguments["timeout"] is None


MICROK8S = {"name": "microk8s", "path": "/var/snap/microk8s", "remedy": "add --config to its file args/kube-scheduler"}
MANIFEST = {"name": "manifest", "path": "/etc/kubernetes/manifests/kube-scheduler.yaml"}
