# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role's variables, as far as they decide something."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Tuple

from ..shared.options import OptionReader
from ..shared.refusal import Refusal

METHODS = ("repo", "distro", "runfile", "none")


@dataclass(frozen=True)
class Options:
    """The driver that a host is to have. Each field is the variable ``driver_`` and its name."""

    method: str = "repo"
    branch: str = "580"
    version: str = ""
    kernel_module_type: str = "auto"
    dkms: bool = True
    kernel_release: str = ""
    hold: bool = True
    free_space: Mapping[str, int] = field(default_factory=dict)
    runfile: str = ""
    runfile_sha256: str = ""
    runfile_remote_src: bool = False
    runfile_dir: str = ""
    runfile_extra_args: Tuple[str, ...] = ()
    module_signing_secret_key: str = ""
    module_signing_public_key: str = ""
    repo_setup: bool = True
    repo_baseurl: str = ""
    repo_key_sha256: str = ""
    reboot: str = "never"
    reload: bool = False
    fabricmanager: str = "auto"
    force: bool = False
    etc_dir: str = "/etc"
    run_dir: str = "/run"


def read_options(values: Mapping[str, object]) -> Tuple[Options, Tuple[Refusal, ...]]:
    """Return the options that variables name, and a refusal for each variable whose value has another type."""
    reader = OptionReader(values)
    options = Options(
        method=reader.choice("driver_method", METHODS),
        branch=reader.text("driver_branch"),
        version=reader.text("driver_version"),
        kernel_module_type=reader.choice("driver_kernel_module_type", ("auto", "open", "proprietary")),
        dkms=reader.boolean("driver_dkms"),
        kernel_release=reader.text("driver_kernel_release"),
        hold=reader.boolean("driver_hold"),
        free_space=reader.numbers("driver_free_space"),
        runfile=reader.text("driver_runfile"),
        runfile_sha256=reader.text("driver_runfile_sha256").lower(),
        runfile_remote_src=reader.boolean("driver_runfile_remote_src"),
        runfile_dir=reader.text("driver_runfile_dir"),
        runfile_extra_args=reader.words("driver_runfile_extra_args"),
        module_signing_secret_key=reader.text("driver_module_signing_secret_key"),
        module_signing_public_key=reader.text("driver_module_signing_public_key"),
        repo_setup=reader.boolean("driver_repo_setup"),
        repo_baseurl=reader.text("driver_repo_baseurl"),
        repo_key_sha256=reader.text("driver_repo_key_sha256").lower(),
        reboot=reader.choice("driver_reboot", ("never", "auto", "always")),
        reload=reader.boolean("driver_reload"),
        fabricmanager=reader.choice("driver_fabricmanager", ("auto", "always", "never")),
        force=reader.boolean("driver_force"),
        etc_dir=reader.text("driver_etc_dir"),
        run_dir=reader.text("driver_run_dir"),
    )
    return options, tuple(reader.refusals)
