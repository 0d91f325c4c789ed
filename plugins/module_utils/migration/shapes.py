# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the plan of a migration reads of objects of the API server, and of which type that always is. Pure."""

from __future__ import annotations

from typing import Any, Mapping

from ansible_collections.accel.kubernetes.plugins.module_utils.shared.api_json import ANY
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.quantity import whole_units


def _amount(value: object) -> None:
    if whole_units(value) is None:
        raise ValueError("it is no amount")


_AMOUNTS = {ANY: _amount}
_VALUE_FROM = {
    "configMapKeyRef": {"name": str, "key": str, "optional": bool},
    "fieldRef": {"fieldPath": str},
}
_CONTAINER = {
    **{"name!": str, "image": str, "command": [str], "args": [str]},
    "env": [{"name!": str, "value": str, "valueFrom": _VALUE_FROM}],
    "envFrom": [{"prefix": str, "configMapRef": {"name": str}, "secretRef": {"name": str}}],
    "securityContext": {"privileged": bool},
    "resources": {"limits": _AMOUNTS, "claims": [{"name!": str, "request": str}]},
    **{"volumeMounts": [{"name!": str, "mountPath": str, "subPath": str}]},
}
_MAP_VOLUME = {"name": str, "items": [{"key!": str, "path!": str}]}
_EXPRESSIONS = [{"key!": str, "operator": str, "values": [str]}]
_NAMED = {"metadata": {"name!": str}}
_OWNED = {
    "name!": str,
    "namespace!": str,
    "ownerReferences": [{"kind!": str, "name!": str, "uid": str, "controller": bool}],
}
_CLAIMS = [{"name!": str, "resourceClaimName": str}]
_WISH = {"deviceClassName": str, "count": int, "capacity": {"requests": {}}}
_POD = {
    **{"containers!": [_CONTAINER], "initContainers": [_CONTAINER], "nodeName": str, "nodeSelector": {ANY: str}},
    "volumes": [
        {
            **{"name!": str, "hostPath": {"path": str}, "configMap": _MAP_VOLUME},
            "projected": {"sources": [{"configMap": _MAP_VOLUME}]},
        }
    ],
    "resourceClaims": _CLAIMS,
    "tolerations": [{"key": str, "operator": str, "value": str, "effect": str}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": _EXPRESSIONS, "matchFields": _EXPRESSIONS}]
            }
        }
    },
}
SHAPES: Mapping[str, Any] = {
    "Node": {
        **{**_NAMED, "spec": {"taints": [{"key!": str, "value": str, "effect!": str}]}},
        "status": {"allocatable": _AMOUNTS},
    },
    "DaemonSet": {"metadata": _OWNED, "spec!": {"template!": {"spec!": _POD}, "updateStrategy": {}}},
    "Pod": {"metadata": _OWNED, "spec!": _POD, "status": {"phase": str, "resourceClaimStatuses": _CLAIMS}},
    "Deployment": {"metadata": {"name!": str, "namespace!": str}, "spec": {"template!": {"spec!": _POD}}},
    "MutatingWebhookConfiguration": {**_NAMED, "webhooks": [{"name": str}]},
    "ConfigMap": _NAMED,
    "ResourceSlice": {**_NAMED, "spec!": {"driver!": str, "nodeName": str, "devices": [{}]}},
    "ResourceClaim": {
        "metadata": {"name!": str, "namespace!": str},
        # In v1beta1, a request is what "exactly" is later.
        "spec": {"devices": {"requests": [{"name!": str, "exactly": _WISH, "firstAvailable": [_WISH], **_WISH}]}},
    },
}
"""By kind, as ``api_json.shaped`` has it."""
