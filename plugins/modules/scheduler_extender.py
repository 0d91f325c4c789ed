#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: scheduler_extender
short_description: Make kube-scheduler call extenders and pack GPUs
version_added: 0.1.0
description:
  - Merges scheduler extenders and bin packing of resources into a KubeSchedulerConfiguration (version v1), and has
    kube-scheduler's static pod read it.
  - If the manifest names a configuration with C(--config), that file is merged into. Otherwise one is written to
    O(scheduler_config_path) and mounted into the pod.
  - Extenders are matched by address and managed resources. Extenders, profiles and comments of others stay.
  - The result is checked against the fields of the API first, as kube-scheduler does not start with an unknown one.
  - An annotation with the checksum of the configuration lets kubelet restart the scheduler when only that has changed.
  - The whole change is one transaction on the host. The previous bytes are kept in O(backup_dir), never beside the
    manifest, where kubelet would run them. Both files are replaced atomically, and kube-scheduler has to be restarted
    and become healthy. On any failure the previous files come back. A systemd timer does the same if the run is cut
    off; where there is no systemd, the next run does.
  - The first run remembers both files. O(state=absent) brings back exactly those bytes if nobody else has changed the
    files since, and otherwise takes out just what is ours.
requirements:
  - ruamel.yaml on the target (package C(python3-ruamel.yaml) or C(python3-ruamel-yaml))
options:
  state:
    description: Whether kube-scheduler is configured so.
    type: str
    choices: [present, absent]
    default: present
  extenders:
    description:
      - The extenders to call, in that order, after those of others. An earlier one of ours that is not listed goes.
      - An option that is not given is not written.
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
          - The resources whose pods are sent to the extender. Without any, an extender that is down would stop all
            scheduling, so at least one is required.
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
      - Where the machine's file system is seen. O(manifest_path), O(scheduler_config_path) and the paths in the
        manifest are below it.
    type: path
    default: /
  health_url:
    description:
      - Address at which kube-scheduler answers with status 200 when it is well. By default C(/healthz) on the address
        and port that its manifest names.
      - With an empty string nothing is waited for.
    type: str
  timeout:
    description: Seconds for kube-scheduler to be restarted and become healthy.
    type: int
    default: 120
  backup_dir:
    description: Directory for previous bytes and the state of the transaction. Keep it between runs.
    type: path
    default: /var/lib/accel-kubernetes/backups
extends_documentation_fragment:
  - accel.kubernetes.attributes
attributes:
  check_mode:
    support: full
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
- name: Keep nodes with all GPUs free
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

- name: Give kube-scheduler back as it was
  accel.kubernetes.scheduler_extender:
    state: absent
"""

RETURN = r"""
backup:
  description: Directory with the previous bytes; empty when nothing was changed.
  returned: success
  type: str
  sample: /var/lib/accel-kubernetes/backups/scheduler_extender-0a1b2c3d4e5f
recovered:
  description:
    - What was done about an earlier run that had been cut off. V(restored) its change was undone, V(confirmed) it had
      been complete, V(restored_by_timer) the host had undone it itself. Empty when there was none.
  returned: always
  type: str
  sample: ""
scheduler_config_path:
  description: The configuration file that kube-scheduler reads, or is to read.
  returned: success
  type: str
  sample: /etc/kubernetes/kube-accel/scheduler.yaml
"""

import ipaddress
import os
from typing import Any, Callable, Dict, Mapping, Tuple

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.accel.kubernetes.plugins.module_utils import scheduler_config, scheduler_manifest, yaml_text
from ansible_collections.accel.kubernetes.plugins.module_utils.host import Host
from ansible_collections.accel.kubernetes.plugins.module_utils.module import (
    BACKUP_DIR,
    Proposal,
    Refused,
    carry_out,
    text_of,
    transaction_for,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler_health import health_watch
from ansible_collections.accel.kubernetes.plugins.module_utils.transaction import (
    FileChange,
    Record,
    Service,
    Transaction,
)

KUBECONFIG = "/etc/kubernetes/scheduler.conf"
PORT = "10259"
ACRONYMS = {"enable_https": "enableHTTPS"}


class SchedulerExtender:
    """One run of the module."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.params = module.params
        self.manifest_path = self._on_host(self.params["manifest_path"])
        self.wanted = scheduler_config.Wanted(
            [api_fields(extender) for extender in self.params["extenders"]],
            {item["name"]: item["weight"] for item in self.params["binpack_resources"]},
        )
        self.health_url = f"https://127.0.0.1:{PORT}/healthz"
        watch = None if self.params["health_url"] == "" else self._watch
        self.transaction: Transaction = transaction_for(
            module, "scheduler_extender", self.manifest_path, Service((), watch, self.params["timeout"])
        )

    def propose(self) -> Proposal:
        """What this host's files have to become."""
        current = self.transaction.read(self.manifest_path)
        if current is None:
            if self.params["state"] == "absent":
                return Proposal()
            raise Refused(f"{self.manifest_path} does not exist; name kube-scheduler's manifest in manifest_path")
        try:
            return self._propose(text_of(current, self.manifest_path))
        except scheduler_config.ConfigError as error:
            raise Refused(str(error)) from error

    def _propose(self, manifest_text: str) -> Proposal:
        record = self.transaction.record()
        manifest = scheduler_manifest.Manifest(manifest_text, self.manifest_path)
        self.health_url = self.params["health_url"] or health_url(manifest)
        named = manifest.config_file() or self.params["scheduler_config_path"]
        config_path = self._on_host(named)
        config = self.transaction.read(config_path)
        if self.params["state"] == "present":
            after = self._present(record, manifest, manifest_text, named, config)
        else:
            after = self._absent(record, manifest, manifest_text, config_path, config)
        changes = [
            FileChange(config_path, config, after[0]),
            FileChange(self.manifest_path, manifest_text.encode(), after[1]),
        ]
        return Proposal(
            [change for change in changes if change.before != change.after],
            record,
            result={"scheduler_config_path": config_path},
        )

    def _present(
        self,
        record: Record,
        manifest: scheduler_manifest.Manifest,
        manifest_text: str,
        named: str,
        config: bytes | None,
    ) -> Tuple[bytes | None, bytes]:
        path = self._on_host(named)
        if config is None and manifest.flag("config") is not None and not manifest.mounts_our_file():
            raise Refused(f"{self.manifest_path} names the configuration {path}, which does not exist; write it first")
        text = self._base(manifest) if config is None else text_of(config, path)
        owned = _owned(record)
        if not scheduler_config.holds(text, owned, path):
            owned = scheduler_config.Owned()
            record.originals[path] = config
        if not manifest.bears_checksum():
            if manifest.mounts_our_file():
                # Written anew by kubeadm from what it was told: not what there was without us.
                record.originals.pop(self.manifest_path, None)
            else:
                record.originals[self.manifest_path] = manifest_text.encode()
        original = record.originals.get(path)
        text = scheduler_config.plan(
            text, self.wanted, owned, self._base(manifest) if original is None else text_of(original, path), path
        )
        files = [
            extender["tlsConfig"][key]
            for extender in self.wanted.extenders
            for key in ("caFile", "certFile", "keyFile")
            if key in extender.get("tlsConfig", {})
        ]
        manifest.add(scheduler_manifest.Wanted(named, text, self.params["mounts"], files))
        record.owned = {
            "extenders": [[url, sorted(names)] for url, names in map(scheduler_config.key_of, self.wanted.extenders)],
            "binpack": sorted(self.wanted.binpack),
        }
        return text.encode(), manifest.text().encode()

    def _absent(
        self,
        record: Record,
        manifest: scheduler_manifest.Manifest,
        manifest_text: str,
        config_path: str,
        config: bytes | None,
    ) -> Tuple[bytes | None, bytes]:
        originals = dict(record.originals)
        touched = manifest.bears_checksum() or record.owned or self.wanted != scheduler_config.Wanted()
        if config is None or not touched:
            config_after = config
        elif config_path in originals and record.untouched(config_path, config):
            config_after = originals[config_path]
        else:
            config_after = self._stripped(record, manifest, config_path, config)
        keep_config = manifest.mounts_our_file() and config_after is not None
        first = originals.get(self.manifest_path)
        if first is not None and not keep_config and record.untouched(self.manifest_path, manifest_text.encode()):
            manifest_after = first
        else:
            manifest.remove(None if first is None else text_of(first, self.manifest_path), keep_config)
            manifest_after = manifest.text().encode()
        record.originals.clear()
        record.owned = {}
        return config_after, manifest_after

    def _stripped(
        self, record: Record, manifest: scheduler_manifest.Manifest, path: str, config: bytes
    ) -> bytes | None:
        """An edited configuration without what is ours; None when nothing of others is left in a file we brought."""
        owned = _owned(record)
        owned = scheduler_config.Owned(
            owned.extenders.union(map(scheduler_config.key_of, self.wanted.extenders)),
            owned.binpack.union(self.wanted.binpack),
        )
        base = self._base(manifest)
        original = record.originals.get(path)
        text = scheduler_config.plan(
            text_of(config, path),
            scheduler_config.Wanted(),
            owned,
            base if original is None else text_of(original, path),
            path,
        )
        bare = yaml_text.plain(yaml_text.load(text, path)) == yaml_text.plain(yaml_text.load(base, path))
        brought = manifest.mounts_our_file() or (path in record.originals and original is None)
        return None if bare and brought else text.encode()

    def _base(self, manifest: scheduler_manifest.Manifest) -> str:
        leader_elect = manifest.flag("leader-elect") != "false"
        return str(scheduler_config.base(manifest.flag("kubeconfig") or KUBECONFIG, leader_elect))

    def _watch(self, host: Host, undoing: bool) -> Callable[[], str]:
        # Only here: the address is in the manifest.
        probe: Callable[[], str] = health_watch(self.health_url, self.params["timeout"])(host, undoing)
        return probe

    def _on_host(self, path: str) -> str:
        return os.path.join(self.params["host_root"], path.lstrip("/"))


def health_url(manifest: scheduler_manifest.Manifest) -> str:
    """Where the scheduler of this manifest says that it is well, seen from its machine."""
    address = manifest.flag("bind-address")
    if address is None or ipaddress.ip_address(address).is_unspecified:
        address = "127.0.0.1"
    host = f"[{address}]" if ":" in address else address
    return f"https://{host}:{manifest.flag('secure-port') or PORT}/healthz"


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


def _owned(record: Record) -> scheduler_config.Owned:
    extenders = ((url, frozenset(names)) for url, names in record.owned.get("extenders", ()))
    return scheduler_config.Owned(frozenset(extenders), frozenset(record.owned.get("binpack", ())))


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
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
            "manifest_path": {"type": "path", "default": "/etc/kubernetes/manifests/kube-scheduler.yaml"},
            "scheduler_config_path": {"type": "path", "default": "/etc/kubernetes/kube-accel/scheduler.yaml"},
            "mounts": {"type": "list", "elements": "str", "default": []},
            "host_root": {"type": "path", "default": "/"},
            "health_url": {"type": "str"},
            "timeout": {"type": "int", "default": 120},
            "backup_dir": {"type": "path", "default": BACKUP_DIR},
        },
        supports_check_mode=True,
    )
    if yaml_text.RUAMEL_TRACEBACK:
        module.fail_json(
            msg=missing_required_lib("ruamel.yaml", reason="to edit YAML and keep its comments"),
            exception=yaml_text.RUAMEL_TRACEBACK,
        )
    if module.params["state"] == "present" and not module.params["extenders"] + module.params["binpack_resources"]:
        module.fail_json(
            msg="neither extenders nor binpack_resources are given; to take out what is there, use state=absent"
        )
    for extender in module.params["extenders"]:
        if not extender["managed_resources"]:
            module.fail_json(msg=f"managed_resources of {extender['url_prefix']} is empty: all pods would wait for it")
    run = SchedulerExtender(module)
    carry_out(module, run.transaction, run.propose)


if __name__ == "__main__":
    main()
