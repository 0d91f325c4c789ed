# SPDX-License-Identifier: Apache-2.0
"""Simulated CUDA driver: ``build`` makes the library, ``requests`` is what a CUDA runtime asks it for at start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sim import library

HERE = Path(__file__).parent
NAMES = HERE.parents[2] / "roles/gpu_plugins/files/kube_accel/native/names/cuda.txt"
LIBRARY = "libcuda.so.1"
_COMMAND = (
    *("gcc", "-std=gnu11", "-O2", "-g", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread"),
    *("-Wall", "-Wextra", f"-Wl,-soname,{LIBRARY}", "-Wl,-Bsymbolic", f"-I{HERE}"),
)


@dataclass(frozen=True, slots=True)
class Request:
    """What cuGetProcAddress is asked, and the export whose address it has to answer with."""

    name: str
    version: int
    flags: int
    export: str


def requests() -> list[Request]:
    """What cudart 13.0 asks a driver for at its start, and what driver 580 answers."""
    return [Request(name, int(version), int(flags), export) for name, version, flags, export in _rows("requests.txt")]


def exports() -> tuple[list[str], list[str]]:
    """The names of functions and of variables that driver 580 exports, and of newer functions."""
    rows = _rows(str(NAMES))
    variables = [row[0] for row in rows if row[1:2] == ["data"]]
    return [row[0] for row in rows if row[0] not in variables], variables


def build(out_dir: Path, cflags: Sequence[str] = ()) -> Path:
    """Compiles the simulated driver into ``<out_dir>/libcuda.so.1`` and returns that path, as library.build says."""
    sources, headers = sorted(HERE.glob("*.c")), sorted(HERE.glob("*.h"))
    return library.build(out_dir, LIBRARY, [*_COMMAND, *cflags], sources, headers, {"exports.c": _exports_source()})


def _rows(name: str) -> list[list[str]]:
    lines = (HERE / name).read_text().splitlines()
    return [line.split() for line in lines if line and not line.startswith("#")]


def _exports_source() -> str:
    """Every export, weak: what no source defines is not supported. And the table resolve.c looks them up in."""
    functions, variables = exports()
    versions = dict(_rows("versions.txt"))
    public = '__attribute__((weak, visibility("default")))'
    rows = [(name, versions.get(name.removesuffix("_ptsz").removesuffix("_ptds"), "0")) for name in sorted(functions)]
    return "\n".join(
        [
            '#include "resolve.h"',
            *(f'{public} int {name}(void) {{ return unsupported("{name}"); }}' for name in functions),
            *(f"{public} long {name};" for name in variables),
            '#ifdef __x86_64__\n#define JUMP "jmp "\n#else\n#define JUMP "b "\n#endif',
            *(f'__asm__(".text\\nthunk_{name}: " JUMP "{name}");' for name in functions),
            *(f'extern char thunk_{name}[] __attribute__((visibility("hidden")));' for name in functions),
            "const struct export exports[] = {",
            *(f'    {{"{name}", (void *){name}, thunk_{name}, {version}}},' for name, version in rows),
            "};",
            "const int export_count = sizeof exports / sizeof *exports;",
            "",
        ]
    )
