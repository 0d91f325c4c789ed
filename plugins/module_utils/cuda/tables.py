# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What NVIDIA publishes about which CUDA runs where, as tables. Each names its source."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Sequence, Tuple

Version = Tuple[int, ...]
"""Compared part by part, since 12.10 is newer than 12.9."""

BRANCHES: Sequence[Tuple[int, Version]] = (
    (410, (10, 0)),
    (418, (10, 1)),
    (440, (10, 2)),
    (450, (11, 0)),
    (455, (11, 1)),
    (460, (11, 2)),
    (465, (11, 3)),
    (470, (11, 4)),
    (495, (11, 5)),
    (510, (11, 6)),
    (515, (11, 7)),
    (520, (11, 8)),
    (525, (12, 0)),
    (530, (12, 1)),
    (535, (12, 2)),
    (545, (12, 3)),
    (550, (12, 4)),
    (555, (12, 5)),
    (560, (12, 6)),
    (565, (12, 7)),
    (570, (12, 8)),
    (575, (12, 9)),
    (580, (13, 0)),
    (590, (13, 1)),
    (595, (13, 2)),
    (610, (13, 3)),
    (615, (13, 4)),
)
"""Driver branch, and the newest CUDA it reports. CUDA Toolkit release notes, toolkit and driver versions."""

MINOR_FLOORS: Dict[int, Version] = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580,)}
"""By CUDA major, the least driver that runs all its minors. CUDA Compatibility guide, minor version compatibility."""

FORWARD_BASES: Sequence[Tuple[Version, Tuple[int, ...]]] = (
    ((10, 1), (396, 410, 418)),
    ((12, 0), (450, 470, 510, 515, 520)),
    ((12, 4), (470, 525, 535)),
    ((12, 8), (470, 535, 550, 560, 565)),
    ((13, 0), (535, 550, 565, 570, 575)),
    ((13, 1), (535, 550, 570, 575, 580)),
    ((13, 2), (535, 570, 580, 590)),
)
"""CUDA of a package cuda-compat, and the driver branches it runs on. NVIDIA_REQUIRE_CUDA of the images nvidia/cuda; a
CUDA in between is as the one before it."""

FORWARD_MAJORS: Sequence[int] = (10, 11, 12, 13)
"""CUDA majors there are packages cuda-compat of. CUDA Compatibility guide, forward compatibility."""

FORWARD_BRANDS: Sequence[str] = ("tesla", "nvidia", "nvidiartx", "quadrortx", "quadro", "grid")
"""Brands forward compatibility is for: data centre GPUs and workstation cards of certified systems. Same guide."""

ARCHITECTURES: Sequence[Tuple[Version, Version, Version]] = (
    ((3, 5), (5, 0), (11, 8)),
    ((5, 0), (6, 5), (12, 9)),
    ((6, 0), (8, 0), (12, 9)),
    ((7, 0), (9, 0), (12, 9)),
    ((7, 5), (10, 0), ()),
    ((8, 0), (11, 0), ()),
    ((8, 6), (11, 1), ()),
    ((8, 9), (11, 8), ()),
    ((9, 0), (11, 8), ()),
    ((10, 0), (12, 8), ()),
    ((10, 3), (12, 9), ()),
    ((12, 0), (12, 8), ()),
    ((12, 1), (12, 9), ()),
)
"""Compute capability from which on, first and last CUDA that compiles for it; empty where the newest still does.
CUDA Toolkit release notes, new features and removed architectures."""

MPS_CAPABILITY: Version = (7, 0)
MPS_CUDA: Version = (11, 5)
"""Volta or newer and a driver of CUDA 11.5, without which MPS limits no memory. Multi-Process Service guide."""


@dataclass(frozen=True)
class Dtype:
    """A number format: the compute capability at which programs run in it, and at which the hardware computes in it."""

    runs: Version
    native: Version
    otherwise: str
    """What happens in between."""
    remedy: str
    """What to do below ``runs``."""


_HALF = "run it in half precision (vLLM: --dtype=half)"
DTYPES: Dict[str, Dtype] = {
    "fp64": Dtype((1, 3), (1, 3), "", "use a newer GPU"),
    "fp32": Dtype((1, 0), (1, 0), "", "use a newer GPU"),
    "tf32": Dtype((1, 0), (8, 0), "multiplies in fp32 instead, slower", ""),
    "fp16": Dtype((5, 3), (7, 0), "has no tensor cores for it", "run it in fp32"),
    "bf16": Dtype((8, 0), (8, 0), "", _HALF),
    "int8": Dtype((6, 1), (7, 5), "has no tensor cores for it", "run it in fp16"),
    "int4": Dtype((7, 5), (7, 5), "", "use a model in int8 or fp16"),
    "fp8": Dtype(
        (8, 0), (8, 9), "keeps weights in fp8 and computes in 16 bits", f"use a model that is not fp8, or {_HALF}"
    ),
    "fp6": Dtype((10, 0), (10, 0), "", "use a model in fp8"),
    "fp4": Dtype((8, 0), (10, 0), "keeps weights in fp4 and computes in 16 bits", "use a model in int8 or fp16"),
}
"""CUDA C++ Programming Guide, arithmetic instructions and tensor core types by compute capability; what frameworks do
below that is vLLM's documentation of supported hardware."""

DTYPE_NAMES: Dict[str, str] = {
    "float64": "fp64",
    "double": "fp64",
    "float32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float8": "fp8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "nvfp4": "fp4",
    "mxfp4": "fp4",
    "mxfp8": "fp8",
}
"""Other names of them, as PyTorch and vLLM write them."""

MODELS: Sequence[Tuple[str, str]] = (
    (r"-(fp8|nvfp4|mxfp4|fp4|int8|int4|bf16|fp16)\b", ""),
    (r"\b(w8a8|gptq-int8)\b", "int8"),
    (r"\b(awq|gptq|w4a16)\b", "int4"),
    (r"deepseek-(v3|r1)(?!.*distill)", "fp8"),
    (r"gpt-oss", "fp4"),
    (r"kimi-k2", "fp8"),
    (r"llama-?(3|4)|llama3", "bf16"),
    (r"qwen-?(1\.5|2|2\.5|3)", "bf16"),
    (r"(mistral|mixtral|gemma|phi-?[34]|falcon|glm-?4|deepseek|olmo|internlm)", "bf16"),
    (r"llama-?2|codellama|vicuna", "fp16"),
    (r"(opt-|gpt2|gpt-j|gpt-neo|bloom|whisper|stable-diffusion|sdxl)", "fp16"),
)
"""Parts of a model's name and the format of its published weights, first match first; an empty one is the match's own
group. torch_dtype or quantization_config in the models' published config.json."""

GPUS: Sequence[Tuple[str, Version]] = (
    (r"\b(gb300|b300)\b", (10, 3)),
    (r"\b(gb200|b200|b100)\b", (10, 0)),
    (r"\bgb10\b", (12, 1)),
    (r"\b(rtx 50\d\d|rtx pro [0-9]+ blackwell)", (12, 0)),
    (r"\b(h100|h200|h20|h800|gh200)\b", (9, 0)),
    (r"\b(l4|l20|l40|l40s|l2)\b|\brtx 40\d\d|\brtx \d000 ada", (8, 9)),
    (r"\b(a10|a10g|a16|a2|a40)\b|\brtx 30\d\d|\brtx a\d000", (8, 6)),
    (r"\b(a100|a30|a800)\b", (8, 0)),
    (r"\bt4\b|\brtx 20\d\d|\bquadro rtx", (7, 5)),
    (r"\b(v100|v100s|titan v)\b", (7, 0)),
    (r"\b(p4|p40)\b|\bgtx 10\d\d", (6, 1)),
    (r"\bp100\b", (6, 0)),
    (r"\b(m40|m60)\b", (5, 2)),
    (r"\bk80\b", (3, 7)),
)
"""Parts of a GPU's name and its compute capability, for one that NVML was not asked about. CUDA GPUs page."""

_BRANDS: Sequence[Tuple[str, str]] = (
    (r"geforce rtx", "geforcertx"),
    (r"geforce", "geforce"),
    (r"titan rtx", "titanrtx"),
    (r"titan", "titan"),
    (r"quadro rtx", "quadrortx"),
    (r"quadro", "quadro"),
    (r"nvidia rtx|\brtx (a|pro|\d000)", "nvidiartx"),
    (r"tesla", "tesla"),
    (r"grid", "grid"),
)
"""Parts of a GPU's name and the brand NVML gives it (nvmlBrandType_t); the rest is ``nvidia``."""


def of_model(model: str) -> str:
    """Return the format a published model's weights are in, empty for one that is not known."""
    name = re.sub(r"[\s_/]+", "-", model.lower())
    for pattern, dtype in MODELS:
        match = re.search(pattern, name)
        if match:
            return dtype or canonical(match[1])
    return ""


def of_gpu(model: str) -> Version:
    """Return the compute capability of a GPU by its name, empty for one that is not known."""
    name = re.sub(r"[\s_-]+", " ", model.lower())
    return next((capability for pattern, capability in GPUS if re.search(pattern, name)), ())


def brand(model: str) -> str:
    """NVML's brand of a GPU, from its name."""
    name = re.sub(r"[\s_-]+", " ", model.lower())
    return next((brand for pattern, brand in _BRANDS if re.search(pattern, name)), "nvidia")


def canonical(dtype: str) -> str:
    """Return a format by the name DTYPES has for it; an unknown one stays."""
    name = dtype.lower().strip()
    return DTYPE_NAMES.get(name, name)


def branch_for(cuda: Version) -> int:
    """Return the oldest driver branch that reports at least this CUDA, 0 where none is known."""
    return next((branch for branch, newest in BRANCHES if newest >= cuda[:2]), 0)


def cuda_of_branch(branch: int) -> Version:
    """Return the newest CUDA a driver branch reports, empty before the first one known."""
    return max((newest for known, newest in BRANCHES if known <= branch), default=())


def last_minor(major: int) -> Version:
    """Return the last CUDA of a major that a driver branch reports, empty where none is known."""
    return max((newest for _branch, newest in BRANCHES if newest[0] == major), default=())


def forward_bases(cuda: Version) -> Tuple[int, ...]:
    """Return the driver branches a package cuda-compat of this CUDA runs on, none where that is not known."""
    known = [bases for first, bases in FORWARD_BASES if first <= cuda[:2]]
    return known[-1] if known and cuda[0] in FORWARD_MAJORS else ()
