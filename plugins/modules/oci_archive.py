#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: oci_archive
short_description: Assemble a container image from a root file system and Python wheels
version_added: 0.1.0
description:
  - Assembles a container image without a builder, and without running anything in it. Writes it as one archive, which
    C(ctr images import), C(docker load), C(podman load), and C(skopeo) read.
  - The image has the layers of the base, and one layer with the wheels and files. With a new version, only this layer
    changes.
  - The same input makes the same bytes. Entries are sorted and have no times. Files of the base keep their owners, and
    added files belong to root.
  - Unpacks wheels to where the image's Python looks for them, checks each file against the wheel's list, and creates
    their console scripts. Compiles Python modules to byte code, which saves memory and time at each start. This needs
    a Python of the same version on the machine that runs this module.
  - Can push the image to a registry. It sends only the parts that the registry lacks.
options:
  path:
    description:
      - Path of the archive. The module replaces it in one step, so that it is always the old or the new one.
      - The module refuses a file of another user. It replaces an archive that holds more than the image.
    type: path
    required: true
  reference:
    description:
      - Name of the image, such as V(registry.example.com/gpu/kube-accel:0.1.0).
      - A name without a registry is one of V(docker.io), as for Docker and Kubernetes.
    type: str
    required: true
  architecture:
    description: Processor architecture of the image. The base and the wheels must be for it.
    type: str
    choices: [amd64, arm64]
    default: amd64
  base:
    description:
      - Path of the base, which is a directory or a tar archive. It holds a root file system or a saved image. A saved
        image is an OCI image layout (C(skopeo copy docker://... oci:DIRECTORY), C(oci-archive:FILE)), or the output of
        C(docker save).
      - Archives and layers can be compressed with gzip, xz, bzip2, or zstd. For zstd, the module needs Python 3.14, the
        Python library C(zstandard), or the program C(zstd). The new image has all layers compressed with gzip, which
        every runtime reads. containerd does not read layers in xz or bzip2.
      - If the base has several platforms, the module takes the image for O(architecture), and of several variants the
        one for the oldest processors. It ignores attestations and signatures. It refuses several images for one
        architecture.
      - The module reads the layers as container runtimes unpack them, with whiteouts and links. If runtimes differ, for
        example about a hard link to a file of a lower layer, the module warns. It keeps the layers, and the
        configuration that no option changes.
      - From a root file system, the module leaves out device nodes, sockets, and extended attributes. In a directory,
        files of the directory's owner will belong to root.
    type: path
    required: true
  base_exclude:
    description:
      - Shell patterns of paths to leave out of a root file system, with everything below. V(*) matches C(/) too.
      - Not for a saved image.
    type: list
    elements: str
    default: []
  wheels:
    description: Wheels to unpack, with everything they depend on. Nothing is downloaded.
    type: list
    elements: path
    default: []
  files:
    description: Files and directories to add.
    type: list
    elements: dict
    default: []
    suboptions:
      src:
        description: File or directory on the machine that runs this module.
        type: path
        required: true
      dest:
        description: Absolute path in the image.
        type: str
        required: true
      mode:
        description:
          - Permissions of the file, or of each file in the directory, such as V('0755').
          - The default is V('0755') for programs, and V('0644') for other files.
        type: str
  entrypoint:
    description: Program that a container runs, with its first arguments. The default is that of the base.
    type: list
    elements: str
  command:
    description: Arguments of the program that a container can replace. The default is that of the base, or none with
      O(entrypoint).
    type: list
    elements: str
  env:
    description: Environment variables to add.
    type: dict
  labels:
    description: Labels to add.
    type: dict
  user:
    description: User of the program, or user and group, such as V(65532:65532).
    type: str
  push:
    description: Whether to push the image to the registry and the tag that O(reference) names.
    type: bool
    default: false
  index:
    description:
      - Whether the tag names an index of images, one for each architecture. Images for other architectures stay in it.
      - Only with O(push). Push one architecture after the other.
    type: bool
    default: false
  username:
    description: User of the registry.
    type: str
  password:
    description: Password of O(username).
    type: str
  token:
    description: Bearer token for the registry, for instance from a cloud's command line.
    type: str
  ca_path:
    description: Path of a PEM file with the certificate authorities of the registry. The default is the system's.
    type: path
  insecure:
    description: Whether to use plain HTTP. With HTTPS, the module always verifies the registry's certificate.
    type: bool
    default: false
  timeout:
    description: Seconds to wait for an answer or progress of the registry.
    type: float
    default: 60
extends_documentation_fragment:
  - accel.kubernetes.attributes
  - accel.kubernetes.attributes.changing_module
attributes:
  check_mode:
    details: Assembles the image in the temporary directory. Reads from a registry, and sends nothing to it.
  diff_mode:
    details: Shows configuration and digests.
  platform:
    platforms: linux
author:
  - Accel Kubernetes contributors (@accel-kubernetes)
"""

EXAMPLES = r"""
- name: Assemble the daemon's image
  accel.kubernetes.oci_archive:
    path: /srv/images/kube-accel.tar
    reference: registry.example.com/gpu/kube-accel:0.1.0
    base: /srv/bookworm # debootstrap --variant=minbase --include=python3 bookworm /srv/bookworm
    base_exclude: [usr/share/doc/*, usr/share/man/*, var/cache/*, var/lib/apt/lists/*, var/log/*]
    wheels: "{{ query('ansible.builtin.fileglob', '/srv/wheels/*.whl') }}"
    entrypoint: [kube-accel]

- name: Build upon an image and push the result
  accel.kubernetes.oci_archive:
    path: /srv/images/kube-accel-arm64.tar
    reference: registry.example.com/gpu/kube-accel:0.1.0-arm64
    architecture: arm64
    base: /srv/images/python-3.12-arm64.tar
    wheels: "{{ query('ansible.builtin.fileglob', '/srv/wheels-arm64/*.whl') }}"
    entrypoint: [kube-accel]
    push: true
    username: robot
    password: "{{ registry_password }}"
  register: image

- name: Name exactly this image
  ansible.builtin.debug:
    msg: "{{ image.image }}"
"""

RETURN = r"""
reference:
  description: Full name of the image, as a node that imported the archive has it.
  returned: success
  type: str
  sample: registry.example.com/gpu/kube-accel:0.1.0
digest:
  description: Digest of its manifest.
  returned: success
  type: str
  sample: sha256:0a8d2c0d0a1cf6cd4ab8bb1f1f3a7e6f9a0f3e6cd1c0a4f2cf2d9ef7c1c1c3aa
id:
  description: Digest of its configuration, by which Docker names an image.
  returned: success
  type: str
  sample: sha256:8b0ad02e1b1e70f88fbffbf215ffbc2878a99d4eaedc10038143dcaf176b44a3
image:
  description:
    - Name that stands for exactly this image, in the registry it was pushed to. With O(index) it stands for the index.
  returned: success
  type: str
  sample: registry.example.com/gpu/kube-accel@sha256:0a8d2c0d0a1cf6cd4ab8bb1f1f3a7e6f9a0f3e6cd1c0a4f2cf2d9ef7c1c1c3aa
config:
  description: Configuration of the image.
  returned: success
  type: dict
  sample: {"architecture": "amd64", "os": "linux", "config": {"Entrypoint": ["kube-accel"]}}
layers:
  description: Its layers, the base first. C(digest) and C(size) are of the compressed layer, C(diff_id) of its tar.
  returned: success
  type: list
  elements: dict
  sample: [{"digest": "sha256:ab12", "diff_id": "sha256:cd34", "size": 1048576}]
compiled:
  description: How many Python modules got byte code here. Null when no Python of the image's version is at hand.
  returned: success
  type: int
  sample: 312
published:
  description: Whether the tag in the registry named something else, and now, or but for check mode, names this image.
  returned: success
  type: bool
  sample: true
pushed:
  description: Digests of what the registry lacked and was sent. Empty when nothing was.
  returned: success
  type: list
  elements: str
  sample: [sha256:ab12]
"""

import json
import os
import subprocess
import tempfile
from typing import Any, Dict, List, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.accel.kubernetes.plugins.module_utils.oci import (
    archive as image_archive,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.oci import (
    bytecode as oci_bytecode,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.oci import (
    image as oci_image,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.oci import (
    store as oci_store,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.oci import (
    wheel as oci_wheel,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.oci.image import Image, ImageError, Tree
from ansible_collections.accel.kubernetes.plugins.module_utils.oci.python_tree import (
    cache_path,
    check_machine,
    find_python,
    freeze_byte_code,
    sources,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.oci.registry import Access, Registry, RegistryError


class OciArchive:
    """One run of the module."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.params = module.params
        self.directory = tempfile.mkdtemp(dir=module.tmpdir)
        self.store = oci_store.Store(self.directory)
        self.compiled: int | None = 0

    def run(self) -> Dict[str, Any]:
        """Make what is missing and return the result."""
        path = self.params["path"]
        reference = oci_image.parse_reference(self.params["reference"])
        # In check mode the task that makes the directory only said so.
        directory = self.module.check_mode or os.path.isdir(os.path.dirname(os.path.realpath(path)))
        if not directory or os.path.isdir(path):
            raise ImageError(f"path {path} has to name a file in a directory that exists")
        if os.path.lexists(path) and os.lstat(path).st_uid not in (0, os.geteuid()):
            raise ImageError(
                f"path {path} belongs to the user {os.lstat(path).st_uid}, who could change the archive; remove it, or "
                "name a path in a directory of your own"
            )
        before = self.store.image(path)
        image = self._assemble(reference, before)
        summary = oci_image.summary(image)
        new = summary != oci_image.summary(before) or not self._alone(path, image)
        if new and not self.module.check_mode:
            oci_store.write_archive(image, path, self.module.atomic_move)
        digest, pushing, pushed = summary["digest"], False, []
        if self.params["push"]:
            digest, pushing, pushed = self._push(reference, image)
        return {
            **summary,
            "changed": new or pushing,
            "image": f"{reference.registry}/{reference.repository}@{digest}",
            "compiled": self.compiled,
            "published": pushing,
            "pushed": pushed,
            "diff": {
                "before_header": path,
                "after_header": path,
                "before": _shown(before),
                "after": _shown(image),
            },
        }

    def _alone(self, path: str, image: Image) -> bool:
        """Return whether the existing archive holds this image and nothing else, as nodes demand it."""
        repository = image.reference.rpartition(":")[0]
        try:
            with open(path, "rb") as archive:
                image_archive.check(archive, path, repository, [image.manifest.digest])
        except ImageError:
            return False
        return True

    def _assemble(self, reference: oci_image.Reference, before: Image | None) -> Image:
        architecture = self.params["architecture"]
        base = self.store.base(self.params["base"], architecture)
        for doubt in base.doubts:
            self.module.warn(doubt)
        known = {layer.diff_id: layer for layer in before.layers} if before else {}
        lower = base.tree
        if base.image is None:
            lower = freeze_byte_code(oci_image.exclude(lower, self.params["base_exclude"]))
        elif self.params["base_exclude"]:
            raise ImageError("base_exclude is for root file systems: the layers of a saved image are kept whole")
        upper = oci_image.place(lower, self._additions(lower, architecture))
        lower_code, upper_code = self._byte_code(lower, upper)
        if base.image is None:
            lower = oci_image.with_parents({**lower, **lower_code}, "the base")
            layers = [self.store.layer(lower, known)]
        else:
            upper_code.update(lower_code)
            layers = list(base.image.layers)
        upper.update(oci_image.place({**lower, **upper}, upper_code))
        if upper:
            layers.append(self.store.layer(upper, known))
        settings = oci_image.Settings(
            self.params["entrypoint"],
            self.params["command"],
            _strings(self.params["env"]),
            _strings(self.params["labels"]),
            self.params["user"],
        )
        return oci_image.build(reference, architecture, settings, base.image.config if base.image else {}, layers)

    def _additions(self, lower: Tree, architecture: str) -> Tree:
        parts: List[Tuple[str, Tree]] = []
        if self.params["wheels"]:
            python = find_python(lower)
            check_machine(lower, python.path, architecture)
            wheels = [oci_wheel.read(path, python, architecture) for path in sorted(self.params["wheels"])]
            parts += [(wheel.origin, oci_wheel.install(wheel, python)) for wheel in wheels]
            missing = oci_wheel.missing(wheels, lower)
            if missing:
                self.module.warn(f"The wheels need {', '.join(missing)}, which neither they nor the base bring.")
        for number, file in enumerate(self.params["files"]):
            origin = f"files[{number}] ({file['src']})"
            if not file["dest"].startswith("/"):
                raise ImageError(f"{origin} has to have an absolute 'dest', not {file['dest']!r}")
            try:
                mode = None if file["mode"] is None else int(file["mode"], 8)
            except ValueError as error:
                raise ImageError(f"{origin} has the mode {file['mode']!r}; write it in octal, as '0755'") from error
            parts.append((origin, oci_store.files_tree(file["src"], file["dest"], mode, origin)))
        return oci_image.combine(parts)

    def _byte_code(self, lower: Tree, upper: Tree) -> Tuple[Tree, Tree]:
        """Byte code that the base's modules lack, and that of what is added."""
        if not self.params["wheels"]:
            return {}, {}
        python = find_python(lower)
        command = oci_bytecode.interpreter(python)
        if command is None:
            self.compiled = None
            version = f"3.{python.minor}"
            self.module.warn(
                f"The Python modules were not byte-compiled: the image has Python {version}, and no python{version} is "
                "on PATH here. The image works, but starts more slowly and takes more memory."
            )
            return {}, {}
        merged = {**lower, **upper}
        paths = sources(merged, python)
        code = oci_bytecode.compile_all(command, merged, paths, python, self.directory)
        self.compiled = len(code)
        added = {cache_path(path, python.tag) for path in upper if path.endswith(".py")}
        return (
            {path: entry for path, entry in code.items() if path not in added},
            {path: entry for path, entry in code.items() if path in added},
        )

    def _push(self, reference: oci_image.Reference, image: Image) -> Tuple[str, bool, List[str]]:
        """Digest of what the tag then names, whether it named something else, and what was sent."""
        access = Access(
            self.params["username"] or "",
            self.params["password"] or "",
            self.params["token"] or "",
            self.params["ca_path"],
            self.params["insecure"],
            self.params["timeout"],
        )
        registry = Registry(reference, access)
        index, lacks = registry.index(image) if self.params["index"] else (None, registry.lacks(image))
        sent = registry.push(image, index) if lacks and not self.module.check_mode else []
        return (index or image.manifest).digest, lacks, sent


def _shown(image: Image | None) -> str:
    return json.dumps(oci_image.summary(image), indent=2, sort_keys=True) + "\n" if image else ""


def _strings(values: Dict[str, Any] | None) -> Dict[str, str] | None:
    return None if values is None else {str(name): str(value) for name, value in values.items()}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "reference": {"type": "str", "required": True},
            "architecture": {"type": "str", "choices": ["amd64", "arm64"], "default": "amd64"},
            "base": {"type": "path", "required": True},
            "base_exclude": {"type": "list", "elements": "str", "default": []},
            "wheels": {"type": "list", "elements": "path", "default": []},
            "files": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "src": {"type": "path", "required": True},
                    "dest": {"type": "str", "required": True},
                    "mode": {"type": "str"},
                },
            },
            "entrypoint": {"type": "list", "elements": "str"},
            "command": {"type": "list", "elements": "str"},
            "env": {"type": "dict"},
            "labels": {"type": "dict"},
            "user": {"type": "str"},
            "push": {"type": "bool", "default": False},
            "index": {"type": "bool", "default": False},
            "username": {"type": "str"},
            "password": {"type": "str", "no_log": True},
            "token": {"type": "str", "no_log": True},
            "ca_path": {"type": "path"},
            "insecure": {"type": "bool", "default": False},
            "timeout": {"type": "float", "default": 60},
        },
        mutually_exclusive=[("token", "username"), ("ca_path", "insecure")],
        required_together=[("username", "password")],
        supports_check_mode=True,
    )
    try:
        result = OciArchive(module).run()
    except (ImageError, RegistryError) as error:
        module.fail_json(msg=str(error))
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip()[-800:]
        module.fail_json(msg=f"byte-compiling with {error.cmd[0]} failed: {said}")
    except OSError as error:
        module.fail_json(msg=f"the image was not made: {error}")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
