# SPDX-License-Identifier: Apache-2.0
"""How many processes can use a GPU through MPS at a time, which bounds the containers that share it. Pure."""

from __future__ import annotations

_CLIENTS = 48
_CLIENTS_13_1 = 60


def client_limit(cuda_version: tuple[int, int]) -> int:
    """The clients one GPU's MPS server takes under a driver of this CUDA version (MPS documentation, Volta and later).

    Every container needs one at least; a process over the limit gets CUDA error 808.
    """
    return _CLIENTS_13_1 if cuda_version >= (13, 1) else _CLIENTS
