# SPDX-License-Identifier: Apache-2.0
"""What our pods and accounts may do is what ``docs/reference/permissions.md`` gives a reason for, exactly."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import keeping, rendered, runtime

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs/reference/permissions.md"
MODES = ("pgpu", "vgpu", "mps", "cgpu")
PLUGIN = (
    {},
    {"gpu_plugins_kernel_logs": ["/dev/kmsg"]},
    {"gpu_plugins_metrics_profiling": True},
    {"gpu_plugins_mig_label": True, "gpu_plugins_drain": True},
    {"gpu_plugins_mig_strategy": "mixed"},
    {"__gpu_plugins_nodes": {"resources": [runtime("containerd://2.1.4")]}},
    {"__gpu_plugins_nodes": {"resources": [runtime("containerd://1.7.28")]}},
)
SECONDARY = {
    "__scheduler_version": {"version": {"server": {"kubernetes": {"gitVersion": "v1.31.2"}}}},
    "__scheduler_secret": {"result": {"metadata": {"resourceVersion": "1"}}},
}
LAYOUTS = ("local", "proxied", "secondary")


def objects() -> Iterator[dict[str, Any]]:
    """Whatever the roles make in any mode, layout and combination of what widens rights."""
    for mode, options in itertools.product(MODES, PLUGIN):
        yield from rendered("gpu_plugins", "daemonset.yml.j2", mode=mode, **options)
    for options in PLUGIN[:2]:
        yield from rendered("gpu_plugins", "dra.yml.j2", gpu_mode="dra", **options)
        yield from rendered(
            "gpu_plugins", "dra.yml.j2", gpu_mode="dra", __gpu_plugins_kept_slice=keeping(True), **options
        )
    yield from rendered("dcgm_exporter", "objects.yml.j2")
    widest = {"gpu_plugins_configs": {"default": {}}, "gpu_plugins_mig_label": True, "gpu_plugins_drain": True}
    yield from rendered("gpu_plugins", "rbac.yml.j2", **widest)
    for layout in LAYOUTS:
        words: dict[str, Any] = {"scheduler_layout": layout, "scheduler_image": "i", **SECONDARY}
        yield from rendered("scheduler", "rbac.yml.j2", **words)
        yield from rendered("scheduler", "secondary.yml.j2" if layout == "secondary" else "extender.yml.j2", **words)


@pytest.fixture(scope="module")
def made() -> list[dict[str, Any]]:
    return list(objects())


def section(heading: str) -> str:
    return DOCUMENT.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def table(section: str) -> list[tuple[str, ...]]:
    """The rows of the one table, without backticks."""
    rows = [tuple(cell.strip() for cell in line[1:-1].split("|")) for line in section.splitlines() if line[:1] == "|"]
    assert len(rows) > 2
    assert all(row[-1] for row in rows), "a row without its last cell"
    return [tuple(cell.replace("`", "") for cell in row) for row in rows[2:]]


def rights(pod: dict[str, Any]) -> Iterator[str]:
    """What this pod has beyond a pod that the restricted Pod Security Standard admits, in words."""
    yield from (key for key in ("hostPID", "hostNetwork", "hostIPC") if pod.get(key))
    if pod.get("securityContext", {}).get("supplementalGroups"):
        yield "group adm"
    mounts = [mount for container in pod["containers"] for mount in container.get("volumeMounts", ())]
    for volume in pod.get("volumes", ()):
        if "hostPath" in volume:
            (mount,) = [each for each in mounts if each["name"] == volume["name"]]
            yield f"{volume['hostPath']['path']} {'read' if mount.get('readOnly') else 'write'}"
    for container in pod["containers"]:
        context = container["securityContext"]
        capabilities = context.get("capabilities", {})
        yield from (f"capability {name}" for name in capabilities.get("add", ()))
        if "ALL" not in capabilities.get("drop", ()) and not context.get("privileged"):
            yield "the runtime's default capabilities"
        if context.get("privileged"):
            yield "privileged"
        if context.get("runAsUser") == 0:
            yield "user root"
        if not context.get("readOnlyRootFilesystem"):
            yield "a writable root file system"
        if "seccompProfile" not in pod.get("securityContext", {}) | context:
            yield "every system call"
        if "seLinuxOptions" in context:
            yield f"SELinux type {context['seLinuxOptions']['type']}"


def pods(made: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Pod specifications by what they are: plugin, extender or dcgm-exporter."""
    for item in made:
        if item["kind"] in ("DaemonSet", "Deployment"):
            spec = item["spec"]["template"]["spec"]
            names = {container["name"] for container in spec["containers"]}
            yield "extender" if "extender" in names else "plugin" if "kube-accel" in names else "dcgm-exporter", spec


def test_every_right_of_a_pod_on_its_host_has_a_reason(made: list[dict[str, Any]]) -> None:
    found = {(who, right) for who, pod in pods(made) for right in rights(pod)}
    assert found == {(who, right) for who, right, *_ in table(section("What pods may do on a host"))}


def test_default_plugin_is_unprivileged_without_capabilities(made: list[dict[str, Any]]) -> None:
    (plain,) = rendered("gpu_plugins", "daemonset.yml.j2", mode="pgpu")
    found = set(rights(plain["spec"]["template"]["spec"]))
    assert not {right for right in found if right.startswith(("capability", "privileged", "host"))}


def test_every_right_of_an_account_has_a_reason(made: list[dict[str, Any]]) -> None:
    rules = {
        (item["kind"], item["metadata"]["name"]): item["rules"]
        for item in made
        if item["kind"] in ("Role", "ClusterRole")
    }
    found = set()
    for item in made:
        if item["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            role = (item["roleRef"]["kind"], item["roleRef"]["name"])
            for who in (subject["name"] for subject in item["subjects"]):
                if role not in rules:
                    found.add((who, role[1], "all of it", "any"))
                for rule in rules.get(role, ()):
                    where = ", ".join(rule.get("resourceNames", ())) or "any"
                    found |= {(who, *right, where) for right in itertools.product(rule["resources"], rule["verbs"])}
    _, *accounts = section("What accounts may do in the cluster").split("\n### Account `")
    told = {
        (who, resource, verb.strip(), where)
        for who, _, text in (account.partition("`\n") for account in accounts)
        for resource, verbs, where, _ in table(text)
        for verb in verbs.split(",")
    }
    assert found == told


def test_no_account_may_use_wildcards_or_read_secrets(made: list[dict[str, Any]]) -> None:
    rules = [rule for item in made if item["kind"] in ("Role", "ClusterRole") for rule in item["rules"]]
    assert rules
    for rule in rules:
        words = {*rule["resources"], *rule["verbs"], *rule["apiGroups"]}
        assert not words & {"*", "secrets", "impersonate", "escalate", "bind"}, rule


@pytest.mark.parametrize(
    "page", ["docs/explanation/isolation.md", "docs/reference/gpu-plugins.md", "docs/reference/container-runtimes.md"]
)
def test_a_page_says_where_images_get_gpus_by_the_environment(page: str) -> None:
    text = (ROOT / page).read_text()
    (told,) = (
        part
        for part in re.split(r"\n\n|\n\| ", text)
        if "`container_runtime_ignore_visible_devices" in part and "mode `pgpu`" in part
    )
    assert all(each in told for each in ("Docker", "envvar"))
