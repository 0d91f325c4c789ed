# SPDX-License-Identifier: Apache-2.0
"""The few requests our daemons send to the API server, with the pod's own service account."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kube_accel.kube.connections import Connections
from kube_accel.shared.api_json import ApiJsonError, checked, read_object
from kube_accel.shared.printable import line

_SILENCE_SECONDS = 10.0


class ApiError(Exception):
    """The API server could not be asked, or said no."""


class ApiUnreachableError(ApiError):
    """No answer: connection, TLS or credentials' files."""


class ApiRefusedError(ApiError):
    """An answer other than 2xx."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"API server answered {status}: {message}")
        self.status = status


@dataclass(frozen=True, slots=True)
class ApiClient:
    """An API server and where our credentials for it lie."""

    url: str
    service_account_dir: Path

    def annotate_node(self, name: str, annotations: Mapping[str, str | None]) -> None:
        """Set annotations of a node, or remove those that are None; all others stay.

        Raises ApiError.
        """
        self.patch_node(name, {"annotations": annotations})

    def patch_node(self, name: str, metadata: Mapping[str, Mapping[str, str | None]]) -> None:
        """Set labels and annotations of a node, or remove those that are None; all others stay.

        Raises ApiError.
        """
        patch = {"metadata": {field: dict(values) for field, values in metadata.items() if values}}
        self._send("PATCH", _node(name), "application/merge-patch+json", patch)

    def node(self, name: str) -> dict[str, Any]:
        """Return a node as the API server has it. Raises ApiError."""
        data = self._send("GET", _node(name))
        try:
            return checked(read_object(data))
        except ApiJsonError as error:
            remedy = f"see kubectl get node {name} --output=yaml, and correct it"
            raise ApiRefusedError(200, f"its answer is no node: {error}; {remedy}") from error

    def patch_node_status(self, name: str, status: Mapping[str, object]) -> None:
        """Merge into a node's status; lists as its keys have it, so that others' conditions stay.

        Raises ApiError.
        """
        path = f"/api/v1/nodes/{quote(name, safe='')}/status"
        self._send("PATCH", path, "application/strategic-merge-patch+json", {"status": dict(status)})

    def create_event(self, namespace: str, event: Mapping[str, object]) -> None:
        """Create an Event. Raises ApiError."""
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/events"
        self._send("POST", path, "application/json", dict(event))

    def _send(self, method: str, path: str, content_type: str = "", body: object = None) -> bytes:
        # Requests are rare, credentials rotate: a connection lives for one request, so that none outlives its files.
        # No redirects: those would be handed our token.
        ca = self.service_account_dir / "ca.crt"
        fields = {"Content-Type": content_type} if content_type else {}
        content = json.dumps(body).encode() if content_type else None
        try:
            fields["Authorization"] = f"Bearer {(self.service_account_dir / 'token').read_text().strip()}"
            connections = Connections(self.url, trusting(ca))
            connections.end()  # after the answer
            answer = connections.ask(method, path, fields, content, _SILENCE_SECONDS)
        except (OSError, ValueError) as error:
            raise ApiUnreachableError(f"API server {self.url} not reached: {error}") from error
        if not 200 <= answer.status < 300:
            raise ApiRefusedError(answer.status, status_message(answer.body))
        return answer.body


def pod_path(namespace: str, name: str) -> str:
    """Return where the API server has a pod."""
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"


def claim_path(namespace: str, name: str) -> str:
    """Return where the API server has a ResourceClaim."""
    return f"/apis/resource.k8s.io/v1/namespaces/{quote(namespace, safe='')}/resourceclaims/{quote(name, safe='')}"


def template_path(namespace: str, name: str) -> str:
    """Return where the API server has a ResourceClaimTemplate."""
    group = "/apis/resource.k8s.io/v1"
    return f"{group}/namespaces/{quote(namespace, safe='')}/resourceclaimtemplates/{quote(name, safe='')}"


def trusting(ca_file: Path | None) -> ssl.SSLContext:
    """Return a context that trusts this authority, or the system's if it is None. Raises OSError."""
    context = ssl.create_default_context(cafile=ca_file)
    # Python 3.13 asks more of an authority than clusters of MicroK8s, and old ones of kubeadm and EKS, have: key
    # identifiers and key usage. kubectl and kubelet do not.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _node(name: str) -> str:
    return f"/api/v1/nodes/{quote(name, safe='')}"


def status_message(body: bytes) -> str:
    """Return the sentence of a ``metav1.Status``, or the start of whatever came instead, as one harmless line."""
    with suppress(ApiJsonError):
        message = read_object(body).get("message")
        if isinstance(message, str):
            return line(message)
    return line(body[:200].decode(errors="replace"))


def in_cluster(service_account_dir: Path, environment: Mapping[str, str] = os.environ) -> ApiClient | None:
    """Return the API server kubelet names in every pod's environment; None outside a cluster."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        return None
    return ApiClient(f"https://{f'[{host}]' if ':' in host else host}:{port}", service_account_dir)
