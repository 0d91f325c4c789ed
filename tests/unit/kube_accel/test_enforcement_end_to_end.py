# SPDX-License-Identifier: Apache-2.0
"""What the shipped plugin does so that shares are enforced, as kubelet, the node's files and the API server see it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kube_accel.enforce import policy as layouts
from kube_accel.enforce.policy import Feedback, Limit, Policy
from kube_accel.model import Mode
from sim.cluster.kinds import ApiError
from sim.kubelet import ContainerAllocation, ContainerStartError
from unit.kube_accel.fraction_node import NAMESPACE, NODE, FractionNode
from waiting import wait

GIB = 1 << 30
ID = "0123456789abcdef" * 4
Make = Callable[..., FractionNode]
POLICY, STATE = "/etc/kube-accel/policy", "/run/kube-accel/state"


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes a node with a plugin that has an interposer; ``start=False`` leaves the start to the test."""
    with ExitStack() as stack:

        def make(mode: Mode = Mode.VGPU, start: bool = True, **options: Any) -> FractionNode:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
            node = FractionNode(root, stack, mode, gpus="4xa100-mig", **options)
            node.interpose()
            node.start_api()
            if start:
                node.start()
                node.seen()
            return node

        yield make


def sources(got: ContainerAllocation) -> dict[str, Path]:
    return {mount.container_path: Path(mount.host_path) for mount in got.mounts}


def told(got: ContainerAllocation) -> Policy:
    return layouts.read_policy(sources(got)[POLICY].read_bytes())[0]


def configure(node: FractionNode, data: dict[str, str]) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "overrides"}, "data": data}
    try:
        node.store.create("configmaps", NAMESPACE, body)
    except ApiError:
        node.store.edit("configmaps", NAMESPACE, "overrides", lambda item: item.update(data=data))


def test_a_share_comes_with_limits_an_account_and_the_interposer(make: Make) -> None:
    node = make()
    pod = node.pod("p", {"main": (30, 16)}, assigned={"main": (2,)})
    got = node.kubelet.admit(pod)["main"]
    node.kubelet.run(pod)
    assert got.envs == {"NVIDIA_VISIBLE_DEVICES": "void", "TRITON_LIBCUDA_PATH": "/usr/lib/x86_64-linux-gnu"}
    assert {"/dev/nvidia2", "/dev/nvidiactl"} <= {spec.container_path for spec in got.devices}
    mounts = sources(got)
    version = node.topology.system.driver
    shim = mounts["/usr/lib/x86_64-linux-gnu/libcuda.so.1"]
    assert shim.parent.parent == node.root / "state/shim"
    assert {mounts[f"/usr/lib64/libcuda.so{end}"] for end in ("", ".1", f".{version}")} == {shim}
    assert mounts["/usr/lib/kube-accel/driver/libcuda.so.1"] == Path(f"/usr/lib/libcuda.so.{version}")
    assert {mount.container_path for mount in got.mounts if not mount.read_only} == {STATE}
    assert told(got) == Policy((Limit(node.uuids[2], 4 * GIB, 30),))
    assert mounts[STATE].stat().st_mode & 0o777 == 0o666
    assert mounts[STATE].stat().st_size == layouts.state_size(1)
    wait(lambda: node.store.get("nodes", "", NODE)["metadata"]["labels"].get("kube-accel.io/enforcement"), "the label")
    assert node.store.get("nodes", "", NODE)["metadata"]["labels"]["kube-accel.io/enforcement"] == "interposer"


def test_whole_gpus_have_the_interposer_without_limits(make: Make) -> None:
    node = make()
    for name, memory in (("plain", 0), ("sized", 100)):
        gpus = (0, 1) if name == "plain" else (2, 3)
        pod = node.pod(name, {"main": (200, memory)}, assigned={"main": gpus})
        got = node.kubelet.admit(pod)["main"]
        node.kubelet.run(pod)
        assert told(got) == Policy(tuple(Limit(node.uuids[gpu], 0, 100) for gpu in gpus))
        assert {f"/dev/nvidia{gpu}" for gpu in gpus} <= {spec.container_path for spec in got.devices}


def test_an_init_container_has_the_limits_that_its_pod_asks_for(make: Make) -> None:
    node = make()
    pod = node.pod("p", {"app": (30, 8)}, init={"first": (20, 16)}, assigned={"first": (1,), "app": (1,)})
    got = node.kubelet.admit(pod)
    node.kubelet.run(pod)
    assert told(got["first"]).limits == (Limit(node.uuids[1], 4 * GIB, 20),)
    assert told(got["app"]).limits == (Limit(node.uuids[1], 2 * GIB, 30),)


def test_init_container_is_not_limited_by_running_pods(make: Make) -> None:
    node = make()
    before = node.pod("before", {"app": (30, 8)}, init={"first": (1, 16)}, assigned={"first": (1,), "app": (1,)})
    node.kubelet.admit(before)
    node.kubelet.run(before)
    node.store.edit("pods", NAMESPACE, "before", lambda pod: pod["status"].update(phase="Running"))
    wait(lambda: ("before", "app", 1, 30, False) in node.running(), "a pod that runs")
    pod = node.pod("p", {"app": (30, 8)}, init={"first": (20, 16)}, assigned={"first": (1,), "app": (1,)})
    got = node.kubelet.admit(pod)
    node.kubelet.run(pod)
    assert told(got["first"]).limits == (Limit(node.uuids[1], 4 * GIB, 20),)


def test_memory_alone_is_limited_in_mode_cgpu(make: Make) -> None:
    node = make(Mode.CGPU)
    pod = node.pod("p", {"main": (0, 6)}, assigned={"main": (3,)})
    got = node.kubelet.admit(pod)["main"]
    node.kubelet.run(pod)
    assert told(got).limits == (Limit(node.uuids[3], 6 * GIB, 0),)


def test_by_cdi_kubelet_is_told_a_name_and_the_runtime_the_rest(make: Make) -> None:
    node = make(start=False)
    node.extra = ["--device-list-strategy=cdi-cri", "--cdi-dir", str(node.root / "cdi")]
    node.start()
    node.seen()
    pod = node.pod("p", {"main": (30, 16)}, assigned={"main": (2,)})
    got = node.kubelet.admit(pod)["main"]
    node.kubelet.run(pod)
    (name,) = got.cdi_devices
    kind, _, key = name.partition("=")
    assert (kind, got.mounts, got.devices) == ("kube-accel.io/share", (), ())
    document = json.loads((node.root / f"cdi/kube-accel.io-share-{key}.json").read_text())
    (device,) = document["devices"]
    edits = device["containerEdits"]
    policy = next(mount["hostPath"] for mount in edits["mounts"] if mount["containerPath"] == POLICY)
    assert layouts.read_policy(Path(policy).read_bytes())[0].limits == (Limit(node.uuids[2], 4 * GIB, 30),)
    assert {"path": "/dev/nvidia2"} in edits["deviceNodes"]


def test_a_share_has_what_is_limited_unless_more_is_asked_for(make: Make) -> None:
    node = make(start=False)
    for stem in ("libnvidia-encode", "libnvidia-eglcore", "libnvidia-opencl"):
        (node.root / f"usr/lib/{stem}.so.{node.topology.system.driver}").touch()
    icd = "/usr/share/vulkan/icd.d/nvidia_icd.json"
    (node.root / icd[1:]).parent.mkdir(parents=True)
    (node.root / icd[1:]).touch()
    drm = node.root / "sys/bus/pci/devices" / node.topology.gpus[2].pci / "drm/renderD130"
    drm.parent.mkdir()
    drm.touch()
    (node.root / "dev/dri").mkdir()
    for name in ("dri/renderD130", "nvidia-modeset"):
        (node.root / "dev" / name).touch()

    def extras(cores: int) -> set[str]:
        pod = node.pod(f"p{cores}", {"main": (cores, 16)}, assigned={"main": (2,)})
        got = node.kubelet.admit(pod)["main"]
        node.kubelet.run(pod)
        devices = {spec.container_path for spec in got.devices if not spec.container_path.startswith("/dev/nvidia2")}
        names = {Path(path).name.partition(".so.")[0] for path in sources(got)}
        return names & {"libnvidia-encode", "libnvidia-eglcore", "libnvidia-opencl", "nvidia_icd.json"} | {
            path for path in devices if "dri" in path or "modeset" in path
        }

    node.start()
    node.seen()
    assert extras(30) == set()
    assert [line for line in node.validate() if "capabilities" in line] == []
    assert node.process is not None
    node.process.terminate()
    node.process.wait(20)
    node.extra = ["--share-capabilities=graphics,video"]
    node.start()
    node.seen()
    assert extras(31) == {
        *("libnvidia-encode", "libnvidia-eglcore", "nvidia_icd.json"),
        *("/dev/dri/renderD130", "/dev/nvidia-modeset"),
    }
    (warning,) = [line for line in node.validate() if "capabilities" in line]
    assert warning.startswith(
        "warn  capabilities: shares have Vulkan, OpenGL and OptiX, NVENC and NVDEC: nothing limits"
    )


def test_refusals_are_counted_by_reason_and_sent_to_the_pod(make: Make) -> None:
    node = make()
    pod = node.pod("p", {"main": (30, 16)}, assigned={"main": (2,)})
    got = node.kubelet.admit(pod)["main"]
    node.kubelet.run(pod)
    wait(lambda: len(node.held()) == 1, "held")
    with sources(got)[STATE].open("r+b") as state:
        os.pwrite(state.fileno(), (2).to_bytes(8, "little"), 64 + 16)
    wait(lambda: node.refusals() == [("p", "limit", 2)], "the ledger")
    wait(lambda: ("p", "GpuMemoryRefused") in [event[:2] for event in node.events()], "the event")


def test_only_the_administrators_object_changes_running_limits(make: Make) -> None:
    node = make()
    pod = node.pod("p", {"main": (30, 16)}, assigned={"main": (2,)})
    got = node.kubelet.admit(pod)["main"]
    node.kubelet.run(pod)
    inode = sources(got)[POLICY].stat().st_ino
    configure(node, {f"{NAMESPACE}.p.main": '{"memory": "1Gi", "cores": 10}', "nonsense": "{"})
    wait(lambda: told(got).limits == (Limit(node.uuids[2], GIB, 10),), "the new limits")
    configure(node, {f"{NAMESPACE}.p.main": '{"memory": "900Gi"}'})
    wait(lambda: told(got).limits == (Limit(node.uuids[2], 4 * GIB, 30),), "the limits of before")
    wait(lambda: ("p", "QuotaOverrideRefused") in [event[:2] for event in node.events()], "the event")
    assert sources(got)[POLICY].stat().st_ino == inode


def test_an_upgrade_changes_nothing_for_containers_that_run(make: Make) -> None:
    node = make()
    pod = node.pod("p", {"main": (30, 16)}, assigned={"main": (2,)})
    got = node.kubelet.admit(pod)["main"]
    node.kubelet.run(pod)

    def files() -> tuple[object, ...]:
        inodes = [sources(got)[path].stat().st_ino for path in (POLICY, STATE)]
        return *inodes, told(got).limits, told(got).layout, sources(got)[STATE].read_bytes()

    before = files()
    shim = sources(got)["/usr/lib64/libcuda.so.1"]
    old = node.process
    with (node.root / "native/libcuda.so.1").open("ab") as file:
        file.write(b"newer")
    node.start(wait_for=False)
    wait(lambda: node.probe("/readyz")[0] == 200, "/readyz")
    assert old is not None
    old.terminate()
    assert old.wait(20) == 0
    later = node.pod("later", {"main": (30, 16)}, assigned={"main": (1,)})
    new = node.kubelet.admit(later)["main"]
    node.kubelet.run(later)
    assert sources(new)["/usr/lib64/libcuda.so.1"].parent != shim.parent
    assert shim.read_bytes() == (node.root / "usr/lib/libnvidia-ml.so.1").read_bytes()
    assert files() == before
    with sources(got)[STATE].open("r+b") as state:
        os.pwrite(state.fileno(), (2).to_bytes(8, "little"), 64 + 16)
    wait(lambda: node.refusals() == [("p", "limit", 2)], "the ledger")


def test_tenants_of_one_gpu_are_told_what_nvml_sees(make: Make) -> None:
    node = make()
    specs = {name: node.pod(name, {"main": (30, 16)}, assigned={"main": (2,)}) for name in ("a", "b")}
    got = {name: node.kubelet.admit(spec)["main"] for name, spec in specs.items()}
    for pid, (name, spec) in enumerate(specs.items(), 4711):
        node.kubelet.run(spec)
        status = {"containerStatuses": [{"name": "main", "containerID": f"containerd://{pid:064}"}]}
        node.store.edit("pods", NAMESPACE, name, lambda pod, status=status: pod["status"].update(status))
        place = node.root / f"proc/{pid}"
        place.mkdir()
        uid = spec.uid.replace("-", "_")
        cgroup = f"0::/kubepods.slice/kubepods-pod{uid}.slice/cri-containerd-{pid:064}.scope\n"
        (place / "cgroup").write_text(cgroup)
    with_process = 3 * GIB
    node.edit(lambda topology: topology.add_process(2, 4711, mem=with_process, sm=40))
    wait(lambda: told(got["a"]).feedback and told(got["a"]).feedback[0].uncounted_bytes == with_process, "feedback")
    assert told(got["a"]).feedback[0].busy_permille in (0, 400)
    wait(lambda: told(got["b"]).feedback and told(got["b"]).feedback[0].uncounted_bytes == 0, "the neighbour's")
    assert told(got["b"]).feedback[0].others_permille in (0, 400)
    node.kill()
    before = told(got["a"]).feedback_at_ns
    node.start()
    # Memory that is used already when a container is looked at first counts from the second look on.
    wait(
        lambda: told(got["a"]).feedback_at_ns > before and told(got["a"]).feedback == (Feedback(with_process, 400, 0),),
        "feedback of the plugin's successor",
    )
    wait(lambda: told(got["b"]).feedback == (Feedback(0, 0, 400),), "the neighbour's")


def test_node_that_can_enforce_nothing_offers_nothing(make: Make) -> None:
    node = make(start=False)
    (node.root / "native/libcuda.so.1").unlink()
    node.start(wait_for=False)
    wait(lambda: node.annotation() is not None, "the annotation")
    wait(lambda: "cannot be enforced" in node.probe("/readyz")[1], "/readyz")
    status, said = node.probe("/readyz")
    assert status == 503
    assert "no interposer" in said
    assert "gpu_plugins_allow_unenforced" in said
    annotation = node.annotation()
    assert annotation is not None
    assert all("cannot be enforced" in health.reason for health in annotation.health.values())
    assert node.healthy() == set()
    warning = next(line for line in node.validate() if "enforcement" in line)
    assert warning.startswith("warn  enforcement: none: the image has no interposer")
    node.kill()
    node.extra = ["--allow-unenforced"]
    node.start()
    got = node.kubelet.admit(node.pod("p", {"main": (30, 16)}, assigned={"main": (2,)}))["main"]
    assert got.envs == {"NVIDIA_VISIBLE_DEVICES": node.uuids[2]}
    wait(
        lambda: node.store.get("nodes", "", NODE)["metadata"]["labels"].get("kube-accel.io/enforcement") == "none",
        "the label",
    )


def test_container_whose_limits_cannot_be_written_does_not_start(make: Make) -> None:
    node = make()
    pod = node.pod("p", {"main": (30, 16)}, assigned={"main": (2,)})
    got = node.kubelet.admit(pod)["main"]
    directory = sources(got)[POLICY].parent
    for path in directory.iterdir():
        path.unlink()
    directory.rmdir()
    directory.write_text("in the way")
    with pytest.raises(ContainerStartError, match="its limits cannot be written"):
        node.kubelet.run(pod)
    directory.unlink()
    node.kubelet.run(pod)
    assert told(got).limits == (Limit(node.uuids[2], 4 * GIB, 30),)
