# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where hosts of one cluster disagree on variables that its objects are made of. Pure."""

from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

from ..shared.plain import plain

PREFIX = "gpu_plugins_"
_CLUSTER = (f"{PREFIX}kubeconfig", f"{PREFIX}context")
_MOST_NAMED = 3
_COMMON = (
    *("pgpu_enabled", "vgpu_enabled", "mps_enabled", "cgpu_enabled", "namespace", "runtime_class", "priority_class"),
    *("tolerations", "resources", "image_pull_policy", "image_pull_secrets", "log_level", "takeover", "kubelet_dir"),
    *("state_dir", "driver_root", "cdi_dir", "kernel_logs", "device_list_strategy", "mig_strategy", "mig_label"),
    *("configs", "default_config", "enforcement", "allow_unenforced", "context_overhead_mib", "account_abuse"),
    *("dra_extended_resource", "dra_shares", "dra_mig_offers"),
    *("share_capabilities", "disable_healthchecks", "enable_healthchecks", "metrics_port", "metrics_enabled"),
    *("metrics_interval", "metrics_aliases", "metrics_profiling", "metrics_pending", "cf_crl_enabled"),
    *("cf_crl_definitions", "admission_enabled", "network_policy_enabled", "network_policy_from"),
)
"""What objects of the whole cluster are made of: the first host's would be everybody's. What a node has of its own, and
what is said by ``-e`` or worked out while a play runs, is not here."""
_EXPORTER = tuple(f"dcgm_exporter_{name}" for name in ("enabled", "image", "port", "fields", "resources"))
_CUTTING = ("mig_configs", "drain", "drain_force", "drain_timeout")


def common_names(assembled: bool, mig_labelled: bool) -> List[str]:
    """Return the variables of which a cluster has one value.

    An image that is ``assembled`` is named by the run. How GPUs are cut is common where plugins do it by a label.
    """
    names = [*_COMMON, *(() if assembled else ("image",)), *(_CUTTING if mig_labelled else ())]
    return [*(PREFIX + name for name in names), *_EXPORTER]


def disagreements(
    hostvars: Mapping[str, Any], host: str, hosts: Sequence[str], names: Sequence[str], defaults: Mapping[str, Any]
) -> List[str]:
    """Return a sentence for each variable of which ``hosts`` of the cluster of ``host`` have other values than it has.

    ``defaults`` are the role's. A value of another type that is written alike is the same.
    """
    here = hostvars[host]
    differing: Dict[str, List[str]] = {}
    for other in hosts:
        there = hostvars[other]
        if other != host and _cluster(there) == _cluster(here):
            for name in _differing(here, there, names, defaults):
                differing.setdefault(name, []).append(other)
    return [f"{name} of {_named(others)} differs from that of {host}" for name, others in differing.items()]


def _cluster(host: Mapping[str, Any]) -> Tuple[str, ...]:
    return tuple(str(host.get(name) or "") for name in _CLUSTER)


def _differing(
    here: Mapping[str, Any], there: Mapping[str, Any], names: Sequence[str], defaults: Mapping[str, Any]
) -> Iterator[str]:
    for name in names:
        if name in here or name in there:
            written = [_written(host[name] if name in host else defaults.get(name)) for host in (here, there)]
            if written[0] != written[1]:
                yield name


def _written(value: object) -> str:
    return json.dumps(plain(value), sort_keys=True, default=str).strip('"').lower()


def _named(hosts: Sequence[str]) -> str:
    more = len(hosts) - _MOST_NAMED
    return ", ".join(hosts[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
