#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the collection and gives it to galaxy-importer, which is what Galaxy does with it. A warning is a failure.
set -euo pipefail
cache=$PWD/.cache/importer
pins=(galaxy-importer==0.4.44 $(grep -E '^(ansible-core|ansible-lint)==' requirements-dev.txt))
python=$cache/venv/bin/python

# An environment of its own: it wants other versions than the tests do.
if [ "$(cat "$cache/pins" 2>/dev/null)" != "${pins[*]}" ]; then
  rm -rf "$cache"
  uv venv --quiet --python .venv/bin/python "$cache/venv"
  uv pip install --quiet --python "$python" "${pins[@]}"
  printf '%s' "${pins[*]}" >"$cache/pins"
fi

# It looks for collections in a directory that it makes, and beside Ansible.
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$site/ansible_collections" "$cache/home"
for namespace in kubernetes awx; do
  ln -sfn "$(python -c "import ansible_collections.$namespace as found; print(found.__path__[0])")" "$site/ansible_collections/$namespace"
done

rm -f "$cache"/*.tar.gz
ansible-galaxy collection build --output-path "$cache" >/dev/null
cd "$cache/home"
env --unset PYTHONPATH HOME="$PWD" PATH="$cache/venv/bin:$PATH" "$python" -m galaxy_importer.main "$cache"/*.tar.gz >"$cache/log" 2>&1 || {
  cat "$cache/log" >&2
  exit 1
}
# It tells ansible-lint of a directory below the one where that looks for playbooks of collections, as the example's project has them.
if grep -E '^(WARNING|ERROR|CRITICAL)' "$cache/log" | grep -v 'Failed to find accel\.kubernetes\.[a-z_]* playbook\.$' >&2; then
  echo "importer: galaxy-importer is not content with the collection; all that it said: $cache/log" >&2
  exit 1
fi
echo "importer: galaxy-importer has nothing to say against $(basename "$cache"/*.tar.gz)"
