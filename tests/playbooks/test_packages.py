# SPDX-License-Identifier: Apache-2.0
"""Roles with the real apt, on a copy of this machine."""

from __future__ import annotations

import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import threading
from collections.abc import Callable
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hosts.packages import VERSIONS, repositories
from programs import program

pytestmark = pytest.mark.full

BOOK = """
- hosts: localhost
  connection: local
  vars: {ansible_python_interpreter: /usr/bin/python3}
  tasks:
    - ansible.builtin.include_role:
        name: accel.kubernetes.%s
        tasks_from: %s
"""
COPY = """
set -e
mount -t tmpfs tmpfs "$1"
for directory in etc usr var; do
  own=$1/$directory
  mkdir -p "$own/upper" "$own/work"
  mount -t overlay -o "lowerdir=/$directory,upperdir=$own/upper,workdir=$own/work" overlay "/$directory"
done
rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/* /var/lib/apt/lists/*
echo 'APT::Sandbox::User "root";' >/etc/apt/apt.conf.d/99tests # another user cannot read this test's directory
"""
Host = Callable[..., list[str]]


@pytest.fixture
def host(tmp_path: Path, collections: Path) -> Host:
    """``host(script)`` on a copy without package sources: the lines it wrote. ``play`` there is ansible-playbook."""
    for needed in ("apt-get", "dpkg-deb", "gpg", "unshare"):
        if shutil.which(needed) is None:
            pytest.skip(f"no {needed} on PATH")
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], check=False).returncode != 0:
        pytest.skip("a copy of this machine needs root and mount namespaces")
    copy = tmp_path / "copy"
    copy.mkdir()
    ansible = shlex.quote(program("ansible-playbook"))

    def run(script: str) -> list[str]:
        script = f'{COPY}play() {{ {ansible} "$@" >&2; }}\n{script}'
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", script, "copy", str(copy)],
            env=os.environ | {"ANSIBLE_COLLECTIONS_PATH": str(collections), "ANSIBLE_NOCOLOR": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-6000:]
        return done.stdout.splitlines()

    return run


def brought_from_here(directory: Path, book: str) -> tuple[Path, str]:
    """NVIDIA's repository of the toolkit in this directory, and the words that play a book with it."""
    (directory / "none").mkdir()
    repositories(directory, directory / "none")
    (directory / "book.yml").write_text(book)
    nvidia = directory / "nvidia"
    play = f"play {directory}/book.yml -e container_runtime_toolkit_repo_url=file://{nvidia}"
    play += f" -e container_runtime_toolkit_repo_key=file://{nvidia}/gpgkey"
    digest = hashlib.sha256((nvidia / "gpgkey").read_bytes()).hexdigest()
    return nvidia, f"{play} -e container_runtime_toolkit_repo_key_sha256={digest}"


def test_unreadable_repository_is_read_by_the_next_run(host: Host, tmp_path: Path) -> None:
    nvidia, play = brought_from_here(tmp_path, BOOK % ("container_runtime", "install_deb"))
    play += f" -e container_runtime_toolkit_version={VERSIONS[-1].partition('-')[0]}"
    (installed,) = host(f"""
mv {nvidia}/deb {nvidia}/away
if {play}; then exit 1; fi
mv {nvidia}/away {nvidia}/deb
{play}
dpkg-query -W -f '${{Version}}\\n' nvidia-container-toolkit
""")
    assert installed == VERSIONS[-1]


TOOLKIT = """
- hosts: localhost
  connection: local
  vars:
    ansible_python_interpreter: /usr/bin/python3
    container_runtime_configure: false
    container_runtime_python_packages: []
  tasks:
    - ansible.builtin.include_role: {name: accel.kubernetes.container_runtime, tasks_from: preflight}
    - ansible.builtin.include_role: {name: accel.kubernetes.container_runtime, tasks_from: "{{ part }}"}
"""


def test_toolkit_is_removed_only_by_the_role_that_brought_it(host: Host, tmp_path: Path) -> None:
    _, play = brought_from_here(tmp_path, TOOLKIT)
    play += " -e container_runtime_backup_dir=/var/tmp/backups"
    count = "dpkg-query -W -f '${db:Status-Status}\\n' '*nvidia-container*' | grep -c '^installed' || :"
    counts = host(f"""
for brought_by in us others; do
  {play} -e part=install
  [ $brought_by = us ] || rmdir /var/tmp/backups/container_runtime-toolkit
  {play} -e part=install
  {play} -e part=uninstall
  {count}
  ls /var/tmp/backups /etc/apt/sources.list.d
done
""")
    empty = ["/etc/apt/sources.list.d:", "", "/var/tmp/backups:"]
    assert counts == ["0", *empty, "4", *empty]


def test_foreign_sources_return_and_a_repository_key_changes(host: Host, tmp_path: Path) -> None:
    nvidia, play = brought_from_here(tmp_path, TOOLKIT)
    play += " -e container_runtime_backup_dir=/var/tmp/backups"
    (nvidia / "old").write_text("of another repository\n")
    theirs = "/etc/apt/sources.list.d/nvidia-container-toolkit.list"
    keyring = "/usr/share/keyrings/nvidia-container-toolkit.asc"
    said = host(f"""
cp {nvidia}/old {keyring}
echo '# theirs' >{theirs}
mkdir -p /usr/bin && touch /usr/bin/nvidia-container-runtime # which they brought
{play} -e part=install --check
ls {theirs}
{play} -e part=install
cmp {keyring} {nvidia}/gpgkey && ls {theirs} 2>&1 | grep -c 'No such file'
{play} -e part=uninstall
cat {theirs}
ls /var/tmp/backups
""")
    assert said == [theirs, "1", "# theirs"]


DRIVER = """
package() {
  mkdir -p /var/tmp/$1/DEBIAN
  printf 'Package: %s\\nVersion: %s\\nArchitecture: all\\n' $1 $2 >/var/tmp/$1/DEBIAN/control
  printf 'Maintainer: NVIDIA CORPORATION <cudatools@nvidia.com>\\nDescription: -\\n' >>/var/tmp/$1/DEBIAN/control
  dpkg-deb --root-owner-group --build /var/tmp/$1 >&2
  dpkg -i /var/tmp/$1.deb >&2
}
index() {
  for file; do
    dpkg-deb --field $file
    printf 'Filename: ./%s\\nSize: %s\\nSHA256: %s\\n\\n' $file $(stat -c %s $file) $(sha256sum $file | cut -d ' ' -f 1)
  done >Packages
}
"""


def test_the_driver_goes_with_what_keeps_it_at_a_branch(host: Host, tmp_path: Path) -> None:
    book = tmp_path / "book.yml"
    book.write_text(BOOK % ("driver", "uninstall"))
    left = host(f"""{DRIVER}
package nvidia-open 580.95.05-1
package nvidia-driver-pinning-580 580-1
play {book}
dpkg-query -W -f '${{Package}} ${{db:Status-Status}}\\n' 'nvidia-*' | grep ' installed' || :
""")
    assert left == []


DNF = """
mkdir -p /etc/yum.repos.d /etc/dnf/modules.d
printf '[accel-nvidia-driver]\\nname=NVIDIA driver\\n' >/etc/yum.repos.d/accel-nvidia-driver.repo
printf '[theirs]\\nname=theirs\\n' >/etc/yum.repos.d/theirs.repo
printf '[nvidia-driver]\\nname=nvidia-driver\\nstream=580-open\\n' >/etc/dnf/modules.d/nvidia-driver.module
cat >/usr/bin/dnf <<'EOF'
#!/bin/sh
grep -q accel-nvidia-driver /etc/yum.repos.d/*.repo || exit 1 # it does not know modules of a repository that is gone
[ "$*" = "--assumeyes module reset nvidia-driver" ] || exit 2
sed -i 's/^stream=.*/stream=/' /etc/dnf/modules.d/nvidia-driver.module
EOF
chmod 0755 /usr/bin/dnf
"""


def test_the_drivers_repository_and_stream_go_too(host: Host, tmp_path: Path) -> None:
    book = tmp_path / "book.yml"
    book.write_text(BOOK % ("driver", "uninstall"))
    facts = "    - ansible.builtin.set_fact: {pkg_mgr: dnf, os_family: RedHat, distribution: Rocky, cacheable: true}\n"
    text = book.read_text()
    book.write_text(text.replace("  tasks:\n", f"  tasks:\n{facts}"))
    left = host(f"""{DNF}
play {book}
ls /etc/yum.repos.d
grep stream /etc/dnf/modules.d/nvidia-driver.module
""")
    assert left == ["theirs.repo", "stream="]


FABRIC = """
- hosts: localhost
  connection: local
  vars:
    ansible_python_interpreter: /usr/bin/python3
    driver_fabricmanager: always
  tasks:
    - ansible.builtin.set_fact:
        __driver_observation: {stdout: '{"installed": "580.105.08", "fabric_manager": "580.95.05"}'}
    - ansible.builtin.include_role: {name: accel.kubernetes.driver, tasks_from: fabricmanager}
"""


def test_a_fabric_manager_that_we_hold_follows_its_driver(host: Host, tmp_path: Path) -> None:
    book = tmp_path / "book.yml"
    book.write_text(FABRIC)
    (version,) = host(f"""{DRIVER}
package nvidia-fabricmanager 580.95.05-1
apt-mark hold nvidia-fabricmanager >&2
sed -i s/580.95.05/580.105.08/ /var/tmp/nvidia-fabricmanager/DEBIAN/control
dpkg-deb --root-owner-group --build /var/tmp/nvidia-fabricmanager >&2
cd /var/tmp
index nvidia-fabricmanager.deb
echo 'deb [trusted=yes] file:/var/tmp ./' >/etc/apt/sources.list
apt-get update >&2
play {book}
dpkg-query -W -f '${{Version}}\\n' nvidia-fabricmanager
""")
    assert version == "580.105.08-1"


PACKAGES = """
- hosts: localhost
  connection: local
  vars:
    ansible_python_interpreter: /usr/bin/python3
    driver_repo_setup: false
    driver_prerequisite_packages: []
    driver_kernel_module_type: open
    driver_hold: false
    driver_branch: "570"
  tasks:
    - ansible.builtin.setup: {gather_subset: [min]}
    - ansible.builtin.include_role: {name: accel.kubernetes.driver, tasks_from: observe}
    - ansible.builtin.include_role: {name: accel.kubernetes.driver, tasks_from: packages}
    - ansible.builtin.include_role: {name: accel.kubernetes.driver, tasks_from: install_packages}
"""


def test_a_driver_that_nobody_asked_for_is_refused(host: Host, tmp_path: Path) -> None:
    book = tmp_path / "book.yml"
    book.write_text(PACKAGES)
    said = host(f"""{DRIVER}
package nvidia-open-570 580.95.05-1
printf '#!/bin/sh\\n[ "$4" != version ] || echo 580.95.05\\n' >/usr/bin/modinfo
chmod 0755 /usr/bin/modinfo
if play {book} 2>/var/tmp/said; then exit 1; fi
grep fatal: /var/tmp/said
""")
    assert "570 was asked for, and the package sources brought 580.95.05" in " ".join(said)


MIRROR = """
. /etc/os-release
mirror=/var/tmp/mirror/debian$VERSION_ID/x86_64
keyring=/var/tmp/cuda-keyring
mkdir -p $mirror $keyring/usr/share/keyrings $keyring/etc/apt/sources.list.d
: >$keyring/usr/share/keyrings/cuda-archive-keyring.gpg
echo "deb [trusted=yes] https://developer.download.nvidia.com/compute/cuda/repos/debian$VERSION_ID/x86_64/ /" \
  >$keyring/etc/apt/sources.list.d/cuda-debian$VERSION_ID-x86_64.list
package cuda-keyring 1.1-1
dpkg --purge cuda-keyring >&2
mv /var/tmp/cuda-keyring.deb $mirror/cuda-keyring_1.1-1_all.deb
package nvidia-open-570 570.195.03-1
dpkg --purge nvidia-open-570 >&2
mv /var/tmp/nvidia-open-570.deb $mirror
cd $mirror
index *.deb
"""


@pytest.mark.attack
def test_a_mirror_is_where_the_packages_come_from(host: Host, tmp_path: Path) -> None:
    book = tmp_path / "book.yml"
    variables = "repo_baseurl: file:///var/tmp/mirror\n    driver_etc_dir: /etc\n"
    text = PACKAGES.replace("repo_setup: false\n", variables).replace("install_packages", "install_repo_deb")
    book.write_text(text)
    left = host(f"""{DRIVER}{MIRROR}
if play {book} 2>/var/tmp/said; then exit 1; fi
grep -o "check with driver_repo_key_sha256" /var/tmp/said | uniq
grep -o "The checksum for" /var/tmp/said | uniq
dpkg-query -W -f '${{db:Status-Status}}\\n' cuda-keyring 2>&1 | grep -c '^installed' || :
ls /var/cache/apt/archives | grep -c keyring || :
digest=$(sha256sum <$mirror/cuda-keyring_1.1-1_all.deb | cut -c-64)
play {book} -e driver_repo_key_sha256=$digest
play {book}
dpkg-query -W -f '${{Version}}\\n' nvidia-open-570
sed 's/.*] //' /etc/apt/sources.list.d/cuda-*
ls /var/cache/apt/archives | grep -c keyring || :
""")
    refused, rest = left[:4], left[4:]
    assert refused == ["check with driver_repo_key_sha256", "The checksum for", "0", "0"]
    assert rest[0] == "570.195.03-1"
    assert rest[1].startswith("file:///var/tmp/mirror/debian")
    assert rest[2] == "0"


def test_an_installer_from_a_server_is_tried_and_run(host: Host, tmp_path: Path) -> None:
    installer = tmp_path / "NVIDIA-Linux-x86_64-580.95.05.run"
    installer.write_text("[ $1 = --check ] || echo $* >/var/tmp/run\n")
    serve = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        book = tmp_path / "book.yml"
        book.write_text(PACKAGES.replace("install_packages", "install_runfile"))
        play = f"play {book} -e driver_method=runfile"
        play += f" -e driver_runfile=http://127.0.0.1:{server.server_port}/{installer.name}"
        play += f" -e driver_runfile_sha256={hashlib.sha256(installer.read_bytes()).hexdigest().upper()}"
        said = host(f"""
{play} --check
ls /var/lib/accel-kubernetes /var/tmp/run 2>&1 | grep -c 'No such file'
{play}
cat /var/tmp/run
""")
        server.shutdown()
    assert said == ["2", "--silent --dkms --kernel-module-type=open"]


@pytest.mark.attack
def test_an_installer_of_a_local_user_is_not_run(host: Host, tmp_path: Path) -> None:
    """Neither one that root is told of, nor one in a directory that was made before root made it."""
    book, name = tmp_path / "book.yml", "NVIDIA-Linux-x86_64-580.95.05.run"
    book.write_text(PACKAGES.replace("install_packages", "install_runfile"))
    (tmp_path / name).write_text("touch /var/tmp/ours\n")
    play = f"play {book} -e driver_method=runfile"
    said = host(f"""
stranger() {{ setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }}
chmod 1777 /var/tmp
stranger mkdir /var/tmp/first
stranger sh -c 'echo touch /var/tmp/theirs >/var/tmp/first/{name}'
for options in "-e driver_runfile_remote_src=true -e driver_runfile=/var/tmp/first/{name}" \\
  "-e driver_runfile_dir=/var/tmp/first -e driver_runfile={tmp_path}/{name}"; do
  if {play} $options >/var/tmp/said 2>&1; then exit 1; fi
  grep -o "belongs to the user 65534" /var/tmp/said | uniq
done
ls /var/tmp/ours /var/tmp/theirs 2>&1 | grep -c 'No such file'
""")
    assert said == ["belongs to the user 65534"] * 2 + ["2"]


@pytest.mark.attack
def test_another_key_of_the_toolkit_s_repository_is_refused(host: Host, tmp_path: Path) -> None:
    nvidia, play = brought_from_here(tmp_path, BOOK % ("container_runtime", "install_deb"))
    said = host(f"""
echo other >>{nvidia}/gpgkey
if {play} 2>/var/tmp/said; then exit 1; fi
grep -o "set container_runtime_toolkit_repo_key_sha256" /var/tmp/said | uniq
ls /usr/share/keyrings/nvidia-container-toolkit.asc /etc/apt/sources.list.d/accel* 2>&1 | grep -c 'No such file'
""")
    assert said == ["set container_runtime_toolkit_repo_key_sha256", "2"]
