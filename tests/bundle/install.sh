#!/bin/sh
# install.sh DIRECTORY: makes the controller there: a Python environment with Ansible, the collections and the packages they ask for.
# Asks no network. PYTHON names the Python to use, by default python3.
set -eu
# Whoever runs ansible-playbook is not who installs.
umask 022
stop() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }
[ $# -eq 1 ] || stop "name the directory to install into, as in: ./install.sh /opt/accel-kubernetes"
mkdir -p "$1"
target=$(cd "$1" && pwd)
cd "$(dirname "$0")"
sha256sum --check --quiet --strict SHA256SUMS || stop "the bundle is not as it was made; bring it here again"
# Collections and packages are taken by their places: one that was added would be installed too.
found=$(find . -samefile "$target" -prune -o ! -type d ! -samefile SHA256SUMS -print | wc -l)
[ "$found" -eq "$(wc -l <SHA256SUMS)" ] || stop "the bundle has $found files, and SHA256SUMS does not list as many; bring it here again"
python=${PYTHON:-python3}
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') || stop "there is no '$python'; name a Python with PYTHON="
[ -f "requirements/$version.txt" ] ||
  stop "'$python' is $version, and the bundle is for $(cd requirements && echo *.txt | sed 's/\.txt//g'); name another with PYTHON="
"$python" -m venv "$target" || stop "on Debian and Ubuntu, install python3-venv"
"$target/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --find-links wheels --require-hashes --requirement "requirements/$version.txt"
# Beside Ansible itself: found by this one, and by no other.
site=$("$target/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
ANSIBLE_HOME=$target/.ansible "$target/bin/ansible-galaxy" collection install --offline --force --collections-path "$site" collections/*.tar.gz >/dev/null 2>"$target/log" ||
  stop "$(cat "$target/log")"
rm -rf "$target/log" "$target/.ansible"
echo "installed: $target/bin/ansible-playbook -i inventory.yml accel.kubernetes.site"
