# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The way from an API server that does not do what a module asks to words for a person."""

from __future__ import annotations

import contextlib
import copy
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Type

from ansible_collections.accel.kubernetes.plugins.module_utils.shared.api_json import (
    ODD,
    ApiJsonError,
    checked,
    of_each,
    unreadable,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.printable import line
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.client import K8SClient
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.exceptions import CoreException

try:
    from ansible_collections.kubernetes.core.plugins.module_utils.k8sdynamicclient import K8SDynamicClient
    from kubernetes.client.rest import RESTClientObject
    from kubernetes.dynamic.exceptions import DynamicApiError
    from urllib3.exceptions import HTTPError, ReadTimeoutError
except ImportError:  # AnsibleK8SModule says what is missing.
    _EXPECTED: Tuple[Type[Exception], ...] = (CoreException,)
    _SILENCE: Tuple[Type[Exception], ...] = ()
else:
    _SILENCE = (ReadTimeoutError,)
    _EXPECTED = (CoreException, DynamicApiError, HTTPError)


_PAGE = 500
_PATIENCE = 30
"""Seconds without a byte from a pod or its log."""


class ApiServerError(Exception):
    """The API server was not reached, or refused; says so in one sentence. ``status`` is its HTTP status, 0 without."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(line(message))
        self.status = status


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Raises ApiServerError instead of what the Kubernetes client and kubernetes.core raise."""
    try:
        yield
    except ApiJsonError as error:
        raise ApiServerError(f"the API server's answer cannot be read: {error}") from error
    except _EXPECTED as error:
        raise explanation(error) from error


def explanation(error: BaseException) -> ApiServerError:
    """Return what an exception of the Kubernetes client says of the API server."""
    status, body = getattr(error, "status", None), getattr(error, "body", None)
    if status is None:
        return ApiServerError(f"the API server did not answer: {error}")
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body)
    return ApiServerError(f"the API server refused with status {status}: {text.strip()}", int(status))


def one(
    client: K8SClient,
    kind: str,
    name: str,
    namespace: Optional[str] = None,
    read: Callable[[Any], Dict[str, Any]] = checked,
) -> Dict[str, Any]:
    """Return the object of this name. Raises ApiServerError where it cannot be read. To be used within ``explained``.

    ``read`` says what can be read, and raises one of ``ODD`` for the rest.
    """
    resource = client.resource(kind, "v1")
    try:
        return read(_answer(client, resource, name=name, namespace=namespace))
    except _EXPECTED:
        raise
    except ODD as error:
        where = f"--namespace {namespace} " if namespace else ""
        remedy = f"see kubectl {where}get {kind.lower()} {name} --output=yaml, and correct it"
        full = f"{namespace}/{name}" if namespace else name
        raise ApiServerError(f"{kind.lower()} {full} {unreadable(error)}; {remedy}") from error


def objects(
    client: K8SClient,
    kind: str,
    api_version: str = "v1",
    problems: Optional[List[str]] = None,
    read: Callable[[Any], Dict[str, Any]] = checked,
    **selected: str,
) -> Iterator[Dict[str, Any]]:
    """Yield all objects of a kind, page by page; ``selected`` by ``namespace``, ``label_selector``, ``field_selector``.

    To be used within ``explained``. One that cannot be read ends the list, or is among the ``problems`` of those that
    give some. ``read`` says what can be read, and raises ApiJsonError for the rest.
    """
    resource, following = client.resource(kind, api_version), None
    while True:
        more: Dict[str, str] = {"_continue": following} if following else {}
        try:
            page = _answer(client, resource, limit=_PAGE, **selected, **more)
        except ODD as error:
            raise ApiJsonError(f"{kind}s {unreadable(error)}") from error
        items, metadata = page.get("items") or [], page.get("metadata") or {}
        if not isinstance(items, list) or not isinstance(metadata, dict):
            raise ApiJsonError(f"a list of {kind}s that is not a list")
        yield from map(read, items) if problems is None else of_each(kind.lower(), read, items, problems)
        following = metadata.get("continue")
        if not following:
            return


def _answer(client: K8SClient, resource: object, **selected: object) -> Dict[str, Any]:
    """Return what a request gives. Raises what the client raises, one of ``ODD`` where it can make no object of it."""
    found: Dict[str, Any] = client.get(resource, **selected).to_dict()
    return found


def text_at(client: K8SClient, path: str, most: int) -> str:
    """Return the beginning of what is at a path that is no object, as a log or a page of a pod: ``most`` bytes.

    Raises ApiServerError.
    """
    asker = _asking_once(client)
    headers = {"Accept": "text/plain"}
    with explained():
        try:
            answer = asker.request("GET", path, header_params=headers, serialize=False, _request_timeout=_PATIENCE)
            try:
                return bytes(answer.read(most)).decode(errors="replace")
            finally:
                answer.close()
        except _SILENCE as error:
            raise ApiServerError(f"no answer in {_PATIENCE} s") from error


def _asking_once(client: K8SClient) -> K8SDynamicClient:
    """Return the dynamic client with the same login. As it is, it asks a pod that does not answer four times."""
    asker = copy.copy(client.client)
    asker.client = copy.copy(client.client.client)
    asker.client.configuration = copy.copy(client.client.client.configuration)
    asker.client.configuration.retries = False
    asker.client.rest_client = RESTClientObject(asker.client.configuration)
    return asker
