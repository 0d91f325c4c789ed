# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What cannot work on a node, by what was asked for and what was seen there, before anything is touched. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Iterable, Iterator, List, Mapping, Sequence

from ..kube_accel_image.plan import without_interposer
from ..shared.minimums import too_old, versions_of
from ..shared.modes import DRA_MODE, WHOLE_MODE
from ..shared.options import OptionReader
from ..shared.refusal import Refusal, messages
from .cuda import cuda_findings
from .dra import NodeSeen, node_refusals
from .mig_toolkit import mig_toolkit
from .taint import read_taint

_CONFIG_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_NEED_INTERPOSER = (("vgpu", "cgpu"), ("auto", "interposer"))
"""Modes, and ways of enforcement, without shares where the image has no interposer."""
_LISTS = (
    "gpu_plugins_device_list_strategy",
    "gpu_plugins_tolerations",
    "gpu_plugins_image_pull_secrets",
    "gpu_plugins_kernel_logs",
    "gpu_plugins_share_capabilities",
    "gpu_plugins_network_policy_from",
    "gpu_plugins_excluded_gpus",
    "gpu_plugins_cuda_programs",
)
"""Variables in which a text would be taken apart into letters."""


@dataclass(frozen=True)
class Seen:
    """What was seen of a host and a cluster, and what is asked for."""

    host: str
    name: str
    """The node's."""
    options: Mapping[str, Any]
    """Variables of the role, by name."""
    modes: Sequence[str]
    device_plugin_dir: str
    kubelet_found: bool
    """Whether that directory is there."""
    node: Mapping[str, Any]
    """How the node is, as ``NodeState`` has it."""
    offer: Mapping[str, Any]
    cluster: Mapping[str, Any]
    admission: Mapping[str, Any]
    network: Mapping[str, Any]
    taint: Mapping[str, Any]
    evacuation: Mapping[str, Any]
    tells_of_cluster: bool = True
    """Whether this host warns of what is the cluster's."""
    image_made: str = ""
    """The image that this run has assembled; empty if it has not."""
    cuda: Mapping[str, Any] = field(default_factory=dict)
    """The results of ``cuda_compat``."""
    driver: str = ""
    """The version of the driver that stays; empty where there is none, or this run brings one."""
    toolkit: Mapping[str, Any] = field(default_factory=dict)
    """The result of ``nvidia_runtime`` in check mode."""
    device_classes: Mapping[str, Any] = field(default_factory=dict)
    """The result for DeviceClasses."""
    slices: Mapping[str, Any] = field(default_factory=dict)
    """The result for ResourceSlices."""
    leaving: str = ""
    """Another DRA driver that this run takes off the node."""
    plugin_leaves: bool = False
    """Whether this run takes another device plugin off the node."""
    dra: Mapping[str, Any] = field(default_factory=dict)
    """What the cluster is to have for nodes of mode dra."""


@dataclass(frozen=True)
class Preflight:
    """What cannot work."""

    refusals: List[Refusal]
    words: str
    """All of them as one text."""
    warnings: List[str]
    """What works less well than it could."""


def preflight(seen: Seen) -> Preflight:
    """Return what cannot work. Raise ValueError if an option has another type than it is to have."""
    options = OptionReader(seen.options)
    names = ("takeover", "extender_required", "allow_unenforced")
    agreed = {name: options.boolean(f"gpu_plugins_{name}") for name in names}
    admission_enabled = options.boolean("gpu_plugins_admission_enabled")
    options.require_values()
    groups: Iterable[Iterator[Refusal]] = (
        _values(seen),
        _configurations(seen),
        _image(seen, agreed["allow_unenforced"]),
        _host(seen),
        _versions(seen),
        node_refusals(_of_node(seen)),
        _peers(seen) if not agreed["takeover"] else iter(()),
        _node(seen, agreed["extender_required"]),
    )
    refusals = [refusal for group in groups for refusal in group]
    refusals += [Refusal(each["code"], each["message"]) for each in seen.evacuation["refusals"]]
    warnings = list(_warnings(seen, admission_enabled, agreed["extender_required"]))
    return Preflight(refusals, messages(refusals), warnings)


def _of_node(seen: Seen) -> NodeSeen:
    return NodeSeen(
        seen.name, seen.node, seen.device_classes, seen.slices, seen.options, seen.leaving, seen.plugin_leaves
    )


def _values(seen: Seen) -> Iterator[Refusal]:
    options, disabled, target = seen.options, seen.cluster["disabled_modes"], seen.node["target"]
    texts = [name for name in _LISTS if isinstance(options[name], str)]
    if texts:
        yield Refusal(
            "text_for_list",
            f"These variables must be lists, but are text: {', '.join(texts)}; write {texts[0]}: [first, second] in"
            " the inventory, or pass a list in JSON to -e.",
        )
    if seen.network["problems"]:
        yield Refusal("network_policy_peers", " ".join(seen.network["problems"]))
    if options["gpu_plugins_mode"] not in seen.modes:
        yield Refusal(
            "unknown_mode", f"gpu_mode is '{options['gpu_plugins_mode']}'; set it to one of {', '.join(seen.modes)}."
        )
    if target in disabled:
        others = " or ".join(mode for mode in seen.modes if mode not in disabled)
        yield Refusal(
            "disabled_mode",
            f"Node '{seen.name}' should serve mode {target}, but gpu_plugins_{target}_enabled is false; set it to"
            f" true, or set gpu_mode to {others}.",
        )
    if not 1 <= _whole_number(options["gpu_plugins_metrics_interval"]) <= 300:
        yield Refusal(
            "metrics_interval",
            f"gpu_plugins_metrics_interval is {options['gpu_plugins_metrics_interval']}; set it to 1 to 300 seconds, "
            "or gpu_plugins_metrics_enabled=false for no metrics.",
        )
    accounts_mib = _whole_number(options["gpu_plugins_accounts_mib"])
    if accounts_mib != 0 and not 32 <= accounts_mib <= 65536:
        yield Refusal(
            "accounts_mib",
            f"gpu_plugins_accounts_mib is {options['gpu_plugins_accounts_mib']}; set it to 32 to 65536 MiB, or to 0 "
            "for no tmpfs.",
        )
    if options["gpu_plugins_mig_config"] and options["gpu_plugins_mode"] not in (WHOLE_MODE, DRA_MODE):
        yield Refusal(
            "mig_config_mode",
            f"gpu_plugins_mig_config={options['gpu_plugins_mig_config']} is only for the modes pgpu and dra, but"
            f" '{seen.host}' should serve {options['gpu_plugins_mode']}; leave it empty there.",
        )


def _configurations(seen: Seen) -> Iterator[Refusal]:
    configs: Sequence[str] = list(seen.options["gpu_plugins_configs"])
    odd = [name for name in configs if not _CONFIG_NAME.fullmatch(str(name))]
    if odd:
        yield Refusal(
            "config_name",
            f"gpu_plugins_configs has {', '.join(odd)}; a name is also the value of a label: at most 63 letters, "
            "digits, dashes, underscores and dots, a letter or digit at both ends.",
        )
    config, default = seen.options["gpu_plugins_config"], seen.options["gpu_plugins_default_config"]
    if any(name and name not in configs for name in (config, default)):
        yield Refusal(
            "unknown_config",
            f"gpu_plugins_config is '{config}' and gpu_plugins_default_config is '{default}'; gpu_plugins_configs has "
            f"{', '.join(configs) or 'none'}.",
        )


def _image(seen: Seen, allow_unenforced: bool) -> Iterator[Refusal]:
    options = seen.options
    assemble, image = options["kube_accel_image_assemble"], options["gpu_plugins_image"]
    if not image and not assemble:
        yield Refusal(
            "no_image",
            "gpu_plugins_image is not set; run 'make image' in a clone of the collection and set "
            "kube_accel_image_assemble to the clone's .build, or name an image that holds the command kube-accel.",
        )
    if assemble and image not in ("", seen.image_made):
        yield Refusal(
            "two_images", "gpu_plugins_image and kube_accel_image_assemble are both set; leave one of them out."
        )
    modes, ways = _NEED_INTERPOSER
    mode, bare = options["gpu_plugins_mode"], without_interposer(assemble)
    if bare and mode in modes and options["gpu_plugins_enforcement"] in ways and not allow_unenforced:
        yield Refusal(
            "no_interposer",
            f"gpu_mode is {mode}, and the image for {', '.join(bare)} is assembled without the interposer, so no share "
            "could be offered. Run 'make native', and name the directory that it made as native in "
            "kube_accel_image_assemble. To offer shares without limits, set gpu_plugins_allow_unenforced=true.",
        )


def _host(seen: Seen) -> Iterator[Refusal]:
    if not seen.kubelet_found:
        yield Refusal(
            "no_kubelet",
            f"{seen.device_plugin_dir} does not exist, so no kubelet with device plugins runs here; join the host to "
            "the cluster, or set gpu_plugins_kubelet_dir to kubelet's --root-dir.",
        )
    if not seen.node["object"]:
        yield Refusal(
            "no_node",
            f"The cluster has no node '{seen.name}'; join the host, or set gpu_plugins_node_name to its name in the "
            "cluster.",
        )


def _versions(seen: Seen) -> Iterator[Refusal]:
    """Refuse what is too old; the toolkit's own role refuses that of the toolkit."""
    for found in too_old(versions_of(seen.node["object"], seen.driver, "")):
        yield Refusal("version", f"Node '{seen.name}': {found.found} {found.remedy}")


def _peers(seen: Seen) -> Iterator[Refusal]:
    cluster, offered = seen.cluster, seen.offer["offered"]
    if cluster["foreign"] and not cluster["migrated"]:
        yield Refusal(
            "other_plugin",
            f"Another device plugin is in this cluster, DaemonSet {', '.join(cluster['foreign'])}; take over its"
            " nodes with migrate.yml, remove it, or set gpu_plugins_takeover=true to serve its resources instead.",
        )
    by_plugin = seen.node["target"] != DRA_MODE
    if cluster["foreign_classes"] and not cluster["migrated"]:
        served = "the resource here as well" if by_plugin else "ResourceClaims alone here, and leave the resource to it"
        yield Refusal(
            "device_class",
            f"DeviceClass {', '.join(cluster['foreign_classes'])} serves the same resources by dynamic resource"
            f" allocation; remove its extendedResourceName, or set gpu_plugins_takeover=true to serve {served}.",
        )
    if (
        by_plugin
        and any(offered.values())
        and not cluster["ours"]
        and not cluster["foreign"]
        and not cluster["migrated"]
    ):
        devices = ", ".join(f"{amount} {resource}" for resource, amount in offered.items())
        yield Refusal(
            "offered_already",
            f"Node '{seen.name}' already offers {devices} by another plugin; remove that plugin, or set "
            "gpu_plugins_takeover=true to serve the resource instead.",
        )


def _node(seen: Seen, extender_required: bool) -> Iterator[Refusal]:
    handler, runtime_class = seen.cluster["runtime_class_handler"], seen.options["gpu_plugins_runtime_class"]
    if handler not in ("", runtime_class):
        yield Refusal(
            "runtime_class",
            f"RuntimeClass '{runtime_class}' names the handler '{handler}'; remove it, or set "
            "gpu_plugins_runtime_class to another name.",
        )
    given = seen.options["gpu_plugins_taint"]
    taint = read_taint(given)
    if taint is None:
        yield Refusal(
            "taint_malformed",
            f"gpu_plugins_taint is {given!a}, which is not a taint; set it to text such as"
            " nvidia.com/gpu=present:NoSchedule, to a mapping with key, value and effect, or to {} for none.",
        )
    if not seen.taint["tolerated"]:
        key = (taint or {}).get("key", "")
        yield Refusal(
            "taint_not_tolerated",
            f"gpu_plugins_taint has key {key}, which gpu_plugins_tolerations does not tolerate, and would"
            f" keep the device plugin off node '{seen.name}'; add {{key: {key}, operator: Exists}} to"
            " gpu_plugins_tolerations, of all gpu_nodes.",
        )
    if seen.cluster["needs_extender"] and extender_required:
        yield Refusal(
            "no_extender",
            f"{seen.cluster['no_extender']} Install one with the role scheduler, or set "
            "gpu_plugins_extender_required=false to go without.",
        )
    blocked = [found for found in cuda_findings(seen.cuda, seen.name) if found.verdict == "blocked"]
    if blocked:
        yield Refusal("cuda_programs", " ".join(f"{found.found} {found.remedy}" for found in blocked))


def _warnings(seen: Seen, admission_enabled: bool, extender_required: bool) -> Iterator[str]:
    if admission_enabled and not seen.admission["served"] and seen.tells_of_cluster:
        yield (
            "This cluster is older than Kubernetes 1.30 and serves no ValidatingAdmissionPolicies."
            " docs/explanation/security-model.md describes what a stolen token of a plugin allows on other nodes."
        )
    if seen.tells_of_cluster:
        yield from seen.dra.get("warnings", ())
    if seen.cluster["needs_extender"] and not extender_required:
        yield f"WARNING: {seen.cluster['no_extender']} The run continues, because gpu_plugins_extender_required=false."
    yield from (f"WARNING: {problem}" for problem in seen.node["problems"])
    found = mig_toolkit(seen.options, seen.node, seen.toolkit)
    yield from (f"WARNING: {each.found} {each.remedy}" for each in found)


def _whole_number(value: object) -> int:
    """Return what Ansible's filter ``int`` makes of a value: 0 of what is no number."""
    try:
        return int(float(str(value)))
    except (ValueError, OverflowError):
        return 0
