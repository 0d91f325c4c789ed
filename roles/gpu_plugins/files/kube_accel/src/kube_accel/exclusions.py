# SPDX-License-Identifier: Apache-2.0
"""The node's list of GPUs that the daemons leave alone, a JSON file in the plugin's state directory."""

from __future__ import annotations

import json

from kube_accel.shared.gpu_exclusion import Exclusion, parse

FILE = "excluded-gpus.json"


def read(path: str) -> tuple[Exclusion, ...]:
    """Return what the list says; nothing without a file. Raises ValueError with file and cause."""
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 -- the NVML worker does without pathlib
            return parse(json.load(file))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, RecursionError) as error:
        remedy = "correct gpu_plugins_excluded_gpus and run the role"
        raise ValueError(f"{path} cannot be used: {error}; {remedy}") from error
