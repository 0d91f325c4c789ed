#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: driver_packages_info
short_description: List the packages of NVIDIA's driver that fit a host's kernel
version_added: 0.1.0
description:
  - Names the packages that a driver and its kernel module need on this host, and checks whether the package sources
    have them.
  - The module queries the package manager with package lists in a separate directory. It does not change the host.
  - Names follow what is installed here, such as the package that brings new kernels, and what the sources know.
  - Warns if a future kernel would have no driver.
options:
  host:
    description: Name of the host in warnings.
    type: str
    default: this host
  family:
    description: The format of the host's packages.
    type: str
    choices: [deb, rpm]
    required: true
  distribution:
    description: The host's distribution, as the fact C(distribution) has it.
    type: str
    required: true
  kernel:
    description: Release of the kernel that the module is for.
    type: str
    required: true
  method:
    description: Source of the driver.
    type: str
    choices: [repo, distro, runfile]
    required: true
  branch:
    description: Branch of the driver.
    type: int
    required: true
  version:
    description: Exact version to name with NVIDIA's packages for rpm. Empty for the newest of the branch.
    type: str
    default: ""
  open_module:
    description: Whether the kernel module is the open one.
    type: bool
    default: true
  dkms:
    description: Whether DKMS builds the module for each kernel.
    type: bool
    default: true
  persistence:
    description: Whether the persistence daemon is wanted.
    type: bool
    default: false
  prerequisites:
    description: Packages to install first. V(auto) stands for the packages that the build of the kernel module needs.
    type: list
    elements: str
    default: [auto]
  repositories:
    description: Packages that add repositories. Until they are installed, missing packages may come from these
      repositories.
    type: list
    elements: str
    default: []
  repository_known:
    description: Whether the host knows NVIDIA's repository, so that its packages can be asked for.
    type: bool
    default: false
  ask:
    description:
      - Whether to read the package sources and try the installation.
      - V(false) uses no network. The names then depend on installed packages and on apt's existing lists.
    type: bool
    default: true
extends_documentation_fragment:
  - accel.kubernetes.attributes
  - accel.kubernetes.attributes.info_module
author:
  - Accel Kubernetes contributors (@accel-kubernetes)
"""

EXAMPLES = r"""
- name: Look up Canonical's prebuilt modules
  accel.kubernetes.driver_packages_info:
    family: deb
    distribution: Ubuntu
    kernel: "{{ ansible_facts['kernel'] }}"
    method: distro
    branch: 580
    dkms: false
  register: driver

- name: Show what is to be installed
  ansible.builtin.debug:
    msg: "{{ driver.packages }}"
"""

RETURN = r"""
prerequisites:
  description: Packages to install before the driver. These are O(prerequisites) with V(auto) replaced.
  returned: success
  type: list
  elements: str
packages:
  description: The driver's packages.
  returned: success
  type: list
  elements: str
  sample: [nvidia-dkms-580-server-open, nvidia-headless-580-server-open, nvidia-utils-580-server, nvidia-modprobe]
not_answering:
  description: Messages of the package manager about sources that do not answer.
  returned: success
  type: list
  elements: str
missing_of_kernel:
  description: Packages for exactly this kernel that no source has, each with all names that the module tried.
  returned: success
  type: list
  elements: str
candidates:
  description: Packages like RV(missing_of_kernel) for other kernels, which the sources have.
  returned: success
  type: list
  elements: str
missing:
  description: Other packages that no source has, except those that may come with RV(pending).
  returned: success
  type: list
  elements: str
pending:
  description: Packages of O(repositories) that are not installed yet.
  returned: success
  type: list
  elements: str
conflicts:
  description: Why the package manager would not install the packages together.
  returned: success
  type: list
  elements: str
kernels_to_come:
  description: Reasons why future kernels would have no driver. The module warns about each.
  returned: success
  type: list
  elements: str
"""

import os
import shutil
import tempfile
from typing import Any, Dict, FrozenSet, List, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.accel.kubernetes.plugins.module_utils.driver import packages
from ansible_collections.accel.kubernetes.plugins.module_utils.driver.packages import Answer, System, Wish

_NEVRA = "%{name}-%{version}-%{release}.%{arch}\\n"
_OF_KERNELS = "^(linux-(headers|modules-nvidia)-|proxmox-(default-)?headers|pve-headers)"


class Programs:
    """The host's package manager, with lists in a directory of its own."""

    def __init__(self, module: AnsibleModule, work: str, ask: bool) -> None:
        self.module = module
        self.work = work
        self.ask = ask

    def run(self, *command: str) -> Tuple[int, str, str]:
        """Run a program, and give its status, its output and its errors."""
        environment = {"LC_ALL": "C", "LANGUAGE": "C", "DEBIAN_FRONTEND": "noninteractive"}
        status, out, err = self.module.run_command(list(command), environ_update=environment)
        return int(status), str(out), str(err)

    def lines(self, *command: str) -> List[str]:
        """Return the output of a program that ended well, without empty lines."""
        status, out = self.run(*command)[:2]
        return [line for line in out.splitlines() if line.strip()] if status == 0 else []

    def apt(self, program: str, *words: str) -> Tuple[str, ...]:
        """Return a command of apt that leaves the host's lists and caches as they are."""
        lists = ("-o", f"Dir::State::lists={self.work}/lists") if self.ask else ()
        options = ("Dir::Cache::pkgcache=", "Dir::Cache::srcpkgcache=", "Acquire::Retries=1")
        options += ("Acquire::http::Timeout=20", "Acquire::https::Timeout=20")
        return (program, "-q", *lists, *(word for option in options for word in ("-o", option)), *words)

    def dnf(self, *words: str) -> Tuple[str, ...]:
        """Return a command of dnf that leaves the host's lists and logs as they are."""
        options = (f"cachedir={self.work}/cache", f"logdir={self.work}", "timeout=20", "retries=1")
        return ("dnf", "-q", *(f"--setopt={option}" for option in options), *words)


class Deb:
    """A host with apt."""

    def __init__(self, programs: Programs) -> None:
        self.programs = programs
        self.update = ""

    def refresh(self) -> None:
        """Read the package sources."""
        os.makedirs(os.path.join(self.programs.work, "lists", "partial"))
        self.update = "\n".join(self.programs.run(*self.programs.apt("apt-get", "update"))[1:])

    def system(self, distribution: str, kernel: str) -> System:
        """Return what dpkg has, and what apt knows."""
        fields = "${Package}\t${db:Status-Want}\t${db:Status-Status}\t${Depends}\n"
        rows = [line.split("\t") for line in self.programs.lines("dpkg-query", "-W", "-f", fields)]
        here = [(row[0], row[1] == "hold", row[3]) for row in rows if len(row) == 4 and row[2] == "installed"]
        metas = packages.kernel_metas(here)
        found = self.programs.lines(*self.programs.apt("apt-cache", "search", "--names-only", _OF_KERNELS))
        offered = frozenset(line.split(" ", 1)[0] for line in found)
        headers: Dict[str, FrozenSet[str]] = {}
        if metas:
            asked = [meta.name for meta in metas]
            asked += [name for name in map(packages.headers_of_meta, asked) if name in offered]
            shown = self.programs.apt("apt-cache", "show", "--no-all-versions", *asked)
            # One of them may be in no source any more.
            rows = self._depends(self.programs.run(*shown)[1].splitlines())
            metas = packages.kernel_metas(here + rows)
            headers = packages.header_metas((name, depends) for name, unused, depends in rows)
        return System(
            "deb",
            distribution,
            kernel,
            frozenset(name for name, unused, unused in here),
            offered if offered or self.programs.ask else None,
            tuple(packages.releases(" ".join(name for name, unused, unused in here))),
            metas,
            headers,
        )

    def answer(self, names: List[str]) -> Answer:
        """Return whether apt would install these packages."""
        options = ("--simulate", "--no-install-recommends", "--allow-change-held-packages", "install")
        status, *said = self.programs.run(*self.programs.apt("apt-get", *options, *names))
        return Answer() if status == 0 else packages.apt_answer(self.update, "\n".join(said))

    def installed(self, name: str) -> bool:
        """Return whether a package is installed."""
        return self.programs.lines("dpkg-query", "-W", "-f", "${db:Status-Status}\n", name) == ["installed"]

    @staticmethod
    def _depends(lines: List[str]) -> List[Tuple[str, bool, str]]:
        rows, name = [], ""
        for line in lines:
            if line.startswith("Package: "):
                name = line.split(": ", 1)[1]
            elif line.startswith("Depends: "):
                rows.append((name, False, line))
        return rows


class Rpm:
    """A host with dnf."""

    def __init__(self, programs: Programs) -> None:
        self.programs = programs

    def refresh(self) -> None:
        """Leave that to dnf, which reads the sources when it is asked."""

    def system(self, distribution: str, kernel: str) -> System:
        """Return what rpm has, and what dnf knows."""
        provides = f"kernel-devel-uname-r = {kernel}"
        owner = self._installed("--whatprovides", f"kernel-uname-r = {kernel}", form="%{name}\\n")
        owner = owner or self._installed("-f", f"/lib/modules/{kernel}/vmlinuz", form="%{name}\\n")
        kernel_package = owner[0] if owner else ""
        headers = self._installed("--whatprovides", provides)
        offered: Optional[FrozenSet[str]] = None
        version = "%{version}-%{release}.%{arch}\\n"
        kernels = self._installed(kernel_package, form=version) if kernel_package else []
        coming: List[str] = []
        if self.programs.ask:
            headers = headers or self._offered("--whatprovides", provides)
            offered = frozenset(self._offered("kernel*-devel"))
            if kernel_package:
                coming = self._offered("--latest-limit=1", kernel_package, form=version)
        return System(
            "rpm",
            distribution,
            kernel,
            frozenset(self._installed("-a", "kernel*-devel")),
            offered,
            tuple(kernels),
            coming=tuple(coming),
            kernel_package=kernel_package,
            headers=headers[0] if headers else "",
        )

    def answer(self, names: List[str]) -> Answer:
        """Return whether dnf would install these packages."""
        # It ends with 1 for the "no" too.
        status, *said = self.programs.run(*self.programs.dnf("--assumeno", "install", *names))
        return Answer() if status == 0 else packages.dnf_answer("\n".join(said))

    def installed(self, name: str) -> bool:
        """Return whether a package is installed."""
        return bool(self._installed(name))

    def _installed(self, *words: str, form: str = _NEVRA) -> List[str]:
        return self.programs.lines("rpm", "-q", "--qf", form, *words)

    def _offered(self, *words: str, form: str = _NEVRA) -> List[str]:
        return self.programs.lines(*self.programs.dnf("repoquery", "--qf", form, *words))


ARGUMENTS: Dict[str, Any] = {
    "host": {"type": "str", "default": "this host"},
    "family": {"type": "str", "choices": ["deb", "rpm"], "required": True},
    "distribution": {"type": "str", "required": True},
    "kernel": {"type": "str", "required": True},
    "method": {"type": "str", "choices": ["repo", "distro", "runfile"], "required": True},
    "branch": {"type": "int", "required": True},
    "version": {"type": "str", "default": ""},
    "open_module": {"type": "bool", "default": True},
    "dkms": {"type": "bool", "default": True},
    "persistence": {"type": "bool", "default": False},
    "prerequisites": {"type": "list", "elements": "str", "default": [packages.AUTO]},
    "repositories": {"type": "list", "elements": "str", "default": []},
    "repository_known": {"type": "bool", "default": False},
    "ask": {"type": "bool", "default": True},
}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        supports_check_mode=True,
    )
    words = module.params
    for program in ("apt-get", "apt-cache", "dpkg-query") if words["family"] == "deb" else ("dnf", "rpm"):
        module.get_bin_path(program, required=True)
    wish = Wish(
        words["method"], words["branch"], words["version"], words["open_module"], words["dkms"], words["persistence"]
    )
    asked = words["method"] == "distro" or (words["method"] == "repo" and words["repository_known"])
    ask = words["ask"] and bool(asked or words["repositories"] or words["prerequisites"])
    work = tempfile.mkdtemp(prefix="accel-driver-")
    try:
        # apt downloads as a user of its own.
        os.chmod(work, 0o755)  # noqa: S103
        programs = Programs(module, work, ask)
        manager: Deb | Rpm = Deb(programs) if words["family"] == "deb" else Rpm(programs)
        if ask:
            manager.refresh()
        system = manager.system(words["distribution"], words["kernel"])
        planned = packages.plan(system, wish)
        prerequisites: List[str] = []
        for name in words["prerequisites"]:
            prerequisites.extend(planned.prerequisites if name == packages.AUTO else [name])
        names = [*words["repositories"], *prerequisites, *(planned.packages if asked else ())]
        answer = manager.answer(names) if ask and names else Answer()
        pending = [name for name in words["repositories"] if not manager.installed(name)]
    finally:
        shutil.rmtree(work, ignore_errors=True)
    of_kernel = [tried for tried in planned.of_kernel if tried[0] in answer.missing]
    others = [name for name in answer.missing if name not in [tried[0] for tried in of_kernel]]
    # Another repository may bring what is missing, but not what comes from where the kernel does.
    missing = [name for name in others if not pending or name in words["repositories"]]
    for warning in planned.warnings:
        module.warn(f"{words['host']}: {warning}")
    module.exit_json(
        changed=False,
        prerequisites=prerequisites,
        packages=planned.packages,
        not_answering=answer.unreachable,
        missing_of_kernel=[" or ".join(tried) for tried in of_kernel],
        candidates=[name for tried in of_kernel for name in packages.like(tried[0], system.offered or ())],
        missing=missing,
        pending=pending,
        conflicts=answer.conflicts,
        kernels_to_come=planned.warnings,
    )


if __name__ == "__main__":
    main()
