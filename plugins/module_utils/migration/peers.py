# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which other device plugins and DRA drivers a cluster has, on which nodes, and how one is kept off and let back. Pure.

What they are known by is what their charts and manifests have: NVIDIA's k8s-device-plugin 0.20 and gpu-operator 25,
tkestack gpu-manager 1.1, HAMi 2.10, AliyunContainerService gpushare-device-plugin, and the plugins of whole GPUs,
gpu-manager and MPS as Alauda's hardware accelerator suite installs them. Of DRA drivers, NVIDIA's
dra-driver-nvidia-gpu 0.5 and HAMi's k8s-dra-driver 0.1.
"""

from __future__ import annotations

import copy
import json
import re
import shlex
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.migration.settings import runs
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.modes import (
    CGPU_LABEL,
    DRA_MODE,
    HELD_LABEL,
    MODE_LABEL,
    NODE_MODES,
    OTHER_DRA_DRIVERS,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.reading import read_object

from ..shared import label_names

Object = Mapping[str, Any]

MARK = "kube-accel.io/migrated-from"
"""Label of a node whose plugin was taken off, which their DaemonSets then avoid."""
RECORD = label_names.MIGRATION
"""Annotation of such a node: whose it was, and its labels before."""
ORIGINAL = "kube-accel.io/before-migration"
"""Annotation of a DaemonSet that is kept off marked nodes: what of it was changed."""
DEPLOY = "nvidia.com/gpu.deploy.device-plugin"
"""Label by which NVIDIA's operator places its device plugin and MPS control daemon; it keeps a value that it finds."""

_LONGEST_RECORD = 256 << 10
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")

OURS = "kube-accel"
"""Name of our daemons' container."""


@dataclass(frozen=True)
class Kind:
    """A device plugin that nodes can be taken over from."""

    name: str
    title: str
    mode: str
    """Which of our modes is most like it."""
    forget: Tuple[str, ...] = ()
    """Annotations of the node that would be believed after it has gone; it writes them again when it is back."""
    driver: str = ""
    """Name of its DRA driver, by which it gives GPUs to ResourceClaims; empty for a device plugin."""


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("nvidia", "NVIDIA's device plugin", "pgpu"),
        Kind("gpu-operator", "NVIDIA's GPU operator", "pgpu"),
        Kind("gpu-manager", "tkestack gpu-manager", "vgpu"),
        Kind("hami", "HAMi", "vgpu", ("hami.io/node-handshake", "hami.io/node-nvidia-register")),
        Kind("mps", "Alauda's MPS device plugin", "mps"),
        Kind("gpushare", "Alibaba's cGPU and gpushare", "cgpu"),
        Kind("nvidia-dra", "NVIDIA's DRA driver", DRA_MODE, driver=OTHER_DRA_DRIVERS[0]),
        Kind("hami-dra", "HAMi's DRA driver", DRA_MODE, driver=OTHER_DRA_DRIVERS[1]),
    )
}

_IMAGES = {
    "k8s-device-plugin": "nvidia",
    "gpu-manager": "gpu-manager",
    "hami": "hami",
    "k8s-vdevice": "hami",
    "k8s-gpushare-plugin": "gpushare",
}
_NAMES = (
    (re.compile(r"(?:.*-)?hami-device-plugin\Z"), "hami"),
    (re.compile(r"(?:.*-)?nvidia-device-plugin(?:-daemonset|-ds)?\Z"), "nvidia"),
    (re.compile(r"(?:.*-)?gpu-manager(?:-daemonset|-ds)?\Z"), "gpu-manager"),
    (re.compile(r"(?:gpushare|cgpu)-device-plugin(?:-ds)?\Z"), "gpushare"),
)
_MPS_PLUGIN = re.compile(r"(?:.*-)?mps-device-plugin(?:-daemonset|-ds)?\Z")
"""Names of the MPS plugin and its image, which may be a build of NVIDIA's."""
_MPS = "mps-control-daemon"
_DRA = {
    "gpu-kubelet-plugin": "nvidia-dra",
    "nvidia-dra-plugin": "nvidia-dra",
    "hami-kubelet-plugin": "hami-dra",
}
"""Programs of DRA drivers that give away GPUs, not compute domains alone."""
_PLUGINS_DIR = re.compile(r"/device-plugins/?\Z")


@dataclass(frozen=True)
class Peer:
    """One that is there: its DaemonSets, the plugin's first."""

    kind: Kind
    daemonsets: Tuple[Object, ...]

    @property
    def names(self) -> Tuple[str, ...]:
        """``namespace/name`` of each."""
        return tuple(map(full_name, self.daemonsets))

    @property
    def plugins(self) -> Tuple[Object, ...]:
        """Return the peers that are device plugins, without those that only go with them."""
        return tuple(item for item in self.daemonsets if not _has_mps(item))


def serving(peer: Peer, node: Object, pods: Iterable[Object]) -> List[Object]:
    """Return the plugins that serve the node, or are about to: those that select it, or else have a pod there."""
    chosen = [item for item in peer.plugins if selects(item, node)]
    return chosen or [item for item in peer.plugins if _has_pod(item, node, pods)]


def full_name(item: Object) -> str:
    """``namespace/name``."""
    return f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}"


def labels_of(item: Object) -> Dict[str, str]:
    """Return an object's labels."""
    return dict(item["metadata"].get("labels") or {})


def annotations_of(item: Object) -> Dict[str, str]:
    """Return an object's annotations."""
    return dict(item["metadata"].get("annotations") or {})


def _spec(daemonset: Object) -> Object:
    spec: Object = daemonset["spec"]["template"]["spec"]
    return spec


def _containers(daemonset: Object) -> List[Object]:
    return list(_spec(daemonset).get("containers") or ())


def is_ours(daemonset: Object) -> bool:
    """Return whether it is a DaemonSet of this collection."""
    return any(container.get("name") == OURS for container in _containers(daemonset))


def is_plugin(daemonset: Object) -> bool:
    """Return whether it reaches kubelet's directory for device plugins."""
    volumes = _spec(daemonset).get("volumes") or ()
    return any(_PLUGINS_DIR.search(str((volume.get("hostPath") or {}).get("path") or "")) for volume in volumes)


def _image(container: Object) -> str:
    """Return the last part of an image's repository: of ``registry:5000/a/b:1@sha256:0`` it is ``b``."""
    return str(container.get("image") or "").partition("@")[0].rpartition("/")[2].partition(":")[0]


def _kind(daemonset: Object) -> str:
    name = daemonset["metadata"]["name"]
    driver = next((_DRA[each] for each in _DRA if any(runs(one, (each,)) for one in _containers(daemonset))), "")
    if driver:
        return driver
    if any(map(_MPS_PLUGIN.match, (name, *map(_image, _containers(daemonset))))):
        return "mps"
    images = (_IMAGES.get(_image(container)) for container in _containers(daemonset))
    kind = next(filter(None, images), "") or next((kind for pattern, kind in _NAMES if pattern.match(name)), "")
    owners = daemonset["metadata"].get("ownerReferences") or ()
    operated = any(owner.get("kind") == "ClusterPolicy" for owner in owners)
    if kind == "nvidia" and (operated or DEPLOY in (_spec(daemonset).get("nodeSelector") or {})):
        return "gpu-operator"
    return kind


def _has_mps(daemonset: Object) -> bool:
    words = (word for container in _containers(daemonset) for word in container.get("command") or ())
    return _MPS in words


def peers(daemonsets: Iterable[Object]) -> List[Peer]:
    """Return the peers that are known, by kind. NVIDIA's MPS control daemon goes with the plugin it belongs to."""
    found: Dict[str, List[Object]] = {}
    companions: Dict[str, List[Object]] = {}
    for item in sorted((item for item in daemonsets if not is_ours(item)), key=full_name):
        kind = _kind(item)
        if kind and _has_mps(item):
            companions.setdefault(kind, []).append(item)
        elif kind and (is_plugin(item) or KINDS[kind].driver):
            found.setdefault(kind, []).append(item)
    return [Peer(KINDS[kind], (*items, *companions.get(kind, ()))) for kind, items in sorted(found.items())]


def strangers(daemonsets: Iterable[Object]) -> List[Object]:
    """Device plugins that are neither ours nor known, of GPUs or of anything else."""
    return [item for item in daemonsets if is_plugin(item) and not is_ours(item) and not _kind(item)]


def selects(daemonset: Object, node: Object) -> bool:
    """Return whether the DaemonSet controller would have a pod of it on the node, by selector, affinity and taints."""
    spec, labels = _spec(daemonset), labels_of(node)
    if not (spec.get("nodeSelector") or {}).items() <= labels.items():
        return False
    required = _terms(spec)
    fields = {"metadata.name": node["metadata"]["name"]}
    if required is not None and not any(_matches(term, labels, fields) for term in required):
        return False
    tolerations = spec.get("tolerations") or ()
    hard = [
        taint for taint in (node.get("spec") or {}).get("taints") or () if taint.get("effect") != "PreferNoSchedule"
    ]
    # The controller has every DaemonSet tolerate a cordon and the conditions of a node.
    return all(taint["key"].startswith("node.kubernetes.io/") or tolerates(tolerations, taint) for taint in hard)


def tolerates(tolerations: Iterable[Object], taint: Object) -> bool:
    """Return whether one of the tolerations is for the taint."""
    return any(
        each.get("effect") in (None, "", taint.get("effect"))
        and (
            (each.get("operator") == "Exists" and each.get("key") in (None, "", taint.get("key")))
            or (each.get("key") == taint.get("key") and (each.get("value") or "") == (taint.get("value") or ""))
        )
        for each in tolerations
    )


def _terms(spec: Object) -> Optional[Sequence[Object]]:
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return None if required is None else required.get("nodeSelectorTerms") or ()


def _matches(term: Object, labels: Mapping[str, str], fields: Mapping[str, str]) -> bool:
    expressions, on_fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not on_fields:
        return False
    return all(_holds(each, labels) for each in expressions) and all(_holds(each, fields) for each in on_fields)


def _holds(requirement: Object, labels: Mapping[str, str]) -> bool:
    value, operator = labels.get(requirement["key"]), requirement.get("operator")
    values: List[str] = list(requirement.get("values") or ())
    if operator in ("Exists", "DoesNotExist"):
        return (value is not None) is (operator == "Exists")
    if operator in ("In", "NotIn"):
        return (value in values) is (operator == "In")
    try:
        left, right = int(str(value)), int(values[0])
    except (ValueError, IndexError):
        return False
    return left > right if operator == "Gt" else left < right


def on_node(peer: Peer, node: Object, pods: Iterable[Object]) -> bool:
    """Return whether it serves the node, is about to, or still has a pod there."""
    return any(selects(item, node) or _has_pod(item, node, pods) for item in peer.daemonsets)


def _has_pod(daemonset: Object, node: Object, pods: Iterable[Object]) -> bool:
    uid, name = daemonset["metadata"].get("uid"), node["metadata"]["name"]
    return any(
        owner.get("uid") == uid
        for pod in pods
        if pod["spec"].get("nodeName") == name
        for owner in pod["metadata"].get("ownerReferences") or ()
    )


def by_label(peer: Peer) -> str:
    """Return the label of nodes that keeps it off one; empty where its DaemonSet has to be made to avoid nodes."""
    if peer.kind.name == "gpu-operator":
        return DEPLOY
    # Ours has another value there, so it goes whatever else is done, unless theirs is one of ours.
    return MODE_LABEL if _by_mode_label(peer) and not shares_label(peer) else ""


def _by_mode_label(peer: Peer) -> bool:
    return MODE_LABEL in (_spec(peer.daemonsets[0]).get("nodeSelector") or {})


def shares_label(peer: Peer) -> bool:
    """Return whether it chooses nodes by a value of a label by which ours choose them too."""
    return any(value in NODE_MODES for item in peer.daemonsets for value in _mode_values(item))


def _mode_values(daemonset: Object) -> List[str]:
    spec = _spec(daemonset)
    required = [each for term in _terms(spec) or () for each in term.get("matchExpressions") or ()]
    listed = [value for each in required if each.get("key") == MODE_LABEL for value in each.get("values") or ()]
    return [str(value) for value in ((spec.get("nodeSelector") or {}).get(MODE_LABEL), *listed) if value]


def held(peer: Peer, node: Object) -> Dict[str, Any]:
    """Return the merge patch of a node that keeps ours off while the plugin serves it; empty where nothing is to do."""
    wanted = shares_label(peer) and not recorded(node) and any(selects(item, node) for item in peer.daemonsets)
    if not wanted or labels_of(node).get(HELD_LABEL) == peer.kind.name:
        return {}
    return {"metadata": {"labels": {HELD_LABEL: peer.kind.name}}}


def released(peer: Peer, node: Object) -> Dict[str, Any]:
    """Return the merge patch that takes ``held`` back; empty where nothing is to do."""
    return {"metadata": {"labels": {HELD_LABEL: None}}} if labels_of(node).get(HELD_LABEL) == peer.kind.name else {}


def labels_off(peer: Peer, node: Object, mode: str) -> Dict[str, Optional[str]]:
    """Labels of a node without this plugin, that is to serve a mode; None is one to remove."""
    labels: Dict[str, Optional[str]] = {MARK: peer.kind.name}
    label = by_label(peer) or (MODE_LABEL if shares_label(peer) else "")
    if label:
        labels[label] = "false" if label == DEPLOY else None
    if shares_label(peer) or HELD_LABEL in labels_of(node):
        labels[HELD_LABEL] = None
    if mode != "cgpu" and labels_of(node).get(CGPU_LABEL) == "true":
        labels[CGPU_LABEL] = None
    return labels


def recorded(node: Object) -> Dict[str, Any]:
    """Return what was kept of the node's plugin when it was taken off; empty where nothing of ours is there.

    Whoever may annotate the node must not have us write other labels than ``labels_off`` does.
    """
    try:
        record: Dict[str, Any] = read_object(annotations_of(node).get(RECORD, "{}"), _LONGEST_RECORD)
    except ValueError:
        return {}
    labels = record.get("labels")
    fits = isinstance(labels, dict) and all(
        name in (DEPLOY, MODE_LABEL, CGPU_LABEL) and (value is None or _is_value(value))
        for name, value in labels.items()
    )
    names = record.get("daemonsets") or []
    fits = fits and isinstance(names, list) and all(isinstance(name, str) for name in names)
    return record if fits and isinstance(record.get("from"), str) and record["from"] in KINDS else {}


def _is_value(value: object) -> bool:
    return isinstance(value, str) and _LABEL_VALUE.fullmatch(value) is not None


def node_off(peer: Peer, node: Object, mode: str) -> Dict[str, Any]:
    """Return the merge patch of a node that takes the plugin off it, and keeps what is needed to put it back."""
    before, kept = labels_of(node), recorded(node)
    changed = labels_off(peer, node, mode)
    originals = {key: before.get(key) for key in changed if key not in (MARK, HELD_LABEL)}
    # Of a run that was cut off the first one's memory counts.
    originals.update(kept.get("labels") or {})
    record = {"from": peer.kind.name, "daemonsets": list(peer.names), "labels": originals}
    return {"metadata": {"labels": changed, "annotations": {RECORD: json.dumps(record, sort_keys=True)}}}


def node_back(node: Object) -> Dict[str, Any]:
    """Return the merge patch of a node that lets its plugin return; empty where none was taken off."""
    record = recorded(node)
    if not record:
        return {}
    return {"metadata": {"labels": {**record["labels"], MARK: None}, "annotations": {RECORD: None}}}


def avoiding(daemonset: Object) -> Dict[str, Any]:
    """Return the DaemonSet as it keeps off marked nodes, and leaves its pods on all others as they are.

    Its pods are not replaced, although their template is another: ``OnDelete``.
    """
    changed = copy.deepcopy(dict(daemonset))
    spec = changed["spec"]["template"]["spec"]
    requirement = {"key": MARK, "operator": "DoesNotExist"}
    if _avoids(spec, requirement):
        return changed
    # Its owner may have put back its affinity alone.
    strategy = restored(daemonset)["spec"].get("updateStrategy")
    original = {"affinity": spec.get("affinity"), "updateStrategy": strategy}
    affinity = spec["affinity"] = copy.deepcopy(spec.get("affinity")) or {}
    node = affinity["nodeAffinity"] = affinity.get("nodeAffinity") or {}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = (node.get(required) or {}).get("nodeSelectorTerms")
    for term in terms or ():
        # One without a requirement selects nothing, and has to go on doing so.
        if term.get("matchExpressions") or term.get("matchFields"):
            term["matchExpressions"] = [*(term.get("matchExpressions") or ()), requirement]
    node[required] = {"nodeSelectorTerms": terms if terms is not None else [{"matchExpressions": [requirement]}]}
    changed["spec"]["updateStrategy"] = {"type": "OnDelete"}
    marks = changed["metadata"]["annotations"] = annotations_of(daemonset)
    marks[ORIGINAL] = json.dumps(original, sort_keys=True)
    return changed


def _avoids(spec: Object, requirement: Object) -> bool:
    terms = [term for term in _terms(spec) or () if term.get("matchExpressions") or term.get("matchFields")]
    return bool(terms) and all(requirement in (term.get("matchExpressions") or ()) for term in terms)


def restored(daemonset: Object) -> Dict[str, Any]:
    """Return the DaemonSet as it was before ``avoiding``; unchanged where it never was, or its memory is not ours."""
    changed = copy.deepcopy(dict(daemonset))
    try:
        original = read_object(annotations_of(daemonset)[ORIGINAL], _LONGEST_RECORD)
        kept = {key: original[key] for key in ("affinity", "updateStrategy")}
    except (KeyError, ValueError):
        return changed
    del changed["metadata"]["annotations"][ORIGINAL]
    for holder, key in ((changed["spec"]["template"]["spec"], "affinity"), (changed["spec"], "updateStrategy")):
        holder.pop(key, None)
        if kept[key] is not None:
            holder[key] = kept[key]
    return changed


def merge_patch(before: Object, after: Object) -> Dict[str, Any]:
    """Return the JSON merge patch (RFC 7386) between two objects without nulls; empty when they are equal."""
    patch: Dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        if isinstance(value, dict) and isinstance(before.get(key), dict):
            inner = merge_patch(before[key], value)
            if inner:
                patch[key] = inner
        elif key not in before or value != before[key]:
            patch[key] = value
    return patch


def removal(peer: Peer) -> List[str]:
    """Return the commands by which an administrator removes it, once it is on no node."""
    commands = []
    for item in peer.daemonsets:
        notes = annotations_of(item)
        owner = next(
            (each for each in item["metadata"].get("ownerReferences") or () if each["kind"] == "ClusterPolicy"), None
        )
        if peer.kind.name == "gpu-operator":
            name = owner["name"] if owner else "cluster-policy"
            patch = '{"spec": {"devicePlugin": {"enabled": false}}}'
            commands.append(f"kubectl patch clusterpolicies.nvidia.com/{name} --type merge --patch '{patch}'")
        elif notes.get("meta.helm.sh/release-name"):
            release = notes["meta.helm.sh/release-name"]
            where = notes.get("meta.helm.sh/release-namespace", item["metadata"]["namespace"])
            commands.append(f"helm uninstall {shlex.quote(release)} --namespace {shlex.quote(where)}")
        else:
            namespace, name = item["metadata"]["namespace"], item["metadata"]["name"]
            commands.append(f"kubectl --namespace {namespace} delete daemonset {name}")
    return list(dict.fromkeys(commands))
