#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cuda_compat
short_description: Check whether a CUDA program runs on a machine
version_added: 0.1.0
description:
  - Compares what a program was built with to a machine's driver and GPUs. Returns V(ok), V(unknown), V(unstable), or
    V(blocked), the rule that decides, and what to do.
  - V(unknown) means that too little is known about the program or the machine.
  - The machine is O(facts) that M(accel.kubernetes.nvml_facts) returned, a O(node) with the labels of GPU feature
    discovery, or the node of a O(pod). The program is described by options, or read from an O(image) or the O(pod).
  - Options override the image.
  - The CUDA of an image or container is the newest of C(CUDA_VERSION), C(NV_CUDA_CUDART_VERSION) or NVIDIA's label and
    of a runtime among O(files) or in its layers (O(layers_mib)). Where there is none, it is what the image's tag or the
    commands in its history name, and at last the least that C(NVIDIA_REQUIRE_CUDA) asks for.
  - An image that brings NVIDIA's forward compatibility package is known by the driver branches in its
    C(NVIDIA_REQUIRE_CUDA). It does not count in the modes that share GPUs, where the interposer is the driver's
    library.
  - Explains CUDA's error codes, too. Changes nothing.
options:
  facts:
    description: The machine, as RV(accel.kubernetes.nvml_facts#module:nvml).
    type: dict
  node:
    description: The machine, as the name of a node. The module reads the node's labels.
    type: str
  pod:
    description: A pod. The module checks its containers that request GPUs, on the pod's node.
    type: dict
    suboptions:
      name:
        description: Name of the pod.
        type: str
        required: true
      namespace:
        description: Namespace of the pod.
        type: str
        default: default
      read_image:
        description: Whether to read the pod's images from their registry. Otherwise the module knows only the pod's
          own environment.
        type: bool
        default: true
  image:
    description: The program, as an image. The module reads its environment and labels from the registry.
    type: str
  registry:
    description: How to reach the registry of O(image) and of the O(pod)'s images.
    type: dict
    default: {}
    suboptions:
      username:
        description: User of the registry.
        type: str
        default: ""
      password:
        description: Password of O(registry.username).
        type: str
        default: ""
      token:
        description: Bearer token for it.
        type: str
        default: ""
      ca_path:
        description: PEM file with certificate authorities for the registry's certificate, instead of the system's.
        type: path
      insecure:
        description: Whether to use plain HTTP. HTTPS is always verified.
        type: bool
        default: false
      timeout:
        description: Seconds that a request may take without an answer or progress.
        type: float
        default: 60
  architecture:
    description: Architecture of the image to use.
    type: str
    default: amd64
  environment:
    description: Environment variables of the program's image or container. They override those of O(image).
    type: dict
    default: {}
  labels:
    description: Labels of the program's image. They override those of O(image).
    type: dict
    default: {}
  files:
    description:
      - Names of files and packages of the program, in the format of C(find), C(pip freeze), C(conda list),
        C(dpkg-query), or C(rpm). The module knows the CUDA runtime by names such as C(libcudart.so.12.4.127),
        C(nvidia-cuda-runtime-cu12==12.4.127), C(torch==2.6.0+cu124) and C(cuda-cudart-12-4).
    type: list
    elements: str
    default: []
  layers_mib:
    description:
      - MiB of an image's layers that may be downloaded, to look for such names, where nothing else says which CUDA it
        has. The last layers come first, and a larger layer is left out. V(0) downloads none.
    type: int
    default: 0
  cuda_version:
    description: CUDA version that the program was built with, such as V(12.4).
    type: str
    default: ""
  compat_version:
    description: CUDA version of the program's forward compatibility package, such as V(12.4).
    type: str
    default: ""
  ptx:
    description: Whether the driver compiles PTX of the program. If omitted, it may.
    type: bool
  dtype:
    description: Number format that the program computes in, such as V(bf16), V(fp16), or V(fp8), or PyTorch's name
      for it.
    type: str
    default: ""
  model:
    description: Published model that the program serves. Its name tells the number format. O(dtype) overrides it.
    type: str
    default: ""
  mode:
    description: Mode in which the program gets its GPU, as in the inventory variable C(gpu_mode).
    type: str
    choices: ["", pgpu, vgpu, mps, cgpu]
    default: ""
  cores:
    description: Percent of a GPU that the program gets. A multiple of 100 stands for whole GPUs, to which
      virtualization does not apply.
    type: int
    default: 0
  virtualization_version:
    description:
      - CUDA version that the node's GPU virtualization was built for, such as V(12.4) for Tencent's GPU manager.
        Empty without GPU virtualization.
    type: str
    default: ""
  errors:
    description: CUDA error codes or names to explain.
    type: list
    elements: str
extends_documentation_fragment:
  - kubernetes.core.k8s_auth_options
  - accel.kubernetes.attributes
  - accel.kubernetes.attributes.info_module
requirements:
  - kubernetes, for O(node) and O(pod)
seealso:
  - module: accel.kubernetes.nvml_facts
author:
  - Accel Kubernetes contributors (@accel-kubernetes)
"""

EXAMPLES = r"""
- name: Read the GPUs
  accel.kubernetes.nvml_facts:

- name: Check whether CUDA 13.0 runs on the host
  accel.kubernetes.cuda_compat:
    facts: "{{ ansible_facts.accel_nvml }}"
    cuda_version: "13.0"
  register: answer

- name: Check an image without CUDA variables
  accel.kubernetes.cuda_compat:
    facts: "{{ ansible_facts.accel_nvml }}"
    image: registry.example.com/team/train:1
    layers_mib: 8192

- name: Fail if CUDA 13.0 does not run
  ansible.builtin.assert:
    that: answer.verdict != 'blocked'
    fail_msg: "{{ answer.reason }}. {{ answer.remedy }}"

- name: Check an image with a bfloat16 model on a node
  accel.kubernetes.cuda_compat:
    node: gpu-1
    image: docker.io/vllm/vllm-openai:v0.10.0
    model: meta-llama/Llama-3.1-8B-Instruct
  delegate_to: localhost

- name: Diagnose a pod that ended with an error
  accel.kubernetes.cuda_compat:
    pod: {name: train, namespace: team-a}
    errors: [CUDA_ERROR_UNSUPPORTED_PTX_VERSION]
  delegate_to: localhost
"""

RETURN = r"""
verdict:
  description: The worst verdict of RV(checks). V(ok) if there was nothing to check.
  returned: success
  type: str
  sample: blocked
rule:
  description: Which rule decided it.
  returned: success
  type: str
  sample: driver_is_older
reason:
  description: What was found.
  returned: success
  type: str
  sample: "the driver supports CUDA 12.2 and the program was built with 13.0: CUDA_ERROR_UNKNOWN (999) or error 35"
remedy:
  description: What to do. Empty when nothing is wrong.
  returned: success
  type: str
  sample: Upgrade the driver to branch 580 or newer, or use an image of CUDA 12.2.
checks:
  description: One for the program, or one for each container of the O(pod) that asks for GPUs.
  returned: success
  type: list
  elements: dict
  contains:
    subject:
      description: The program, image or container.
      returned: success
      type: str
      sample: team-a/train main
    verdict:
      description: V(ok), V(unknown), V(unstable) or V(blocked), from the best to the worst.
      returned: success
      type: str
      sample: blocked
    rule:
      description: Which rule decided it.
      returned: success
      type: str
      sample: driver_is_older
    reason:
      description: What was found.
      returned: success
      type: str
    remedy:
      description: What to do.
      returned: success
      type: str
    findings:
      description: What each rule said, the worst first.
      returned: success
      type: list
      elements: dict
      sample: [{"verdict": "ok", "rule": "driver_is_newer", "reason": "...", "remedy": ""}]
errors:
  description: Explanations of O(errors). An unknown error has no name.
  returned: success
  type: list
  elements: dict
  sample:
    - code: 222
      name: CUDA_ERROR_UNSUPPORTED_PTX_VERSION
      cause: The program's PTX needs a newer CUDA than the driver's. Minor version compatibility does not cover PTX.
      remedy: Recompile for the GPU's sm_xx, which needs no PTX, or upgrade the driver to the program's CUDA.
"""

import copy
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.api_server import ApiServerError, explained, one
from ansible_collections.accel.kubernetes.plugins.module_utils.cuda import (
    compat as cuda_compat,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.cuda import (
    needs as cuda_needs,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.cuda import (
    tables as cuda_tables,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.cuda.compat import Decision, Needs, version_of
from ansible_collections.accel.kubernetes.plugins.module_utils.cuda.errors import explain
from ansible_collections.accel.kubernetes.plugins.module_utils.cuda.needs import Told
from ansible_collections.accel.kubernetes.plugins.module_utils.cuda.runtimes import runtime_of_names
from ansible_collections.accel.kubernetes.plugins.module_utils.oci.contents import names_in_layers
from ansible_collections.accel.kubernetes.plugins.module_utils.oci.image import ImageError, Reference, parse_reference
from ansible_collections.accel.kubernetes.plugins.module_utils.oci.registry import Access, Registry, RegistryError
from ansible_collections.accel.kubernetes.plugins.module_utils.shared import printable
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.api_json import checked
from ansible_collections.kubernetes.core.plugins.module_utils.args_common import AUTH_ARG_SPEC
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.client import get_api_client
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.core import AnsibleK8SModule


@dataclass(frozen=True)
class Image:
    """What is known of an image."""

    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    told: Told = field(default_factory=Told)


class Asked:
    """The module's options, and the cluster and registries they name."""

    def __init__(self, module: AnsibleK8SModule) -> None:
        self.module = module
        self.params = module.params
        self._client: Any = None

    def decisions(self) -> Iterator[Tuple[str, Decision]]:
        """Subject and decision of each check."""
        needs = self._needs()
        if self.params["pod"]:
            yield from self._containers(needs, self.params["pod"])
            return
        if self.params["facts"] is None and not self.params["node"]:
            return
        image = self._image(self.params["image"], self.params["architecture"]) if self.params["image"] else Image()
        needs = self._with_image(needs, image)
        if self.params["node"]:
            machine = cuda_needs.machine_of_labels(self._labels(self.params["node"]))
        else:
            machine = cuda_needs.machine_of_facts(self.params["facts"])
        yield self.params["image"] or "program", cuda_compat.decide(machine, needs)

    def _needs(self) -> Needs:
        params = self.params
        return Needs(
            cuda=version_of(params["cuda_version"]),
            compat=version_of(params["compat_version"]),
            ptx=params["ptx"],
            dtype=cuda_tables.canonical(params["dtype"]) if params["dtype"] else cuda_tables.of_model(params["model"]),
            mode=params["mode"],
            cores=params["cores"],
            virtualization=version_of(params["virtualization_version"]),
        )

    def _with_image(self, needs: Needs, image: Image) -> Needs:
        given = {name: str(value) for name, value in self.params["environment"].items()}
        labels = {name: str(value) for name, value in self.params["labels"].items()}
        told = replace(image.told, files=[*self.params["files"], *image.told.files])
        return cuda_needs.needs_of_image(needs, {**image.environment, **given}, {**image.labels, **labels}, told)

    def _containers(self, needs: Needs, options: Dict[str, Any]) -> Iterator[Tuple[str, Decision]]:
        pod = self._get("Pod", options["name"], options["namespace"], cuda_needs.read_pod)
        node = pod["spec"].get("nodeName")
        named = f"{options['namespace']}/{options['name']}"
        if self.params["facts"] is not None:
            machine, architecture = cuda_needs.machine_of_facts(self.params["facts"]), self.params["architecture"]
        elif self.params["node"] or node:
            labels = self._labels(self.params["node"] or node)
            machine = cuda_needs.machine_of_labels(labels)
            architecture = labels.get("kubernetes.io/arch", self.params["architecture"])
        else:
            self.module.fail_json(msg=f"pod {named} is on no node yet; name one it is meant for in 'node'")
        remedy = f"See kubectl --namespace {options['namespace']} get pod {options['name']} -o yaml, and correct it."
        for name, container, problem in cuda_needs.containers(pod):
            asks = None if problem else cuda_needs.needs_of_container(needs, container)
            try:
                if asks is not None:
                    asks = self._of_container(asks, container, architecture if options["read_image"] else "")
            except ImageError as error:
                problem = str(error)
            if problem:
                yield f"{named} {name}", cuda_compat.not_read(problem, remedy)
            elif asks is not None:
                yield f"{named} {name}", cuda_compat.decide(machine, asks)

    def _of_container(self, needs: Needs, container: Mapping[str, Any], architecture: str) -> Needs:
        """``needs`` with what its image, for this architecture if any, and its environment say. Raises ImageError."""
        image = Image(told=Told(reference=container["image"]))
        if architecture:
            image = self._image(container["image"], architecture)
        environment = {**image.environment, **cuda_needs.environment_of(container)}
        return self._with_image(needs, replace(image, environment=environment))

    def _image(self, name: str, architecture: str) -> Image:
        """Return what a registry says of an image, and names in its layers where it says nothing of CUDA."""
        tagged, _at, digest = name.partition("@")
        reference = parse_reference(tagged)
        if digest:
            reference = Reference(reference.registry, reference.repository, digest)
        registry = Registry(reference, Access(**self.params["registry"]))
        described = registry.describe(architecture)
        config = described.configuration.get("config") or {}
        variables = (item.partition("=") for item in config.get("Env") or [])
        environment = {key: value for key, _equals, value in variables}
        image = Image(environment, config.get("Labels") or {}, Told(name, history=_commands(described.configuration)))
        known = cuda_needs.needs_of_image(Needs(), image.environment, image.labels, image.told)
        if self.params["layers_mib"] > 0 and len(known.cuda) < 2:
            files = names_in_layers(registry, described.layers, self.params["layers_mib"] << 20, _names_a_runtime)
            return replace(image, told=replace(image.told, files=files))
        return image

    def _labels(self, node: str) -> Dict[str, str]:
        return self._get("Node", node)["metadata"].get("labels") or {}

    def _get(
        self,
        kind: str,
        name: str,
        namespace: Optional[str] = None,
        read: Callable[[Any], Dict[str, Any]] = checked,
    ) -> Dict[str, Any]:
        if self._client is None:
            self.module.requires("kubernetes")
            with explained():
                self._client = get_api_client(module=self.module)
        with explained():
            return one(self._client, kind, name, namespace, read)


def _names_a_runtime(path: str) -> bool:
    return bool(runtime_of_names([path]).version)


def _commands(configuration: Mapping[str, Any]) -> List[str]:
    """Return the commands that made an image."""
    history = configuration.get("history")
    steps = history if isinstance(history, list) else []
    return [str(step["created_by"]) for step in steps if isinstance(step, dict) and "created_by" in step]


REGISTRY: Dict[str, Any] = {
    "username": {"type": "str", "default": ""},
    "password": {"type": "str", "default": "", "no_log": True},
    "token": {"type": "str", "default": "", "no_log": True},
    "ca_path": {"type": "path"},
    "insecure": {"type": "bool", "default": False},
    "timeout": {"type": "float", "default": 60},
}
POD: Dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "namespace": {"type": "str", "default": "default"},
    "read_image": {"type": "bool", "default": True},
}
ARGUMENTS: Dict[str, Any] = {
    "facts": {"type": "dict"},
    "node": {"type": "str"},
    "pod": {"type": "dict", "options": POD},
    "image": {"type": "str"},
    "registry": {"type": "dict", "default": {}, "options": REGISTRY, "apply_defaults": True},
    "architecture": {"type": "str", "default": "amd64"},
    "environment": {"type": "dict", "default": {}},
    "labels": {"type": "dict", "default": {}},
    "files": {"type": "list", "elements": "str", "default": []},
    "layers_mib": {"type": "int", "default": 0},
    "cuda_version": {"type": "str", "default": ""},
    "compat_version": {"type": "str", "default": ""},
    "ptx": {"type": "bool"},
    "dtype": {"type": "str", "default": ""},
    "model": {"type": "str", "default": ""},
    "mode": {"type": "str", "choices": ["", *cuda_compat.MODES], "default": ""},
    "cores": {"type": "int", "default": 0},
    "virtualization_version": {"type": "str", "default": ""},
    "errors": {"type": "list", "elements": "str"},
}


def main() -> None:
    """Run the module."""
    module = AnsibleK8SModule(
        argument_spec={**copy.deepcopy(AUTH_ARG_SPEC), **ARGUMENTS},
        mutually_exclusive=[("facts", "node"), ("image", "pod")],
        required_one_of=[("facts", "node", "pod", "errors")],
        supports_check_mode=True,
        check_k8s=False,
        check_pyyaml=False,
    )
    wrong = [name for name in VERSIONS if module.params[name] and not version_of(module.params[name])]
    if wrong:
        module.fail_json(msg=f"{wrong[0]} is {module.params[wrong[0]]!r}; write a version such as 12.4")
    try:
        checks = [{"subject": subject, **asdict(decision)} for subject, decision in Asked(module).decisions()]
    except (ApiServerError, RegistryError, ImageError) as error:
        module.fail_json(msg=str(error))
    worst = max(checks, key=lambda check: cuda_compat.VERDICTS.index(check["verdict"]), default=NOTHING)
    # An image's labels and variables are quoted.
    told = printable.document({"checks": checks, **{key: worst[key] for key in NOTHING}})
    module.exit_json(changed=False, errors=explained_errors(module.params["errors"] or []), **told)


VERSIONS = ("cuda_version", "compat_version", "virtualization_version")
NOTHING: Dict[str, Any] = {
    "verdict": cuda_compat.OK,
    "rule": "none",
    "reason": "Nothing was to be checked.",
    "remedy": "",
}


def explained_errors(errors: List[str]) -> List[Dict[str, Any]]:
    """Return each error in words."""
    said = []
    for error in errors:
        known = explain(error)
        code = int(error) if error.strip().isdigit() else None
        unknown = {"cause": "It is not in the table.", "remedy": "See CUresult in NVIDIA's CUDA driver API."}
        said.append(asdict(known) if known else {"code": code, "name": "" if code is not None else error, **unknown})
    return said


if __name__ == "__main__":
    main()
