# SPDX-License-Identifier: Apache-2.0
"""The same requests against the simulated and a real API server: same codes, same shape of answers.

What the real one answered is kept in ``real_answers.json``, so that ours is held to it where there is no real one.
Where there is one, it is asked again; SIM_RECORD=1 keeps what it says.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sim.cluster.apiserver import ApiServer, Authority
from sim.cluster.client import JSON_PATCH, MERGE, Api, pod, until
from sim.cluster.kinds import CUSTOM, KINDS, Object, dig
from sim.cluster.store import Store

NS = "/api/v1/namespaces/conformance"
APPS = "/apis/apps/v1/namespaces/conformance"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
RECORD = Path(__file__).with_name("real_answers.json")
STRATEGIC = "application/strategic-merge-patch+json"
Step = Callable[[Api], Any]


def _binaries() -> Path | None:
    places = (os.environ.get("KUBEBUILDER_ASSETS", ""), "/usr/local/kubebuilder/bin")
    return next((Path(item) for item in places if item and (Path(item) / "kube-apiserver").exists()), None)


def _ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@pytest.fixture(scope="module")
def ours() -> Iterator[Api]:
    store = Store()
    for name in ("default", "kube-system"):
        store.create("namespaces", "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    server = ApiServer(store, Authority(), lambda *_: Path("/nonexistent"))
    server.start()
    with tempfile.NamedTemporaryFile("w") as config:
        config.write(server.kubeconfig("admin", server.admin_token))
        config.flush()
        yield _prepared(Api(Path(config.name)))
    server.stop()


@pytest.fixture(scope="module")
def real() -> Iterator[Api]:
    binaries = _binaries()
    if not binaries:
        pytest.skip("no kube-apiserver and etcd in $KUBEBUILDER_ASSETS or /usr/local/kubebuilder/bin")
    client, peer, port = _ports(3)
    directory = Path(tempfile.mkdtemp(prefix="kc"))
    key, token = directory / "sa.key", "conformance"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    (directory / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
    etcd_url = f"http://127.0.0.1:{client}"
    commands: list[list[str]] = [
        [
            str(binaries / "etcd"),
            f"--data-dir={directory}/etcd",
            f"--listen-client-urls={etcd_url}",
            f"--advertise-client-urls={etcd_url}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            "--unsafe-no-fsync",
        ],
        [
            str(binaries / "kube-apiserver"),
            f"--etcd-servers={etcd_url}",
            f"--cert-dir={directory}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            "--service-cluster-ip-range=10.0.0.0/24",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--token-auth-file={directory}/tokens.csv",
            "--authorization-mode=RBAC",
        ],
    ]
    with (directory / "log").open("w") as log:
        processes = [subprocess.Popen(command, stdout=log, stderr=log) for command in commands]
    try:
        certificate = directory / "apiserver.crt"
        until(lambda: certificate.exists() and certificate.stat().st_size, "the API server's certificate")
        api = Api.connect(f"https://127.0.0.1:{port}", certificate.read_text(), token)
        until(lambda: _answers(api), "the real API server")
        yield _prepared(api)
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()
        shutil.rmtree(directory)


def _answers(api: Api) -> bool:
    try:
        return api.call("GET", "/readyz")[0] == 200 and api.call("GET", "/api/v1/namespaces/default")[0] == 200
    except OSError:
        return False


def _prepared(api: Api) -> Api:
    """With a namespace and its service account, which a controller would have made."""
    api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "conformance"}})
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    assert api.call("POST", f"{NS}/serviceaccounts", account)[0] in (201, 409)
    return api


def shape(answer: tuple[int, Any]) -> Any:
    """What two servers must agree on: not uids, times, versions, defaults, nor the wording of every message."""
    code, body = answer
    if not isinstance(body, dict):
        return code, type(body).__name__
    if body.get("kind") == "Status":
        details = body.get("details") or {}
        message = body.get("message", "") if body.get("reason") in ("NotFound", "AlreadyExists") else ""
        kept = {key: details.get(key) for key in ("name", "kind", "group")}
        # We stop at the first.
        causes = [(item.get("field"), item.get("reason")) for item in details.get("causes", ())[:1]]
        return code, body["status"], body.get("reason"), body.get("code"), message, kept, causes, "uid" in details
    metadata = body.get("metadata", {})
    kept = {key: metadata.get(key) for key in ("name", "namespace", "labels", "annotations", "generation")}
    # The registry of DaemonSets adds an annotation for clients of long ago.
    ours_alone = (kept["annotations"] or {}).items() - {("deprecated.daemonset.template.generation", "1")}
    kept |= {
        "annotations": sorted(ours_alone),
        "marked": "deletionTimestamp" in metadata,
        "version": "resourceVersion" in metadata,
        "uid": "uid" in metadata,
        "status": "status" in body,
    }
    values = {path: dig(body, path) for path in ("spec.nodeName", "status.phase", "spec.replicas", "data", "handler")}
    items = [(item["metadata"]["name"], "kind" in item) for item in body.get("items", ())]
    return code, body.get("kind"), body.get("apiVersion"), kept, values, items


def request(method: str, path: str, body: Any = None, media: str = "application/json") -> Step:
    return lambda api: shape(api.call(method, path, body, media))


def body(api_version: str, kind: str, name: str = "", **fields: Any) -> Object:
    metadata = fields.pop("metadata", {}) | ({"name": name} if name else {})
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}


def config_map(name: str = "", **fields: Any) -> Object:
    return body("v1", "ConfigMap", name, **fields)


def workload(kind: str, name: str, selector: Object, **spec: Any) -> Object:
    template = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    return body("apps/v1", kind, name, spec={"selector": {"matchLabels": selector}, "template": template, **spec})


def stale_put(api: Api) -> Any:
    old = api.get(f"{NS}/configmaps/a")
    api.call("PATCH", f"{NS}/configmaps/a", {"data": {"k": "newer"}}, MERGE)
    return shape(api.call("PUT", f"{NS}/configmaps/a", old | {"data": {"k": "mine"}}))


def fresh_put(api: Api) -> Any:
    return shape(api.call("PUT", f"{NS}/configmaps/a", api.get(f"{NS}/configmaps/a") | {"data": {"k": "mine"}}))


def same_version_after_nothing(api: Api) -> Any:
    before = api.get(f"{NS}/configmaps/a")
    after = api.call("PATCH", f"{NS}/configmaps/a", {"data": {"k": before["data"]["k"]}}, MERGE)[1]
    return after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


def generated_name(api: Api) -> Any:
    name = api.create(f"{NS}/configmaps", config_map(metadata={"generateName": "gen-"}))["metadata"]["name"]
    api.call("DELETE", f"{NS}/configmaps/{name}")
    return name.startswith("gen-"), len(name)


def generations(api: Api) -> Any:
    path, seen = f"{APPS}/daemonsets/ds", []
    for sub, change in (
        ("", {"metadata": {"labels": {"new": "label"}}}),
        ("", {"spec": {"minReadySeconds": 3}}),
        ("/status", {"status": {"numberReady": 7}, "spec": {"minReadySeconds": 9}}),
        ("", {"status": {"numberReady": 9}}),
    ):
        answer = api.call("PATCH", path + sub, change, MERGE)[1]
        seen.append(
            (answer["metadata"]["generation"], answer["status"]["numberReady"], answer["spec"]["minReadySeconds"])
        )
    return seen


def binding(uid: str = "", target: str = "somewhere") -> Object:
    metadata: Object = {"name": "p", "annotations": {"kube-accel.io/assignment": "x"}} | ({"uid": uid} if uid else {})
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": {"kind": "Node", "name": target}}


def watched(query: str) -> Step:
    """What a watcher is told while a config map comes, changes its label and goes."""

    def step(api: Api) -> Any:
        version = api.get(f"{NS}/configmaps")["metadata"]["resourceVersion"]
        with api.open(
            "GET", f"{NS}/configmaps?watch=true&timeoutSeconds=2&resourceVersion={version}&{query}"
        ) as answer:
            api.create(f"{NS}/configmaps", config_map("w", metadata={"labels": {"colour": "red"}}))
            api.call("PATCH", f"{NS}/configmaps/w", {"data": {"a": "b"}}, MERGE)
            api.call("PATCH", f"{NS}/configmaps/w", {"metadata": {"labels": {"colour": "blue"}}}, MERGE)
            api.call("DELETE", f"{NS}/configmaps/w")
            events = [json.loads(line) for line in answer]
        return [(event["type"], event["object"]["metadata"]["name"], event["object"]["kind"]) for event in events]

    return step


def first_watch_events(api: Api) -> Any:
    """Without a version, what exists comes first."""
    with api.open("GET", f"{NS}/configmaps?watch=true&timeoutSeconds=1&fieldSelector=metadata.name=a") as answer:
        return [(event["type"], event["object"]["metadata"]["name"]) for event in map(json.loads, answer)]


def anonymous(api: Api) -> Any:
    return shape(api.with_token("wrong").call("GET", f"{NS}/configmaps"))


_AMOUNTS = (
    *("0", "1", "64", "100", "999", "1000", "1840", "2000", "1500k", "1000000", "1.5k", "0.5", "100m", "1000m"),
    *(
        "0.0000000001",
        "1e3",
        "5e1",
        "1Ki",
        "1000Ki",
        "1024Ki",
        "64Mi",
        "512Gi",
        "0.5Gi",
        "1.5Gi",
        "0.5Ki",
        "100E",
        1000,
        0.5,
    ),
)


def quantities(api: Api) -> Any:
    """As they stand in a container's limits, a workload's template, a node's status and a quota."""
    resources = {"resources": {"limits": {"nvidia.com/gpu": "1000", "cpu": 2000, "memory": "2048Mi"}}}
    api.create(f"{NS}/pods", pod("amounts", container=resources))
    set_ = workload("DaemonSet", "amounts", {"app": "x"})
    set_["spec"]["template"]["spec"]["initContainers"] = [
        {"name": "i", "image": "i", "resources": {"requests": {"cpu": "0.10"}}}
    ]
    api.create(f"{APPS}/daemonsets", set_)
    api.create("/api/v1/nodes", body("v1", "Node", "amounts"))
    told = {"allocatable": {"example.org/a": "1000"}, "capacity": {"example.org/a": "2000"}}
    api.call("PATCH", "/api/v1/nodes/amounts/status", {"status": told}, MERGE)
    hard = {f"requests.example.org/a{number}": amount for number, amount in enumerate(_AMOUNTS)}
    api.create(f"{NS}/resourcequotas", body("v1", "ResourceQuota", "amounts", spec={"hard": hard}))
    api.call("PATCH", f"{NS}/resourcequotas/amounts", {"spec": {"hard": {"pods": "1e3"}}}, MERGE)
    used = {"status": {"hard": {"pods": "1000"}, "used": {"pods": "3000"}}}
    api.call("PATCH", f"{NS}/resourcequotas/amounts/status", used, MERGE)
    quota = api.get(f"{NS}/resourcequotas/amounts")
    paths = (
        f"{NS}/pods/amounts",
        f"{APPS}/daemonsets/amounts",
        "/api/v1/nodes/amounts",
        f"{NS}/resourcequotas/amounts",
    )
    limited, template, node = (api.get(path) for path in paths[:3])
    for path in paths:
        api.call("DELETE", path, {"gracePeriodSeconds": 0})
    return [
        limited["spec"]["containers"][0]["resources"]["limits"],
        template["spec"]["template"]["spec"]["initContainers"][0]["resources"],
        [node["status"][key]["example.org/a"] for key in ("allocatable", "capacity")],
        [(str(amount), quota["spec"]["hard"][name]) for name, amount in hard.items()],
        quota["spec"]["hard"]["pods"],
        quota["status"],
    ]


ROLE_REF = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
STEPS: dict[str, Step] = {
    "not authenticated": anonymous,
    "create": request("POST", f"{NS}/configmaps", config_map("a", data={"k": "v"}, metadata={"labels": {"app": "x"}})),
    "create again": request("POST", f"{NS}/configmaps", config_map("a")),
    "get": request("GET", f"{NS}/configmaps/a"),
    "get what is not there": request("GET", f"{NS}/configmaps/none"),
    "create in no namespace": request("POST", "/api/v1/namespaces/none/configmaps", config_map("a")),
    "create without a name": request("POST", f"{NS}/configmaps", config_map()),
    "create with a bad name": request("POST", f"{NS}/configmaps", config_map("Not_A_Name")),
    "create another kind": request("POST", f"{NS}/configmaps", body("v1", "Pod", "a")),
    "create in another namespace": request(
        "POST", f"{NS}/configmaps", config_map("x", metadata={"namespace": "default"})
    ),
    "create with a number as data": request("POST", f"{NS}/configmaps", config_map("x", data={"k": 1})),
    "create with a number as label": request(
        "POST", f"{NS}/configmaps", config_map("x", metadata={"labels": {"a": 1}})
    ),
    "create with a version": request("POST", f"{NS}/configmaps", config_map("x", metadata={"resourceVersion": "1"})),
    "create something that is not JSON": request("POST", f"{NS}/configmaps", b"{"),
    "generate a name": generated_name,
    "create dry": request("POST", f"{NS}/configmaps?dryRun=All", config_map("dry")),
    "and it is not there": request("GET", f"{NS}/configmaps/dry"),
    "patch dry": request("PATCH", f"{NS}/configmaps/a?dryRun=All", {"data": {"k": "dry"}}, MERGE),
    "delete dry": request("DELETE", f"{NS}/configmaps/a?dryRun=All"),
    "and nothing happened": request("GET", f"{NS}/configmaps/a"),
    "merge patch": request("PATCH", f"{NS}/configmaps/a", {"data": {"k": None, "new": "v"}}, MERGE),
    "merge patch with an old version": request(
        "PATCH", f"{NS}/configmaps/a", {"metadata": {"resourceVersion": "1"}, "data": {"x": "y"}}, MERGE
    ),
    "merge patch of nothing": request("PATCH", f"{NS}/configmaps/none", {"data": {}}, MERGE),
    "JSON patch": request(
        "PATCH",
        f"{NS}/configmaps/a",
        [
            {"op": "test", "path": "/data/new", "value": "v"},
            {"op": "replace", "path": "/data/new", "value": "w"},
            {"op": "add", "path": "/metadata/annotations", "value": {"example.org/a": "1"}},
        ],
        JSON_PATCH,
    ),
    "JSON patch of a key with a slash": request(
        "PATCH", f"{NS}/configmaps/a", [{"op": "remove", "path": "/metadata/annotations/example.org~1a"}], JSON_PATCH
    ),
    "JSON patch whose test fails": request(
        "PATCH", f"{NS}/configmaps/a", [{"op": "test", "path": "/data/new", "value": "other"}], JSON_PATCH
    ),
    "JSON patch without a parent": request(
        "PATCH", f"{NS}/configmaps/a", [{"op": "add", "path": "/none/such", "value": "v"}], JSON_PATCH
    ),
    "JSON patch that is no list": request("PATCH", f"{NS}/configmaps/a", {"op": "add"}, JSON_PATCH),
    "patch of an unknown type": request("PATCH", f"{NS}/configmaps/a", b"x", "text/plain"),
    "put what was changed meanwhile": stale_put,
    "put": fresh_put,
    "put without a version": request("PUT", f"{NS}/configmaps/a", config_map("a", data={"k": "v"})),
    "put under another name": request("PUT", f"{NS}/configmaps/a", config_map("b")),
    "put what is not there": request("PUT", f"{NS}/configmaps/none", config_map("none")),
    "change nothing": same_version_after_nothing,
    "list": request("GET", f"{NS}/configmaps?fieldSelector=metadata.name!=kube-root-ca.crt"),
    "list by label": request("GET", f"{NS}/configmaps?labelSelector=app%3Dx"),
    "list by absent label": request("GET", f"{NS}/configmaps?labelSelector=%21app"),
    "list by label set": request("GET", f"{NS}/configmaps?labelSelector=app%20in%20(x,y),app"),
    "list by other label set": request("GET", f"{NS}/configmaps?labelSelector=app%20notin%20(x)"),
    "list by unequal label": request("GET", f"{NS}/configmaps?labelSelector=app!%3Dy"),
    "list by what is no selector": request("GET", f"{NS}/configmaps?labelSelector=%3D%3D"),
    "list by name": request("GET", f"{NS}/configmaps?fieldSelector=metadata.name%3Da"),
    "list by a field that cannot be selected": request("GET", f"{NS}/configmaps?fieldSelector=data%3Da"),
    "watch": watched(""),
    "watch by label": watched("labelSelector=colour%3Dred"),
    "watch from the beginning": first_watch_events,
    "delete": request("DELETE", f"{NS}/configmaps/a"),
    "delete again": request("DELETE", f"{NS}/configmaps/a"),
    "a group that nobody has": request("GET", "/apis/none.example.org/v1/things"),
    "pod": request("POST", f"{NS}/pods", pod("p", labels={"app": "x"})),
    "pod without containers": request("POST", f"{NS}/pods", body("v1", "Pod", "q", spec={"containers": []})),
    "pod without an image": request("POST", f"{NS}/pods", pod("q", container={"image": ""})),
    "pod with a number in its environment": request(
        "POST", f"{NS}/pods", pod("q", container={"env": [{"name": "A", "value": 1}]})
    ),
    "pod of an unknown runtime class": request("POST", f"{NS}/pods", pod("q", runtimeClassName="none")),
    "pod of an unknown priority class": request("POST", f"{NS}/pods", pod("q", priorityClassName="none")),
    "pod that may not preempt, without a class": request("POST", f"{NS}/pods", pod("q", preemptionPolicy="Never")),
    "pod of an unknown service account": request("POST", f"{NS}/pods", pod("q", serviceAccountName="none")),
    "pods by phase": request("GET", f"{NS}/pods?fieldSelector=status.phase%3DPending,spec.nodeName%3D"),
    "change a pod's command": request(
        "PATCH",
        f"{NS}/pods/p",
        {"spec": {"containers": [{"name": "main", "image": "none", "command": ["x"]}]}},
        MERGE,
    ),
    "a pod's status": request("PATCH", f"{NS}/pods/p/status", {"status": {"phase": "Running"}}, MERGE),
    "bind without a target": request("POST", f"{NS}/pods/p/binding", binding(target="")),
    "bind another pod": request("POST", f"{NS}/pods/p/binding", binding(uid="00000000-0000-0000-0000-000000000000")),
    "bind": request("POST", f"{NS}/pods/p/binding", binding()),
    "bind under another name": request("POST", f"{NS}/pods/none/binding", binding()),
    "bind what is not there": request("POST", f"{NS}/pods/none/binding", binding() | {"metadata": {"name": "none"}}),
    "bound, with annotations": request("GET", f"{NS}/pods/p"),
    "bind again": request("POST", f"{NS}/pods/p/binding", binding()),
    "pods by node": request("GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dsomewhere"),
    "delete a bound pod": request("DELETE", f"{NS}/pods/p"),
    "delete it at once": request("DELETE", f"{NS}/pods/p", {"gracePeriodSeconds": 0}),
    "and it is gone": request("GET", f"{NS}/pods/p"),
    "daemon set": request("POST", f"{APPS}/daemonsets", workload("DaemonSet", "ds", {"app": "x"}, minReadySeconds=1)),
    "daemon set whose selector misses": request("POST", f"{APPS}/daemonsets", workload("DaemonSet", "x", {"app": "y"})),
    "change a selector": request(
        "PATCH", f"{APPS}/daemonsets/ds", {"spec": {"selector": {"matchLabels": {"new": "x"}}}}, MERGE
    ),
    "generation follows the spec, status its own path": generations,
    "deployment": request("POST", f"{APPS}/deployments", workload("Deployment", "d", {"app": "x"})),
    "role binding": request(
        "POST",
        f"{RBAC}/clusterrolebindings",
        body("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "b", roleRef=ROLE_REF),
    ),
    "change a role reference": request("PATCH", f"{RBAC}/clusterrolebindings/b", {"roleRef": {"name": "edit"}}, MERGE),
    "runtime class": request(
        "POST", "/apis/node.k8s.io/v1/runtimeclasses", body("node.k8s.io/v1", "RuntimeClass", "r", handler="h")
    ),
    "runtime class without a handler": request(
        "POST", "/apis/node.k8s.io/v1/runtimeclasses", body("node.k8s.io/v1", "RuntimeClass", "s")
    ),
    "change a handler": request("PATCH", "/apis/node.k8s.io/v1/runtimeclasses/r", {"handler": "other"}, MERGE),
    "node": request("POST", "/api/v1/nodes", body("v1", "Node", "n", metadata={"labels": {"a": "b"}})),
    "node status": request("PATCH", "/api/v1/nodes/n/status", {"status": {"capacity": {"nvidia.com/gpu": "8"}}}, MERGE),
    "node annotation": request("PATCH", "/api/v1/nodes/n", {"metadata": {"annotations": {"k": "v"}}}, MERGE),
    "quantities": quantities,
    "what is no quantity": request(
        "POST", f"{NS}/pods", pod("q", container={"resources": {"limits": {"cpu": "many"}}})
    ),
    "lease": request(
        "POST",
        "/apis/coordination.k8s.io/v1/namespaces/conformance/leases",
        body("coordination.k8s.io/v1", "Lease", "l", spec={"holderIdentity": "me"}),
    ),
    "proxy to no service": request("GET", f"{NS}/services/none/proxy/x"),
    "log of an unknown pod": request("GET", f"{NS}/pods/none/log"),
}


def answers(api: Api) -> Object:
    """By step; through JSON, which knows no tuples."""
    said: Object = json.loads(json.dumps({name: step(api) for name, step in STEPS.items()}))
    return said


def test_simulated_server_answers_as_the_real_one_did(ours: Api) -> None:
    assert answers(ours) == json.loads(RECORD.read_text())


def test_real_server_still_answers_so(real: Api) -> None:
    said = answers(real)
    if os.environ.get("SIM_RECORD"):
        lines = (f"{json.dumps(name)}: {json.dumps(answer)}" for name, answer in said.items())
        RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    assert said == json.loads(RECORD.read_text())


def test_discovery_is_part_of_the_real_one(ours: Api, real: Api) -> None:
    groups = {kind.group for kind in KINDS.values()} - CUSTOM
    for path in (f"/apis/{group}/v1" if group else "/api/v1" for group in groups):
        offered = {item["name"]: item for item in real.get(path)["resources"]}
        for item in ours.get(path)["resources"]:
            theirs = offered[item["name"]]
            for key in ("singularName", "namespaced", "kind", "shortNames"):
                assert item.get(key) == theirs.get(key), item["name"]
            assert set(item["verbs"]) <= set(theirs["verbs"]), item["name"]
    assert {group["name"] for group in ours.get("/apis")["groups"]} <= {
        group["name"] for group in real.get("/apis")["groups"]
    }


def test_bookmark_comes_in_silence_to_who_allows_it(ours: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.cluster.apiserver._BOOKMARK", 0.2)
    version = ours.get(f"{NS}/configmaps")["metadata"]["resourceVersion"]
    path = f"{NS}/configmaps?watch=true&timeoutSeconds=1&resourceVersion={version}"
    with ours.open("GET", path) as answer:
        assert list(answer) == []
    with ours.open("GET", f"{path}&allowWatchBookmarks=true") as answer:
        event = json.loads(answer.readline())
    wanted = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"resourceVersion": version}}
    assert event == {"type": "BOOKMARK", "object": wanted}


def test_conditions_of_a_node_are_merged_by_type_and_deleted(ours: Api, real: Api) -> None:
    found = []
    for api in (ours, real):
        api.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "judged"}})
        for patch in (
            {"type": "Ready", "status": "True", "reason": "KubeletReady"},
            {"type": "GpusHealthy", "status": "True", "reason": "GpusHealthy", "message": "all"},
            {"type": "GpusHealthy", "status": "False", "reason": "GpuUnhealthy"},
            {"type": "Gone", "status": "True"},
            {"type": "Gone", "$patch": "delete"},
            {"type": "Never", "$patch": "delete"},
        ):
            body = {"status": {"conditions": [patch]}}
            code, _ = api.call("PATCH", "/api/v1/nodes/judged/status", body, STRATEGIC)
            assert code == 200
        conditions = api.get("/api/v1/nodes/judged")["status"]["conditions"]
        times = ("lastHeartbeatTime", "lastTransitionTime")
        kept = [{key: value for key, value in item.items() if key not in times} for item in conditions]
        found.append(sorted(kept, key=lambda item: item["type"]))
    assert found[0] == found[1]
    assert [item["status"] for item in found[0]] == ["False", "True"]


@pytest.mark.parametrize("server", ["ours", "real"])
def test_a_node_without_taints_has_no_list_of_them(server: str, request: pytest.FixtureRequest) -> None:
    api: Api = request.getfixturevalue(server)
    node = "/api/v1/nodes/tainted"
    api.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "tainted"}, "spec": {}})
    for taints in ([{"key": "a", "effect": "NoSchedule"}], []):
        code, _ = api.call("PATCH", node, [{"op": "add", "path": "/spec/taints", "value": taints}], JSON_PATCH)
        assert code == 200
        assert [item["key"] for item in api.get(node)["spec"].get("taints", ())][:1] == [item["key"] for item in taints]
    assert "taints" not in api.get(node)["spec"]


def test_a_namespace_that_is_deleted_ends_and_default_stays(ours: Api) -> None:
    ours.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ending"}})
    ours.create("/api/v1/namespaces/ending/configmaps", config_map("a"))
    code, answer = ours.call("DELETE", "/api/v1/namespaces/ending")
    assert (code, answer["status"]["phase"]) == (200, "Terminating")
    assert ours.call("DELETE", "/api/v1/namespaces/default")[0] == 403


@pytest.mark.parametrize("media", [STRATEGIC, "application/apply-patch+yaml"])
def test_patch_types_nobody_needs_are_refused(ours: Api, media: str) -> None:
    ours.create(f"{NS}/configmaps", config_map(f"refused-{len(media)}"))
    code, answer = ours.call("PATCH", f"{NS}/configmaps/refused-{len(media)}", {"data": {}}, media)
    assert (code, answer["reason"]) == (415, "UnsupportedMediaType")
    assert "application/merge-patch+json" in answer["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/apis/batch/v1/cronjobs"),
        ("GET", f"{NS}/endpoints"),
        ("DELETE", f"{NS}/configmaps"),
    ],
)
def test_what_is_not_simulated_says_so(ours: Api, method: str, path: str) -> None:
    code, answer = ours.call(method, path, {} if method == "POST" else None)
    assert (code, answer["reason"]) == (501, "NotImplemented")
