# SPDX-License-Identifier: Apache-2.0
import json
import xml.etree.ElementTree as ET

import pytest

from demo.allocation import ANNOTATION, picture, rows, table


def node(name, *gpus, version=1):
    return {
        "metadata": {"name": name, "annotations": {ANNOTATION: json.dumps({"version": version, "gpus": list(gpus)})}}
    }


def gpu(index, pod=None, health="healthy", reason=""):
    held = [{"namespace": "team", "pod": pod, "container": "main"}] if pod else []
    return {"index": index, "model": "T4", "health": health, "reason": reason, "held": held}


NODES = [
    node("b", gpu(0)),
    node("a", gpu(1, health="unhealthy", reason="GPU is lost"), gpu(0, pod="<train>")),
    {"metadata": {"name": "no-gpu"}},
]


def test_table_names_node_gpu_pod_and_why_a_gpu_is_bad():
    lines = table(rows(NODES)).splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["a", "0", "T4", "healthy", "team/<train>"],
        ["a", "1", "T4", "unhealthy:", "GPU", "is", "lost", "-"],
        ["b", "0", "T4", "healthy", "-"],
    ]


def test_picture_is_well_formed_and_marks_holder_and_bad_gpu():
    svg = ET.fromstring(picture(rows(NODES)))
    texts = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert "GPUs in use: 1 of 3" in texts
    assert "<train>" in texts
    assert "unhealthy" in texts


def test_an_inventory_of_another_version_is_refused():
    with pytest.raises(ValueError, match="node a: inventory version 2"):
        rows([node("a", version=2)])
