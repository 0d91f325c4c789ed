# SPDX-License-Identifier: Apache-2.0
"""The hook that enters the driver's libraries into a container's loader cache, on roots that never knew of them."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import stat
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from native.conftest import NATIVE, Libraries

AS_ROOT = () if os.geteuid() == 0 else ("unshare", "--user", "--map-root-user")
NAMES = ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so", "libnvidia-ml.so.1")
DEBIAN, RED_HAT = "usr/lib/x86_64-linux-gnu", "usr/lib64"
OPENS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        struct link_map *map;
        void *library = dlopen(argv[i], RTLD_NOW);
        puts(library && !dlinfo(library, RTLD_DI_LINKMAP, &map) ? map->l_name : dlerror());
    }
}
"""


def run(*command: str | Path, **more: object) -> str:
    done = subprocess.run([*AS_ROOT, *map(str, command)], capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


@dataclass
class Root:
    """A container's, with glibc, ldconfig and a library that only the cache knows, in the layout of a distribution."""

    path: Path
    libraries: Path
    shim: Path
    hook: Path

    @classmethod
    def make(cls, path: Path, directory: str, shim: Path) -> Root:
        libraries = path / directory
        for folder in (DEBIAN, RED_HAT, "usr/bin", "usr/sbin", "etc", "opt/own"):
            (path / folder).mkdir(parents=True, exist_ok=True)
        for folder in ("lib", "lib64", "bin", "sbin"):
            (path / folder).symlink_to(f"usr/{folder}")
        program = path / "usr/bin/opens"
        subprocess.run(["gcc", "-x", "c", "-", "-o", program, "-ldl"], input=OPENS, text=True, check=True)
        library = [
            "gcc",
            "-shared",
            "-x",
            "c",
            "/dev/null",
            "-Wl,-soname,libown.so.2",
            "-o",
            path / "opt/own/libown.so.2",
        ]
        subprocess.run(library, check=True)
        (path / "opt/own/glibc-hwcaps/x86-64-v2").mkdir(parents=True)
        shutil.copy(path / "opt/own/libown.so.2", path / "opt/own/glibc-hwcaps/x86-64-v2")
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        loader, libc = (re.search(pattern, listed) for pattern in (r"(\S*/ld-\S+) ", r"(\S*/libc\.so\.6) "))
        assert loader is not None
        assert libc is not None
        for name in ("libc.so.6", "libdl.so.2"):
            shutil.copy(Path(libc[1]).with_name(name), libraries)
        shutil.copy(loader[1], path / RED_HAT)
        shutil.copy("/sbin/ldconfig.real" if Path("/sbin/ldconfig.real").exists() else "/sbin/ldconfig", path / "sbin")
        (path / "etc/ld.so.conf").write_text(f"/{directory.removeprefix('usr/')}\n/opt/own\n")
        made = cls(path, libraries, shim, shim / "ldcache")
        made.inside("/sbin/ldconfig")
        made.give(DEBIAN, RED_HAT)
        return made

    def give(self, *folders: str) -> None:
        """The driver's libraries, as mounts would."""
        for folder in (DEBIAN, RED_HAT):
            for name in ("libcuda.so", "libnvidia-ml.so"):
                paths = self.path / folder / name, self.path / folder / f"{name}.1"
                for path in paths:
                    path.unlink(missing_ok=True)
                if folder in folders:
                    shutil.copy(self.shim / paths[1].name, paths[1])
                    paths[0].symlink_to(paths[1].name)

    @property
    def cache(self) -> Path:
        return self.path / "etc/ld.so.cache"

    def inside(self, *command: str) -> str:
        return run("chroot", self.path, *command)

    def enter(self, *names: str, root: str | None = None, config: str | None = None) -> str:
        """Run the hook as a container runtime does; what it says."""
        done = self.hooked((), *names, root=root, config=config)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def hooked(
        self, first: tuple[str, ...], *names: str, root: str | None = None, config: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the hook with these arguments before the others."""
        bundle = self.path.with_name("bundle")
        bundle.mkdir(exist_ok=True)
        # As a tenant would have it: what it brings to the document is text in it.
        noise = {"args": ['{"root": {"path": "/"}}', "\\", "\u2028\x01", '"']}
        spec = {
            "process": noise,
            "annotations": {"root": "x"},
            "root": {"path": root or str(self.path), "readonly": True},
        }
        (bundle / "config.json").write_text(json.dumps(spec) if config is None else config)
        state = json.dumps({"ociVersion": "1.0.2", "id": "x", "status": "created", "pid": 1, "bundle": str(bundle)})
        return subprocess.run(
            [*AS_ROOT, self.hook, *first, f"/{RED_HAT}", f"/{DEBIAN}", "--", *(names or NAMES)],
            input=state,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"ASAN_OPTIONS": "detect_leaks=0"},
        )

    def listed(self) -> list[str]:
        return self.inside("/sbin/ldconfig", "-p").splitlines()

    def opens(self, *names: str) -> list[str]:
        return self.inside("/bin/opens", *names).splitlines()


@pytest.fixture(params=[DEBIAN, RED_HAT], ids=["Debian", "RHEL"])
def root(tmp_path: Path, libraries: Libraries, request: pytest.FixtureRequest) -> Root:
    return Root.make(tmp_path / "root", request.param, libraries.shim)


@pytest.fixture
def debian(tmp_path: Path, libraries: Libraries) -> Root:
    return Root.make(tmp_path / "root", DEBIAN, libraries.shim)


def before_2_33(cache: bytes) -> bytes:
    """The cache as ldconfig wrote it before glibc 2.33, as in RHEL 8: an older one first, and no extensions."""
    count = struct.unpack_from("<I", cache, 20)[0]
    entries = [struct.unpack_from("<iIIIQ", cache, 48 + 24 * index) for index in range(count)]
    head = struct.pack("<11sxI", b"ld.so-1.7.0", count)
    head += b"".join(struct.pack("<iII", flags, key, value) for flags, key, value, _, _ in entries)
    new = bytearray(cache)
    new[28:36] = bytes(8)  # neither byte order nor extensions were told
    return head.ljust((len(head) + 7) & ~7, b"\0") + bytes(new)


@pytest.mark.parametrize("kind", ["new", "old", "compat"])
def test_the_cache_is_what_ldconfig_would_make_of_it(root: Root, kind: str) -> None:
    if kind == "old":
        shutil.rmtree(root.path / "opt/own/glibc-hwcaps")  # there were none
    root.give(str(root.libraries.relative_to(root.path)))
    root.inside("/sbin/ldconfig", "-c", "new" if kind == "old" else kind)
    if kind == "old":
        root.cache.write_bytes(before_2_33(root.cache.read_bytes()))
    expected = root.listed()
    root.give()
    root.inside("/sbin/ldconfig", "-c", "new" if kind == "old" else kind)
    if kind == "old":
        root.cache.write_bytes(before_2_33(root.cache.read_bytes()))
    root.give(DEBIAN, RED_HAT)
    before, own = root.listed(), root.opens("libown.so.2")
    assert not [line for line in before if "libcuda" in line]
    kept = root.cache.stat()
    said = root.enter()
    # ldconfig --format=compat writes extensions that count from elsewhere, which nobody asks of it.
    if kind == "compat" and "stays as it is" in said:
        assert root.listed() == before
        return
    assert (said, root.listed()) == ("", expected)
    directory = f"/{root.libraries.relative_to(root.path)}".removeprefix("/usr")
    assert root.opens("libcuda.so.1", "libnvidia-ml.so.1") == [
        f"{directory}/{name}.so.1" for name in ("libcuda", "libnvidia-ml")
    ]
    assert root.opens("libown.so.2") == own
    now = root.cache.stat()
    assert (now.st_uid, now.st_gid, stat.S_IMODE(now.st_mode)) == (kept.st_uid, kept.st_gid, 0o644)
    root.enter()
    assert root.listed() == expected
    assert sorted(path.name for path in root.cache.parent.iterdir()) == ["ld.so.cache", "ld.so.conf"]


def test_library_of_the_image_does_not_come_before_ours(debian: Root) -> None:
    for number in range(40):
        shutil.copy(debian.libraries / "libcuda.so.1", debian.path / f"opt/own/libcuda.so.{number}")
    (debian.libraries / "libcuda.so.1").rename(debian.path / "aside")
    debian.inside("/sbin/ldconfig")
    assert debian.opens("libcuda.so.1") == ["/opt/own/libcuda.so.1"]
    (debian.path / "aside").rename(debian.libraries / "libcuda.so.1")
    assert debian.enter() == ""
    assert [line for line in debian.listed() if "libcuda.so.1 " in line] == [
        "\tlibcuda.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libcuda.so.1"
    ]
    assert debian.opens("libcuda.so.1") == ["/lib/x86_64-linux-gnu/libcuda.so.1"]


def test_image_with_a_loader_and_no_cache_gets_one(debian: Root) -> None:
    for empty in (False, True):
        debian.cache.unlink()
        if empty:
            debian.cache.touch()
        assert debian.enter() == ""
        assert len([line for line in debian.listed() if "=>" in line]) == len(NAMES)
        assert debian.opens("libcuda.so.1") == [f"/{RED_HAT}/libcuda.so.1"]
    debian.cache.unlink()
    (debian.path / RED_HAT / "ld-linux-x86-64.so.2").unlink()
    assert debian.enter() == ""
    assert not debian.cache.exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"text",
        lambda data: data[:60],
        lambda data: data[:20] + b"\xff\xff\xff\x7f" + data[24:],
        lambda data: data[:28] + b"\x03" + data[29:],
        lambda data: data[:52] + b"\xff\xff\xff\xff" + data[56:],
        lambda data: data[:32] + b"\x30\0\0\0" + data[36:],
    ],
    ids=["text", "cut", "entries", "byte order", "name", "extensions"],
)
def test_a_cache_that_is_none_stays_and_the_container_starts(debian: Root, damage: object) -> None:
    assert callable(damage)
    data = damage(debian.cache.read_bytes())
    debian.cache.write_bytes(data)
    assert "stays as it is" in debian.enter()
    assert debian.cache.read_bytes() == data


@pytest.mark.attack
def test_nothing_beyond_the_containers_root_is_read_or_written(debian: Root, tmp_path: Path) -> None:
    data = debian.cache.read_bytes()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "ld.so.cache").write_bytes(data)
    debian.cache.unlink()
    for target in (outside / "ld.so.cache", Path("../../../../../../../..") / str(outside)[1:] / "ld.so.cache"):
        debian.cache.symlink_to(target)
        debian.enter()
        debian.cache.unlink()
    shutil.rmtree(debian.cache.parent)
    debian.cache.parent.symlink_to(outside)
    debian.enter()
    assert [(path.name, path.read_bytes()) for path in outside.iterdir()] == [("ld.so.cache", data)]


@pytest.mark.attack
def test_what_is_no_file_is_not_opened(debian: Root) -> None:
    debian.cache.unlink()
    os.mkfifo(debian.cache)
    debian.enter()  # an open would wait for a writer
    assert stat.S_ISFIFO(debian.cache.stat().st_mode)


@pytest.mark.attack
@pytest.mark.parametrize(
    ("root", "config", "said"),
    [
        ("/", None, "none of its own"),
        ("/proc/1/root", None, "none of its own"),
        ("/nowhere", None, "none of its own"),
        (None, '{"process": {"root": {"path": "/"}}}', "no root"),
        (None, '{"root": {"path": ""}}', "no root"),
        (None, '{"root": {"path": "a\\u0000b"}}', "none of its own"),
        (None, '{"root": [' * 10000, "no root"),
        (None, '{"root', "no root"),
        (None, "", "no root"),
    ],
)
def test_without_a_root_of_its_own_nothing_is_touched(
    debian: Root, root: str | None, config: str | None, said: str
) -> None:
    data = debian.cache.read_bytes()
    assert said in debian.enter(root=root, config=config)
    assert debian.cache.read_bytes() == data


@pytest.mark.attack
def test_damaged_caches_do_nothing_to_the_hook(debian: Root, tmp_path: Path) -> None:
    hook = tmp_path / "sanitized"
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"]
    subprocess.run(["gcc", "-std=gnu11", "-O1", *flags, NATIVE / "ldcache.c", "-o", hook], check=True)
    debian.hook = hook
    good, chance = debian.cache.read_bytes(), random.Random(7)
    for _ in range(150):
        data = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(len(data) & ~3) & ~3
            # Mostly where the numbers are.
            place = place if chance.random() < 0.2 else place % 320
            value = chance.choice(
                (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, len(data), len(data) - 4, chance.getrandbits(32))
            )
            data[place : place + 4] = value.to_bytes(4, "little")
        debian.cache.write_bytes(bytes(data[: chance.choice((len(data), chance.randrange(len(data))))]))
        said = debian.enter()
        assert said == "" or "stays as it is" in said, said


POLICY, WHOLE = "/etc/kube-accel/policy", "/etc/kube-accel/whole"
OTHERS = [{"destination": "/proc", "type": "proc", "source": "proc"}, {"destination": f"/{'long' * 40}"}]


@pytest.mark.parametrize(
    ("mounts", "says"),
    [
        ({POLICY: "/own"}, ""),
        ({POLICY: "/own", WHOLE: "/dev/null"}, "the container has a whole GPU beside a share of a GPU"),
        ({POLICY: "/another"}, "the container has another share beside a share of a GPU"),
        ({POLICY: f"/own{'x' * 5000}"}, "the container has another share"),
        ({}, "the container has another share"),
        (None, "no mounts in the bundle's config.json"),
    ],
)
def test_container_has_this_share_alone_or_does_not_start(
    debian: Root, mounts: dict[str, str] | None, says: str
) -> None:
    found = [{"options": ["ro"], "source": source, "destination": place} for place, source in (mounts or {}).items()]
    config = {"root": {"path": str(debian.path)}} | ({} if mounts is None else {"mounts": [*OTHERS, *found]})
    done = debian.hooked(("--only", "/own"), config=json.dumps(config))
    assert (done.returncode, says in done.stderr) == (1 if says else 0, True), done.stderr
    assert any("libcuda" in line for line in debian.listed()) is not bool(says)


def test_share_in_a_container_that_cannot_be_read_is_refused(debian: Root) -> None:
    for config in ("{}", "", '{"mounts": [7]}'):
        assert debian.hooked(("--only", "/own"), config=config).returncode == 1
