#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_runtime
short_description: Add the NVIDIA runtime to a container runtime
version_added: 0.1.0
description:
  - Adds the NVIDIA container runtime to the configuration of containerd, Docker, CRI-O, k3s, rke2 or microk8s, or
    removes it.
  - Edits the file in place. Comments, order, line ends, and other entries stay as they are, and so do the file's mode,
    owner, label, and attributes. The module refuses a file that is a mount, immutable, or a hard link, in check mode
    too.
  - If something overrides the file, the module fails before it writes anything, and names what it is. This can be a
    drop-in that is read later, a flag of the daemon's command line, or a daemon that reads another file.
  - The module asks the restarted runtime whether it uses the settings of its file. If it does not, the module undoes
    the change. If the file needs no change but the runtime does not use it, the module restarts the runtime.
  - The whole change is one transaction on the host. The module validates the candidate, keeps the previous bytes in
    O(backup_dir), replaces the file atomically, restarts the service, and waits until it is ready. On any failure,
    the module restores the previous file and restarts the service again. If the run is cut off, a systemd timer
    restores the file, or the next run on hosts without systemd.
  - The first run keeps the original file. O(state=absent) restores exactly these bytes if nothing else has changed
    the file since. Otherwise it removes only the module's own settings.
  - For containerd, the module edits the main file, not a drop-in. The reason is that containerd before 2.0 replaces
    whole plugin tables by those of a drop-in, and reads none without C(imports). For CRI-O, the module edits a
    drop-in.
  - k3s and rke2 write containerd's configuration at each start. If it imports drop-ins, the module adds one. If not,
    k3s and rke2 find the runtime's program themselves, and the module only restarts them. If they cannot find it, the
    module adds a marked block to their template C(config.toml.tmpl). For microk8s, the module edits the template of
    the configuration.
requirements:
  - tomlkit on the target for containerd and CRI-O (package C(python3-tomlkit))
  - PyYAML or ruamel.yaml on the target for k3s and rke2, if their settings name a runtime or a data directory
  - tomli (package C(python3-tomli)) for big files with Python before 3.11. Without it, tomlkit takes minutes
options:
  runtime:
    description: The container runtime to configure.
    type: str
    choices: [containerd, docker, crio, k3s, rke2, microk8s]
    required: true
  state:
    description:
      - Whether the runtime is configured.
      - V(absent) restores what was there before the first change by this module, also a runtime of the same name and
        the default runtime. If this module has changed nothing, V(absent) does nothing.
    type: str
    choices: [present, absent]
    default: present
  config_path:
    description:
      - The file to edit.
      - By default V(/etc/containerd/config.toml), V(/etc/docker/daemon.json),
        V(/etc/crio/crio.conf.d/99-nvidia.toml) or V(/var/snap/microk8s/current/args/containerd-template.toml).
      - For k3s and rke2, this is the file that they write. The module only reads it. The default is
        V(/var/lib/rancher/k3s/agent/etc/containerd/config.toml), with C(rke2) in it for rke2, or the same file in
        their data directory.
      - If containerd has no file, the module starts from the output of C(containerd config default).
    type: path
  settings_path:
    description:
      - For k3s and rke2, the module's own file, which names the default runtime if no drop-in can.
      - By default V(/etc/rancher/k3s/config.yaml.d/99-accel-kubernetes.yaml), with C(rke2) in it for rke2.
    type: path
  runtime_name:
    description: Name of the runtime, which is the handler of a RuntimeClass.
    type: str
    default: nvidia
  runtime_binary:
    description: Path of the runtime's program.
    type: path
    default: /usr/bin/nvidia-container-runtime
  default_runtime:
    description:
      - Whether containers run with this runtime unless they ask for another.
      - If V(false) and an earlier run of this module had made it the default, the module restores the previous
        default.
    type: bool
    default: false
  cdi:
    description:
      - Whether the runtime injects devices by the Container Device Interface.
      - If omitted, the setting stays as it is. Not for CRI-O, where CDI is always on.
    type: bool
  ignore_visible_devices:
    description:
      - Whether the toolkit ignores C(NVIDIA_VISIBLE_DEVICES) of a container without privileges, which many images set
        to V(all). Containers then get GPUs only by CDI and by the mounts of a device plugin.
      - If V(false) and an earlier run of this module had set it, the module restores the previous settings.
      - The setting applies to containers that start later. The module restarts nothing for it.
    type: bool
    default: false
  toolkit_config_path:
    description:
      - The toolkit's own configuration, which O(ignore_visible_devices) edits.
      - For CRI-O, the module also adds CRI-O's own runtime to the list of low-level runtimes if it is not on C(PATH).
    type: path
    default: /etc/nvidia-container-runtime/config.toml
  minimum_toolkit:
    description:
      - Oldest version of NVIDIA Container Toolkit that the module accepts. Empty accepts any version.
      - The module also accepts a toolkit that does not report its version.
    type: str
    default: ""
  containerd_command:
    description:
      - Command of containerd, if it is not C(containerd) on C(PATH).
      - The default is C(containerd), and for microk8s C(/snap/microk8s/current/bin/containerd). Not for k3s and rke2.
    type: list
    elements: str
  validate:
    description:
      - Command that must accept the candidate before the module writes it. C(%s) stands for the path of the candidate.
      - The default is C(dockerd --validate --config-file %s), or C(crio --config %s --config-dir "" config). For
        containerd, it is C(containerd --config %s config dump), whose output must also show the runtime. For k3s and
        rke2, there is no default.
      - An empty list skips the check.
    type: list
    elements: str
  service:
    description:
      - Unit that C(systemctl restart) restarts after a change.
      - The default is the name of the runtime, and for microk8s V(snap.microk8s.daemon-containerd). For k3s and rke2,
        it is the one of C(k3s), C(k3s-agent), C(rke2-server), and C(rke2-agent) that the host has.
      - With an empty string, the module restarts nothing, and waits for nothing.
    type: str
  ready:
    description:
      - Command that succeeds once the restarted service answers. The module repeats it until O(timeout).
      - The default is C(docker version) for Docker, and C(crictl info) with CRI-O's socket, or C(crio status info)
        without crictl. For containerd, also that of a distribution, C(ctr plugins ls) must show that the CRI plugin
        runs, because containerd answers without this plugin.
      - An empty list waits for nothing.
    type: list
    elements: str
  cri_socket:
    description:
      - Socket of containerd's CRI. The module asks the restarted containerd there for the runtime, its program, the
        default runtime, CDI, and the cgroup driver. It asks Docker and CRI-O by their commands.
      - The default is the socket that containerd's command line or file names, and otherwise
        V(/run/containerd/containerd.sock). For k3s and rke2, it is V(/run/k3s/containerd/containerd.sock), and for
        microk8s V(/var/snap/microk8s/common/run/containerd.sock). With O(ready), there is no default.
      - With an empty string, the module does not ask containerd.
    type: str
  timeout:
    description:
      - Seconds for the restart, and again for the service to become ready.
      - The default is 60. For k3s and rke2, it is 300, because all of Kubernetes restarts with them.
    type: int
  stop_containers:
    description:
      - Whether to restart Docker if that stops containers. It does if C(live-restore) is off and containers run.
      - If V(false), the module refuses such a change, in check mode too.
    type: bool
    default: false
  backup_dir:
    description:
      - Directory for previous bytes and the state of the transaction. Keep it between runs.
      - The module refuses a directory that another user made or can write. See M(accel.kubernetes.trusted_path).
    type: path
    default: /var/lib/accel-kubernetes/backups
extends_documentation_fragment:
  - accel.kubernetes.attributes
  - accel.kubernetes.attributes.changing_module
attributes:
  check_mode:
    details:
      - Runs commands that only read, and validates the candidate. So check mode refuses what the run would refuse. It
        does not check whether CRI-O finds the runtime's program, since an earlier task can install it.
      - Without tomlkit, shows no diff. It still checks the file if Python is 3.11 or newer, or has tomli.
author:
  - Accel Kubernetes contributors (@accel-kubernetes)
"""

EXAMPLES = r"""
- name: Register the NVIDIA runtime with containerd
  accel.kubernetes.nvidia_runtime:
    runtime: containerd

- name: Make the NVIDIA runtime Docker's default, with CDI
  accel.kubernetes.nvidia_runtime:
    runtime: docker
    default_runtime: true
    cdi: true

- name: Configure the containerd of another distribution, by a drop-in that holds its version
  accel.kubernetes.nvidia_runtime:
    runtime: containerd
    config_path: /etc/k0s/containerd.d/nvidia.toml # begun as "version = 3", before k0s 1.36 as "version = 2"
    containerd_command: [/var/lib/k0s/bin/containerd]
    service: k0sworker
    ready: [k0s, ctr, version]
    cri_socket: /run/k0s/containerd.sock

- name: Register the NVIDIA runtime with k3s for shared GPUs
  accel.kubernetes.nvidia_runtime:
    runtime: k3s
    ignore_visible_devices: true

- name: Remove the NVIDIA runtime
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
  description: The file O(config_path) stands for.
  returned: success
  type: str
  sample: /etc/containerd/config.toml
code:
  description:
    - Why the module failed, for programs; C(msg) says it to people. V(missing_library) tomlkit is not on the target,
      V(refused) something was refused before any change, V(failed) a change, or what it takes to plan one, did not
      succeed.
  returned: failure
  type: str
  sample: refused
options:
  description: The options that the module ran with.
  returned: in check mode
  type: dict
  sample:
    runtime: containerd
    state: present
default_runtime:
  description:
    - The default runtime that the running container runtime reports. Empty if it reports none.
  returned: in check mode
  type: str
  sample: runc
toolkit_version:
  description: Version of NVIDIA's container toolkit, as its programs tell it; empty where they do not.
  returned: success
  type: str
  sample: 1.17.8
toolkit_mode:
  description: How the toolkit brings devices into containers, by O(toolkit_config_path); empty where that does not say.
  returned: success
  type: str
  sample: auto
pending:
  description: Whether check mode found something to change. It stays if a task overrides whether it is changed.
  returned: success
  type: bool
  sample: false
recovered:
  description:
    - What was done about an earlier run that had been cut off. V(restored) its change was undone, V(confirmed) it had
      been complete, V(restored_by_timer) the host had undone it itself. Empty when there was none.
  returned: always
  type: str
  sample: ""
"""

import contextlib
import re
from dataclasses import replace
from typing import Any, Dict, Sequence

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.accel.kubernetes.plugins.module_utils.documents import nested, toml_text
from ansible_collections.accel.kubernetes.plugins.module_utils.host.machine import CommandError
from ansible_collections.accel.kubernetes.plugins.module_utils.host.outcome import (
    BACKUP_DIR,
    Proposal,
    Refused,
    carry_out,
    spelled,
    text_of,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.host.record import FileChange, Record
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.adapter import Adapter
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.config import value_at
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.containerd import Containerd, MicroK8s
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.cri_status import StatusError
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.crio import Crio
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.dialect import ConfigError, dialect_of
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.docker import Docker
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.rancher import K3s, Rke2
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.toolkit import Ours, Toolkit
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.minimums import TOOLKIT, version_in

ANSWERS_WITHIN = 10
"""Seconds."""
TOLD_VERSION = re.compile(r"(?:NVIDIA Container Runtime version|cli-version:) v?(\d+(?:\.\d+)+\S*)")
ADAPTERS: dict[str, type[Adapter]] = {
    "containerd": Containerd,
    "docker": Docker,
    "crio": Crio,
    "k3s": K3s,
    "rke2": Rke2,
    "microk8s": MicroK8s,
}


def propose(runtime: Adapter, toolkit_path: str) -> Proposal:
    """Return what the files of this host have to become."""
    record = runtime.transaction.record()
    for path in (runtime.path, toolkit_path):
        record.name(path)
    result: Dict[str, Any] = {"config_path": runtime.path, **told_by_toolkit(runtime, toolkit_path)}
    if runtime.module.check_mode:
        result.update(default_runtime=default_runtime(runtime), options=dict(runtime.params))
    minimum = replace(TOOLKIT, version=version_in(runtime.params["minimum_toolkit"]))
    if runtime.present and minimum.refuses(result["toolkit_version"]):
        raise Refused(f"{minimum.complaint(result['toolkit_version'])} {minimum.remedy}")
    try:
        changes, toolkit, restart = planned(runtime, record, toolkit_path)
    except ConfigError as error:
        raise Refused(str(error)) from error
    except toml_text.MissingLibraryError:
        module = runtime.module
        if not module.check_mode:
            module.fail_json(
                msg=missing_required_lib("tomlkit", reason="to edit TOML and keep its comments"),
                code="missing_library",
                exception=toml_text.TOMLKIT_TRACEBACK,
            )
        module.warn("tomlkit is not installed yet, so what would change cannot be shown.")
        runtime.transaction.check_writable([FileChange(runtime.path, None, b"")])
        return Proposal(validate=lambda: runtime.unit.require_startable(runtime.name), result=result, restart=True)
    restart = restart or (not changes and runtime.is_behind())
    why_not = runtime.why_not_now() if changes or restart else ""
    if why_not:
        raise Refused(why_not)
    return Proposal([*changes, *toolkit], record, lambda: validate(runtime, changes, restart), result, restart)


def told_by_toolkit(runtime: Adapter, toolkit_path: str) -> dict[str, str]:
    """Return the version that the toolkit's programs tell, and the mode that its configuration names."""
    version, mode = "", None
    for command in ((runtime.params["runtime_binary"], "--version"), ("nvidia-container-cli", "--version")):
        try:
            said = runtime.host.run(command, ANSWERS_WITHIN)
        except CommandError as error:
            # The runtime also asks runc, which may not be on its PATH, and says its own version before.
            said = str(error)
        match = TOLD_VERSION.search(said)
        version = version or (match[1] if match else "")
        if version:
            break
    current = runtime.transaction.read(toolkit_path)
    with contextlib.suppress(ConfigError, Refused):
        text = "" if current is None else text_of(current, toolkit_path)
        mode = value_at(text, ("nvidia-container-runtime", "mode"), toolkit_path)
    return {"toolkit_version": version, "toolkit_mode": mode if isinstance(mode, str) else ""}


def default_runtime(runtime: Adapter) -> str:
    """Return the runtime that runs containers which name none, as it says itself; empty where it does not say."""
    if not (runtime.present and runtime.unit.name and runtime.can_be_asked()):
        return ""
    try:
        said = runtime.said()
        found = nested.get(said, dialect_of(runtime.KIND, said, runtime.path).default) if said else None
    except (CommandError, StatusError, ConfigError, ValueError):
        return ""
    return found if isinstance(found, str) else ""


def planned(
    runtime: Adapter, record: Record, toolkit_path: str
) -> tuple[Sequence[FileChange], Sequence[FileChange], bool]:
    """Return the changes of the runtime's files and of the toolkit's, and whether a restart is needed in any case."""
    ours = Ours.taken_from(record)
    low_levels = runtime.low_levels()
    changes, restart = runtime.changes(record, low_levels[0].shared if low_levels else {})
    toolkit = Toolkit(
        toolkit_path,
        runtime.transaction.read(toolkit_path),
        runtime.present,
        runtime.params["ignore_visible_devices"],
        [low.program for low in low_levels],
        lambda name: runtime.host.find(name) is not None,
    ).change(record, ours)
    return changes, [toolkit] if toolkit else [], restart


def validate(runtime: Adapter, changes: Sequence[FileChange], restart: bool) -> None:
    """Raise Refused where the changes would have no effect, or that cannot be found out, or a candidate is no good."""
    if changes or restart:
        runtime.unit.require_startable(runtime.name)
        if runtime.present:
            runtime.require_heeded(changes)
        runtime.require_askable()
    command = runtime.params["validate"]
    if command is None:
        command = runtime.validation()
        if command and runtime.host.find(command[0]) is None:
            runtime.transaction.warnings.append(f"{command[0]} is not on PATH: the candidate was not validated.")
            return
    for change in changes:
        if command and change.after is not None:
            runtime.validate(command, change.path, change.after)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "runtime": {"type": "str", "choices": list(ADAPTERS), "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "config_path": {"type": "path"},
            "settings_path": {"type": "path"},
            "runtime_name": {"type": "str", "default": "nvidia"},
            "runtime_binary": {"type": "path", "default": "/usr/bin/nvidia-container-runtime"},
            "default_runtime": {"type": "bool", "default": False},
            "cdi": {"type": "bool"},
            "ignore_visible_devices": {"type": "bool", "default": False},
            "toolkit_config_path": {"type": "path", "default": "/etc/nvidia-container-runtime/config.toml"},
            "minimum_toolkit": {"type": "str", "default": ""},
            "containerd_command": {"type": "list", "elements": "str"},
            "validate": {"type": "list", "elements": "str"},
            "service": {"type": "str"},
            "ready": {"type": "list", "elements": "str"},
            "timeout": {"type": "int"},
            "cri_socket": {"type": "str"},
            "stop_containers": {"type": "bool", "default": False},
            "backup_dir": {"type": "path", "default": BACKUP_DIR},
        },
        supports_check_mode=True,
    )
    try:
        runtime = ADAPTERS[module.params["runtime"]](module)
    except Refused as error:
        module.fail_json(msg=str(error), code=error.code, recovered="")
    toolkit_path = spelled(module.params["toolkit_config_path"])
    carry_out(module, runtime.transaction, lambda: propose(runtime, toolkit_path))


if __name__ == "__main__":
    main()
