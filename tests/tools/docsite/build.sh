#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds .build/docsite/html of all Markdown pages and of the modules' documentation. A link that leads nowhere fails it.
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
say "reading the modules' documentation by ansible-doc"
"$build/venv/bin/antsibull-docs" collection --use-current --squash-hierarchy --dest-dir "$build/source/modules" \
  accel.kubernetes >"$build/antsibull.log" 2>&1 || { cat "$build/antsibull.log"; exit 1; }
# Variables of roles are in docs/variables.md, and the navigation lists modules and filters itself.
find "$build/source/modules" -type f ! -name '*_module.rst' ! -name '*_filter.rst' -delete
# The theme lists a page's headings beside it.
sed -i '/^\.\. contents::/,/^$/d' "$build/source/modules"/*.rst
say "making HTML"
python "$here/stage.py" "$build/source"
"$build/venv/bin/sphinx-build" --quiet --fail-on-warning --keep-going -j auto "$build/source" "$build/html"
printf '<!doctype html><meta http-equiv="refresh" content="0; url=README.html">' >"$build/html/index.html"
say "open $build/html/index.html"
