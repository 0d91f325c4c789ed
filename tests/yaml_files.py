# SPDX-License-Identifier: Apache-2.0
"""Files of YAML, read by libyaml: the roles and playbooks take PyYAML's own parser seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def document(path: Path) -> Any:
    """Return the one document of a file."""
    return yaml.load(path.read_text(), yaml.CSafeLoader)
