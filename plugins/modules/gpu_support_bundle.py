#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_support_bundle
short_description: Put what tells about a cluster's GPUs into one archive, without secrets
version_added: 0.1.0
description:
  - Collects data from the API server into one tar.gz where the module runs. These are versions, allocations of GPUs,
    a diagnosis, nodes, workloads, ConfigMaps and pods of this collection, their events, the ends of their logs, and
    metrics of the plugins.
  - Never reads Secrets. Leaves out values of environment variables, except those known to be harmless. Removes
    everything that looks like or is named a password, token, key, certificate, or URL with a password.
  - With O(pod) that pod is in the archive, too; with O(node), or a pod that has a node, no other node is.
  - The archive's C(manifest.json) lists what is in it, and what could not be had.
options:
  path:
    description: The archive. It is replaced as a whole, and its owner alone may read it.
    type: path
    required: true
extends_documentation_fragment:
  - kubernetes.core.k8s_auth_options
  - accel.kubernetes.attributes
  - accel.kubernetes.subject
requirements:
  - kubernetes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: partial
    details: The archive is the same while the cluster tells the same, which logs and metrics seldom do.
  platform:
    support: full
    platforms: posix
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
  description: Where the archive is.
  returned: success
  type: str
  sample: /home/me/gpu-support.tar.gz
bytes:
  description: Its size.
  returned: success
  type: int
  sample: 84213
contents:
  description: What is in it.
  returned: success
  type: list
  elements: str
  sample: [diagnosis.json, inspection.json, logs/kube-system_gpu-manager-daemonset-x_kube-accel.log, versions.json]
problems:
  description: What could not be had, one sentence each.
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
