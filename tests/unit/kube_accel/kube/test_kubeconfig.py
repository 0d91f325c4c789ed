# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import trustme

from kube_accel.kube.kubeconfig import KubeconfigError, client_from_kubeconfig, client_in_cluster
from unit.kube_accel.api_server import serving

PATCH = {"metadata": {"annotations": {"a": "b"}}}


def kubeconfig(path: Path, cluster: dict[str, Any], user: dict[str, Any]) -> Path:
    document = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "other", "cluster": {}}, {"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(json.dumps(document))
    return path


def test_certificates_may_be_files_beside_it_or_inside_it(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    (tmp_path / "token").write_text("secret\n")
    data = base64.b64encode(authority.cert_pem.bytes()).decode()
    with serving(authority) as server:
        url = f"https://127.0.0.1:{server.port}"
        for cluster in ({"certificate-authority": "ca.crt"}, {"certificate-authority-data": data}):
            for user in ({"tokenFile": "token"}, {"token": "secret"}):
                client = client_from_kubeconfig(kubeconfig(tmp_path / "config", {"server": url, **cluster}, user))
                client.patch("/api/v1/nodes/a", PATCH)
        assert len(server.requests) == 4
        for request in server.requests:
            assert request.headers["Authorization"] == "Bearer secret"
            assert request.headers["Content-Type"] == "application/merge-patch+json"
            assert request.body == PATCH


@pytest.mark.parametrize(
    ("cluster", "user", "reason"),
    [
        ({}, {"token": "t"}, "server"),
        ({"server": "https://x", "insecure-skip-tls-verify": True}, {"token": "t"}, "certificate-authority"),
        ({"server": "https://x"}, {"exec": {"command": "login"}}, "helper programs are not run"),
        ({"server": "https://x", "certificate-authority-data": "%"}, {"token": "t"}, "give one that kubectl accepts"),
    ],
)
def test_what_cannot_be_used_is_said(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], reason: str
) -> None:
    with pytest.raises(KubeconfigError, match=reason):
        client_from_kubeconfig(kubeconfig(tmp_path / "config", cluster, user))


@pytest.mark.parametrize("text", ["", "- 1", "{", "current-context: nobody"])
def test_a_file_that_is_none_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(KubeconfigError, match="config cannot be used"):
        client_from_kubeconfig(tmp_path / "config")


def test_outside_a_cluster_the_remedy_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match="--kubeconfig"):
        client_in_cluster(tmp_path, {})
