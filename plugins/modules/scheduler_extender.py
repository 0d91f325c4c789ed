#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: scheduler_extender
short_description: Configure kube-scheduler to call extenders and to pack GPUs
version_added: 0.1.0
description:
  - Adds scheduler extenders and bin packing of resources to the KubeSchedulerConfiguration (version v1) of
    kube-scheduler. kube-scheduler runs as a static pod, or as a part of k3s or rke2.
  - The module edits the file that kube-scheduler reads with C(--config). If kube-scheduler has no such file, the module
    writes O(scheduler_config_path), and mounts it into a static pod.
  - The module converts a file of version v1beta2 or v1beta3 to v1, and lists the differences in RV(converted). It
    refuses a field that v1 does not have. O(state=absent) restores the older file if the running kube-scheduler can
    read it.
  - The module recognizes its extenders by address and managed resources. It keeps other extenders, profiles, and
    comments.
  - The module validates the result first, because kube-scheduler does not start with an unknown field.
  - The module writes the checksum of the configuration to an annotation of the static pod. So kubelet restarts
    kube-scheduler even if only the configuration changes.
  - On k3s and rke2, the module writes the settings to C(config.yaml.d/zz-kube-accel.yaml), and restarts the service.
    Running pods keep running.
  - The change is one transaction on the host. The module keeps the previous files in O(backup_dir), and replaces both
    files atomically. kube-scheduler must restart and become healthy, and a scheduler must renew the Lease of the leader
    election.
  - On any failure, the module restores the previous files. If the run is interrupted, a systemd timer restores them. On
    hosts without systemd, the next run does.
  - The first run keeps both original files. O(state=absent) restores exactly these bytes if nothing else has changed
    the files since. Otherwise it removes only the module's own settings.
  - After a restart, and if nothing changes, the module reads from C(/configz) which extenders and bin packing
    kube-scheduler uses. If these differ after a restart, the module restores the previous files.
  - To read C(/configz), the module uses the client certificate of C(/etc/kubernetes/super-admin.conf),
    C(/etc/kubernetes/admin.conf), C(/etc/rancher/k3s/k3s.yaml), or C(/etc/rancher/rke2/rke2.yaml). If kube-scheduler
    accepts none of them, the command line of its process must name the configuration. The kube-scheduler of k3s has
    no separate process. The module warns about settings that it could not read back.
  - Before the module writes anything, it refuses settings that would override its own, and names the file and the
    remedy. For a static pod, these are a later C(--config), a shell that starts kube-scheduler, other mounts in the
    same place, and a second manifest of the pod. On k3s and rke2, they are the command line of systemd's unit or
    drop-ins, and later settings files.
  - The module refuses a profile that does not score nodes by C(NodeResourcesFit).
  - The module reads values such as C(yes) or C(010) as Kubernetes does. It rewrites only lines that change. If a value
    of an alias changes, the module writes the value in place of the alias. It does not edit values from a merge key
    (C(<<)) or an explicit key (C(?)).
  - The module refuses MicroK8s. Run a second kube-scheduler there.
  - The module takes the data directory of k3s and rke2 from their settings, their command line, or an environment
    variable.
requirements:
  - ruamel.yaml on the target (package C(python3-ruamel.yaml) or C(python3-ruamel-yaml))
  - PyYAML on the target (package C(python3-yaml)) where ruamel.yaml has no parser in C and files are big; a
    configuration of 300 KiB takes 3 to 5 s without it
options:
  state:
    description: Whether kube-scheduler has this configuration.
    type: str
    choices: [present, absent]
    default: present
  extenders:
    description:
      - The extenders to call, in this order, after existing ones. The module removes an extender of an earlier run
        that is not listed.
      - The module does not write options that are not given.
    type: list
    elements: dict
    default: []
    suboptions:
      url_prefix:
        description: Address of the extender, to which a verb is appended.
        type: str
        required: true
      managed_resources:
        description:
          - Resources whose pods kube-scheduler sends to the extender. At least one is required, because otherwise an
            extender that is down would stop all scheduling.
        type: list
        elements: dict
        required: true
        suboptions:
          name:
            description: Name of the extended resource.
            type: str
            required: true
          ignored_by_scheduler:
            description: Whether kube-scheduler leaves counting this resource to the extender.
            type: bool
      filter_verb:
        description: Path of the call that filters nodes.
        type: str
      prioritize_verb:
        description: Path of the call that ranks nodes.
        type: str
      weight:
        description: Factor of the extender's ranking. Required with O(extenders[].prioritize_verb).
        type: int
      preempt_verb:
        description: Path of the call that chooses victims.
        type: str
      bind_verb:
        description: Path of the call that binds a pod. One extender of a scheduler may have it.
        type: str
      enable_https:
        description: Whether the extender is called by HTTPS.
        type: bool
      http_timeout:
        description: How long a call may take, for example V(5s).
        type: str
      node_cache_capable:
        description: Whether node names are sent instead of whole nodes.
        type: bool
      ignorable:
        description: Whether pods are scheduled without the extender when it does not answer.
        type: bool
      tls_config:
        description: Certificates of the call. Files have to be visible in kube-scheduler's pod, see O(mounts).
        type: dict
        suboptions:
          insecure:
            description: Whether the extender's certificate is not verified.
            type: bool
          server_name:
            description: Name expected in the extender's certificate, if not that of O(extenders[].url_prefix).
            type: str
          ca_file:
            description: Certificate authority of the extender.
            type: str
          cert_file:
            description: Client certificate.
            type: str
          key_file:
            description: Key of the client certificate.
            type: str
  takeover:
    description:
      - Whether to remove existing extenders that O(extenders) replace, such as those of GPU-Manager, GPU-Share, and
        MPS. kube-scheduler allows one extender per resource. If V(false), the module fails and names them.
      - The module restores their entries with O(state=absent), or when O(extenders) no longer manage their resources.
    type: bool
    default: false
  binpack_resources:
    description:
      - Resources by which pods of the default scheduler are packed onto nodes that are already in use, so that nodes
        with all GPUs free stay so. Sets the scoring strategy C(MostAllocated) of C(NodeResourcesFit).
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the resource.
        type: str
        required: true
      weight:
        description: Its weight among these resources, 1 to 100.
        type: int
        default: 1
  distribution:
    description:
      - How this host runs kube-scheduler. V(static_pod) runs it from O(manifest_path). V(k3s) and V(rke2) run it with
        the settings in C(/etc/rancher).
      - V(auto) is V(k3s) or V(rke2) where the kubeconfig of their kube-scheduler is found, and V(static_pod) elsewhere.
    type: str
    choices: [auto, static_pod, k3s, rke2]
    default: auto
  manifest_path:
    description: Static pod manifest of kube-scheduler.
    type: path
    default: /etc/kubernetes/manifests/kube-scheduler.yaml
  scheduler_config_path:
    description:
      - Configuration file to write when the manifest names none. Its directory is mounted into the pod and is to hold
        nothing else.
    type: path
    default: /etc/kubernetes/kube-accel/scheduler.yaml
  mounts:
    description: Directories mounted into kube-scheduler's pod, read-only and at the same path.
    type: list
    elements: str
    default: []
  host_root:
    description:
      - Path of the host's file system. O(manifest_path), O(scheduler_config_path), and the paths in the manifest are
        below it.
    type: path
    default: /
  health_url:
    description:
      - Address at which kube-scheduler answers with status 200 when it is well. By default C(/healthz) on the address
        and port that its manifest names; it has to be given where the manifest names them by variables.
      - An empty string waits for nothing.
    type: str
  timeout:
    description: Seconds for kube-scheduler to be restarted and become healthy.
    type: int
    default: 120
  backup_dir:
    description:
      - Directory for previous bytes and the state of the transaction. Keep it between runs.
      - A directory that another user made or can write is refused. See M(accel.kubernetes.trusted_path).
    type: path
    default: /var/lib/accel-kubernetes/backups
extends_documentation_fragment:
  - accel.kubernetes.attributes
  - accel.kubernetes.attributes.changing_module
author:
  - Accel Kubernetes contributors (@accel-kubernetes)
"""

EXAMPLES = r"""
- name: Prefer the fullest nodes for GPU pods
  accel.kubernetes.scheduler_extender:
    binpack_resources:
      - name: nvidia.com/gpu

- name: Call an extender on this control-plane node, with a client certificate of its own
  accel.kubernetes.scheduler_extender:
    extenders:
      - url_prefix: https://127.0.0.1:9446/scheduler
        filter_verb: predicates
        prioritize_verb: priorities
        weight: 1
        bind_verb: bind
        enable_https: true
        node_cache_capable: true
        managed_resources:
          - name: tencent.com/vcuda-core
            ignored_by_scheduler: false
        tls_config:
          ca_file: /etc/kubernetes/kube-accel-tls/ca.crt
          cert_file: /etc/kubernetes/kube-accel-tls/client.crt
          key_file: /etc/kubernetes/kube-accel-tls/client.key
    mounts:
      - /etc/kubernetes/kube-accel-tls

- name: Restore kube-scheduler's configuration
  accel.kubernetes.scheduler_extender:
    state: absent
"""

RETURN = r"""
backup:
  description: Directory with the previous bytes. Empty if nothing changed.
  returned: success
  type: str
  sample: /var/lib/accel-kubernetes/backups/scheduler_extender-0a1b2c3d4e5f
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
replaced:
  description: Addresses of extenders that O(extenders) replaced, and that O(state=absent) restores.
  returned: success
  type: list
  elements: str
  sample: [http://gpu-admission.kube-system:3456/scheduler]
binders:
  description: Addresses of extenders of others that bind pods, of which kube-scheduler allows one.
  returned: success
  type: list
  elements: str
  sample: [https://10.0.0.5:8443/scheduler]
code:
  description:
    - Reason of a failure, for programs. C(msg) is for people. V(two_binders) means that another extender binds pods
      too. V(missing_library) means that ruamel.yaml is not on the target. V(refused) means any other refusal before a
      change. V(failed) means that a change, or its planning, failed.
  returned: failure
  type: str
  sample: refused
converted:
  description:
    - Differences in the file after its conversion to version v1. Empty for a file of version v1, and if only the
      version changed.
  returned: success
  type: list
  elements: str
  sample: ["leaderElection.resourceLock is leases, which endpointsleases held as well"]
configuration:
  description: Content of that file, or its content after the change.
  returned: success
  type: dict
  sample: {apiVersion: kubescheduler.config.k8s.io/v1, kind: KubeSchedulerConfiguration}
effect:
  description:
    - Who was asked whether the configuration is in effect, and what that said. The running kube-scheduler answers at
      C(/configz) with what it made of the configuration.
    - Empty in check mode if a change is needed, and if no kube-scheduler could be asked.
  returned: success
  type: str
  sample: https://127.0.0.1:10259/configz, asked with /etc/kubernetes/admin.conf, calls https://127.0.0.1:9446/scheduler
scheduler_config_path:
  description: The configuration file that kube-scheduler reads, or reads after the change.
  returned: success
  type: str
  sample: /etc/kubernetes/kube-accel/scheduler.yaml
"""

import os
from typing import Any, Callable, Dict, Iterable, List, Mapping, Tuple
from urllib.parse import urlsplit

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.accel.kubernetes.plugins.module_utils.documents import yaml_text
from ansible_collections.accel.kubernetes.plugins.module_utils.host.machine import Host
from ansible_collections.accel.kubernetes.plugins.module_utils.host.outcome import (
    BACKUP_DIR,
    Proposal,
    Refused,
    bytes_like,
    carry_out,
    text_of,
    transaction_for,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.host.record import FileChange, Record
from ansible_collections.accel.kubernetes.plugins.module_utils.host.service import Service
from ansible_collections.accel.kubernetes.plugins.module_utils.host.transaction import Transaction
from ansible_collections.accel.kubernetes.plugins.module_utils.host.writable import TransactionError
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler import (
    config as scheduler_config,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler import (
    effect as scheduler_effect,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler import (
    manifest as scheduler_manifest,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler import (
    versions as scheduler_versions,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.health import PORT, health_url, health_watch
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.installation import Installation, Told
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.lease import Lease, lease_watch
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.schema import ConfigError

MICROK8S = "/var/snap/microk8s/current/args/kube-scheduler"
ACRONYMS = {"enable_https": "enableHTTPS"}


class SchedulerExtender:
    """One run of the module."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.params = module.params
        self.host = Host(module)
        params = self.params
        self.place = Installation(self.host, params["host_root"], params["distribution"], params["manifest_path"])
        self.distribution = self.place.distribution
        self.told_path = self.place.told_path
        self.wanted = scheduler_config.Wanted(
            [api_fields(extender) for extender in self.params["extenders"]],
            {item["name"]: item["weight"] for item in self.params["binpack_resources"]},
            self.params["takeover"],
        )
        self.lease: Lease | None = None
        self.question: scheduler_effect.Question | None = None
        self.result: Dict[str, Any] = {"effect": ""}
        watch = None if self.params["health_url"] == "" else self._watch
        apply = self.host.restart_of(self.distribution.service) if self.distribution else ()
        self.transaction: Transaction = transaction_for(
            module, "scheduler_extender", self.told_path, Service(apply, watch, self.params["timeout"])
        )

    def untouched(self) -> bool:
        """Return whether no run has changed anything here, and no manifest came that has something of ours in it."""
        told = self.transaction.read(self.told_path) or b""
        return not os.path.exists(self.transaction.directory) and b"kube-accel" not in told

    def propose(self) -> Proposal:
        """Return what this host's files have to become."""
        current = self.transaction.read(self.told_path)
        if current is None and not self.distribution:
            if self.params["state"] == "absent":
                return Proposal()
            arguments = self.place.on_host(MICROK8S)
            if os.path.exists(arguments):
                raise Refused(
                    f"this is MicroK8s, whose kube-scheduler takes its flags from {arguments}, which this module does "
                    "not edit: leave it as it is, and use a second kube-scheduler (scheduler_layout: secondary)"
                )
            raise Refused(f"{self.told_path} does not exist; name kube-scheduler's manifest in manifest_path")
        try:
            return self._propose(current)
        except (ConfigError, Refused) as error:
            if self._never_changed(current):
                return Proposal()
            raise Refused(str(error), error.code) from error

    def _never_changed(self, current: bytes | None) -> bool:
        """Return whether there is nothing to take out; what cannot be read or edited then does not matter."""
        if self.params["state"] == "present" or self.wanted.extenders or self.wanted.binpack:
            return False
        record = self.transaction.record()
        return not record.originals and not record.owned and b"kube-accel" not in (current or b"")

    def _propose(self, current: bytes | None) -> Proposal:
        record = self.transaction.record()
        told = self.place.told(self.transaction.read)
        if self.params["state"] == "present":
            self.place.refuse_second_manifest(told, self.transaction.read)
        read = told.config_file()
        named = read or self.params["scheduler_config_path"]
        config_path = self.place.on_host(named)
        config = self.transaction.read(config_path)
        binders = self._binders(record, config, config_path)
        if self.params["state"] == "present":
            after = self._present(record, told, current, named, config)
            left: List[FileChange] = []
        else:
            left = self._left_behind(record, told, config_path)
            after = self._absent(record, told, current, config_path, config)
        self.lease = self._lease(told, after[0])
        self.question = self._question(told, after)
        changes = [
            # A file that is not read, as after kubeadm rewrote the manifest, needs no restart to go.
            FileChange(config_path, config, after[0], restart=read is not None),
            FileChange(self.told_path, current, after[1]),
            *left,
        ]
        self.result = {
            "effect": "",
            "scheduler_config_path": config_path,
            "configuration": {} if after[0] is None else yaml_text.load(text_of(after[0], config_path), config_path),
            "binders": binders,
            "replaced": sorted({url for url, _names in _owned(record).replaced}),
            "converted": self._converted(config, after[0], config_path),
        }
        changes = [change for change in changes if change.before != change.after]
        if changes and self.params["health_url"] is None:
            health_url(told.flag)
        restart = not changes and self.params["state"] == "present" and self._not_in_effect()
        return Proposal(changes, record, result=self.result, restart=restart)

    def _not_in_effect(self) -> bool:
        """Return whether right files still need a restart; warns of what the scheduler says about them.

        Raises Refused where it takes more than that. A scheduler that does not answer says nothing.
        """
        if self.question is None:
            return False
        answer = scheduler_effect.ask(self.transaction.host, self.question)
        self.result["effect"] = answer.said
        if answer.problem and not self.distribution:
            raise Refused(
                f"{self.told_path} and the configuration are right, but the running kube-scheduler does not use them: "
                f"{answer.problem}. Stop its container, so that kubelet starts it again: 'crictl stop $(crictl ps "
                "--name kube-scheduler --quiet)'. If that does not help, read in kubelet's log whether it reads this "
                "manifest"
            )
        return answer.problem != ""

    def _present(
        self, record: Record, told: Told, current: bytes | None, named: str, config: bytes | None
    ) -> Tuple[bytes | None, bytes | None]:
        path = self.place.on_host(named)
        if config is None and told.flag("config") is not None and not told.mounts_our_file():
            raise Refused(f"{self.told_path} names the configuration {path}, which does not exist; write it first")
        text = self.place.base(told) if config is None else text_of(config, path)
        owned = _owned(record)
        if not scheduler_config.holds(text, owned, path):
            owned = scheduler_config.Owned()
            record.originals[path] = config
        elif config is not None and path in record.written and not record.untouched(path, config):
            # Changed by somebody else since: without us it would be that.
            record.originals[path] = self._stripped(record, told, path, config)
        if not told.bears_checksum():
            if told.mounts_our_file():
                # Rewritten by kubeadm from its configuration: not what there was without us.
                record.originals.pop(self.told_path, None)
            else:
                record.originals[self.told_path] = current
        original = record.originals.get(path)
        replaced = scheduler_config.replaced(text, self.wanted, owned, path)
        text = scheduler_config.plan(
            text, self.wanted, owned, self.place.base(told) if original is None else text_of(original, path), path
        )
        files = [
            extender["tlsConfig"][key]
            for extender in self.wanted.extenders
            for key in ("caFile", "certFile", "keyFile")
            if key in extender.get("tlsConfig", {})
        ]
        told.add(scheduler_manifest.Wanted(named, text, self.params["mounts"], files))
        record.owned = {
            "extenders": _stored(map(scheduler_config.key_of, self.wanted.extenders)),
            "binpack": sorted(self.wanted.binpack),
            "replaced": sorted(_stored(replaced)),
        }
        return bytes_like(config, text), _encoded(current, told.text())

    def _absent(
        self, record: Record, told: Told, current: bytes | None, config_path: str, config: bytes | None
    ) -> Tuple[bytes | None, bytes | None]:
        originals = dict(record.originals)
        touched = told.bears_checksum() or record.owned or self.wanted.extenders or self.wanted.binpack
        if config is None or not touched:
            config_after = config
        elif (
            config_path in originals
            and record.untouched(config_path, config)
            and self._is_read(record, told, config_path)
        ):
            config_after = originals[config_path]
        else:
            config_after = self._stripped(record, told, config_path, config)
        keep_config = told.reads_our_file() and config_after is not None
        first = originals.get(self.told_path)
        if first is not None and not keep_config and record.untouched(self.told_path, current):
            told_after: bytes | None = first
        else:
            told.remove(None if first is None else text_of(first, self.told_path), keep_config)
            told_after = _encoded(current, told.text())
        record.originals.clear()
        record.owned = {}
        return config_after, told_after

    def _left_behind(self, record: Record, told: Told, config_path: str) -> List[FileChange]:
        """Return the changes to files of earlier runs that are no longer read because others are named now."""
        changes = []
        for path, original in sorted(record.originals.items()):
            data = None if path in (config_path, self.told_path) else self.transaction.read(path)
            if data is None:
                continue
            try:
                after = original if record.untouched(path, data) else self._stripped(record, told, path, data)
            except (ConfigError, Refused) as error:
                self.transaction.warnings.append(f"{path} is not read by kube-scheduler and stays as it is: {error}")
                continue
            changes.append(FileChange(path, data, after, restart=False))
        return changes

    def _stripped(self, record: Record, told: Told, path: str, config: bytes) -> bytes | None:
        """Return an edited configuration without what is ours; None when a file we brought has nothing else in it."""
        owned = _owned(record)
        owned = scheduler_config.Owned(
            owned.extenders.union(map(scheduler_config.key_of, self.wanted.extenders)),
            owned.binpack.union(self.wanted.binpack),
            owned.replaced,
        )
        base = self.place.base(told)
        original = record.originals.get(path)
        text = scheduler_config.plan(
            text_of(config, path),
            scheduler_config.Wanted(),
            owned,
            self._first(record, path, config, base),
            path,
        )
        bare = yaml_text.load(text, path) == yaml_text.load(base, path)
        brought = original is None if path in record.originals else told.reads_our_file()
        return None if bare and brought else bytes_like(config, text)

    def _is_read(self, record: Record, told: Told, path: str) -> bool:
        """Return whether the file that there was can come back; warns where kube-scheduler was upgraded past it."""
        original, first = record.originals[path], record.originals.get(self.told_path)
        if original is None or scheduler_versions.is_read_by(text_of(original, path), path, told.minor):
            return True
        if first is not None and self.place.told(lambda _path: first).minor == told.minor:
            return True
        self.transaction.warnings.append(
            f"{path} was of a version that kube-scheduler 1.{told.minor} no longer reads, and is given back as v1"
        )
        return False

    @staticmethod
    def _converted(before: bytes | None, after: bytes | None, path: str) -> List[str]:
        """Return what a file that becomes one of v1 holds otherwise, for people."""
        if before is None or after is None or scheduler_versions.read(text_of(after, path), path).older:
            return []
        return list(scheduler_versions.read(text_of(before, path), path).notes)

    @staticmethod
    def _first(record: Record, path: str, config: bytes, base: str) -> str:
        """Return the configuration before our first change, or the present one where that is not known."""
        original = record.originals.get(path, config)
        return base if original is None else text_of(original, path)

    def _binders(self, record: Record, config: bytes | None, path: str) -> List[str]:
        """Addresses of the extenders in the configuration as it is that bind pods and are not ours."""
        if config is None:
            return []
        ours = {url for url, _names in _owned(record).extenders}
        ours.update(scheduler_config.key_of(extender)[0] for extender in self.wanted.extenders)
        return sorted(scheduler_config.binders(text_of(config, path), path, self.wanted) - ours)

    def _lease(self, told: Told, config: bytes | None) -> Lease | None:
        """Return the Lease of the scheduler that will run, None when there is no election."""
        text = self.place.base(told, flags=False) if config is None else text_of(config, self.told_path)
        found = scheduler_config.election(text, self.told_path, told.flag)
        path = told.outside(found.kubeconfig) if found else None
        if found is None or path is None:
            return None
        return Lease(self.place.on_host(path), found.namespace, found.name, self.params["host_root"])

    def _watch(self, host: Host, undoing: bool) -> Callable[[], str]:
        restarts = self.distribution is not None and not self.distribution.in_pod
        url = self.params["health_url"] or self._health_url()
        health = health_watch(url, self.params["timeout"], self.place.on_host("/proc"), restarts)(host, undoing)
        renewed = lease_watch(self.lease, self.transaction.warnings.append)(host, undoing)
        # What is undone need not have been in effect before.
        question = None if undoing else self.question

        def probe() -> str:
            problem: str = health() or renewed()
            if problem or question is None:
                return problem
            answer = scheduler_effect.ask(host, question)
            if answer.unknown:
                self.transaction.warnings.append(
                    f"Whether kube-scheduler took the configuration could not be read back: {answer.unknown}"
                )
            self.result["effect"] = answer.said
            return answer.problem

        return probe

    def _question(self, told: Told, after: Tuple[bytes | None, bytes | None]) -> scheduler_effect.Question | None:
        """Return what to ask the scheduler that will run, None where it answers nowhere that is known."""
        if self.params["health_url"] == "":
            return None
        try:
            url = self.params["health_url"] or health_url(told.flag)
        except Refused:
            return None
        if isinstance(told, scheduler_manifest.Manifest) and after[1] is not None:
            told = scheduler_manifest.Manifest(text_of(after[1], self.told_path), self.told_path)
        return scheduler_effect.Question(
            url,
            self.place.administrators(),
            self.params["host_root"],
            None if after[0] is None else text_of(after[0], self.told_path),
            told.flag("config"),
            self.distribution is None or self.distribution.in_pod,
        )

    def _health_url(self) -> str:
        """Return the health URL before anything is planned too: what a run that was cut off left is undone first."""
        try:
            return str(health_url(self.place.told(self.transaction.read).flag))
        except (Refused, ConfigError) as error:
            raise TransactionError(f"where kube-scheduler answers is not known: {error}") from error


def _reachable(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def api_fields(options: Mapping[str, Any]) -> Dict[str, Any]:
    """Options in the words of the Kubernetes API, without those that were not given."""
    fields: Dict[str, Any] = {}
    for option, value in options.items():
        head, *tail = option.split("_")
        name = ACRONYMS.get(option) or head + "".join(word.capitalize() for word in tail)
        if isinstance(value, dict):
            fields[name] = api_fields(value)
        elif isinstance(value, list):
            fields[name] = [api_fields(item) for item in value]
        elif value is not None:
            fields[name] = value
    return fields


def _encoded(before: bytes | None, text: str | None) -> bytes | None:
    return None if text is None else bytes_like(before, text)


def _owned(record: Record) -> scheduler_config.Owned:
    extenders, replaced = (
        frozenset((url, frozenset(names)) for url, names in record.owned.get(kind, ()))
        for kind in ("extenders", "replaced")
    )
    return scheduler_config.Owned(extenders, frozenset(record.owned.get("binpack", ())), replaced)


def _stored(keys: Iterable[scheduler_config.ExtenderKey]) -> List[List[Any]]:
    return [[url, sorted(names)] for url, names in keys]


ARGUMENTS: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "extenders": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "url_prefix": {"type": "str", "required": True},
            "managed_resources": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "name": {"type": "str", "required": True},
                    "ignored_by_scheduler": {"type": "bool"},
                },
            },
            "filter_verb": {"type": "str"},
            "prioritize_verb": {"type": "str"},
            "weight": {"type": "int"},
            "preempt_verb": {"type": "str"},
            "bind_verb": {"type": "str"},
            "enable_https": {"type": "bool"},
            "http_timeout": {"type": "str"},
            "node_cache_capable": {"type": "bool"},
            "ignorable": {"type": "bool"},
            "tls_config": {
                "type": "dict",
                "options": {
                    "insecure": {"type": "bool"},
                    "server_name": {"type": "str"},
                    "ca_file": {"type": "str"},
                    "cert_file": {"type": "str"},
                    "key_file": {"type": "str", "no_log": False},
                },
            },
        },
    },
    "binpack_resources": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "name": {"type": "str", "required": True},
            "weight": {"type": "int", "default": 1},
        },
    },
    "takeover": {"type": "bool", "default": False},
    "distribution": {"type": "str", "choices": ["auto", "static_pod", "k3s", "rke2"], "default": "auto"},
    "manifest_path": {"type": "path", "default": "/etc/kubernetes/manifests/kube-scheduler.yaml"},
    "scheduler_config_path": {"type": "path", "default": "/etc/kubernetes/kube-accel/scheduler.yaml"},
    "mounts": {"type": "list", "elements": "str", "default": []},
    "host_root": {"type": "path", "default": "/"},
    "health_url": {"type": "str"},
    "timeout": {"type": "int", "default": 120},
    "backup_dir": {"type": "path", "default": BACKUP_DIR},
}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        supports_check_mode=True,
    )
    if yaml_text.RUAMEL_TRACEBACK:
        # To find that a host never had anything of ours it takes no YAML. Who gives extenders asks for more.
        taking = module.params["state"] == "absent" and not module.params["extenders"]
        if taking and SchedulerExtender(module).untouched():
            module.exit_json(changed=False, recovered="")
        module.fail_json(
            msg=missing_required_lib("ruamel.yaml", reason="to edit YAML and keep its comments"),
            code="missing_library",
            exception=yaml_text.RUAMEL_TRACEBACK,
        )
    _require_sense(module)
    run = SchedulerExtender(module)
    carry_out(module, run.transaction, run.propose)


def _require_sense(module: AnsibleModule) -> None:
    """Fail where options, each of its type, ask for nothing that makes sense."""
    if module.params["state"] == "present" and not module.params["extenders"] + module.params["binpack_resources"]:
        module.fail_json(
            msg="neither extenders nor binpack_resources are given; to take out what is there, use state=absent",
            code="refused",
        )
    for extender in module.params["extenders"]:
        if not extender["managed_resources"]:
            module.fail_json(
                msg=f"managed_resources of {extender['url_prefix']} is empty: all pods would wait for it",
                code="refused",
            )
    url = module.params["health_url"]
    if url and not _reachable(url):
        module.fail_json(
            msg=f"health_url is {url!r}; write one such as https://127.0.0.1:{PORT}/healthz", code="refused"
        )


if __name__ == "__main__":
    main()
