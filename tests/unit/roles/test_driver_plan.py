# SPDX-License-Identifier: Apache-2.0
"""What the driver role would install, and what it refuses, for every system and GPU generation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import Evaluate

H100, V100, B200, T4 = "0x2330", "0x1db1", "0x2901", "0x1eb8"
SYSTEMS = {
    "debian12": ("Debian", "12", "12.8", "apt"),
    "debian13": ("Debian", "13", "13.1", "apt"),
    "ubuntu2404": ("Ubuntu", "24", "24.04", "apt"),
    "rocky9": ("Rocky", "9", "9.6", "dnf"),
    "alma10": ("AlmaLinux", "10", "10.1", "dnf"),
    "rhel9": ("RedHat", "9", "9.6", "dnf"),
    "openeuler": ("openEuler", "24", "24.03", "dnf"),
}


def facts(system: str, architecture: str = "x86_64", kernel: str = "6.8.0-90-generic") -> dict[str, Any]:
    distribution, major, version, manager = SYSTEMS[system]
    return {
        "distribution": distribution,
        "distribution_major_version": major,
        "distribution_version": version,
        "pkg_mgr": manager,
        "architecture": architecture,
        "kernel": kernel,
    }


def observed(*devices: str, **seen: Any) -> dict[str, str]:
    """What the observation task would register."""
    gpus = [{"address": f"0000:{i:02x}:00.0", "device": device, "driver": ""} for i, device in enumerate(devices)]
    nothing = dict.fromkeys(("loaded", "installed", "license", "stream"), "") | dict.fromkeys(
        ("nouveau", "secure_boot", "dgx", "operator", "runfile", "package", "non_free"), False
    )
    return {"stdout": json.dumps(nothing | {"gpus": gpus} | seen)}


def problems(evaluate: Evaluate, system: str, observation: dict[str, str], **variables: Any) -> list[str]:
    found = evaluate("driver", "__driver_problems", facts(system), __driver_observation=observation, **variables)
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize(
    ("system", "architecture", "expected"),
    [
        ("debian12", "x86_64", "debian12/x86_64"),
        ("debian13", "aarch64", "debian13/sbsa"),
        ("ubuntu2404", "x86_64", "ubuntu2404/x86_64"),
        ("rocky9", "aarch64", "rhel9/sbsa"),
        ("alma10", "x86_64", "rhel10/x86_64"),
    ],
)
def test_the_repository_of_each_system(evaluate: Evaluate, system: str, architecture: str, expected: str) -> None:
    url = evaluate("driver", "__driver_repo", facts(system, architecture))
    assert url == f"https://developer.download.nvidia.com/compute/cuda/repos/{expected}"


@pytest.mark.parametrize(
    ("devices", "variables", "expected"),
    [
        ([H100], {}, "open"),
        ([T4], {}, "open"),
        ([V100], {}, "proprietary"),
        ([V100, H100], {}, "proprietary"),
        ([H100], {"driver_branch": "550"}, "proprietary"),
        ([B200], {"driver_branch": "550"}, "open"),
        ([H100], {"driver_kernel_module_type": "proprietary"}, "proprietary"),
    ],
)
def test_the_kernel_module_fits_the_gpus(
    evaluate: Evaluate, devices: list[str], variables: dict[str, str], expected: str
) -> None:
    observation = observed(*devices)
    assert evaluate("driver", "__driver_module_type", {}, __driver_observation=observation, **variables) == expected


@pytest.mark.parametrize(
    ("name", "system", "variables", "expected"),
    [
        ("__driver_packages_repo_deb", "debian12", {}, ["nvidia-open"]),
        ("__driver_packages_repo_deb", "debian12", {"driver_kernel_module_type": "proprietary"}, ["cuda-drivers"]),
        ("__driver_packages_repo_deb", "ubuntu2404", {"driver_branch": "570"}, ["nvidia-open-570"]),
        ("__driver_packages_repo_rpm", "rocky9", {}, ["nvidia-driver-cuda", "kmod-nvidia-open-dkms"]),
        (
            "__driver_packages_repo_rpm",
            "alma10",
            {"driver_version": "580.95.05"},
            ["nvidia-driver-cuda-580.95.05", "kmod-nvidia-open-dkms-580.95.05"],
        ),
        (
            "__driver_packages_distro",
            "ubuntu2404",
            {"driver_dkms": False},
            [
                "linux-modules-nvidia-580-server-open-generic",
                "nvidia-headless-no-dkms-580-server-open",
                "nvidia-utils-580-server",
            ],
        ),
        (
            "__driver_packages_distro",
            "ubuntu2404",
            {},
            ["nvidia-dkms-580-server-open", "nvidia-headless-580-server-open", "nvidia-utils-580-server"],
        ),
    ],
)
def test_packages(evaluate: Evaluate, name: str, system: str, variables: dict[str, Any], expected: list[str]) -> None:
    assert evaluate("driver", name, facts(system), __driver_observation=observed(H100), **variables) == expected


@pytest.mark.parametrize("system", SYSTEMS)
def test_headers_are_those_of_the_running_kernel(evaluate: Evaluate, system: str) -> None:
    packages = evaluate("driver", "__driver_prerequisites", facts(system, kernel="5.14.0-1.el9.x86_64"))
    assert [package for package in packages if package.endswith("-5.14.0-1.el9.x86_64")]


@pytest.mark.parametrize(
    ("runfile", "seen", "variables", "expected"),
    [
        ("NVIDIA-Linux-x86_64-580.95.05.run", {}, {}, ["--silent", "--dkms", "--kernel-module-type=open"]),
        ("NVIDIA-Linux-x86_64-535.1.run", {}, {"driver_dkms": False}, ["--silent", "--no-dkms"]),
        (
            "NVIDIA-Linux-x86_64-550.1.run",
            {},
            {"driver_kernel_module_type": "open"},
            ["--silent", "--dkms", "--kernel-module-build-directory=kernel-open"],
        ),
        (
            "NVIDIA-Linux-x86_64-580.95.05.run",
            {"loaded": "570.1"},
            {"driver_runfile_extra_args": ["--no-drm"]},
            [
                *("--silent", "--dkms", "--kernel-module-type=open"),
                *("--allow-installation-with-running-driver", "--skip-module-load", "--no-drm"),
            ],
        ),
    ],
)
def test_the_installer_gets_only_what_its_version_knows(
    evaluate: Evaluate, runfile: str, seen: dict[str, str], variables: dict[str, Any], expected: list[str]
) -> None:
    arguments = evaluate(
        "driver",
        "__driver_runfile_args",
        {},
        __driver_observation=observed(H100, **seen),
        driver_method="runfile",
        driver_runfile=f"/srv/{runfile}",
        **variables,
    )
    assert arguments == expected


@pytest.mark.parametrize(
    ("seen", "variables", "needed"),
    [
        ({}, {}, True),
        ({"installed": "570.1"}, {}, True),
        ({"installed": "580.95.05", "license": "Dual MIT/GPL"}, {}, False),
        ({"installed": "580.95.05", "license": "NVIDIA"}, {}, False),
        ({"installed": "580.95.05", "license": "NVIDIA"}, {"driver_kernel_module_type": "open"}, True),
        ({"installed": "580.95.05", "license": "Dual MIT/GPL"}, {"driver_kernel_module_type": "open"}, False),
    ],
)
def test_the_installer_runs_only_for_a_difference(
    evaluate: Evaluate, seen: dict[str, str], variables: dict[str, str], needed: bool
) -> None:
    got = evaluate(
        "driver",
        "__driver_runfile_needed",
        {},
        __driver_observation=observed(H100, **seen),
        driver_method="runfile",
        driver_runfile="https://example.com/NVIDIA-Linux-x86_64-580.95.05.run",
        **variables,
    )
    assert got is needed


@pytest.mark.parametrize(
    ("seen", "needed"),
    [
        ({}, False),
        ({"installed": "580.2"}, False),
        ({"loaded": "580.1", "installed": "580.1"}, False),
        ({"loaded": "580.1", "installed": "580.2"}, True),
        ({"nouveau": True}, True),
    ],
)
def test_a_reboot_is_needed_when_the_loaded_driver_is_not_the_installed_one(
    evaluate: Evaluate, seen: dict[str, Any], needed: bool
) -> None:
    assert evaluate("driver", "__driver_needs_reboot", {}, __driver_observation=observed(H100, **seen)) is needed


@pytest.mark.parametrize("system", ["debian12", "debian13", "ubuntu2404", "rocky9", "rhel9"])
def test_a_bare_host_of_a_known_system_is_accepted(evaluate: Evaluate, system: str) -> None:
    assert problems(evaluate, system, observed(H100)) == []


URL = "https://example.com/NVIDIA-Linux-x86_64-580.95.05.run"
RUNFILE = {"driver_method": "runfile", "driver_runfile": URL, "driver_runfile_sha256": "0" * 64}


@pytest.mark.parametrize(
    ("system", "observation", "variables", "says"),
    [
        ("debian12", observed(), {}, "take the host out of the group gpu_nodes"),
        ("debian12", observed(H100), {"driver_method": "none"}, "set driver_method to repo, distro or runfile"),
        ("debian12", observed(H100), {"driver_method": "runfile"}, "driver_runfile is not set"),
        ("debian12", observed(H100), RUNFILE | {"driver_runfile_sha256": ""}, "driver_runfile_sha256 is not set"),
        ("debian12", observed(H100), RUNFILE | {"driver_runfile": "/none/NVIDIA-1.2.run"}, "is not on the controller"),
        (
            "debian12",
            observed(H100),
            RUNFILE | {"driver_runfile": "https://example.com/driver.run"},
            "set driver_version to the one it installs",
        ),
        ("openeuler", observed(H100), {}, "set driver_method=runfile"),
        ("rocky9", observed(H100), {"driver_method": "distro"}, "set driver_method=runfile"),
        ("alma10", observed(H100), {}, "set driver_version to an exact version"),
        ("debian12", observed(H100), {"driver_method": "distro"}, "add contrib non-free non-free-firmware"),
        ("debian12", observed(H100, runfile=True), {}, "run 'nvidia-uninstall --silent'"),
        ("debian12", observed(H100, package=True), RUNFILE, "set driver_method to repo or distro"),
        ("debian12", observed(H100, dgx=True), {}, "driver_force=true to replace it"),
        ("debian12", observed(H100, operator=True), {}, "GPU operator"),
        ("debian12", observed(H100, secure_boot=True), RUNFILE, "set driver_module_signing_secret_key"),
        ("debian12", observed(V100), {"driver_branch": "590"}, "580 is the last branch that supports it"),
        (
            "debian12",
            observed(V100),
            {"driver_kernel_module_type": "open"},
            "set driver_kernel_module_type=proprietary",
        ),
        (
            "debian12",
            observed(B200),
            {"driver_kernel_module_type": "proprietary"},
            "set driver_kernel_module_type=open",
        ),
        ("debian12", observed(H100, nouveau=True), {}, "set driver_reboot=auto"),
        (
            "debian12",
            observed(H100, nouveau=True),
            {"driver_reboot": "auto", "ansible_connection": "local"},
            "not on a local connection",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_its_remedy(
    evaluate: Evaluate, system: str, observation: dict[str, str], variables: dict[str, Any], says: str
) -> None:
    found = problems(evaluate, system, observation, **variables)
    assert len(found) == 1, found
    assert says in found[0]


@pytest.mark.parametrize(
    ("observation", "variables"),
    [
        (observed(H100, loaded="580.1"), {"driver_method": "none"}),
        (observed(H100, dgx=True), {"driver_force": True}),
        (observed(H100, dgx=True, loaded="580.1"), {"driver_method": "none"}),
        (observed(H100, nouveau=True), {"driver_reboot": "auto"}),
        (observed(H100), RUNFILE),
        (observed(H100, secure_boot=True), RUNFILE | {"driver_module_signing_secret_key": "/root/mok.key"}),
        (observed(V100), {}),
    ],
)
def test_what_can_work_is_not_refused(
    evaluate: Evaluate, observation: dict[str, str], variables: dict[str, Any]
) -> None:
    assert problems(evaluate, "debian12", observation, **variables) == []


def test_a_gpu_for_virtual_machines_is_not_ours(evaluate: Evaluate) -> None:
    gpu = {"address": "0000:01:00.0", "device": H100, "driver": "vfio-pci"}
    assert "vfio-pci" in problems(evaluate, "debian12", observed(gpus=[gpu]))[0]


def test_a_gpu_that_nvml_does_not_list_is_named(evaluate: Evaluate) -> None:
    answer = {"accel_nvml": {"gpus": [{"pci_address": "0000:00:00.0"}]}}
    silent = evaluate("driver", "__driver_silent", answer, __driver_observation=observed(H100, H100))
    assert silent == ["0000:01:00.0"]


def test_a_runfile_on_the_controller_is_found(evaluate: Evaluate, tmp_path: Path) -> None:
    runfile = tmp_path / "NVIDIA-Linux-x86_64-580.95.05.run"
    runfile.touch()
    given = {"driver_method": "runfile", "driver_runfile": str(runfile)}
    assert problems(evaluate, "openeuler", observed(H100), **given) == []
