# SPDX-License-Identifier: Apache-2.0
"""What the API server says that it has: groups, resources, and as much of OpenAPI as kubectl asks for. Pure."""

from __future__ import annotations

from collections.abc import Collection

from sim.cluster.kinds import Kind, Object

VERSION = {"major": "1", "minor": "34", "gitVersion": "v1.34.0", "platform": "linux/amd64"}
_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
_SUBRESOURCE_KINDS = {"binding": "Binding", "eviction": "Eviction"}


def document(path: str, kinds: Collection[Kind]) -> Object | None:
    """The discovery document at a path, or None."""
    groups = sorted({kind.group for kind in kinds if kind.group})

    def group(name: str) -> Object:
        version = {"groupVersion": f"{name}/v1", "version": "v1"}
        return {"name": name, "versions": [version], "preferredVersion": version}

    def resources(name: str) -> Object:
        entries: list[Object] = []
        for kind in (kind for kind in kinds if kind.group == name):
            common = {"namespaced": kind.namespaced, "kind": kind.name}
            entry = {"name": kind.plural, "singularName": kind.name.lower(), **common, "verbs": _VERBS}
            entries.append(entry | ({"shortNames": list(kind.short)} if kind.short else {}))
            for sub in kind.subresources:
                verbs = {"status": ["get", "patch", "update"], "log": ["get"]}.get(sub, ["create"])
                names = {"name": f"{kind.plural}/{sub}", "singularName": "", **common}
                proxied = f"{kind.name}ProxyOptions" if sub == "proxy" else kind.name
                entries.append(names | {"kind": _SUBRESOURCE_KINDS.get(sub, proxied), "verbs": verbs})
        version = f"{name}/v1" if name else "v1"
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": entries}

    documents: dict[str, Object] = {
        "/version": VERSION,
        "/api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group(name) for name in groups]},
        "/api/v1": resources(""),
    }
    for name in ("", *groups):
        where = f"apis/{name}/v1" if name else "api/v1"
        documents[f"/openapi/v3/{where}"] = _openapi([kind for kind in kinds if kind.group == name], where)
    there = [path.removeprefix("/openapi/v3/") for path in documents if path.startswith("/openapi/v3/")]
    documents["/openapi/v3"] = {"paths": {each: {"serverRelativeURL": f"/openapi/v3/{each}"} for each in there}}
    for name in groups:
        documents[f"/apis/{name}"] = {"kind": "APIGroup", "apiVersion": "v1", **group(name)}
        documents[f"/apis/{name}/v1"] = resources(name)
    return documents.get(path.rstrip("/"))


def _openapi(kinds: Collection[Kind], where: str) -> Object:
    """The operations by which kubectl sees that the server looks at fields by itself."""
    parameters = [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}]
    paths = {}
    for kind in kinds:
        between = "/namespaces/{namespace}" if kind.namespaced else ""
        names = {"group": kind.group, "version": "v1", "kind": kind.name}
        patch = {"parameters": parameters, "x-kubernetes-group-version-kind": names, "responses": {}}
        paths[f"/{where}{between}/{kind.plural}/{{name}}"] = {"patch": patch}
    return {"openapi": "3.0.0", "info": {"title": "simulated", "version": "v1"}, "paths": paths}
