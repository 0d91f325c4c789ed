# SPDX-License-Identifier: Apache-2.0
"""What the planners of the role scheduler are asked, with the role's defaults and what a test gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler import role

DEFAULTS = yaml.safe_load((Path(__file__).parents[3] / "roles/scheduler/defaults/main.yml").read_text())
PLACES = ("microk8s", "k3s", "rke2", "manifest")
CONFIG = DEFAULTS["scheduler_config_path"]


def found(*names: str) -> dict[str, Any]:
    """What of a control plane is on the host."""
    return {"results": [{"item": {"name": name}, "stat": {"exists": name in names}} for name in PLACES]}


def answered(subject: str, *resources: dict[str, Any], **words: Any) -> dict[str, Any]:
    """The register of the task that asks the API server, with one answer."""
    return {"results": [{"item": {"subject": subject}, "resources": list(resources), **words}]}


class Asked:
    """A control plane with a bare manifest, in an inventory of nodes a and b that serve whole GPUs.

    Arguments are variables by name without ``scheduler_``, and ``seen``, ``hostvars``, ``groups``, ``host``.
    """

    def __init__(self, host: str = "cp", **given: Any) -> None:
        seen = {"places": found("manifest"), "proposal": {"changed": False}, **given.pop("seen", {})}
        self.hostvars = {"a": {}, "b": {"gpu_mode": "pgpu"}, **given.pop("hostvars", {})}
        self.groups = {"gpu_nodes": ["a", "b"], **given.pop("groups", {})}
        plain = {name: value for name, value in DEFAULTS.items() if not (isinstance(value, str) and "{{" in value)}
        options = plain | {
            "scheduler_image": "registry.example/kube-accel:1",
            "scheduler_python_packages": ["python3-ruamel.yaml"],
            "kube_accel_image_delivery": "import",
        }
        options |= {name if name.startswith("gpu_plugins_") else f"scheduler_{name}": given[name] for name in given}
        self.asked = {"host": host, "modes": "", "options": options, "seen": seen}

    def plan(self) -> dict[str, Any]:
        return role.scheduler_plan(self.asked, self.hostvars, self.groups)

    def refusals(self, **answers: Any) -> list[dict[str, str]]:
        asked = {**self.asked, "seen": {**self.asked["seen"], **answers}}
        return role.scheduler_refusals(asked, self.hostvars, self.groups, None)

    def objects(self, **answers: Any) -> dict[str, Any]:
        return role.scheduler_objects(self.asked, self.hostvars, self.groups, answers)

    def kubeadm(self) -> dict[str, Any]:
        return role.scheduler_kubeadm(self.asked, self.hostvars, self.groups, None)

    def leftovers(self, *there: dict[str, Any], files: Any = None) -> dict[str, Any]:
        swept = {"results": [{"resources": list(there)}, {"skipped": True}]}
        return role.scheduler_leftovers(self.asked, self.hostvars, self.groups, swept, files)
