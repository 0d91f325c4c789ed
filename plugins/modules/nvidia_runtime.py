#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_runtime
short_description: Make a container runtime know the NVIDIA runtime
version_added: 0.1.0
description:
  - Adds the NVIDIA container runtime to the configuration of containerd, Docker or CRI-O, or removes it.
  - Edits the file in place. Comments, order and entries of others stay as they are.
  - The whole change is one transaction on the host. The candidate is validated, the previous bytes are kept in
    O(backup_dir), the file is replaced atomically, the service is restarted and has to become ready. On any failure the
    previous file comes back and the service is restarted again. A systemd timer does the same if the run is cut off;
    where there is no systemd, the next run does.
  - The first run remembers the file as it was. O(state=absent) brings back exactly those bytes if nobody else has
    changed the file since, and otherwise takes out just what is ours.
  - For containerd the main file is edited rather than a drop-in, because containerd before 2.1 replaces whole plugin
    tables by those of a drop-in and a file without C(imports) reads none. For CRI-O a drop-in is the file edited.
requirements:
  - tomlkit on the target for containerd and CRI-O (package C(python3-tomlkit))
options:
  runtime:
    description: The container runtime to configure.
    type: str
    choices: [containerd, docker, crio]
    required: true
  state:
    description:
      - Whether the runtime is configured.
      - V(absent) removes the runtime of that name whoever added it, and makes another the default if it was.
    type: str
    choices: [present, absent]
    default: present
  config_path:
    description:
      - The file to edit.
      - By default V(/etc/containerd/config.toml), V(/etc/docker/daemon.json) or
        V(/etc/crio/crio.conf.d/99-nvidia.toml).
      - A missing containerd file is begun with what C(containerd config default) prints.
    type: path
  runtime_name:
    description: Name of the runtime, which a RuntimeClass names as its handler.
    type: str
    default: nvidia
  runtime_binary:
    description: Path of the runtime's program.
    type: path
    default: /usr/bin/nvidia-container-runtime
  default_runtime:
    description:
      - Whether containers run with it unless they ask for another.
      - When V(false) and an earlier run of this module had made it the default, the previous default comes back.
    type: bool
    default: false
  cdi:
    description:
      - Whether the runtime injects devices by the Container Device Interface.
      - Left as it is when omitted. Cannot be set for CRI-O, where it is always on.
    type: bool
  containerd_command:
    description: Command of containerd, for a containerd that is not on C(PATH) under that name.
    type: list
    elements: str
    default: [containerd]
  validate:
    description:
      - Command that has to accept the candidate before anything is written; C(%s) stands for the candidate's path.
      - By default C(containerd --config %s config dump), whose output also has to show the runtime, or
        C(dockerd --validate --config-file %s). For CRI-O there is none.
      - An empty list skips the check.
    type: list
    elements: str
  service:
    description:
      - Unit restarted by C(systemctl restart) after a change. By default the name of the runtime.
      - With an empty string nothing is restarted and nothing waited for.
    type: str
  ready:
    description:
      - Command that succeeds once the restarted service answers. Repeated until O(timeout).
      - By default C(ctr version), C(docker version) or C(crictl info). An empty list waits for nothing.
    type: list
    elements: str
  timeout:
    description: Seconds for the restart, and again for the service to become ready.
    type: int
    default: 60
  backup_dir:
    description: Directory for previous bytes and the state of the transaction. Keep it between runs.
    type: path
    default: /var/lib/accel-kubernetes/backups
extends_documentation_fragment:
  - accel.kubernetes.attributes
attributes:
  check_mode:
    support: full
    details: Commands that only read are run, so that the base of a missing containerd file is known.
  diff_mode:
    support: full
  idempotent:
    support: full
  platform:
    support: full
    platforms: posix
author:
  - Accel Kubernetes contributors (@accel-kubernetes)
"""

EXAMPLES = r"""
- name: Let pods ask containerd for the NVIDIA runtime
  accel.kubernetes.nvidia_runtime:
    runtime: containerd

- name: Make it the default of Docker, with CDI
  accel.kubernetes.nvidia_runtime:
    runtime: docker
    default_runtime: true
    cdi: true

- name: Configure the containerd of another distribution
  accel.kubernetes.nvidia_runtime:
    runtime: containerd
    config_path: /etc/k0s/containerd.toml
    containerd_command: [/var/lib/k0s/bin/containerd]
    service: k0sworker
    ready: [k0s, ctr, version]

- name: Take it out again
  accel.kubernetes.nvidia_runtime:
    runtime: containerd
    state: absent
"""

RETURN = r"""
backup:
  description: Directory with the previous bytes; empty when nothing was changed.
  returned: success
  type: str
  sample: /var/lib/accel-kubernetes/backups/nvidia_runtime-0a1b2c3d4e5f
config_path:
  description: The file that is managed.
  returned: success
  type: str
  sample: /etc/containerd/config.toml
recovered:
  description:
    - What was done about an earlier run that had been cut off. V(restored) its change was undone, V(confirmed) it had
      been complete, V(restored_by_timer) the host had undone it itself. Empty when there was none.
  returned: always
  type: str
  sample: ""
"""

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.accel.kubernetes.plugins.module_utils import runtime_config
from ansible_collections.accel.kubernetes.plugins.module_utils.host import CommandError
from ansible_collections.accel.kubernetes.plugins.module_utils.module import (
    BACKUP_DIR,
    Proposal,
    Refused,
    carry_out,
    text_of,
    transaction_for,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.transaction import (
    FileChange,
    Record,
    Service,
    Transaction,
    command_watch,
)

CONFIG_PATHS = {
    "containerd": "/etc/containerd/config.toml",
    "docker": "/etc/docker/daemon.json",
    "crio": "/etc/crio/crio.conf.d/99-nvidia.toml",
}
READY = {
    "containerd": ["ctr", "version"],
    "docker": ["docker", "version"],
    "crio": ["crictl", "info"],
}


class NvidiaRuntime:
    """One run of the module."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        params = module.params
        self.runtime: str = params["runtime"]
        self.path: str = params["config_path"] or CONFIG_PATHS[self.runtime]
        self.wanted = runtime_config.Wanted(
            params["runtime_name"], params["runtime_binary"], params["default_runtime"], params["cdi"]
        )
        self.transaction: Transaction = transaction_for(module, "nvidia_runtime", self.path, self._service())

    def _service(self) -> Service:
        params = self.module.params
        unit = self.runtime if params["service"] is None else params["service"]
        if not unit:
            return Service()
        ready = READY[self.runtime] if params["ready"] is None else params["ready"]
        watch = command_watch(ready) if ready else None
        return Service(["systemctl", "restart", unit], watch, params["timeout"])

    def propose(self) -> Proposal:
        """What this host's file has to become."""
        record = self.transaction.record()
        current = self.transaction.read(self.path)
        try:
            change = self._present(record, current) if self._is_present() else self._absent(record, current)
        except runtime_config.ConfigError as error:
            raise Refused(str(error)) from error
        return Proposal(
            [change] if change else [],
            record,
            lambda: self._validate(change.after if change else None),
            {"config_path": self.path},
        )

    def _is_present(self) -> bool:
        return bool(self.module.params["state"] == "present")

    def _present(self, record: Record, current: bytes | None) -> FileChange | None:
        text = self._base() if current is None else text_of(current, self.path)
        data = runtime_config.parse(self.runtime, text, self.path)
        owned = runtime_config.Owned(**record.owned)
        if not runtime_config.has_runtime(self.runtime, data, owned.name or self.wanted.name, self.path):
            # Nothing of ours is in it, or no longer: from here on this is what absent brings back.
            owned = runtime_config.Owned()
            record.originals[self.path] = current
        plan = runtime_config.plan_present(
            self.runtime, text, self.wanted, owned, self._original(record, text), self.path
        )
        record.owned = vars(plan.owned)
        return FileChange(self.path, current, plan.text.encode()) if plan.edits else None

    def _absent(self, record: Record, current: bytes | None) -> FileChange | None:
        if current is None:
            return None
        name = self.wanted.name
        owned = runtime_config.Owned(**record.owned)
        if owned.name == name and self.path in record.originals and record.untouched(self.path, current):
            after = record.originals[self.path]
        else:
            text = text_of(current, self.path)
            plan = runtime_config.plan_absent(self.runtime, text, name, owned, self._original(record, None), self.path)
            if not plan.edits:
                return None
            # A CRI-O drop-in that holds nothing more goes.
            after = plan.text.encode() if self.runtime != "crio" or plan.text.strip() else None
        record.originals.clear()
        record.owned = {}
        return FileChange(self.path, current, after)

    def _original(self, record: Record, base: str | None) -> str | None:
        """Text before our first change; ``base`` when there was no file then, None when that is not known."""
        if self.path not in record.originals:
            return None
        original = record.originals[self.path]
        return base if original is None else text_of(original, self.path)

    def _base(self) -> str:
        """Content to begin a missing file with."""
        if self.runtime == "docker":
            return "{}\n"
        if self.runtime == "crio":
            return ""
        command = [*self.module.params["containerd_command"], "config", "default"]
        try:
            return str(self.transaction.host.run(command, timeout=30))
        except CommandError as error:
            if not self.module.check_mode:
                raise Refused(f"{self.path} does not exist and its default cannot be made: {error}") from error
            self.module.warn(
                f"{self.path} does not exist and containerd, which prints its default, is not there yet: "
                "the run will write that default and what is shown here."
            )
            return "version = 2\n"

    def _validate(self, candidate: bytes | None) -> None:
        command = self.module.params["validate"]
        if candidate is None or command == []:
            return
        if command is None:
            command = self._default_validation()
            if not command:
                return
            if self.transaction.host.find(command[0]) is None:
                self.transaction.warnings.append(f"{command[0]} is not on PATH: the candidate was not validated.")
                return
        path = self.transaction.host.temporary(candidate, self.path.rsplit("/", 1)[-1])
        try:
            out = self.transaction.host.run([word.replace("%s", path) for word in command], timeout=30)
        except CommandError as error:
            raise Refused(f"the new {self.path} was refused, so nothing was changed: {error}") from error
        if self.runtime == "containerd" and self.module.params["validate"] is None and self._is_present():
            self._check_effect(out)

    def _default_validation(self) -> list[str]:
        if self.runtime == "containerd":
            return [*self.module.params["containerd_command"], "--config", "%s", "config", "dump"]
        return ["dockerd", "--validate", "--config-file", "%s"] if self.runtime == "docker" else []

    def _check_effect(self, dump: str) -> None:
        """What containerd makes of the candidate and the files it imports has to hold our runtime."""
        try:
            merged = runtime_config.parse("containerd", dump, "the output of 'containerd config dump'")
            wrong = runtime_config.complaint("containerd", merged, self.wanted, "the merged configuration")
        except runtime_config.ConfigError as error:
            raise Refused(str(error)) from error
        if wrong:
            raise Refused(
                f"with the new {self.path}, {wrong}, so nothing was changed: a file that its 'imports' names "
                "overrides it; remove the runtime there"
            )


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "runtime": {"type": "str", "choices": ["containerd", "docker", "crio"], "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "config_path": {"type": "path"},
            "runtime_name": {"type": "str", "default": "nvidia"},
            "runtime_binary": {"type": "path", "default": "/usr/bin/nvidia-container-runtime"},
            "default_runtime": {"type": "bool", "default": False},
            "cdi": {"type": "bool"},
            "containerd_command": {"type": "list", "elements": "str", "default": ["containerd"]},
            "validate": {"type": "list", "elements": "str"},
            "service": {"type": "str"},
            "ready": {"type": "list", "elements": "str"},
            "timeout": {"type": "int", "default": 60},
            "backup_dir": {"type": "path", "default": BACKUP_DIR},
        },
        supports_check_mode=True,
    )
    if module.params["runtime"] != "docker" and runtime_config.tomlkit is None:
        module.fail_json(
            msg=missing_required_lib("tomlkit", reason="to edit TOML and keep its comments"),
            exception=runtime_config.TOMLKIT_TRACEBACK,
        )
    run = NvidiaRuntime(module)
    carry_out(module, run.transaction, run.propose)


if __name__ == "__main__":
    main()
