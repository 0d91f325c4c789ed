# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How k3s and rke2 read their settings. No I/O.

Both read ``config.yaml`` and then ``config.yaml.d/*.yaml`` in the order of their names. A key given again replaces the
value before, and one that ends with ``+`` adds to it (k3s, pkg/configfilearg). Their flags are read by urfave/cli.
"""

from __future__ import annotations

import posixpath
from typing import Any, Dict, List, Mapping, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.documents import yaml_text
from ansible_collections.accel.kubernetes.plugins.module_utils.host.command_line import Given, Start


def load(text: str, path: str) -> Dict[str, Any]:
    """Return the settings in a file. Raises YamlError."""
    if not any(line.strip() not in ("", "---") and not line.lstrip().startswith("#") for line in text.splitlines()):
        return {}
    data: Dict[str, Any] = yaml_text.load(text, path)
    return data


def merged(files: Mapping[str, Mapping[str, Any]]) -> Dict[str, Any]:
    """Return the settings in effect, from those of each file by path in the order in which they are read."""
    values: Dict[str, Any] = {}
    for settings in files.values():
        for key, value in settings.items():
            name = key[:-1] if key.endswith("+") else key
            if name != key and name in values:
                values[name] = listed(values[name]) + listed(value)
            else:
                values[name] = value
    return values


def rank(path: str) -> Tuple[bool, str]:
    """Return a key that sorts files of settings as they are read."""
    return ".d/" in path, posixpath.basename(path)


def listed(value: object) -> List[Any]:
    """Return a setting's values, of which it may have one that is no list."""
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]


def other_file(name: str, start: Start) -> "Tuple[str, Given] | None":
    """Return what makes the distribution read another main file of settings, and which; None when nothing does.

    Its variable comes before its flag, of which the first counts, whatever it stands behind.
    """
    variable = f"{name.upper()}_CONFIG_FILE"
    found = start.environment.get(variable)
    said = variable
    if found is None or not found.value:
        words = start.words
        found = None
        for position, word in enumerate(words):
            said, equals, value = word.value.partition("=")
            if said in ("--config", "-c"):
                following = words[position + 1].value if position + 1 < len(words) else ""
                found = Given(value if equals else following, word.path)
                break
    if found is None or posixpath.normpath(found.value or ".") in (".", f"/etc/rancher/{name}/config.yaml"):
        return None
    return said, found


def data_dir(name: str, start: Start, files: Mapping[str, Mapping[str, Any]]) -> "Given | None":
    """Return the distribution's configured data directory, None where there is none; ``files`` in the order of reading.

    Its flag comes before its settings, and those before its variable.
    """
    said = [
        (str(settings[key]), path) for path, settings in files.items() for key in ("data-dir", "d") if key in settings
    ]
    given = [value for _name, value in start.go_flags(("data-dir", "d"))]
    variable = [start.environment[key] for key in (f"{name.upper()}_DATA_DIR",) if key in start.environment]
    found = [*variable, *(Given(*each) for each in said), *given]
    return found[-1] if found and found[-1].value else None
