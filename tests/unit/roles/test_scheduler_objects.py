# SPDX-License-Identifier: Apache-2.0
"""What the templates of the scheduler role make, and that the role asks its planners with all variables."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Evaluate, rendered, variables_of
from .test_security import SECONDARY


@pytest.mark.parametrize(
    ("layout", "given", "listens", "scraped"),
    [
        ("local", {}, ["--metrics-listen=$(POD_IP):9447"], [{"name": "metrics", "containerPort": 9447}]),
        ("local", {"scheduler_metrics_port": 0}, [], []),
        ("secondary", {}, ["--metrics-listen=$(POD_IP):9447"], [{"name": "metrics", "containerPort": 9447}]),
        ("proxied", {}, [], [{"name": "metrics", "containerPort": 9446}]),
    ],
)
def test_the_extender_is_scraped_where_prometheus_reaches_it(
    layout: str, given: dict[str, int], listens: list[str], scraped: list[dict[str, Any]]
) -> None:
    words = {"scheduler_layout": layout, "scheduler_image": "i"} | given
    (container,) = rendered("scheduler", "container.yml.j2", **words)
    assert [word for word in container["command"] if "metrics" in word] == listens
    assert container.get("ports", []) == scraped
    assert ("POD_IP" in {each["name"] for each in container.get("env", [])}) == bool(listens)


@pytest.mark.parametrize("layout", ["proxied", "secondary"])
def test_an_imported_image_is_run_where_it_was_imported(layout: str) -> None:
    made = {"kube_accel_image_here": "localhost/kube-accel:1-abc"}
    words: dict[str, Any] = {
        "groups": {"gpu_nodes": ["a", "b", "absent"], "kube_control_plane": ["cp"]},
        "hostvars": {"a": made, "b": made | {"gpu_plugins_node_name": "b.example"}, "absent": {}, "cp": made},
        "kube_accel_image_assemble": {"amd64": {}},
        "gpu_plugins_image": "localhost/kube-accel:1-abc",
        "scheduler_layout": layout,
        **SECONDARY,
    }

    def pod(**changed: Any) -> dict[str, Any]:
        template = "secondary.yml.j2" if layout == "secondary" else "extender.yml.j2"
        objects = rendered("scheduler", template, **(words | changed))
        (found,) = [item["spec"]["template"]["spec"] for item in objects if item["kind"] == "Deployment"]
        spec: dict[str, Any] = found
        return spec

    required = pod()["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    fields = [field for term in required["nodeSelectorTerms"] for field in term["matchFields"]]
    assert [field["values"] for field in fields] == [["a"], ["b.example"], ["cp"]]
    assert {field["key"] for field in fields} == {"metadata.name"}
    assert "node-role.kubernetes.io/gpu" in {item["key"] for item in pod()["tolerations"]}
    for elsewhere in (
        {"kube_accel_image_delivery": "push"},
        {"kube_accel_image_assemble": {}},
        {"scheduler_image": "registry.example/own:1"},
    ):
        assert not {"affinity", "tolerations"} & pod(**elsewhere).keys()


def test_role_asks_its_planners_with_its_variables(evaluate: Evaluate) -> None:
    """Under their own names, or the planner would take a default."""
    asked = variables_of("scheduler")["__scheduler_asked"]
    for name, template in asked["options"].items():
        assert template.startswith(f"{{{{ {name} "), name
    variables = {"scheduler_layout": "local", "scheduler_metrics_port": 9447, "groups": {}, "scheduler_image": "i"}
    assert evaluate("scheduler", "__scheduler_plan", {}, **variables)["layout"] == "local"
    given = {"__scheduler_places": {"results": [{"item": {"name": "k3s"}, "stat": {"exists": True}}]}}
    assert evaluate("scheduler", "__scheduler_plan", {}, **variables, **given)["distribution"] == "k3s"
    removing = evaluate("scheduler", "__scheduler_plan", {}, **variables, scheduler_removing=True)
    assert (removing["layout"], removing["state"]) == ("none", "absent")
