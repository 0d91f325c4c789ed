# SPDX-License-Identifier: Apache-2.0
import re
import xml.etree.ElementTree as ET

import pytest

from demo.allocation import rows, table
from demo.picture import DARK, DARK_PODS, HEIGHT, LIGHT, LIGHT_PODS, STYLE, picture
from kube_accel.model import Gpu, GpuHealth, Health, Inventory, Mode
from kube_accel.sharing.inventory_annotation import ANNOTATION, Holding, NodeInventory, encode
from tools.contrast import SHAPE, TEXT, too_close

GIB = 1 << 30
HEALTHY = GpuHealth(Health.HEALTHY)
LOST = GpuHealth(Health.UNHEALTHY, "GPU is lost")


def node(name, mode, *gpus, told=True):
    """A node object; each GPU is its health and who holds it as (pod, cores, GiB)."""
    cards = tuple(
        Gpu(f"GPU-{name}-{index}", index, index, "T4", 16 * GIB, (7, 5), f"0000:0{index}:00.0", None, False)
        for index in range(len(gpus))
    )
    held = {
        card.uuid: tuple(Holding("team", pod, "main", cores, gib * GIB) for pod, cores, gib in held)
        for card, (_, *held) in zip(cards, gpus, strict=True)
    }
    health = {card.uuid: gpu[0] for card, gpu in zip(cards, gpus, strict=True)}
    inventory = NodeInventory(mode, Inventory("580", (13, 0), cards), health, held if told else None)
    return {"metadata": {"name": name, "annotations": {ANNOTATION: encode(inventory)}}}


NODES = [
    node("b", Mode.VGPU, (HEALTHY, ("train", 30, 4), ("infer", 50, 8)), (HEALTHY,)),
    node("a", Mode.PGPU, (HEALTHY, ("whole", 100, 16)), (LOST,)),
    node("c", Mode.CGPU, (HEALTHY, ("memory", 0, 4))),
    node("d", Mode.MPS, (HEALTHY,), told=False),
    {"metadata": {"name": "no-gpu"}},
]


def test_table_has_a_line_for_every_slice_and_for_what_is_left():
    lines = table(rows(NODES)).splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["a", "pgpu", "0", "T4", "healthy", "100", "%", "16", "GiB", "team/whole"],
        ["a", "pgpu", "1", "T4", "unhealthy:", "GPU", "is", "lost", "-", "-", "-"],
        ["b", "vgpu", "0", "T4", "healthy", "50", "%", "8", "GiB", "team/infer"],
        ["30", "%", "4", "GiB", "team/train"],
        ["20", "%", "4", "GiB", "free"],
        ["b", "vgpu", "1", "T4", "healthy", "100", "%", "16", "GiB", "free"],
        ["c", "cgpu", "0", "T4", "healthy", "-", "4", "GiB", "team/memory"],
        ["-", "12", "GiB", "free"],
        ["d", "mps", "0", "T4", "healthy", "?", "?", "unknown"],
    ]


def test_two_containers_of_a_pod_are_one_slice():
    pods = rows([node("a", Mode.VGPU, (HEALTHY, ("train", 30, 4), ("train", 20, 1)))])[0].slices
    assert [(part.pod, part.cores, part.memory_bytes) for part in pods] == [("team/train", 50, 5 * GIB)]


def test_picture_names_every_slice_and_draws_it_to_scale():
    svg = ET.fromstring(picture(rows([node("b", Mode.VGPU, (HEALTHY, ("train", 30, 4), ("infer", 50, 8)))])))
    boxes = {
        group[0].text: float(group[1].get("height"))
        for group in svg.iter("{http://www.w3.org/2000/svg}g")
        if group[0].tag.endswith("title") and group[1].tag.endswith("rect")
    }
    assert boxes == {
        "team/infer: 50 % · 8 GiB": pytest.approx(HEIGHT * 0.5 - 1, abs=0.1),
        "team/train: 30 % · 4 GiB": pytest.approx(HEIGHT * 0.3 - 1, abs=0.1),
    }


def test_picture_counts_used_gpus_and_marks_the_others():
    svg = ET.fromstring(picture(rows(NODES)))
    texts = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert "3 of 6 GPUs in use, by 4 pods" in texts
    assert {"whole GPU", "× GPU 1", "GPU is lost", "20 % · 4 GiB", "12 GiB", "free", "unknown"} <= set(texts)
    # A GPU that is free, and the rest of two others.
    assert texts.count("free") == 3


def test_an_annotation_of_another_version_is_refused_by_node():
    other = node("a", Mode.PGPU, (HEALTHY,))
    other["metadata"]["annotations"][ANNOTATION] = '{"version": 2}'
    with pytest.raises(ValueError, match=r"node a: .*version"):
        rows([other])


@pytest.mark.parametrize(("palette", "pods"), [(LIGHT, LIGHT_PODS), (DARK, DARK_PODS)], ids=["light", "dark"])
def test_picture_has_contrast_by_day_and_at_night(palette, pods):
    colors = palette | {f"p{number}": color for number, color in enumerate(pods)}
    kinds = [f"p{number}" for number in range(len(pods))]
    texts = [("text", "back"), ("note", "back"), ("note", "free"), ("bad", "back"), ("bad", "free")]
    assert too_close(colors, [*texts, *(("ink", kind) for kind in kinds)], TEXT) == []
    assert too_close(colors, [*((kind, "back") for kind in kinds), ("edge", "back"), ("edge", "free")], SHAPE) == []
    assert all(color in STYLE for color in colors.values())


def test_picture_can_be_told_without_color():
    svg = ET.fromstring(picture(rows(NODES)))
    for group in svg.iter("{http://www.w3.org/2000/svg}g"):
        title, shape = (group[0].text or "", group[1]) if group[0].tag.endswith("title") else ("", None)
        if shape is not None and shape.tag.endswith("rect"):
            pod = title.partition(": ")[0].rpartition("/")[2]
            assert any(pod in (text.text or "") for text in group.iter("{http://www.w3.org/2000/svg}text")), title


def test_picture_fits_a_phone():
    svg = ET.fromstring(picture(rows(NODES)))
    smallest = min(map(int, re.findall(r"font-size[:=]\"?(\d+)", STYLE)))
    assert smallest * 400 / int(svg.get("width")) > 10
