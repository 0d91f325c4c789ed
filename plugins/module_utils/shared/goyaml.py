# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""YAML as Go programs read it (gopkg.in/yaml.v2, resolve.go), where PyYAML takes plain words for something else. Pure.

``1:0`` is a text, not sixty; ``1e3`` and ``0o17`` are numbers; ``y`` and ``n`` are booleans; dates are texts; what
follows the first document is not read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .api_json import ODD

if TYPE_CHECKING:
    import yaml

_BOOLEANS = {"y": True, "yes": True, "true": True, "on": True, "n": False, "no": False, "false": False, "off": False}
_RESOLVED = {
    "bool": r"(?:y|Y|yes|Yes|YES|n|N|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)",
    "int": r"[-+]?(?:0[bB][01_]+|0[oO]?[0-7_]+|0[xX][0-9a-fA-F_]+|0|[1-9][0-9_]*)",
    "float": r"[-+]?(?:(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)",
    "null": r"(?:~|null|Null|NULL|)",
    "merge": r"<<",
}
_OCTAL = re.compile(r"([-+]?)0[oO]?([0-7]+)")


def load(text: str) -> object:
    """Return the first document of ``text``; None where there is none. Raises ValueError."""
    # Loaded here: a plugin without a configuration needs no YAML.
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_yaml_bool(self, node: yaml.ScalarNode) -> bool:
            return _BOOLEANS[str(self.construct_scalar(node)).lower()]

        def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
            return _number(str(self.construct_scalar(node)))

    Loader.yaml_implicit_resolvers = {}
    for tag, pattern in _RESOLVED.items():
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"(?:{pattern})$"), None)
    Loader.add_constructor("tag:yaml.org,2002:bool", Loader.construct_yaml_bool)
    Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)
    try:
        return next(yaml.load_all(text, Loader=Loader), None)
    except (yaml.YAMLError, *ODD) as error:
        raise ValueError(f"not YAML: {' '.join((str(error) if error.args else repr(error)).split())}") from error


def _number(text: str) -> int:
    digits = text.replace("_", "")
    octal = _OCTAL.fullmatch(digits)
    return int(octal[1] + octal[2], 8) if octal else int(digits, 0)
