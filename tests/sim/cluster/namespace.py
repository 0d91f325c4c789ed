# SPDX-License-Identifier: Apache-2.0
"""A program in namespaces of its own, files mounted at their paths in a container: ``namespace.py SPEC PROGRAM ...``.

SPEC is a JSON file: ``work``, an empty directory, ``mounts``, rows of source, target and whether it is read-only, and
``user``, whether the program gets a user namespace too.
Needs no root where the kernel lets users have namespaces. A target that is not there yet makes its whole top directory
read-only, with all that is in it.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

_NEWNS, _NEWUSER = 0x00020000, 0x10000000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_FAILED = 125


@functools.cache
def forbidden() -> str:
    """Why this machine does not let us have such namespaces; empty when it does."""
    with tempfile.TemporaryDirectory() as work:
        source = Path(work, "source")
        source.touch()
        mounts = [(str(source), "/etc/sim-cluster-probe", True)]
        words = command(Path(work), mounts, ["test", "-e", "/etc/sim-cluster-probe"])
        done = subprocess.run(words, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"


def command(directory: Path, mounts: list[tuple[str, str, bool]], argv: list[str], *, user: bool = True) -> list[str]:
    """How to run a program so; ``directory`` is its own. Without a ``user`` namespace it takes root."""
    work = directory / "over"
    work.mkdir(exist_ok=True)
    spec = directory / "namespace.json"
    spec.write_text(json.dumps({"work": str(work), "mounts": mounts, "user": user}))
    return [sys.executable, "-I", "-S", __file__, str(spec), *argv]


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [None if text is None else text.encode() for text in (source, target, kind, data)]
    _call("mount", *encoded[:3], ctypes.c_ulong(flags), encoded[3])


def _enter(user: bool) -> None:
    uid, gid = os.geteuid(), os.getegid()
    _call("unshare", _NEWNS | (_NEWUSER if user else 0))
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    _mount("none", "/", None, _REC | _PRIVATE)


def _place(work: Path, mounts: list[tuple[str, str, bool]]) -> None:
    # Where a path leads is asked before anything hides it.
    placed = [(source, os.path.realpath(os.path.dirname(target)), target, ro) for source, target, ro in mounts]  # noqa: PTH120
    tops = set()
    targets = {target for _, _, target, _ in placed}
    for source, directory, target, _ in placed:
        if str(Path(target).parent) in targets or Path(directory, Path(target).name).exists():
            continue
        tops.add(Path(directory).parts[1])
        stub = work / directory.lstrip("/") / Path(target).name
        stub.parent.mkdir(parents=True, exist_ok=True)
        stub.mkdir(exist_ok=True) if Path(source).is_dir() else stub.touch()
    for top in sorted(tops):
        _mount("overlay", f"/{top}", "overlay", _RDONLY, f"lowerdir={work / top}:/{top}")
    for source, directory, target, read_only in placed:
        place = f"{directory}/{Path(target).name}"
        if str(Path(target).parent) in targets and not Path(place).exists():
            Path(place).touch()
        _mount(source, place, None, _BIND | _REC)
        if read_only:
            # What the source's own mount forbids must go on being forbidden.
            own = os.statvfs(place).f_flag & (_NOSUID | _NODEV | _NOEXEC)
            _mount(source, place, None, _BIND | _REMOUNT | _RDONLY | own)


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    try:
        _enter(spec["user"])
        _place(Path(spec["work"]), [tuple(row) for row in spec["mounts"]])
    except OSError as error:
        print(f"namespace: {error}", file=sys.stderr)
        sys.exit(_FAILED)
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        print(f'exec: "{sys.argv[2]}": {error.strerror}', file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main()
