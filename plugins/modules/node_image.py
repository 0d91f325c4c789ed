#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_image
short_description: Load an image on a Kubernetes node without a registry
version_added: 0.1.0
description:
  - Imports an archive of M(accel.kubernetes.oci_archive) into the container runtime that kubelet uses. Pins the image,
    so that kubelet does not remove it when the disk fills up.
  - Checks the whole archive before the container runtime sees any of it. The archive must hold one image of
    O(repository) with one of O(digests), all parts of it, and nothing else. The runtime gets the checked bytes, under
    the name that O(repository) and O(tag) make.
  - Does nothing if the node has the image with one of these digests under this name.
  - Unpins other images of the same repository. They stay for the pods that were started with them.
  - Does not support CRI-O, and refuses it with O(runtime=auto). Push the image to a registry instead.
options:
  state:
    description: Whether the node has the image. V(absent) removes all images of the repository.
    type: str
    choices: [present, absent]
    default: present
  repository:
    description: Full name of the image without its tag, such as V(localhost/kube-accel).
    type: str
    required: true
  tag:
    description: Tag of the image on the node, instead of the tag in the archive. Required for V(present).
    type: str
  digests:
    description:
      - Digests of the image. containerd identifies an image by the digest of its manifest, and Docker by that of its
        configuration or manifest. Give both. The manifest of the archive must be among them.
      - Required for V(present).
    type: list
    elements: str
  archive:
    description:
      - Path of the archive on the node. The module needs it only if the node does not have the image.
      - Check mode checks an archive that exists, and fails if the import would fail.
      - The file and the directories above it must belong to root or to the module's user, and no other user may be
        able to write there. The module refuses an archive directly in F(/tmp) or F(/var/tmp).
    type: path
  runtime:
    description:
      - Container runtime of kubelet. V(auto) is V(docker) if the node has F(/run/cri-dockerd.sock), and otherwise
        V(containerd).
    type: str
    choices: [auto, containerd, docker]
    default: auto
  command:
    description:
      - Client of the runtime with its first arguments, such as V([k3s, ctr]).
      - The default is C(docker) for Docker. For containerd, it is C(ctr), also that of RKE2 or microk8s, and otherwise
        C(k3s ctr).
    type: list
    elements: str
  socket:
    description:
      - Socket of the runtime. The default is F(/run/k3s/containerd/containerd.sock) on nodes with K3s or RKE2, and
        F(/var/snap/microk8s/common/run/containerd.sock) on nodes with microk8s. Other nodes use the client's default.
    type: path
extends_documentation_fragment:
  - accel.kubernetes.attributes
  - accel.kubernetes.attributes.changing_module
attributes:
  check_mode:
    details: Reads what the runtime has.
  diff_mode:
    details: Shows the images of the repository.
  platform:
    platforms: linux
author:
  - Accel Kubernetes contributors (@accel-kubernetes)
"""

EXAMPLES = r"""
- name: Import the daemon's image
  accel.kubernetes.node_image:
    repository: localhost/kube-accel
    tag: 0.1.0
    digests: ["{{ image.digest }}", "{{ image.id }}"]
    archive: /var/lib/accel-kubernetes/image/kube-accel.tar

- name: Remove the image from an RKE2 node
  accel.kubernetes.node_image:
    state: absent
    repository: localhost/kube-accel
    command: [/var/lib/rancher/rke2/bin/ctr]
    socket: /run/k3s/containerd/containerd.sock
"""

RETURN = r"""
imported:
  description: Whether the archive was, or in check mode would be imported.
  returned: success
  type: bool
  sample: true
images:
  description: Names of the repository's images before.
  returned: success
  type: list
  elements: str
  sample: [localhost/kube-accel:0.0.9]
"""

import json
import os
from typing import Any, Dict, Iterable, List, Sequence

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.accel.kubernetes.plugins.module_utils.host import fed_command
from ansible_collections.accel.kubernetes.plugins.module_utils.host.trusted_path import UntrustedError
from ansible_collections.accel.kubernetes.plugins.module_utils.oci.image import ImageError
from ansible_collections.accel.kubernetes.plugins.module_utils.oci.node_images import (
    Containerd,
    Docker,
    NodeImageError,
    Plan,
    Runtime,
    Stored,
    carry_out,
    look_into,
    plan_absent,
    plan_present,
)

CRI_DOCKERD = "/run/cri-dockerd.sock"
CRIO = "/run/crio/crio.sock"
SOCKETS = ("/run/k3s/containerd/containerd.sock", "/var/snap/microk8s/common/run/containerd.sock")
"""The sockets of containerds that come with their Kubernetes, whose kubelet uses no other."""
BINARIES = ["/var/lib/rancher/rke2/bin", "/snap/microk8s/current/bin"]


class NodeImage:
    """One run of the module."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.params = module.params
        module.run_command_environ_update = {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}

    def run(self) -> Dict[str, Any]:
        """Do what is missing and return the result."""
        repository, tag, digests = (self.params[key] for key in ("repository", "tag", "digests"))
        runtime = self._runtime()
        before = self._mine(runtime)
        present = self.params["state"] == "present"
        plan = plan_present(before, repository, tag, digests) if present else plan_absent(before, repository)
        archive = self.params["archive"] or ""
        is_there = os.path.lexists(archive)
        if self.module.check_mode:
            if plan.load and is_there:
                look_into(archive, repository, digests)
        elif not plan.empty:
            if plan.load and not is_there:
                raise NodeImageError(f"the node has no {repository}:{tag}, and 'archive' names no file: {archive!r}")
            carry_out(plan, runtime, archive, repository, tag, digests)
        after = _planned(before, plan, repository, tag) if self.module.check_mode else self._mine(runtime)
        return {
            "changed": not plan.empty,
            "imported": plan.load,
            "images": [image.name for image in before],
            "diff": {"before": _shown(before), "after": _shown(after)},
        }

    def _mine(self, runtime: Runtime) -> List[Stored]:
        prefix = f"{self.params['repository']}:"
        return sorted((image for image in runtime.images() if image.name.startswith(prefix)), key=lambda i: i.name)

    def _runtime(self) -> Runtime:
        kind, socket, command = (self.params[key] for key in ("runtime", "socket", "command"))
        if kind == "docker" or (kind == "auto" and os.path.exists(CRI_DOCKERD)):
            return Docker(self._call, [*(command or ["docker"]), *(["--host", f"unix://{socket}"] if socket else [])])
        bundled = [path for path in SOCKETS if os.path.exists(path)]
        unnamed = kind == "auto" and not (bundled or command or socket)
        if unnamed and self.params["state"] == "present" and os.path.exists(CRIO):
            raise NodeImageError(
                f"this node has CRI-O ({CRIO} exists), which takes no image from an archive; push the image to a "
                "registry, or say by 'runtime' what else kubelet uses here"
            )
        if not command:
            command = ["ctr"]
            if not self.module.get_bin_path("ctr", opt_dirs=BINARIES) and self.module.get_bin_path("k3s"):
                command = ["k3s", "ctr"]
        if not socket and bundled:
            socket = bundled[0]
        return Containerd(self._call, [*command, *(["--address", socket] if socket else [])])

    def _call(self, command: Sequence[str], data: Iterable[bytes] = ()) -> str:
        program = self.module.get_bin_path(command[0], opt_dirs=BINARIES)
        if program is None:
            raise NodeImageError(
                f"there is no {command[0]} here to ask the container runtime with; see 'runtime' and 'command'"
            )
        argv = [program, *command[1:]]
        if data:
            environment = dict(os.environ, **self.module.run_command_environ_update)
            code, err = fed_command.run(argv, data, environment, self.module.tmpdir)
            out = ""
        else:
            code, out, err = self.module.run_command(argv)
        if code:
            said = (err or out).strip()[-800:]
            hint = "; see 'socket'" if "sock" in said else ""
            raise NodeImageError(f"{' '.join(command)} failed: {said}{hint}")
        return str(out)


def _planned(before: List[Stored], plan: Plan, repository: str, tag: str) -> List[Stored]:
    """Return what a run would leave, for the difference that check mode shows."""
    name = f"{repository}:{tag}"
    after = [
        Stored(image.name, image.digest, image.pinned and image.name not in plan.unpin)
        for image in before
        if image.name not in plan.remove and not (plan.pin and image.name == name)
    ]
    return [*after, Stored(name, "", True)] if plan.pin else after


def _shown(images: List[Stored]) -> str:
    return json.dumps({image.name: "pinned" if image.pinned else "not pinned" for image in images}, indent=2) + "\n"


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "repository": {"type": "str", "required": True},
            "tag": {"type": "str"},
            "digests": {"type": "list", "elements": "str"},
            "archive": {"type": "path"},
            "runtime": {"type": "str", "choices": ["auto", "containerd", "docker"], "default": "auto"},
            "command": {"type": "list", "elements": "str"},
            "socket": {"type": "path"},
        },
        required_if=[("state", "present", ["tag", "digests"])],
        supports_check_mode=True,
    )
    try:
        result = NodeImage(module).run()
    except (ImageError, NodeImageError, UntrustedError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"the image was not imported: {error}")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
