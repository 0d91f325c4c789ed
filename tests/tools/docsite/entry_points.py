# SPDX-License-Identifier: Apache-2.0
"""Leaves the entry point main of each role: ``python tests/tools/docsite/entry_points.py COLLECTION``, on a copy.

All entry points of a role take the same variables. A page of each would say the same up to nine times.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml


def leave_main(collection: Path) -> None:
    """Rewrite the argument specs below ``collection`` without other entry points than main."""
    for path in sorted(collection.glob("roles/*/meta/argument_specs.yml")):
        specs = yaml.safe_load(path.read_text())["argument_specs"]
        path.write_text(yaml.safe_dump({"argument_specs": {"main": specs["main"]}}, sort_keys=False))


if __name__ == "__main__":
    leave_main(Path(sys.argv[1]))
