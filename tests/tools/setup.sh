#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Creates .venv from the pinned requirements and unpacks a containerd for the tests that ask the real one.
# setup.sh [PYTHON]: needs Python 3.11 or newer with venv, gcc, and a package index.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${1:-python3}

say() { printf 'setup: %s\n' "$*"; }
stop() { printf 'setup: %s\n' "$*" >&2; exit 1; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
  stop "Python 3.11 or newer is needed and '$python' is not. Name one: make PYTHON=python3.12 ..."
for command in gcc git; do
  command -v "$command" >/dev/null || stop "'$command' is missing. Install it, for example: apt-get install $command"
done

if [ ! -x .venv/bin/python ]; then
  say "creating .venv"
  "$python" -m venv .venv 2>/dev/null || {
    rm -rf .venv
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get install -qqy python3-venv >/dev/null && "$python" -m venv .venv
  } || stop "'$python -m venv' failed. On Debian and Ubuntu: apt-get install python3-venv"
fi
say "installing pinned Python packages"
.venv/bin/python -m pip install --quiet --disable-pip-version-check uv==0.13.8 2> >(grep -v '^WARNING: Location' >&2)
.venv/bin/uv pip install --quiet --python .venv/bin/python --requirement requirements-dev.txt \
  --editable roles/gpu_plugins/files/kube_accel

# Programs that tests ask for the truth: a containerd to import images, those of several releases and Dockers to read
# configurations, a registry to push to, a promtool that knows what Prometheus takes for metrics.
# Unpacked, not installed. Tests say so when there is none.
unpack() { # package program
  if ! command -v "$2" >/dev/null && [ ! -x ".cache/$1/usr/bin/$2" ] && command -v apt-get >/dev/null; then
    say "unpacking $1 for the tests that use a real one"
    mkdir -p ".cache/$1"
    [ "$(id -u)" != 0 ] || apt-get update -qq || true
    # As root apt would have another user write here, who may not, and warn of it.
    (cd ".cache/$1" && apt-get -o APT::Sandbox::User=root download -qq "$1" && dpkg -x "$1"_*.deb .) ||
      say "none to be had; the tests that ask a real one will be skipped and say so"
  fi
}
unpack containerd containerd
tests/tools/runtimes.sh .cache/runtimes
unpack docker-registry docker-registry
unpack prometheus promtool
