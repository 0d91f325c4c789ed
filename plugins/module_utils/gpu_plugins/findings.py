# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong with a node that is to serve, and with its cluster, and what is well. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Sequence

from ..shared.finding import Finding
from ..shared.label_names import BENCHMARK
from ..shared.minimums import Versions, too_old, versions_of
from ..shared.modes import DRA_MODE
from ..shared.options import OptionReader
from ..shared.registers import mapping, mappings
from . import placing
from .cuda import cuda_findings
from .delivery import ENFORCEMENT_LABEL, INTERPOSED
from .dra import NodeSeen, served_twice
from .mig_toolkit import mig_toolkit
from .quotas import Quota, quotas

_LIMITED = ("compute", "utility")
"""Capabilities of the driver that a share limits."""


@dataclass(frozen=True)
class ClusterSeen:
    """What was seen of a cluster."""

    admission: Mapping[str, Any]
    """What becomes of admission policies."""
    network: Mapping[str, Any]
    """What becomes of network policies."""
    unfinished: Sequence[Mapping[str, str]] = ()
    """Workloads that a rollout has neither kept nor put back."""
    quotas: Mapping[str, Any] = field(default_factory=dict)
    """The result for ResourceQuotas."""
    definitions_found: Mapping[str, Any] = field(default_factory=dict)
    """The result of ``cf_crl_info``."""
    definitions_planned: Mapping[str, Any] = field(default_factory=dict)
    """The result of ``cf_crl`` in check mode."""


@dataclass(frozen=True)
class Seen:
    """What was seen of a node and its cluster, and what is asked for."""

    name: str
    """The node's."""
    options: Mapping[str, Any]
    """Variables of the role, by name."""
    nvml: Mapping[str, Any]
    """Facts of its GPUs."""
    node: Mapping[str, Any]
    """How it is, as ``NodeState`` has it."""
    offer: Mapping[str, Any]
    plugin: str
    """Namespace and name of the DaemonSet that is to serve it."""
    accounts: Mapping[str, Any] = field(default_factory=dict)
    """The result of ``account_mount_info``."""
    accounts_plan: Mapping[str, Any] = field(default_factory=dict)
    cuda: Mapping[str, Any] = field(default_factory=dict)
    """The results of ``cuda_compat``."""
    cluster: Mapping[str, Any] = field(default_factory=dict)
    """What a ``ClusterSeen`` is made of; empty where another host tells of the cluster."""
    toolkit: Mapping[str, Any] = field(default_factory=dict)
    """The result of ``nvidia_runtime`` in check mode."""
    slices: Mapping[str, Any] = field(default_factory=dict)
    """The result for ResourceSlices."""
    placing: Mapping[str, Any] = field(default_factory=dict)
    """What a ``PlacingSeen`` is made of, without the ``runtime``."""


@dataclass(frozen=True)
class Findings:
    """What is wrong, and what is well."""

    wrong: List[Finding]
    passed: List[Finding]
    """One for each thing that was looked at and of which nothing was found."""
    quotas: List[Quota]


def findings(seen: Seen) -> Findings:
    """Return what is wrong, and what is well. Raise ValueError if an option has another type than it is to have."""
    capabilities = [word for word in seen.options["gpu_plugins_share_capabilities"] if word not in _LIMITED]
    wrong = [*_gpus(seen), *_versions(seen), *_node(seen), *_serving(seen), *_shares(seen, capabilities)]
    wrong += cuda_findings(seen.cuda, seen.name)
    placed = _placed(seen)
    wrong += [finding for finding in placed if finding.verdict == "unstable"]
    passed = _node_words(seen)
    found: List[Quota] = []
    if seen.cluster:
        cluster = ClusterSeen(**seen.cluster)
        found = quotas(cluster.quotas)
        wrong += _cluster(cluster, found, seen.options)
        passed.update(_cluster_words(cluster))
    told = {finding.what for finding in wrong}
    well = [Finding("ok", what, words) for what, words in passed.items() if what not in told]
    return Findings(wrong, [*well, *(finding for finding in placed if finding not in wrong)], found)


def _placed(seen: Seen) -> List[Finding]:
    """Return what kubelet and the runtime do with what the plugin tells them; nothing where nobody looked."""
    if not seen.placing or seen.node["target"] == DRA_MODE:
        return []
    looked = placing.PlacingSeen(**seen.placing, runtime=seen.toolkit)
    found = [placing.topology(looked, mappings(seen.nvml.get("gpus")))]
    return [*found, placing.runtime_class(looked)] if seen.node["target"] == "pgpu" else found


def _gpus(seen: Seen) -> Iterator[Finding]:
    gpus = mappings(seen.nvml.get("gpus"))
    if not seen.nvml["available"]:
        yield Finding(
            "blocked",
            "driver",
            f"{seen.nvml['reason']}.",
            "Run site.yml with --tags driver, and read dmesg on the host.",
        )
    elif not gpus:
        remedy = "Check lspci and dmesg on the host, or remove the host from the group gpu_nodes."
        yield Finding("blocked", "driver", "The driver lists no GPU.", remedy)
    sick = [f"GPU {gpu['index']}: {gpu['reason']}" for gpu in gpus if gpu["health"] != "healthy"]
    if sick:
        remedy = "Reset or replace the GPU. Until then, the plugin does not offer it."
        yield Finding("unstable", "health", f"Unhealthy GPUs: {'; '.join(sick)}.", remedy)


def _versions(seen: Seen) -> Iterator[Finding]:
    yield from too_old(_found_versions(seen))
    yield from mig_toolkit(seen.options, seen.node, seen.toolkit)


def _found_versions(seen: Seen) -> Versions:
    driver = seen.nvml.get("driver_version")
    return versions_of(mapping(seen.node["object"]), driver, seen.toolkit.get("toolkit_version"))


def _node(seen: Seen) -> Iterator[Finding]:
    node, name = seen.node, seen.name
    if not node["object"]:
        remedy = "Join the host, or set gpu_plugins_node_name to its name in the cluster."
        yield Finding("blocked", "node", f"The cluster has no node {name}.", remedy)
    if node["conditions"].get("Ready", "True") != "True":
        remedy = f"See kubectl describe node {name}, and kubelet's log on the host."
        yield Finding("blocked", "node", "The node is not ready.", remedy)
    if node["unschedulable"]:
        yield _cordon(seen)
    if BENCHMARK in node["annotations"]:
        remedy = (
            "Once none runs, run benchmark.yml with benchmark_layouts, which restores the node first. If the node "
            f"is already right, run kubectl annotate node {name} {BENCHMARK}- instead."
        )
        yield Finding("unstable", "node", "A benchmark switches the node, or was killed meanwhile.", remedy)
    if node["problems"]:
        yield Finding("unstable", "node", ". ".join(node["problems"]))


def _cordon(seen: Seen) -> Finding:
    left_for, ours = seen.node["left_for"], seen.node["cordoned"]
    found = f"The node is cordoned{' by us' if ours else ''}{f', to become {left_for}' if left_for else ''}."
    if left_for:
        remedy = (
            f"To continue, run switch_mode.yml with gpu_mode={left_for} again. Or run site.yml, which returns the"
            f" node to {seen.options['gpu_plugins_mode']}."
        )
    elif ours:
        remedy = (
            "To continue, run the playbook that stopped there again (upgrade_driver.yml, migrate.yml, or site.yml)."
        )
    else:
        remedy = f"When the node may have pods again, run kubectl uncordon {seen.name}."
    return Finding("unstable", "node", found, remedy)


def _serving(seen: Seen) -> Iterator[Finding]:
    serves, target = seen.node["serves"], seen.node["target"]
    if seen.node["object"] and serves != target:
        found = f"The node serves {serves or 'no mode'}, but should serve {target}."
        if seen.node["cgpu_cleared"]:
            remedy = (
                f"The label cgpu of the node was cleared. Run kubectl label node {seen.name} --overwrite cgpu=true, or "
                "set gpu_mode to pgpu: site.yml sets the label again."
            )
            yield Finding("unstable", "mode", found, remedy)
        else:
            yield Finding("blocked", "mode", found, "Run site.yml, or set gpu_mode to what the node serves.")
    if serves == target and seen.offer["missing"]:
        remedy = f"See the pod of DaemonSet {seen.plugin} on the node, and its log."
        yield Finding("blocked", "offer", f"The node offers {', '.join(seen.offer['missing'])}.", remedy)
    # What a pod on the node gets, another may get as well.
    for refusal in served_twice(NodeSeen(seen.name, seen.node, {}, seen.slices, seen.options)):
        yield Finding("blocked", "offer", refusal.message)


def _shares(seen: Seen, unlimited: Sequence[str]) -> Iterator[Finding]:
    if seen.accounts_plan["waits"] or seen.accounts_plan["due"]:
        remedy = "" if seen.accounts_plan["waits"] else "Run site.yml with --tags gpu_plugins."
        yield Finding("unstable", "accounts", str(seen.accounts.get("says", "")), remedy)
    if seen.node["shares"] and unlimited:
        found = f"Shares have {', '.join(unlimited)} of the driver. Nothing limits their memory and GPU time."
        remedy = "Remove them from gpu_plugins_share_capabilities, and give programs that need them whole GPUs."
        yield Finding("unstable", "capabilities", found, remedy)


def _cluster(seen: ClusterSeen, found: Sequence[Quota], options: Mapping[str, Any]) -> Iterator[Finding]:
    if seen.unfinished:
        yield Finding(
            "unstable",
            "rollout",
            f"Running or interrupted: {', '.join(each['says'] for each in seen.unfinished)}.",
            "If no rollout runs, run rollout.yml again. With the same image and settings, it continues. With the"
            " previous ones, it rolls back.",
        )
    spent = [f"{quota.namespace}: {quota.resource}" for quota in found if quota.spent]
    if spent:
        remedy = "Raise the namespace's ResourceQuota, or remove pods."
        yield Finding("unstable", "quota", f"Used up: {', '.join(spent)}.", remedy)
    differing = seen.definitions_planned.get("written")
    if differing:
        words = f"Definitions differ from gpu_plugins_cf_crl_definitions: {', '.join(differing)}."
        yield Finding("blocked", "cf-crl", words, "Run site.yml with --tags gpu_plugins.")
    problems: Mapping[str, Sequence[str]] = mapping(seen.definitions_found.get("problems"))
    if problems:
        reader = OptionReader(options)
        enabled = reader.boolean("gpu_plugins_cf_crl_enabled")
        reader.require_values()
        words = " ".join(f"{problem}." for each in problems.values() for problem in each)
        remedy = f"Correct or remove {', '.join(problems)} in kube-public."
        yield Finding("blocked" if enabled else "unstable", "cf-crl", words, remedy)
    yield from (Finding(**each) for each in (*seen.admission["findings"], *seen.network["findings"]))


def _node_words(seen: Seen) -> Dict[str, str]:
    """Return what is said of each thing that was looked at, where it is well."""
    gpus = mappings(seen.nvml.get("gpus"))
    left_alone = ", ".join(str(gpu["index"]) for gpu in mappings(seen.nvml.get("excluded")))
    offered = (f"{amount} {resource}" for resource, amount in seen.offer["found"].items())
    programs = [str(program["name"]) for program in seen.options["gpu_plugins_cuda_programs"]]
    return {
        "driver": f"{seen.nvml.get('driver_version') or ''}, CUDA {seen.nvml.get('cuda_version') or ''}",
        "versions": f"{_found_versions(seen).words() or 'No GPU could be read'}.",
        "health": f"All {len(gpus)} GPUs are healthy.{f' Excluded: GPU {left_alone}.' if left_alone else ''}",
        "node": "The node is ready.",
        "mode": seen.node["serves"],
        "offer": ", ".join(offered) or "Nothing.",
        "accounts": str(seen.accounts.get("says", "Whole GPUs need none.")),
        "capabilities": _capabilities(seen),
        **({"cuda": ", ".join(programs)} if programs else {}),
    }


def _capabilities(seen: Seen) -> str:
    if not seen.node["shares"]:
        return "Whole GPUs have all of the driver."
    if seen.node["labels"].get(ENFORCEMENT_LABEL, INTERPOSED[0]) in INTERPOSED:
        return (
            "Shares have CUDA and NVML, which are limited. They do not have OpenCL, Vulkan, OpenGL, OptiX, NVENC, and "
            "NVDEC."
        )
    return "NVIDIA's runtime brings what NVIDIA_DRIVER_CAPABILITIES of a container names."


def _cluster_words(seen: ClusterSeen) -> Dict[str, str]:
    expected = ", ".join(seen.admission["expected"])
    return {
        "rollout": "None was left unfinished.",
        "quota": "None is used up.",
        "cf-crl": "The definitions can be read.",
        "admission": f"The API server denies by {expected}." if expected else "No policy is wanted.",
        "network": " ".join(seen.network["says"]) or "No policy is wanted.",
    }
