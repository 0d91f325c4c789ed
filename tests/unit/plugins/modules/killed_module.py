# SPDX-License-Identifier: Apache-2.0
"""Runs a module that ends itself, as SIGKILL would, before one of the things it does to the host.

``<act> <module> <collections>``: the act's number, or its name and path. The module's arguments come on standard input,
as ever. The act it did not live to do is named on standard error.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Callable
from typing import Any

from ansible.module_utils import basic
from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionFinder

ACTS = ("write", "remove", "make_directory", "remove_directory", "run")


def main() -> None:
    chosen, name, collections = sys.argv[1:]
    _AnsibleCollectionFinder(paths=[collections])._install()
    from ansible_collections.accel.kubernetes.plugins.module_utils.host.machine import Host

    acts = 0

    def deadly(act: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def do(self: Host, *words: Any, **named: Any) -> Any:
            nonlocal acts
            acts += 1
            if chosen in (str(acts), f"{act} {words[0]}"):
                print(act, words[0], file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(self, *words, **named)

        return do

    for act in ACTS:
        setattr(Host, act, deadly(act, getattr(Host, act)))
    basic._ANSIBLE_PROFILE = "legacy"
    sys.argv = [name]
    runpy.run_module(f"ansible_collections.accel.kubernetes.plugins.modules.{name}", run_name="__main__")


if __name__ == "__main__":
    main()
