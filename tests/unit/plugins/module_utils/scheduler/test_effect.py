# SPDX-License-Identifier: Apache-2.0
"""What a running kube-scheduler says of its configuration; the answers are in the words of its internal types."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
from ansible_collections.accel.kubernetes.plugins.module_utils.host.machine import Host
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler import (
    effect as scheduler_effect,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.effect import Question, compare
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.schema import API_VERSION

KUBE_SCHEDULER = shutil.which(
    "kube-scheduler", path=os.pathsep.join([os.environ.get("KUBEBUILDER_ASSETS", ""), "/usr/local/kubebuilder/bin"])
)
EXTENDER: dict[str, Any] = {
    "urlPrefix": "https://127.0.0.1:9446/scheduler/",
    "filterVerb": "predicates",
    "prioritizeVerb": "priorities",
    "weight": 2,
    "bindVerb": "bind",
    "enableHTTPS": True,
    "httpTimeout": "90s",
    "nodeCacheCapable": True,
    "ignorable": False,
    "managedResources": [{"name": "tencent.com/vcuda-core", "ignoredByScheduler": False}],
    "tlsConfig": {"insecure": False, "serverName": "on"},
}
CONFIG = {
    "apiVersion": API_VERSION,
    "kind": "KubeSchedulerConfiguration",
    "leaderElection": {"leaderElect": False},
    "extenders": [EXTENDER],
    "profiles": [
        {
            "schedulerName": "other",
            "pluginConfig": [{"name": "NodeResourcesFit", "args": {"scoringStrategy": {"type": "LeastAllocated"}}}],
        },
        {
            "schedulerName": "default-scheduler",
            "pluginConfig": [
                {
                    "name": "NodeResourcesFit",
                    "args": {
                        "scoringStrategy": {
                            "type": "MostAllocated",
                            "resources": [{"name": "nvidia.com/gpu", "weight": 3}],
                        }
                    },
                }
            ],
        },
    ],
}


def internal(value: Any) -> Any:
    """As Go writes a type without names for JSON."""
    acronyms = {"urlPrefix": "URLPrefix", "httpTimeout": "HTTPTimeout", "tlsConfig": "TLSConfig"}
    if isinstance(value, dict):
        return {acronyms.get(name, name[0].upper() + name[1:]): internal(item) for name, item in value.items()}
    return [internal(item) for item in value] if isinstance(value, list) else value


def running(**changes: Any) -> dict[str, Any]:
    return {"componentconfig": internal({**CONFIG, **changes})}


def other(**changes: Any) -> list[dict[str, Any]]:
    return [{**EXTENDER, **changes}]


FIT = CONFIG["profiles"][1]["pluginConfig"][0]["args"]["scoringStrategy"]  # type: ignore[index]


def packed(**changes: Any) -> list[dict[str, Any]]:
    plugin = {"name": "NodeResourcesFit", "args": {"scoringStrategy": {**FIT, **changes}}}
    return [{"schedulerName": "default-scheduler", "pluginConfig": [plugin]}]


@pytest.mark.parametrize(
    "configz",
    [
        running(),
        running(extenders=other(httpTimeout="1m30s")),
        running(extenders=other(preemptVerb="", tlsConfig={"insecure": False, "serverName": "on", "caData": None})),
    ],
)
def test_a_scheduler_that_has_what_the_file_says_has_it(configz: dict[str, Any]) -> None:
    problem, has = compare(configz, CONFIG)
    assert problem == ""
    assert has == f"calls {EXTENDER['urlPrefix']} and packs by nvidia.com/gpu (weight 3)"


@pytest.mark.parametrize(
    ("configz", "words"),
    [
        (running(extenders=None), ["calls no extender, not", EXTENDER["urlPrefix"]]),
        (running(extenders=[EXTENDER, *other(urlPrefix="https://x")]), ["and https://x, not"]),
        (running(extenders=other(filterVerb="f")), ["filterverb 'f', not 'predicates'"]),
        (running(extenders=other(weight=1)), ["weight 1, not 2"]),
        (running(extenders=other(httpTimeout="5s")), ["httptimeout '5s'"]),
        (running(extenders=other(tlsConfig=None)), ["tlsconfig None"]),
        (running(extenders=other(managedResources=[])), ["managedresources []"]),
        (running(profiles=packed(type="LeastAllocated")), ["LeastAllocated, not by MostAllocated"]),
        (running(profiles=packed(resources=[{"name": "cpu", "weight": 1}])), ["cpu (weight 1), not by nvidia.com/gpu"]),
        (running(profiles=[{"schedulerName": "other", "pluginConfig": None}]), ["not by MostAllocated"]),
    ],
)
def test_what_a_scheduler_has_otherwise_is_told(configz: dict[str, Any], words: list[str]) -> None:
    problem, _has = compare(configz, CONFIG)
    assert all(word in problem for word in words), problem


def test_without_a_configuration_a_scheduler_calls_nobody() -> None:
    assert compare(running(extenders=None), {}) == ("", "calls no extender")
    assert "not none" in compare(running(), {})[0]


def kubeconfig(path: Path, certificate: trustme.LeafCert, server: str = "https://127.0.0.1:1") -> Path:
    pem = path.with_suffix(".pem")
    certificate.private_key_and_cert_chain_pem.write_to_path(pem)
    user = {"client-certificate": str(pem), "client-key": str(pem)}
    document = {
        "clusters": [{"name": "a", "cluster": {"server": server}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "current-context": "a",
        "users": [{"name": "a", "user": user}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


class FakeModule:
    def __init__(self, tmpdir: Path) -> None:
        self.tmpdir = str(tmpdir)


def question(tmp_path: Path, **changes: Any) -> Question:
    values: dict[str, Any] = {
        "url": "https://127.0.0.1:1/healthz",
        "kubeconfigs": [],
        "root": str(tmp_path),
        "config": yaml.safe_dump(CONFIG),
        "file": "/c.yaml",
        "own_process": True,
    }
    return Question(**{**values, **changes})


@pytest.mark.parametrize(
    ("lines", "changes", "said", "problem", "unknown"),
    [
        ([b"/usr/bin/kube-scheduler\0--config=/x\0--config\0/c.yaml\0", b"kubelet\0"], {}, "process 10", "", ""),
        ([b"kube-scheduler\0--v=2\0"], {}, "", "configuration /c.yaml, but none", ""),
        ([b"kube-scheduler\0--config=/x"], {"file": None}, "", "configuration none, but /x", ""),
        ([b"kube-scheduler\0--config=/x", b"kube-scheduler\0--config=/c.yaml"], {}, "process 11", "", ""),
        ([b"k3s server"], {"own_process": False, "kubeconfigs": ["/no/k3s.yaml"]}, "", "", "no /no/k3s.yaml"),
        ([], {}, "", "", "no kube-scheduler can be asked"),
    ],
)
def test_command_line_names_the_file_if_configz_is_closed(
    tmp_path: Path, lines: list[bytes], changes: dict[str, Any], said: str, problem: str, unknown: str
) -> None:
    for number, line in enumerate(lines, 10):
        (tmp_path / f"proc/{number}").mkdir(parents=True)
        (tmp_path / f"proc/{number}/cmdline").write_bytes(line)
    answer = scheduler_effect.ask(Host(FakeModule(tmp_path)), question(tmp_path, **changes))
    for found, words in ((answer.said, said), (answer.problem, problem), (answer.unknown, unknown)):
        assert words in found
        assert bool(words) is bool(found)


@contextlib.contextmanager
def scheduler(tmp_path: Path, config: dict[str, Any], authority: trustme.CA) -> Iterator[int]:
    """A real kube-scheduler, which reaches no API server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    options = [f"--config={tmp_path}/c.yaml", "--bind-address=127.0.0.1", f"--client-ca-file={tmp_path}/ca.pem"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([str(KUBE_SCHEDULER), *options, f"--secure-port={port}"], stderr=log)
    try:
        context = ssl._create_unverified_context()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as plain:
                context.wrap_socket(plain).close()
                break
            assert process.poll() is None, (tmp_path / "log").read_text()
        yield port
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(not KUBE_SCHEDULER, reason="no kube-scheduler in KUBEBUILDER_ASSETS or /usr/local/kubebuilder/bin")
def test_real_kube_scheduler_reports_its_configuration(tmp_path: Path) -> None:
    authority = trustme.CA()
    leaf = authority.issue_cert("admin.example", organization_name="system:masters", common_name="admin")
    admin = kubeconfig(tmp_path / "admin.conf", leaf)
    nobody = kubeconfig(tmp_path / "nobody.conf", trustme.CA().issue_cert("nobody.example"))
    host = Host(FakeModule(tmp_path))
    config = {**CONFIG, "clientConnection": {"kubeconfig": str(admin)}}
    with scheduler(tmp_path, config, authority) as port:
        url = f"https://127.0.0.1:{port}/healthz"
        asked = question(
            tmp_path, url=url, root="/", kubeconfigs=[str(nobody), str(admin)], config=yaml.safe_dump(config)
        )
        answer = scheduler_effect.ask(host, asked)
        assert answer.problem == ""
        assert answer.said.startswith(
            f"https://127.0.0.1:{port}/configz, asked with {admin}, calls {EXTENDER['urlPrefix']}"
        )
        changed = {**config, "extenders": [{**EXTENDER, "filterVerb": "filter"}]}
        answer = scheduler_effect.ask(
            host, question(tmp_path, url=url, root="/", kubeconfigs=[str(admin)], config=yaml.safe_dump(changed))
        )
        assert "filterverb 'predicates', not 'filter'" in answer.problem
