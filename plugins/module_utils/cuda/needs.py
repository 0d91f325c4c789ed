# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From facts, node labels, an image's configuration and a pod to the words of ``cuda_compat``. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Dict, Iterator, Mapping, Sequence, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.cuda import tables
from ansible_collections.accel.kubernetes.plugins.module_utils.cuda.compat import Gpu, Machine, Needs, version_of
from ansible_collections.accel.kubernetes.plugins.module_utils.cuda.runtimes import (
    Runtime,
    newest,
    runtime_of_names,
    runtime_of_reference,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.api_json import ApiJsonError, entries, fit, shaped
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.asked import asked
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.quantity import whole_units

MODE_OF: Tuple[Tuple[str, str], ...] = (
    (r"tencent\.com/vcuda-", "vgpu"),
    (r"nvidia\.com/mps-", "mps"),
    (r"aliyun\.com/gpu-mem$", "cgpu"),
    (r"nvidia\.com/(?!mps-)", "pgpu"),
)
"""Names of resources and the mode that serves them."""

_CORES = ("tencent.com/vcuda-core", "nvidia.com/mps-core")
_CONTAINER = {
    "name!": str,
    "image!": str,
    "env": [{"name!": str, "value": str}],
    "resources": {"requests": {}, "limits": {}},
}
_CUDA_LABEL = "com.nvidia.cuda.version"
_TRUE = ("1", "t", "true", "y", "yes", "on")


def machine_of_facts(facts: Mapping[str, Any]) -> Machine:
    """Return what M(accel.kubernetes.nvml_facts) returns. A GPU without capability is looked up by its name."""
    driver = version_of(facts.get("driver_version"))
    gpus = tuple(
        _gpu(str(gpu.get("model") or ""), version_of(gpu.get("compute_capability"))) for gpu in facts.get("gpus") or ()
    )
    return Machine(
        available=bool(facts.get("available", True)),
        reason=str(facts.get("reason") or ""),
        driver=driver,
        cuda=version_of(facts.get("cuda_version")) or _cuda_of(driver),
        gpus=gpus,
    )


def machine_of_labels(labels: Mapping[str, str]) -> Machine:
    """Return a node's labels as GPU feature discovery and our plugin write them."""
    driver = version_of(labels.get("nvidia.com/cuda.driver-version.full") or labels.get("nvidia.com/cuda.driver.major"))
    cuda = version_of(labels.get("nvidia.com/cuda.runtime-version.full"))
    if not cuda and labels.get("cuda-major-version"):
        cuda = version_of(f"{labels['cuda-major-version']}.{labels.get('cuda-minor-version', '0')}")
    model = re.sub(r"-(SHARED|MIG-.*)$", "", labels.get("nvidia.com/gpu.product", "")).replace("-", " ")
    capability = version_of(
        f"{labels.get('nvidia.com/gpu.compute.major', '')}.{labels.get('nvidia.com/gpu.compute.minor', '0')}"
    )
    gpus = (_gpu(model, capability),) if model or capability else ()
    return Machine(driver=driver, cuda=cuda or _cuda_of(driver), gpus=gpus)


@dataclass(frozen=True)
class Told:
    """What is known of an image or a container, beside its environment and labels."""

    reference: str = ""
    files: Sequence[str] = ()
    """Names of files and packages in it."""
    history: Sequence[str] = ()
    """Commands that made it."""


def needs_of_image(
    needs: Needs, environment: Mapping[str, str], labels: Mapping[str, str], told: Told | None = None
) -> Needs:
    """``needs`` with what is known of an image, where it did not say so itself.

    An image whose requirement lists driver branches beside the CUDA version brings a forward compatibility package.
    """
    told = told or Told()
    requires = tuple(
        value
        for name, value in sorted(environment.items())
        if name.startswith("NVIDIA_REQUIRE_") and name != "NVIDIA_REQUIRE_JETPACK" and value.strip()
    )
    if environment.get("NVIDIA_DISABLE_REQUIRE", "").lower() in _TRUE:
        requires = ()
    required = environment.get("NVIDIA_REQUIRE_CUDA", "")
    runtime = _runtime(environment, labels, told)
    cuda = runtime.version
    package = re.match(r"cuda-compat-(\d+)-(\d+)", environment.get("NV_CUDA_COMPAT_PACKAGE", ""))
    compat = (int(package[1]), int(package[2])) if package else cuda if "driver" in required else ()
    settings = any(name.startswith(("PADDLE_", "FLAGS_alloc")) for name in environment)
    paddle = settings or "paddle" in told.reference.lower()
    return replace(
        needs,
        cuda=needs.cuda or cuda,
        known_by="" if needs.cuda else runtime.name,
        program=needs.program or bool(environment or labels or told.reference or told.files),
        compat=needs.compat or compat,
        requires=needs.requires + requires,
        paddle_allocator=environment.get("FLAGS_allocator_strategy", "") if paddle else needs.paddle_allocator,
    )


def _runtime(environment: Mapping[str, str], labels: Mapping[str, str], told: Told) -> Runtime:
    """Return the runtime of an image: the newest that it declares or has, else what its tag, history or least says.

    A base image declares its own, and what is installed upon it may bring a newer one.
    """
    declared = (
        *((name, environment.get(name)) for name in ("CUDA_VERSION", "NV_CUDA_CUDART_VERSION")),
        (_CUDA_LABEL, labels.get(_CUDA_LABEL)),
    )
    said = next((Runtime(version_of(value), name) for name, value in declared if version_of(value)), Runtime())
    has = newest((said, runtime_of_names(told.files)))
    least = re.search(r"(?:^|[\s,])cuda>=([\d.]+)", environment.get("NVIDIA_REQUIRE_CUDA", ""))
    guessed = (
        runtime_of_reference(told.reference),
        runtime_of_names(told.history),
        Runtime(version_of(least[1] if least else ""), "NVIDIA_REQUIRE_CUDA"),
    )
    return next((runtime for runtime in (has, *guessed) if runtime.version), Runtime())


def read_pod(item: object) -> Dict[str, Any]:
    """Return a pod, whose containers may be anything. Raises ApiJsonError, which names it and the part."""
    found: Dict[str, Any] = shaped(
        item, {"spec!": {"nodeName": str, "containers!": entries, "initContainers": entries}}
    )
    return found


def containers(pod: Mapping[str, Any]) -> Iterator[Tuple[str, Mapping[str, Any], str]]:
    """Name of each container of what ``read_pod`` returned, the container, and why it cannot be read, or nothing."""
    for key in ("containers", "initContainers"):
        for place, entry in enumerate(pod["spec"].get(key) or ()):
            where = f"spec.{key}[{place}]"
            try:
                fit(entry, _CONTAINER, where)
            except ApiJsonError as error:
                yield where, {}, str(error)
            else:
                yield entry["name"], entry, ""


def needs_of_container(needs: Needs, container: Mapping[str, Any]) -> Needs | None:
    """``needs`` with the mode and cores a pod's container asks for; None when it asks for no GPU. Raises ValueError."""
    asks = asked(container, lambda name: any(re.match(pattern, name) for pattern, _mode in MODE_OF))
    modes = [mode for pattern, mode in MODE_OF if any(re.match(pattern, name) for name in asks)]
    if not modes:
        return None
    cores = next(filter(None, (whole_units(asks.get(name)) for name in _CORES)), 0)
    return replace(needs, mode=modes[0], cores=cores)


def environment_of(container: Mapping[str, Any]) -> Dict[str, str]:
    """Variables a pod's container sets to plain values."""
    return {
        item["name"]: str(item.get("value") or "") for item in container.get("env") or () if "valueFrom" not in item
    }


def _gpu(model: str, capability: Tuple[int, ...]) -> Gpu:
    return Gpu(model, capability or tables.of_gpu(model))


def _cuda_of(driver: Tuple[int, ...]) -> Tuple[int, ...]:
    return tables.cuda_of_branch(driver[0]) if driver else ()
