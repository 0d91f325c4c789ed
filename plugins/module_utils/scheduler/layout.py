# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decides how kube-scheduler asks our extender, and what it is configured with on one host. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from ..shared.inventory import CONTROL_PLANES, GPU_NODES, Inventory
from ..shared.modes import BY_MODE, WHOLE_MODE
from ..shared.registers import lines, mapping, results
from .asked import Options
from .cluster import KINDS, NAMESPACE, WORKLOADS, reads
from .rancher import DISTRIBUTIONS

LAYOUTS = ("auto", "local", "proxied", "secondary", "none")
WHOLE = "nvidia.com/gpu"
AUTHORITY_KEY = "authority_key"
"""The name of the place of the key that signs for the API server."""
NAME = "kube-accel-extender"
"""The name of the extender's objects, its account, and its Lease."""
SECOND = "accel-scheduler"
"""The name of the second kube-scheduler and its objects."""


def resources_of(*modes: str) -> List[str]:
    """Return the resources by which containers ask for shares in these modes."""
    return [name for mode in modes for name in BY_MODE[mode][:2] if name]


SERVICES: Mapping[str, Sequence[str]] = {
    "gpu-quota-admission": resources_of("vgpu", "cgpu"),
    "nvidia-mps-scheduler-plugin": resources_of("mps"),
}
"""The Services through which the proxied layout is reached, with the resources that each is asked for."""


@dataclass(frozen=True)
class Host:
    """What the role saw on a host."""

    name: str
    present: Sequence[str]
    """Names of the places of kube-scheduler that exist."""
    api: str
    """Where its kube-scheduler reaches the API server; empty where that is not known."""
    client: str
    """Name of kube-scheduler's certificate for the extender, without a suffix."""
    certificates_end: bool
    """Whether certificates of the second kube-scheduler are missing, or end soon."""
    lacks_authority_key: bool
    """Whether the key that signs for the API server is not there."""


@dataclass(frozen=True)
class Plan:
    """What becomes of kube-scheduler on a host."""

    host: str
    """Its name in the inventory."""
    layout: str
    modes: List[str]
    """The modes of all GPU nodes, each once."""
    on_host: bool
    """Whether the host is a control plane: the secondary layout is rolled out from the controller."""
    places: List[Dict[str, str]]
    """Where to look for kube-scheduler: the name and the path of each."""
    distribution: str
    """``k3s``, ``rke2``, or empty for a static pod."""
    here: bool
    """Whether kube-scheduler runs here in a way that can be configured."""
    look_for_binders: bool
    """Whether the layout depends on who binds pods here already."""
    binders: List[str]
    """Addresses of the extenders of others that bind pods."""
    local: List[Dict[str, Any]]
    """Our extender in the layout local, as an option of the module scheduler_extender."""
    extenders: List[Dict[str, Any]]
    """All extenders that kube-scheduler is to call, as options of that module."""
    mounts: List[str]
    state: str
    """``present``, or ``absent`` where kube-scheduler is to be given back."""
    needs_certificates: bool
    certificate_words: List[str]
    """Arguments of certificates.sh."""
    client: str
    """Name of the certificate that kube-scheduler shows the extender, without a suffix."""
    certificates_end: bool
    """Whether the second kube-scheduler needs new certificates."""
    packages: List[str]
    """What the host needs for all that."""
    files: Dict[str, str]
    """Files of the host, as the tasks see them."""
    workload: str
    """The kind of object that runs the extender."""
    services: List[str]
    """The Services of the proxied layout."""
    reads: List[Dict[str, Any]]
    """What to ask the API server for."""
    kinds: List[Mapping[str, str]]
    """The kinds of all our objects, in the order in which they go."""
    workloads: List[Mapping[str, str]]
    """Those of which there are some as long as there is anything of ours."""
    quota: Dict[str, Any]


def plan(options: Options, host: Host, inventory: Inventory, modes: object = None) -> Plan:
    """Decide for one host. ``modes`` are those of all GPU nodes, where they have been read before."""
    if options.removing:
        options = replace(options, layout="none", extenders=(), binpack_resources=(), mounts=())
    read = list(modes) if isinstance(modes, (list, tuple)) else [] if options.removing else gpu_modes(inventory)
    shares = options.manage_whole_gpus or any(mode in BY_MODE for mode in read)
    own = [str(extender.get("url_prefix")) for extender in options.extenders if "bind_verb" in extender]
    automatic = options.layout == "auto" and shares
    theirs = _binders_of_others(inventory) if automatic else []
    binders = list(dict.fromkeys([*theirs, *own]))
    layout = options.layout
    if layout == "auto":
        layout = "none" if not shares else "proxied" if binders else "local"
    in_process = layout in ("local", "proxied")
    distribution = next((each.name for each in DISTRIBUTIONS if each.name in host.present), "")
    here = distribution != "" or "manifest" in host.present
    tls = _tls(options, host.client)
    local = [_local(options, tls)]
    ours = local if layout == "local" else _proxied(options, host.api, tls) if layout == "proxied" else []
    extenders = [*map(dict, options.extenders), *ours]
    return Plan(
        host=host.name,
        layout=layout,
        modes=read,
        on_host=host.name != "localhost" or host.name in inventory.members(CONTROL_PLANES),
        places=places(options),
        distribution=distribution,
        here=here,
        look_for_binders=automatic and here,
        binders=binders,
        local=local,
        extenders=extenders,
        mounts=[*options.mounts, *([f"{options.pki_dir}/scheduler"] if in_process else [])],
        state="present" if extenders or options.binpack_resources else "absent",
        needs_certificates=in_process,
        certificate_words=_certificate_words(options, layout),
        client=host.client,
        certificates_end=host.certificates_end,
        packages=[*options.python_packages, *(options.pki_packages if in_process else ())],
        files=_files(options),
        workload="DaemonSet" if layout == "local" else "Deployment",
        services=list(SERVICES),
        reads=reads(layout, list(SERVICES), options.network_peers),
        kinds=[*KINDS],
        workloads=[*WORKLOADS],
        quota={"version": 1, **options.quota} if options.quota else {},
    )


def _files(options: Options) -> Dict[str, str]:
    """Return the paths of files that a host may have, as seen from here."""
    root = options.host_root
    return {"pki": f"{root}{options.pki_dir}", "scheduler_conf": f"{root}/etc/kubernetes/scheduler.conf"}


def read_host(name: str, seen: Mapping[str, Any], api: str) -> Host:
    """Return what the registers of the role say of its host."""
    places = [(str(mapping(answer.get("item")).get("name")), _exists(answer)) for answer in results(seen.get("places"))]
    made = lines(seen.get("certificates")) or ["client"]
    return Host(
        name=name,
        present=[name for name, exists in places if exists],
        api=api,
        client=(made[-1].split() or ["client"])[-1],
        lacks_authority_key=(AUTHORITY_KEY, False) in places,
        certificates_end=any(answer.get("rc", 1) != 0 for answer in results(seen.get("certificates"))),
    )


def _exists(answer: Mapping[str, Any]) -> bool:
    return mapping(answer.get("stat")).get("exists") is True


def gpu_modes(inventory: Inventory) -> List[str]:
    """Return the modes that the GPU nodes of the inventory are to serve, each once."""
    found = inventory.each(GPU_NODES, lambda variables: str(variables.get("gpu_mode", WHOLE_MODE)))
    return list(dict.fromkeys(found.values()))


def managed(options: Options) -> List[str]:
    """Return the resources whose pods go through the extender."""
    return [*(name for names in SERVICES.values() for name in names), *_whole(options)]


def places(options: Options) -> List[Dict[str, str]]:
    """Return where kube-scheduler, or what keeps it from being configured, may be found on a host."""
    unsupported = [(str(each.get("name")), str(each.get("path"))) for each in options.unsupported]
    servers = [(each.name, each.kubeconfig) for each in DISTRIBUTIONS]
    found = [*unsupported, *servers, ("manifest", options.manifest_path), (AUTHORITY_KEY, options.cluster_ca_key)]
    return [{"name": name, "path": f"{options.host_root}{path}"} for name, path in found]


def _binders_of_others(inventory: Inventory) -> List[str]:
    """Return who binds pods on any control plane, as all of them get the same layout."""
    looks = inventory.each(CONTROL_PLANES, lambda variables: mapping(variables.get("__scheduler_look")))
    return [str(url) for look in looks.values() for url in look.get("binders") or ()]


def _whole(options: Options) -> Tuple[str, ...]:
    return (WHOLE,) if options.manage_whole_gpus else ()


def _tls(options: Options, client: str) -> Dict[str, str]:
    directory = f"{options.pki_dir}/scheduler"
    return {
        "ca_file": f"{directory}/ca.crt",
        "cert_file": f"{directory}/{client}.crt",
        "key_file": f"{directory}/{client}.key",
    }


def _local(options: Options, tls: Dict[str, str]) -> Dict[str, Any]:
    return {
        "url_prefix": f"https://127.0.0.1:{options.extender_port}/scheduler",
        "filter_verb": "predicates",
        "prioritize_verb": "priorities",
        "preempt_verb": "preemption",
        "bind_verb": "bind",
        "weight": options.policy_weight,
        "enable_https": True,
        "node_cache_capable": True,
        "tls_config": tls,
        "managed_resources": [{"name": name, "ignored_by_scheduler": False} for name in managed(options)],
    }


def _proxied(options: Options, api: str, tls: Dict[str, str]) -> List[Dict[str, Any]]:
    services = f"{api}/api/v1/namespaces/{NAMESPACE}/services"
    more = {next(iter(SERVICES)): _whole(options)}
    return [
        {
            "url_prefix": f"{services}/{service}/proxy/scheduler",
            "filter_verb": "predicates",
            "enable_https": True,
            "node_cache_capable": True,
            "tls_config": tls,
            "managed_resources": [
                {"name": name, "ignored_by_scheduler": False} for name in [*names, *more.get(service, ())]
            ],
        }
        for service, names in SERVICES.items()
    ]


def _certificate_words(options: Options, layout: str) -> List[str]:
    root = options.host_root
    cluster = [f"{root}{path}" for path in (options.cluster_ca_cert, options.cluster_ca_key)]
    words = [f"{root}{options.pki_dir}", str(options.pki_renew_days), layout]
    return words + (cluster if layout == "proxied" else [])
