# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an installation needs from elsewhere, and why it cannot be had. Pure."""

from __future__ import annotations

from typing import Iterator

from ..shared.refusal import Refusal
from . import repository
from .observation import stat_of
from .target import Target

_OK = 200


def repository_url(target: Target) -> str:
    """Return NVIDIA's repository for a host."""
    return f"{target.options.repo_baseurl}/{repository.part_of(target.host)}"


def keyring_url(target: Target) -> str:
    """Return where apt's key and source list come from."""
    return f"{repository_url(target)}/{repository.KEYRING}"


def source_url(target: Target) -> str:
    """Return what an installation downloads first, by which is seen whether the source answers, and "" for nothing."""
    options = target.options
    if options.method == "runfile" and target.runfile_is_url:
        return options.runfile
    if options.method != "repo" or not options.repo_setup:
        return ""
    return f"{repository_url(target)}/{'Packages.gz' if target.family == 'deb' else 'repodata/repomd.xml'}"


def lacks_keyring(target: Target) -> bool:
    """Return whether apt is to get NVIDIA's repository, and does not know its key yet."""
    wanted = target.options.method == "repo" and target.options.repo_setup and target.family == "deb"
    return wanted and not target.observed.keyring


def refuse_unavailable(target: Target) -> Iterator[Refusal]:
    """Yield what cannot be had, each with its remedy."""
    yield from _refuse_packages(target)
    yield from _refuse_source(target)
    yield from _refuse_installer(target)
    if lacks_keyring(target) and not repository.key_checksum(target.host, target.options.repo_key_sha256):
        yield Refusal(
            "keyring_unknown",
            f"The role knows no SHA-256 of {keyring_url(target)}, whose scripts root runs. Download it, compare it with"
            " what NVIDIA publishes, and set driver_repo_key_sha256 to its SHA-256, or to 'none' to install it unseen.",
        )


def _refuse_packages(target: Target) -> Iterator[Refusal]:
    answers = target.answers
    silent = answers.words("not_answering")
    if silent:
        yield Refusal(
            "source_silent",
            f"A package source does not answer: {'; '.join(dict.fromkeys(silent))}. Correct the host's sources or its"
            " proxy (the task's environment, or the package manager's own setting).",
        )
        return
    of_kernel, missing, conflicts = (answers.words(name) for name in ("missing_of_kernel", "missing", "conflicts"))
    if of_kernel:
        yield Refusal(
            "kernel_packages_missing",
            f"{', '.join(of_kernel)} is in no package source of this host, which has"
            f" {', '.join(answers.words('candidates')) or 'none'}. Boot a kernel that a source has packages for, name"
            " the kernel to build for in driver_kernel_release, or add the source that still has the package.",
        )
    if missing:
        yield Refusal(
            "packages_missing",
            f"{', '.join(missing)} is in no package source of this host; add the source that has it, or set"
            " driver_branch to one that the sources have.",
        )
    if conflicts and not of_kernel and not missing:
        yield Refusal(
            "packages_conflict",
            f"The packages cannot be installed together: {'; '.join(conflicts)}. Correct what the package manager"
            " names, or set driver_method to another.",
        )


def _refuse_source(target: Target) -> Iterator[Refusal]:
    source = target.answers.source
    if source.get("status", _OK) == _OK:
        return
    by_runfile = target.options.method == "runfile"
    here = (
        "or set driver_runfile to a path on the controller."
        if by_runfile
        else "or set driver_repo_setup=false for a repository the host has."
    )
    yield Refusal(
        "source_silent",
        f"{source_url(target)} does not answer ({source.get('msg', '')}); correct"
        f" {'driver_runfile' if by_runfile else 'driver_repo_baseurl'} or the proxy (the task's environment), {here}",
    )


def _refuse_installer(target: Target) -> Iterator[Refusal]:
    options, stat = target.options, stat_of(target.answers.installer)
    if options.method == "runfile" and stat.get("exists") is False:
        where = "the host" if options.runfile_remote_src else "the controller"
        yield Refusal(
            "runfile_absent",
            f"driver_runfile {options.runfile} is not on {where}; correct it or driver_runfile_remote_src.",
        )
    checksum = stat.get("checksum", "")
    if options.runfile_sha256 and checksum not in ("", options.runfile_sha256):
        yield Refusal(
            "runfile_checksum",
            f"{options.runfile} has the SHA-256 {checksum}, and driver_runfile_sha256 is {options.runfile_sha256};"
            " fetch the file again, or correct the variable.",
        )
