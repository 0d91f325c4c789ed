# SPDX-License-Identifier: Apache-2.0
"""JSON merge patch (RFC 7386), JSON patch (RFC 6902) without move and copy, strategic merge patch of conditions."""

from __future__ import annotations

import copy
from typing import Any

from sim.cluster.kinds import ApiError, Object, bad_request, not_simulated


def merge(target: Any, patch: Any) -> Any:
    """The target with a merge patch applied; neither argument is changed."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def conditions(target: Object, patch: Object) -> Object:
    """A copy of a node with a strategic merge patch of ``status.conditions`` applied: a list by ``type``.

    Raises ApiError 501 for a patch of anything else.
    """
    if set(patch) != {"status"} or set(patch["status"]) != {"conditions"}:
        raise not_simulated("strategic merge patch of more than a node's conditions")
    found = {item["type"]: item for item in target.get("status", {}).get("conditions", ())}
    for item in patch["status"]["conditions"]:
        if item.get("$patch") == "delete":
            found.pop(item["type"], None)
        else:
            found[item["type"]] = found.get(item["type"], {}) | item
    return merge(target, {"status": {"conditions": list(found.values())}})


def apply(target: Object, operations: Any) -> Object:
    """A copy of the target with JSON patch operations applied.

    Raises ApiError 400 for a malformed patch, 422 for one that does not fit the target.
    """
    if not isinstance(operations, list):
        raise bad_request("error decoding patch: json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    holder: dict[str, Any] = {"": copy.deepcopy(target)}
    for operation in operations:
        try:
            name, path = operation["op"], operation["path"]
        except (TypeError, KeyError):
            raise bad_request(f"jsonpatch operation without op or path: {operation!r}") from None
        if name not in ("add", "remove", "replace", "test"):
            raise not_simulated(f"JSON patch operation {name!r}")
        try:
            _apply(holder, name, [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")], operation)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            # The real server gives every such failure the same message.
            message = "the server rejected our request due to an error in our request"
            raise ApiError(422, "Invalid", message) from error
    result: Object = holder[""]
    return result


def _apply(holder: Any, name: str, parts: list[str], operation: Object) -> None:
    for part in parts[:-1]:
        holder = holder[int(part)] if isinstance(holder, list) else holder[part]
    last = parts[-1]
    if isinstance(holder, list):
        index = len(holder) if last == "-" else int(last)
        if name == "add":
            if index > len(holder):
                raise IndexError(last)
            holder.insert(index, operation["value"])
            return
        key: int | str = index
    else:
        key = last
    if name == "add" and isinstance(holder, dict):
        holder[key] = operation["value"]
        return
    current = holder[key]
    if name == "remove":
        del holder[key]
    elif name == "replace":
        holder[key] = operation["value"]
    elif current != operation["value"]:
        raise ValueError(f"test of {operation['path']} failed")
