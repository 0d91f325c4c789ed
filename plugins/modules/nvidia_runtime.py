#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_runtime
short_description: Make a container runtime know the NVIDIA runtime
version_added: 0.1.0
description:
  - Adds the NVIDIA container runtime to the configuration of containerd, Docker, CRI-O, k3s, rke2 or microk8s, or
    removes it.
  - Edits the file in place. Comments, order, line ends and entries of others stay as they are, and so do the mode,
    owner, label and attributes. A file that is a mount, immutable or a hard link is refused in check mode too.
  - What the runtime would not heed is refused before anything is written, with what overrides it. That is a drop-in
    that is read later, a flag of the daemon's command line, and a daemon that reads another file.
  - The restarted runtime is asked whether it has what its file says. If it does not, the change is undone. One whose
    file is as wanted, and which says that it runs without it, is restarted.
  - The whole change is one transaction on the host. The candidate is validated, the previous bytes are kept in
    O(backup_dir), the file is replaced atomically, the service is restarted and has to become ready. On any failure the
    previous file comes back and the service is restarted again. A systemd timer does the same if the run is cut off;
    where there is no systemd, the next run does.
  - The first run remembers the file as it was. O(state=absent) brings back exactly those bytes if nobody else has
    changed the file since, and otherwise takes out just what is ours.
  - For containerd the main file is edited rather than a drop-in, because containerd before 2.0 replaces whole plugin
    tables by those of a drop-in and a file without C(imports) reads none. For CRI-O a drop-in is the file edited.
  - k3s and rke2 write containerd's configuration at each start. Where it imports drop-ins, ours is put there. Where it
    does not, they find the program of the runtime themselves and are just restarted; if they cannot find it, a marked
    block is added to their template C(config.toml.tmpl). For microk8s its template of the configuration is edited.
requirements:
  - tomlkit on the target for containerd and CRI-O (package C(python3-tomlkit))
  - PyYAML or ruamel.yaml on the target for k3s and rke2 whose settings speak of their runtime or data directory
  - tomli (package C(python3-tomli)) where Python is before 3.11 and files are big, which tomlkit takes minutes to read
options:
  runtime:
    description: The container runtime to configure.
    type: str
    choices: [containerd, docker, crio, k3s, rke2, microk8s]
    required: true
  state:
    description:
      - Whether the runtime is configured.
      - V(absent) brings back what was there before the first change by this module, a runtime of that name and its
        being the default included. Where this module has changed nothing, it does nothing.
    type: str
    choices: [present, absent]
    default: present
  config_path:
    description:
      - The file to edit.
      - By default V(/etc/containerd/config.toml), V(/etc/docker/daemon.json),
        V(/etc/crio/crio.conf.d/99-nvidia.toml) or V(/var/snap/microk8s/current/args/containerd-template.toml).
      - For k3s and rke2 the file that they write, which is only read. By default
        V(/var/lib/rancher/k3s/agent/etc/containerd/config.toml), with C(rke2) in it for rke2. Where they are told to
        keep their data elsewhere, it is the one there.
      - A missing containerd file is begun with what C(containerd config default) prints.
    type: path
  settings_path:
    description:
      - For k3s and rke2, the file of ours that names the default runtime where no drop-in can.
      - By default V(/etc/rancher/k3s/config.yaml.d/99-accel-kubernetes.yaml), with C(rke2) in it for rke2.
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
  ignore_visible_devices:
    description:
      - Whether a container without privileges gets no GPU by naming it in C(NVIDIA_VISIBLE_DEVICES), as many images do
        with V(all). The toolkit then hands out GPUs by CDI and by the mounts of a device plugin.
      - When V(false) and an earlier run of this module had set it, the previous settings come back.
      - Containers started later heed it. Nothing is restarted.
    type: bool
    default: false
  toolkit_config_path:
    description:
      - The toolkit's own configuration, which O(ignore_visible_devices) edits.
      - For CRI-O also its list of low-level runtimes, to which the one of CRI-O is added where it is not on C(PATH).
    type: path
    default: /etc/nvidia-container-runtime/config.toml
  containerd_command:
    description:
      - Command of containerd, for a containerd that is not on C(PATH) under that name.
      - By default C(containerd), for microk8s C(/snap/microk8s/current/bin/containerd). Not used for k3s and rke2.
    type: list
    elements: str
  validate:
    description:
      - Command that has to accept the candidate before anything is written; C(%s) stands for the candidate's path.
      - By default C(containerd --config %s config dump), whose output also has to show the runtime, or
        C(dockerd --validate --config-file %s), or C(crio --config %s --config-dir "" config). For k3s and rke2 there is
        none.
      - An empty list skips the check.
    type: list
    elements: str
  service:
    description:
      - Unit restarted by C(systemctl restart) after a change.
      - By default the name of the runtime, V(snap.microk8s.daemon-containerd), or whichever of C(k3s), C(k3s-agent),
        C(rke2-server) and C(rke2-agent) the host has.
      - With an empty string nothing is restarted and nothing waited for.
    type: str
  ready:
    description:
      - Command that succeeds once the restarted service answers. Repeated until O(timeout).
      - By default C(docker version), or C(crictl info) by CRI-O's socket, without crictl C(crio status info). For
        containerd, also that of a distribution, C(ctr plugins ls) has to show that the CRI plugin runs, because
        containerd answers without it.
      - An empty list waits for nothing.
    type: list
    elements: str
  cri_socket:
    description:
      - Socket of containerd's CRI, by which the restarted containerd has to say that it has the runtime, its program,
        its being the default, CDI and the cgroup driver. Docker and CRI-O are asked by their commands.
      - By default the one that containerd's command line or file names, else V(/run/containerd/containerd.sock); for
        the distributions V(/run/k3s/containerd/containerd.sock) or V(/var/snap/microk8s/common/run/containerd.sock).
        None where O(ready) is given.
      - With an empty string containerd is not asked.
    type: str
  timeout:
    description:
      - Seconds for the restart, and again for the service to become ready.
      - By default 60, for k3s and rke2 300, because all of Kubernetes restarts with them.
    type: int
  stop_containers:
    description:
      - Whether Docker is restarted though that stops containers, as it does when C(live-restore) is off and some run.
      - When V(false) such a change is refused, in check mode too.
    type: bool
    default: false
  backup_dir:
    description:
      - Directory for previous bytes and the state of the transaction. Keep it between runs.
      - A directory that another user made or can write is refused. See M(accel.kubernetes.trusted_path).
    type: path
    default: /var/lib/accel-kubernetes/backups
extends_documentation_fragment:
  - accel.kubernetes.attributes
attributes:
  check_mode:
    support: full
    details:
      - Commands that only read are run, the validation of the candidate too, so that check mode refuses what the run
        would. Whether CRI-O finds the runtime's program is not asked, since an earlier task may install it.
      - Without tomlkit the file is checked where Python is 3.11 or newer or has tomli, and no diff is shown.
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

- name: Configure the containerd of another distribution, by a drop-in that holds its version
  accel.kubernetes.nvidia_runtime:
    runtime: containerd
    config_path: /etc/k0s/containerd.d/nvidia.toml # begun as "version = 3", before k0s 1.36 as "version = 2"
    containerd_command: [/var/lib/k0s/bin/containerd]
    service: k0sworker
    ready: [k0s, ctr, version]
    cri_socket: /run/k0s/containerd.sock

- name: Have k3s offer it, on a node whose GPUs are shared
  accel.kubernetes.nvidia_runtime:
    runtime: k3s
    ignore_visible_devices: true

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
recovered:
  description:
    - What was done about an earlier run that had been cut off. V(restored) its change was undone, V(confirmed) it had
      been complete, V(restored_by_timer) the host had undone it itself. Empty when there was none.
  returned: always
  type: str
  sample: ""
"""

import contextlib
import os
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Callable, Dict, Sequence

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.accel.kubernetes.plugins.module_utils.documents import toml_text, yaml_text
from ansible_collections.accel.kubernetes.plugins.module_utils.host import (
    command_line,
    openrc_service,
    rancher_settings,
    systemd_units,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.host.machine import CommandError, Host
from ansible_collections.accel.kubernetes.plugins.module_utils.host.outcome import (
    BACKUP_DIR,
    Proposal,
    Refused,
    bytes_like,
    carry_out,
    spelled,
    text_of,
    transaction_for,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.host.transaction import (
    FileChange,
    Record,
    Service,
    Transaction,
    Watch,
    command_watch,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime import (
    config as runtime_config,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime import (
    cri_status,
    rancher_config,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime import (
    effect as runtime_effect,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime import (
    running as runtime_running,
)

CONFIG_PATHS = {
    "containerd": "/etc/containerd/config.toml",
    "docker": "/etc/docker/daemon.json",
    "crio": "/etc/crio/crio.conf.d/99-nvidia.toml",
    "k3s": "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "rke2": "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "microk8s": "/var/snap/microk8s/current/args/containerd-template.toml",
}
READY = {
    "docker": ["docker", "version"],
    # By its endpoint: crictl's default is the first socket that answers, as a containerd beside it does.
    "crio": ["crictl", "--runtime-endpoint", "unix:///run/crio/crio.sock", "info"],
}
READY_WITHOUT_CRICTL = {
    # What kubeadm 1.32 and newer no longer bring, CRI-O has a command for since 1.28.
    "crio": ["crio", "status", "info"],
}
CTR = {
    "containerd": ["ctr"],
    "k3s": ["k3s", "ctr"],
    "rke2": ["/var/lib/rancher/rke2/bin/ctr", "--address", "/run/k3s/containerd/containerd.sock"],
    "microk8s": ["microk8s", "ctr"],
}
UNITS = {
    "containerd": ("containerd",),
    "docker": ("docker",),
    "crio": ("crio",),
    "k3s": ("k3s", "k3s-agent"),
    "rke2": ("rke2-server", "rke2-agent"),
    "microk8s": ("snap.microk8s.daemon-containerd",),
}
DAEMONS = {"docker": "dockerd", "crio": "crio", "k3s": "k3s", "rke2": "/var/lib/rancher/rke2/bin/containerd"}
CONTAINERD = {"microk8s": ["/snap/microk8s/current/bin/containerd"]}
UNSTARTABLE = ("masked", "bad-setting", "error")
"""Load states of a unit that systemd knows and does not start (systemctl(1))."""
TOOLKIT = "toolkit"
"""Key of the record: whether settings of the toolkit are ours."""
LOW_LEVEL = "low_level"
"""Key of the record: the program we added to the toolkit's RUNTIMES."""
RUNTIMES = ("nvidia-container-runtime", "runtimes")
RUNTIMES_BY_DEFAULT = ["runc", "crun"]
TOOLKIT_VALUES = {
    ("accept-nvidia-visible-devices-envvar-when-unprivileged",): False,
    ("accept-nvidia-visible-devices-as-volume-mounts",): True,
}


class NvidiaRuntime:
    """One run of the module, for a runtime whose configuration is a file to edit."""

    TIMEOUT = 60

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        params = module.params
        self.name: str = params["runtime"]
        self.runtime = "containerd" if self.name == "microk8s" else self.name
        self.host = Host(module)
        self.unit: Dict[str, str] | None = None
        self.start: command_line.Start | None = None
        self.unit_name: str = self._unit() if params["service"] is None else params["service"]
        self.path: str = self._config_path()
        self.toolkit_path: str = spelled(params["toolkit_config_path"])
        if not params["runtime_name"].strip():
            raise Refused("runtime_name is empty; name the handler of the RuntimeClass, such as nvidia")
        self.low_levels: list[runtime_config.LowLevel] = []
        self.address: str | None = None
        self.wanted = runtime_config.Wanted(
            params["runtime_name"], params["runtime_binary"], params["default_runtime"], params["cdi"]
        )
        self.transaction: Transaction = transaction_for(module, "nvidia_runtime", self.path, self._service())

    def _config_path(self) -> str:
        return spelled(self.module.params["config_path"] or CONFIG_PATHS[self.name])

    def _service(self) -> Service:
        params, unit = self.module.params, self.unit_name
        if not unit:
            return Service()
        ready = self._ready() if params["ready"] is None else params["ready"]
        watch: Watch | None = None
        if ready is None:
            watch = self._cri_watch
        elif ready:
            watch = command_watch(ready)
        reset = ["systemctl", "reset-failed", unit]
        return Service(self.host.restart_of(unit), self._heeded(watch), params["timeout"] or self.TIMEOUT, reset)

    def _cri_watch(self, host: Host, undoing: bool) -> Callable[[], str]:
        """Return a watch that asks containerd where it listens."""
        probe: Callable[[], str] = runtime_running.cri_watch(self._ctr())(host, undoing)
        return probe

    def _ctr(self) -> list[str]:
        """Return the command that asks containerd's own service; empty for what is no containerd."""
        listening = self._listening()
        elsewhere = listening not in ("", runtime_running.CRI_SOCKETS.get(self.name))
        return [*CTR.get(self.name, []), *(["--address", listening] if elsewhere else [])]

    def _listening(self) -> str:
        """Return the socket of a separate containerd, from command line or file; empty where neither says."""
        if self.name != "containerd":
            return ""
        if self.address is None:
            start = self._started_with()
            path = runtime_effect.file_read(self.runtime, start).value or self.path
            data = self.transaction.read(path)
            try:
                self.address = runtime_effect.address(start, self._said(path, text_of(data or b"", path)))
            except runtime_config.ConfigError:
                self.address = ""
        return self.address

    def _said(self, path: str, text: str) -> Dict[str, Any]:
        """Return what a file of containerd and those that it imports say, as far as it can be found out."""
        merged = self._merged(text, path)
        return runtime_config.parse("containerd", text, path) if merged is None else merged

    def _heeded(self, well: Watch | None) -> Watch | None:
        """Return a watch that also has the restarted runtime say that it has what is wanted."""
        if not self._is_present():
            return well

        def watch(host: Host, undoing: bool) -> Callable[[], str]:
            ready = well(host, undoing) if well else lambda: ""
            return ready if undoing else lambda: ready() or self._unheeded()

        return watch

    def _unheeded(self) -> str:
        """Return why it is not certain that the wanted state is in effect; empty when it is, or cannot be asked for."""
        try:
            wrong = self._lacks()
        except runtime_running.SilentError as error:
            return str(error)
        return f"{self.name} runs, and says that {wrong}: what else it is told overrides {self.path}" if wrong else ""

    def _lacks(self) -> str:
        """Return what the running runtime lacks of what is wanted, empty when it is not known how to ask it."""
        if not self._can_be_asked():
            return ""
        return str(runtime_running.lacks(self.transaction.host, self.name, self._cri_socket(), self.wanted))

    def _can_be_asked(self) -> bool:
        restarts = bool(self.transaction.service.apply)
        return self._is_present() and restarts and runtime_running.can_be_asked(self.name, self._cri_socket())

    def _cri_socket(self) -> str:
        given: str | None = self.module.params["cri_socket"]
        if given is not None:
            return given[len("unix://") :] if given.startswith("unix://") else given
        if self.module.params["ready"] is not None:
            # It tells of a runtime elsewhere, and another may answer here.
            return ""
        return self._listening() or runtime_running.CRI_SOCKETS.get(self.name, "")

    def _ready(self) -> list[str] | None:
        if self.name in READY_WITHOUT_CRICTL and Host(self.module).find("crictl") is None:
            return READY_WITHOUT_CRICTL[self.name]
        return READY.get(self.name)

    def _unit(self) -> str:
        return str(UNITS[self.name][0])

    def propose(self) -> Proposal:
        """Return what this host's files have to become."""
        record = self.transaction.record()
        for path in (self.path, self.toolkit_path):
            record.name(path)
        ours_in_toolkit = bool(record.owned.pop(TOOLKIT, False))
        low_level = str(record.owned.pop(LOW_LEVEL, ""))
        try:
            self.low_levels = self._low_levels()
            changes, restart = self._runtime_changes(record)
            toolkit = self._toolkit_change(record, ours_in_toolkit, low_level)
        except runtime_config.ConfigError as error:
            raise Refused(str(error)) from error
        except toml_text.MissingLibraryError:
            if not self.module.check_mode:
                self.module.fail_json(
                    msg=missing_required_lib("tomlkit", reason="to edit TOML and keep its comments"),
                    code="missing_library",
                    exception=toml_text.TOMLKIT_TRACEBACK,
                )
            self.module.warn("tomlkit is not installed yet, so what would change cannot be shown.")
            self.transaction.check_writable([FileChange(self.path, None, b"")])
            return Proposal(validate=self._require_unit, result={"config_path": self.path}, restart=True)
        if not changes and not restart:
            restart = self._is_behind()
        if changes or restart:
            self._require_calm()
        return Proposal(
            [*changes, *([toolkit] if toolkit else [])],
            record,
            lambda: self._validate(changes, restart),
            {"config_path": self.path},
            restart,
        )

    def _is_behind(self) -> bool:
        """Return whether the runtime runs since before its files say what is wanted.

        One that is silent is left alone.
        """
        try:
            return bool(self._lacks())
        except runtime_running.SilentError as error:
            self.transaction.warnings.append(
                f"{self.path} is as wanted. Whether that is in effect is not known: {error}."
            )
            return False

    def _runtime_changes(self, record: Record) -> tuple[list[FileChange], bool]:
        """Changes of the runtime's files, and whether it has to be restarted in any case."""
        current = self.transaction.read(self.path)
        change = self._present(record, current) if self._is_present() else self._absent(record, current)
        return [change] if change else [], False

    def _is_present(self) -> bool:
        return bool(self.module.params["state"] == "present")

    def _present(self, record: Record, current: bytes | None) -> FileChange | None:
        text = self._base() if current is None else text_of(current, self.path)
        data = runtime_config.parse(self.runtime, text, self.path)
        owned = runtime_config.Owned(**record.owned)
        known = bool(owned.name) and self.path in record.originals
        if known and not runtime_config.has_runtime(self.runtime, data, owned.name, self.path):
            # Others took it out: what they left, without the rest of ours, is from here on what absent brings back.
            original = self._original(record, None)
            left = runtime_config.plan_absent(self.runtime, text, owned.name, owned, original, self.path).text
            record.originals[self.path] = None if current is None else bytes_like(current, left)
            owned = runtime_config.Owned()
        elif not known:
            record.originals[self.path] = current
            owned = runtime_config.Owned()
        wanted = replace(self.wanted, shared=self.low_levels[0].shared if self.low_levels else {})
        merged = None if current is None else self._merged(text, self.path)
        plan = runtime_config.plan_present(
            self.runtime, text, wanted, owned, self._original(record, text), self.path, merged
        )
        record.owned = dict(vars(plan.owned))
        return FileChange(self.path, current, bytes_like(current, plan.text)) if plan.edits else None

    def _merged(self, text: str, path: str) -> Dict[str, Any] | None:
        """Return what containerd makes of the file with those it imports. None where it imports none or cannot say."""
        if self.name != "containerd" or not runtime_config.imports_of(text, path):
            return None
        copy = self.transaction.host.temporary(
            runtime_config.with_imports_from(text, path).encode(), os.path.basename(path)
        )
        try:
            said = self.transaction.host.run([*self._containerd(), "--config", copy, "config", "dump"], timeout=30)
            return runtime_config.parse("containerd", said, "the output of 'containerd config dump'")
        except (CommandError, runtime_config.ConfigError):
            return None

    def _absent(self, record: Record, current: bytes | None) -> FileChange | None:
        owned = runtime_config.Owned(**record.owned)
        name = owned.name
        if current is None or not name or self.path not in record.originals:
            return None  # nothing here is known to be ours
        if record.untouched(self.path, current):
            after = record.originals[self.path]
        else:
            text = text_of(current, self.path)
            plan = runtime_config.plan_absent(self.runtime, text, name, owned, self._original(record, None), self.path)
            if not plan.edits:
                return None
            # A CRI-O drop-in that holds nothing more goes.
            after = bytes_like(current, plan.text) if self.runtime != "crio" or plan.text.strip() else None
        record.originals.pop(self.path, None)
        record.owned = {}
        return FileChange(self.path, current, after)

    def _low_levels(self) -> list[runtime_config.LowLevel]:
        """Return what CRI-O runs containers with. Nothing is known where it does not say."""
        if self.runtime != "crio" or not self._is_present():
            return []
        try:
            said = self.transaction.host.run(["crio", "config"], timeout=30)
            return runtime_config.crio_low_levels(
                runtime_config.parse("crio", said, "the output of 'crio config'"), self.wanted
            )
        except (CommandError, runtime_config.ConfigError):
            return []

    def _toolkit_change(self, record: Record, ours: bool, low_level: str) -> FileChange | None:
        path = self.toolkit_path
        current = self.transaction.read(path)
        text = "" if current is None else text_of(current, path)
        before = record.originals.pop(path, None) if ours or low_level else current
        original = "" if before is None else text_of(before, path)
        values: Dict[runtime_config.Path, object] = {}
        if self._is_present() and self.module.params["ignore_visible_devices"]:
            values.update(TOOLKIT_VALUES)
            ours = ours or bool(runtime_config.plan_values(text, TOOLKIT_VALUES, path).edits)
        elif ours:
            values.update({place: runtime_config.value_at(original, place, path) for place in TOOLKIT_VALUES})
            ours = False
        added = self._missing_low_level(text)
        if added:
            low_level = added
            values[RUNTIMES] = [added, *self._runtimes(text)]
        elif low_level and not self._is_present():
            rest = [program for program in self._runtimes(text) if program != low_level]
            given = runtime_config.value_at(original, RUNTIMES, path) is not None
            values[RUNTIMES] = rest if given or rest != RUNTIMES_BY_DEFAULT else None
            low_level = ""
        if ours or low_level:
            record.originals[path] = before
            record.owned.update({TOOLKIT: ours, LOW_LEVEL: low_level})
        if not values:
            return None
        if not (ours or low_level) and record.untouched(path, current):
            return FileChange(path, current, before, restart=False)
        plan = runtime_config.plan_values(text, values, path)
        return FileChange(path, current, bytes_like(current, plan.text), restart=False) if plan.edits else None

    def _missing_low_level(self, text: str) -> str:
        """Return what the toolkit would not find of CRI-O's, whose packages keep their runtimes off PATH."""
        if not self.low_levels:
            return ""
        tried = self._runtimes(text)
        for low in self.low_levels:
            name = os.path.basename(low.program)
            if low.program in tried or (name in tried and self.transaction.host.find(name)):
                return ""
        return self.low_levels[0].program

    def _runtimes(self, text: str) -> list[str]:
        """Return the low-level runtimes that the toolkit tries."""
        return list(runtime_config.value_at(text, RUNTIMES, self.toolkit_path) or RUNTIMES_BY_DEFAULT)

    def _original(self, record: Record, base: str | None) -> str | None:
        """Text before our first change; ``base`` when there was no file then, None when that is not known."""
        if self.path not in record.originals:
            return None
        original = record.originals[self.path]
        return base if original is None else text_of(original, self.path)

    def _base(self) -> str:
        """Return the content to begin a missing file with."""
        if self.name == "docker":
            return "{}\n"
        if self.name == "crio":
            return ""
        if self.name == "microk8s":
            raise Refused(f"{self.path} does not exist; start microk8s once, or set config_path to its template")
        command = [*self._containerd(), "config", "default"]
        try:
            return str(self.transaction.host.run(command, timeout=30))
        except CommandError as error:
            if not self.module.check_mode:
                raise Refused(
                    f"{self.path} does not exist and its default cannot be made: {error}; "
                    "install containerd, or set containerd_command or config_path"
                ) from error
            self.module.warn(
                f"{self.path} does not exist and containerd, which prints its default, is not there yet: "
                "the run will write that default and what is shown here."
            )
            return "version = 2\n"

    def _containerd(self) -> list[str]:
        return self.module.params["containerd_command"] or CONTAINERD.get(self.name, ["containerd"])

    def _require_unit(self) -> None:
        """Raise Refused where what would be restarted does not exist, or cannot be started."""
        host, command = self.transaction.host, self.transaction.service.apply
        if not command or host.find("systemctl") is None:
            return
        shown = host.run(["systemctl", "show", "--property=LoadState", "--value", self.unit_name], timeout=10)
        if shown.strip() == "not-found":
            raise Refused(
                f"this host has no unit {self.unit_name}, so nothing was changed: is {self.name} what kubelet uses "
                "here? Set runtime to what it uses, or service to the unit that runs it"
            )
        if shown.strip() in UNSTARTABLE:
            raise Refused(
                f"the unit {self.unit_name} cannot be started, being {shown.strip()}, so nothing was changed: "
                f"see 'systemctl status {self.unit_name}' (one that is masked needs 'systemctl unmask'), then run again"
            )

    def _require_heeded(self, changes: list[FileChange]) -> None:
        """Raise Refused where the daemon's command line, or a drop-in that is read later, keeps it from our file."""
        if not self._is_present():
            return
        start = self._started_with()
        read = runtime_effect.file_read(self.runtime, start)
        there = os.path.realpath(read.value) if read.value else ""
        if there and there != os.path.realpath(self.path) and not self._imported_by(read.value):
            raise Refused(
                f"{self.name} on this host reads {read.value}, as its command line says{_in(read.path)}, and not "
                f"{self.path}, so nothing was changed: set config_path to {read.value}"
            )
        if self.runtime not in ("docker", "crio"):
            return
        data = changes[0].after if changes else self.transaction.read(self.path)
        said = runtime_config.parse(self.runtime, text_of(data or b"", self.path), self.path)
        flag = runtime_effect.flags_against(start, said) if self.runtime == "docker" else ""
        if flag:
            raise Refused(
                f"dockerd on this host is started with {flag}, and does not start when {self.path} says the same "
                f"too, so nothing was changed: move it from the unit's command line to that file, then run again"
            )
        if self.runtime == "crio":
            self._require_heeded_by_crio(start, said)

    def _require_heeded_by_crio(self, start: command_line.Start, said: Dict[str, Any]) -> None:
        path = self.path
        directory = runtime_effect.crio_drop_ins(path, start)
        against = runtime_effect.crio_flag_against(start, self.wanted, directory)
        if not runtime_effect.is_below(path, directory):
            against = runtime_effect.crio_other_file(start, path) or against
        if against:
            raise Refused(
                f"CRI-O on this host is started with {against}, which overrides {path}, so nothing was changed: take "
                "that out (see 'systemctl cat crio'), then run again"
            )
        self._require_last(path, [said], "", "set config_path to that file", directory)

    def _require_last(
        self, path: str, documents: Sequence[Dict[str, Any]], ending: str, remedy: str, directory: str
    ) -> None:
        """Raise Refused where a drop-in in ``directory`` that is read later overrides ours, the last document."""
        later = runtime_effect.read_later(self._beside(directory, ending), path, directory)
        runtime = "crio" if self.runtime == "crio" else "containerd"
        wrong = runtime_effect.winner(runtime, documents, later, self.wanted, directory)
        if wrong:
            raise Refused(f"{wrong}, so nothing was changed: take that out there, or {remedy}")

    def _beside(self, directory: str, ending: str) -> Dict[str, str]:
        """Drop-ins of a directory by their paths below it, hidden ones too. CRI-O reads directories in it as well."""
        found = {}
        for place, inside, names in os.walk(directory):
            if self.runtime != "crio":
                inside.clear()
            for name in names:
                path = os.path.join(place, name)
                if name.endswith(ending) and os.path.isfile(path):
                    found[os.path.relpath(path, directory)] = text_of(self.transaction.host.read(path) or b"", path)
        return found

    def _imported_by(self, path: str) -> bool:
        """Return whether the file that containerd reads imports ours."""
        data = self.transaction.host.read(path) if self.runtime == "containerd" else None
        if data is None:
            return False
        text = text_of(data, path)
        files = {path: text, **runtime_effect.imported(text, path, self.transaction.host.matching_in_go)}
        ours = PurePosixPath(self.path)
        return any(
            ours.match(os.path.normpath(os.path.join(os.path.dirname(name), pattern)))
            for name, content in files.items()
            for pattern in runtime_config.imports_of(content, name)
        )

    def _started_with(self) -> command_line.Start:
        """Return the daemon's command line from its unit, else from its process; empty for others' daemons."""
        if self.name not in ("containerd", "docker", "crio"):
            return command_line.Start()
        start = self._start_of_unit()
        running = self._unit_shown().get("MainPID", "")
        if start.words or not running.isdecimal() or running == "0":
            return start
        return command_line.started(command_line.of_process("/proc", running))

    def _start_of_unit(self) -> command_line.Start:
        """Return what systemd starts the service with; empty where that is none of systemd's."""
        if self.start is None:
            self.start = command_line.Start()
            if self.unit_name and self.host.find("systemctl") is not None:
                with contextlib.suppress(CommandError):
                    files = systemd_units.shown(self.host.run(["systemctl", "cat", self.unit_name], timeout=10))
                    self.start = systemd_units.effective(files, self.host.matching)
        return self.start

    def _unit_shown(self) -> Dict[str, str]:
        """Return what systemd says of the unit before a restart, by property; nothing where it is none of systemd's."""
        host, apply = self.transaction.host, self.transaction.service.apply
        if self.unit is None:
            self.unit = {}
            if apply and host.find("systemctl") is not None:
                with contextlib.suppress(CommandError):
                    shown = host.run(["systemctl", "show", "--property=MainPID", self.unit_name], timeout=10)
                    self.unit = dict(line.partition("=")[::2] for line in shown.splitlines())
        return self.unit

    def _require_askable(self) -> None:
        """Raise Refused where nobody could say after the restart that the runtime is well and has what is wanted."""
        host, params = self.transaction.host, self.module.params
        if not self.transaction.service.apply:
            return
        ready = (self._ready() or self._ctr()) if params["ready"] is None else params["ready"]
        daemon = DAEMONS.get(self.name) or self._containerd()[0]
        # In check mode both may be what an earlier task of the same run would have installed.
        if ready and host.find(ready[0]) is None and not (self.module.check_mode and host.find(daemon) is None):
            raise Refused(
                f"{ready[0]} is not on PATH, and is to say whether {self.name} is well after its restart, so nothing "
                "was changed: install it, or set ready to a command that succeeds once the runtime answers"
            )
        if self.name in runtime_running.CRI_SOCKETS and self._unit_shown().get("MainPID", "0") not in ("", "0"):
            self._require_heard()

    def _require_heard(self) -> None:
        """Raise Refused where a containerd that runs cannot be asked. Where its file has it listen, it will."""
        listening, socket = self._listening(), self._cri_socket()
        wrong = cri_status.unheard(socket) if self._is_present() and socket not in ("", listening) else ""
        if wrong:
            raise Refused(
                f"nothing answers at {socket} ({wrong}), where {self.name} is to be asked whether it has what its file "
                "says, though its unit runs, so nothing was changed: wait until it has started, or set cri_socket to "
                "the socket that it listens on, or to an empty string to have it not asked"
            )
        if self.module.params["ready"] is not None or listening:
            return
        try:
            self.transaction.host.run([*self._ctr(), "plugins", "ls"], timeout=10)
        except CommandError as error:
            raise Refused(
                f"{self.name} cannot be asked whether it is well, though its unit runs, so nothing was changed: "
                f"{error}; set ready to a command that succeeds once it answers"
            ) from error

    def _require_program(self) -> None:
        """Raise Refused where CRI-O, which does not start with a runtime that is not there, would not find ours.

        In check mode the toolkit may be what an earlier task of the same run would have installed.
        """
        if self._lacks_program() and not self.module.check_mode:
            raise Refused(
                f"{self.wanted.binary} does not exist and CRI-O would not start with it, so nothing was changed: "
                "install the container toolkit, or set runtime_binary"
            )

    def _lacks_program(self) -> bool:
        wanted = self.runtime == "crio" and self._is_present()
        return wanted and self.transaction.host.read(self.wanted.binary) is None

    def _require_calm(self) -> None:
        """Raise Refused where the restart would stop containers."""
        if self.name != "docker" or not self.transaction.service.apply or self.module.params["stop_containers"]:
            return
        command = ["docker", "info", "--format", "{{.LiveRestoreEnabled}} {{.ContainersRunning}}"]
        try:
            said = self.transaction.host.run(command, timeout=30).split()
        except CommandError:
            return  # a Docker that does not answer is not what keeps containers running
        if len(said) == 2 and said[0] == "false" and said[1] != "0":
            raise Refused(
                f"Docker has to be restarted, which would stop the {said[1]} containers that run on this host because "
                'live-restore is off, so nothing was changed: set "live-restore": true in its configuration and run '
                "'systemctl reload docker', or drain the node and set stop_containers=true"
            )

    def _validate(self, changes: list[FileChange], restart: bool) -> None:
        if changes or restart:
            self._require_unit()
            self._require_program()
            self._require_heeded(changes)
            self._require_askable()
        command = self.module.params["validate"]
        if command is None:
            command = self._default_validation()
            if self._lacks_program():
                return
            if command and self.transaction.host.find(command[0]) is None:
                self.transaction.warnings.append(f"{command[0]} is not on PATH: the candidate was not validated.")
                return
        for change in changes:
            if command and change.after is not None:
                self._validate_one(command, change.path, change.after)

    def _validate_one(self, command: list[str], path: str, candidate: bytes) -> None:
        if self.runtime == "containerd":
            text = runtime_config.with_imports_from(text_of(candidate, path), path)
            candidate = bytes_like(candidate, text)
        copy = self.transaction.host.temporary(candidate, os.path.basename(path))
        try:
            out = self.transaction.host.run([word.replace("%s", copy) for word in command], timeout=30)
        except CommandError as error:
            if "unknown flag: --validate" in str(error):
                self.transaction.warnings.append(
                    "This dockerd, before 23.0, has no --validate: the candidate was not validated."
                )
                return
            raise Refused(f"the new {path} was refused, so nothing was changed: {error}") from error
        if self.runtime == "containerd" and self.module.params["validate"] is None and self._is_present():
            self._check_effect(out, text)

    def _default_validation(self) -> list[str]:
        if self.runtime == "containerd":
            return [*self._containerd(), "--config", "%s", "config", "dump"]
        if self.runtime == "docker":
            return ["dockerd", "--validate", "--config-file", "%s"]
        return ["crio", "--config", "%s", "--config-dir", "", "config"]

    def _check_effect(self, dump: str, text: str) -> None:
        """Fail if containerd's merge of the candidate and the files that it imports lacks our runtime."""
        try:
            merged = runtime_config.parse("containerd", dump, "the output of 'containerd config dump'")
            version = runtime_config.value_at(text, ("version",), self.path)
            if version > merged.get("version", version):
                raise Refused(
                    f"{self.path} has version {version}, and this containerd heeds nothing of it, because it reads "
                    f"version {merged['version']} at most, so nothing was changed: upgrade containerd, or move the "
                    "file away to start from 'containerd config default', then run again"
                )
            wanted = self.wanted
            if wanted.cdi and runtime_config.lacks_cdi(merged, "the merged configuration"):
                # Which no file can change, and containers get their GPUs without it.
                self.transaction.warnings.append("This containerd has no CDI, which came with 1.7: cdi has no effect.")
                wanted = replace(wanted, cdi=None)
            wrong = runtime_config.unmet("containerd", merged, wanted, "the merged configuration")
            stray = runtime_config.stray_default(merged, "the merged configuration")
        except runtime_config.ConfigError as error:
            raise Refused(str(error)) from error
        # The default of microk8s is a variable that it fills in itself.
        if stray and not wrong and self.name == "containerd":
            raise Refused(
                f"with the new {self.path}, the default runtime {stray!r} is not among containerd's runtimes, "
                "so nothing was changed: add its table to that file, then run again"
            )
        if wrong:
            raise Refused(
                f"with the new {self.path}, {wrong}, so nothing was changed: {self._overriding(text)}, which its "
                "'imports' names, overrides it (to containerd before 2.0 all that is said of the same plugin); remove "
                "that there, or set config_path to that file"
            )

    def _overriding(self, text: str) -> str:
        """Return the last file that containerd's file imports, or those do, and that speaks of the runtimes too."""
        files = runtime_effect.imported(text, self.path, self.transaction.host.matching_in_go)
        speaking = [
            path
            for path, content in files.items()
            if runtime_config.speaks_of_cri(runtime_config.parse("containerd", content, path))
        ]
        return ["a file", *speaking][-1]


class RancherRuntime(NvidiaRuntime):
    """One run of the module for k3s or rke2."""

    TIMEOUT = 300

    def __init__(self, module: AnsibleModule) -> None:
        self.awaited = False
        self.data_dir = f"/var/lib/rancher/{module.params['runtime']}"
        super().__init__(module)

    def _config_path(self) -> str:
        """Return the path of the configuration that the distribution writes into its data directory."""
        params, usual = self.module.params, CONFIG_PATHS[self.name]
        path = spelled(params["config_path"] or usual)
        settings = params["settings_path"] or f"/etc/rancher/{self.name}/config.yaml.d/99-accel-kubernetes.yaml"
        self.settings_path = spelled(settings)
        told = self._data_dir()
        if told:
            written = os.path.normpath(told.value) + usual[len(self.data_dir) :]
            if path.endswith(usual):
                path = path[: -len(usual)] + written
            elif not path.endswith(written) and self._is_present():
                raise Refused(
                    f"{told.path} has {self.name} keep its data in {told.value}, so it writes {written}, and not "
                    f"{path}: leave config_path out, then run again; nothing was changed"
                )
            self.data_dir = os.path.normpath(told.value)
        self.where = rancher_config.Places(self.name, os.path.dirname(path), self.settings_path)
        return path

    def _start_of_unit(self) -> command_line.Start:
        """Return what systemd or OpenRC starts the distribution with."""
        start = super()._start_of_unit()
        if not start.words:
            for unit in UNITS[self.name]:
                files = {path: self.host.words(path) for path in (f"/etc/conf.d/{unit}", f"/etc/init.d/{unit}")}
                start = openrc_service.started(files, self.host.matching)
                if start.words:
                    break
            self.start = start
        return start

    def _data_dir(self) -> command_line.Given | None:
        """Return where it is told to keep its data, None where it is not.

        Settings that cannot be read are refused later.
        """
        try:
            texts = self._settings() if yaml_text.CAN_READ else {}
            said = {path: rancher_settings.load(texts[path], path) for path in sorted(texts, key=rancher_settings.rank)}
        except (yaml_text.YamlError, Refused):
            said = {}
        return rancher_settings.data_dir(self.name, self._start_of_unit(), said)

    def _ctr(self) -> list[str]:
        usual = os.path.dirname(CTR["rke2"][0])
        return [word.replace(usual, f"{self.data_dir}/bin") for word in super()._ctr()]

    def _unheeded(self) -> str:
        missing = self._missing(self.transaction.host.read(self.path)) if self.awaited else ""
        return missing or super()._unheeded()

    def _unit(self) -> str:
        host = Host(self.module)
        for unit in UNITS[self.name]:
            if host.find("systemctl") is None:
                if host.find("rc-service") is not None and host.read(f"/etc/init.d/{unit}") is not None:
                    return str(unit)
                continue
            try:
                host.run(["systemctl", "cat", unit], timeout=10)
            except CommandError:
                continue
            return str(unit)
        raise Refused(
            f"this host has no unit {' or '.join(UNITS[self.name])}; set service to the one that runs {self.name}"
        )

    def _runtime_changes(self, record: Record) -> tuple[list[FileChange], bool]:
        seen = self._seen()
        if self._is_present():
            plan = rancher_config.plan_present(self.where, seen, self.wanted)
            self._require_last_drop_in(plan, seen)
        else:
            plan = rancher_config.plan_absent(self.where, seen)
        self.awaited = plan.awaited
        changes = []
        for path, text in plan.files.items():
            record.name(path)
            current = self.transaction.read(path)
            after = None if text is None else bytes_like(current, text)
            known = path in record.originals and record.untouched(path, current)
            if known and (after is None or not self._is_present()):
                after = record.originals[path]
            if after == current:
                continue
            if self._is_present():
                record.originals.setdefault(path, current)
            else:
                record.originals.pop(path, None)
            changes.append(FileChange(path, current, after))
        return changes, plan.awaited and not changes and bool(self._missing(seen.generated.encode()))

    def _require_last_drop_in(self, plan: rancher_config.RancherPlan, seen: rancher_config.Seen) -> None:
        generated = runtime_config.parse("containerd", seen.generated, self.where.generated)
        for path, text in plan.files.items():
            if text is not None and os.path.basename(path) == rancher_config.DROP_IN:
                ours = runtime_config.parse("containerd", text, path)
                remedy = "move that file away, then run again"
                self._require_last(path, [generated, ours], ".toml", remedy, os.path.dirname(path))

    def _require_heeded(self, changes: list[FileChange]) -> None:
        """Raise Refused where the distribution's flags or settings keep it from what it is to be told."""
        if not self._is_present():
            return
        files = self._settings()
        for change in changes:
            if change.path == self.where.settings:
                files.pop(change.path, None)
                files.update({change.path: text_of(change.after, change.path)} if change.after is not None else {})
        if not yaml_text.CAN_READ:
            unread = rancher_config.unread(self.where, files)
            if unread:
                raise Refused(f"{unread}, so nothing was changed: install python3-yaml, then run again")
            files = {}
        try:
            against = rancher_config.overriding(self.where, self._start_of_unit(), files, self.wanted)
        except runtime_config.ConfigError as error:
            raise Refused(str(error)) from error
        if against:
            raise Refused(f"{against} that out, then run again; nothing was changed")

    def _settings(self) -> Dict[str, str]:
        """Texts of the distribution's settings by path, ours among them."""
        directory = os.path.dirname(self.settings_path)
        other = rancher_settings.other_file(self.name, self._start_of_unit())
        if other:
            directory = f"{other[1].value}.d"
        elif not directory.endswith(".d"):
            return {}
        names = [directory[: -len(".d")], *(os.path.join(directory, name) for name in _listed(directory))]
        found = {path: self.host.read(path) for path in names if os.path.isfile(path)}
        return {path: text_of(data, path) for path, data in found.items() if data is not None}

    def _seen(self) -> rancher_config.Seen:
        generated = self.transaction.host.read(self.where.generated)
        if generated is None:
            raise Refused(
                f"{self.where.generated} does not exist: {self.name} writes it when it starts; start it once, "
                "or set config_path to where its data directory has it"
            )
        templates = {}
        for name in rancher_config.TEMPLATES:
            data = self.transaction.read(self.where.template(name))
            if data is not None:
                templates[name] = text_of(data, self.where.template(name))
        return rancher_config.Seen(text_of(generated, self.where.generated), templates)

    def _missing(self, generated: bytes | None) -> str:
        """Return what the written configuration lacks."""
        if generated is None:
            return f"{self.where.generated} is gone"
        try:
            data = runtime_config.parse("containerd", generated.decode(errors="replace"), self.where.generated)
            wrong = runtime_config.complaint("containerd", data, self.wanted, self.where.generated)
        except runtime_config.ConfigError as error:
            return str(error)
        return f"{self.name} was restarted, but in {self.where.generated} {wrong}" if wrong else ""

    def _default_validation(self) -> list[str]:
        return []


def _in(path: str) -> str:
    return f" in {path}" if path else ""


def _listed(directory: str) -> list[str]:
    """Return the names of the files in a directory of settings that the distribution reads."""
    names = os.listdir(directory) if os.path.isdir(directory) else []
    return [name for name in names if name.lower().endswith((".yaml", ".yml"))]


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "runtime": {"type": "str", "choices": list(CONFIG_PATHS), "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "config_path": {"type": "path"},
            "settings_path": {"type": "path"},
            "runtime_name": {"type": "str", "default": "nvidia"},
            "runtime_binary": {"type": "path", "default": "/usr/bin/nvidia-container-runtime"},
            "default_runtime": {"type": "bool", "default": False},
            "cdi": {"type": "bool"},
            "ignore_visible_devices": {"type": "bool", "default": False},
            "toolkit_config_path": {"type": "path", "default": "/etc/nvidia-container-runtime/config.toml"},
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
        run = RancherRuntime(module) if module.params["runtime"] in ("k3s", "rke2") else NvidiaRuntime(module)
    except Refused as error:
        module.fail_json(msg=str(error), code=error.code, recovered="")
    carry_out(module, run.transaction, run.propose)


if __name__ == "__main__":
    main()
