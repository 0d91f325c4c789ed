# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The way from an API server that does not do what a module asks to words for a person."""

from __future__ import annotations

import contextlib
from typing import Iterator, Tuple, Type

from ansible_collections.kubernetes.core.plugins.module_utils.k8s.exceptions import CoreException

try:
    from kubernetes.dynamic.exceptions import DynamicApiError
    from urllib3.exceptions import HTTPError
except ImportError:  # AnsibleK8SModule says what is missing.
    _EXPECTED: Tuple[Type[Exception], ...] = (CoreException,)
else:
    _EXPECTED = (CoreException, DynamicApiError, HTTPError)


class ApiServerError(Exception):
    """The API server was not reached, or refused; says so in one sentence."""


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Raises ApiServerError instead of what the Kubernetes client and kubernetes.core raise."""
    try:
        yield
    except _EXPECTED as error:
        status, body = getattr(error, "status", None), getattr(error, "body", None)
        if status is None:
            raise ApiServerError(f"the API server was not reached: {error}") from error
        text = body.decode(errors="replace") if isinstance(body, bytes) else str(body)
        raise ApiServerError(f"the API server refused with status {status}: {text.strip()}") from error
