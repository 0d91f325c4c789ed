# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""See that a kube-scheduler leads: one that answers its health check may still lack the right to do any work."""

from __future__ import annotations

import base64
import http.client
import os
import ssl
from dataclasses import dataclass
from typing import Any, Callable, Dict, Mapping
from urllib.parse import urlsplit

from ansible_collections.accel.kubernetes.plugins.module_utils.documents import yaml_text
from ansible_collections.accel.kubernetes.plugins.module_utils.host.machine import Host
from ansible_collections.accel.kubernetes.plugins.module_utils.host.service import Watch
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.api_json import ODD, fit, read_object
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.printable import line


class LeaseError(Exception):
    """The Lease cannot be read. Says why."""


@dataclass(frozen=True)
class Lease:
    """What the schedulers of a cluster elect their leader by, and how one of them reads it."""

    kubeconfig: str
    """Path on this machine."""
    namespace: str
    name: str
    root: str = "/"
    """Where the machine's file system is seen."""


def lease_watch(lease: Lease | None, warn: Callable[[str], None]) -> Watch:
    """Return a watch that calls the service well once the Lease was renewed again after it had been asked.

    Without a Lease, or with one that could not be read before the change, it is well at once; the latter is warned of.
    """

    def watch(host: Host, undoing: bool) -> Callable[[], str]:
        del undoing
        if lease is None:
            return lambda: ""
        try:
            renewed(host, lease)
        except LeaseError as error:
            warn(f"Whether a kube-scheduler leads was not checked: {error}")
            return lambda: ""
        first = ""

        def probe() -> str:
            nonlocal first
            try:
                latest = renewed(host, lease)
            except LeaseError as error:
                return str(error)
            if first and latest != first:
                return ""
            first = latest
            return f"no kube-scheduler has renewed the Lease {lease.namespace}/{lease.name}"

        return probe

    return watch


def renewed(host: Host, lease: Lease) -> str:
    """Return when the Lease was last renewed, as the API writes it; empty without a holder. Raises LeaseError."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{lease.namespace}/leases/{lease.name}"
    try:
        server, user = _entries(host, lease)
        parts = urlsplit(str(server["server"]))
        connection = http.client.HTTPSConnection(
            parts.hostname or "", parts.port or 443, timeout=5, context=_context(host, lease, server, user)
        )
        headers = {"Accept": "application/json"}
        if "token" in user:
            headers["Authorization"] = f"Bearer {user['token']}"
        try:
            connection.request("GET", parts.path.rstrip("/") + path, headers=headers)
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise LeaseError(f"{server['server']} answers with status {answer.status} for the Lease {lease.name}")
        found = read_object(body)
        fit(found, {"spec": {"holderIdentity": str, "renewTime": str}}, "its object")
        spec: Dict[str, Any] = found.get("spec") or {}
        return str(spec.get("renewTime") or "") if spec.get("holderIdentity") else ""
    except (OSError, http.client.HTTPException, *ODD, yaml_text.YamlError) as error:
        see = f"see kubectl --namespace {lease.namespace} get lease {lease.name} --output=yaml"
        what = f"the Lease {lease.namespace}/{lease.name} cannot be read with {lease.kubeconfig}"
        raise LeaseError(line(f"{what}: {error}; {see}")) from error


def client_certificate(host: Host, kubeconfig: str, root: str) -> bytes | None:
    """Certificate and key of a kubeconfig's user, None where it has none. Raises LeaseError."""
    lease = Lease(kubeconfig, "", "", root)
    try:
        unused, user = _entries(host, lease)
        del unused
        certificate = _content(host, lease, user, "client-certificate")
        return None if certificate is None else certificate + b"\n" + (_content(host, lease, user, "client-key") or b"")
    except (OSError, *ODD, yaml_text.YamlError) as error:
        raise LeaseError(line(f"{kubeconfig} cannot be read: {error}")) from error


def _entries(host: Host, lease: Lease) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Cluster and user of the kubeconfig's current context."""
    data = host.read(lease.kubeconfig)
    if data is None:
        raise LeaseError(f"{lease.kubeconfig} does not exist")
    config = yaml_text.load(data.decode(), lease.kubeconfig)
    context = _named(config, "contexts", config["current-context"])["context"]
    return _named(config, "clusters", context["cluster"])["cluster"], _named(config, "users", context["user"])["user"]


def _named(config: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    for entry in config[kind]:
        if entry["name"] == name:
            found: Mapping[str, Any] = entry
            return found
    raise KeyError(f"{kind} lacks {name}")


def _context(host: Host, lease: Lease, server: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
    context = ssl.create_default_context()
    # Python 3.13 asks more of an authority than clusters of MicroK8s, and old ones of kubeadm, have, and kubectl does.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    authority = _content(host, lease, server, "certificate-authority")
    if authority is not None:
        context.load_verify_locations(cadata=authority.decode())
    certificate = _content(host, lease, user, "client-certificate")
    if certificate is not None:
        key = _content(host, lease, user, "client-key") or b""
        # The ssl module reads a certificate from files only; a private one here.
        context.load_cert_chain(host.temporary(certificate + b"\n" + key, "client.pem"))
    return context


def _content(host: Host, lease: Lease, entry: Mapping[str, Any], name: str) -> bytes | None:
    if f"{name}-data" in entry:
        return base64.b64decode(entry[f"{name}-data"])
    if name not in entry:
        return None
    path = str(entry[name])
    beside = os.path.join(os.path.dirname(lease.kubeconfig), path)
    data: bytes | None = host.read(os.path.join(lease.root, path.lstrip("/")) if os.path.isabs(path) else beside)
    if data is None:
        raise LeaseError(f"{path}, which {lease.kubeconfig} names, does not exist")
    return data
