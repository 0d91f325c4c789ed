# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads what the role scheduler is asked for, and what it saw: its variables and the results of its tasks. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Mapping, Sequence, Tuple

from ..shared.options import OptionReader
from ..shared.refusal import Refusal

_LARGEST_PORT = 65535
_LARGEST_WEIGHT = 1_000_000
"""Far above what outweighs all scores of kube-scheduler, and far below what overflows them."""
_TOLERATIONS = [{"key": key, "operator": "Exists"} for key in ("nvidia.com/gpu", "node-role.kubernetes.io/gpu")]
"""What the plugins' pods tolerate where the inventory does not say."""


@dataclass(frozen=True)
class Options:
    """The variables of the role on one host. Paths are the host's own."""

    layout: str
    policy: str
    policy_weight: int
    image: str
    manage_whole_gpus: bool
    extenders: Sequence[Mapping[str, Any]]
    binpack_resources: Sequence[Mapping[str, Any]]
    mounts: Sequence[str]
    extender_port: int
    metrics_port: int
    pki_dir: str
    pki_renew_days: int
    pki_packages: Sequence[str]
    python_packages: Sequence[str]
    cluster_ca_cert: str
    cluster_ca_key: str
    secondary_image: str
    admission_extender: bool
    admission_pods: bool
    admission_schedulers: Sequence[str]
    network_policy: bool
    network_peers: object
    """As it was given: the planner of NetworkPolicies says what is wrong with it."""
    quota: Mapping[str, Any]
    manifest_path: str
    config_path: str
    host_root: str
    """Where the tasks see the host's file system, without a slash at its end."""
    unsupported: Sequence[Mapping[str, Any]]
    image_imported: bool
    """Whether the run assembles an image and imports it on hosts, so that no registry has it."""
    tolerations: Sequence[Mapping[str, Any]]
    """What the plugins' pods tolerate."""
    kubectl_plugin: bool
    """Whether the host gets the command ``kubectl inspect gpu``."""
    kubectl_plugin_dir: str
    """Directory on the host, without a slash at its end."""
    removing: bool
    """Whether all that is ours is to go, whatever the variables ask for."""


def read_options(values: Mapping[str, Any]) -> Tuple[Options, List[Refusal]]:
    """Return the options that variables give, by their names, and a refusal for each value of another type."""
    read = OptionReader(values)
    options = Options(
        layout=read.text("scheduler_layout"),
        policy=read.text("scheduler_policy"),
        policy_weight=read.number("scheduler_policy_weight", 1, _LARGEST_WEIGHT),
        image=read.text("scheduler_image"),
        manage_whole_gpus=read.boolean("scheduler_manage_whole_gpus"),
        extenders=read.mappings("scheduler_extenders"),
        binpack_resources=read.mappings("scheduler_binpack_resources"),
        mounts=read.words("scheduler_mounts"),
        extender_port=read.number("scheduler_extender_port", 1, _LARGEST_PORT),
        metrics_port=read.number("scheduler_metrics_port", 0, _LARGEST_PORT),
        pki_dir=read.text("scheduler_pki_dir"),
        pki_renew_days=read.number("scheduler_pki_renew_days", 0, 36500),
        pki_packages=read.words("scheduler_pki_packages"),
        python_packages=read.words("scheduler_python_packages"),
        cluster_ca_cert=read.text("scheduler_cluster_ca_cert"),
        cluster_ca_key=read.text("scheduler_cluster_ca_key"),
        secondary_image=read.text("scheduler_secondary_image"),
        admission_extender=read.boolean("scheduler_admission_extender_enabled"),
        admission_pods=read.boolean("scheduler_admission_pods_enabled"),
        admission_schedulers=read.words("scheduler_admission_scheduler_names"),
        network_policy=read.boolean("scheduler_network_policy_enabled"),
        network_peers=values.get("scheduler_network_policy_from"),
        quota=read.mapping("scheduler_quota"),
        manifest_path=read.text("scheduler_manifest_path"),
        config_path=read.text("scheduler_config_path"),
        host_root=without_slash(read.text("scheduler_host_root")),
        unsupported=read.mappings("scheduler_unsupported"),
        image_imported=bool(values.get("kube_accel_image_assemble"))
        and read.text("kube_accel_image_delivery") == "import",
        tolerations=_TOLERATIONS
        if values.get("gpu_plugins_tolerations") == ""
        else read.mappings("gpu_plugins_tolerations"),
        kubectl_plugin=read.boolean("scheduler_kubectl_plugin_enabled"),
        kubectl_plugin_dir=without_slash(read.text("scheduler_kubectl_plugin_dir")),
        removing=read.boolean("scheduler_removing"),
    )
    return options, read.refusals


def without_slash(path: str) -> str:
    """Return a path without one slash at its end."""
    return path[:-1] if path.endswith("/") else path
