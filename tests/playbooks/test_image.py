# SPDX-License-Identifier: Apache-2.0
"""The image, assembled and brought to nodes: into a real containerd, and to a real registry."""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from servers import server
from sim.cluster import NodeSpec, Spec
from sim.cluster.client import Api

from .conftest import REPOSITORY, Run, Start, play

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
MACHINES = {"amd64": 62, "arm64": 183}
CONTAINERD = """
version = 2
root = "{0}/root"
state = "{0}/state"
[grpc]
  address = "{0}/c.sock"
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_port = "0"
"""
# The password is "pass word".
HTPASSWD = "robot:$2b$04$3Lle5FXgUy.N/xz4Tv/J8uR.DT4E87IU8PvF017i6vpSY78zCAW8G\n"


def program(name: str, package: str) -> str:
    """The path of a program, installed or unpacked by `make setup`. Skips the test where there is none."""
    found = shutil.which(name) or shutil.which(name, path=str(REPOSITORY / f".cache/{package}/usr/bin"))
    return found or pytest.skip(f"no {name} on PATH and none could be unpacked")


@dataclass(frozen=True)
class Containerd:
    ctr: str
    socket: Path

    @property
    def variables(self) -> dict[str, Any]:
        """How the role finds it."""
        return {"kube_accel_image_command": [self.ctr], "kube_accel_image_socket": str(self.socket)}

    def call(self, *words: str) -> str:
        command = [self.ctr, "--address", str(self.socket), "--namespace", "k8s.io", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def images(self) -> dict[str, bool]:
        """Names, without those of the CRI plugin's own, and whether they are pinned."""
        lines = self.call("images", "ls").splitlines()[1:]
        return {line.split()[0]: "pinned=pinned" in line for line in lines if not line.startswith("sha256:")}


@pytest.fixture
def containerd() -> Iterator[Containerd]:
    """A containerd of its own, without images, with the part kubelet talks to."""
    daemon, ctr = program("containerd", "containerd"), program("ctr", "containerd")
    if os.geteuid():
        pytest.skip("a real containerd needs root")
    with tempfile.TemporaryDirectory(prefix="ctd") as directory:
        root = Path(directory)
        (root / "config.toml").write_text(CONTAINERD.format(root))
        made = Containerd(ctr, root / "c.sock")

        def answers() -> bool:
            return made.socket.exists() and not subprocess.run([ctr, "-a", made.socket, "version"]).returncode

        with server([daemon, "--config", str(root / "config.toml")], root / "log", answers):
            yield made


@dataclass(frozen=True)
class Registry:
    name: str
    ca: Path


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry that wants a password, over TLS."""
    binary, root = program("docker-registry", "docker-registry"), tmp_path_factory.mktemp("registry")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        name = f"127.0.0.1:{probe.getsockname()[1]}"
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(root / "ca.pem"))
    leaf = authority.issue_cert("127.0.0.1")
    leaf.private_key_and_cert_chain_pem.write_to_path(str(root / "server.pem"))
    (root / "htpasswd").write_text(HTPASSWD)
    tls = {"certificate": str(root / "server.pem"), "key": str(root / "server.pem")}
    config = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(root / "data")}},
        "http": {"addr": name, "tls": tls},
        "auth": {"htpasswd": {"realm": "test", "path": str(root / "htpasswd")}},
    }
    (root / "config.yml").write_text(yaml.safe_dump(config))

    def answers() -> bool:
        with socket.socket() as probe:
            return not probe.connect_ex(("127.0.0.1", int(name.split(":")[1])))

    with server([binary, "serve", str(root / "config.yml")], root / "log", answers):
        yield Registry(name, root / "ca.pem")


@pytest.fixture
def parts(tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    """``parts(text)``: a base and a wheel of kube_accel that holds the text, as the role takes them."""

    def make(text: str) -> dict[str, Any]:
        base = tmp_path / "base"
        for architecture, machine in MACHINES.items():
            python = base / architecture / f"usr/bin/python3.{sys.version_info.minor}"
            python.parent.mkdir(parents=True, exist_ok=True)
            python.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(11) + machine.to_bytes(2, "little"))
            python.chmod(0o755)
        info = "kube_accel-1.0.dist-info"
        files = {
            "kube_accel/__init__.py": f"TEXT = {text!r}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\n",
            f"{info}/METADATA": "Metadata-Version: 2.1\nName: kube_accel\nVersion: 1.0\n",
            f"{info}/entry_points.txt": "[console_scripts]\nkube-accel = kube_accel:main\n",
        }
        lines = [f"{path},sha256={digest(content)}," for path, content in files.items()]
        with zipfile.ZipFile(tmp_path / "kube_accel-1.0-py3-none-any.whl", "w") as wheel:
            for path, content in files.items():
                wheel.writestr(path, content)
            wheel.writestr(f"{info}/RECORD", "\n".join([*lines, f"{info}/RECORD,,"]))
        made = {name: {"base": str(base / name), "wheels": [f"{tmp_path}/kube_accel-*.whl"]} for name in MACHINES}
        return {
            "kube_accel_image_assemble": made,
            "kube_accel_image_dir": str(tmp_path / "archives"),
            "kube_accel_image_staging_dir": str(tmp_path / "node/image"),
        }

    return make


def digest(content: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=").decode()


@pytest.fixture
def image(collections: Path, tmp_path: Path) -> Callable[..., Run]:
    """Runs an entry point of the role on this machine as the only node, and says the image's name."""

    def run(entry: str, *options: str, **variables: Any) -> Run:
        role = {"name": "accel.kubernetes.kube_accel_image", "tasks_from": entry}
        controller = "controller={{ hostvars.localhost.kube_accel_image_made | default('') }}"
        said = "image={{ kube_accel_image_made | default('') }} " + controller
        tasks = [{"include_role": role}, {"debug": {"msg": said}}]
        local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        (tmp_path / "play.yml").write_text(
            yaml.safe_dump([{"hosts": "all", "gather_facts": False, "vars": local, "tasks": tasks}])
        )
        return play(collections, str(tmp_path / "play.yml"), "-i", "node,", *options, **variables)

    return run


@pytest.fixture
def run(
    containerd: Containerd, parts: Callable[[str], dict[str, Any]], image: Callable[..., Run]
) -> Callable[..., Run]:
    """``run(text, *options)``: the image of what holds the text is brought into containerd."""

    def imported(text: str, *options: str) -> Run:
        done = image("main", *options, **parts(text), **containerd.variables)
        assert done.code == 0, done.output
        return done

    return imported


def test_import_pins_the_image_and_does_nothing_twice(
    containerd: Containerd, run: Callable[..., Run], tmp_path: Path
) -> None:
    assert run("one").changed == 1
    ((first, pinned),) = containerd.images().items()
    assert pinned
    # As a run leaves it that is killed before it removes it.
    staging = tmp_path / "node/image"
    assert not staging.exists()
    staging.mkdir(parents=True)
    (staging / "kube-accel-image.tar").touch()
    again = run("one")
    assert again.changed == 0
    assert not staging.exists()
    # A second scheduler is rolled out by the controller.
    assert f"image={first} controller={first}" in again.output
    # Kubelet's side of containerd knows it, and what it starts is ours.
    assert '"Entrypoint":["kube-accel"]' in containerd.call("content", "get", config_of(containerd, first))


@pytest.mark.full
def test_imported_image_is_pinned_replaced_and_removed(
    containerd: Containerd,
    parts: Callable[[str], dict[str, Any]],
    image: Callable[..., Run],
    run: Callable[..., Run],
) -> None:
    dry = run("one", "--check", "--diff")
    assert dry.changed == 1
    assert "localhost/kube-accel:0.1.0-" in dry.output
    assert containerd.images() == {}
    assert run("one").changed == 1
    (first,) = containerd.images()
    assert run("one", "--check").changed == 0

    containerd.call("images", "label", first, "io.cri-containerd.pinned=")
    assert run("one").changed == 1
    assert containerd.images() == {first: True}

    assert run("two").changed == 1
    images = containerd.images()
    assert images.pop(first) is False
    assert list(images.values()) == [True]

    containerd.call("images", "tag", first, "docker.io/library/other:1")
    gone = image("uninstall", **parts("two"), **containerd.variables)
    assert gone.code == 0, gone.output
    assert list(containerd.images()) == ["docker.io/library/other:1"]
    again = image("uninstall", **parts("two"), **containerd.variables)
    assert (again.code, again.changed) == (0, 0)


def config_of(containerd: Containerd, name: str) -> str:
    listed = [line.split() for line in containerd.call("images", "ls").splitlines()]
    target = next(words[2] for words in listed if words[0] == name)
    return next(words[0] for words in listed if words[0].startswith("sha256:") and words[2] == target)


@pytest.mark.full
def test_push_makes_one_name_for_all_architectures(
    registry: Registry,
    containerd: Containerd,
    parts: Callable[[str], dict[str, Any]],
    image: Callable[..., Run],
    tmp_path: Path,
) -> None:
    push = {
        "kube_accel_image_delivery": "push",
        "kube_accel_image_reference": f"{registry.name}/gpu/kube-accel:1",
        "kube_accel_image_username": "robot",
        "kube_accel_image_password": "pass word",
        "kube_accel_image_ca_path": str(registry.ca),
    }

    def run(text: str, *options: str, **changed: Any) -> Run:
        return image("main", *options, **parts(text), **push | changed)

    refused = run("one", kube_accel_image_password="wrong")
    assert refused.code != 0
    assert "did not accept 'username' and 'password'" in refused.output, refused.output
    unverified = run("one", kube_accel_image_ca_path="")
    assert unverified.code != 0
    assert "name the certificate authority that signed it" in unverified.output

    dry = run("one", "--check")
    assert (dry.code, dry.changed) == (0, 1), dry.output
    first = run("one", "-vvv")
    assert (first.code, first.changed) == (0, 1), first.output
    assert "pass word" not in first.output
    again = run("one")
    assert (again.code, again.changed) == (0, 0), again.output
    # On another controller, as AWX starts one for each job, the archives are missing and nothing else is different.
    shutil.rmtree(tmp_path / "archives")
    elsewhere = run("one")
    assert (elsewhere.code, elsewhere.changed) == (0, 0), elsewhere.output

    name = first.output.split("image=")[-1].split()[0]
    assert name.startswith(f"{registry.name}/gpu/kube-accel@sha256:")
    hosts = tmp_path / "hosts" / registry.name
    hosts.mkdir(parents=True)
    (hosts / "hosts.toml").write_text(f'[host."https://{registry.name}"]\n  ca = "{registry.ca}"\n')
    pull = ["images", "pull", "--hosts-dir", str(hosts.parent), "--user", "robot:pass word", "--all-platforms", name]
    containerd.call(*pull)
    platforms = next(line for line in containerd.call("images", "ls").splitlines() if line.startswith(name))
    assert "linux/amd64,linux/arm64" in platforms


def test_a_pipeline_publishes_the_image(
    registry: Registry, parts: Callable[[str], dict[str, Any]], collections: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = parts("one") | {
        "kube_accel_image_reference": f"{registry.name}/gpu/published:1",
        "kube_accel_image_ca_path": str(registry.ca),
    }

    def publish(password: str) -> Run:
        monkeypatch.setenv("REGISTRY_USER", "robot")
        monkeypatch.setenv("REGISTRY_PASSWORD", password)
        return play(collections, str(REPOSITORY / "examples/awx/publish.yml"), "-i", "localhost,", **made)

    refused = publish("wrong")
    assert refused.code != 0
    assert "did not accept 'username' and 'password'" in refused.output, refused.output
    done = publish("pass word")
    assert (done.code, done.changed) == (0, 1), done.output
    assert f"gpu_plugins_image: {registry.name}/gpu/published@sha256:" in done.output
    assert "pass word" not in done.output
    assert publish("pass word").changed == 0


@pytest.mark.full
def test_the_first_inventory_serves_gpus_with_the_image(
    start: Start, containerd: Containerd, parts: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    made = parts("one")
    clone = tmp_path / "clone/.build"
    left = clone / "image" / ARCHITECTURE
    (left / "wheels").mkdir(parents=True)
    (left / "native").mkdir()
    (left / "native/libcuda.so.1").write_text("the interposer")
    shutil.move(made["kube_accel_image_assemble"][ARCHITECTURE]["base"], left / "kube-accel.tar")
    shutil.copy(tmp_path / "kube_accel-1.0-py3-none-any.whl", left / "wheels")

    first = (REPOSITORY / "examples/inventory.yml").read_text()
    books = start(Spec("control-1", (NodeSpec("gpu-1", "t4"), NodeSpec("gpu-2", "8xh100"))))
    (tmp_path / "first.yml").write_text(first.replace("/home/admin/accel.kubernetes/.build", str(clone)))
    # Where the simulated hosts and their programs are, and nothing else.
    rig = yaml.safe_load((books.cluster.root / "inventory.yml").read_text())
    for name in ("gpu_plugins_image", "gpu_mode"):
        del rig["all"]["vars"][name]
    rig["all"]["vars"] |= {"kube_accel_image_dir": made["kube_accel_image_dir"], **containerd.variables}
    (tmp_path / "rig.yml").write_text(yaml.safe_dump(rig))

    done = books.run("accel.kubernetes.site", "-i", str(tmp_path / "rig.yml"), inventory=tmp_path / "first.yml")
    assert done.code == 0, done.output
    ((image, pinned),) = containerd.images().items()
    assert pinned
    api = Api(books.cluster.kubeconfig)
    plugins = api.get("/apis/apps/v1/namespaces/kube-system/daemonsets")["items"]
    assert image in {item["spec"]["template"]["spec"]["containers"][0]["image"] for item in plugins}
    offers = {
        item["metadata"]["name"]: item["status"]["allocatable"].get("nvidia.com/gpu")
        for item in api.get("/api/v1/nodes")["items"]
    }
    assert (offers["gpu-1"], offers["gpu-2"]) == ("1", "8")
