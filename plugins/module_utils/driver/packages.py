# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names the packages of NVIDIA's driver that fit a host's kernel, and says which kernels to come get no module."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import AbstractSet, Dict, FrozenSet, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

AUTO = "auto"
"""The word that stands for the planned prerequisites."""

# Of two numbers alone, as proxmox-kernel-6.14 has them, it is a series.
_RELEASE = "[0-9]+[.][0-9]+(?:[.][0-9]|[-+~])"
_IMAGE = re.compile(rf"(?:linux-image|proxmox-kernel|pve-kernel)-(?:unsigned-)?({_RELEASE}[^ ,|()]*)")
_META = re.compile(rf"(?:linux-image-(?!unsigned-)|proxmox-kernel-|pve-kernel-)(?!{_RELEASE})\S+")
_HEADERS_OF = re.compile(rf"(?:linux|proxmox|pve)-headers-({_RELEASE}[^ ,|()]*)")
# It depends on the package that brings the kernels of a series.
_PROXMOX = "proxmox-default-kernel"
# A release is a version, an ABI, which not every distribution has, and a flavor. Proxmox marks kernels built for the
# release before.
_FLAVOR = re.compile(r"[0-9]+(?:[.][0-9]+)+(?:~\w+)?(?:[+][\w.+]+)?(?:-[0-9][\w.~]*)?(?:-bpo[0-9]+)?-([a-z].*)")
_UEK = re.compile(r"[.]el[0-9]+uek[.]")
# Before RHEL 9.3 the release of a real-time kernel has this in place of +rt.
_OLD_RT = re.compile(r"[.]rt[0-9]+[.]")


@dataclass(frozen=True)
class Wish:
    """The driver that a host is to have."""

    method: str
    branch: int
    version: str = ""
    open_module: bool = True
    dkms: bool = True
    persistence: bool = False


@dataclass(frozen=True)
class KernelMeta:
    """An installed package that brings the newest kernel of a flavor with each upgrade."""

    name: str
    releases: FrozenSet[str]
    """The kernels that its installed and its offered version bring."""
    held: bool = False


@dataclass(frozen=True)
class System:
    """A host as its package manager knows it."""

    family: str
    distribution: str
    kernel: str
    installed: FrozenSet[str] = frozenset()
    """Installed packages. With rpm, those with headers and their versions: NAME-VERSION-RELEASE.ARCHITECTURE."""
    offered: Optional[FrozenSet[str]] = None
    """The same of the package sources, and None where nothing is known of them."""
    kernels: Tuple[str, ...] = ()
    """Releases of the installed kernels, with rpm of those like the one the module is for, without their variant."""
    metas: Tuple[KernelMeta, ...] = ()
    """With deb, what brings kernels."""
    brings_headers: Mapping[str, FrozenSet[str]] = field(default_factory=dict)
    """With deb, by package that brings headers the kernels for which its offered version brings them, as far known."""
    coming: Tuple[str, ...] = ()
    """With rpm, releases of such kernels that the package sources have."""
    kernel_package: str = ""
    """With rpm, the package that the kernel came with."""
    headers: str = ""
    """With rpm, the package that says it has this kernel's headers."""

    def has(self, name: str) -> bool:
        """Return whether a package is installed or can be."""
        return name in self.installed or name in (self.offered or ())


@dataclass(frozen=True)
class Plan:
    """What to install for a wish."""

    prerequisites: Tuple[str, ...]
    packages: Tuple[str, ...]
    of_kernel: Tuple[Tuple[str, ...], ...] = ()
    """For each package of exactly this kernel its name, and the other names it was looked for by."""
    warnings: Tuple[str, ...] = ()


def plan(system: System, wish: Wish) -> Plan:
    """Name what a wish takes on a system."""
    built = wish.method == "runfile" or wish.dkms
    kernel_names = _headers(system, system.kernel) if built else _modules(wish, system.kernel)
    if wish.method == "none" or not (built or wish.method == "distro"):
        return Plan((), _packages(system, wish, ()))
    own = next(filter(system.has, kernel_names), kernel_names[0])
    of_kernel = ((own, *(name for name in kernel_names if name != own)),)
    following, warnings = _following(system, wish) if wish.dkms or wish.method == "distro" else ((), ())
    if not built:
        return Plan((), _packages(system, wish, (own, *following)), of_kernel, warnings)
    if not wish.dkms:
        warnings = (
            f"The module is built for {system.kernel} alone, since driver_dkms is false. A later kernel has no driver"
            " until the role runs on it. Set driver_dkms=true to build the module for later kernels too.",
        )
    tools = ("gcc", "make", "elfutils-libelf-devel") if system.family == "rpm" else ("build-essential", "pkg-config")
    dkms = ("dkms",) if wish.dkms else ()
    packages = _packages(system, wish, ())
    return Plan((*tools, own, *following, *dkms), packages, of_kernel, warnings)


def kernel_metas(rows: Iterable[Tuple[str, bool, str]]) -> Tuple[KernelMeta, ...]:
    """Return the packages that bring kernels, from rows with a package, whether it is held, and its dependencies."""
    found: Dict[str, KernelMeta] = {}
    for name, held, depends in rows:
        if _META.fullmatch(name) or name == _PROXMOX:
            before = found.get(name, KernelMeta(name, frozenset(), held))
            found[name] = KernelMeta(name, before.releases | set(releases(depends)), before.held or held)
    return tuple(found.values())


def releases(text: str) -> List[str]:
    """Releases of the kernels whose packages a text names."""
    found = (match[1] for match in _IMAGE.finditer(text))
    return list(
        dict.fromkeys(release[: -len("-signed")] if release.endswith("-signed") else release for release in found)
    )


def header_metas(rows: Iterable[Tuple[str, str]]) -> Dict[str, FrozenSet[str]]:
    """Return the kernels for which packages bring headers, from rows with a package and its dependencies."""
    found = ((name, frozenset(match[1] for match in _HEADERS_OF.finditer(depends))) for name, depends in rows)
    return {name: releases for name, releases in found if releases}


def headers_of_meta(meta: str) -> str:
    """Return the package that brings the headers of the kernels that another package brings."""
    return re.sub("^linux-image-", "linux-headers-", meta).replace("-kernel", "-headers", 1)


def flavor(release: str) -> str:
    """Return the flavor of a kernel of Debian, Ubuntu or Proxmox, such as generic, cloud-amd64 or pve."""
    match = _FLAVOR.fullmatch(release)
    return match[1] if match else ""


def like(name: str, names: Iterable[str], most: int = 6) -> List[str]:
    """Return the newest packages that differ by their kernel from one, of its flavor where there are such."""
    stem = re.split(r"-[0-9]+[.]", name)[0] + "-"
    alike = re.compile(re.escape(stem) + r"[0-9]+[.].*")
    found = sorted((other for other in names if alike.fullmatch(other) and "-common" not in other), key=_order)
    wanted = flavor(name[len(stem) :])
    return [other for other in found if wanted and flavor(other[len(stem) :]) == wanted][-most:] or found[-most:]


def devel_package(system: System, release: str) -> str:
    """Return the package with the headers of a release of an rpm system's kernel, without its version.

    What the kernel itself came with says it best. A kernel that is not installed is known by its release alone.
    """
    if system.kernel_package:
        base = system.kernel_package
        return (base[: -len("-core")] if base.endswith("-core") else base) + "-devel"
    kind = "-uek" if _UEK.search(release) else "-rt" if _OLD_RT.search(release) else ""
    variant = _variant(release)
    return f"kernel{kind}{'-' + variant if variant else ''}-devel"


def version_of(release: str) -> str:
    """Return the version, release and architecture of the packages of an rpm system's kernel."""
    return re.sub(r"(?:[+][\w-]+|[.]debug)$", "", release)


def _variant(release: str) -> str:
    match = re.search(r"(?:[+]([\w-]+)|[.](debug))$", release)
    return (match[1] or match[2]) if match else ""


def _headers(system: System, release: str) -> Tuple[str, ...]:
    if system.family == "rpm":
        named = f"{devel_package(system, release)}-{version_of(release)}"
        return (system.headers,) if system.headers and release == system.kernel else (named,)
    if flavor(release) == "pve":
        return tuple(f"{kind}-headers-{release}" for kind in ("proxmox", "pve", "linux"))
    return (f"linux-headers-{release}",)


def _modules(wish: Wish, suffix: str) -> Tuple[str, ...]:
    return (f"linux-modules-nvidia-{_server(wish)}{_open(wish)}-{suffix}",)


def _following(system: System, wish: Wish) -> Tuple[Tuple[str, ...], Tuple[str, ...]]:
    """Return what brings headers or modules for kernels to come, and a text on the kernels that get none."""
    metas = [meta for meta in system.metas if not meta.held and _of_flavor(meta, system.kernel)]
    following: List[str] = []
    warnings: List[str] = []
    brought = {system.kernel}
    for meta in metas:
        name, kernels, warning = _beside(system, wish, meta)
        following += [name] if name else []
        warnings += [warning] if warning else []
        brought |= kernels
    if not metas and not wish.dkms:
        warnings.append(
            f"No installed package brings new kernels like {system.kernel}, so no package that brings their modules is"
            " installed. A kernel that you install has no driver until the role runs on it."
        )
    warnings += _without(system, wish, [release for meta in metas for release in meta.releases], brought)
    return tuple(dict.fromkeys(following)), tuple(warnings)


def _beside(system: System, wish: Wish, meta: KernelMeta) -> Tuple[str, AbstractSet[str], str]:
    """Return what to install beside a package that brings kernels, those done with, and a text on the others."""
    names = _meta_names(meta.name, wish)
    # Where nothing is known of the sources, only what is there already is sure to exist.
    name = next(filter(system.has, names), "")
    latest = max(meta.releases, key=_order, default="")
    # That of a release beside one for backports, say, which apt prefers.
    late = system.brings_headers.get(name, frozenset()) if wish.dkms else frozenset()
    if late and _order(max(late, key=_order)) < _order(latest):
        warning = (
            f"{meta.name} brings {latest}, and {name} would be installed for {max(late, key=_order)}. Later kernels"
            f" have no driver until the role runs on them. Install {name} from the source that {meta.name} came from."
        )
        return name, meta.releases, warning
    if name:
        offered = {
            release
            for release in meta.releases
            if system.offered is None or any(map(system.has, _needed(system, wish, release)))
        }
        return name, offered, ""
    what = "headers" if wish.dkms else "module"
    lacks = "is not installed" if system.offered is None else "is in no package source"
    warning = (
        f"{meta.name} brings kernels, and {' or '.join(names)}, which would bring the {what} of each, {lacks}."
        " Those kernels have no driver until the role runs on them."
    )
    return "", meta.releases, warning


def _without(system: System, wish: Wish, to_come: Sequence[str], brought: AbstractSet[str]) -> Iterator[str]:
    """Yield a text on the newest kernel that is installed, and on the newest to come, if it is without the driver."""
    installed = [release for release in system.kernels if _alike(system, release)]
    newest = (max(releases, key=_order, default=system.kernel) for releases in (installed, [*system.coming, *to_come]))
    for release in dict.fromkeys(newest):
        names = _needed(system, wish, release)
        # dnf brings a new version of headers that are installed beside the old one, as it does with kernels.
        follows = system.family == "rpm" and release not in installed and any(map(system.has, names))
        there = any(name in system.installed for name in names)
        if release not in brought and _order(release) > _order(system.kernel) and not follows and not there:
            remedy = next((f"install {name}" for name in names if system.has(name)), "")
            remedy = remedy or f"{' or '.join(names)} is neither installed nor in a package source"
            where = "is installed" if release in installed else "comes with the next upgrade"
            yield f"The kernel {release} {where} and would be without the driver: {remedy}."


def _needed(system: System, wish: Wish, release: str) -> Tuple[str, ...]:
    return _headers(system, release) if wish.dkms else _modules(wish, release)


def _of_flavor(meta: KernelMeta, kernel: str) -> bool:
    if meta.name == _PROXMOX:
        return flavor(kernel) == "pve"
    return any(flavor(release) == flavor(kernel) for release in meta.releases)


def _alike(system: System, release: str) -> bool:
    return system.family == "rpm" or flavor(release) == flavor(system.kernel)


def _meta_names(meta: str, wish: Wish) -> Tuple[str, ...]:
    """Return what may bring the headers or modules of the kernels that another package brings."""
    if wish.dkms:
        return (headers_of_meta(meta),)
    suffix = meta[len("linux-image-") :]
    # The kernels of linux-image-virtual are generic ones.
    suffixes = dict.fromkeys((suffix, re.sub("^virtual(?=-|$)", "generic", suffix)))
    return tuple(name for each in suffixes for name in _modules(wish, each))


def _packages(system: System, wish: Wish, modules: Tuple[str, ...]) -> Tuple[str, ...]:
    persistence = ("nvidia-persistenced",) if wish.persistence else ()
    if wish.method == "repo" and system.family == "rpm":
        module = "kmod-nvidia-open-dkms" if wish.open_module else "kmod-nvidia-latest-dkms"
        version = f"-{wish.version}" if wish.version else ""
        return tuple(name + version for name in ("nvidia-driver-cuda", module, *persistence))
    if wish.method == "repo":
        driver = "nvidia-open" if wish.open_module else "cuda-drivers"
        return (driver if wish.branch >= 580 else f"{driver}-{wish.branch}", *persistence)
    if wish.method != "distro":
        return ()
    if system.distribution == "Debian":
        return (
            "nvidia-open-kernel-dkms" if wish.open_module else "nvidia-kernel-dkms",
            *("libcuda1", "libnvidia-ml1", "libnvidia-cfg1", "libnvidia-ptxjitcompiler1", "nvidia-smi"),
            *("nvidia-modprobe", "nvidia-cuda-mps", *persistence),
        )
    server = _server(wish)
    kind = server + _open(wish)
    built = (f"nvidia-dkms-{kind}", f"nvidia-headless-{kind}")
    return (
        *(built if wish.dkms else (*modules, f"nvidia-headless-no-dkms-{kind}")),
        f"nvidia-utils-{server}",
        "nvidia-modprobe",
    )


def _server(wish: Wish) -> str:
    return f"{wish.branch}-server"


def _open(wish: Wish) -> str:
    return "-open" if wish.open_module else ""


def _order(text: str) -> Tuple[Tuple[int, str], ...]:
    """Sort as versions are."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.findall("[0-9]+|[^0-9]+", text))


@dataclass(frozen=True)
class Answer:
    """What a package manager said of packages that it was asked to install."""

    unreachable: Tuple[str, ...] = ()
    missing: Tuple[str, ...] = ()
    conflicts: Tuple[str, ...] = ()


def apt_answer(update: str, said: str) -> Answer:
    """Return what apt-get said when it read the sources, and when it refused to install."""
    # apt has begun to write these letters out.
    failed = r"^(?:[WE]|Warning|Error): (.*Failed to fetch.*)|^(?:E|Error): (The repository .*)"
    absent = r"^(?:E|Error): (?:Unable to locate package (.*)|Package '(.*)' has no installation candidate)"
    rest = [line for line in said.splitlines() if not re.search(absent + "|find any package by", line)]
    answer = Answer(
        _found(failed, update.splitlines()),
        _found(absent, said.splitlines()),
        _found(r"^(?:E|Error): (.*)|^ (.* : Depends: .*)", rest),
    )
    return _never_silent(answer, said)


def dnf_answer(said: str) -> Answer:
    """Return what dnf said when it was to install and to answer no.

    It then names the transaction where there is one.
    """
    if re.search("^Transaction Summary", said, re.MULTILINE):
        return Answer()
    lines = said.splitlines()
    rest = [line for line in lines if not re.search("Failed to download|Curl error|Unable to find a match", line)]
    answer = Answer(
        _found(r"^(Error: Failed to download.*|.*Cannot download repomd.*|.*Curl error.*)", lines),
        _found(r"^No match for argument: (.*)", lines),
        _found(
            r"^Error: (.+)|^ *- (.+)|^(All matches were filtered out .+|Argument .+ matches only excluded .+)", rest
        ),
    )
    # This is what it says of the "no", where it names no transaction.
    return answer if re.search("^Operation aborted", said, re.MULTILINE) else _never_silent(answer, said)


def _never_silent(answer: Answer, said: str) -> Answer:
    """Return an answer whose reason, where none is known, is the last words of a program that refused."""
    if answer != Answer():
        return answer
    words = [line.strip() for line in said.splitlines() if line.strip()]
    return Answer(conflicts=(words[-1] if words else "the package manager refused without a word",))


def _found(pattern: str, lines: Sequence[str]) -> Tuple[str, ...]:
    matches = (re.search(pattern, line) for line in lines)
    found = (next(group for group in match.groups() if group is not None) for match in matches if match)
    return tuple(dict.fromkeys(found))
