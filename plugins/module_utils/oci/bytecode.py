# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Byte code for the Python of an image, made by the same Python here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.oci.image import FILE, Content, Entry, Tree
from ansible_collections.accel.kubernetes.plugins.module_utils.oci.python_tree import Python, cache_path

# Unchecked: nothing in an image changes, so there is nothing to compare at each start. What does not compile is not
# meant to be imported.
SCRIPT = """
import json, py_compile, sys
for source, cache, name in json.load(sys.stdin):
    try:
        py_compile.compile(source, cache, name, True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    except (py_compile.PyCompileError, ValueError, RecursionError):
        pass
"""


def interpreter(python: Python) -> str | None:
    """Return an interpreter of this machine whose byte code the image's accepts, None when there is none."""
    if sys.implementation.cache_tag == python.tag:
        return sys.executable
    return shutil.which(f"python3.{python.minor}")


def compile_all(command: str, tree: Tree, paths: Sequence[str], python: Python, directory: str) -> Tree:
    """Byte code of modules in a tree. ``directory`` is for intermediate files. Raises CalledProcessError."""
    jobs = []
    for number, path in enumerate(paths):
        source = os.path.join(directory, f"{number}.py")
        with open(source, "wb") as handle:
            handle.write(tree[path].content.read())
        jobs.append((source, f"{source}c", f"/{path}"))
    # A process of its own with fixed hashes: what else a process has loaded shows in the byte code it writes.
    subprocess.run(
        [command, "-S", "-s", "-c", SCRIPT],
        input=json.dumps(jobs).encode(),
        env={"PYTHONHASHSEED": "0", "LANG": "C.UTF-8"},
        capture_output=True,
        check=True,
    )
    compiled: Tree = {}
    for source, cache, name in jobs:
        os.unlink(source)
        if os.path.exists(cache):
            with open(cache, "rb") as handle:
                entry = Entry(FILE, 0o644, content=Content.of(handle.read()))
            compiled[cache_path(name[1:], python.tag)] = entry
    return compiled
