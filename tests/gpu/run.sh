#!/usr/bin/env bash
# What needs a real GPU, in one command under 8 minutes: tests/gpu/run.sh [--out DIRECTORY]. Prints a table, and writes results.json and the machine's facts.
# Asks for python3 (3.11 or newer) and gcc; what else is installed (torch, cupy, jax, numba, nvidia-ml-py, MPS) is measured, and what is not is said.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH="tests:roles/gpu_plugins/files/kube_accel/src${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" -m gpu.check "$@"
