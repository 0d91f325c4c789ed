# SPDX-License-Identifier: Apache-2.0
"""Generate kube_accel's message classes from its .proto files: ``python tests/tools/genproto.py``."""

import subprocess
import sys
from pathlib import Path

SRC = Path(__file__).resolve().parents[2] / "roles/gpu_plugins/files/kube_accel/src"
PROTO = SRC / "kube_accel/kube/proto"


def generate(out: Path) -> None:
    """Write ``*_pb2.py`` and ``*_pb2.pyi`` below ``out``, laid out as the packages are."""
    sources = [str(path) for path in sorted(PROTO.glob("*.proto"))]
    protoc = [sys.executable, "-m", "grpc_tools.protoc"]
    subprocess.run([*protoc, f"-I{SRC}", f"--python_out={out}", f"--pyi_out={out}", *sources], check=True)


if __name__ == "__main__":
    generate(SRC)
