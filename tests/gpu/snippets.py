# SPDX-License-Identifier: Apache-2.0
"""Programs to run in a container with 4 GiB. Each prints "limited" when it could work below that and not beyond."""

from __future__ import annotations

from dataclasses import dataclass, field

_TORCH = """
import torch
a = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
x = torch.randn(2048, 2048, device="cuda")
assert torch.isfinite((x @ x).sum())
"""
_TORCH_BEYOND = """
try:
    b = torch.empty(5 << 30, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError:
    print("limited")
"""
_GRAPH = """
s = torch.cuda.Stream()
with torch.cuda.stream(s):
    for _ in range(3): y = x @ x
torch.cuda.synchronize()
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g): y = x @ x
for _ in range(100): g.replay()
torch.cuda.synchronize()
"""
_COMPILE = """
f = torch.compile(lambda t: (t * 2 + 1).relu())
assert torch.isfinite(f(x)).all()
"""


@dataclass(frozen=True, slots=True)
class Snippet:
    """``module`` has to be installed."""

    name: str
    module: str
    code: str
    environment: dict[str, str] = field(default_factory=dict)


def _torch(name: str, between: str = "", **environment: str) -> Snippet:
    return Snippet(f"torch {name}", "torch", _TORCH + between + _TORCH_BEYOND, environment)


SNIPPETS = (
    _torch("default allocator"),
    _torch("expandable segments", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"),
    _torch("cudaMallocAsync", PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync"),
    _torch("CUDA graph", _GRAPH),
    _torch("torch.compile", _COMPILE),
    Snippet(
        "cupy",
        "cupy",
        """
import cupy
a = cupy.zeros(1 << 28, dtype="f4")
try:
    b = cupy.zeros(5 << 28, dtype="f4")
except cupy.cuda.memory.OutOfMemoryError:
    print("limited")
""",
    ),
    Snippet(
        "jax",
        "jax",
        """
import jax, jax.numpy as jnp
assert jax.devices()[0].platform == "gpu"
a = jnp.zeros(1 << 27).block_until_ready()
try:
    b = jnp.zeros(5 << 28).block_until_ready()
except Exception as error:
    if "RESOURCE_EXHAUSTED" in str(error): print("limited")
""",
        {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    ),
    Snippet(
        "numba",
        "numba",
        """
from numba import cuda
import numpy
a = cuda.device_array(1 << 28, dtype=numpy.float32)
try:
    b = cuda.device_array(5 << 28, dtype=numpy.float32)
except Exception as error:
    if "OUT_OF_MEMORY" in str(error): print("limited")
""",
    ),
)
