#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# sanity.sh DIR [OPTION...]: copies the collection to DIR (…/ansible_collections/accel/kubernetes) and runs `ansible-test sanity` there.
# `--python default` has modules compiled and imported by every Python that hosts may have, as far as it is on PATH or of pyenv.
# A copy, because ansible-test resolves its working directory and refuses a link.
set -euo pipefail
stage=$1
home=$PWD/.cache/sanity-home
rm -rf "$stage" && mkdir -p "$stage"
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
  [ ! -f "$file" ] || printf '%s\0' "$file"
done | xargs -0 cp --parents -t "$stage"
# What galaxy.yml depends on lies beside it, as where the collection is installed.
ln -sfn "$(python -c 'import ansible_collections.kubernetes as found; print(found.__path__[0])')" "$stage/../../kubernetes"
git -C "$stage" init -q # ansible-test asks git for the list of files, and this checkout ignores the copy

# ansible-test would download a script that installs pip, and gives its tests next to no environment variables.
pip_version=$(python -c 'import ansible_test._internal.python_requirements as r, inspect, re; print(re.search(r"pip=.(\d+(?:\.\d+)+)", inspect.getsource(r)).group(1))')
mkdir -p "$home/.ansible/test/cache"
cp tests/tools/get_pip.py "$home/.ansible/test/cache/get_pip_${pip_version//./_}.py"
mkdir -p "$home/bin"
(
  umask 077
  printf '#!/bin/bash\n%s\nexec %q "$@"\n' "$(export -p | grep -E '^declare -x (HOME|UV_[A-Z_]+|SSL_CERT_[A-Z]+)=')" "$(command -v uv)" >"$home/bin/uv"
)
chmod 700 "$home/bin/uv"

# Its environments and caches stay out of the user's home.
# Before pyenv's shims, which do not run the versions that are not switched on.
PATH=$home/bin:$(dirname "$(command -v python)"):$(printf '%s:' "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin)$PATH
export HOME=$home PATH
cd "$stage"
python_version=$(python -c "import sys; print(\"%d.%d\" % sys.version_info[:2])")
ansible-test sanity --color no --python "$python_version" --exclude tests/ --exclude roles/gpu_plugins/files/ "${@:2}"
