# SPDX-License-Identifier: Apache-2.0
"""What the role container_runtime makes of a host, of its variables and of what was seen there."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.plan import Plan, plan
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.toolkit_packages import has_stale_lists

from odd_values import ODD, shown

ROLE = Path(__file__).parents[5] / "roles/container_runtime"
LOOK = ROLE / "files/look.sh"
DEFAULTS: dict[str, Any] = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
DEBIAN = {"pkg_mgr": "apt", "architecture": "x86_64", "distribution": "Debian"}
ROCKY = {"pkg_mgr": "dnf", "architecture": "aarch64", "distribution": "Rocky"}
ARCH = {"pkg_mgr": "pacman", "architecture": "x86_64", "distribution": "Archlinux"}
CONTAINERD = "/etc/containerd/config.toml"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
K3S_CONTAINERD = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"
KUBEADM = 'KUBELET_KUBEADM_ARGS="--config=/etc/x --container-runtime-endpoint=unix:///'
BINARY = "/usr/bin/nvidia-container-runtime"
BACKUPS = "/var/lib/accel-kubernetes/backups"


def planned(
    existing: tuple[str, ...] = (CONTAINERD,),
    told: tuple[str, ...] = (),
    facts: dict[str, str] = DEBIAN,
    seen: dict[str, Any] | None = None,
    **variables: Any,
) -> Plan:
    """The plan for a host on which exactly these paths exist, and whose kubelet is told this."""
    looked = [*(f"kubelet {line}" for line in told), *(f"found {path}" for path in existing)]
    return plan(DEFAULTS | variables, facts, {"host": "node-1", "found": {"stdout_lines": looked}, **(seen or {})})


def printed(look: Sequence[str]) -> list[str]:
    """The lines of ``look.sh``."""
    with LOOK.open() as script:
        done = subprocess.run(look, stdin=script, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


def runtime(found: Plan) -> str:
    return str(found.module.get("runtime", ""))


@pytest.mark.parametrize(
    ("existing", "expected"),
    [
        ((CONTAINERD,), "containerd"),
        ((CONTAINERD_SOCKET,), "containerd"),
        # Docker brings a containerd of its own; kubelet uses the one its shim serves.
        (("/run/cri-dockerd.sock", CONTAINERD_SOCKET, CONTAINERD), "docker"),
        (("/run/crio/crio.sock", CONTAINERD_SOCKET), "crio"),
        # A distribution's kubelet uses its own, whatever else is there.
        ((K3S_CONTAINERD, CONTAINERD_SOCKET, "/run/cri-dockerd.sock"), "k3s"),
        ((K3S_CONTAINERD.replace("k3s", "rke2"), CONTAINERD), "rke2"),
        (("/var/snap/microk8s/current/args/containerd-template.toml", CONTAINERD), "microk8s"),
        ((), ""),
    ],
)
def test_the_runtime_kubelet_uses_is_found(existing: tuple[str, ...], expected: str) -> None:
    found = planned(existing)
    assert runtime(found) == expected
    assert found.configures is (expected != "")


@pytest.mark.parametrize(
    ("lines", "existing", "expected"),
    [
        ((f"{KUBEADM}var/run/crio/crio.sock",), CONTAINERD_SOCKET, "crio"),
        (("containerRuntimeEndpoint: unix:///run/containerd/containerd.sock",), "/run/crio/crio.sock", "containerd"),
        (('  "containerRuntimeEndpoint": "/run/cri-dockerd.sock',), CONTAINERD_SOCKET, "docker"),
        (("containerRuntimeEndpoint: unix:///run/crio/crio.sock", f"{KUBEADM}{CONTAINERD_SOCKET}"), "/", "containerd"),
        ((f"{KUBEADM}run/other.sock",), CONTAINERD_SOCKET, "containerd"),
        # What kubeadm left on a host that k3s has taken over.
        ((f"{KUBEADM}run/crio/crio.sock",), K3S_CONTAINERD, "k3s"),
    ],
)
def test_what_kubelet_is_told_to_use_wins(lines: tuple[str, ...], existing: str, expected: str) -> None:
    found = planned((existing,), lines)
    assert runtime(found) == expected
    assert found.refusals.preflight == ()


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
def test_where_kubelet_says_what_it_uses_is_read(tmp_path: Path, said: str) -> None:
    (tmp_path / "file").write_text(f"# --container-runtime-endpoint=/run/no.sock\n{said}\n")
    asked = planned(container_runtime_kubelet_files=["/none", "/file"], container_runtime_host_root=str(tmp_path))
    assert runtime(planned(seen={"found": {"stdout_lines": printed(asked.look)}})) == "crio"


def test_what_there_is_on_a_host_is_found(tmp_path: Path) -> None:
    root = str(tmp_path)
    look = planned(container_runtime_host_root=root).look
    assert printed(look) == []
    path = tmp_path / CONTAINERD.strip("/")
    path.parent.mkdir(parents=True)
    path.touch()
    seen = {"found": {"stdout_lines": printed(look)}}
    assert seen == {"found": {"stdout_lines": [f"found {root}{CONTAINERD}"]}}
    assert runtime(planned(container_runtime_host_root=root, seen=seen)) == "containerd"


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
def test_a_runtime_is_known_by_its_whole_name(answer: str, known: bool) -> None:
    refused = planned(seen={"answer": {"rc": 0, "stdout": answer}}).refusals.answer
    assert [refusal.code for refusal in refused] == ([] if known else ["runtime_unknown"])


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({}, None),
        ({"rc": 0, "stdout": "runc"}, "'ask it' on node-1 does not name the runtime nvidia; run the role again with "),
        (
            {"rc": 1, "stdout": "nvidia", "stderr": " no\x1b[31m\n"},
            "'ask it' on node-1 ended with 1: no\ufffd[31m; run ",
        ),
        ({"rc": 2, "msg": "No such file"}, "'ask it' on node-1 ended with 2: No such file; run the role again"),
    ],
)
def test_a_runtime_that_does_not_know_ours_is_refused(answer: dict[str, Any], says: str | None) -> None:
    found = planned(seen={"answer": answer}, container_runtime_verify_command=["ask", "it"])
    assert found.question == ("ask", "it")
    assert "".join(refusal.message for refusal in found.refusals.answer).startswith(says or "")
    assert (found.refusals.answer == ()) is (says is None)


@pytest.mark.parametrize("crictl", [True, False])
def test_containerd_is_asked_with_and_without_crictl(tmp_path: Path, crictl: bool) -> None:
    asked = planned(container_runtime_host_root="/srv/a b", container_runtime_name="containerd").question
    for name in ["crictl", "containerd"] if crictl else ["containerd"]:
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
        (tmp_path / name).chmod(0o755)

    said = subprocess.run(
        ["/bin/sh", *asked[1:]], capture_output=True, text=True, check=True, env={"PATH": str(tmp_path)}
    )

    by_crictl = "crictl --runtime-endpoint unix:///run/containerd/containerd.sock info\n"
    assert said.stdout == (by_crictl if crictl else f"containerd --config /srv/a b{CONTAINERD} config dump\n")


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("docker", "docker"),
        ("crio", "crio"),
        ("k3s", "k3s"),
        ("rke2", "/var/lib/rancher/rke2/bin/crictl"),
        ("microk8s", "/snap/microk8s/current/bin/containerd"),
    ],
)
def test_runtimes_are_asked_by_programs_that_they_bring(name: str, program: str) -> None:
    assert planned(container_runtime_name=name).question[0] == program


@pytest.mark.parametrize("root", ["", "/srv/a.b"])
def test_files_below_another_root_are_found_by_their_own_names(root: str) -> None:
    found = planned((root + CONTAINERD, root + BINARY), container_runtime_host_root=root)
    assert runtime(found) == "containerd"
    assert found.module["config_path"] == root + CONTAINERD
    assert {root + CONTAINERD, root + BINARY, f"{BACKUPS}/container_runtime-toolkit"} <= set(found.look)
    assert not found.toolkit.begin


@pytest.mark.parametrize(
    ("facts", "expected"),
    [(DEBIAN, "nvidia-container-toolkit=1.18.1-1"), (ROCKY, "nvidia-container-toolkit-1.18.1-1")],
)
def test_all_toolkit_packages_are_of_one_version(facts: dict[str, str], expected: str) -> None:
    packages = planned(facts=facts, container_runtime_toolkit_version="1.18.1").toolkit.packages
    assert len(packages) == 4
    assert expected in packages
    assert all(package.endswith("1.18.1-1") for package in packages)
    newest = planned(facts=facts).toolkit.packages
    assert newest == tuple(DEFAULTS["container_runtime_toolkit_packages"])


def test_a_key_that_is_checked_is_read_from_the_host() -> None:
    checked, trusted = planned(facts=ROCKY), planned(facts=ROCKY, container_runtime_toolkit_repo_key_sha256="")
    assert checked.toolkit.gpgkey == f"file://{checked.toolkit.key_file}"
    assert checked.toolkit.key_checksum == f"sha256:{DEFAULTS['container_runtime_toolkit_repo_key_sha256']}"
    assert trusted.toolkit.gpgkey == DEFAULTS["container_runtime_toolkit_repo_key"]
    assert trusted.toolkit.key_checksum == ""
    # That our source names another key says that the file may hold another one.
    assert [planned(seen={"key": {"rc": rc}}).toolkit.replace_key for rc in (0, 1)] == [False, True]


def test_foreign_toolkit_and_sources_are_known_by_their_files() -> None:
    mark, theirs = f"{BACKUPS}/container_runtime-toolkit", "/etc/apt/sources.list.d/nvidia-docker.list"
    bare = planned().toolkit
    brought = planned((BINARY, mark, f"{BACKUPS}/container_runtime-nvidia-docker.list")).toolkit
    others = planned((BINARY, theirs)).toolkit
    assert [(each.begin, each.ours) for each in (bare, brought, others)] == [
        (True, False),
        (False, True),
        (False, False),
    ]
    assert [source.path for source in others.obsolete] == [source.path for source in brought.waiting] == [theirs]
    assert [source.kept for source in others.obsolete] == [brought.kept_files[0]]
    assert others.waiting == brought.obsolete == ()
    assert mark in brought.removed_files
    assert set(brought.kept_files) < set(planned().look)


@pytest.mark.parametrize(
    ("message", "stale"),
    [
        ("No package matching 'python3-tomlkit' is available", True),
        ("no available installation candidate for nvidia-container-toolkit=1.18.1-1", True),
        ("E: Failed to fetch http://mirror/a.deb  404  Not Found", True),
        ("Could not get lock /var/lib/dpkg/lock-frontend", False),
    ],
)
def test_package_lists_are_read_anew_where_they_are_stale(message: str, stale: bool) -> None:
    assert planned(seen={"installation": {"msg": message}}).stale_lists is stale
    assert not has_stale_lists({})


@pytest.mark.parametrize(
    ("facts", "existing", "variables", "says"),
    [
        (DEBIAN, [CONTAINERD], {}, None),
        (DEBIAN, [], {}, "No container runtime found"),
        (DEBIAN, [], {"name": "docker"}, None),
        (DEBIAN, [K3S_CONTAINERD, CONTAINERD], {}, None),
        (
            DEBIAN,
            [K3S_CONTAINERD, CONTAINERD],
            {"name": "containerd"},
            f"kubelet on node-1 uses the containerd of k3s ({K3S_CONTAINERD} exists), so containerd "
            "is a second one that runs no pods. Set container_runtime_name=k3s or auto",
        ),
        (DEBIAN, [K3S_CONTAINERD], {"name": "docker", "configure": False}, None),
        (
            DEBIAN,
            [CONTAINERD],
            {"name": "docker"},
            "node-1 has containerd but not docker, which would have /run/cri-dockerd.sock, /run/docker.sock; "
            "set container_runtime_name to the runtime that kubelet uses or to auto, or start docker",
        ),
        (DEBIAN, [CONTAINERD, "/run/docker.sock"], {"name": "docker"}, None),
        (ARCH, [CONTAINERD], {}, "set container_runtime_toolkit_install=false"),
        (DEBIAN, [CONTAINERD], {"toolkit_install": False}, f"{BINARY} does not exist"),
        (ARCH, [CONTAINERD, BINARY], {"toolkit_install": False}, None),
        (DEBIAN, [CONTAINERD], {"configure": "off", "toolkit_install": "no"}, f"{BINARY} does not exist"),
        (DEBIAN, [CONTAINERD], {"cdi": "maybe"}, "container_runtime_cdi is 'maybe'; set it to true or false."),
        (DEBIAN, [CONTAINERD], {"timeout": "soon"}, "container_runtime_timeout is 'soon'; set it to a number"),
        (DEBIAN, [CONTAINERD], {"detect": [{"name": "podman", "path": "/run/p"}]}, "container_runtime_detect is ["),
    ],
)
def test_what_cannot_work_is_refused(
    facts: dict[str, str], existing: list[str], variables: dict[str, Any], says: str | None
) -> None:
    given = {f"container_runtime_{name}": value for name, value in variables.items()}
    refused = planned(tuple(existing), facts=facts, **given).refusals.preflight
    assert len(refused) == (says is not None), refused
    assert (says or "") in "".join(refusal.message for refusal in refused)


def test_a_runtime_that_kubelet_does_not_use_is_refused() -> None:
    found = planned(
        (CONTAINERD, "/run/crio/crio.sock"), (f"{KUBEADM}run/crio/crio.sock",), container_runtime_name="containerd"
    )
    (refusal,) = found.refusals.preflight
    assert refusal.message.startswith(
        "kubelet on node-1 uses /run/crio/crio.sock, which is crio, so containerd runs no pods there. "
        "Set container_runtime_name=crio or auto"
    )


def test_what_could_not_be_brought_can_be_taken_away() -> None:
    found = planned((), facts=ARCH, seen={"removing": True})
    assert (found.state, found.configures, found.refusals.preflight) == ("absent", False, ())


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
        ({"container_runtime_name": "docker", "container_runtime_ignore_visible_devices": "yes"}, True),
    ],
)
def test_where_an_image_cannot_name_gpus(variables: dict[str, Any], ignored: bool) -> None:
    module = planned(**variables).module
    assert module["ignore_visible_devices"] is ignored
    assert module["cdi"] is True


@pytest.mark.parametrize("absent", [None, ""])
def test_the_module_is_given_no_value_that_is_the_runtimes_own(absent: object) -> None:
    names = ("cdi", "containerd_command", "service", "validate_command", "ready_command", "cri_socket", "timeout")
    module = planned(**dict.fromkeys((f"container_runtime_{name}" for name in names), absent)).module
    assert not {*names, "validate", "ready"} & set(module)
    given = planned(container_runtime_timeout="30", container_runtime_validate_command=[]).module
    assert given["timeout"] == "30"
    assert given["validate"] == ()
    assert "cdi" not in planned(container_runtime_name="crio").module


@pytest.mark.parametrize(
    ("name", "groups", "throttle"),
    [
        ("k3s", ["kube_control_plane", "gpu_nodes"], 1),
        ("rke2", ["kube_control_plane"], 1),
        ("k3s", ["gpu_nodes"], 0),
        ("containerd", ["kube_control_plane"], 0),
    ],
)
def test_control_planes_that_restart_whole_take_turns(name: str, groups: list[str], throttle: int) -> None:
    assert planned(container_runtime_name=name, seen={"groups": groups}).throttle == throttle


@pytest.mark.parametrize("odd", ODD, ids=shown)
def test_an_odd_variable_ends_in_a_plan_or_names_itself(odd: object) -> None:
    for name in [*DEFAULTS, "gpu_mode", "gpu_plugins_device_list_strategy"]:
        for refusal in planned(**{name: odd}).refusals.preflight:
            assert refusal.code != "option_type" or name in refusal.message


@pytest.mark.parametrize("odd", ODD, ids=shown)
def test_an_odd_answer_of_a_task_ends_in_a_plan(odd: object) -> None:
    for name in ["host", "groups", "removing", "found", "key", "installation", "answer"]:
        for seen in (odd, {"stdout_lines": odd, "rc": odd, "msg": odd, "stdout": odd, "stderr": odd}):
            assert runtime(planned(seen={name: seen})) in ("containerd", "")


def looked(pending: bool = False, **variables: Any) -> dict[str, Any]:
    """What the check of this run found, when it was asked with these variables."""
    module = json.loads(json.dumps(planned(**variables).module))
    return {"pending": pending, "changed": False, "options": {**module, "state": "present", "validate": None}}


def test_runtime_the_check_found_right_is_not_registered() -> None:
    assert planned().registers
    assert not planned(seen={"looked": looked()}).registers
    ready: dict[str, Any] = {"container_runtime_ready_command": ["systemctl", "is-active", "containerd"]}
    assert not planned(seen={"looked": looked(**ready)}, **ready).registers


@pytest.mark.parametrize(
    "outdated",
    [
        {"looked": looked(pending=True)},
        {"looked": looked() | {"failed": True}},
        {"looked": looked(), "installation": {"changed": True}},
        {"looked": looked(container_runtime_cdi=False)},
        {"looked": looked(container_runtime_service="other.service")},
        {"looked": {"skipped": True, "changed": False}},
        {"looked": looked() | {"options": {**planned().module, "state": "absent"}}},
    ],
)
def test_runtime_is_registered_if_the_check_is_outdated(outdated: dict[str, Any]) -> None:
    assert planned(seen=outdated).registers


def test_no_runtime_is_registered_where_none_is_configured() -> None:
    assert not planned(container_runtime_configure=False).registers
