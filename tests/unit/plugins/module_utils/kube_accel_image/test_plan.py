# SPDX-License-Identifier: Apache-2.0
"""How the assembled image of the daemons is named, and why it cannot be assembled."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml
from ansible_collections.accel.kubernetes.plugins.module_utils.kube_accel_image.plan import (
    Plan,
    Seen,
    assembly,
    plan,
    without_interposer,
)
from hypothesis import given
from hypothesis.strategies import dictionaries, integers, lists, none, one_of, sampled_from, sets, text

from unit.roles.conftest import ROLES

OPTIONS = {
    "kube_accel_image_assemble": {"amd64": {"base": "/b", "native": "/n"}},
    "kube_accel_image_reference": "localhost/kube-accel:1",
    "kube_accel_image_delivery": "import",
}


@pytest.mark.parametrize(
    ("reference", "repository", "tag"),
    [
        ("localhost/kube-accel:0.1.0", "localhost/kube-accel", "0.1.0"),
        ("registry.example.com:5000/gpu/kube-accel", "registry.example.com:5000/gpu/kube-accel", "latest"),
        ("registry.example.com/kube-accel:v1_a.b-c", "registry.example.com/kube-accel", "v1_a.b-c"),
    ],
)
def test_an_imported_image_is_named_by_its_content(reference: str, repository: str, tag: str) -> None:
    def named(*digests: str) -> Plan:
        results = [{"digest": digest, "item": {"key": "amd64"}} for digest in digests]
        return plan(Seen({**OPTIONS, "kube_accel_image_reference": reference}, assembled={"results": results}))

    assert named().repository == repository
    assert re.fullmatch(re.escape(tag) + "-[0-9a-f]{12}", named("sha256:a", "sha256:b").tag)
    assert named("sha256:a", "sha256:b").tag == named("sha256:b", "sha256:a").tag
    assert named("sha256:a", "sha256:b").tag != named("sha256:a", "sha256:c").tag
    assert named("sha256:a").name == f"{repository}:{named('sha256:a').tag}"


@pytest.mark.parametrize(
    ("machine", "architecture", "digests"),
    [("x86_64", "amd64", ["sha256:a", "id-a"]), ("aarch64", "arm64", ["sha256:b", "id-b"]), ("riscv64", "riscv64", [])],
)
def test_a_host_looks_for_the_image_of_its_architecture(machine: str, architecture: str, digests: list[str]) -> None:
    results = [
        {"digest": "sha256:a", "id": "id-a", "item": {"key": "amd64"}},
        {"digest": "sha256:b", "id": "id-b", "item": {"key": "arm64"}},
    ]
    found = plan(Seen(OPTIONS, machine=machine, assembled={"results": results}))
    assert (found.architecture, found.digests) == (architecture, digests)


WHEEL = ["/srv/kube_accel-1-py3-none-any.whl"]


@pytest.mark.parametrize(
    ("parts", "wheels", "incomplete", "bare"),
    [
        ({"base": "/b", "native": "/n"}, WHEEL, [], []),
        ({"base": "/b", "files": []}, WHEEL, [], []),
        ({"base": "/b"}, WHEEL, [], ["amd64"]),
        ({"base": "", "native": "/n"}, WHEEL, ["amd64"], []),
        ({"native": "/n"}, WHEEL, ["amd64"], []),
        ({"base": "/b", "native": "/n"}, [], ["amd64"], []),
        ({"base": "/b", "native": "/n"}, ["/srv/kube_accel-1/grpcio.whl"], ["amd64"], []),
        ("text", [], ["amd64"], ["amd64"]),
    ],
)
def test_what_an_image_lacks_is_known(parts: Any, wheels: list[str], incomplete: list[str], bare: list[str]) -> None:
    assemble = {"amd64": parts}
    found = plan(Seen({**OPTIONS, "kube_accel_image_assemble": assemble}, {"amd64": wheels}))
    said = [refusal.message for refusal in found.refusals if refusal.code == "image_incomplete"]
    assert ["amd64" in message for message in said] == [True for _ in incomplete]
    assert without_interposer(assemble) == bare


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({}, ""),
        ({"kube_accel_image_reference": "kube-accel:1"}, "image_reference"),
        ({"kube_accel_image_reference": "gpu/kube-accel:1"}, "image_reference"),
        ({"kube_accel_image_reference": "localhost/kube-accel@sha256:00"}, "image_reference"),
        ({"kube_accel_image_assemble": {"riscv64": {"base": "/b"}}}, "image_architecture"),
        ({"kube_accel_image_assemble": ["amd64"]}, "option_type"),
        ({"kube_accel_image_assemble": "/srv/clone/.build"}, ""),
        ({"kube_accel_image_assemble": "clone/.build"}, "image_not_made"),
        ({"kube_accel_image_assemble": ""}, ""),
        ({"kube_accel_image_delivery": "push"}, "image_registry"),
        ({"kube_accel_image_delivery": "push", "kube_accel_image_reference": "registry.example/gpu/kube-accel:1"}, ""),
        ({"kube_accel_image_delivery": "carry"}, "option_type"),
    ],
)
def test_an_image_that_cannot_be_is_refused_with_a_code(changed: dict[str, Any], code: str) -> None:
    found = plan(Seen({**OPTIONS, **changed}, {"amd64": WHEEL, "riscv64": WHEEL}))
    assert [refusal.code for refusal in found.refusals] == ([code] if code else [])
    assert found.words == " ".join(refusal.message for refusal in found.refusals)


@pytest.mark.parametrize("directory", ["/srv/clone/.build", "~/clone/.build/"])
@given(made=sets(sampled_from(["amd64", "arm64"])), machine=sampled_from(["", "x86_64", "aarch64", "riscv64"]))
def test_a_directory_has_the_images_that_were_made_there(directory: str, made: set[str], machine: str) -> None:
    asked = {**OPTIONS, "kube_accel_image_assemble": directory}
    found = plan(Seen(asked, {name: WHEEL if name in made else [] for name in ("amd64", "arm64")}, machine))
    assert set(found.parts) == made
    assert [refusal.code for refusal in found.refusals] == ([] if made else ["image_not_made"])
    assert made or "run it in a clone of the collection" in found.words
    assert bool(found.unserved) == bool(made and machine and found.architecture not in made)
    if found.unserved:
        assert f"make image ARCH={found.architecture}" in found.unserved
    for name, parts in found.parts.items():
        root = f"{directory.rstrip('/')}/image/{name}"
        assert parts == {
            "base": f"{root}/kube-accel.tar",
            "wheels": [f"{root}/wheels/*.whl"],
            "native": f"{root}/native",
        }
    assert without_interposer(directory) == []


@given(one_of(none(), integers(), lists(text()), dictionaries(text(), integers())))
def test_no_value_is_too_odd_to_be_read(value: object) -> None:
    assert all(parts == {} for parts in assembly(value).values())
    assert isinstance(plan(Seen({**OPTIONS, "kube_accel_image_assemble": value})).words, str)


def test_a_host_of_another_architecture_is_told_what_to_add() -> None:
    found = plan(Seen(OPTIONS, {"amd64": WHEEL}, "aarch64"))
    assert found.unserved == ("The host is arm64, and kube_accel_image_assemble has an image for amd64; add it there.")


def test_the_assembled_image_bears_the_version_of_the_daemons() -> None:
    daemons = ROLES / "gpu_plugins/files/kube_accel/pyproject.toml"
    version = tomllib.loads(daemons.read_text())["project"]["version"]
    defaults = yaml.safe_load((ROLES / "kube_accel_image/defaults/main.yml").read_text())
    assert defaults["kube_accel_image_reference"] == f"localhost/kube-accel:{version}"


def test_interposer_lies_where_the_plugins_look_for_it() -> None:
    image = yaml.safe_load((ROLES / "kube_accel_image/vars/main.yml").read_text())
    plugins = yaml.safe_load((ROLES / "gpu_plugins/vars/main/names.yml").read_text())
    assert image["__kube_accel_image_paths"]["native"] == plugins["__gpu_plugins_names"]["shim_dir"]
