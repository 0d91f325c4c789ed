# SPDX-License-Identifier: Apache-2.0
"""The cluster through ``kubectl``, which knows every way to log in that a person has."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

from kube_accel.shared.api_json import checked, of_each, read_object

_TIMEOUT = 60.0


class KubectlError(Exception):
    """kubectl is not there, or did not answer; the message is its own."""


class Kubectl:
    """One cluster."""

    def __init__(self, command: Sequence[str]) -> None:
        """``command`` is kubectl and the flags that choose the cluster."""
        self._command = tuple(command)

    def items(self, kind: str, *flags: str, problems: list[str]) -> list[dict[str, Any]]:
        """Return the objects of a kind that ``kubectl get`` lists; ``problems`` gets those that cannot be read.

        Raises KubectlError.
        """
        arguments = (f"{kind}s", *flags)
        text = self._run("get", *arguments, "--output=json")
        try:
            return list(of_each(kind, checked, read_object(text)["items"], problems))
        except (ValueError, LookupError, TypeError) as error:
            raise KubectlError(f"{' '.join(self._command)} get {' '.join(arguments)}: not a list: {error!r}") from error

    def raw(self, path: str) -> str:
        """Return what the API server answers for a path. Raises KubectlError."""
        return self._run("get", f"--raw={path}")

    def _run(self, *arguments: str) -> str:
        command = (*self._command, *arguments)
        try:
            done = subprocess.run(
                command, capture_output=True, encoding="utf-8", errors="replace", timeout=_TIMEOUT, check=False
            )
        except OSError as error:
            raise KubectlError(f"{command[0]} cannot be run: {error.strerror}; install it or give --kubectl") from error
        except subprocess.TimeoutExpired as error:
            raise KubectlError(f"{' '.join(command)}: no answer in {_TIMEOUT:g} s") from error
        if done.returncode != 0:
            raise KubectlError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout
