#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Assembles the daemons' image archive .build/kube-accel.tar (OCI, docker load) from a root file system, wheels and the interposer.
#   BASE=path       root file system or saved image (directory or tar) with a Python; else debootstrap makes one: root
#   ARCH=amd64      or arm64; another than this machine's needs BASE
#   IMAGE_PYTHON=3.11  Python of BASE
#   IMAGE=kube-accel:<version>
#   OUT=.build         where the archive goes, and what roles assemble one from: image/<ARCH>/{kube-accel.tar,wheels,native}
set -euo pipefail
cd "$(dirname "$0")/../.."
source=roles/gpu_plugins/files/kube_accel
python=${IMAGE_PYTHON:-3.11}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$source/pyproject.toml")
case $(uname -m) in aarch64) here=arm64 ;; *) here=amd64 ;; esac
arch=${ARCH:-$here}
base=${BASE:-$PWD/.cache/image-root-$arch}

say() { printf 'image: %s\n' "$*"; }
stop() { printf 'image: %s\n' "$*" >&2; exit 1; }
case $arch in amd64) machine=x86_64 ;; arm64) machine=aarch64 ;; *) stop "ARCH=$arch is neither amd64 nor arm64" ;; esac

if [ -z "${BASE:-}" ] && [ ! -e "$base/complete" ]; then
  [ "$arch" = "$here" ] || stop "a base for $arch cannot be made on $here: name one with BASE="
  [ "$(id -u)" = 0 ] || stop "making a base needs root. Run as root, or name one: make image BASE=python.tar"
  command -v debootstrap >/dev/null || stop "debootstrap is missing. Install it (apt-get install debootstrap) or set BASE="
  say "making a root file system with debootstrap (minutes)"
  rm -rf "$base" && mkdir -p "$base"
  debootstrap --variant=minbase --include=python3 bookworm "$base/root" >"$base/log" ||
    stop "debootstrap failed, see $base/log"
  touch "$base/complete"
fi
[ -n "${BASE:-}" ] || base=$base/root

mkdir -p "${OUT:-.build}"
out=$(cd "${OUT:-.build}" && pwd)
left=$out/image/$arch
parts=$out/image/.$arch # not to be taken for a whole one
work=$(mktemp -d)
trap 'rm -rf "$work" "$parts"' EXIT
rm -rf "$parts" "$left" && mkdir -p "$parts"
say "building the wheel"
cp -rL "$source" "$work/source" # a build leaves files behind; links lead out of it
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-315532800} # the first day that a zip archive can tell
uv build --quiet --wheel "$work/source" --out-dir "$work/own" --build-constraints tests/tools/build-constraints.txt --require-hashes
say "fetching its dependencies for Python $python on $arch"
python -m pip download --quiet --disable-pip-version-check --dest "$parts/wheels" --only-binary :all: \
  --python-version "$python" --implementation cp --abi "cp${python/./}" --abi abi3 --abi none \
  --platform "manylinux_2_28_$machine" --platform "manylinux2014_$machine" \
  --require-hashes --requirement "$source/requirements.txt" 2>"$work/log" ||
  stop "$(grep -v '^WARNING' "$work/log")"
cp "$work"/own/*.whl "$parts/wheels"

say "compiling the interposer"
"$source/native/build.sh" "$parts/native" "$machine" || stop "the interposer for $machine needs gcc: install gcc-${machine/_/-}-linux-gnu"

say "assembling"
python - "$parts/kube-accel.tar" "${IMAGE:-kube-accel:$version}" "$arch" "$base" "$parts/native" "$parts"/wheels/*.whl >"$work/options" <<'P'
import json, os, sys
path, reference, architecture, base, native, *wheels = sys.argv[1:]
exclude = ["usr/share/doc/*", "usr/share/man/*", "usr/share/locale/*", "var/cache/*", "var/lib/apt/lists/*", "var/log/*"]
options = {"path": path, "reference": reference, "architecture": architecture, "base": base, "wheels": wheels}
options |= {"files": [{"src": native, "dest": "/usr/lib/kube-accel/native", "mode": "0755"}]}
options |= {"entrypoint": ["kube-accel"], "base_exclude": exclude if os.path.isdir(base) and not os.path.exists(f"{base}/index.json") else []}
print(json.dumps(options))
P
ANSIBLE_PYTHON_INTERPRETER=$(command -v python) ANSIBLE_LOCALHOST_WARNING=false ANSIBLE_INVENTORY_UNPARSED_WARNING=false \
  ansible localhost -m accel.kubernetes.oci_archive -a "$(<"$work/options")" >"$work/result" || stop "$(<"$work/result")"
say "$(sed -n 's/^    "\(reference\|digest\)": "\(.*\)",\?$/\2/p' "$work/result" | tac | paste -sd @)"
mv "$parts" "$left"
ln -f "$left/kube-accel.tar" "$out/kube-accel.tar" 2>/dev/null || cp "$left/kube-accel.tar" "$out/kube-accel.tar"
say "$(du -h "$out/kube-accel.tar" | cut -f1) in $out/kube-accel.tar; on a node: ctr -n k8s.io images import kube-accel.tar"
say "Add this to the inventory, so that nodes get the image: kube_accel_image_assemble: $out"
