# SPDX-License-Identifier: Apache-2.0
"""What the driver role would do, and what it refuses, for every system and GPU generation."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.accel.kubernetes.plugins.module_utils.driver.plan import Plan, State, plan
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.refusal import Refusal

ROLE = Path(__file__).parents[5] / "roles/driver"
DEFAULTS: dict[str, Any] = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
H100, V100, B200, T4, K80, B300, GH200, L4 = (
    *("0x2330", "0x1db1", "0x2901", "0x1eb8"),
    *("0x102d", "0x3182", "0x2342", "0x27b8"),
)
ROOM = {path: {"mount": "/", "mib": 60_000} for path in ("/usr", "/var", "/boot", "/tmp")}
URL = "https://example.com/NVIDIA-Linux-x86_64-580.95.05.run"
RUNFILE = {"driver_method": "runfile", "driver_runfile": URL, "driver_runfile_sha256": "0" * 64}
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


def observed(*devices: str, **seen: Any) -> dict[str, Any]:
    """What observe.sh prints."""
    gpus = [{"address": f"0000:{i:02x}:00.0", "device": device, "driver": ""} for i, device in enumerate(devices)]
    return {"gpus": gpus, "packages": [], "held": [], "free": ROOM} | seen


def decide(
    known: dict[str, Any] | None = None,
    observation: dict[str, Any] | None = None,
    seen: dict[str, Any] | None = None,
    **variables: Any,
) -> Plan:
    """The plan with these facts, observation, answers of tasks, and variables of an inventory."""
    answers: dict[str, Any] = {
        "connection": "ssh",
        "branch_given": "driver_branch" in variables,
        "runfile_on_controller": Path(variables.get("driver_runfile", "")).is_file(),
    }
    if observation is not None:
        answers["observation"] = json.dumps(observation)
    return plan(DEFAULTS | variables, known or {}, answers | (seen or {}))


def refused(system: str, observation: dict[str, Any], /, **variables: Any) -> list[str]:
    found = decide(facts(system), observation, **variables).refusals.preflight
    return [refusal.message for refusal in found]


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
def test_the_repository_of_each_system(system: str, architecture: str, expected: str) -> None:
    url = decide(facts(system, architecture)).repository.url
    assert url == f"https://developer.download.nvidia.com/compute/cuda/repos/{expected}"


@pytest.mark.parametrize(("system", "key"), [("rocky9", "rhel9/x86_64/D42D0685.pub"), ("alma10", "CDF6BA43.pub")])
def test_the_key_is_the_one_that_the_repository_has(system: str, key: str) -> None:
    assert decide(facts(system)).repository.key_url.endswith(f"/{key}")


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
def test_the_kernel_module_fits_the_gpus(devices: list[str], variables: dict[str, str], expected: str) -> None:
    assert decide({}, observed(*devices), **variables).module == expected


@pytest.mark.parametrize(
    ("device", "seen", "expected"),
    [
        (H100, {"installed": "580.95.05", "license": "NVIDIA"}, "proprietary"),
        (H100, {"installed": "580.95.05", "license": "Dual MIT/GPL"}, "open"),
        (H100, {"installed": "550.1", "license": "NVIDIA"}, "open"),
        (B200, {"installed": "580.95.05", "license": "NVIDIA"}, "open"),
    ],
)
def test_a_kernel_module_that_works_stays(device: str, seen: dict[str, str], expected: str) -> None:
    assert decide({}, observed(device, **seen)).module == expected


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
    runfile: str, seen: dict[str, str], variables: dict[str, Any], expected: list[str]
) -> None:
    asked = {"driver_method": "runfile", "driver_runfile": f"/srv/{runfile}", **variables}
    assert [*decide({}, observed(H100, **seen), **asked).runfile.args] == expected


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
    seen: dict[str, str], variables: dict[str, str], needed: bool
) -> None:
    assert decide({}, observed(H100, **seen), **RUNFILE, **variables).installs is needed


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
def test_a_reboot_is_needed_for_a_driver_that_is_not_loaded(seen: dict[str, Any], needed: bool) -> None:
    assert decide({}, observed(H100, **seen)).reboot.needed is needed


@pytest.mark.parametrize("system", ["debian12", "debian13", "ubuntu2404", "rocky9", "rhel9"])
def test_a_bare_host_of_a_known_system_is_accepted(system: str) -> None:
    assert refused(system, observed(H100)) == []


@pytest.mark.parametrize(
    ("system", "observation", "variables", "code", "says"),
    [
        ("debian12", observed(), {}, "no_gpu", "take the host out of the group gpu_nodes"),
        (
            "debian12",
            observed(H100),
            {"driver_method": "none"},
            "not_loaded",
            "set driver_method to repo, distro or runfile",
        ),
        ("debian12", observed(H100), {"driver_method": "runfile"}, "runfile_unset", "driver_runfile is not set"),
        (
            "debian12",
            observed(H100),
            RUNFILE | {"driver_runfile_sha256": ""},
            "runfile_sha256_unset",
            "driver_runfile_sha256 is not set",
        ),
        (
            "debian12",
            observed(H100),
            RUNFILE | {"driver_version": "590.48.01"},
            "runfile_of_other_version",
            "driver_version is 590.48.01, and driver_runfile installs 580.95.05",
        ),
        (
            "debian12",
            observed(H100),
            RUNFILE | {"driver_branch": "590"},
            "branch_against_version",
            "driver_branch is 590, and driver_runfile names 580.95.05",
        ),
        (
            "debian12",
            observed(H100),
            {"driver_branch": "590", "driver_version": "580.95.05"},
            "branch_against_version",
            "driver_branch is 590, and driver_version names 580.95.05",
        ),
        (
            "debian12",
            observed(H100),
            RUNFILE | {"driver_runfile": "/none/NVIDIA-580.2.run"},
            "runfile_absent",
            "is not on the controller",
        ),
        (
            "debian12",
            observed(H100),
            RUNFILE | {"driver_runfile": "https://example.com/driver.run"},
            "runfile_without_version",
            "set driver_version to the one it installs",
        ),
        ("openeuler", observed(H100), {}, "system", "set driver_method=runfile"),
        ("rocky9", observed(H100), {"driver_method": "distro"}, "system", "set driver_method=runfile"),
        ("alma10", observed(H100), {}, "version_unset", "set driver_version to an exact version"),
        (
            "debian12",
            observed(H100),
            {"driver_method": "distro"},
            "component",
            "add contrib non-free non-free-firmware",
        ),
        ("debian12", observed(H100, runfile=True), {}, "installed_by_runfile", "run 'nvidia-uninstall --silent'"),
        (
            "debian12",
            observed(H100, packages=["nvidia-smi"], vendor="distribution"),
            RUNFILE,
            "installed_by_packages",
            "(nvidia-smi), which a runfile would break; run the role's uninstall with driver_method=distro",
        ),
        (
            "debian12",
            observed(H100, packages=["libnvidia-ml1"], vendor="distribution"),
            {},
            "installed_by_distribution",
            "The distribution's driver packages are installed (libnvidia-ml1), which NVIDIA's do not mix with",
        ),
        (
            "debian12",
            observed(T4, packages=["nvidia-open"], vendor="nvidia", non_free=True),
            {"driver_method": "distro"},
            "installed_by_nvidia",
            "run the role's uninstall with driver_method=repo, or set driver_method=repo",
        ),
        ("debian12", observed(H100, dgx=True), {}, "dgx", "driver_force=true to replace it"),
        ("debian12", observed(H100, operator=True), {}, "gpu_operator", "GPU operator"),
        ("debian12", observed(H100, secure_boot=True), RUNFILE, "secure_boot", "set driver_module_signing_secret_key"),
        (
            "debian12",
            observed(V100),
            {"driver_branch": "590"},
            "branch_too_new",
            "580 is the last branch that supports the GPU 0000:00:00.0 (Maxwell, Pascal or Volta, 0x1db1), and this"
            " would install 590; set driver_branch to another branch.",
        ),
        (
            "debian12",
            observed(K80),
            {"driver_branch": "535"},
            "branch_too_new",
            "470 is the last branch that supports the GPU",
        ),
        (
            "debian12",
            observed(T4, B200),
            {"driver_branch": "550"},
            "branch_too_old",
            "570 is the first branch that supports the GPU 0000:01:00.0 (Blackwell, 0x2901)",
        ),
        (
            "rocky9",
            observed(B200, B300),
            {"driver_branch": "570"},
            "branch_too_old",
            "580 is the first branch that supports the GPU 0000:01:00.0",
        ),
        (
            "debian12",
            observed(B200, non_free=True),
            {"driver_method": "distro"},
            "branch_too_old",
            "and this would install 535; set driver_method to repo or runfile with another branch.",
        ),
        (
            "rocky9",
            observed(L4),
            {"driver_version": "470.256.02", "driver_branch": "470"},
            "branch_too_old",
            "set driver_branch and driver_version to another branch",
        ),
        (
            "debian12",
            observed(V100, B200),
            {},
            "gpus_exclude_each_other",
            "No kernel module drives both 0000:00:00.0 (Maxwell, Pascal or Volta",
        ),
        (
            "debian12",
            observed(GH200),
            {"driver_kernel_module_type": "proprietary"},
            "module_without_gpu",
            "0000:00:00.0 (Grace Hopper, 0x2342) is one that only the open kernel module supports",
        ),
        (
            "ubuntu2404",
            observed(T4),
            {"driver_kernel_module_type": "open", "driver_branch": "470"},
            "branch_without_module",
            "515 is the first that has; set driver_kernel_module_type=proprietary",
        ),
        (
            "ubuntu2404",
            observed(T4),
            {"driver_kernel_module_type": "proprietary", "driver_branch": "620"},
            "branch_without_module",
            "Branch 620 has no proprietary kernel module; set driver_kernel_module_type=open",
        ),
        (
            "debian12",
            observed(H100),
            {"driver_branch": "latest"},
            "branch_malformed",
            "driver_branch is 'latest', which is no branch",
        ),
        (
            "rhel9",
            observed(T4),
            {"driver_version": "460.91.03"},
            "branch_too_old",
            "NVIDIA driver is 460.91.03; 470 or newer is needed. Set driver_branch,",
        ),
        (
            "ubuntu2404",
            observed(H100),
            {"driver_method": "distro", "driver_version": "580.95.05"},
            "version_of_distribution",
            "unset driver_version, or set driver_method to repo or runfile",
        ),
        ("rocky9", observed(H100), {"driver_dkms": False}, "dkms", "set driver_dkms=true, or driver_method=runfile"),
        (
            "debian12",
            observed(H100),
            RUNFILE | {"driver_module_signing_public_key": "/etc/pki/mok.pub"},
            "signing_key_alone",
            "the installer needs both or neither",
        ),
        (
            "debian12",
            observed(H100, secure_boot=True),
            {},
            "secure_boot",
            "is not enrolled, so the module would not load. Switch Secure Boot off, or install dkms and mokutil",
        ),
        (
            "ubuntu2404",
            observed(H100, secure_boot=True),
            {"driver_method": "distro"},
            "secure_boot",
            "Set driver_method=distro and driver_dkms=false for the modules Canonical signed",
        ),
        (
            "debian12",
            observed(H100, nvswitch=True),
            RUNFILE,
            "fabric_manager",
            "need a fabric manager of the driver's version, and driver_method=runfile brings none here (found: none)",
        ),
        (
            "debian12",
            observed(H100, nvswitch=True, fabric_manager="570.1"),
            RUNFILE,
            "fabric_manager",
            "(found: 570.1); set driver_method=repo",
        ),
        (
            "debian12",
            observed(H100, free=ROOM | {"/boot": {"mount": "/boot", "mib": 40}}),
            {},
            "room",
            "/boot has 40 MiB free and needs 100 (/boot): make room, or correct driver_free_space",
        ),
        (
            "debian12",
            observed(H100, free={path: {"mount": "/", "mib": 3000} for path in ROOM}),
            {},
            "room",
            "/ has 3000 MiB free and needs 4600 (/usr, /var, /boot, /tmp)",
        ),
        (
            "debian12",
            observed(V100),
            {"driver_kernel_module_type": "open"},
            "module_without_gpu",
            "set driver_kernel_module_type=proprietary",
        ),
        (
            "debian12",
            observed(B200),
            {"driver_kernel_module_type": "proprietary"},
            "module_without_gpu",
            "set driver_kernel_module_type=open",
        ),
        ("debian12", observed(H100, nouveau=True), {}, "nouveau", "set driver_reboot=auto"),
        (
            "ubuntu2404",
            observed(H100),
            {"driver_version": "570.133.20"},
            "version_not_kept",
            "driver_version is 570.133.20, and apt has packages to keep to a version from branch 580 on; unset it",
        ),
        (
            "rocky9",
            observed(H100, installed="590.48.01"),
            {},
            "downgrade",
            "590.48.01 is installed, and packages do not go back to 580. On this host, run the playbook uninstall",
        ),
        (
            "debian12",
            observed(H100, installed="580.105.08"),
            {"driver_version": "580.95.05"},
            "downgrade",
            "packages do not go back to 580.95.05.",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_its_remedy(
    system: str, observation: dict[str, Any], variables: dict[str, Any], code: str, says: str
) -> None:
    (refusal,) = decide(facts(system), observation, **variables).refusals.preflight
    assert refusal.code == code
    assert says in refusal.message


@pytest.mark.parametrize(
    ("observation", "variables", "says"),
    [
        ({"installed": "590.48.01"}, {}, "590.48.01 is installed, and 580 is older"),
        (
            {"installed": "580.105.08"},
            {"driver_version": "580.95.05"},
            "580.105.08 is installed, and 580.95.05 is older",
        ),
        ({"installed": "590.48.01"}, RUNFILE, "590.48.01 is installed, and 580.95.05 is older"),
        ({"installed": "580.95.05", "loaded": "590.48.01"}, {}, "590.48.01 is loaded, and 580.95.05 is older"),
        ({"installed": "580.95.05", "loaded": "590.48.01"}, {"driver_method": "none"}, "590.48.01 is loaded"),
        ({"installed": "580.95.05", "loaded": "590.48.01"}, {"driver_branch": "585"}, "590.48.01 is loaded, and 585"),
    ],
)
def test_going_back_to_an_older_driver_is_told(
    observation: dict[str, Any], variables: dict[str, Any], says: str
) -> None:
    (refusal,) = decide(facts("debian12"), observed(H100, **observation), **variables).state.older
    assert refusal.code == "older"
    assert refusal.message.startswith(says)
    assert refusal.message.endswith("or set upgrade_driver_downgrade=true to go back.")


@pytest.mark.parametrize(
    ("observation", "variables"),
    [
        ({}, {}),
        ({"loaded": "570.172.08"}, {}),
        ({"installed": "580.95.05", "loaded": "570.172.08"}, {}),
        ({"installed": "580.95.05", "loaded": "580.95.05"}, {}),
        ({"installed": "580.105.08"}, RUNFILE | {"driver_version": "580.105.08", "driver_runfile": "https://e/d.run"}),
        ({"installed": "580.95.05"}, {"driver_branch": "590"}),
        ({"installed": "590.48.01", "loaded": "590.48.01"}, {"driver_method": "none"}),
        # Debian's own branch is left alone, whichever it is.
        ({"installed": "550.163.01", "vendor": "distribution"}, {"driver_method": "distro"}),
        # A driver for another kernel says nothing of the one that runs.
        ({"installed": "580.95.05", "loaded": "590.48.01"}, {"driver_kernel_release": "6.12.0-1-amd64"}),
    ],
)
def test_the_same_driver_or_a_newer_one_does_not_go_back(
    observation: dict[str, Any], variables: dict[str, Any]
) -> None:
    assert decide(facts("debian12"), observed(H100, **observation), **variables).state.older == ()


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
def test_what_can_work_is_not_refused(observation: dict[str, Any], variables: dict[str, Any]) -> None:
    assert refused("debian12", observation, **variables) == []


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
    system: str, observation: dict[str, Any], variables: dict[str, Any], expected: str
) -> None:
    assert decide(facts(system), observation, **variables).fabric.package == expected


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
def test_every_package_of_the_driver_is_held(system: str, seen: dict[str, Any], unheld: list[str]) -> None:
    assert [*decide(facts(system), observed(H100, **seen)).packages.unheld] == unheld
    assert decide(facts(system), observed(H100, **seen), driver_hold=False).packages.unheld == ()


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
    seen: dict[str, str], variables: dict[str, Any], installs: bool, other: bool
) -> None:
    decided = decide(facts("debian12"), observed(H100, **seen), **variables)
    assert decided.installs is installs
    assert decided.packages.state == ("latest" if other else "present")
    assert [refusal.code for refusal in decided.refusals.brought] == ["brought_other"] * other


def test_the_module_is_built_for_the_named_kernel() -> None:
    asked = {"driver_method": "runfile", "driver_runfile": "/srv/NVIDIA-Linux-x86_64-580.95.05.run"}
    decided = decide(facts("debian12"), observed(), driver_kernel_release="6.1.0-56-amd64", **asked)
    assert decided.kernel == "6.1.0-56-amd64"
    assert decided.reboot.needed is False
    assert decided.runfile.args[-2:] == ("--kernel-name=6.1.0-56-amd64", "--skip-module-load")


def unavailable(system: str, seen: dict[str, Any], **variables: Any) -> tuple[Refusal, ...]:
    """What cannot be had, after these answers of the role's tasks."""
    return decide(facts(system, kernel="6.18.4-fc"), observed(H100), seen, **variables).refusals.unavailable


def test_all_that_an_installation_needs_can_be_had() -> None:
    assert unavailable("debian12", {}) == ()
    assert unavailable("debian12", {"installer": {"stat": {"checksum": "0" * 64}}}, **RUNFILE) == ()


KEYRINGS = [*itertools.product(("debian12", "ubuntu2404"), ("aarch64", "x86_64")), ("debian13", "x86_64")]


def test_the_keyring_of_each_system_has_a_checksum_of_its_own() -> None:
    known = [decide(facts(*system)).repository.keyring_checksum for system in KEYRINGS]
    assert all(re.fullmatch("sha256:[0-9a-f]{64}", digest) for digest in known)
    assert len(set(known)) == len(KEYRINGS)


def test_a_checksum_of_the_operator_counts_in_any_case() -> None:
    asked = {"driver_repo_key_sha256": "AB" * 32}
    assert decide(facts("debian12"), **asked).repository.keyring_checksum == f"sha256:{'ab' * 32}"


@pytest.mark.attack
def test_keyring_without_checksum_must_be_local_or_trusted() -> None:
    def said(keyring: bool = False, **variables: Any) -> str:
        known = facts("debian13", "aarch64")
        found = decide(known, observed(H100, keyring=keyring), **variables).refusals.unavailable
        return " ".join(refusal.message for refusal in found)

    where = "https://developer.download.nvidia.com/compute/cuda/repos/debian13/sbsa/cuda-keyring_1.1-1_all.deb"
    assert f"no SHA-256 of {where}, whose scripts root runs" in said()
    assert "set driver_repo_key_sha256" in said()
    assert said(keyring=True) == ""
    assert said(driver_repo_key_sha256="none") == ""
    assert said(driver_repo_key_sha256="0" * 64) == ""
    assert said(driver_repo_setup=False) == ""


@pytest.mark.parametrize(
    ("seen", "variables", "code", "says"),
    [
        (
            {
                "packages": {
                    "missing_of_kernel": ["linux-headers-6.18.4-fc"],
                    "candidates": ["linux-headers-6.1.0-55-amd64", "linux-headers-6.1.0-56-amd64"],
                }
            },
            {},
            "kernel_packages_missing",
            "linux-headers-6.18.4-fc is in no package source of this host, which has linux-headers-6.1.0-55-amd64,"
            " linux-headers-6.1.0-56-amd64. Boot a kernel that a source has packages for, name the kernel to build",
        ),
        (
            {"packages": {"missing": ["nvidia-utils-615-server"]}},
            {},
            "packages_missing",
            "set driver_branch to one that the sources have",
        ),
        (
            {
                "packages": {
                    "missing_of_kernel": ["linux-modules-nvidia-580-server-6.8.0-45-generic"],
                    "candidates": ["linux-modules-nvidia-580-server-6.8.0-90-generic"],
                }
            },
            {},
            "kernel_packages_missing",
            "which has linux-modules-nvidia-580-server-6.8.0-90-generic. Boot a kernel that a source has packages for",
        ),
        (
            {
                "packages": {
                    "not_answering": ["Failed to fetch http://mirror.example/ Connection refused"],
                    "missing": ["dkms"],
                }
            },
            {},
            "source_silent",
            "http://mirror.example/ Connection refused. Correct the host's sources or its proxy",
        ),
        (
            {"packages": {"conflicts": ["you have held broken packages."]}},
            {},
            "packages_conflict",
            "cannot be installed together: you have held broken packages.",
        ),
        (
            {"source": {"status": -1, "msg": "Status code was -1: timed out"}},
            RUNFILE,
            "source_silent",
            f"{URL} does not answer (Status code was -1: timed out); correct driver_runfile or the proxy",
        ),
        (
            {"source": {"status": 404, "msg": "HTTP Error 404: Not Found"}},
            {},
            "source_silent",
            "debian12/x86_64/Packages.gz does not answer (HTTP Error 404: Not Found); correct driver_repo_baseurl",
        ),
        (
            {"installer": {"stat": {"checksum": "1" * 64}}},
            RUNFILE | {"driver_runfile": "/srv/n-1.2.run"},
            "runfile_checksum",
            f"/srv/n-1.2.run has the SHA-256 {'1' * 64}, and driver_runfile_sha256 is {'0' * 64}",
        ),
    ],
)
def test_what_cannot_be_had_is_named_with_its_remedy(
    seen: dict[str, Any], variables: dict[str, Any], code: str, says: str
) -> None:
    (refusal,) = unavailable("debian12", seen, **variables)
    assert refusal.code == code
    assert says in refusal.message


def test_the_controller_itself_is_never_rebooted() -> None:
    decided = decide(facts("debian12"), observed(H100, nouveau=True), {"connection": "local"}, driver_reboot="auto")
    (refusal,) = decided.refusals.preflight
    assert refusal.code == "nouveau"
    assert "not on a local connection" in refusal.message


def test_a_gpu_for_virtual_machines_is_not_ours() -> None:
    gpu = {"address": "0000:01:00.0", "device": H100, "driver": "vfio-pci"}
    assert "vfio-pci" in refused("debian12", observed(gpus=[gpu]))[0]


def test_a_gpu_that_nvml_does_not_list_is_named() -> None:
    answer = {"available": True, "gpus": [{"pci_address": "0000:00:00.0"}]}
    decided = decide(facts("debian12") | {"accel_nvml": answer}, observed(H100, H100))
    (refusal,) = decided.refusals.outcome
    assert refusal.code == "gpu_silent"
    assert "NVML does not list the GPU at 0000:01:00.0; see the kernel log" in refusal.message


ANSWER = {"available": True, "driver_version": "580.1", "gpus": [{"pci_address": "0000:00:00.0"}]}


@pytest.mark.parametrize(
    ("loaded", "known", "seen", "unverified"),
    [
        ("580.1", ANSWER, {"nvml": {"changed": False}}, False),
        ("580.1", ANSWER, {"nvml": {"changed": False}, "installation": {"changed": False}}, False),
        # Facts of another run, which a cache keeps.
        ("580.1", ANSWER, {}, True),
        ("590.1", ANSWER, {"nvml": {"changed": False}}, True),
        ("580.1", ANSWER, {"nvml": {"changed": False}, "installation": {"changed": True}}, True),
        ("580.1", ANSWER, {"nvml": {"changed": False}, "reload": {"rc": 0}}, True),
        ("580.1", ANSWER | {"available": False}, {"nvml": {"changed": False}}, True),
        ("580.1", ANSWER | {"gpus": []}, {"nvml": {"changed": False}}, True),
    ],
)
def test_nvml_is_asked_again_only_about_another_driver(
    loaded: str, known: dict[str, Any], seen: dict[str, Any], unverified: bool
) -> None:
    decided = decide(facts("debian12") | {"accel_nvml": known}, observed(H100, loaded=loaded, installed=loaded), seen)
    assert decided.unverified is unverified


def test_a_driver_for_another_kernel_is_not_asked() -> None:
    assert not decide(facts("debian12"), observed(H100), driver_kernel_release="6.9.0").unverified


def test_a_runfile_on_the_controller_is_found(tmp_path: Path) -> None:
    runfile = tmp_path / "NVIDIA-Linux-x86_64-580.95.05.run"
    asked = {"driver_method": "runfile", "driver_runfile": str(runfile)}
    assert "is not on the controller" in " ".join(refused("openeuler", observed(H100), **asked))
    runfile.touch()
    assert refused("openeuler", observed(H100), **asked) == []


def test_one_kernel_module_replaces_the_other_on_rpm_systems() -> None:
    tasks = yaml.safe_load((ROLE / "tasks/install_repo_rpm.yml").read_text())
    assert [task["ansible.builtin.dnf"]["allowerasing"] for task in tasks if "ansible.builtin.dnf" in task] == [True]


def test_values_of_another_type_are_refused_before_anything_else() -> None:
    found = decide(facts("debian12"), observed(), driver_dkms="maybe", driver_free_space="much", driver_branch=[580])
    assert [refusal.code for refusal in found.refusals.preflight] == ["option_type"] * 3
    named = " ".join(refusal.message for refusal in found.refusals.preflight)
    assert all(name in named for name in ("driver_dkms", "driver_free_space", "driver_branch"))


def test_text_means_what_it_says() -> None:
    asked = {"driver_dkms": "false", "driver_repo_setup": "no", "driver_hold": "0", "driver_branch": 580}
    seen = observed(H100, packages=["nvidia-smi"], vendor="nvidia")
    decided = decide(facts("ubuntu2404"), seen, **asked)
    assert (decided.builds_module, decided.source_url, decided.packages.unheld) == (False, "", ())
    assert decided.branch == 580


@pytest.mark.parametrize("said", ["sudo: a banner", "[]", "{", '{"gpus": NaN', "[" * 100_000])
def test_an_observation_that_is_no_json_is_refused(said: str) -> None:
    (refusal,) = decide(facts("debian12"), seen={"observation": said}).refusals.preflight
    assert refusal.code == "observation"


def test_the_kernel_is_known_before_the_host_was_observed() -> None:
    decided = plan(DEFAULTS, facts("debian12"), {})
    assert (decided.kernel, decided.state) == ("6.8.0-90-generic", State("", "", True, ()))


@pytest.mark.parametrize(
    ("seen", "variables", "reload", "now"),
    [
        ({}, {"driver_reboot": "auto", "driver_reload": True}, False, False),
        ({"loaded": "570.1"}, {"driver_reboot": "auto"}, False, True),
        ({"loaded": "570.1"}, {"driver_reload": True}, True, False),
        ({"loaded": "570.1", "nouveau": True}, {"driver_reload": True, "driver_reboot": "auto"}, False, True),
        ({"loaded": "570.1"}, {"driver_reboot": "auto", "driver_kernel_release": "6.1"}, False, False),
        ({}, {"driver_reboot": "always"}, False, True),
    ],
)
def test_the_loaded_driver_is_replaced_as_the_variables_say(
    seen: dict[str, Any], variables: dict[str, Any], reload: bool, now: bool
) -> None:
    installed = observed(H100, **{"installed": "580.95.05", **seen})
    decided = decide(facts("debian12"), installed, {"installation": {"changed": True}}, **variables)
    assert (decided.reboot.reload, decided.reboot.now) == (reload, now)


def test_a_driver_that_cannot_be_replaced_is_left_to_a_reboot() -> None:
    installed = observed(H100, installed="580.95.05", loaded="570.1")
    answer = {"reload": {"rc": 1, "stderr": "7 sleep use a GPU; end them, or reboot the host"}}
    (refusal,) = decide(facts("debian12"), installed, answer, driver_reload=True).refusals.reload
    assert refusal.message == (
        "the driver 580.95.05 is installed and 570.1 loaded: 7 sleep use a GPU; end them, or reboot the host."
        " Reboot the host, or set driver_reboot=auto."
    )
    assert decide(facts("debian12"), installed, answer, driver_reboot="auto").refusals.reload == ()
    assert decide(facts("debian12"), installed, {"reload": {"rc": 0}}).refusals.reload == ()


@pytest.mark.parametrize(
    ("system", "command"),
    [
        ("debian12", ("update-initramfs", "-u", "-k", "6.8.0-90-generic")),
        ("rocky9", ("dracut", "--force", "--kver", "6.8.0-90-generic")),
    ],
)
def test_nouveau_leaves_the_initramfs_of_each_system(system: str, command: tuple[str, ...]) -> None:
    assert decide(facts(system), observed(H100, nouveau=True)).initramfs == command
    assert decide(facts(system), observed(H100, initramfs=True)).initramfs == ()


@pytest.mark.parametrize("exists", [True, False])
def test_a_node_image_has_its_initramfs_made_anew_if_it_has_one(exists: bool) -> None:
    seen = observed(nouveau=True, initramfs=exists)
    decided = decide(facts("debian12"), seen, driver_kernel_release="6.1.0-56-amd64")
    assert (decided.blacklist_nouveau, decided.initramfs != ()) == (True, exists)


@pytest.mark.parametrize(
    ("seen", "install", "service"),
    [
        ({"installed": ""}, True, "started"),
        ({"installed": "580.95.05", "fabric_manager": "580.95.05"}, False, "started"),
        ({"installed": "580.95.05", "fabric_manager": "570.1"}, True, "restarted"),
    ],
)
def test_the_fabric_manager_follows_the_driver(seen: dict[str, str], install: bool, service: str) -> None:
    answer = {"fabric": {"changed": service == "restarted"}}
    decided = decide(facts("debian12"), observed(H100, nvswitch=True, **seen), answer)
    assert (decided.fabric.install, decided.fabric.start, decided.fabric.service) == (install, True, service)
    image = decide(facts("debian12"), observed(nvswitch=True, **seen), answer, driver_kernel_release="6.1")
    assert (image.fabric.start, image.fabric.service) == (True, "")


ALIVE = {"available": True, "gpus": [{"pci_address": "0000:00:00.0"}]}
IMAGE = {"driver_kernel_release": "6.1.0-56-amd64"}


@pytest.mark.parametrize(
    ("seen", "nvml", "variables", "code", "says"),
    [
        ({}, {"available": False, "reason": "no library"}, {}, "nvml", "NVML does not answer: no library"),
        ({"loaded": "570.1"}, {"available": False}, {}, "nvml", "The host needs a reboot: do it, or set driver_reboot"),
        ({}, ALIVE | {"gpus": []}, {}, "gpu_silent", "does not list the GPU at 0000:00:00.0; see the kernel log"),
        ({"installed": ""}, {}, IMAGE, "module_missing", "/lib/modules/6.1.0-56-amd64 holds no module nvidia; see"),
        ({"vermagic": "6.8 SMP"}, {}, IMAGE, "module_missing", "holds a module nvidia built for 6.8 SMP; see 'dkms"),
        (
            {"nvswitch": True, "fabric_manager": "570.1"},
            ALIVE,
            {},
            "fabric_manager",
            "the fabric manager is 570.1 and the driver 580.95.05, which CUDA answers with error 802",
        ),
        ({"nvswitch": True}, ALIVE, {}, "fabric_manager", "the fabric manager is absent and the driver 580.95.05"),
    ],
)
def test_a_driver_that_does_not_work_is_refused(
    seen: dict[str, Any], nvml: dict[str, Any], variables: dict[str, Any], code: str, says: str
) -> None:
    known = facts("debian12") | {"accel_nvml": nvml}
    (refusal,) = decide(known, observed(H100, **{"installed": "580.95.05", **seen}), **variables).refusals.outcome
    assert refusal.code == code
    assert says in refusal.message


@pytest.mark.parametrize(
    ("seen", "nvml", "check", "variables"),
    [
        ({"installed": "580.95.05", "loaded": "580.95.05"}, ALIVE, False, {}),
        ({}, ALIVE | {"gpus": [], "excluded": ALIVE["gpus"]}, False, {}),
        ({"installed": "580.95.05", "vermagic": "6.1.0-56-amd64 SMP"}, {}, False, IMAGE),
        # A dry run on a bare host has no driver yet.
        ({}, {"available": False}, True, {}),
        ({}, {}, True, IMAGE),
        ({"nvswitch": True}, {"available": False}, True, {}),
        ({"nvswitch": True}, ALIVE, False, {"driver_fabricmanager": "never"}),
    ],
)
def test_a_driver_that_works_is_not_refused(
    seen: dict[str, Any], nvml: dict[str, Any], check: bool, variables: dict[str, Any]
) -> None:
    known = facts("debian12") | {"accel_nvml": nvml}
    assert decide(known, observed(H100, **seen), {"check": check}, **variables).refusals.outcome == ()


@pytest.mark.parametrize(
    ("system", "variables", "pinning"),
    [
        ("debian12", {}, "nvidia-driver-pinning-580"),
        ("debian12", {"driver_version": "580.95.05"}, "nvidia-driver-pinning-580.95.05"),
        ("ubuntu2404", {"driver_branch": "570"}, ""),
    ],
)
def test_apt_is_kept_to_what_was_asked_for(system: str, variables: dict[str, Any], pinning: str) -> None:
    assert decide(facts(system), observed(H100), **variables).repository.pinning == pinning


@pytest.mark.parametrize(
    ("system", "seen", "stream"),
    [
        ("rocky9", {}, "580-open"),
        ("rocky9", {"stream": "580-open"}, ""),
        ("rocky9", {"stream": "580-open", "installed": "580.1", "license": "NVIDIA"}, "580-dkms"),
        ("alma10", {}, ""),
        ("debian12", {}, ""),
    ],
)
def test_a_branch_is_a_stream_of_el_9(system: str, seen: dict[str, str], stream: str) -> None:
    assert decide(facts(system), observed(H100, **seen)).repository.stream == stream


@pytest.mark.parametrize(
    ("variables", "checksum", "gpgkey"),
    [
        ({}, "", "https://developer.download.nvidia.com/compute/cuda/repos/rhel9/x86_64/D42D0685.pub"),
        ({"driver_repo_key_sha256": "none"}, "", "https://developer.download.nvidia.com/compute/cuda/repos/rhel9"),
        ({"driver_repo_key_sha256": "0" * 64}, f"sha256:{'0' * 64}", "file:///etc/pki/rpm-gpg/RPM-GPG-KEY-accel-nv"),
    ],
)
def test_dnf_takes_the_key_that_was_checked(variables: dict[str, Any], checksum: str, gpgkey: str) -> None:
    found = decide(facts("rocky9"), observed(H100), **variables).repository
    assert found.key_checksum == checksum
    assert found.gpgkey.startswith(gpgkey)


def test_only_a_change_unlocks_what_dnf_keeps() -> None:
    locked = {"installed": "580.1", "packages": ["a", "b"], "held": ["a"]}
    assert decide(facts("rocky9"), observed(H100, **locked)).packages.unlocked == ()
    assert decide(facts("rocky9"), observed(H100, **locked), driver_branch="590").packages.unlocked == ("a",)


@pytest.mark.parametrize(
    ("method", "vendor", "removed"),
    [
        ("repo", "nvidia", True),
        ("repo", "distribution", False),
        ("distro", "distribution", True),
        ("distro", "", False),
        ("runfile", "distribution", False),
        ("none", "nvidia", False),
    ],
)
def test_uninstalling_removes_packages_of_its_method_alone(method: str, vendor: str, removed: bool) -> None:
    decided = decide(facts("debian12"), observed(packages=["nvidia-smi"], vendor=vendor), driver_method=method)
    assert decided.remove_packages is removed


@pytest.mark.parametrize(
    ("there", "variables", "expected"),
    [
        (["d.run", "thesis.tex"], {}, ["/home/gpu/d.run"]),
        (["d.run"], {}, ["/home/gpu"]),
        (["thesis.tex"], {}, []),
        ([], {}, []),
        # The operator's own, in its place.
        (["d.run"], {"driver_runfile": "/home/gpu/d.run"}, []),
        (["d.run"], {"driver_runfile": "/home/gpu/d.run", "driver_runfile_remote_src": True}, []),
        (["d.run"], {"driver_runfile": ""}, []),
        ([], {"driver_runfile_dir": "/var/lib/accel-kubernetes/driver"}, ["/var/lib/accel-kubernetes/driver"]),
    ],
)
def test_of_a_directory_with_the_installer_only_that_goes(
    there: list[str], variables: dict[str, Any], expected: list[str]
) -> None:
    found = {"installer": {"files": [{"path": f"/home/gpu/{name}"} for name in there]}}
    asked = {"driver_runfile": "https://example.com/d.run", "driver_runfile_dir": "/home/gpu"} | variables
    removed = decide(facts("debian12"), observed(), found, **asked).removed_files
    assert removed == (
        "/etc/modules-load.d/accel-nvidia.conf",
        "/etc/modprobe.d/accel-nouveau.conf",
        "/etc/pki/rpm-gpg/RPM-GPG-KEY-accel-nvidia-driver",
        *expected,
    )
