# SPDX-License-Identifier: Apache-2.0
"""What a user of the simulated cluster sees: pods run, are placed, restarted, rolled and ended as on a real one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from kube_accel.kube.cgroups import place
from kube_accel.kube.deviceplugin import HEALTHY
from sim.cluster import Cluster, NodeSpec, Spec
from sim.cluster.client import MERGE, Api, command, pod, until
from sim.cluster.kinds import Object, dig

PODS = "/api/v1/namespaces/default/pods"
SERVICES = "/api/v1/namespaces/default/services"
APPS = "/apis/apps/v1/namespaces/default"
TESTS = Path(__file__).parents[2]
SERVER = (
    "import http.server,sys,os;"
    "h=type('H',(http.server.BaseHTTPRequestHandler,),dict(log_message=lambda *a:None,do_GET=lambda s:("
    "s.send_response(200 if os.path.exists('ok') or s.path!='/ready' else 503),s.end_headers(),"
    "s.wfile.write((s.path+' '+os.environ.get('GREETING','')).encode()))));"
    "http.server.HTTPServer((sys.argv[1],8080),h).serve_forever()"
)
WEB: Object = {
    "command": ["python3", "-c", SERVER, "$(POD_IP)"],
    "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
    "ports": [{"name": "web", "containerPort": 8080}],
}


def status(api: Api, name: str) -> Any:
    return api.get(f"{PODS}/{name}")["status"]


def state(api: Api, name: str) -> Any:
    return status(api, name).get("containerStatuses", [{"state": {}}])[0]


def ready(api: Api, name: str) -> bool:
    return condition(api, name, "Ready").get("status") == "True"


def condition(api: Api, name: str, kind: str) -> Object:
    return next((item for item in status(api, name).get("conditions", ()) if item["type"] == kind), {})


def waits_for(api: Api, name: str) -> str:
    return str(dig(state(api, name), "state.waiting.message") or "")


def log(api: Api, name: str) -> str:
    code, text = api.call("GET", f"{PODS}/{name}/log")
    return str(text) if code == 200 else ""


def finished(api: Api, name: str) -> str:
    phase = until(lambda: (p := status(api, name)["phase"]) in ("Succeeded", "Failed") and p, f"{name} to finish")
    return str(phase)


def gone(api: Api, name: str) -> bool:
    return api.call("GET", f"{PODS}/{name}")[0] == 404


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie that nobody waited for."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def node_of(api: Api, name: str) -> str:
    return str(until(lambda: api.get(f"{PODS}/{name}")["spec"].get("nodeName"), f"{name} to be placed"))


def process_of(api: Api, name: str) -> int:
    text = until(lambda: state(api, name).get("containerID"), f"{name} to run")
    return int(text.removeprefix("process://"), 16)


class TestContainers:
    def test_environment_arguments_and_log(self, api: Api, cluster: Cluster) -> None:
        env = [
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['team']"}}},
            {"name": "BOTH", "value": "$(NODE)/$(LABEL)"},
        ]
        command = ["sh", "-c", "echo $BOTH $IP; echo $1; echo $2", "x", "$(LABEL) $$(LABEL) $(NONE)", "--dir=/host/etc"]
        volumes = [{"name": "v", "hostPath": {"path": "/etc"}}]
        container = {"command": command, "env": env, "volumeMounts": [{"name": "v", "mountPath": "/host/etc"}]}
        wish = pod("env", restartPolicy="Never", container=container, volumes=volumes, labels={"team": "a"})
        api.create(PODS, wish)
        assert finished(api, "env") == "Succeeded"
        body = api.get(f"{PODS}/env")
        node, ip = body["spec"]["nodeName"], body["status"]["podIP"]
        assert ip.startswith("127.")
        etc = cluster.root / node / "etc"
        assert log(api, "env").splitlines() == [f"{node}/a {ip}", "a $(LABEL) $(NONE)", f"--dir={etc}"]
        assert (cluster.root / node / "var/log/pods/default_env/main.log").read_text() == log(api, "env")
        assert api.call("GET", f"{PODS}/env/log?tailLines=1") == (200, f"--dir={etc}\n")

    def test_service_account_reaches_the_api_server(self, api: Api) -> None:
        script = (
            "import os,ssl,sys,urllib.request as u;d=sys.argv[1];"
            "e=os.environ;url='https://'+e['KUBERNETES_SERVICE_HOST']+':'+e['KUBERNETES_SERVICE_PORT']+'/version';"
            "r=u.Request(url,headers={'Authorization':'Bearer '+open(d+'/token').read()});"
            "print(u.urlopen(r,context=ssl.create_default_context(cafile=d+'/ca.crt')).status)"
        )
        place = "/var/run/secrets/kubernetes.io/serviceaccount"
        api.create(PODS, pod("account", "python3", "-c", script, place, restartPolicy="Never"))
        assert finished(api, "account") == "Succeeded"
        assert log(api, "account") == "200\n"

    @pytest.mark.parametrize(("policy", "code", "restarts"), [("Always", 0, True), ("OnFailure", 1, True)])
    def test_restarted_with_back_off(self, api: Api, policy: str, code: int, restarts: bool) -> None:
        name = f"crash-{code}"
        api.create(PODS, pod(name, "sh", "-c", f"exit {code}", restartPolicy=policy))
        until(lambda: state(api, name).get("restartCount", 0) >= 2, "two restarts")
        waiting = until(lambda: dig(state(api, name), "state.waiting"), "back-off")
        assert waiting["reason"] == "CrashLoopBackOff"
        assert state(api, name)["lastState"]["terminated"]["exitCode"] == code
        api.call("DELETE", f"{PODS}/{name}")

    def test_log_of_the_run_before_is_kept_and_tailed(self, api: Api) -> None:
        script = "test -e twice && echo second && sleep 1000; touch twice; echo first; exit 1"
        api.create(PODS, pod("again", "sh", "-c", script))
        path = f"{PODS}/again/log"
        until(lambda: api.call("GET", path)[1] == "second\n", "the second run")
        assert api.call("GET", f"{path}?previous=true") == (200, "first\n")
        assert api.call("GET", f"{path}?limitBytes=3") == (200, "sec")
        api.call("DELETE", f"{PODS}/again?gracePeriodSeconds=0")
        api.create(PODS, pod("once-only", "sleep", "1000"))
        until(lambda: ready(api, "once-only"), "it runs")
        assert api.call("GET", f"{PODS}/once-only/log?previous=true")[0] == 400
        api.call("DELETE", f"{PODS}/once-only?gracePeriodSeconds=0")

    def test_not_restarted_and_its_children_end_with_it(self, api: Api) -> None:
        api.create(PODS, pod("once", "sh", "-c", "sleep 1000 & echo $!; exit 3", restartPolicy="Never"))
        assert finished(api, "once") == "Failed"
        assert state(api, "once")["state"]["terminated"]["exitCode"] == 3
        assert state(api, "once")["restartCount"] == 0
        child = int(log(api, "once"))
        # A process that was killed is there until the kernel has come to it.
        until(lambda: not runs(child), "its child to end")

    def test_init_containers_come_first(self, api: Api) -> None:
        mounts = [{"name": "v", "mountPath": "/shared"}]
        # A path is an argument of its own: inside a script it would not be rewritten.
        command = ["sh", "-c", 'echo done > "$1"', "x", "/shared/file"]
        init = [{"name": "init", "image": "none", "command": command, "volumeMounts": mounts}]
        container = {"command": ["cat", "/shared/file"], "volumeMounts": mounts}
        volumes: list[Object] = [{"name": "v", "emptyDir": {}}]
        api.create(PODS, pod("init", restartPolicy="Never", container=container, volumes=volumes, initContainers=init))
        assert finished(api, "init") == "Succeeded"
        assert api.call("GET", f"{PODS}/init/log?container=main") == (200, "done\n")

    def test_failed_init_container_fails_the_pod(self, api: Api) -> None:
        init = [{"name": "init", "image": "none", "command": ["false"]}]
        api.create(PODS, pod("init-fails", "true", restartPolicy="Never", initContainers=init))
        assert finished(api, "init-fails") == "Failed"
        assert "terminated" not in state(api, "init-fails")["state"]

    def test_readiness_and_service_proxy(self, api: Api) -> None:
        probe = {"httpGet": {"path": "/ready", "port": "web"}, "periodSeconds": 1, "failureThreshold": 1}
        api.create(PODS, pod("web", container=WEB | {"readinessProbe": probe}, labels={"app": "web"}))
        spec = {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": "web"}]}
        api.create(SERVICES, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec})
        pid = process_of(api, "web")
        assert not ready(api, "web")
        code, answer = api.call("GET", f"{SERVICES}/http:web:http/proxy/a/b?c=d")
        assert (code, answer["reason"]) == (503, "ServiceUnavailable")
        marker = Path(f"/proc/{pid}/cwd").resolve() / "ok"
        marker.touch()
        until(lambda: ready(api, "web"), "the pod to be ready")
        assert api.call("GET", f"{SERVICES}/http:web:http/proxy/a/b?c=d") == (200, "/a/b?c=d ")
        assert api.call("GET", f"{SERVICES}/web:80/proxy/") == (200, "/ ")
        assert api.call("GET", f"{PODS}/web:8080/proxy/a?b") == (200, "/a?b ")
        # As on a real server: without a port in the URL it is the port without a name.
        assert api.call("GET", f"{SERVICES}/web/proxy/")[0] == 503
        spec = {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "web"}]}
        api.create(SERVICES, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "plain"}, "spec": spec})
        assert api.call("GET", f"{SERVICES}/plain/proxy/") == (200, "/ ")
        marker.unlink()
        until(lambda: not ready(api, "web"), "the pod not to be ready")
        api.call("DELETE", f"{PODS}/web")

    def test_failed_liveness_probe_restarts(self, api: Api) -> None:
        probe = {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 1, "failureThreshold": 1}
        api.create(PODS, pod("sick", container=WEB | {"livenessProbe": probe}))
        until(lambda: state(api, "sick").get("restartCount", 0) >= 1, "a restart")
        events = api.get("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dsick")["items"]
        assert any(item["message"].startswith("Liveness probe failed: ") for item in events)
        api.call("DELETE", f"{PODS}/sick?gracePeriodSeconds=0")

    def test_deleted_pod_gets_its_grace_and_leaves_nothing(self, api: Api, cluster: Cluster) -> None:
        script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done"
        api.create(PODS, pod("polite", "sh", "-c", script))
        until(lambda: log(api, "polite") == "up\n", "its output")
        body, pid = api.get(f"{PODS}/polite"), process_of(api, "polite")
        assert api.call("DELETE", f"{PODS}/polite")[1]["metadata"]["deletionGracePeriodSeconds"] == 2
        until(lambda: gone(api, "polite"), "the pod to go")
        tree = cluster.root / body["spec"]["nodeName"]
        assert (tree / "var/log/pods/default_polite/main.log").read_text() == "up\nbye\n"
        assert not runs(pid)
        assert not (tree / "var/lib/kubelet/pods" / body["metadata"]["uid"]).exists()

    def test_eviction_ends_a_pod_that_its_budget_can_spare(self, api: Api) -> None:
        names = ("spared-1", "spared-2")
        for name in names:
            api.create(PODS, pod(name, "sleep", "1000", labels={"app": "spared"}))
        until(lambda: all(ready(api, name) for name in names), "both ready")
        spec: Object = {"minAvailable": 1, "selector": {"matchLabels": {"app": "spared"}}}
        head = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "spared"}}
        budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
        api.create(budgets, head | {"spec": spec})

        def evict(name: str, under: str = "") -> tuple[int, Any]:
            return api.call("POST", f"{PODS}/{name}/eviction", {"metadata": {"name": under or name}})

        assert evict("spared-1", "spared-2")[0] == 400
        assert evict("spared-3")[0] == 404
        assert evict("spared-1")[0] == 201
        code, answer = evict("spared-2")
        assert (code, answer["reason"]) == (429, "TooManyRequests")
        assert "needs 1 healthy pods and has 1 currently" in answer["details"]["causes"][0]["message"]
        until(lambda: api.call("GET", f"{PODS}/spared-1")[0] == 404, "the evicted pod gone")
        assert ready(api, "spared-2")
        api.call("DELETE", f"{budgets}/spared")
        assert evict("spared-2")[0] == 201

    def test_pod_with_host_processes_sees_their_cgroups(self, api: Api) -> None:
        script = "sleep 1000 & echo $!; env -i sleep 1000 & echo $!; wait"
        api.create(PODS, pod("tenant", "sh", "-c", script))
        children = until(lambda: len(found := log(api, "tenant").split()) == 2 and found, "its processes")
        body, first = api.get(f"{PODS}/tenant"), process_of(api, "tenant")
        files = [f"/proc/{process}/cgroup" for process in (first, *children, os.getpid())]
        read = "import sys; [print(open(name).readline(), end='') for name in sys.argv[1:]]"
        seen = {}
        for name, more in (("of-the-host", {"hostPID": True}), ("of-its-own", {})):
            api.create(PODS, pod(name, "python3", "-c", read, *files, restartPolicy="Never", **more))
            assert finished(api, name) == "Succeeded"
            seen[name] = log(api, name).splitlines()
        *inside, outside = map(place, seen["of-the-host"])
        uid, container = body["metadata"]["uid"], body["status"]["containerStatuses"][0]["containerID"]
        assert {(found.pod_uid, f"process://{found.container_id}") for found in inside if found} == {(uid, container)}
        assert None not in inside
        real = Path(f"/proc/{os.getpid()}/cgroup").read_text().splitlines()[0]
        assert (outside, seen["of-the-host"][-1]) == (place(real), real)
        assert seen["of-its-own"][-1] == real
        assert uid not in str(seen["of-its-own"])
        api.call("DELETE", f"{PODS}/tenant?gracePeriodSeconds=0")

    def test_stubborn_pod_is_killed_with_all_its_processes(self, api: Api) -> None:
        script = "trap '' TERM; sleep 1000 & echo $!; while :; do sleep 0.05; done"
        api.create(PODS, pod("stubborn", "sh", "-c", script, terminationGracePeriodSeconds=1))
        child = int(until(lambda: log(api, "stubborn"), "its output"))
        api.call("DELETE", f"{PODS}/stubborn")
        until(lambda: gone(api, "stubborn"), "the pod to go")
        until(lambda: not runs(child), "its child to go")

    def test_what_is_not_simulated_says_so(self, api: Api) -> None:
        api.create(PODS, pod("volume", "true", volumes=[{"name": "v", "nfs": {"server": "x", "path": "/"}}]))
        message = until(lambda: waits_for(api, "volume"), "a message")
        assert message == "the simulated node does not offer volumes of type ['nfs']"
        api.create(PODS, pod("image"))
        assert "give the container a command" in until(lambda: waits_for(api, "image"), "a message")
        for name in ("volume", "image"):
            api.call("DELETE", f"{PODS}/{name}")

    def test_missing_program_and_missing_host_path(self, api: Api) -> None:
        api.create(PODS, pod("program", "no-such-program"))
        message = until(lambda: waits_for(api, "program"), "a message")
        assert 'exec: "no-such-program": no such file or directory' in message
        volumes = [{"name": "v", "hostPath": {"path": "/no/such", "type": "Directory"}}]
        api.create(PODS, pod("path", "true", volumes=volumes))
        assert "hostPath type check failed: /no/such is not a directory" in until(
            lambda: waits_for(api, "path"), "a message"
        )
        for name in ("program", "path"):
            api.call("DELETE", f"{PODS}/{name}")


class TestRuntimes:
    @pytest.mark.parametrize("node", ["n1", "n2"], ids=["version 2", "version 3"])
    def test_from_unknown_handler_to_gpus(self, api: Api, cluster: Cluster, node: str) -> None:
        """The order in which an administrator meets the mistakes: no runtime, not restarted, no driver."""
        body = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": node}, "handler": "nvidia"}
        api.create("/apis/node.k8s.io/v1/runtimeclasses", body)
        tree, name = cluster.root / node, f"gpu-{node}"
        env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
        container = {"command": ["sh", "-c", "nvidia-smi -L; sleep 1000"], "env": env}
        api.create(PODS, pod(name, container=container, nodeName=node, runtimeClassName=node))
        missing = 'failed to get sandbox runtime: no runtime for "nvidia" is configured'
        assert until(lambda: waits_for(api, name), "a message").endswith(missing)
        config = tree / "etc/containerd/config.toml"
        key = "io.containerd.grpc.v1.cri" if node == "n1" else "io.containerd.cri.v1.runtime"
        table = f'[plugins."{key}".containerd.runtimes.nvidia'
        config.write_text(
            f'{config.read_text()}\n{table}]\nruntime_type = "io.containerd.runc.v2"\n'
            f'{table}.options]\nBinaryName = "/usr/bin/nvidia-container-runtime"\n'
        )
        command(tree, "systemctl", "restart", "containerd")
        until(lambda: "load library failed: libnvidia-ml.so.1" in waits_for(api, name), "the driver to be missed")
        command(tree, "sh", str(next(cluster.root.glob("*.run"))), "--silent", "--no-dkms")
        until(lambda: log(api, name).startswith("GPU 0: "), "the list of GPUs")
        assert len(log(api, name).splitlines()) == {"n1": 8, "n2": 1}[node]
        api.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
        api.create(PODS, pod(f"plain-{node}", container=container, nodeName=node))
        until(lambda: "nvidia-smi: not found" in log(api, f"plain-{node}"), "no GPU without the runtime")
        api.call("DELETE", f"{PODS}/plain-{node}?gracePeriodSeconds=0")


class TestScheduling:
    def test_why_a_pod_waits(self, api: Api) -> None:
        api.create(PODS, pod("big", "true", container={"resources": {"limits": {"example.org/none": "1"}}}))
        wanted = (
            "0/3 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, "
            "2 Insufficient example.org/none."
        )
        until(lambda: condition(api, "big", "PodScheduled").get("message") == wanted, "the reason")
        assert condition(api, "big", "PodScheduled")["reason"] == "Unschedulable"
        uid = api.get(f"{PODS}/big")["metadata"]["uid"]
        by = {"name": "big", "namespace": "default", "kind": "Pod", "uid": uid}  # as kubectl describe asks
        fields = "%2C".join(f"involvedObject.{name}%3D{value}" for name, value in by.items())
        events = api.get(f"/api/v1/namespaces/default/events?fieldSelector={fields}")["items"]
        assert [(item["reason"], item["message"]) for item in events] == [("FailedScheduling", wanted)]

        node = {"status": {"capacity": {"example.org/none": "1"}, "allocatable": {"example.org/none": "1"}}}
        api.call("PATCH", "/api/v1/nodes/n2/status", node, MERGE)
        assert node_of(api, "big") == "n2"
        api.call("DELETE", f"{PODS}/big")

    def test_selectors_tolerations_and_cordon(self, api: Api) -> None:
        api.call("PATCH", "/api/v1/nodes/n1", {"metadata": {"labels": {"rank": "7"}}}, MERGE)

        def affinity(key: str, operator: str, *values: str) -> Object:
            terms = [{"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}]
            required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
            return {"affinity": {"nodeAffinity": required}}

        toleration = {"tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}]}
        wishes = {
            "by-selector": ({"nodeSelector": {"kubernetes.io/hostname": "n2"}}, "n2"),
            "greater": (affinity("rank", "Gt", "5"), "n1"),
            "does-not-exist": (affinity("rank", "DoesNotExist"), "n2"),
            "not-in": (affinity("kubernetes.io/hostname", "NotIn", "n2", "cp"), "n1"),
            "tolerant": (toleration | {"nodeSelector": {"node-role.kubernetes.io/control-plane": ""}}, "cp"),
        }
        for name, (spec, _) in wishes.items():
            api.create(PODS, pod(name, "sleep", "1000", **spec))
        for name, (_, node) in wishes.items():
            assert node_of(api, name) == node
            api.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
        for cordoned in (True, None):
            for node in ("n1", "n2"):
                api.call("PATCH", f"/api/v1/nodes/{node}", {"spec": {"unschedulable": cordoned}}, MERGE)
            if cordoned:
                api.create(PODS, pod("late", "sleep", "1000"))
                message = until(lambda: condition(api, "late", "PodScheduled").get("message"), "the reason")
                assert "2 node(s) were unschedulable" in message
        node_of(api, "late")
        api.call("DELETE", f"{PODS}/late?gracePeriodSeconds=0")


class TestWorkloads:
    def test_daemon_set_rolls_with_surge(self, api: Api, cluster: Cluster) -> None:
        """The new pod is ready before the old one goes: at no moment is a node without a ready pod."""
        probe = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}
        ds = workload("DaemonSet", "agents", updateStrategy={"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}})
        ds["spec"]["template"]["spec"]["containers"][0] |= {"readinessProbe": probe}
        api.create(f"{APPS}/daemonsets", ds)

        def settled() -> bool:
            body = api.get(f"{APPS}/daemonsets/agents")
            numbers = body["status"]
            return (
                numbers.get("observedGeneration") == body["metadata"]["generation"]
                and numbers["desiredNumberScheduled"] == 2
                and numbers.get("updatedNumberScheduled") == numbers["numberReady"] == 2
                and len(pods_of(api, "agents")) == 2
            )

        until(settled, "two pods")
        assert {item["spec"]["nodeName"] for item in pods_of(api, "agents")} == {"n1", "n2"}
        before, version = pods_of(api, "agents"), cluster.store.version
        env = [WEB["env"][0], {"name": "GREETING", "value": "new"}]
        container = ds["spec"]["template"]["spec"]["containers"][0] | {"env": env}
        patch = {"spec": {"template": {"spec": {"containers": [container]}}}}
        assert api.call("PATCH", f"{APPS}/daemonsets/agents", patch, MERGE)[0] == 200
        until(settled, "the update")
        assert not {item["metadata"]["name"] for item in before} & {
            item["metadata"]["name"] for item in pods_of(api, "agents")
        }
        sets = [change.after for change in cluster.store.changes("daemonsets", version) if change.after]
        assert min(item["status"]["numberReady"] for item in sets) == 2

        api.call("PATCH", "/api/v1/nodes/n1", {"metadata": {"labels": {"only": "here"}}}, MERGE)
        only = {"spec": {"template": {"spec": {"nodeSelector": {"only": "here"}}}}}
        api.call("PATCH", f"{APPS}/daemonsets/agents", only, MERGE)
        until(lambda: [item["spec"].get("nodeName") for item in pods_of(api, "agents")] == ["n1"], "n2 to be left")
        assert api.call("DELETE", f"{APPS}/daemonsets/agents")[0] == 200
        until(lambda: not pods_of(api, "agents"), "the pods to be collected")

    def test_daemon_set_waits_for_what_it_names(self, api: Api) -> None:
        ds = workload("DaemonSet", "early")
        ds["spec"]["template"]["spec"]["serviceAccountName"] = "later"
        api.create(f"{APPS}/daemonsets", ds)
        events = "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dearly"
        messages = until(lambda: [item["message"] for item in api.get(events)["items"]], "an event")
        assert 'serviceaccount "later" not found' in messages[0]
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "later"}}
        api.create("/api/v1/namespaces/default/serviceaccounts", account)
        until(lambda: api.get(f"{APPS}/daemonsets/early")["status"]["numberReady"] == 2, "the pods")
        api.call("DELETE", f"{APPS}/daemonsets/early")

    def test_lost_pod_is_replaced(self, api: Api) -> None:
        api.create(f"{APPS}/deployments", workload("Deployment", "service", replicas=2))
        until(lambda: api.get(f"{APPS}/deployments/service")["status"].get("readyReplicas") == 2, "two pods")
        name = pods_of(api, "service")[0]["metadata"]["name"]
        api.call("DELETE", f"{PODS}/{name}")
        until(lambda: gone(api, name), "the pod to go")
        until(lambda: api.get(f"{APPS}/deployments/service")["status"].get("readyReplicas") == 2, "two pods again")
        api.call("PATCH", f"{APPS}/deployments/service", {"spec": {"replicas": 1}}, MERGE)
        until(lambda: len(pods_of(api, "service")) == 1, "one pod")
        api.call("DELETE", f"{APPS}/deployments/service")
        until(lambda: not pods_of(api, "service"), "the pods to be collected")


def pods_of(api: Api, name: str) -> list[Object]:
    items: list[Object] = api.get(f"{PODS}?labelSelector=app%3D{name}")["items"]
    return items


def workload(kind: str, name: str, **spec: Any) -> Object:
    template = {"metadata": {"labels": {"app": name}}, "spec": pod(name, container=WEB)["spec"]}
    body = {"selector": {"matchLabels": {"app": name}}, "template": template} | spec
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": body}


def job(name: str, *command: str, **spec: Any) -> Object:
    container = {"command": list(command)}
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": pod(name, container=container, restartPolicy="Never")["spec"],
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": template} | spec}


class TestJobs:
    JOBS = "/apis/batch/v1/namespaces/default/jobs"
    PODS = "/api/v1/namespaces/default/pods?labelSelector=app%3D"

    def condition(self, api: Api, name: str) -> str:
        status = api.get(f"{self.JOBS}/{name}")["status"]
        return next((item["type"] + item.get("reason", "") for item in status.get("conditions", ())), "")

    def pods(self, api: Api, name: str) -> list[Object]:
        items: list[Object] = api.get(self.PODS + name)["items"]
        return items

    def test_pods_side_by_side_complete_it_and_go_with_it(self, api: Api) -> None:
        api.create(self.JOBS, job("both", "sleep", "0.2", parallelism=2, completions=2))
        until(lambda: self.condition(api, "both") == "Complete", "it is complete")
        times = [item["status"]["containerStatuses"][0]["state"]["terminated"] for item in self.pods(api, "both")]
        assert len(times) == 2
        assert all(each["startedAt"] <= each["finishedAt"] for each in times)
        api.call("DELETE", f"{self.JOBS}/both")
        until(lambda: self.pods(api, "both") == [], "its pods are gone")

    def test_a_pod_that_fails_fails_it(self, api: Api) -> None:
        api.create(self.JOBS, job("ill", "false", backoffLimit=0))
        until(lambda: self.condition(api, "ill") == "FailedBackoffLimitExceeded", "it has failed")
        assert len(self.pods(api, "ill")) == 1
        api.call("DELETE", f"{self.JOBS}/ill")

    def test_its_time_is_over_and_it_goes(self, api: Api) -> None:
        api.create(self.JOBS, job("late", "sleep", "1000", activeDeadlineSeconds=2, ttlSecondsAfterFinished=1))
        until(lambda: self.condition(api, "late") == "FailedDeadlineExceeded", "its time is over")
        until(lambda: api.call("GET", f"{self.JOBS}/late")[0] == 404, "it is gone")
        until(lambda: self.pods(api, "late") == [], "its pods are gone")

    def test_pods_that_are_restarted_for_ever_are_refused(self, api: Api) -> None:
        wrong = job("wrong", "true")
        wrong["spec"]["template"]["spec"]["restartPolicy"] = "Always"
        code, answer = api.call("POST", self.JOBS, wrong)
        assert (code, "supported values" in answer["message"]) == (422, True)


STRATEGY = {"name": "NodeResourcesFit", "args": {"scoringStrategy": {"type": "X"}}}


class TestControlPlane:
    MANIFEST = "etc/kubernetes/manifests/kube-scheduler.yaml"
    MIRROR = "/api/v1/namespaces/kube-system/pods/kube-scheduler-cp"

    def config(self, **more: Any) -> str:
        body = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
        return yaml.safe_dump(body | {"clientConnection": {"kubeconfig": "/etc/kubernetes/scheduler.conf"}} | more)

    def use(self, api: Api, cluster: Cluster, config: str, mounted: bool = True) -> Object:
        """What a careful administrator does: write the file, point the manifest at it. Returns the new mirror pod."""
        tree = cluster.root / "cp"
        (tree / "etc/kubernetes/scheduler-config.yaml").write_text(config)
        old = api.get(self.MIRROR)["metadata"]["uid"]
        manifest = yaml.safe_load((tree / self.MANIFEST).read_text())
        container, path = manifest["spec"]["containers"][0], "/etc/kubernetes/scheduler-config.yaml"
        container["command"] = [
            item for item in container["command"] if "config=/etc/kubernetes/scheduler-" not in item
        ]
        container["command"].append(f"--config={path}")
        container["volumeMounts"] = container["volumeMounts"][:1]
        manifest["spec"]["volumes"] = manifest["spec"]["volumes"][:1]
        if mounted:
            container["volumeMounts"].append({"name": "config", "mountPath": path})
            manifest["spec"]["volumes"].append({"name": "config", "hostPath": {"path": path, "type": "File"}})
        manifest["metadata"]["annotations"] = {"checksum": str(time.monotonic())}
        (tree / self.MANIFEST).write_text(yaml.safe_dump(manifest))

        def changed() -> Object | None:
            code, mirror = api.call("GET", self.MIRROR)
            started = code == 200 and "containerStatuses" in mirror["status"]
            return mirror if started and mirror["metadata"]["uid"] != old else None

        mirror: Object = until(changed, "the new static pod")
        return mirror

    def healthy(self, cluster: Cluster) -> bool:
        manifest = yaml.safe_load((cluster.root / "cp" / self.MANIFEST).read_text())
        command = manifest["spec"]["containers"][0]["command"]
        port = next(item.split("=")[1] for item in command if item.startswith("--secure-port"))
        done = subprocess.run(["curl", "-sk", f"https://127.0.0.1:{port}/healthz"], capture_output=True, text=True)
        return done.stdout == "ok"

    def test_runs_as_a_static_pod_and_holds_its_lease(self, api: Api, cluster: Cluster) -> None:
        until(lambda: self.healthy(cluster), "healthz")
        mirror = api.get(self.MIRROR)
        assert mirror["metadata"]["annotations"]["kubernetes.io/config.source"] == "file"
        lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler"
        spec = api.get(lease)["spec"]
        assert spec["holderIdentity"].startswith("cp_")
        until(lambda: api.get(lease)["spec"]["renewTime"] > spec["renewTime"], "the lease to be renewed")

    def test_most_allocated_packs(self, api: Api, cluster: Cluster) -> None:
        node = {"status": {"capacity": {"example.org/gpu": "4"}, "allocatable": {"example.org/gpu": "4"}}}
        for name in ("n1", "n2"):
            api.call("PATCH", f"/api/v1/nodes/{name}/status", node, MERGE)

        def placed(prefix: str) -> list[str]:
            nodes, names = [], [f"{prefix}-{index}" for index in range(4)]
            for name in names:
                wish = {"resources": {"limits": {"example.org/gpu": "1"}}}
                api.create(PODS, pod(name, "sleep", "1000", container=wish))
                nodes.append(node_of(api, name))
            for name in names:
                api.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
            return sorted(nodes)

        def scoring(kind: str) -> str:
            strategy = {"type": kind, "resources": [{"name": "example.org/gpu", "weight": 5}]}
            plugin = {"name": "NodeResourcesFit", "args": {"scoringStrategy": strategy}}
            return self.config(profiles=[{"schedulerName": "default-scheduler", "pluginConfig": [plugin]}])

        self.use(api, cluster, scoring("LeastAllocated"))
        until(lambda: self.healthy(cluster), "healthz")
        assert placed("spread") == ["n1", "n1", "n2", "n2"]
        self.use(api, cluster, scoring("MostAllocated"))
        until(lambda: self.healthy(cluster), "healthz")
        assert placed("packed") == ["n1"] * 4

    @pytest.mark.parametrize(
        ("more", "text", "message"),
        [
            ({"managedResources": []}, "", 'strict decoding error: unknown field "managedResources"'),
            ({"apiVersion": "kubescheduler.config.k8s.io/v1beta2"}, "", "no kind "),
            ({}, "parallelism: 1\nparallelism: 2\n", 'key "parallelism" already set in map'),
            ({"extenders": [{"urlPrefix": "https://x/y", "enableHttps": True}]}, "", '"extenders[0].enableHttps"'),
            ({"extenders": [{"urlPrefix": "https://x", "tlsConfig": {"caFile": "/etc/kubernetes/pki/ca.crt"}}]}, "",
             "stat /etc/kubernetes/pki/ca.crt: no such file or directory"),
            ({"profiles": [{"pluginConfig": [STRATEGY]}]}, "", 'Unsupported value: "X"'),
        ],
        ids=["unknown key", "old version", "key twice", "key in an extender", "file not mounted", "bad strategy"],
    )  # fmt: skip
    def test_bad_configuration_ends_it(self, api: Api, cluster: Cluster, more: Object, text: str, message: str) -> None:
        self.use(api, cluster, self.config(**more) + text)
        log = f"{self.MIRROR}/log?tailLines=1"
        until(lambda: message in api.call("GET", log)[1], "the reason in its log")
        until(lambda: api.get(self.MIRROR)["status"]["containerStatuses"][0]["restartCount"], "a restart")
        assert not self.healthy(cluster)
        self.use(api, cluster, self.config())
        until(lambda: self.healthy(cluster), "healthz of the old configuration")

    def test_configuration_that_is_not_mounted(self, api: Api, cluster: Cluster) -> None:
        self.use(api, cluster, self.config(), mounted=False)
        until(lambda: "no such file or directory" in api.call("GET", f"{self.MIRROR}/log?tailLines=1")[1], "the reason")
        self.use(api, cluster, self.config())
        until(lambda: self.healthy(cluster), "healthz")

    @pytest.mark.parametrize("cached", [True, False], ids=["names", "nodes"])
    def test_extender_filters_scores_and_binds(self, api: Api, cluster: Cluster, cached: bool, tmp_path: Path) -> None:
        """The extender refuses n1, and binds with an annotation as ours will."""
        script, calls, name = tmp_path / "extender.py", tmp_path / "calls", f"extended-{cached}".lower()
        script.write_text(EXTENDER)
        environment = os.environ | {
            "KUBECONFIG": str(cluster.kubeconfig),
            "CALLS": str(calls),
            "PYTHONPATH": str(TESTS),
        }
        process = subprocess.Popen([sys.executable, script], env=environment, stdout=subprocess.PIPE, text=True)
        assert process.stdout
        try:
            port = process.stdout.readline().strip()
            extender = {
                "urlPrefix": f"http://127.0.0.1:{port}/scheduler",
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                "bindVerb": "bind",
                "weight": 1,
                "nodeCacheCapable": cached,
                "managedResources": [{"name": "example.org/share", "ignoredByScheduler": True}],
            }
            self.use(api, cluster, self.config(extenders=[extender]))
            until(lambda: self.healthy(cluster), "healthz")
            api.create(PODS, pod(f"{name}-unmanaged", "true", restartPolicy="Never"))
            assert finished(api, f"{name}-unmanaged") == "Succeeded"
            assert not calls.exists()
            wish = {"resources": {"limits": {"example.org/share": "5"}}}
            api.create(PODS, pod(name, "sleep", "1000", container=wish))
            assert node_of(api, name) == "n2"
            body = api.get(f"{PODS}/{name}")
            assert body["metadata"]["annotations"]["kube-accel.io/assignment"] == "chosen"
            made = [json.loads(line) for line in calls.read_text().splitlines()]
            assert [path for path, _ in made] == ["/scheduler/filter", "/scheduler/bind"]
            assert made[0][1] == {"names": ["n1", "n2"] if cached else None, "nodes": None if cached else ["n1", "n2"]}
            api.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
            api.create(
                PODS, pod(name + "-never", "true", container=wish, nodeSelector={"kubernetes.io/hostname": "n1"})
            )
            message = until(lambda: condition(api, name + "-never", "PodScheduled").get("message"), "the reason")
            assert "1 n1 is not for you" in message
        finally:
            process.kill()
            process.wait()
        down = name + "-down"
        api.create(PODS, pod(down, "true", container=wish))
        until(lambda: "Connection refused" in condition(api, down, "PodScheduled").get("message", ""), "the reason")
        for left in (name + "-never", down):
            api.call("DELETE", f"{PODS}/{left}")
        self.use(api, cluster, self.config())
        until(lambda: self.healthy(cluster), "healthz")


EXTENDER = """
import json, os
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from sim.cluster.client import Api

api = Api(Path(os.environ["KUBECONFIG"]))

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        nodes = body.get("Nodes") and [item["metadata"]["name"] for item in body["Nodes"]["items"]]
        with open(os.environ["CALLS"], "a") as calls:
            print(json.dumps([self.path, {"names": body.get("NodeNames"), "nodes": nodes}]), file=calls)
        names = [name for name in body.get("NodeNames") or nodes or () if name != "n1"]
        answer = {"FailedNodes": {"n1": "n1 is not for you"}}
        if nodes:
            answer["Nodes"] = {"items": [item for item in body["Nodes"]["items"] if item["metadata"]["name"] in names]}
        else:
            answer["NodeNames"] = names
        if self.path.endswith("bind"):
            path = f"/api/v1/namespaces/{body['PodNamespace']}/pods/{body['PodName']}/binding"
            annotations = {"kube-accel.io/assignment": "chosen"}
            metadata = {"name": body["PodName"], "uid": body["PodUID"], "annotations": annotations}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": {"name": body["Node"]}}
            code, text = api.call("POST", path, binding)
            answer = {} if code == 201 else {"Error": str(text)}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


class TestLife:
    def test_devices_become_capacity_and_admission_can_fail(self, api: Api, cluster: Cluster) -> None:
        """A pod bound to a node whose plugin has no device left fails as on a real node, and frees what it held."""
        from sim.kubelet.model import Device

        kubelet = cluster.nodes["n2"].kubelet
        with kubelet._changed:
            kubelet._devices["example.org/dev"] = {str(n): Device("Unhealthy") for n in range(999)} | {
                "a": Device(HEALTHY)
            }
            kubelet._changed.notify_all()
        until(lambda: api.get("/api/v1/nodes/n2")["status"]["allocatable"].get("example.org/dev") == "1", "the device")
        assert api.get("/api/v1/nodes/n2")["status"]["capacity"]["example.org/dev"] == "1k"
        wish = {"resources": {"limits": {"example.org/dev": "2"}}}
        api.create(PODS, pod("refused", "true", container=wish, nodeName="n2"))
        assert finished(api, "refused") == "Failed"
        assert status(api, "refused")["reason"] == "UnexpectedAdmissionError"
        assert "requested number of devices unavailable for example.org/dev" in status(api, "refused")["message"]
        api.call("DELETE", f"{PODS}/refused")
        until(lambda: gone(api, "refused"), "the pod to go")

    @pytest.mark.parametrize(
        ("number", "heard"), [(signal.SIGINT, True), (signal.SIGTERM, True), (signal.SIGTERM, False)]
    )
    def test_command_leaves_nothing(self, number: int, heard: bool) -> None:
        """Also when nobody reads what it says any more."""
        base = Path(tempfile.mkdtemp(prefix="kc"))
        root, spec = base / "r", base / "spec.yml"
        spec.write_text(yaml.safe_dump({"control_plane": "cp", "nodes": [{"name": "n", "profile": "t4"}]}))
        process = subprocess.Popen(
            [sys.executable, "-m", "sim.cluster", "up", "--root", root, "--spec", spec, "--rm"],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            until((root / "ready").exists, "the cluster")
            api = Api(root / "admin.conf")
            api.create(PODS, pod("stays", "sleep", "1000", terminationGracePeriodSeconds=30))
            pid = process_of(api, "stays")
            command(root / "n", "systemd-run", "--unit=late", "--on-active=1000s", "true")
            timer = int((root / "n/var/lib/sim-systemd/late.timer").read_text())
            assert process.stdout
            if not heard:
                process.stdout.close()
            process.send_signal(number)
            assert process.wait(60) == 0
            assert not heard or process.stdout.read().splitlines()[-2:] == ["ready", "stopping"]
        finally:
            process.kill()
        assert not root.exists()
        assert not runs(pid)
        assert not runs(timer)
        spec.unlink()
        base.rmdir()

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ({"nodes": []}, "not a cluster spec"),
            ({"control_plane": "cp", "nodes": [{"name": "n", "profile": "9xh900"}]}, "unknown profile '9xh900'"),
            ({"control_plane": "n", "nodes": [{"name": "n"}]}, "each needs a name of its own"),
        ],
    )
    def test_bad_spec_is_refused(self, spec: Object, message: str, tmp_path: Path) -> None:
        file = tmp_path / "spec.yml"
        file.write_text(yaml.safe_dump(spec))
        with pytest.raises(ValueError, match=message):
            Spec.load(file)

    def test_used_root_is_refused(self) -> None:
        with tempfile.TemporaryDirectory(prefix="kc") as root:
            (Path(root) / "ready").touch()
            cluster = Cluster(Path(root), Spec("cp", (NodeSpec("n"),)))
            with pytest.raises(FileExistsError, match="is not empty"), cluster:
                pass
            cluster.remove()
            assert (Path(root) / "ready").exists()
