#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_support_bundle
short_description: Collect data about a cluster's GPUs in one archive, without secrets
version_added: 0.1.0
description:
  - Collects data from the API server, and writes it to one tar.gz on the host that runs the module.
  - The data are versions, GPU allocations, a diagnosis, nodes, and metrics of the plugins. They are also the
    workloads, ConfigMaps, and pods of this collection, with their events and the ends of their logs.
  - Never reads Secrets. Leaves out values of environment variables, except those known to be harmless. Removes
    everything that looks like or is named a password, token, key, certificate, or URL with a password.
  - O(pod) adds this pod to the archive. With O(node), or a pod that has a node, the archive contains this node alone.
  - The archive's C(manifest.json) lists its files, and the data that the module could not read.
options:
  path:
    description: Path of the archive. The module replaces the file at once. Only its owner can read it.
    type: path
    required: true
extends_documentation_fragment:
  - kubernetes.core.k8s_auth_options
  - accel.kubernetes.attributes
  - accel.kubernetes.attributes.changing_module
  - accel.kubernetes.subject
requirements:
  - kubernetes
attributes:
  diff_mode:
    support: none
  idempotent:
    support: partial
    details: The archive changes when data of the cluster change. Logs and metrics usually do.
seealso:
  - module: accel.kubernetes.gpu_diagnose_info
author:
  - Accel Kubernetes contributors (@accel-kubernetes)
"""

EXAMPLES = r"""
- name: Create the support bundle
  accel.kubernetes.gpu_support_bundle:
    path: ~/gpu-support.tar.gz
    pod: {name: train-0, namespace: team-a}
"""

RETURN = r"""
path:
  description: Path of the archive.
  returned: success
  type: str
  sample: /home/me/gpu-support.tar.gz
bytes:
  description: Size of the archive.
  returned: success
  type: int
  sample: 84213
contents:
  description: Names of the files in the archive.
  returned: success
  type: list
  elements: str
  sample: [diagnosis.json, inspection.json, logs/kube-system_gpu-manager-daemonset-x_kube-accel.log, versions.json]
problems:
  description: Data that the module could not read, each with its cause.
  returned: success
  type: list
  elements: str
complete:
  description: Whether there are no such problems.
  returned: success
  type: bool
"""

import copy
import os
from typing import Optional

from ansible.module_utils.ansible_release import __version__
from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.api_server import ApiServerError, explained
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.collect import SUBJECT_SPEC, Collector, subject
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.support_collect import collect
from ansible_collections.accel.kubernetes.plugins.module_utils.host.replaced_file import replace_file
from ansible_collections.accel.kubernetes.plugins.module_utils.shared import printable
from ansible_collections.kubernetes.core.plugins.module_utils.args_common import AUTH_ARG_SPEC
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.client import get_api_client
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.core import AnsibleK8SModule


def main() -> None:
    """Run the module."""
    module = AnsibleK8SModule(
        argument_spec={"path": {"type": "path", "required": True}, **copy.deepcopy(AUTH_ARG_SPEC), **SUBJECT_SPEC},
        mutually_exclusive=[("pod", "node")],
        supports_check_mode=True,
    )
    path = os.path.abspath(module.params["path"])
    try:
        before = _read(path)
        with explained():
            client = get_api_client(module=module)
        bundle = collect(Collector(client, module.params["plugins_namespace"]), *subject(module.params), __version__)
        archive = bundle.archive()
        if archive != before and not module.check_mode:
            replace_file(path, archive, 0o600)
    except ApiServerError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{path} cannot be written: {error.strerror}; name a file in a directory of yours")
    module.exit_json(
        changed=archive != before,
        path=path,
        bytes=len(archive),
        contents=sorted(bundle.files),
        problems=printable.lines(bundle.problems),
        complete=not bundle.problems,
    )


def _read(path: str) -> Optional[bytes]:
    """Return what is at a path that others cannot read; None if nothing. Raises OSError for what is no file."""
    try:
        # Non-blocking: a FIFO of others would keep us here.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            private = os.fstat(file.fileno()).st_mode & 0o077 == 0
            return file.read() if private else None
    except FileNotFoundError:
        return None


if __name__ == "__main__":
    main()
