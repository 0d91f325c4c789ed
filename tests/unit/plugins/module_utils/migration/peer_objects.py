# SPDX-License-Identifier: Apache-2.0
"""Other device plugins' objects, with what tells them apart as their charts and manifests write it."""

from __future__ import annotations

import json
from typing import Any

import yaml

Object = dict[str, Any]
_PLUGINS = {"name": "device-plugin", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}}


def daemonset(name: str, namespace: str, containers: list[Object], **spec: Any) -> Object:
    metadata: Object = {"name": name, "namespace": namespace, "uid": f"uid-{name}"}
    metadata |= spec.pop("metadata", {})
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": containers, "volumes": [_PLUGINS], **spec},
    }
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": metadata,
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": template, "updateStrategy": rolling},
    }


def _helm(release: str, namespace: str) -> Object:
    return {"meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": namespace}


GPU_NODES = {
    "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [
            {
                "matchExpressions": [
                    {"key": "feature.node.kubernetes.io/pci-10de.present", "operator": "In", "values": ["true"]}
                ]
            },
            {"matchExpressions": [{"key": "nvidia.com/gpu.present", "operator": "In", "values": ["true"]}]},
        ]
    }
}
TOLERATIONS = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]


def nvidia(configured: bool = False, **env: str) -> Object:
    """NVIDIA's chart, release ``nvdp``; with a ConfigMap where configured."""
    image = "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"
    told = [{"name": name, "value": value} for name, value in env.items()]
    plugin: Object = {
        "name": "nvidia-device-plugin-ctr",
        "image": image,
        "command": ["nvidia-device-plugin"],
        "env": told,
    }
    containers, volumes = [plugin], [_PLUGINS]
    if configured:
        mounts = [{"name": "available-configs", "mountPath": "/available-configs"}]
        plugin["volumeMounts"] = mounts
        words = {"DEFAULT_CONFIG": env.get("DEFAULT_CONFIG", ""), "FALLBACK_STRATEGIES": "named,single"}
        sidecar_env = [{"name": name, "value": value} for name, value in words.items()]
        sidecar = {"name": "nvidia-device-plugin-sidecar", "image": image, "command": ["config-manager"]}
        containers = [{**sidecar, "env": sidecar_env, "volumeMounts": mounts}, plugin]
        volumes = [_PLUGINS, {"name": "available-configs", "configMap": {"name": "nvdp-configs"}}]
    metadata = {"annotations": _helm("nvdp", "nvidia-device-plugin")}
    more = {"volumes": volumes, "affinity": {"nodeAffinity": GPU_NODES}, "tolerations": TOLERATIONS}
    return daemonset("nvdp-nvidia-device-plugin", "nvidia-device-plugin", containers, metadata=metadata, **more)


def mps_control_daemon() -> Object:
    """What NVIDIA's chart has beside the plugin."""
    image = "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"
    container = {"name": "mps-control-daemon-ctr", "image": image, "command": ["mps-control-daemon"]}
    name = "nvdp-nvidia-device-plugin-mps-control-daemon"
    selector = {"nvidia.com/mps.capable": "true"}
    return daemonset(name, "nvidia-device-plugin", [container], volumes=[], nodeSelector=selector)


def feature_discovery() -> Object:
    image = "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"
    container = {"name": "gpu-feature-discovery-ctr", "image": image, "command": ["gpu-feature-discovery"]}
    return daemonset("nvdp-nvidia-device-plugin-gpu-feature-discovery", "nvidia-device-plugin", [container], volumes=[])


def operator() -> Object:
    owner = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "name": "cluster-policy", "controller": True}
    image = "nvcr.io/nvidia/k8s-device-plugin@sha256:0123"
    container = {"name": "nvidia-device-plugin", "image": image, "command": ["/bin/sh", "-c"]}
    selector = {"nvidia.com/gpu.deploy.device-plugin": "true"}
    metadata = {"ownerReferences": [owner]}
    more = {"metadata": metadata, "nodeSelector": selector, "tolerations": TOLERATIONS}
    return daemonset("nvidia-device-plugin-daemonset", "gpu-operator", [container], **more)


def dra_driver(name: str, *programs: str) -> Object:
    """A DRA driver as the charts of NVIDIA's and HAMi's write it: each program is the end of a container's script."""
    containers: list[Object] = [
        {"name": f"c{number}", "image": "x", "command": ["bash", "-c"], "args": [f"# Mask the params.\n{program}"]}
        for number, program in enumerate(programs)
    ]
    plugins = {"name": "plugins", "hostPath": {"path": "/var/lib/kubelet/plugins"}}
    metadata = {"annotations": _helm(f"release-{name}", "dra")}
    affinity = {"nodeAffinity": GPU_NODES}
    return daemonset(name, "dra", containers, metadata=metadata, volumes=[plugins], affinity=affinity)


def gpu_manager() -> Object:
    container = {"name": "gpu-manager", "image": "tkestack/gpu-manager:v1.1.5"}
    return daemonset(
        "gpu-manager-daemonset", "kube-system", [container], nodeSelector={"nvidia-device-enable": "enable"}
    )


def of_alauda(mode: str) -> Object:
    """A plugin of Alauda's suite, which chooses nodes by the label and value by which ours do."""
    names = {
        "pgpu": ("nvidia-device-plugin-ds", "nvidia-device-plugin-ctr", "k8s-device-plugin:v0.14.5"),
        "vgpu": ("gpu-manager-daemonset", "gpu-manager", "gpu-manager:v1.1.5"),
        "mps": ("nvidia-mps-device-plugin-daemonset", "nvidia-mps-device-plugin-ctr", "k8s-device-plugin:v0.14.5"),
    }
    name, container, image = names[mode]
    containers = [{"name": container, "image": f"registry.example/3rdparty/{image}"}]
    return daemonset(name, "kube-system", containers, nodeSelector={"nvidia-device-enable": mode})


HAMI_TOLD: Object = {
    "resourceCountName": "nvidia.com/gpu",
    "resourceMemoryName": "nvidia.com/gpumem",
    "resourceMemoryPercentageName": "nvidia.com/gpumem-percentage",
    "resourceCoreName": "nvidia.com/gpucores",
    "resourcePriorityName": "nvidia.com/priority",
    **{"overwriteEnv": False, "defaultMemory": 0, "defaultCores": 0, "defaultGPUNum": 1, "memoryFactor": 1},
    **{"deviceSplitCount": 10, "deviceMemoryScaling": 1, "deviceCoreScaling": 1},
}
"""What HAMi's chart tells it of NVIDIA's GPUs."""


def hami_files(nodes: Object | None = None, **told: Any) -> dict[str, dict[str, str]]:
    """The ConfigMaps of HAMi's chart, with values of one's own."""
    document = {"nvidia": HAMI_TOLD | told, "cambricon": {"resourceCountName": "cambricon.com/vmlu"}}
    return {
        "kube-system/hami-scheduler-device": {"device-config.yaml": yaml.safe_dump(document)},
        "kube-system/hami-device-plugin": {"config.json": json.dumps(nodes or {"nodeconfig": []})},
    }


def hami() -> Object:
    plugin = {
        "name": "device-plugin",
        "image": "docker.io/projecthami/hami:v2.10.0",
        "command": ["nvidia-device-plugin", "--config-file=/device-config.yaml", "--mig-strategy=none", "-v=4"],
        "volumeMounts": [
            {"name": "device-plugin", "mountPath": "/var/lib/kubelet/device-plugins"},
            {"name": "deviceconfig", "mountPath": "/config"},
            {"name": "device-config", "mountPath": "/device-config.yaml", "subPath": "device-config.yaml"},
        ],
    }
    monitor = {"name": "vgpu-monitor", "image": "docker.io/projecthami/hami:v2.10.0", "command": ["vGPUmonitor"]}
    volumes = [
        _PLUGINS,
        {"name": "deviceconfig", "configMap": {"name": "hami-device-plugin"}},
        {"name": "device-config", "configMap": {"name": "hami-scheduler-device"}},
    ]
    more = {"metadata": {"annotations": _helm("hami", "kube-system")}, "nodeSelector": {"gpu": "on"}}
    return daemonset("hami-device-plugin", "kube-system", [plugin, monitor], volumes=volumes, **more)


def gpushare(unit: str = "GiB") -> Object:
    image = "registry.cn-hangzhou.aliyuncs.com/acs/k8s-gpushare-plugin:v2-1.11-aff8a23"
    command = ["gpushare-device-plugin-v2", "-logtostderr", "--v=5", f"--memory-unit={unit}"]
    container = {"name": "gpushare", "image": image, "command": command}
    return daemonset("gpushare-device-plugin-ds", "kube-system", [container], nodeSelector={"gpushare": "true"})


def stranger() -> Object:
    image = "gke.gcr.io/nvidia-gpu-device-plugin:1"
    return daemonset("cloud-gpu", "kube-system", [{"name": "x", "image": image}])


def ours(mode: str = "pgpu") -> Object:
    container = {"name": "kube-accel", "image": "registry.example/kube-accel:1"}
    return daemonset("nvidia-device-plugin-ds", "kube-system", [container], nodeSelector={"nvidia-device-enable": mode})


def node(name: str = "gpu-1", allocatable: Object | None = None, **labels: str) -> Object:
    """Label names have ``__`` for a slash and ``_`` for a dash."""
    keys = {key.replace("__", "/").replace("_", "-"): value for key, value in labels.items()}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **keys}},
        "spec": {},
        "status": {"allocatable": {"cpu": "64", **(allocatable or {})}},
    }


SELECTED: dict[str, dict[str, str]] = {
    "nvidia": {"nvidia.com/gpu.present": "true"},
    "gpu-operator": {"nvidia.com/gpu.deploy.device-plugin": "true", "nvidia.com/gpu.present": "true"},
    "gpu-manager": {"nvidia-device-enable": "enable"},
    "hami": {"gpu": "on"},
    "gpushare": {"gpushare": "true"},
    "mps": {"nvidia-device-enable": "mps"},
    "nvidia-dra": {"nvidia.com/gpu.present": "true"},
    "hami-dra": {"nvidia.com/gpu.present": "true"},
}
"""Labels of a node that each of them chooses."""
DAEMONSETS = {
    "nvidia": nvidia,
    "gpu-operator": operator,
    "gpu-manager": gpu_manager,
    "hami": hami,
    "gpushare": gpushare,
    "mps": lambda: of_alauda("mps"),
    # The first serves compute domains beside.
    "nvidia-dra": lambda: dra_driver("nv", "compute-domain-kubelet-plugin -v 4", "gpu-kubelet-plugin -v $(V)"),
    "hami-dra": lambda: dra_driver("hami", "hami-kubelet-plugin -v $(V)"),
}


def chosen(kind: str, name: str = "gpu-1", **allocatable: str) -> Object:
    """A node that a kind of plugin serves."""
    found = node(name, {key.replace("__", "/"): value for key, value in allocatable.items()})
    found["metadata"]["labels"] |= SELECTED[kind]
    return found


def pod(name: str, limits: Object, where: str = "gpu-1", owner: str = "ReplicaSet") -> Object:
    owners = [{"kind": owner, "name": name, "uid": "x", "controller": True}] if owner else []
    return {
        "metadata": {"name": name, "namespace": "team", "ownerReferences": owners},
        "spec": {"nodeName": where, "containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {"phase": "Running"},
    }
