# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.kubectl_plugin``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: kubectl_plugin
short_description: Plan the changes to the commands kubectl inspect gpu and kubectl inspect cgpu on a host
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Makes each command of the collection's own Python modules, as one file that needs nothing but Python.
  - A file that the role did not write stays as it is.
extends_documentation_fragment:
  - accel.kubernetes.scheduler_asked
options:
  found:
    description: Result of M(ansible.builtin.slurp) in a loop over the paths of the commands.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Report where the commands are
  ansible.builtin.debug:
    msg: "{{ __scheduler_asked | accel.kubernetes.kubectl_plugin(hostvars, groups) | map(attribute='path') }}"
"""

RETURN = r"""
_value:
  description: As the class C(Command) of the collection's C(module_utils/scheduler/kubectl_plugin.py) describes.
  type: list
  elements: dict
"""

import ast
from functools import lru_cache
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.kubectl_plugin import ENTRY
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.role import scheduler_commands

_PACKAGE = "kube_accel"
_ROOT = Path(__file__).parents[2] / "roles/gpu_plugins/files/kube_accel/src"


def kubectl_plugin(
    asked: Mapping[str, Any],
    hostvars: Mapping[str, Mapping[str, Any]],
    groups: Mapping[str, Sequence[str]],
    found: object = None,
) -> List[Dict[str, str]]:
    """Return what becomes of each command."""
    return list(scheduler_commands(asked, hostvars, groups, found, sources()))


@lru_cache(1)
def sources() -> Mapping[str, str]:
    """Return the texts of the modules that the commands need, by name."""
    texts: Dict[str, str] = {}
    names = [ENTRY]
    while names:
        name = names.pop()
        path = _file(name)
        if name and name not in texts and path is not None:
            texts[name] = path.read_text(encoding="utf-8")
            package = name if path.name == "__init__.py" else name.rpartition(".")[0]
            names += [name.rpartition(".")[0], *_imported(texts[name], package)]
    return dict(sorted(texts.items()))


def _file(name: str) -> "Path | None":
    place = _ROOT.joinpath(*name.split("."))
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


def _imported(text: str, package: str) -> Iterator[str]:
    """Yield what a module of a package imports of ours; some of it may be no module."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = ".".join(parts[: len(parts) + 1 - node.level]) if node.level else ""
            module = ".".join(part for part in (above, node.module) if part)
            found = [module, *(f"{module}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (name for name in found if name.split(".")[0] == _PACKAGE)


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the functions by their names."""
        return {"kubectl_plugin": kubectl_plugin}
