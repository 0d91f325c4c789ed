# SPDX-License-Identifier: Apache-2.0
"""What the driver role would install, and what it refuses, for every system and GPU generation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import ROLES, Evaluate

H100, V100, B200, T4, K80, B300, GH200, L4 = (
    *("0x2330", "0x1db1", "0x2901", "0x1eb8"),
    *("0x102d", "0x3182", "0x2342", "0x27b8"),
)
ROOM = {path: {"mount": "/", "mib": 60_000} for path in ("/usr", "/var", "/boot", "/tmp")}
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
    texts = ("loaded", "taint", "installed", "license", "vermagic", "stream", "vendor", "fabric_manager")
    flags = (
        "nouveau",
        "blacklisted",
        "secure_boot",
        "key_enrolled",
        "dgx",
        "operator",
        "runfile",
        "non_free",
        "nvswitch",
    )
    nothing = dict.fromkeys(texts, "") | dict.fromkeys(flags, False)
    return {"stdout": json.dumps(nothing | {"gpus": gpus, "packages": [], "held": [], "free": ROOM} | seen)}


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


@pytest.mark.parametrize(("system", "key"), [("rocky9", "rhel9/x86_64/D42D0685.pub"), ("alma10", "CDF6BA43.pub")])
def test_the_key_is_the_one_that_the_repository_has(evaluate: Evaluate, system: str, key: str) -> None:
    assert evaluate("driver", "__driver_repo_key", facts(system)).endswith(f"/{key}")


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
    ("device", "seen", "expected"),
    [
        (H100, {"installed": "580.95.05", "license": "NVIDIA"}, "proprietary"),
        (H100, {"installed": "580.95.05", "license": "Dual MIT/GPL"}, "open"),
        (H100, {"installed": "550.1", "license": "NVIDIA"}, "open"),
        (B200, {"installed": "580.95.05", "license": "NVIDIA"}, "open"),
    ],
)
def test_a_kernel_module_that_works_stays(evaluate: Evaluate, device: str, seen: dict[str, str], expected: str) -> None:
    observation = observed(device, **seen)
    assert evaluate("driver", "__driver_module_type", {}, __driver_observation=observation) == expected


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
        ("NVIDIA-Linux-x86_64-535.2.run", {"loaded": "535.1"}, {}, ["--silent", "--dkms"]),
        (
            "NVIDIA-Linux-x86_64-545.2.run",
            {"loaded": "535.1"},
            {},
            ["--silent", "--dkms", "--allow-installation-with-running-driver"],
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
        ({"loaded": "580.1", "installed": "580.1", "taint": "POE", "license": "NVIDIA"}, False),
        ({"loaded": "580.1", "installed": "580.1", "taint": "OE", "license": "Dual MIT/GPL"}, False),
        ({"loaded": "580.1", "installed": "580.1", "taint": "POE", "license": "Dual MIT/GPL"}, True),
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
        (
            "debian12",
            observed(H100),
            RUNFILE | {"driver_version": "590.48.01"},
            "driver_version is 590.48.01, and driver_runfile installs 580.95.05",
        ),
        (
            "debian12",
            observed(H100),
            RUNFILE | {"driver_branch": "590"},
            "driver_branch is 590, and driver_runfile names 580.95.05",
        ),
        (
            "debian12",
            observed(H100),
            {"driver_branch": "590", "driver_version": "580.95.05"},
            "driver_branch is 590, and driver_version names 580.95.05",
        ),
        (
            "debian12",
            observed(H100),
            RUNFILE | {"driver_runfile": "/none/NVIDIA-580.2.run"},
            "is not on the controller",
        ),
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
        (
            "debian12",
            observed(H100, packages=["nvidia-smi"], vendor="distribution"),
            RUNFILE,
            "(nvidia-smi), which a runfile would break; run the role's uninstall with driver_method=distro",
        ),
        (
            "debian12",
            observed(H100, packages=["libnvidia-ml1"], vendor="distribution"),
            {},
            "The distribution's driver packages are installed (libnvidia-ml1), which NVIDIA's do not mix with",
        ),
        (
            "debian12",
            observed(T4, packages=["nvidia-open"], vendor="nvidia", non_free=True),
            {"driver_method": "distro"},
            "run the role's uninstall with driver_method=repo, or set driver_method=repo",
        ),
        ("debian12", observed(H100, dgx=True), {}, "driver_force=true to replace it"),
        ("debian12", observed(H100, operator=True), {}, "GPU operator"),
        ("debian12", observed(H100, secure_boot=True), RUNFILE, "set driver_module_signing_secret_key"),
        (
            "debian12",
            observed(V100),
            {"driver_branch": "590"},
            "580 is the last branch that supports the GPU 0000:00:00.0 (Maxwell, Pascal or Volta, 0x1db1), and this"
            " would install 590; set driver_branch to another branch.",
        ),
        ("debian12", observed(K80), {"driver_branch": "535"}, "470 is the last branch that supports the GPU"),
        (
            "debian12",
            observed(T4, B200),
            {"driver_branch": "550"},
            "570 is the first branch that supports the GPU 0000:01:00.0 (Blackwell, 0x2901)",
        ),
        (
            "rocky9",
            observed(B200, B300),
            {"driver_branch": "570"},
            "580 is the first branch that supports the GPU 0000:01:00.0",
        ),
        (
            "debian12",
            observed(B200, non_free=True),
            {"driver_method": "distro"},
            "and this would install 535; set driver_method to repo or runfile with another branch.",
        ),
        (
            "rocky9",
            observed(L4),
            {"driver_version": "470.256.02", "driver_branch": "470"},
            "set driver_branch and driver_version to another branch",
        ),
        ("debian12", observed(V100, B200), {}, "No kernel module drives both 0000:00:00.0 (Maxwell, Pascal or Volta"),
        (
            "debian12",
            observed(GH200),
            {"driver_kernel_module_type": "proprietary"},
            "0000:00:00.0 (Grace Hopper, 0x2342) is one that only the open kernel module supports",
        ),
        (
            "ubuntu2404",
            observed(T4),
            {"driver_kernel_module_type": "open", "driver_branch": "470"},
            "515 is the first that has; set driver_kernel_module_type=proprietary",
        ),
        (
            "ubuntu2404",
            observed(T4),
            {"driver_kernel_module_type": "proprietary", "driver_branch": "620"},
            "Branch 620 has no proprietary kernel module; set driver_kernel_module_type=open",
        ),
        ("debian12", observed(H100), {"driver_branch": "latest"}, "driver_branch is 'latest', which is no branch"),
        (
            "ubuntu2404",
            observed(H100),
            {"driver_method": "distro", "driver_version": "580.95.05"},
            "unset driver_version, or set driver_method to repo or runfile",
        ),
        ("rocky9", observed(H100), {"driver_dkms": False}, "set driver_dkms=true, or driver_method=runfile"),
        (
            "debian12",
            observed(H100),
            RUNFILE | {"driver_module_signing_public_key": "/root/mok.pub"},
            "the installer needs both or neither",
        ),
        (
            "debian12",
            observed(H100, secure_boot=True),
            {},
            "the key DKMS signs with is not enrolled, so the module would not load. Either install dkms and mokutil",
        ),
        (
            "ubuntu2404",
            observed(H100, secure_boot=True),
            {"driver_method": "distro"},
            "Set driver_method=distro and driver_dkms=false for the modules Canonical signed",
        ),
        (
            "debian12",
            observed(H100, nvswitch=True),
            RUNFILE,
            "need a fabric manager of the driver's version, and driver_method=runfile brings none here (found: none)",
        ),
        (
            "debian12",
            observed(H100, nvswitch=True, fabric_manager="570.1"),
            RUNFILE,
            "(found: 570.1); set driver_method=repo",
        ),
        (
            "debian12",
            observed(H100, free=ROOM | {"/boot": {"mount": "/boot", "mib": 40}}),
            {},
            "/boot has 40 MiB free and needs 100 (/boot): make room, or correct driver_free_space",
        ),
        (
            "debian12",
            observed(H100, free={path: {"mount": "/", "mib": 3000} for path in ROOM}),
            {},
            "/ has 3000 MiB free and needs 4600 (/usr, /var, /boot, /tmp)",
        ),
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
            "ubuntu2404",
            observed(H100),
            {"driver_version": "570.133.20"},
            "driver_version is 570.133.20, and apt has packages to keep to a version from branch 580 on; unset it",
        ),
        (
            "rocky9",
            observed(H100, installed="590.48.01"),
            {},
            "590.48.01 is installed, and packages do not go back to 580; run the playbook uninstall",
        ),
        (
            "debian12",
            observed(H100, installed="580.105.08"),
            {"driver_version": "580.95.05"},
            "packages do not go back to 580.95.05;",
        ),
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
        (observed(H100), RUNFILE | {"driver_version": "580.95.05", "driver_branch": "580"}),
        (observed(H100), {"driver_branch": "590", "driver_version": "590.48.01"}),
        # The role's own branch is nobody's wish.
        (observed(H100), {"driver_version": "590.48.01"}),
        (observed(H100), RUNFILE | {"driver_runfile": "https://example.com/driver.run", "driver_version": "580.95.05"}),
        (observed(H100, installed="590.48.01"), RUNFILE),
        (observed(H100, installed="580.95.05"), {"driver_branch": "590"}),
        (observed(H100, installed="580.95.05"), {"driver_version": "580.105.08"}),
        (
            observed(H100, secure_boot=True),
            RUNFILE | {"driver_module_signing_secret_key": "/k", "driver_module_signing_public_key": "/p"},
        ),
        (observed(H100, secure_boot=True, key_enrolled=True), {}),
        (observed(H100, secure_boot=True), {"driver_kernel_release": "6.1.0-56-amd64"}),
        (observed(V100), {}),
        (observed(V100, T4), {}),
        (observed(GH200), {}),
        (observed(H100, nvswitch=True), {}),
        (observed(H100, nvswitch=True, fabric_manager="580.95.05"), RUNFILE),
        (observed(H100, nvswitch=True), RUNFILE | {"driver_fabricmanager": "never"}),
        # A node image has neither GPU nor driver, and whatever its builder runs on is not its business.
        (observed(), {"driver_kernel_release": "6.1.0-56-amd64"}),
        (observed(H100, nouveau=True), {"driver_kernel_release": "6.1.0-56-amd64"}),
        # Nothing is installed where the driver is there.
        (observed(H100, installed="580.95.05", free={"/usr": {"mount": "/", "mib": 1}}), {}),
    ],
)
def test_what_can_work_is_not_refused(
    evaluate: Evaluate, observation: dict[str, str], variables: dict[str, Any]
) -> None:
    assert problems(evaluate, "debian12", observation, **variables) == []


@pytest.mark.parametrize(
    ("system", "observation", "variables", "expected"),
    [
        ("debian12", observed(H100, installed="580.95.05"), {}, ""),
        ("debian12", observed(H100, nvswitch=True, installed="580.95.05"), {"driver_fabricmanager": "never"}, ""),
        ("debian12", observed(H100, nvswitch=True, installed="580.95.05"), {}, "nvidia-fabricmanager=580.95.05-*"),
        (
            "ubuntu2404",
            observed(H100, nvswitch=True, installed="570.1.2"),
            {"driver_branch": "570"},
            "nvidia-fabricmanager-570=570.1.2-*",
        ),
        (
            "ubuntu2404",
            observed(B200, installed="580.95.05"),
            {"driver_method": "distro", "driver_fabricmanager": "always"},
            "nvidia-fabricmanager-580=580.95.05-*",
        ),
        ("rocky9", observed(H100, nvswitch=True, installed="580.95.05"), {}, "nvidia-fabricmanager-580.95.05"),
        (
            "rocky9",
            observed(H100, nvswitch=True, installed="570.195.03"),
            {"driver_branch": "570"},
            "nvidia-fabric-manager-570.195.03",
        ),
    ],
)
def test_the_fabric_manager_has_the_drivers_version(
    evaluate: Evaluate, system: str, observation: dict[str, str], variables: dict[str, Any], expected: str
) -> None:
    found = evaluate("driver", "__driver_fabric_package", facts(system), __driver_observation=observation, **variables)
    assert found == expected


@pytest.mark.parametrize(
    ("system", "seen", "unheld"),
    [
        ("debian12", {"packages": ["nvidia-smi", "libcuda1"], "held": ["libcuda1"]}, ["nvidia-smi"]),
        ("debian12", {"packages": ["nvidia-smi"], "held": ["nvidia-smi"]}, []),
        # The modules of a kernel to come must be free to come with it.
        ("ubuntu2404", {"packages": ["linux-modules-nvidia-580-server-generic", "nvidia-smi"]}, ["nvidia-smi"]),
        ("rocky9", {"packages": ["nvidia-driver-cuda"]}, ["nvidia-driver-cuda"]),
        ("rocky9", {"packages": ["nvidia-driver-cuda"], "held": ["nvidia-driver-cuda"]}, []),
        (
            "rocky9",
            {"packages": ["nvidia-driver-cuda", "nvidia-fabricmanager"], "held": ["nvidia-driver-cuda"]},
            ["nvidia-fabricmanager"],
        ),
    ],
)
def test_every_package_of_the_driver_is_held(
    evaluate: Evaluate, system: str, seen: dict[str, Any], unheld: list[str]
) -> None:
    observation = observed(H100, **seen)
    assert evaluate("driver", "__driver_unheld", facts(system), __driver_observation=observation) == unheld


@pytest.mark.parametrize(
    ("seen", "variables", "installs", "other"),
    [
        ({}, {}, True, False),
        ({"installed": "580.95.05"}, {}, False, False),
        ({"installed": "570.1"}, {}, True, True),
        ({"installed": "580.95.05"}, {"driver_version": "580.99.01"}, True, True),
        ({"installed": "580.95.05", "license": "NVIDIA"}, {}, False, False),
        ({"installed": "580.95.05", "license": "NVIDIA"}, {"driver_kernel_module_type": "open"}, True, False),
        ({"installed": "535.309.01"}, {"driver_method": "distro"}, False, False),
        ({"installed": "580.95.05"}, RUNFILE, False, False),
        ({}, {"driver_method": "none"}, False, False),
    ],
)
def test_packages_change_only_for_another_branch_or_version(
    evaluate: Evaluate, seen: dict[str, str], variables: dict[str, Any], installs: bool, other: bool
) -> None:
    given = {"__driver_observation": observed(H100, **seen), **variables}
    assert evaluate("driver", "__driver_installs", facts("debian12"), **given) is installs
    assert evaluate("driver", "__driver_other_version", facts("debian12"), **given) is other


def test_the_module_is_built_for_the_named_kernel(evaluate: Evaluate) -> None:
    given = {"driver_kernel_release": "6.1.0-56-amd64", "__driver_observation": observed()}
    assert evaluate("driver", "__driver_kernel", facts("debian12"), **given) == "6.1.0-56-amd64"
    assert evaluate("driver", "__driver_needs_reboot", facts("debian12"), **given) is False
    given |= {"driver_method": "runfile", "driver_runfile": "/srv/NVIDIA-Linux-x86_64-580.95.05.run"}
    arguments = evaluate("driver", "__driver_runfile_args", facts("debian12"), **given)
    assert arguments[-2:] == ["--kernel-name=6.1.0-56-amd64", "--skip-module-load"]


def unavailable(evaluate: Evaluate, system: str, named: dict[str, list[str]], **variables: Any) -> str:
    """What the role refuses with this answer of the module driver_packages_info."""
    given = {"__driver_observation": observed(H100), "__driver_named": named} | variables
    return " ".join(evaluate("driver", "__driver_unavailable", facts(system, kernel="6.18.4-fc"), **given))


def test_all_that_an_installation_needs_can_be_had(evaluate: Evaluate) -> None:
    assert unavailable(evaluate, "debian12", {}) == ""
    digest = {"stat": {"checksum": "0" * 64}}
    assert unavailable(evaluate, "debian12", {}, __driver_given_runfile=digest, **RUNFILE) == ""


@pytest.mark.parametrize(("system", "architecture"), [("debian12", "aarch64"), ("ubuntu2404", "x86_64")])
def test_the_keyring_of_each_system_has_a_checksum_of_its_own(
    evaluate: Evaluate, system: str, architecture: str
) -> None:
    known = evaluate("driver", "__driver_keyrings", {})
    digest = evaluate("driver", "__driver_repo_key_sha256", facts(system, architecture))
    assert re.fullmatch("[0-9a-f]{64}", digest)
    assert list(known.values()).count(digest) == 1
    given = evaluate("driver", "__driver_repo_key_sha256", facts(system), driver_repo_key_sha256="AB" * 32)
    assert given == "ab" * 32


@pytest.mark.attack
def test_a_keyring_without_a_checksum_is_refused_unless_it_is_here_or_trusted(evaluate: Evaluate) -> None:
    def said(**variables: Any) -> str:
        given = {"__driver_observation": observed(H100)} | variables
        return " ".join(evaluate("driver", "__driver_unavailable", facts("debian13", "aarch64"), **given))

    where = "https://developer.download.nvidia.com/compute/cuda/repos/debian13/sbsa/cuda-keyring_1.1-1_all.deb"
    assert f"no SHA-256 of {where}, whose scripts root runs" in said()
    assert "set driver_repo_key_sha256" in said(__driver_keyring={"stat": {"exists": False}})
    assert said(__driver_keyring={"stat": {"exists": True}}) == ""
    assert said(driver_repo_key_sha256="none") == ""
    assert said(driver_repo_key_sha256="0" * 64) == ""
    assert said(driver_repo_setup=False) == ""


@pytest.mark.parametrize(
    ("named", "variables", "says"),
    [
        (
            {
                "missing_of_kernel": ["linux-headers-6.18.4-fc"],
                "candidates": ["linux-headers-6.1.0-55-amd64", "linux-headers-6.1.0-56-amd64"],
            },
            {},
            "linux-headers-6.18.4-fc is in no package source of this host, which has linux-headers-6.1.0-55-amd64,"
            " linux-headers-6.1.0-56-amd64; boot one of those kernels, name the kernel to build for",
        ),
        ({"missing": ["nvidia-utils-615-server"]}, {}, "set driver_branch to one that the sources have"),
        (
            {
                "missing_of_kernel": ["linux-modules-nvidia-580-server-6.8.0-45-generic"],
                "candidates": ["linux-modules-nvidia-580-server-6.8.0-90-generic"],
            },
            {},
            "which has linux-modules-nvidia-580-server-6.8.0-90-generic; boot one of those kernels",
        ),
        (
            {"not_answering": ["Failed to fetch http://mirror.example/ Connection refused"], "missing": ["dkms"]},
            {},
            "http://mirror.example/ Connection refused. Correct the host's sources or its proxy",
        ),
        (
            {"conflicts": ["you have held broken packages."]},
            {},
            "cannot be installed together: you have held broken packages.",
        ),
        (
            {},
            RUNFILE | {"__driver_answer": {"status": -1, "msg": "Status code was -1: timed out"}},
            f"{URL} does not answer (Status code was -1: timed out); correct driver_runfile or the proxy",
        ),
        (
            {},
            {"__driver_answer": {"status": 404, "msg": "HTTP Error 404: Not Found"}},
            "debian12/x86_64/Packages.gz does not answer (HTTP Error 404: Not Found); correct driver_repo_baseurl",
        ),
        (
            {},
            RUNFILE | {"driver_runfile": "/srv/n-1.2.run", "__driver_given_runfile": {"stat": {"checksum": "1" * 64}}},
            f"/srv/n-1.2.run has the SHA-256 {'1' * 64}, and driver_runfile_sha256 is {'0' * 64}",
        ),
    ],
)
def test_what_cannot_be_had_is_named_with_its_remedy(
    evaluate: Evaluate, named: dict[str, list[str]], variables: dict[str, Any], says: str
) -> None:
    assert says in unavailable(evaluate, "debian12", named, **variables)


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


def test_one_kernel_module_gives_way_to_the_other_on_an_rpm_system() -> None:
    tasks = yaml.safe_load((ROLES / "driver/tasks/install_repo_rpm.yml").read_text())
    assert [task["ansible.builtin.dnf"]["allowerasing"] for task in tasks if "ansible.builtin.dnf" in task] == [True]
