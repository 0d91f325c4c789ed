# SPDX-License-Identifier: Apache-2.0
"""uninstall.yml takes nothing that is not ours."""

from __future__ import annotations

import pytest

from sim.cluster import NodeSpec, Spec
from sim.cluster.client import Api

from .conftest import Start

pytestmark = pytest.mark.full
DAEMONSETS = "/apis/apps/v1/namespaces/kube-system/daemonsets"


# By host, what is in directories that variables name.
THEIRS = {
    "control": ["etc/kubernetes/pki/ca.key", "etc/kubernetes/pki/etcd/ca.key"],
    "gpu-a": ["home/gpu/thesis.tex", "home/gpu/site.run", "var/lib/dpkg/status", "var/lib/containers/storage/db.sql"],
}
OURS = {
    "control": ["etc/kubernetes/pki/ca/ca.key", "etc/kubernetes/pki/extender/server.key"],
    "gpu-a": ["home/gpu/driver.run", "var/lib/ledger.db", f"var/lib/containers/{'0' * 32}/policy"],
}


def test_what_others_have_stays(start: Start) -> None:
    """A DaemonSet with the name of ours, and files in directories that they share with us."""
    books = start(Spec("control", (NodeSpec("gpu-a", "t4"),)))
    theirs, ours = (
        [books.cluster.root / host / name for host, names in files.items() for name in names]
        for files in (THEIRS, OURS)
    )
    for path in theirs + ours:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    api, labels = Api(books.cluster.kubeconfig), {"name": "gpu-manager-ds"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "gpu-manager", "image": "i"}]}}
    head = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "gpu-manager-daemonset"}}
    api.create(DAEMONSETS, head | {"spec": {"selector": {"matchLabels": labels}, "template": template}})
    done = books.run(
        "accel.kubernetes.uninstall",
        driver_uninstall=True,
        driver_runfile="https://example.com/driver.run",
        driver_runfile_dir=str(books.cluster.root / "gpu-a/home/gpu"),
        gpu_plugins_state_dir="/var/lib",
        scheduler_pki_dir="/etc/kubernetes/pki",
    )
    assert done.code == 0, done.output
    assert [item["metadata"]["name"] for item in api.get(DAEMONSETS)["items"]] == ["gpu-manager-daemonset"]
    assert [path for path in theirs if not path.exists()] == []
    assert [path for path in ours if path.exists()] == []
    assert not (books.cluster.root / "control/etc/kubernetes/pki/ca").exists()
