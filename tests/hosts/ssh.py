# SPDX-License-Identifier: Apache-2.0
"""How Ansible reaches a host, as it reaches most: by OpenSSH, as a user who is root through sudo alone."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

USER = "ops"
PACKAGES = "openssh-server,sudo"
# $1 is the userland.
ADD_USER = rf"""
chroot "$1" sh -ec '
  useradd --create-home --shell /bin/sh {USER}
  echo "{USER} ALL=(ALL) NOPASSWD: ALL" >/etc/sudoers.d/{USER}
  chmod 0440 /etc/sudoers.d/{USER}'
"""
ADMITTED = "etc/ssh/admitted"
UNKNOWN_HOST = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"


def entry(pid: int) -> list[str]:
    """The words that run a command, which follows them, in the host whose systemd is that process."""
    return ["nsenter", f"--target={pid}", "--ipc", "--mount", "--net", "--pid", "--uts", "--"]


def admit(upper: Path, name: str) -> Path:
    """Let one new key in, which lies beside the host's own files; returns its path."""
    key = upper.parent / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    (upper / ADMITTED).parent.mkdir(parents=True, exist_ok=True)
    (upper / ADMITTED).write_text(key.with_suffix(".pub").read_text())
    # sudo looks its own host up.
    (upper / "etc/hosts").write_text(f"127.0.0.1 localhost {name}\n")
    return key


def variables(name: str, pid: int, key: Path) -> dict[str, Any]:
    """What Ansible has to know to reach the host whose systemd is that process, which has no network."""
    server = " ".join([*entry(pid), "/usr/sbin/sshd", "-i", "-o", f"AuthorizedKeysFile=/{ADMITTED}"])
    return {
        "ansible_connection": "ssh",
        # Nobody looks it up. It tells a new host's connections from those of one before that had its name.
        "ansible_host": f"{name}.{pid}",
        "ansible_user": USER,
        "ansible_ssh_private_key_file": str(key),
        "ansible_ssh_common_args": f"-o ProxyCommand='{server}' {UNKNOWN_HOST}",
        "ansible_become": True,
        # Modules lie on the host then, as they do by default, and are known by their names.
        "ansible_pipelining": False,
        "ansible_python_interpreter": "/usr/bin/python3",
        "host_pid": pid,
    }
