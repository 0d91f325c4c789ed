# SPDX-License-Identifier: Apache-2.0
"""As much of AWX's API as the modules of `awx.awx` need for the example: objects with names, and lists of others."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Object = dict[str, Any]
SECRET = "$encrypted$"
TEMPLATES = ("job_templates", "workflow_job_templates")


def suits(question: Object, value: Any) -> bool:
    """Whether AWX takes that for an answer, be it a person's or the survey's default."""
    if question["type"] == "multiplechoice":
        return value in question["choices"]
    if question["type"] == "integer":
        return type(value) is int and value >= question.get("min", value)
    return isinstance(value, str) and len(value) >= question.get("min", 0)


def extra_vars(survey: list[Object], answers: Object) -> Object:
    """What AWX tells a job by this survey: what was answered, and where it was not, defaults, even an empty one."""
    for asked in survey:
        if asked["variable"] in answers and not suits(asked, answers[asked["variable"]]):
            raise ValueError(f"AWX refuses what {asked['variable']} is told")
    return {
        asked["variable"]: asked["default"]
        for asked in survey
        if asked.get("default") is not None and suits(asked, asked["default"])
    } | answers


class Controller:
    """What it was told."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[int, Object]] = {}
        self.lists: dict[str, list[Any]] = {}
        self.surveys: dict[str, Object] = {}
        self.secrets: dict[str, Any] = {}

    def add(self, kind: str, given: Object) -> Object:
        rows = self.objects.setdefault(kind, {})
        # Templates of all kinds are numbered together.
        number = 1 + sum(len(found) for found in self.objects.values())
        url = f"/api/v2/{kind}/{number}/"
        related = {"survey_spec": f"{url}survey_spec/"} if kind in TEMPLATES else {}
        if kind == "credentials":
            self.secrets[given["name"]] = given["inputs"]
            given = given | {"inputs": dict.fromkeys(given["inputs"], SECRET)}
        if kind == "projects":
            given = given | {"scm_revision": "1", "summary_fields": {}}
        rows[number] = given | {"id": number, "url": url, "type": kind.removesuffix("s"), "related": related}
        return rows[number]

    def named(self, kind: str) -> dict[str, Object]:
        """All of a kind by name."""
        return {found["name"]: found for found in self.objects.get(kind, {}).values()}

    def get(self, path: str, query: dict[str, str]) -> Object | None:
        kind, *rest = path.removeprefix("/api/v2/").strip("/").split("/")
        if rest[1:] == ["survey_spec"]:
            return self.surveys.get(path, {})
        if len(rest) == 2:
            return _page([{"id": number} for number in self.lists.get(path, [])])
        if rest:
            return self.objects.get(kind, {}).get(int(rest[0]))
        if kind == "unified_job_templates":
            rows = list(self.objects.get(f"{query.pop('type')}s", {}).values())
        else:
            rows = list(self.objects.get(kind, {}).values())
        return _page([row for row in rows if all(str(row.get(key)) == value for key, value in query.items())])

    def post(self, path: str, given: Object) -> tuple[int, Object]:
        kind, *rest = path.removeprefix("/api/v2/").strip("/").split("/")
        if not rest:
            return 201, self.add(kind, given)
        if rest[1] == "survey_spec":
            if not given["spec"]:
                return 400, {"error": "'spec' doesn't contain any items."}
            self.surveys[path] = given
            return 200, {}
        if rest[1] == "create_approval_template":
            approval = self.add("workflow_approval_templates", given)
            node = self.objects[kind][int(rest[0])]
            node["unified_job_template"], node["related"] = approval["id"], {"unified_job_template": approval["url"]}
            return 201, approval
        self.lists.setdefault(path, []).append(given["id"])
        return 204, {}


def _page(rows: list[Object]) -> Object:
    return {"count": len(rows), "results": rows, "next": None}


@contextmanager
def serving(controller: Controller) -> Iterator[str]:
    """Its address while it answers."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Nothing."""

        def _answer(self, code: int, body: Object) -> None:
            content = json.dumps(body).encode() if code != 204 else b""
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _given(self) -> Object:
            given: Object = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            return given

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            found = controller.get(url.path, dict(parse_qsl(url.query)))
            self._answer(200 if found is not None else 404, found or {})

        def do_POST(self) -> None:
            self._answer(*controller.post(urlsplit(self.path).path, self._given()))

        def do_PATCH(self) -> None:
            kind, number = urlsplit(self.path).path.removeprefix("/api/v2/").strip("/").split("/")
            controller.objects[kind][int(number)].update(self._given())
            self._answer(200, controller.objects[kind][int(number)])

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
