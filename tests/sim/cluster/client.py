# SPDX-License-Identifier: Apache-2.0
"""How tests talk to a cluster, simulated or real."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import yaml

from sim.cluster.kinds import Object

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"


class Api:
    """Plain HTTP to an API server, as its kubeconfig says."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        ca = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._set(cluster["server"], ssl.create_default_context(cadata=ca), user["token"])

    def _set(self, url: str, context: ssl.SSLContext, token: str) -> None:
        self._url, self._context, self._token = url, context, token

    @classmethod
    def connect(cls, url: str, ca: str, token: str) -> Api:
        api = cls.__new__(cls)
        api._set(url, ssl.create_default_context(cadata=ca), token)
        return api

    def with_token(self, token: str) -> Api:
        """The same server as another user."""
        api = Api.__new__(Api)
        api._set(self._url, self._context, token)
        return api

    def open(self, method: str, path: str, body: Any = None, media: str = "application/json") -> Any:
        """The raw answer. Raises HTTPError."""
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._token}"} | ({"Content-Type": media} if data is not None else {})
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        return urllib.request.urlopen(request, timeout=20, context=self._context)

    def call(self, method: str, path: str, body: Any = None, media: str = "application/json") -> tuple[int, Any]:
        """Status code and body, decoded when it is JSON."""
        try:
            answer = self.open(method, path, body, media)
        except HTTPError as error:
            answer = error
        with answer:
            data = answer.read()
            json_type = answer.headers.get_content_type() == "application/json"
            return answer.status, json.loads(data) if json_type else data.decode()

    def get(self, path: str) -> Any:
        code, body = self.call("GET", path)
        assert code == 200, body
        return body

    def create(self, path: str, body: Object) -> Object:
        code, answer = self.call("POST", path, body)
        assert code == 201, answer
        created: Object = answer
        return created


def until(condition: Callable[[], Any], what: str, timeout: float = 300) -> Any:
    """What the condition returns once that is true. Fails after ``timeout`` seconds: no machine is as slow."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        time.sleep(0.02)
    return value


def pod(name: str, *command: str, **spec: Any) -> Object:
    """A pod of one container."""
    container = {"name": "main", "image": "none"} | ({"command": list(command)} if command else {})
    container |= spec.pop("container", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": spec.pop("labels", {})},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 2} | spec,
    }


def command(tree: Path, *words: str, code: int = 0) -> str:
    """Run a command on a simulated host as Ansible does: through its Python."""
    script = "import subprocess,sys;sys.exit(subprocess.run(sys.argv[1:]).returncode)"
    done = subprocess.run([tree / "usr/bin/python3", "-c", script, *words], capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr
