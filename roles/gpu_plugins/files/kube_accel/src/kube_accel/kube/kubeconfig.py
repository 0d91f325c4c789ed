# SPDX-License-Identifier: Apache-2.0
"""Where the API server is and who we are there: from a kubeconfig, or from the service account of our pod."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kube_accel.kube.api import in_cluster as in_cluster_api
from kube_accel.kube.client import Credentials, KubeClient
from kube_accel.shared.api_json import ODD


class KubeconfigError(Exception):
    """There is no API server to be found; the message says where we looked and what to do."""


def client_from_kubeconfig(path: Path) -> KubeClient:
    """Return the current context's API server, as that context's user.

    Raises KubeconfigError, also for users that need a helper program.
    """
    import yaml  # loaded where there is a kubeconfig: in a cluster there is none

    try:
        document = yaml.safe_load(path.read_text())
        context = _named(document, "contexts", document["current-context"])["context"]
        cluster = _named(document, "clusters", context["cluster"])["cluster"]
        user = _named(document, "users", context["user"])["user"]
        server = cluster["server"]
        if not isinstance(server, str):
            raise TypeError("server is not a string")
        credentials = Credentials(
            ca_file=_file(path, cluster, "certificate-authority"),
            token_file=_file(path, user, "tokenFile") if "tokenFile" in user else None,
            cert_file=_file(path, user, "client-certificate"),
            key_file=_file(path, user, "client-key"),
            token=str(user.get("token", "")),
        )
    except (OSError, yaml.YAMLError, *ODD) as error:
        raise KubeconfigError(
            f"--kubeconfig {path} cannot be used: {error!r}; give one that kubectl accepts"
        ) from error
    if cluster.get("insecure-skip-tls-verify"):
        raise KubeconfigError(f"--kubeconfig {path} skips the check of the API server; name its certificate-authority")
    if not (credentials.token or credentials.token_file or credentials.cert_file):
        raise KubeconfigError(f"--kubeconfig {path} has neither a token nor a certificate; helper programs are not run")
    return KubeClient(server, credentials)


def client_in_cluster(service_account_dir: Path, environment: Mapping[str, str] = os.environ) -> KubeClient:
    """Return a client of the API server that kubelet names in every pod. Raises KubeconfigError outside."""
    api = in_cluster_api(service_account_dir, environment)
    if api is None:
        raise KubeconfigError("KUBERNETES_SERVICE_HOST and _PORT are not set: not in a pod; give --kubeconfig")
    return KubeClient(api.url, Credentials(service_account_dir / "ca.crt", service_account_dir / "token"))


def _named(document: Mapping[str, Any], key: str, name: str) -> dict[str, Any]:
    for entry in document[key]:
        if entry["name"] == name:
            return dict(entry)
    raise LookupError(f"no entry {name!r} in {key}")


def _file(kubeconfig: Path, entry: Mapping[str, Any], key: str) -> Path | None:
    if key in entry:
        return kubeconfig.parent / str(entry[key])
    data = entry.get(f"{key}-data")
    if data is None:
        return None
    # The ssl module takes certificates from files only; this one never reaches a disk.
    descriptor = os.memfd_create(key)
    os.write(descriptor, base64.b64decode(data, validate=True))
    return Path(f"/proc/self/fd/{descriptor}")
