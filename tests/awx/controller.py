# SPDX-License-Identifier: Apache-2.0
"""As much of AWX's API as `awx.awx` needs for the example, with what AWX does that a simpler API would not.

One name may be in two organizations, a group's hosts come in another order each time, lists come in pages, a project
has playbooks only once it was synced, and a user who is no system administrator may not make everything.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

Object = dict[str, Any]
SECRET = "$encrypted$"
TEMPLATES = ("job_templates", "workflow_job_templates")
OF_SYSTEM = ("execution_environments", "credential_types")
"""What no organization has, and a system administrator alone makes."""
UNIQUE = {
    "organizations": ("name",),
    "execution_environments": ("name",),
    "credential_types": ("name", "kind"),
    "credentials": ("organization", "name", "credential_type"),
} | dict.fromkeys(("inventories", "projects", *TEMPLATES), ("organization", "name"))
REFERS = {
    "organization": "organizations",
    "inventory": "inventories",
    "credential_type": "credential_types",
    "workflow_job_template": "workflow_job_templates",
}
FIELDS: dict[str, Object] = {
    "credentials": {"organization": None, "kind": None, "inputs": {}},
    "projects": {"organization": None, "scm_branch": "", "scm_url": "", "scm_revision": "", "summary_fields": {}},
    "inventories": {"organization": None},
    "workflow_job_template_nodes": {"unified_job_template": None},
    "hosts": {"enabled": True, "groups": []},
}
PAGE = 25
SCM_FIELDS = ("scm_url", "scm_branch", "credential")


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


def can_be_edited(question: Object) -> bool:
    """Whether AWX's page opens it for a change: it splits the default, also one that is not there."""
    return hasattr(question.get("default"), "split")


class RefusedError(Exception):
    """An answer that is none of the good ones."""

    def __init__(self, code: int, body: Object) -> None:
        super().__init__(str(body))
        self.code, self.body = code, body


class Controller:
    """What it was told."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[int, Object]] = {}
        self.lists: dict[str, list[int]] = {}
        self.surveys: dict[str, Object] = {}
        self.secrets: dict[int, Object] = {}
        self.user: Object = {"id": 1, "username": "admin", "is_superuser": True}
        self.repository: dict[str, list[str]] = {}
        """The playbooks of a repository by its branch, and none where the git server does not answer."""
        self.requests: list[tuple[str, str]] = []
        self._listed = 0

    def add(self, kind: str, given: Object) -> Object:
        rows = self.objects.setdefault(kind, {})
        given = FIELDS.get(kind, {}) | given
        if kind == "job_templates":
            self._check_playbook(given)
            given["organization"] = self.objects["projects"][given["project"]]["organization"]
        self._check_unique(kind, given)
        # Templates of all kinds are numbered together.
        number = 1 + sum(len(found) for found in self.objects.values())
        url = f"/api/v2/{kind}/{number}/"
        related = {"survey_spec": f"{url}survey_spec/"} if kind in TEMPLATES else {}
        if kind == "credentials":
            self.secrets[number] = given["inputs"]
            given |= {"inputs": {name: SECRET if value else value for name, value in given["inputs"].items()}}
        rows[number] = given | {"id": number, "url": url, "type": kind.removesuffix("s"), "related": related}
        if kind == "projects":
            rows[number]["related"] = {"update": f"{url}update/"}
            return rows[number] | {"summary_fields": {"current_update": self.sync(number)}}
        return rows[number]

    def change(self, kind: str, number: int, given: Object) -> Object:
        row = self.objects[kind][number]
        if kind == "job_templates":
            self._check_playbook(row | given)
        if kind == "credentials" and "inputs" in given:
            changed = {name: value for name, value in given["inputs"].items() if value != SECRET}
            self.secrets[number] = self.secrets[number] | changed
            given = given | {"inputs": dict.fromkeys(self.secrets[number], SECRET)}
        syncs = kind == "projects" and any(row.get(name) != given.get(name, row.get(name)) for name in SCM_FIELDS)
        row.update(given)
        return row | ({"summary_fields": {"current_update": self.sync(number)}} if syncs else {})

    def sync(self, number: int) -> Object:
        """Sync a project, and return its update."""
        project = self.objects["projects"][number]
        playbooks = self.repository.get(project["scm_branch"])
        if playbooks is not None:
            project.update(scm_revision=" ".join(playbooks), playbooks=list(playbooks))
        status = "failed" if playbooks is None else "successful"
        done = {"status": status, "failed": playbooks is None, "scm_revision": project["scm_revision"]}
        return self.add("project_updates", done | {"finished": "now", "elapsed": 1.0})

    def named(self, kind: str, organization: str = "") -> dict[str, Object]:
        """All of a kind by name, or those of an organization."""
        rows = self.objects.get(kind, {}).values()
        return {
            row["name"]: row
            for row in rows
            if not organization or self._field(row, "organization__name") == organization
        }

    def get(self, path: str, query: dict[str, str]) -> Any:
        kind, *rest = unquote(path).removeprefix("/api/v2/").strip("/").split("/")
        if kind == "me":
            return self._page(path, [self.user], query)
        if rest[1:] == ["survey_spec"]:
            return self.surveys.get(path, {})
        if rest[1:] == ["playbooks"]:
            return self.objects[kind][int(rest[0])].get("playbooks", [])
        if rest[1:] == ["all_hosts"]:
            return self._page(path, self._hosts(int(rest[0])), query)
        if len(rest) == 2:
            return self._page(path, [{"id": number} for number in self.lists.get(path, [])], query)
        if rest:
            row = self._by_url(kind, path.removeprefix("/api/v2/").strip("/").split("/")[1])
            if row is None:
                raise RefusedError(404, {"detail": "Not found."})
            return row
        if kind == "unified_job_templates":
            kind = f"{query.pop('type')}s"
        return self._page(path, list(self.objects.get(kind, {}).values()), query)

    def post(self, path: str, given: Object) -> tuple[int, Object]:
        kind, *rest = path.removeprefix("/api/v2/").strip("/").split("/")
        if not rest:
            if kind in OF_SYSTEM and not self.user["is_superuser"]:
                raise RefusedError(403, {"detail": "You do not have permission to perform this action."})
            return 201, self.add(kind, given)
        if rest[1] == "update":
            return 202, self.sync(int(rest[0]))
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
        listed = self.lists.setdefault(path, [])
        if given.get("disassociate"):
            listed.remove(given["id"])
        else:
            listed.append(given["id"])
        return 204, {}

    def _check_playbook(self, template: Object) -> None:
        if template["playbook"] not in self.objects["projects"][template["project"]].get("playbooks", []):
            raise RefusedError(400, {"playbook": ["Playbook not found for project."]})

    def _check_unique(self, kind: str, given: Object) -> None:
        fields = UNIQUE.get(kind, ())
        if not fields or ("organization" in fields and given.get("organization") is None):
            return
        for row in self.objects[kind].values():
            if all(row.get(field) == given.get(field) for field in fields):
                raise RefusedError(400, {"__all__": [f"{kind} with this {' and '.join(fields)} already exists."]})

    def _by_url(self, kind: str, segment: str) -> Object | None:
        """What a number stands for, or a named URL: name, then what it refers to, the parts of each between `+`."""
        rows = self.objects.get(kind, {})
        if segment.isdigit():
            return rows.get(int(segment))
        parts = [[unquote(word) for word in part.split("+")] for part in segment.replace("[+]", "%2B").split("++")]
        fields = ["credential_type__name", "credential_type__kind"] if kind == "credentials" else []
        asked = {"name": parts[0][0], "organization__name": parts[-1][0] or None}
        if fields:
            asked |= dict(zip(fields, parts[1], strict=True))
        found = [row for row in rows.values() if all(self._field(row, key) == value for key, value in asked.items())]
        return found[0] if found else None

    def _hosts(self, group: int) -> list[Object]:
        """The hosts of a group and of its children."""
        groups = {group}
        while more := {row["id"] for row in self.objects["groups"].values() if row.get("parent") in groups} - groups:
            groups |= more
        return [row for row in self.objects.get("hosts", {}).values() if groups & set(row["groups"])]

    def _field(self, row: Object, name: str) -> Any:
        first, _, rest = name.partition("__")
        if first not in row:
            raise RefusedError(400, {"detail": f"{row.get('type')} has no field named '{first}'"})
        value = row[first]
        if rest == "isnull":
            return value is None
        if rest:
            return None if value is None else self._field(self.objects[REFERS[first]][value], rest)
        return value

    def _fits(self, row: Object, query: dict[str, str]) -> bool:
        told = {key: str(self._field(row, key.removeprefix("or__"))).lower() == query[key].lower() for key in query}
        either = [fits for key, fits in told.items() if key.startswith("or__")]
        return all(fits for key, fits in told.items() if not key.startswith("or__")) and (not either or any(either))

    def _page(self, path: str, rows: list[Object], query: dict[str, str]) -> Object:
        asked = {key: value for key, value in query.items() if key not in ("order_by", "page", "page_size")}
        found = [row for row in rows if self._fits(row, asked)]
        if order := query.get("order_by"):
            found.sort(key=lambda row: row[order])
        elif found and "page" not in query:
            # AWX names no order to its database, which gives rows that a job's end wrote last at the end.
            self._listed += 1
            turn = self._listed % len(found)
            found = found[turn:] + found[:turn]
        page, size = int(query.get("page", 1)), int(query.get("page_size", PAGE))
        more = f"{path}?{urlencode(query | {'page': page + 1})}" if len(found) > page * size else None
        return {"count": len(found), "results": found[(page - 1) * size : page * size], "next": more}


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

        def _do(self, method: str) -> None:
            url = urlsplit(self.path)
            controller.requests.append((method, url.path))
            length = int(self.headers.get("Content-Length") or 0)
            given: Object = json.loads(self.rfile.read(length) or b"{}")
            try:
                if method == "GET":
                    answer = 200, controller.get(url.path, dict(parse_qsl(url.query, keep_blank_values=True)))
                elif method == "POST":
                    answer = controller.post(url.path, given)
                else:
                    kind, number = url.path.removeprefix("/api/v2/").strip("/").split("/")
                    answer = 200, controller.change(kind, int(number), given)
            except RefusedError as refused:
                answer = refused.code, refused.body
            self._answer(*answer)

        def do_GET(self) -> None:
            self._do("GET")

        def do_POST(self) -> None:
            self._do("POST")

        def do_PATCH(self) -> None:
            self._do("PATCH")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
