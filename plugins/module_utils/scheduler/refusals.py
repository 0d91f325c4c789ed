# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Says what keeps kube-scheduler from being configured as it is asked for, before anything is changed. Pure."""

from __future__ import annotations

import json
from typing import Any, Iterator, List, Mapping, Sequence

from ..shared.printable import line
from ..shared.quota import QuotaError, parse
from ..shared.refusal import Refusal
from ..shared.registers import mapping, metadata_of, resources
from .asked import Options
from .cluster import NAMESPACE
from .layout import LAYOUTS, Host, Plan

MISSING_LIBRARY, TWO_BINDERS = "missing_library", "two_binders"
"""Values of ``code`` that the module scheduler_extender returns."""
_MANAGED_BY = "app.kubernetes.io/managed-by"
_LONGEST = 4096


def refusals(
    options: Options, host: Host, plan: Plan, seen: Mapping[str, Any], network: Sequence[Mapping[str, Any]]
) -> List[Refusal]:
    """Return why the plan cannot work. ``network`` are the plans of the extender's NetworkPolicies."""
    found = [*_of_variables(options, plan), *_of_quota(plan), *_of_network(plan, network), *_of_answers(plan, seen)]
    if plan.on_host:
        found += [*_of_host(options, host, plan), *_of_proxied(options, host, plan, seen), *_of_binders(plan, seen)]
    return found


def _of_variables(options: Options, plan: Plan) -> Iterator[Refusal]:
    if options.layout not in LAYOUTS:
        yield Refusal(
            "layout_unknown", f"scheduler_layout is '{options.layout}'; set it to one of {', '.join(LAYOUTS)}."
        )
    if options.policy not in ("binpack", "spread"):
        yield Refusal("policy_unknown", f"scheduler_policy is '{options.policy}'; set it to binpack or spread.")
    if plan.layout != "none" and not options.image:
        yield Refusal(
            "image_missing",
            f"scheduler_image is not set, and GPUs are shared with an extender (scheduler_layout {plan.layout}); name "
            "an image that holds the command kube-accel, here or in gpu_plugins_image for all hosts.",
        )


def _of_network(plan: Plan, network: Sequence[Mapping[str, Any]]) -> Iterator[Refusal]:
    problems = [text for each in network for text in each["problems"]]
    if problems:
        yield Refusal("network_peers", " ".join(problems))
    if plan.layout == "proxied" and any(each["blind"] for each in network):
        yield Refusal(
            "network_cilium",
            "scheduler_network_policy_from is set, but Cilium does not match nodes by ipBlock, so the policy would "
            "block the API server, through which kube-scheduler asks the extender. Leave it empty. Or set "
            "scheduler_network_policy_enabled=false, and write a CiliumNetworkPolicy that admits the entities "
            "kube-apiserver and remote-node.",
        )


def _of_quota(plan: Plan) -> Iterator[Refusal]:
    """Return what the extender, which reads quotas by the same code, would not take."""
    try:
        if plan.quota:
            parse(json.dumps(plan.quota, default=str))
    except (QuotaError, RecursionError) as error:
        # The text is of one line. It is not the user's, whose keys are named.
        reason = _one_line(str(error).partition("line 1: ")[2] or error)
        yield Refusal("quota_unreadable", f"scheduler_quota cannot be read: {reason}.")


def _of_answers(plan: Plan, seen: Mapping[str, Any]) -> Iterator[Refusal]:
    kubeadm = mapping(seen.get("kubeadm"))
    if plan.layout not in ("none", "auto") and "msg" in kubeadm:
        yield Refusal(
            "api_unreachable",
            f"The API server cannot be asked from the controller: {_one_line(kubeadm['msg'])}; set "
            "scheduler_kubeconfig, or gpu_plugins_kubeconfig for all roles.",
        )


def _of_host(options: Options, host: Host, plan: Plan) -> Iterator[Refusal]:
    foreign = [each for each in options.unsupported if each.get("name") in host.present]
    if foreign:
        yield Refusal(
            "control_plane_unsupported",
            f"{', '.join(str(each.get('name')) for each in foreign)} runs kube-scheduler inside its own process in a "
            "way this role cannot edit; leave this host out of kube_control_plane and set scheduler_layout=secondary "
            f"for all hosts, or {'; '.join(str(each.get('remedy')) for each in foreign)}.",
        )
    elif not plan.here:
        yield Refusal(
            "manifest_missing",
            f"{options.host_root}{options.manifest_path} does not exist, so kube-scheduler is not a static pod of "
            "this host. Set scheduler_manifest_path, or remove the host from the group kube_control_plane. For a "
            "control plane that cannot be reached, set scheduler_layout=secondary.",
        )


def _of_proxied(options: Options, host: Host, plan: Plan, seen: Mapping[str, Any]) -> Iterator[Refusal]:
    taken = [metadata_of(item) for item in resources(seen.get("services"))]
    names = [str(each.get("name")) for each in taken if not _is_ours(each)]
    if plan.layout == "proxied" and plan.distribution:
        other = f", or remove the extender that binds pods: {', '.join(plan.binders)}" if plan.binders else " or local"
        yield Refusal(
            "static_pod_needed",
            f"The layout proxied needs a static pod, and {plan.distribution} runs kube-scheduler here; set "
            f"scheduler_layout to secondary{other}.",
        )
    if names:
        yield Refusal(
            "services_taken",
            f"The layout proxied is reached through the Services {' and '.join(plan.services)} in {NAMESPACE}, but"
            f" {' and '.join(names)} belongs to another program; remove that, or set scheduler_layout=secondary.",
        )
    if plan.layout == "proxied" and host.lacks_authority_key:
        yield Refusal(
            "authority_key_missing",
            f"{options.cluster_ca_key} does not exist, so no certificate can be made with which kube-scheduler may use "
            "the API server's proxy; set scheduler_cluster_ca_key, or scheduler_layout=local.",
        )


def _of_binders(plan: Plan, seen: Mapping[str, Any]) -> Iterator[Refusal]:
    count = sum("bind_verb" in extender for extender in plan.extenders)
    local = plan.layout == "local"
    if count > 1:
        yield Refusal(
            "several_binders",
            f"kube-scheduler allows one extender with bind_verb, and scheduler_extenders"
            f"{' and ours have' if local else ' has'} {count}; "
            f"{'set scheduler_layout=proxied, in which ours does not bind' if local else 'leave bind_verb to one'}.",
        )
    proposal = mapping(seen.get("proposal"))
    code, said = proposal.get("code"), str(proposal.get("msg") or "")
    if code == TWO_BINDERS:
        yield Refusal(
            TWO_BINDERS,
            "Another extender of kube-scheduler binds pods already, and kube-scheduler allows one such extender. Set "
            f"scheduler_layout=proxied, in which ours does not bind, or remove the other: {said}",
        )
    elif said and code != MISSING_LIBRARY and count < 2:
        yield Refusal("configuration_refused", said)


def _is_ours(metadata: Mapping[str, Any]) -> bool:
    return mapping(metadata.get("labels")).get(_MANAGED_BY) == "accel.kubernetes"


def _one_line(text: object) -> str:
    return str(line(" ".join(str(text).split()), _LONGEST))
