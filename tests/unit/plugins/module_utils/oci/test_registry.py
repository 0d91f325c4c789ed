# SPDX-License-Identifier: Apache-2.0
"""Images of several platforms in a registry: which is read, and which are kept."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.oci import image as oci_image
from ansible_collections.accel.kubernetes.plugins.module_utils.oci import registry as oci_registry

import image_archives
from image_layers import Blobs, index, layer, manifest
from unit.plugins.modules.registry import Registry


def platform(architecture: str, system: str = "linux", variant: str = "") -> dict[str, str]:
    return {"os": system, "architecture": architecture, "variant": variant}


def serve(registry: Registry, *platforms: dict[str, str], alone: bool = False) -> oci_registry.Registry:
    """Have the tag name an index of images, one for each platform, or one image alone."""
    blobs: Blobs = {}
    plain = [layer(("f", "text", "x"))]
    images = [{**manifest(blobs, plain, **one), "platform": one} for one in platforms]
    registry.manifests |= blobs
    registry.blobs |= blobs
    registry.manifests["1"] = blobs[(images[0] if alone else index(blobs, *images))["digest"]]
    reference = oci_image.parse_reference(f"{registry.name}/gpu/kube-accel:1")
    return oci_registry.Registry(reference, oci_registry.Access("", "", "", None, True, 5))


def read(*platforms: dict[str, str], alone: bool = False) -> dict[str, Any]:
    with Registry() as registry:
        return serve(registry, *platforms, alone=alone).describe("amd64").configuration


def test_the_configuration_is_that_of_the_platform() -> None:
    unknown, windows = platform("unknown", "unknown"), platform("amd64", "windows")
    new, old = platform("amd64", variant="v3"), platform("amd64")
    found = read(platform("arm64"), new, old, windows, unknown)
    assert (found["os"], found["architecture"], found["variant"]) == ("linux", "amd64", "")
    assert read(new, windows)["variant"] == "v3"


@pytest.mark.parametrize("alone", [True, False])
def test_image_for_another_platform_is_refused_by_its_name(alone: bool) -> None:
    with pytest.raises(oci_registry.RegistryError, match="is there for windows/amd64 and not for amd64"):
        read(platform("amd64", "windows"), platform("unknown", "unknown"), alone=alone)


def test_an_index_keeps_the_images_of_other_systems() -> None:
    ours = image_archives.image()
    before = {"manifests": [{"digest": "w", "platform": platform("amd64", "windows")},
                            {"digest": "o", "platform": platform("amd64")}, {"digest": "n"}]}  # fmt: skip
    kept = json.loads(oci_image.merged_index(ours, before).read())["manifests"]
    assert {one["digest"] for one in kept} == {ours.manifest.digest, "w", "n"}
