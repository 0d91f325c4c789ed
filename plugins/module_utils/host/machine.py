# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The machine a module changes: files, commands, time. Everything a transaction does to it goes through here."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import fnmatch
import glob
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from typing import Dict, Iterator, List, Sequence

from ansible.module_utils.basic import AnsibleModule

_FS_IOC_GETFLAGS = 0x80086601
_FS_IMMUTABLE_FL = 0x10
_FS_APPEND_FL = 0x20


class CommandError(Exception):
    """A command could not be started, ended with an error or ran past its deadline. Says which and why."""


class Host:
    """The real machine, through the AnsibleModule that runs on it."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module

    def read(self, path: str) -> bytes | None:
        """Return the content of a file, None when there is none."""
        try:
            with open(path, "rb") as handle:
                return handle.read()
        except FileNotFoundError:
            return None

    def words(self, path: str) -> str:
        """Return a file's text, where bytes that are no UTF-8 do not matter; empty when it cannot be read."""
        try:
            return (self.read(path) or b"").decode(errors="replace")
        except OSError:
            return ""

    def matching(self, pattern: str) -> Dict[str, str]:
        """Contents, as of ``words``, of the files that a pattern of glob(7) names, by path in the order of names."""
        return {path: self.words(path) for path in sorted(glob.glob(pattern))}

    def matching_in_go(self, pattern: str) -> Dict[str, str]:
        """Match as Go's filepath.Glob does: hidden files too, and a path without an asterisk is taken as it is."""
        if "*" not in pattern:
            return {pattern: self.words(pattern)} if os.path.isfile(pattern) else {}
        directory, form = os.path.split(pattern.replace("[^", "[!"))
        places = glob.glob(directory) if glob.has_magic(directory) else [directory]
        found = (os.path.join(place, name) for place in places if os.path.isdir(place) for name in os.listdir(place))
        chosen = (path for path in found if fnmatch.fnmatchcase(os.path.basename(path), form) and os.path.isfile(path))
        return {path: self.words(path) for path in sorted(chosen)}

    def mode(self, path: str) -> int | None:
        """Permission bits of a file, None when there is none."""
        try:
            return stat.S_IMODE(os.stat(path).st_mode)
        except FileNotFoundError:
            return None

    def write(self, path: str, data: bytes, mode: int) -> None:
        """Replace a file atomically. An existing one keeps mode, owner and attributes; a new one gets ``mode``."""
        target = os.path.realpath(path)
        directory, name = os.path.split(target)
        # A dot name: kubelet and containerd skip it. In the same directory: the rename is atomic.
        temporary = os.path.join(directory, f".accel-{name}.tmp")
        try:
            # A killed run may have left it; a file of others is never written to.
            self.remove(temporary)
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as handle:
                handle.write(data)
                handle.flush()
                os.fsync(handle.fileno())
            # Not atomic_move: its failure would end the module before the change is undone.
            self._resemble(temporary, target, mode)
            os.rename(temporary, target)
        except OSError as error:
            self.remove(temporary)
            error.filename = error.filename or temporary
            raise

    def _resemble(self, temporary: str, target: str, mode: int) -> None:
        """Give a file the mode, owner, extended attributes and label of the one it replaces, or those of a new one."""
        try:
            existing = os.stat(target)
        except FileNotFoundError:
            os.chmod(temporary, mode)
            context = self.module.selinux_default_context(target)
        else:
            os.chown(temporary, existing.st_uid, existing.st_gid)
            # Before the mode, which setting an access control list changes.
            self._copy_attributes(target, temporary)
            os.chmod(temporary, stat.S_IMODE(existing.st_mode))
            context = self.module.selinux_context(target)
        if self.module.selinux_enabled():
            self.module.set_context_if_different(temporary, context, False)

    @staticmethod
    def _copy_attributes(source: str, target: str) -> None:
        """Copy extended attributes, access control lists among them. The label is SELinux's own affair."""
        with contextlib.suppress(OSError):
            for name in os.listxattr(source):
                if name != "security.selinux":
                    with contextlib.suppress(OSError):
                        os.setxattr(target, name, os.getxattr(source, name))

    def remove(self, path: str) -> None:
        """Delete a file; fine when it is gone."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def make_directory(self, path: str, mode: int) -> list[str]:
        """Create a directory with its parents and return those created, outermost first."""
        missing = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for directory in reversed(missing):
            os.mkdir(directory)
            os.chmod(directory, mode)
        return missing[::-1]

    def remove_directory(self, path: str) -> None:
        """Delete a directory if it is empty."""
        with contextlib.suppress(OSError):
            os.rmdir(path)

    def room(self, path: str) -> int:
        """Return how many bytes a file of that path may still take. Raises OSError where none can be written."""
        directory = os.path.dirname(os.path.realpath(path))
        while not os.path.isdir(directory):
            directory = os.path.dirname(directory)
        found = os.statvfs(directory)
        if found.f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        # Modules run as root, who may use what is reserved. Some file systems count no inodes.
        return 0 if found.f_files and not found.f_ffree else found.f_bfree * found.f_frsize

    def is_mounted(self, path: str) -> bool:
        """Return whether a mount lies on this very file, as a container's volume: it cannot be replaced (proc(5))."""
        target = os.path.realpath(path)
        try:
            with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
                points = (line.split(" ", 5)[4] for line in lines)
                return any(re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), point) == target for point in points)
        except (OSError, IndexError):
            return False

    def is_immutable(self, path: str) -> bool:
        """Return whether a file or directory is immutable or append-only (chattr(1), FS_IOC_GETFLAGS)."""
        flags = bytearray(8)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            fcntl.ioctl(descriptor, _FS_IOC_GETFLAGS, flags)
        except OSError:
            return False  # a file system without such marks
        finally:
            os.close(descriptor)
        return bool(int.from_bytes(flags[:4], sys.byteorder) & (_FS_IMMUTABLE_FL | _FS_APPEND_FL))

    def names(self, path: str) -> int:
        """Return how many names (hard links) a file has, 0 when there is none."""
        try:
            return os.stat(path).st_nlink
        except FileNotFoundError:
            return 0

    @contextlib.contextmanager
    def lock(self, path: str) -> Iterator[None]:
        """Hold an exclusive lock; raise CommandError when another run holds it."""
        with open(path, "a") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise CommandError(
                    f"another run is changing this host and holds {path}; wait for it to end, then run again"
                ) from error
            yield

    def find(self, command: str) -> str | None:
        """Return the path of a command, None when it is not on PATH."""
        return shutil.which(command)

    def restart_of(self, service: str) -> List[str]:
        """Return the command that restarts a service: systemd's, or OpenRC's where that is there alone."""
        if self.find("systemctl") is None and self.find("rc-service") is not None:
            return ["rc-service", service, "restart"]
        return ["systemctl", "restart", service]

    def run(self, argv: Sequence[str], timeout: float) -> str:
        """Run a command for at most ``timeout`` seconds and return its standard output. Raises CommandError."""
        shown = " ".join(argv)
        environment = dict(os.environ, LANG="C.UTF-8", LC_ALL="C.UTF-8")
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise CommandError(f"cannot run '{shown}': {error.strerror}") from error
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as error:
            # The whole group: a grandchild may hold the pipes open.
            os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=1)
            raise CommandError(f"'{shown}' did not end within {timeout:g} s") from error
        if process.returncode != 0:
            said = (err or out).decode(errors="replace").strip()[-800:]
            raise CommandError(f"'{shown}' ended with status {process.returncode}" + (f": {said}" if said else ""))
        return out.decode(errors="replace")

    def temporary(self, data: bytes, name: str) -> str:
        """Write data to a private file of that name, deleted when the module ends, and return its path."""
        path = os.path.join(tempfile.mkdtemp(dir=self.module.tmpdir), name)
        with open(path, "wb") as handle:
            handle.write(data)
        return path

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
