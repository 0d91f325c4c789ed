#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds .build/docsite/html of all Markdown pages and of the documentation of modules and roles. A link that leads nowhere fails it.
set -euo pipefail
cd "$(dirname "$0")/../../.."
here=tests/tools/docsite
build=$PWD/.build/docsite
say() { printf 'docsite: %s\n' "$*"; }

if ! cmp -s "$here/requirements.txt" "$build/venv/requirements.txt"; then
  say "installing Sphinx, MyST and antsibull-docs into .build/docsite/venv"
  rm -rf "$build/venv"
  python -m venv "$build/venv"
  uv pip install --quiet --python "$build/venv/bin/python" --requirement "$here/requirements.txt"
  cp "$here/requirements.txt" "$build/venv"
fi
rm -rf "$build/source" "$build/html"
mkdir -p "$build/source/modules"
say "reading the documentation of modules and roles by ansible-doc"
collections=$build/collections/ansible_collections
rm -rf "$collections"
mkdir -p "$collections/accel/kubernetes"
git ls-files -z plugins roles meta galaxy.yml README.md | xargs -0 cp --no-dereference --parents -t "$collections/accel/kubernetes"
ln -s "$(python -c 'import ansible_collections.kubernetes as found; print(found.__path__[0])')" "$collections/kubernetes"
python "$here/entry_points.py" "$collections/accel/kubernetes"
export ANSIBLE_COLLECTIONS_PATH=$build/collections
"$build/venv/bin/antsibull-docs" collection --use-current --squash-hierarchy --dest-dir "$build/source/modules" \
  accel.kubernetes >"$build/antsibull.log" 2>&1 || { cat "$build/antsibull.log"; exit 1; }
# The navigation lists them itself.
find "$build/source/modules" -type f ! -name '*_module.rst' ! -name '*_filter.rst' ! -name '*_role.rst' -delete
# The theme lists a page's headings beside it.
sed -i '/^\.\. contents::/,/^$/d' "$build/source/modules"/*.rst
say "making HTML"
python "$here/stage.py" "$build/source"
"$build/venv/bin/sphinx-build" --quiet --fail-on-warning --keep-going -j auto "$build/source" "$build/html"
printf '<!doctype html><meta http-equiv="refresh" content="0; url=README.html">' >"$build/html/index.html"
say "open $build/html/index.html"
