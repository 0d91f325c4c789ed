# SPDX-License-Identifier: Apache-2.0
"""The process that cuts GPUs: ``python -m kube_accel.mig.worker <parent pid>``, a Task on stdin, its result on stdout.

A call into a sick driver may never return, so that it happens here. The process ends with its parent, so that no two of
them ever cut the same GPUs; the next one plans again from what is there.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import yaml

from kube_accel import exclusions
from kube_accel.mig import instances
from kube_accel.nvml.worker import die_with, private_pipes
from kube_accel.shared import mig_nvml
from kube_accel.shared.api_json import ODD
from kube_accel.shared.mig_geometry import VERSION
from kube_accel.shared.nvml_library import LIBRARY, NoAnswer


def main(parent: int) -> None:
    """Do one task."""
    die_with(parent)
    tasks, results = private_pipes()
    with results:
        results.write(json.dumps(_result(json.load(tasks))).encode())


def _result(task: dict[str, Any]) -> dict[str, Any]:
    """Return what ``mig_nvml.carry_out`` or ``instances`` says, or why nothing can be done.

    That is ``unavailable`` without NVML, and ``refused`` where the GPUs are as they were.
    """
    if "do" in task:
        return _of_instances(task)
    try:
        document = yaml.safe_load(task["text"])
    except (yaml.YAMLError, *ODD) as error:
        return {"refused": f"the mig-configs document, version {VERSION}, is not YAML: {error}"}
    try:
        excluded = exclusions.read(task["excluded"]) if task["excluded"] else ()
        return mig_nvml.carry_out(LIBRARY, document, task["config"], task["check"], excluded)
    except NoAnswer as error:
        return {"unavailable": str(error)}
    except ValueError as error:
        return {"refused": str(error)}


def _of_instances(task: dict[str, Any]) -> dict[str, Any]:
    try:
        excluded = exclusions.read(task["excluded"]) if task["excluded"] else ()
        return instances.carry_out(LIBRARY, task["do"], task["arguments"], excluded)
    except NoAnswer as error:
        return {"unavailable": str(error)}
    except ValueError as error:
        return {"refused": str(error)}


if __name__ == "__main__":
    main(int(sys.argv[1]))
