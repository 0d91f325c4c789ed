# SPDX-License-Identifier: Apache-2.0
"""The names of the driver's packages, over kernels of real distributions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.driver.packages import (
    Answer,
    KernelMeta,
    Plan,
    System,
    Wish,
    apt_answer,
    devel_package,
    dnf_answer,
    flavor,
    header_metas,
    kernel_metas,
    like,
    plan,
    releases,
    version_of,
)
from hypothesis import given
from hypothesis import strategies as st

BUILT = Wish("distro", 580, dkms=False)
DKMS = Wish("distro", 580)
RUNFILE = Wish("runfile", 580, dkms=False)
S = "linux-modules-nvidia-580-server-open-"


def meta(name: str, *brings: str, held: bool = False) -> KernelMeta:
    return KernelMeta(name, frozenset(brings), held)


def ubuntu(
    kernel: str, *metas: KernelMeta, offered: set[str] | None = None, installed: set[str] | None = None
) -> System:
    known = None if offered is None else frozenset(offered)
    here = frozenset(installed or ()) | {f"linux-image-{kernel}"}
    return System("deb", "Ubuntu", kernel, here, known, tuple(releases(" ".join(here))), metas)


# What `ubuntu-drivers list` names on Ubuntu 22.04 and 24.04 with HWE kernels: the suffix is that of linux-image-*.
# Names of the other flavors follow the same rule; the index decides whether there is such a package.
@pytest.mark.parametrize(
    ("kernel", "image", "modules"),
    [
        ("6.8.0-90-generic", "linux-image-generic", "generic"),
        ("6.8.0-90-generic", "linux-image-generic-hwe-22.04", "generic-hwe-22.04"),
        ("6.14.0-37-generic", "linux-image-generic-hwe-24.04", "generic-hwe-24.04"),
        ("6.8.0-90-generic", "linux-image-virtual", "generic"),
        ("6.8.0-90-generic", "linux-image-virtual-hwe-22.04", "generic-hwe-22.04"),
        ("5.15.0-161-lowlatency", "linux-image-lowlatency", "lowlatency"),
        ("6.8.0-1044-aws", "linux-image-aws", "aws"),
        ("6.8.0-1044-aws", "linux-image-aws-lts-24.04", "aws-lts-24.04"),
        ("6.8.0-1042-azure", "linux-image-azure", "azure"),
        ("6.8.0-1044-nvidia-64k", "linux-image-nvidia-64k", "nvidia-64k"),
    ],
)
def test_modules_of_coming_kernels_match_their_metapackage(kernel: str, image: str, modules: str) -> None:
    host = ubuntu(kernel, meta(image, kernel), offered={S + kernel, S + modules})
    planned = plan(host, BUILT)
    assert planned.packages[:2] == (S + kernel, S + modules)
    assert planned.prerequisites == planned.warnings == ()


def test_a_package_that_brings_other_flavors_is_nobodys_concern() -> None:
    aws = meta("linux-image-aws", "6.8.0-1044-aws")
    host = ubuntu("6.8.0-90-generic", aws, offered={S + "6.8.0-90-generic", S + "aws", S + "generic"})
    assert S + "aws" not in plan(host, BUILT).packages


@pytest.mark.parametrize("metas", [(), (meta("linux-image-generic", "6.8.0-90-generic", held=True),)])
@pytest.mark.parametrize("wish", [BUILT, DKMS])
def test_a_pinned_host_gets_no_other_kernel(metas: tuple[KernelMeta, ...], wish: Wish) -> None:
    offered = {S + "6.8.0-45-generic", S + "generic", "linux-headers-generic", "linux-headers-6.8.0-45-generic"}
    planned = plan(ubuntu("6.8.0-45-generic", *metas, offered=offered), wish)
    named = {*planned.prerequisites, *planned.packages}
    assert not named & {S + "generic", "linux-headers-generic"}
    assert bool(planned.warnings) is (wish == BUILT)
    if wish == BUILT:
        assert S + "6.8.0-45-generic" in named
        assert "No installed package brings new kernels like 6.8.0-45-generic" in planned.warnings[0]


def test_kernels_whose_modules_no_source_brings_are_told_of() -> None:
    host = ubuntu("6.8.0-1044-oem", meta("linux-image-oem-24.04", "6.8.0-1044-oem"), offered={S + "6.8.0-1044-oem"})
    planned = plan(host, BUILT)
    assert planned.packages[0] == S + "6.8.0-1044-oem"
    (warning,) = planned.warnings
    assert f"linux-image-oem-24.04 brings kernels, and {S}oem-24.04" in warning


def test_the_next_kernel_is_told_of_where_its_module_is_late() -> None:
    image = meta("linux-image-generic", "6.8.0-90-generic", "6.8.0-91-generic")
    host = ubuntu("6.8.0-90-generic", image, offered={S + "6.8.0-90-generic", S + "generic"})
    (warning,) = plan(host, BUILT).warnings
    assert "The kernel 6.8.0-91-generic comes with the next upgrade and would be without the driver" in warning
    there = replace(host, offered=frozenset({*(host.offered or ()), S + "6.8.0-91-generic"}))
    assert plan(there, BUILT).warnings == ()


def test_a_kernel_that_waits_for_its_boot_is_told_of() -> None:
    waiting = {"linux-image-6.8.0-91-generic"}
    offered = {"linux-headers-6.8.0-90-generic", "linux-headers-6.8.0-91-generic"}
    host = ubuntu("6.8.0-90-generic", offered=offered, installed=waiting)
    (warning,) = plan(host, DKMS).warnings
    assert (
        "6.8.0-91-generic is installed and would be without the driver: install linux-headers-6.8.0-91-gen" in warning
    )
    ready = replace(host, installed=host.installed | {"linux-headers-6.8.0-91-generic"})
    assert plan(ready, DKMS).warnings == ()


# Depends fields as these distributions have them.
@pytest.mark.parametrize(
    ("kernel", "rows", "headers"),
    [
        (
            "6.1.0-56-amd64",
            [("linux-image-amd64", False, "linux-image-6.1.0-56-amd64 (= 6.1.192-2)")],
            ["linux-headers-6.1.0-56-amd64", "linux-headers-amd64"],
        ),
        (
            "6.12.48+deb13-cloud-amd64",
            [("linux-image-cloud-amd64", False, "linux-image-6.12.48+deb13-cloud-amd64 (= 6.12.48-1)")],
            ["linux-headers-6.12.48+deb13-cloud-amd64", "linux-headers-cloud-amd64"],
        ),
        (
            "6.8.0-90-generic",
            [("linux-image-generic-hwe-22.04", False, "linux-image-6.8.0-90-generic, linux-firmware, intel-microcode")],
            ["linux-headers-6.8.0-90-generic", "linux-headers-generic-hwe-22.04"],
        ),
        (
            "6.8.12-4-pve",
            [
                ("proxmox-default-kernel", False, "proxmox-kernel-6.8"),
                ("proxmox-kernel-6.8", False, "proxmox-kernel-6.8.12-4-pve-signed | proxmox-kernel-6.8.12-4-pve"),
                ("proxmox-kernel-helper", False, "grub-common"),
            ],
            ["proxmox-headers-6.8.12-4-pve", "proxmox-default-headers", "proxmox-headers-6.8"],
        ),
        (
            "5.15.158-2-pve",
            [("pve-kernel-5.15", False, "pve-kernel-5.15.158-2-pve")],
            ["pve-headers-5.15.158-2-pve", "pve-headers-5.15"],
        ),
        (
            "6.14.8-2-bpo12-pve",
            [("proxmox-kernel-6.14", False, "proxmox-kernel-6.14.8-2-bpo12-pve-signed")],
            ["proxmox-headers-6.14.8-2-bpo12-pve", "proxmox-headers-6.14"],
        ),
        (
            "6.13-amd64",
            [("linux-image-amd64", False, "linux-image-6.13-amd64 (= 6.13.2-1~exp1)")],
            ["linux-headers-6.13-amd64", "linux-headers-amd64"],
        ),
    ],
)
def test_headers_come_with_the_kernels_to_come(
    kernel: str, rows: list[tuple[str, bool, str]], headers: list[str]
) -> None:
    host = System("deb", "Debian", kernel, offered=frozenset(headers), metas=kernel_metas(rows))
    planned = plan(host, DKMS)
    assert planned.prerequisites == ("build-essential", "pkg-config", *headers, "dkms")
    assert planned.warnings == ()


def test_headers_missing_in_the_index_are_sought_by_any_name() -> None:
    planned = plan(System("deb", "Debian", "6.8.12-4-pve", offered=frozenset()), DKMS)
    assert planned.of_kernel == (
        ("proxmox-headers-6.8.12-4-pve", "pve-headers-6.8.12-4-pve", "linux-headers-6.8.12-4-pve"),
    )


# Releases as uname has them. RHEL's variants follow from its kernel.spec, whose packages are kernel-VARIANT-devel.
@pytest.mark.parametrize(
    ("kernel", "headers"),
    [
        ("5.14.0-570.el9.x86_64", "kernel-devel-5.14.0-570.el9.x86_64"),
        ("5.14.0-570.el9.x86_64+rt", "kernel-rt-devel-5.14.0-570.el9.x86_64"),
        ("5.14.0-570.el9.aarch64+64k", "kernel-64k-devel-5.14.0-570.el9.aarch64"),
        ("6.12.0-55.el10.aarch64+rt-64k", "kernel-rt-64k-devel-6.12.0-55.el10.aarch64"),
        ("5.14.0-570.el9.x86_64+debug", "kernel-debug-devel-5.14.0-570.el9.x86_64"),
        ("5.14.0-570.el9.aarch64+64k-debug", "kernel-64k-debug-devel-5.14.0-570.el9.aarch64"),
        ("5.14.0-162.6.1.rt21.168.el9_1.x86_64", "kernel-rt-devel-5.14.0-162.6.1.rt21.168.el9_1.x86_64"),
        ("5.15.0-300.163.18.el9uek.x86_64", "kernel-uek-devel-5.15.0-300.163.18.el9uek.x86_64"),
        ("5.15.0-300.163.18.el8uek.x86_64.debug", "kernel-uek-debug-devel-5.15.0-300.163.18.el8uek.x86_64"),
    ],
)
def test_headers_of_an_rpm_kernel(kernel: str, headers: str) -> None:
    planned = plan(System("rpm", "RedHat", kernel), DKMS)
    assert planned.prerequisites == ("gcc", "make", "elfutils-libelf-devel", headers, "dkms")


def test_what_the_host_says_of_its_kernel_goes_before_the_rules() -> None:
    mainline = System("rpm", "Rocky", "6.15.1-1.el9.elrepo.x86_64", kernel_package="kernel-ml-core")
    assert plan(mainline, DKMS).of_kernel == (("kernel-ml-devel-6.15.1-1.el9.elrepo.x86_64",),)
    told = replace(mainline, headers="kernel-own-devel-6.15.1-1.el9.elrepo.x86_64")
    assert told.headers in plan(told, DKMS).prerequisites
    assert devel_package(System("rpm", "OracleLinux", "", kernel_package="kernel-uek"), "") == "kernel-uek-devel"


def test_headers_that_an_rpm_kernel_to_come_lacks_are_told_of() -> None:
    own, new = "5.14.0-570.el9.x86_64", "5.14.0-611.el9.x86_64"
    offered = frozenset({f"kernel-devel-{own}"})
    host = System("rpm", "Rocky", own, offered=offered, kernels=(own,), coming=(new,), kernel_package="kernel-core")
    (warning,) = plan(host, DKMS).warnings
    assert f"The kernel {new} comes with the next upgrade" in warning
    assert f"kernel-devel-{new} is neither installed nor in a package source" in warning
    both = replace(host, offered=offered | {f"kernel-devel-{new}"})
    assert plan(both, DKMS).warnings == ()
    (warning,) = plan(replace(both, kernels=(own, new)), DKMS).warnings
    assert f"The kernel {new} is installed and would be without the driver: install kernel-devel-{new}" in warning


def test_a_variant_is_its_own_newest_kernel() -> None:
    own = "5.14.0-570.el9.x86_64"
    host = System("rpm", "Rocky", f"{own}+rt", kernels=(own,), coming=(own,), kernel_package="kernel-rt-core")
    assert plan(host, DKMS).warnings == ()


@pytest.mark.parametrize(
    ("family", "distribution", "wish", "packages"),
    [
        ("deb", "Debian", Wish("repo", 580), ["nvidia-open"]),
        ("deb", "Debian", Wish("repo", 580, open_module=False), ["cuda-drivers"]),
        ("deb", "Ubuntu", Wish("repo", 570, persistence=True), ["nvidia-open-570", "nvidia-persistenced"]),
        ("rpm", "Rocky", Wish("repo", 580), ["nvidia-driver-cuda", "kmod-nvidia-open-dkms"]),
        (
            *("rpm", "AlmaLinux"),
            Wish("repo", 580, "580.95.05", open_module=False),
            ["nvidia-driver-cuda-580.95.05", "kmod-nvidia-latest-dkms-580.95.05"],
        ),
        (
            *("deb", "Debian"),
            Wish("distro", 535, open_module=False),
            [
                *("nvidia-kernel-dkms", "libcuda1", "libnvidia-ml1", "libnvidia-cfg1", "libnvidia-ptxjitcompiler1"),
                *("nvidia-smi", "nvidia-modprobe", "nvidia-cuda-mps"),
            ],
        ),
        (
            *("deb", "Ubuntu", DKMS),
            [
                *("nvidia-dkms-580-server-open", "nvidia-headless-580-server-open", "nvidia-utils-580-server"),
                "nvidia-modprobe",
            ],
        ),
        ("rpm", "openEuler", RUNFILE, []),
    ],
)
def test_the_drivers_packages(family: str, distribution: str, wish: Wish, packages: list[str]) -> None:
    assert [*plan(System(family, distribution, "6.1.0-56-amd64"), wish).packages] == packages


def test_a_module_that_nothing_rebuilds_is_told_of() -> None:
    planned = plan(System("deb", "Debian", "6.1.0-56-amd64"), RUNFILE)
    assert planned.prerequisites == ("build-essential", "pkg-config", "linux-headers-6.1.0-56-amd64")
    assert "built for 6.1.0-56-amd64 alone, since driver_dkms is false" in planned.warnings[0]


def test_nothing_is_said_of_sources_that_nobody_asked() -> None:
    image = meta("linux-image-generic", "6.8.0-90-generic")
    unknown = ubuntu("6.8.0-90-generic", image)
    assert "linux-headers-generic" not in plan(unknown, DKMS).prerequisites
    assert (
        "linux-headers-generic, which would bring the headers of each, is not installed"
        in plan(unknown, DKMS).warnings[0]
    )
    there = ubuntu("6.8.0-90-generic", image, installed={"linux-headers-generic"})
    assert "linux-headers-generic" in plan(there, DKMS).prerequisites
    assert plan(there, DKMS).warnings == ()


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("6.8.0-90-generic", "generic"),
        ("6.12.9+bpo-amd64", "amd64"),
        ("6.12.48+deb13-rt-amd64", "rt-amd64"),
        ("6.1.0-0.deb11.5-amd64", "amd64"),
        ("6.8.0-1010-nvidia-64k", "nvidia-64k"),
        ("5.14.0-570.el9.x86_64", ""),
        ("6.14.8-2-bpo12-pve", "pve"),
        ("6.16~rc7-amd64", "amd64"),
        ("6.13-cloud-amd64", "cloud-amd64"),
        ("6.12.48+deb13+1-amd64", "amd64"),
    ],
)
def test_flavors(release: str, expected: str) -> None:
    assert flavor(release) == expected


def test_other_kernels_of_the_flavor_are_named_newest_last() -> None:
    names = [f"linux-headers-6.8.0-{number}-generic" for number in (9, 100, 90)]
    names += ["linux-headers-6.8.0-1001-aws", "linux-headers-generic", "linux-headers-6.1.0-56-common"]
    assert like("linux-headers-6.8.0-45-generic", names) == [names[0], names[2], names[1]]
    assert like("linux-headers-6.18.4-fc", ["linux-headers-6.1.0-56-amd64", names[5]]) == [
        "linux-headers-6.1.0-56-amd64"
    ]


NAMES = st.sampled_from(
    ["6.8.0-90-generic", "6.8.0-91-generic", "6.8.0-1044-aws", "5.14.0-570.el9.x86_64+rt", "6.8.12-4-pve"]
)
METAS = st.builds(
    KernelMeta,
    st.sampled_from(["linux-image-generic", "linux-image-aws", "linux-image-virtual", "proxmox-default-kernel"]),
    st.frozensets(NAMES),
    st.booleans(),
)
OFFERS = st.frozensets(
    st.one_of(
        NAMES.map(lambda name: S + name),
        NAMES.map(lambda name: f"linux-headers-{name}"),
        st.sampled_from(
            ["linux-headers-generic", "linux-headers-aws", S + "generic", S + "aws", "proxmox-default-headers"]
        ),
    )
)


@given(
    st.sampled_from(["deb", "rpm"]),
    NAMES,
    OFFERS,
    st.none() | OFFERS,
    st.lists(NAMES),
    st.lists(METAS),
    st.sampled_from([BUILT, DKMS, RUNFILE, Wish("repo", 580)]),
)
def test_only_this_kernels_packages_may_be_unknown(
    family: str,
    kernel: str,
    installed: frozenset[str],
    offered: frozenset[str] | None,
    kernels: list[str],
    metas: list[KernelMeta],
    wish: Wish,
) -> None:
    if family == "rpm":
        metas, wish = [], wish if wish != BUILT else DKMS
    host = System(family, "Ubuntu", kernel, installed, offered, tuple(kernels), tuple(metas))
    planned: Plan = plan(host, wish)
    own = {tried[0] for tried in planned.of_kernel}
    assert own <= {*planned.prerequisites, *planned.packages}
    of_kernels = {
        name for name in (*planned.prerequisites, *planned.packages) if name.startswith((S, "linux-headers-"))
    }
    assert all(host.has(name) for name in of_kernels - own)
    if all(item.held for item in metas):
        assert of_kernels <= own
    assert len({*planned.packages}) == len(planned.packages)


@given(st.text())
def test_any_text_is_a_release(text: str) -> None:
    plan(System("deb", "Ubuntu", text), DKMS)
    assert text.startswith(version_of(text))
    assert apt_answer(text, text) is not None
    assert dnf_answer(text) is not None


def test_what_package_managers_say() -> None:
    assert apt_answer(
        "W: Failed to fetch http://mirror.example/  Connection refused\nE: The repository 'x' is not signed.",
        "E: Unable to locate package a\nE: Package 'b' has no installation candidate\nE: Unable to locate package a\n"
        "E: Couldn't find any package by glob 'c'\n x : Depends: y but it is not installable\nE: held broken packages.",
    ) == Answer(
        ("Failed to fetch http://mirror.example/  Connection refused", "The repository 'x' is not signed."),
        ("a", "b"),
        ("x : Depends: y but it is not installable", "held broken packages."),
    )
    said = "No match for argument: a\nError: Unable to find a match: a\nError: \n Problem: x\n  - nothing provides b\n"
    assert dnf_answer(said) == Answer((), ("a",), ("nothing provides b",))
    assert dnf_answer("Transaction Summary\nOperation aborted.\nError: no") == Answer()


def test_release_headers_are_named_beside_a_backports_kernel() -> None:
    kernel, stable = "6.12.9+bpo-cloud-amd64", "6.1.0-28-cloud-amd64"
    images = kernel_metas([("linux-image-cloud-amd64", False, f"linux-image-{kernel} (= 6.12.9-1~bpo12+1)")])
    offered = frozenset((f"linux-headers-{kernel}", f"linux-headers-{stable}", "linux-headers-cloud-amd64"))
    host = System("deb", "Debian", kernel, offered=offered, metas=images)
    late = header_metas([("linux-headers-cloud-amd64", f"linux-headers-{stable} (= 6.1.119-1)"), ("other", "libc6")])
    (warning,) = plan(replace(host, brings_headers=late), DKMS).warnings
    assert f"linux-image-cloud-amd64 brings {kernel}, and linux-headers-cloud-amd64 would be" in warning
    assert f"installed for {stable}" in warning
    right = header_metas([("linux-headers-cloud-amd64", f"linux-headers-{kernel}")])
    assert plan(replace(host, brings_headers=right), DKMS).warnings == ()


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("Error: Unable to satisfy dependencies", "Unable to satisfy dependencies"),
        ("Reading package lists...\nSegmentation fault\n", "Segmentation fault"),
        ("\n", "refused without a word"),
    ],
)
def test_apt_never_refuses_without_a_reason(said: str, reason: str) -> None:
    assert reason in apt_answer("", said).conflicts[0]


def test_apt_that_writes_its_letters_out_is_understood() -> None:
    said = "Error: Unable to locate package a\nError: Package 'b' has no installation candidate"
    failed = "Warning: Failed to fetch http://mirror.example/  Connection refused"
    assert apt_answer(failed, said) == Answer((failed[len("Warning: ") :],), ("a", "b"))


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "All matches were filtered out by exclude filtering for argument: kernel-devel-1\n"
            "Error: Unable to find a match: kernel-devel-1\n",
            "exclude filtering for argument: kernel-devel-1",
        ),
        ("Argument 'kernel-devel-1' matches only excluded packages.\n", "matches only excluded"),
        ("Traceback (most recent call last):\nImportError: no libdnf\n", "ImportError: no libdnf"),
        ("", "refused without a word"),
    ],
)
def test_dnf_never_refuses_without_a_reason(said: str, reason: str) -> None:
    (found,) = dnf_answer(said).conflicts
    assert reason in found
    assert dnf_answer("Operation aborted.\n") == Answer()
