# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The timer that puts files back should the run that changes them be cut off."""

from __future__ import annotations

import os
import shlex
from typing import Any, Mapping, Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.host.machine import Host

from .service import Service


class RestoreTimer:
    """The timer of systemd that puts files back should the run that changes them be cut off.

    It does nothing unless the file ``armed`` names it, and leaves the file ``restored`` when it has put all back.
    """

    def __init__(self, host: Host, directory: str, service: Service) -> None:
        self._host = host
        self._service = service
        self._armed_path = os.path.join(directory, "armed")
        self._restored_path = os.path.join(directory, "restored")
        self._script_path = os.path.join(directory, "restore.sh")

    def has_restored(self) -> bool:
        """Return whether it has put the files back."""
        return self._host.read(self._restored_path) is not None

    def arm(self, unit: str, files: Sequence[Mapping[str, Any]]) -> None:
        """Have the files put back later, unless it is disarmed before; ``start`` begins the time."""
        self._host.write(self._script_path, self._script(files).encode(), 0o700)
        # By name, and known before it exists: a timer that a killed run left must not take back what a later run does.
        self._host.write(self._armed_path, unit.encode(), 0o600)

    def start(self, unit: str) -> None:
        """Start the timer that was armed. Raises CommandError."""
        # Longer than the change and its undoing together can take.
        delay = int(6 * self._service.timeout + 60)
        timer = ["systemd-run", "--quiet", "--collect", f"--unit={unit}", f"--on-active={delay}s"]
        self._host.run([*timer, "/bin/sh", self._script_path, unit], timeout=10)

    def disarm(self) -> None:
        """Have the timer do nothing when its time comes."""
        self._host.remove(self._armed_path)

    def stop(self, unit: str) -> None:
        """Stop a timer that was started. Raises CommandError."""
        if self._host.find("systemctl"):
            self._host.run(["systemctl", "stop", f"{unit}.timer"], timeout=10)

    def forget(self) -> None:
        """Forget that the files were put back."""
        self._host.remove(self._restored_path)

    def _script(self, files: Sequence[Mapping[str, Any]]) -> str:
        quote = shlex.quote
        lines = [
            "#!/bin/sh",
            "# Run by a systemd timer when a change by accel.kubernetes was never confirmed.",
            "failed=",
            f'armed() {{ [ "$(cat {quote(self._armed_path)} 2>/dev/null)" = "$1" ]; }}',
            'armed "$1" || exit 0',
            'ours() { [ "$(sha256sum <"$1" 2>/dev/null | cut -d\' \' -f1)" = "$2" ]; }',
            # A copy of the target carries its owner, mode and label; a target that is gone has none.
            'back() { tmp="$(dirname "$1")/.accel-restore.tmp"; rm -f "$tmp"; { cp -a "$1" "$tmp" 2>/dev/null || '
            '{ : >"$tmp" && chmod "$3" "$tmp"; }; } && cat "$2" >"$tmp" && mv -f "$tmp" "$1"; }',
        ]
        for entry in files:
            path = quote(os.path.realpath(entry["path"]))
            ours = f"ours {path} {entry['after']}" if entry["after"] else f"[ ! -e {path} ]"
            action = f"back {path} {quote(entry['backup'])} {entry['mode']:o}" if entry["backup"] else f"rm -f {path}"
            lines.append(f"if {ours}; then {action} || failed=1; fi")
        lines += [" ".join(map(quote, command)) for command in (self._service.reset, self._service.apply) if command]
        # A run may have begun meanwhile, and what it remembers is not ours.
        lines.append('armed "$1" || exit 0')
        lines.append(f'[ -n "$failed" ] || touch {quote(self._restored_path)}')
        lines.append(f"rm -f {quote(self._armed_path)}")
        return "\n".join(lines) + "\n"
