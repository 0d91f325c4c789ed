# SPDX-License-Identifier: Apache-2.0
"""HTTPS front of the store: as much of the Kubernetes REST API as our product asks for, 501 for the rest."""

from __future__ import annotations

import base64
import http.client
import json
import re
import secrets
import select
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import trustme

from sim.cluster import discovery, patch, protobuf, tables
from sim.cluster.kinds import (
    CUSTOM,
    KINDS,
    ApiError,
    Kind,
    Object,
    bad_request,
    field_selector,
    is_ready,
    label_selector,
    not_simulated,
)
from sim.cluster.store import Change, Store

_HOP = {"host", "authorization", "connection", "content-length", "transfer-encoding", "accept-encoding"}
_BOOKMARK = 60.0
"""Seconds of silence after which a watcher that allows bookmarks gets one."""
_METHODS = ("do_GET", "do_POST", "do_PUT", "do_PATCH", "do_DELETE")
_ADMIN = "kubernetes-admin"
PREVIOUS = ".previous.log"
"""What the log of the container's run before ends in."""


class TlsServer(ThreadingHTTPServer):
    """A threading HTTPS server that closes its connections when it stops."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext
    ) -> None:
        super().__init__(address, handler)
        self._context = context
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.2,), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        if self._thread.ident:
            self.shutdown()
        for connection in list(self._open):
            # Wakes the thread that reads from it. The client may have gone, or the thread have closed it, meanwhile.
            with suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
        self.server_close()

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        # The handshake happens on the connection's own thread, with the first read.
        wrapped = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        self._open.add(wrapped)
        return wrapped, address

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is nobody's business; anything else is a mistake of ours and is shown."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Authority:
    """The cluster's certificate authority."""

    def __init__(self) -> None:
        self._ca = trustme.CA(organization_name="simulated cluster")

    @property
    def pem(self) -> str:
        return self._ca.cert_pem.bytes().decode()

    @property
    def key_pem(self) -> str:
        return self._ca.private_key_pem.bytes().decode()

    def server_context(self, *names: str, clients: bool = False) -> ssl.SSLContext:
        """With ``clients`` a certificate of a client is looked at, if it shows one."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._ca.issue_cert(*names).configure_cert(context)
        if clients:
            self._ca.configure_trust(context)
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def client_pair(self, name: str) -> tuple[str, str]:
        """Certificate and key of a client, PEM."""
        leaf = self._ca.issue_cert(common_name=name)
        return leaf.cert_chain_pems[0].bytes().decode(), leaf.private_key_pem.bytes().decode()


class ApiServer:
    """The API server of one cluster. ``logs`` maps (namespace, pod, container) to a log file.

    ``custom`` are the groups whose CustomResourceDefinitions are installed.
    """

    def __init__(
        self, store: Store, authority: Authority, logs: Callable[[Object, str], Path], custom: Iterable[str] = ()
    ) -> None:
        self.store, self.authority, self.logs = store, authority, logs
        missing = CUSTOM.difference(custom)
        self.kinds = {plural: kind for plural, kind in KINDS.items() if kind.group not in missing}
        self._tokens: dict[str, str] = {}
        self.admin_token = self.token(_ADMIN)
        handler = type("Handler", (_Handler,), {"api": self})
        context = authority.server_context("127.0.0.1", "localhost", clients=True)
        self._server = TlsServer(("127.0.0.1", 0), handler, context)
        self.port: int = self._server.server_address[1]

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self.store.close()
        self._server.stop()

    def token(self, user: str) -> str:
        """A new bearer token for a user such as ``system:serviceaccount:kube-system:default``."""
        token = secrets.token_urlsafe(32)
        self._tokens[token] = user
        return token

    def revoke(self, token: str) -> None:
        self._tokens.pop(token, None)

    def user(self, authorization: str, certificate: Mapping[str, Any] | None) -> str | None:
        """Who a token or a certificate stands for."""
        subject = dict(pair for part in (certificate or {}).get("subject", ()) for pair in part)
        return self._tokens.get(authorization.removeprefix("Bearer ")) or subject.get("commonName")

    def kubeconfig(self, user: str, token: str) -> str:
        """A kubeconfig file (JSON, which is YAML)."""
        ca = base64.b64encode(self.authority.pem.encode()).decode()
        server = {"server": f"https://127.0.0.1:{self.port}", "certificate-authority-data": ca}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "kubernetes", "cluster": server}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "default", "context": {"cluster": "kubernetes", "user": user}}],
            "current-context": "default",
        }
        return json.dumps(config, indent=1) + "\n"


@dataclass(slots=True)
class _Request:
    """A request as the path and query describe it."""

    kind: Kind
    namespace: str
    name: str = ""
    subresource: str = ""
    rest: str = ""
    query: Mapping[str, str] = field(default_factory=dict)

    @property
    def dry_run(self) -> bool:
        value = self.query.get("dryRun", "")
        if value not in ("", "All"):
            raise bad_request(f"Invalid value: {value!r}: dryRun supports only All")
        return value == "All"


_PATH = re.compile(r"/(?:api|apis/(?P<group>[^/]+))/v1(?:/namespaces/(?P<namespace>[^/]+)(?=/))?/(?P<plural>[a-z]+)"
                   r"(?:/(?P<name>[^/]+)(?:/(?P<sub>[a-z]+)(?:/(?P<rest>.*))?)?)?/?")  # fmt: skip


def _route(target: str, kinds: Mapping[str, Kind]) -> _Request:
    url = urlsplit(target)
    query = {key: values[-1] for key, values in parse_qs(url.query, keep_blank_values=True).items()}
    path = url.path
    namespaced = re.fullmatch(r"/api/v1/namespaces(?:/([^/]+))?/?", path)
    if namespaced:
        return _Request(KINDS["namespaces"], "", namespaced[1] or "", query=query)
    match = _PATH.fullmatch(path)
    kind = kinds.get(match["plural"]) if match else None
    if not match or not kind or kind.group != (match["group"] or "") or (match["namespace"] and not kind.namespaced):
        group = (re.match(r"/apis/([^/]+)", path) or ["", ""])[1]
        if "." in group and not group.endswith(".k8s.io"):
            # A group of nobody's CRD: a real server has not got it either.
            raise ApiError(404, "", "404 page not found\n")
        raise not_simulated(path)
    subresource = match["sub"] or ""
    if subresource and subresource not in kind.subresources:
        raise not_simulated(path)
    rest = (match["rest"] or "") + (f"?{url.query}" if subresource == "proxy" and url.query else "")
    return _Request(kind, match["namespace"] or "", match["name"] or "", subresource, rest, query)


class _Handler(BaseHTTPRequestHandler):
    """One connection; ``api`` is set on a subclass for each server."""

    api: ApiServer
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def __getattr__(self, name: str) -> Any:
        # http.server asks for do_GET and so on.
        if name in _METHODS:
            return self._handle
        raise AttributeError(name)

    def _handle(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length) if length else b""
        try:
            certificate = self.connection.getpeercert()  # type: ignore[attr-defined]
            if not self.api.user(self.headers.get("Authorization", ""), certificate):
                raise ApiError(401, "Unauthorized", "Unauthorized")
            path = urlsplit(self.path).path
            document = discovery.document(path, self.api.kinds.values()) if self.command == "GET" else None
            if document:
                self._send(200, document)
                return
            request = _route(self.path, self.api.kinds)
            if request.subresource == "proxy":
                self._proxy(request, body)
            else:
                getattr(self, f"_{self.command.lower()}")(request, body)
        except ApiError as error:
            plain = error.code == 404 and not error.reason
            self._send(error.code, *((error.message.encode(), "text/plain") if plain else (error.status(),)))

    def _send(self, code: int, body: Object | bytes, content_type: str = "application/json") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def _json(self, body: bytes) -> Any:
        media = self.headers.get("Content-Type", "application/json").split(";")[0]
        if media == protobuf.MEDIA:
            return protobuf.parse(body)
        if media != "application/json":
            raise _unsupported(media, ["application/json"])
        return _parse(body)

    def _get(self, request: _Request, _: bytes) -> None:
        store, kind = self.api.store, request.kind
        if request.subresource == "log":
            self._log(request)
        elif request.subresource not in ("", "status"):
            raise ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        elif request.name:
            self._send(200, self._shown(kind, store.get(kind.plural, request.namespace, request.name)))
        elif request.query.get("watch") in ("true", "1"):
            self._watch(request)
        else:
            keep = _selected(request)
            version, items = store.snapshot(kind.plural, request.namespace)
            # Like the real one, a list does not repeat kind and apiVersion in its items.
            plain = [
                {key: value for key, value in item.items() if key not in ("kind", "apiVersion")}
                for item in items
                if keep(item)
            ]
            metadata = {"resourceVersion": str(version)}
            listed = {"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": metadata, "items": plain}
            self._send(200, self._shown(kind, listed))

    def _shown(self, kind: Kind, content: Object) -> Object:
        """What was asked for: the objects, or a table of them, as kubectl wants it."""
        return tables.table(kind, content) if tables.WANTED in self.headers.get("Accept", "") else content

    def _watch(self, request: _Request) -> None:
        keep, store, plural = _selected(request), self.api.store, request.kind.plural
        deadline = time.monotonic() + float(request.query.get("timeoutSeconds", 3600))
        since = int(request.query.get("resourceVersion") or 0)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        if not since:
            since, items = store.snapshot(plural, request.namespace)
            self._chunks([("ADDED", item) for item in items if keep(item)])
        told = time.monotonic()
        while not store.closed and time.monotonic() < deadline:
            try:
                changes = list(store.changes(plural, since))
            except ApiError as error:
                self._chunks([("ERROR", error.status())])
                break
            mine = (change for change in changes if request.namespace in ("", _namespace(change)))
            self._chunks([event for event in (_event(change, keep) for change in mine) if event])
            since = max([since, *(change.version for change in changes)])
            if changes:
                told = time.monotonic()
            elif "allowWatchBookmarks" in request.query and time.monotonic() >= told + _BOOKMARK:
                told = time.monotonic()
                mark = {"kind": request.kind.name, "apiVersion": request.kind.api_version}
                self._chunks([("BOOKMARK", mark | {"metadata": {"resourceVersion": str(since)}})])
            else:
                store.wait([plural], since, min(10.0, _BOOKMARK, deadline - time.monotonic()))
                if select.select([self.connection], [], [], 0)[0]:
                    # A watcher sends nothing: readable means that it has gone.
                    self.close_connection = True
                    return
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def _chunks(self, events: list[tuple[str, Object]]) -> None:
        for type_, body in events:
            line = json.dumps({"type": type_, "object": body}, separators=(",", ":")).encode() + b"\n"
            self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
        self.wfile.flush()

    def _post(self, request: _Request, body: bytes) -> None:
        content = self._json(body)
        act = {"binding": self.api.store.bind, "eviction": self.api.store.evict}.get(request.subresource)
        if act:
            act(request.namespace, request.name, content, request.dry_run)
            self._send(201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
        elif request.name:
            raise ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        else:
            self._send(201, self.api.store.create(request.kind.plural, request.namespace, content, request.dry_run))

    def _put(self, request: _Request, body: bytes) -> None:
        content, plural = self._json(body), request.kind.plural
        if plural == "leases" and not (content.get("metadata") or {}).get("resourceVersion"):
            # PUT makes one, and must say what it replaces.
            self._send(201, self.api.store.create(plural, request.namespace, content, request.dry_run))
        else:
            self._update(request, lambda old: content)

    def _patch(self, request: _Request, body: bytes) -> None:
        media = self.headers.get("Content-Type", "").split(";")[0]
        known = {"application/json-patch+json": patch.apply, "application/merge-patch+json": patch.merge}
        if (request.kind.plural, request.subresource) == ("nodes", "status"):
            known["application/strategic-merge-patch+json"] = patch.conditions
        if (request.kind.plural, request.subresource, body[:8]) == ("nodes", "", b'{"spec":'):
            # As kubectl cordons: of maps alone, which any merge joins alike.
            known["application/strategic-merge-patch+json"] = patch.merge
        apply = known.get(media)
        if not apply:
            raise _unsupported(media, ["application/json-patch+json", "application/merge-patch+json"])
        content = _parse(body)
        self._update(request, lambda old: apply(old, content))

    def _update(self, request: _Request, change: Callable[[Object], Object]) -> None:
        plural, sub = request.kind.plural, request.subresource
        if sub not in ("", "status") or not request.name:
            raise ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        result = self.api.store.update(plural, request.namespace, request.name, change, sub, request.dry_run)
        self._send(200, result)

    def _delete(self, request: _Request, body: bytes) -> None:
        if not request.name or request.subresource:
            raise not_simulated("deletion of collections")
        options = self._json(body) if body else {}
        options |= {key: request.query[key] for key in ("propagationPolicy",) if key in request.query}
        if "gracePeriodSeconds" in request.query:
            options["gracePeriodSeconds"] = int(request.query["gracePeriodSeconds"])
        kind, store = request.kind, self.api.store
        deleted = store.delete(kind.plural, request.namespace, request.name, options, request.dry_run)
        details = {"name": request.name, "kind": kind.plural, "uid": deleted["metadata"]["uid"]}
        details |= {"group": kind.group} if kind.group else {}
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
        self._send(200, deleted if kind.plural in ("pods", "namespaces") else status)

    def _log(self, request: _Request) -> None:
        pod = self.api.store.get("pods", request.namespace, request.name)
        names = [item["name"] for item in pod["spec"].get("initContainers", []) + pod["spec"]["containers"]]
        wanted = request.query.get("container") or (names[-1] if len(pod["spec"]["containers"]) == 1 else "")
        if wanted not in names:
            why = f"a container name must be specified for pod {request.name}, choose one of: {names}"
            raise bad_request(f"container {wanted} is not valid for pod {request.name}" if wanted else why)
        if request.query.get("follow") in ("true", "1"):
            raise not_simulated("log with follow")
        path = self.api.logs(pod, wanted)
        if request.query.get("previous") in ("true", "1"):
            path = path.with_suffix(PREVIOUS)
            if not path.exists():
                raise bad_request(f'previous terminated container "{wanted}" in pod "{request.name}" not found')
        if not path.exists():
            raise bad_request(f'container "{wanted}" in pod "{request.name}" is waiting to start: ContainerCreating')
        lines = path.read_bytes().splitlines(keepends=True)
        tail = int(request.query.get("tailLines", len(lines)))
        text = b"".join(lines[-tail:] if tail else [])
        self._send(200, text[: int(request.query.get("limitBytes", len(text)))], "text/plain")

    def _proxy(self, request: _Request, body: bytes) -> None:
        """Pass the request on to a pod, or a ready one of a service; ``name`` is [scheme:]name[:port]."""
        parts = request.name.split(":")
        scheme, name, port = {1: ("", parts[0], ""), 2: ("", *parts)}.get(len(parts), tuple(parts[:3]))
        if request.kind.plural == "pods":
            address, target = (
                self.api.store.get("pods", request.namespace, name)["status"].get("podIP"),
                int(port or 80),
            )
        else:
            address, target = self._endpoint(request, name, port)
        connection = (
            http.client.HTTPSConnection(address, target, timeout=30, context=ssl._create_unverified_context())
            if scheme == "https"
            else http.client.HTTPConnection(address, target, timeout=30)
        )
        headers = {key: value for key, value in self.headers.items() if key.lower() not in _HOP}
        try:
            connection.request(self.command, f"/{request.rest}", body or None, headers)
            answer = connection.getresponse()
            self._send(answer.status, answer.read(), answer.getheader("Content-Type", "text/plain"))
        except OSError as error:
            message = f"error trying to reach service: dial tcp {address}:{target}: {error}"
            raise ApiError(503, "ServiceUnavailable", message) from error
        finally:
            connection.close()

    def _endpoint(self, request: _Request, name: str, port: str) -> tuple[str, int]:
        service = self.api.store.get("services", request.namespace, name)
        ports = service["spec"]["ports"]
        # As the real one: no port in the URL is the port without a name.
        chosen = [item for item in ports if port in (str(item["port"]), item.get("name", ""))]
        selector = (service["spec"].get("selector") or {}).items()
        pods = [pod for pod in self.api.store.all("pods", request.namespace) if is_ready(pod)
                and selector and selector <= pod["metadata"].get("labels", {}).items()]  # fmt: skip
        if not chosen or not pods:
            raise ApiError(503, "ServiceUnavailable", f'no endpoints available for service "{request.name}"')
        pod = pods[0]
        target = chosen[0].get("targetPort", chosen[0]["port"])
        if isinstance(target, str):
            named = {item.get("name"): item["containerPort"] for container in pod["spec"]["containers"]
                     for item in container.get("ports", ())}  # fmt: skip
            target = named[target]
        return pod["status"]["podIP"], target


def _parse(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise bad_request(f"the body is not JSON: {error}") from error


def _unsupported(media: str, accepted: list[str]) -> ApiError:
    message = "the body of the request was in an unknown format - accepted media types include: " + ", ".join(accepted)
    return ApiError(415, "UnsupportedMediaType", message)


def _selected(request: _Request) -> Callable[[Object], bool]:
    by_field = field_selector(request.query.get("fieldSelector", ""))
    by_label = label_selector(request.query.get("labelSelector", ""))
    return lambda body: by_field(body) and by_label(body["metadata"].get("labels") or {})


def _namespace(change: Change) -> str:
    body = change.after or change.before
    assert body is not None
    return str(body["metadata"].get("namespace", ""))


def _event(change: Change, keep: Callable[[Object], bool]) -> tuple[str, Object] | None:
    """What a watcher with selectors is told: an object that begins or ceases to match is added or deleted for it."""
    was = change.before is not None and keep(change.before)
    if change.after is not None and keep(change.after):
        return ("MODIFIED" if was else "ADDED"), change.after
    if was and change.before is not None:
        gone = change.after or change.before
        return "DELETED", gone
    return None
