# SPDX-License-Identifier: Apache-2.0
"""What a container gets so that the interposer stands wherever a program looks for the driver's library. Pure.

The driver's own libcuda and NVML lie at a private path, everything else of the driver where it always is. A container's
distribution decides in which directory its loader looks: the libraries are in all of them, so that nothing has to run
in the container, and no variable decides which library is found.

Programs that ask ``ldconfig -p`` where a library is see the loader's cache alone, which the image brings. Where the
runtime has CDI, a hook of ours on the host enters the libraries before the container starts.
"""

from __future__ import annotations

import posixpath
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kube_accel.sharing.cdi import VERSION, DriverFiles, in_container
from kube_accel.sharing.delivery import Delivery, Grant, Strategy

CDI_KIND = "kube-accel.io/share"
CDI_FILES = "kube-accel.io-share-"
"""How the names of its specifications begin, one a container."""
POLICY = "/etc/kube-accel/policy"
STATE = "/run/kube-accel/state"
WHOLE = "/etc/kube-accel/whole"
"""What a container of a claim has with a whole GPU, so that none has that beside a share."""
DRIVER = "/usr/lib/kube-accel/driver"
"""In the container, the driver's own libraries of those that are shimmed."""
SHIMMED = ("libcuda", "libnvidia-ml")
TRITON = "TRITON_LIBCUDA_PATH"
"""Names the directory for Triton's linker, in place of what ``ldconfig -p`` says: there are images without ldconfig."""

_VOID = {"NVIDIA_VISIBLE_DEVICES": "void"}
"""Has NVIDIA's runtime add nothing."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where things are on the host."""

    files: DriverFiles
    driver_root: str
    version: str
    """Version of the driver."""
    shim: str
    """Directory of one build of the interposer: ``libcuda.so.1`` and ``libnvidia-ml.so.1``."""
    hook: str
    """Program that enters libraries into a container's loader cache."""
    machine: str
    """``x86_64`` or ``aarch64``."""


@dataclass(frozen=True, slots=True)
class Interposed:
    """What one container gets."""

    read_only: Mapping[str, str]
    """Paths on the host by path in the container."""
    writable: Mapping[str, str]
    device_nodes: tuple[str, ...]
    """Names below ``/dev``."""
    environment: Mapping[str, str]
    hook: tuple[str, ...]
    """Command by which the runtime, on the host, has the container's loader cache know the libraries."""


def missing(files: DriverFiles, version: str) -> str:
    """Return the library of the driver that is missing; empty when all are there."""
    names = {posixpath.basename(path) for path in files.files}
    return next((f"{stem}.so.{version}" for stem in SHIMMED if f"{stem}.so.{version}" not in names), "")


def shimmed(files: DriverFiles, version: str) -> dict[str, str]:
    """Return the driver's own libraries of those that are shimmed, by the name that ours have.

    The driver's files are complete: ``missing`` found nothing.
    """
    primary = _primary(files, version)
    return {f"{stem}.so.1": f"{primary}/{stem}.so.{version}" for stem in SHIMMED}


def interposed(sources: Sources, policy: str, state: str, device_nodes: Iterable[str]) -> Interposed:
    """Return the mounts for a container whose two files are at these paths on the host.

    The driver's files are complete: ``missing`` found nothing.
    """
    read_only = {POLICY: policy}
    primary = _primary(sources.files, sources.version)
    debian = f"/usr/lib/{sources.machine}-linux-gnu"
    directories = tuple(dict.fromkeys((primary, debian, "/usr/lib64")))
    # Debian has what is not the driver's own version's beside the directory in which it keeps the others aside.
    home = posixpath.dirname(in_container(f"{primary}/libcuda"))
    names = dict(_names(sources, (primary, home)))
    for path, library in names.items():
        for directory in directories:
            read_only[f"{directory}/{path}"] = library
    for path in sources.files.files:
        # Libraries of other directories are of another word size.
        if ".so." not in path:
            read_only[in_container(path)] = below(sources.driver_root, path)
    for library, path in shimmed(sources.files, sources.version).items():
        read_only[f"{DRIVER}/{library}"] = below(sources.driver_root, path)
    for path, source in sources.files.data.items():
        # What lies below the libraries' directory, as GBM's backend does, is looked for where they are.
        public = in_container(path)
        inside = public.removeprefix(f"{home}/")
        for place in (f"{directory}/{inside}" for directory in directories) if inside != public else (public,):
            read_only[place] = below(sources.driver_root, source)
    # A socket is connected to on a read-only mount too.
    read_only |= {path: below(sources.driver_root, path) for path in sources.files.sockets}
    hook = (sources.hook, *directories, "--", *_cached(names, sources.version))
    return Interposed(read_only, {STATE: state}, tuple(device_nodes), {TRITON: debian}, hook)


def _cached(names: Iterable[str], version: str) -> list[str]:
    """Return the names by which programs look for libraries, with the driver's version if there is no other."""
    stems = {name.partition(".so")[0] for name in names if not name.endswith(f".so.{version}")}
    return sorted(name for name in names if not (name.endswith(f".so.{version}") and name.partition(".so")[0] in stems))


def _names(sources: Sources, own: Container[str]) -> Iterator[tuple[str, str]]:
    """Yield every name of a library in a directory of the container, with the file on the host behind it."""
    for path in sources.files.files:
        if posixpath.dirname(path) in own and ".so." in path:
            yield posixpath.basename(path), below(sources.driver_root, path)
    for link, target in sources.files.links.items():
        if posixpath.dirname(link) in own:
            yield posixpath.basename(link), below(sources.driver_root, target)
    for stem in SHIMMED:
        for ending in ("", ".1", f".{sources.version}"):
            yield f"{stem}.so{ending}", f"{sources.shim}/{stem}.so.1"


def _primary(files: DriverFiles, version: str) -> str:
    """Return the directory of the driver's libraries on the host; the first of several, as the loader has it."""
    wanted = f"libcuda.so.{version}"
    return next(posixpath.dirname(path) for path in files.files if posixpath.basename(path) == wanted)


def below(root: str, path: str) -> str:
    """Return a path of the driver's as it is where the driver's root is ``root``."""
    return path if root == "/" else root.rstrip("/") + path


def grant(got: Interposed, key: str, delivery: Delivery) -> Grant:
    """Return what kubelet is answered: the names of CDI devices, or everything itself. ``key`` is the container's."""
    device = f"{CDI_KIND}={key}"
    environment = {**_VOID, **got.environment}
    if Strategy.CDI_CRI in delivery.strategies:
        return Grant(environment, (), cdi_devices=(device,))
    annotations = {f"{delivery.annotation_prefix}kube-accel_share-{key[:16]}": device}
    if Strategy.CDI_ANNOTATIONS in delivery.strategies:
        return Grant(environment, (), annotations=annotations)
    return Grant(
        environment,
        got.device_nodes,
        mounts=dict(got.writable),
        read_only_mounts=dict(got.read_only),
        # Who knows one of the two reads it; who knows neither starts the container without.
        annotations=annotations if delivery.hooks_by_cdi else {},
        cdi_devices=(device,) if delivery.hooks_by_cdi else (),
    )


def specification(got: Interposed, key: str, delivery: Delivery) -> dict[str, Any]:
    """Return the CDI specification with this container's one device: all it gets, or what mounts cannot bring."""
    edits: dict[str, Any] = {"hooks": [_hook(got)]}
    if delivery.by_cdi:
        edits |= _all(got)
    return {"cdiVersion": VERSION, "kind": CDI_KIND, "devices": [{"name": key, "containerEdits": edits}]}


def only_edits(got: Interposed) -> dict[str, Any]:
    """Return CDI's edits of all that a container gets by its share, which starts with no other share or GPU."""
    edits = _all(got)
    edits["env"] += [f"{name}={value}" for name, value in got.environment.items()]
    return {**edits, "hooks": [_hook(got, "--only", got.read_only[POLICY])]}


def _hook(got: Interposed, *first: str) -> dict[str, Any]:
    # Not createContainer: in the runtime's own namespaces no volume of the pod is mounted in the container's root, a
    # user namespace takes no right from the hook, and a root file system that is to be read-only is not so yet.
    program, *arguments = got.hook
    return {
        "hookName": "createRuntime",
        "path": program,
        "args": [posixpath.basename(program), *first, *arguments],
    }


def _all(got: Interposed) -> dict[str, Any]:
    mounts = [_mount(source, target, "ro") for target, source in got.read_only.items()]
    mounts += [_mount(source, target, "rw") for target, source in got.writable.items()]
    return {
        "env": [f"{name}={value}" for name, value in _VOID.items()],
        "deviceNodes": [{"path": f"/dev/{name}"} for name in got.device_nodes],
        "mounts": mounts,
    }


def _mount(source: str, target: str, access: str) -> dict[str, Any]:
    return {"hostPath": source, "containerPath": target, "options": [access, "nosuid", "nodev", "rbind", "rprivate"]}
