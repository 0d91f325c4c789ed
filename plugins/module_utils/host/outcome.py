# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The way from a plan to a module's result, shared by the modules that change files in a transaction."""

from __future__ import annotations

import glob
import json
import os
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, Sequence

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.accel.kubernetes.plugins.module_utils.host import trusted_path
from ansible_collections.accel.kubernetes.plugins.module_utils.host.machine import CommandError, Host
from ansible_collections.accel.kubernetes.plugins.module_utils.host.record import (
    FileChange,
    Record,
    digest,
    same_file,
    settled,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.host.service import Service
from ansible_collections.accel.kubernetes.plugins.module_utils.host.transaction import RESTORED, Transaction
from ansible_collections.accel.kubernetes.plugins.module_utils.host.writable import TransactionError, explained

BACKUP_DIR = "/var/lib/accel-kubernetes/backups"
_BYTE_ORDER_MARK = "\ufeff"


class Refused(Exception):
    """What was asked for cannot be done here. Says why and what to do instead; nothing was changed."""

    def __init__(self, message: str, code: str = "refused") -> None:
        super().__init__(message)
        self.code = code
        """The return value ``code`` of the module, for programs."""


@dataclass(frozen=True)
class Proposal:
    """What a module would do now."""

    changes: Sequence[FileChange] = ()
    record: Record = field(default_factory=Record)
    validate: Callable[[], None] = lambda: None
    """Raises Refused or CommandError when a candidate is no good. Only reads, so that check mode finds it too."""
    result: Dict[str, Any] = field(default_factory=dict)
    """Further return values of the module."""
    restart: bool = False
    """Whether the service has to be restarted even where no file changes."""


def transaction_for(module: AnsibleModule, kind: str, path: str, service: Service) -> Transaction:
    """Return the transaction of the file a kind of module manages, with a state directory in ``backup_dir``."""
    name = f"{kind}-{digest(os.path.realpath(path).encode())[:12]}"
    directory = os.path.join(module.params["backup_dir"], name)
    # What it is named after leads elsewhere once a link on the way is replaced, by a file or by another link.
    others = sorted(glob.glob(os.path.join(glob.escape(module.params["backup_dir"]), f"{kind}-*")))
    directory = next((each for each in [directory, *others] if _remembers(each, path)), directory)
    return Transaction(Host(module), directory, os.path.basename(directory), service)


def spelled(path: str) -> str:
    """Return an absolute path without a slash at its end and without steps up; it may lead through a link."""
    whole = os.path.join(os.getcwd(), path)
    return str(settled(whole) if ".." in whole.split("/") else os.path.abspath(whole))


def _remembers(directory: str, path: str) -> bool:
    """Return whether a directory of ``backup_dir`` holds what a file was before our first change."""
    try:
        with open(os.path.join(directory, "record.json"), "rb") as handle:
            return any(same_file(known, path) for known in json.load(handle)["originals"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def text_of(data: bytes, path: str) -> str:
    """Return a file's text, without a byte order mark and with line feeds alone. Raises Refused when it is not UTF-8.

    Lines that end in different ways stay as they are.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise Refused(
            f"{path} is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}; write it in UTF-8, then run again"
        ) from error
    text = text[len(_mark_of(text)) :]
    return text.replace("\r\n", "\n") if _ends_lines_as_windows_does(text) else text


def bytes_like(before: bytes | None, text: str) -> bytes:
    """Return the bytes of a text, in the form of the file that ``text_of`` read it from."""
    old = (before or b"").decode()
    if _ends_lines_as_windows_does(old):
        text = text.replace("\n", "\r\n")
    return (_mark_of(old) + text).encode()


def _mark_of(text: str) -> str:
    return _BYTE_ORDER_MARK if text.startswith(_BYTE_ORDER_MARK) else ""


def _ends_lines_as_windows_does(text: str) -> bool:
    return 0 < text.count("\n") == text.count("\r\n")


def carry_out(module: AnsibleModule, transaction: Transaction, propose: Callable[[], Proposal]) -> None:
    """Plan, and unless in check mode change what the plan says; then end the module with its result."""
    host = transaction.host
    recovered = ""
    try:
        # What lies there is believed, and a timer of root's runs some of it.
        trusted_path.make_directory(transaction.directory, check=True)
        interrupted = transaction.unfinished()
        # First: what a run that was cut off left behind may be what cannot be planned from.
        if interrupted and not module.check_mode:
            with host.lock(os.path.join(transaction.directory, "lock")):
                recovered = transaction.recover()
        proposal = _with_targets(transaction, propose())
        if proposal.changes:
            transaction.check_writable(proposal.changes)
        if (proposal.changes or proposal.restart) and module.check_mode:
            proposal.validate()
        elif proposal.changes or proposal.restart:
            trusted_path.make_directory(transaction.directory)
            with host.lock(os.path.join(transaction.directory, "lock")):
                recovered = transaction.recover() or recovered
                proposal = _with_targets(transaction, propose())
                if proposal.changes or proposal.restart:
                    proposal.validate()
                    transaction.commit(proposal.changes, proposal.record)
        work = bool(proposal.changes) or proposal.restart or recovered == RESTORED
        work = work or (interrupted and module.check_mode)
    except (CommandError, OSError, Refused, TransactionError, trusted_path.UntrustedError) as error:
        _warn(module, transaction)
        code = error.code if isinstance(error, Refused) else "failed"
        module.fail_json(msg=explained(error), code=code, recovered=recovered)
    _warn(module, transaction)
    module.exit_json(
        changed=work,
        diff=[_diff(change) for change in proposal.changes],
        backup=transaction.directory if proposal.changes and not module.check_mode else "",
        recovered=recovered,
        pending=work and module.check_mode,
        **proposal.result,
    )


def _with_targets(transaction: Transaction, proposal: Proposal) -> Proposal:
    """Return a plan that also gives back files that links once led to, and that still have our content.

    One that others have edited since is left to them, with a warning.
    """
    before = transaction.record()
    acted = {change.path for change in proposal.changes}
    changes = list(proposal.changes)
    for path, target in before.targets.items():
        data = transaction.read(target)
        original = before.originals.get(path)
        if target == os.path.realpath(path) or path not in acted or path not in before.originals:
            continue
        if data is None or data == original:
            continue
        if before.untouched(path, data):
            changes.append(FileChange(target, data, original, restart=False))
        else:
            warning = (
                f"{path} no longer leads to {target}, which this collection changed and someone edited since, so it "
                f"stays. If another program reads it, remove the collection's part. The original content is in "
                f"{transaction.directory}/record.json."
            )
            transaction.warnings += [warning] if warning not in transaction.warnings else []
    return replace(proposal, changes=changes)


def _warn(module: AnsibleModule, transaction: Transaction) -> None:
    for warning in transaction.warnings:
        module.warn(warning)


def _diff(change: FileChange) -> Dict[str, str]:
    return {
        "before_header": change.path,
        "after_header": change.path,
        "before": (change.before or b"").decode(errors="replace"),
        "after": (change.after or b"").decode(errors="replace"),
    }
