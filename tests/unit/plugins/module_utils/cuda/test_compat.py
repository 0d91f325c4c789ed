# SPDX-License-Identifier: Apache-2.0
"""Which CUDA runs where: the published rules one by one, and what holds for all of them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.cuda import tables
from ansible_collections.accel.kubernetes.plugins.module_utils.cuda.compat import (
    BLOCKED,
    MODES,
    OK,
    RULES,
    UNKNOWN,
    UNSTABLE,
    VERDICTS,
    Gpu,
    Machine,
    Needs,
    decide,
    version_of,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.cuda.errors import ERRORS, explain
from ansible_collections.accel.kubernetes.plugins.module_utils.cuda.needs import (
    Told,
    environment_of,
    machine_of_facts,
    machine_of_labels,
    needs_of_container,
    needs_of_image,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.cuda.runtimes import (
    runtime_of_names,
    runtime_of_reference,
)
from hypothesis import given
from hypothesis import strategies as st

V100, T4 = Gpu("Tesla V100-SXM2-16GB", (7, 0)), Gpu("Tesla T4", (7, 5))
A100, L40S, H100 = (
    Gpu("NVIDIA A100-SXM4-40GB", (8, 0)),
    Gpu("NVIDIA L40S", (8, 9)),
    Gpu("NVIDIA H100 80GB HBM3", (9, 0)),
)
B200, GEFORCE = Gpu("NVIDIA B200", (10, 0)), Gpu("NVIDIA GeForce RTX 4090", (8, 9))
REQUIRE = "cuda>=13.0 brand=tesla,driver>=535,driver<536 brand=nvidia,driver>=535,driver<536"


def machine(branch: int, *gpus: Gpu) -> Machine:
    return Machine(driver=(branch, 10, 1), cuda=tables.cuda_of_branch(branch), gpus=gpus or (H100,))


@pytest.mark.parametrize(
    ("host", "needs", "verdict", "rule", "words"),
    [
        (machine(580), Needs(cuda=(13, 0)), OK, "driver_is_newer", ""),
        (machine(580), Needs(cuda=(12, 4)), OK, "driver_is_newer", ""),
        (machine(580, A100), Needs(cuda=(11, 8)), UNSTABLE, "major_distance", "Rebuild it with CUDA 13 or 12"),
        (machine(535), Needs(cuda=(13, 0)), BLOCKED, "driver_is_older", "branch 580 or newer, add cuda-compat-13-0"),
        (machine(535, GEFORCE), Needs(cuda=(13, 0)), BLOCKED, "driver_is_older", "580 or newer, or use an image"),
        (machine(535), Needs(cuda=(12, 4)), UNSTABLE, "minor_version", "sm_xx"),
        (machine(535), Needs(cuda=(12, 4), ptx=False), OK, "minor_version", ""),
        (machine(535), Needs(cuda=(12, 4), ptx=True), BLOCKED, "ptx", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"),
        (replace(machine(450, T4), driver=(450, 36, 6)), Needs(cuda=(11, 4)), BLOCKED, "driver_is_older", "branch 470"),
        (replace(machine(450, T4), driver=(450, 80, 2)), Needs(cuda=(11, 4)), UNSTABLE, "minor_version", ""),
        (replace(machine(450, T4), driver=()), Needs(cuda=(11, 4)), UNSTABLE, "minor_version", ""),
        (machine(440, T4), Needs(cuda=(11, 0)), BLOCKED, "driver_is_older", "branch 450"),
        (machine(535), Needs(cuda=(13, 0), compat=(13, 0)), OK, "forward_compatibility", ""),
        (machine(545), Needs(cuda=(13, 0), compat=(13, 0)), BLOCKED, "forward_compatibility", "565, 570, 575"),
        (machine(535, GEFORCE), Needs(cuda=(13, 0), compat=(13, 0)), BLOCKED, "forward_compatibility", "(804)"),
        (machine(535), Needs(cuda=(13, 1), compat=(13, 0)), BLOCKED, "driver_is_older", ""),
        (replace(machine(535), gpus=()), Needs(cuda=(13, 0), compat=(13, 0)), UNKNOWN, "forward_compatibility", ""),
        (machine(535), Needs((13, 0), (13, 0), mode="pgpu"), OK, "forward_compatibility", ""),
        (machine(535), Needs((13, 0), (13, 0), mode="vgpu", cores=30), BLOCKED, "forward_compatibility", "limits"),
        (machine(535), Needs((13, 0), (13, 0), mode="mps", cores=30), BLOCKED, "forward_compatibility", "580 or newer"),
        (machine(535), Needs((13, 0), (13, 0), mode="cgpu"), BLOCKED, "forward_compatibility", "580 or newer"),
        (machine(535), Needs((13, 0), (13, 0), mode="vgpu", cores=200), BLOCKED, "forward_compatibility", "whole"),
        (machine(535), Needs((13, 0), mode="vgpu", cores=30), BLOCKED, "driver_is_older", "580 or newer, or use an"),
        (machine(535), Needs((12, 4), (12, 4), False, mode="vgpu", cores=30), UNSTABLE, "forward_compatibility",
         "limits"),
        (machine(535), Needs((12, 4), (12, 4), False, mode="vgpu", cores=200), OK, "minor_version", ""),
        (machine(535), Needs((12, 4), (12, 4), True, mode="vgpu", cores=30), BLOCKED, "ptx", ""),
        (Machine(False, "the driver hangs"), Needs(cuda=(12, 0)), BLOCKED, "driver", "the driver hangs"),
        (Machine(gpus=(H100,)), Needs(cuda=(12, 0)), UNKNOWN, "driver", "could not be read"),
        (machine(535), Needs(cuda=(12, 0), requires=(REQUIRE,)), OK, "driver_is_newer", ""),
        (machine(545), Needs(cuda=(12, 0), requires=(REQUIRE,)), BLOCKED, "image_requirement", "NVIDIA_DISABLE"),
        (machine(535, GEFORCE), Needs(requires=(REQUIRE,)), BLOCKED, "image_requirement", "does not hold"),
        (machine(535, GEFORCE), Needs((12, 4), ptx=False, requires=("cuda>=12.4",), mode="pgpu"), BLOCKED,
         "image_requirement", "does not start"),
        (machine(535, GEFORCE), Needs((12, 4), ptx=False, requires=("cuda>=12.4",), mode="vgpu", cores=30), UNSTABLE,
         "image_requirement", "nothing checks"),
        (machine(535, GEFORCE), Needs((12, 4), requires=("cuda>=12.4",), mode="cgpu"), UNSTABLE, "minor_version", ""),
        (machine(535, GEFORCE), Needs((13, 0), requires=("cuda>=13.0",), mode="mps", cores=30), BLOCKED,
         "driver_is_older", ""),
        (machine(580, T4, A100), Needs(requires=("arch>=8.0",)), BLOCKED, "image_requirement", "arch>=8.0"),
        (machine(580), Needs(requires=("nfsroot=x",)), UNKNOWN, "image_requirement", "not all of that is known"),
        (machine(550), Needs((12, 6), ptx=False, mode="vgpu", cores=30, virtualization=(12, 4)), BLOCKED,
         "virtualization_baseline", "whole cards"),
        (machine(580), Needs((12, 4), mode="cgpu", virtualization=(12, 4)), BLOCKED, "virtualization_major", "13.0"),
        (machine(580), Needs((11, 8), mode="mps", virtualization=(12, 4)), BLOCKED, "virtualization_major", ""),
        (machine(550), Needs((11, 8), mode="vgpu", cores=30, virtualization=(12, 4)), UNSTABLE, "virtualization_major",
         "case by case"),
        (machine(550), Needs((10, 2), mode="vgpu", cores=30, virtualization=(12, 4)), UNSTABLE, "major_distance", ""),
        (machine(550), Needs((11, 8), mode="vgpu", cores=200, virtualization=(12, 4)), OK, "driver_is_newer", ""),
        (machine(550), Needs(program=True), UNKNOWN, "runtime", "files"),
        (machine(550), Needs(program=True, dtype="fp16"), UNKNOWN, "runtime", "nothing says which CUDA"),
        (machine(535, T4), Needs(program=True, dtype="bf16"), BLOCKED, "dtype", ""),
        (machine(550), Needs((12,), known_by="libcudart.so.12"), UNKNOWN, "minor_not_known", "(libcudart.so.12)"),
        (machine(575), Needs((12,)), OK, "driver_is_newer", ""),
        (machine(580), Needs((12,)), OK, "driver_is_newer", ""),
        (machine(550), Needs((13,)), BLOCKED, "driver_is_older", ""),
        (machine(550), Needs((12, 4), mode="vgpu", cores=30, virtualization=(12, 4)), OK, "driver_is_newer", ""),
        (machine(580), Needs((13, 0), mode="vgpu", cores=200, virtualization=(12, 4)), OK, "driver_is_newer", ""),
        (machine(580), Needs((13, 0), mode="pgpu", virtualization=(12, 4)), OK, "driver_is_newer", ""),
        (machine(470, Gpu("Tesla P4", (6, 1))), Needs(mode="mps"), BLOCKED, "mps_capability", "Volta"),
        (machine(470), Needs(mode="mps"), BLOCKED, "mps_driver", "495"),
        (machine(580, V100), Needs(cuda=(13, 0)), BLOCKED, "architecture_dropped", "CUDA 12.9 or older"),
        (machine(570, B200), Needs(cuda=(12, 4)), UNSTABLE, "architecture_is_newer", "CUDA 12.8 or newer"),
        (machine(570, B200), Needs(cuda=(12, 4), ptx=False), BLOCKED, "architecture_is_newer", ""),
        (machine(580, T4), Needs(dtype="bf16"), BLOCKED, "dtype", "--dtype=half"),
        (machine(580, T4), Needs(dtype="fp16"), OK, "dtype", ""),
        (machine(580, A100), Needs(dtype="fp8"), UNSTABLE, "dtype", "computes in 16 bits"),
        (machine(580, V100), Needs(dtype="fp8"), BLOCKED, "dtype", "needs 8.0"),
        (machine(580, L40S), Needs(dtype="fp8"), OK, "dtype", ""),
        (machine(580, T4), Needs(dtype="tf32"), UNSTABLE, "dtype", "multiplies in fp32"),
        (machine(580, H100), Needs(dtype="fp4"), UNSTABLE, "dtype", "10.0"),
        (machine(580, B200), Needs(dtype="fp4"), OK, "dtype", ""),
        (machine(580, H100, T4), Needs(dtype="bf16"), BLOCKED, "dtype", "Tesla T4"),
        (machine(580), Needs(dtype="fp7"), UNKNOWN, "dtype", "fp64"),
        (machine(580, Gpu("New", ())), Needs(dtype="bf16"), UNKNOWN, "dtype", "New is not known"),
        (machine(580), Needs(mode="vgpu", cores=30, paddle_allocator=""), UNSTABLE, "paddle_allocator", "naive_best"),
        (machine(580), Needs(mode="vgpu", cores=100, paddle_allocator=""), UNKNOWN, "none", "cuda_version"),
        (machine(580), Needs(mode="vgpu", cores=30, paddle_allocator="naive_best_fit"), UNKNOWN, "none", ""),
    ],
)  # fmt: skip
def test_a_rule(host: Machine, needs: Needs, verdict: str, rule: str, words: str) -> None:
    decision = decide(host, needs)
    assert (decision.verdict, decision.rule) == (verdict, rule), decision
    assert words in f"{decision.reason}. {decision.remedy}"


VERSIONS = st.sampled_from([(), *(cuda for _branch, cuda in tables.BRANCHES)])
GPUS = st.sampled_from([V100, T4, A100, L40S, H100, B200, GEFORCE, Gpu("", ())])
MACHINES = st.builds(
    Machine,
    available=st.booleans(),
    driver=st.one_of(st.just(()), st.tuples(st.integers(300, 700), st.integers(0, 200))),
    cuda=VERSIONS,
    gpus=st.lists(GPUS, max_size=3).map(tuple),
)
NEEDS = st.builds(
    Needs,
    cuda=VERSIONS,
    compat=VERSIONS,
    ptx=st.sampled_from([None, True, False]),
    requires=st.lists(st.one_of(st.text(max_size=30), st.just(REQUIRE)), max_size=2).map(tuple),
    dtype=st.sampled_from(["", "fp7", *tables.DTYPES]),
    mode=st.sampled_from(["", *MODES]),
    cores=st.integers(0, 300),
    virtualization=VERSIONS,
    paddle_allocator=st.sampled_from([None, "", "naive_best_fit"]),
)


@given(MACHINES, NEEDS)
def test_every_check_has_a_text_and_every_problem_a_remedy(host: Machine, needs: Needs) -> None:
    decision = decide(host, needs)
    assert decision.verdict in VERDICTS
    verdicts = [VERDICTS.index(finding.verdict) for finding in decision.findings]
    assert verdicts == sorted(verdicts, reverse=True)
    assert decision.reason
    assert all(finding.remedy for finding in decision.findings if finding.verdict != OK)
    assert decide(host, needs) == decision


@given(MACHINES, NEEDS, st.sampled_from(tables.BRANCHES), st.sampled_from(tables.BRANCHES))
def test_a_newer_driver_never_blocks_what_an_older_one_ran(
    host: Machine, needs: Needs, one: tuple[int, tuple[int, ...]], other: tuple[int, tuple[int, ...]]
) -> None:
    """But for a virtualization's own major and for packages and images that name the branches they run on."""
    needs = replace(needs, compat=(), requires=(), virtualization=())
    before, after = (
        decide(replace(host, driver=(branch, 1), cuda=cuda), needs) for branch, cuda in sorted((one, other))
    )
    assert before.verdict == BLOCKED or after.verdict != BLOCKED


@given(MACHINES, NEEDS)
def test_whole_cards_are_not_asked_what_virtualization_demands(host: Machine, needs: Needs) -> None:
    whole = replace(needs, cores=100 * (1 + needs.cores % 3))
    rules = {finding.rule for finding in decide(host, whole).findings}
    assert rules.isdisjoint({"virtualization_baseline", "virtualization_major", "paddle_allocator"})


@given(st.sampled_from([*tables.DTYPES]), st.sampled_from([V100, T4, A100, L40S, H100, B200]))
def test_a_newer_gpu_computes_in_what_an_older_one_does(dtype: str, gpu: Gpu) -> None:
    order = VERDICTS
    newer = replace(gpu, capability=(gpu.capability[0] + 1, 0))
    old, new = (order.index(decide(machine(580, one), Needs(dtype=dtype)).verdict) for one in (gpu, newer))
    assert new <= old


def test_the_tables_are_in_order_and_every_rule_is_tried() -> None:
    assert [branch for branch, _cuda in tables.BRANCHES] == sorted({branch for branch, _cuda in tables.BRANCHES})
    assert [cuda for _branch, cuda in tables.BRANCHES] == sorted({cuda for _branch, cuda in tables.BRANCHES})
    for major, floor in tables.MINOR_FLOORS.items():
        assert tables.branch_for((major, 0)) == floor[0]
    assert all(row.runs <= row.native and (row.otherwise or row.runs == row.native) for row in tables.DTYPES.values())
    assert all(row.remedy or row.runs <= (1, 0) for row in tables.DTYPES.values())
    assert len(RULES) == 9


def test_versions_are_numbers() -> None:
    assert version_of("12.10") > version_of("12.9")
    assert version_of("580.159.04") == (580, 159, 4)
    assert version_of("v12.4.1-base") == (12, 4, 1)
    assert version_of("latest") == version_of(None) == ()


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "bf16"),
        ("nvidia/Llama-3.1-405B-Instruct-FP8", "fp8"),
        ("deepseek-ai/DeepSeek-V3", "fp8"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "bf16"),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "int4"),
        ("openai/gpt-oss-20b", "fp4"),
        ("openai/whisper-large-v3", "fp16"),
        ("mine/unheard-of", ""),
    ],
)
def test_a_models_format_is_known_by_its_name(model: str, dtype: str) -> None:
    assert tables.of_model(model) == dtype


@pytest.mark.parametrize(
    ("model", "capability", "brand"),
    [
        ("NVIDIA H100 80GB HBM3", (9, 0), "nvidia"),
        ("Tesla-T4", (7, 5), "tesla"),
        ("NVIDIA GeForce RTX 4090", (8, 9), "geforcertx"),
        ("NVIDIA RTX A6000", (8, 6), "nvidiartx"),
        ("Quadro RTX 8000", (7, 5), "quadrortx"),
        ("NVIDIA A10", (8, 6), "nvidia"),
        ("NVIDIA A100-SXM4-40GB", (8, 0), "nvidia"),
        ("NVIDIA B200", (10, 0), "nvidia"),
        ("Other", (), "nvidia"),
    ],
)
def test_a_gpu_is_known_by_its_name(model: str, capability: tuple[int, ...], brand: str) -> None:
    assert (tables.of_gpu(model), tables.brand(model)) == (capability, brand)


def test_image_names_its_cuda_and_driver_branches() -> None:
    needs = needs_of_image(Needs(), {"CUDA_VERSION": "13.0.2", "NVIDIA_REQUIRE_CUDA": REQUIRE}, {})
    assert (needs.cuda, needs.compat, needs.requires) == ((13, 0, 2), (13, 0, 2), (REQUIRE,))
    assert decide(machine(535), needs).rule == "forward_compatibility"
    assert decide(machine(545), needs).verdict == BLOCKED
    plain = needs_of_image(Needs(), {"NVIDIA_REQUIRE_CUDA": "cuda>=12.4"}, {})
    assert (plain.cuda, plain.compat) == ((12, 4), ())
    old = needs_of_image(Needs(), {"NV_CUDA_COMPAT_PACKAGE": "cuda-compat-12-0"}, {"com.nvidia.cuda.version": "12.0.1"})
    assert (old.cuda, old.compat) == ((12, 0, 1), (12, 0))
    assert (
        needs_of_image(Needs(), {"NVIDIA_REQUIRE_CUDA": "cuda>=12", "NVIDIA_DISABLE_REQUIRE": "true"}, {}).requires
        == ()
    )
    assert needs_of_image(Needs(cuda=(11, 8)), {"CUDA_VERSION": "13.0"}, {}).cuda == (11, 8)
    assert needs_of_image(Needs(), {}, {}, Told("paddlepaddle/paddle:3.0")).paddle_allocator == ""
    assert needs_of_image(Needs(), {}, {}, Told("vllm")).paddle_allocator is None


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("usr/local/cuda/lib64/libcudart.so.12.4.127", (12, 4, 127)),
        ("/opt/conda/lib/libcudart.so.11.8.89", (11, 8, 89)),
        ("torch/lib/libcudart-d0da41ae.so.11.0", (11,)),
        ("libcudart.so.10.2", (10, 2)),
        ("site-packages/nvidia/cuda_runtime/lib/libcudart.so.13", (13,)),
        ("site-packages/nvidia_cuda_runtime_cu12-12.1.105.dist-info/METADATA", (12, 1)),
        ("nvidia-cuda-runtime-cu12==12.8.90", (12, 8)),
        ("nvidia-cuda-runtime==13.0.88", (13, 0)),
        ("site-packages/torch-2.6.0+cu124.dist-info", (12, 4)),
        ("torch==1.6.0+cu92", (9, 2)),
        ("jax==0.4.13+cuda12.cudnn89", (12,)),
        ("opt/conda/conda-meta/cuda-cudart-12.1.105-0.json", (12, 1)),
        ("cudatoolkit               11.3.1               h2bc3f7f_2", (11, 3)),
        ("opt/conda/conda-meta/pytorch-2.3.0-py3.10_cuda12.1_cudnn8.9.2_0.json", (12, 1)),
        ("var/lib/dpkg/info/cuda-cudart-12-10.list", (12, 10)),
        ("cuda-cudart-11-8-11.8.89-1.x86_64", (11, 8)),
        ("usr/local/cuda-12.6/bin/nvcc", (12, 6)),
        ("/bin/sh -c #(nop) ENV NV_CUDA_CUDART_VERSION=12.4.127-1", (12, 4)),
        ("RUN |2 CUDA_VERSION=12.1 PYTHON=3.10 /bin/sh -c make", (12, 1)),
        ("nvidia_cublas_cu12-12.1.3.1.dist-info", ()),
        ("usr/lib/libcudart_static.a", ()),
        ("usr/share/doc/python3.12-cuda", ()),
        ("nvidia-cudnn-cu12==9.1.0.70", ()),
    ],
)
def test_a_runtime_is_known_by_names_of_files_and_packages(name: str, version: tuple[int, ...]) -> None:
    assert runtime_of_names(["etc/passwd", name, "numpy==1.26.4"]).version == version


@pytest.mark.parametrize(
    ("reference", "version"),
    [
        ("pytorch/pytorch:2.3.0-cuda12.1-cudnn8-runtime", (12, 1)),
        ("registry:5000/paddlepaddle/paddle:2.6.1-gpu-cuda11.7-cudnn8.4-trt8.4", (11, 7)),
        ("team/train:2.6.0-cu124", (12, 4)),
        ("nvcr.io/nvidia/cuda:12.4.1-base-ubuntu22.04", (12, 4)),
        ("nvidia/cuda:13.0.0-runtime@sha256:00", (13, 0)),
        ("nvidia/cuda", ()),
        ("localhost:5000/cuda", ()),
        ("vllm/vllm-openai:v0.10.0", ()),
        ("team/barracuda1:1.0", ()),
    ],
)
def test_a_runtime_is_known_by_a_tag(reference: str, version: tuple[int, ...]) -> None:
    assert runtime_of_reference(reference).version == version


def test_a_runtime_that_is_installed_wins_over_an_older_base() -> None:
    base = {"CUDA_VERSION": "12.1.1", "NVIDIA_REQUIRE_CUDA": "cuda>=12.1"}
    needs = needs_of_image(Needs(), base, {}, Told(files=("torch-2.6.0+cu124.dist-info",)))
    assert (needs.cuda, needs.known_by) == ((12, 4), "+cu124")
    older = needs_of_image(Needs(), base, {}, Told("x:1-cu118", ("torch==2.0+cu118",), ("RUN cudatoolkit=10.2",)))
    assert (older.cuda, older.known_by) == ((12, 1, 1), "CUDA_VERSION")
    cudart = needs_of_image(Needs(), {"NV_CUDA_CUDART_VERSION": "12.4.127-1"}, {})
    assert (cudart.cuda, cudart.known_by) == ((12, 4, 127), "NV_CUDA_CUDART_VERSION")
    least = {"NVIDIA_REQUIRE_CUDA": "cuda>=9.0"}
    assert needs_of_image(Needs(), least, {}, Told(history=("RUN pip install torch==2.6.0+cu124",))).cuda == (12, 4)
    assert needs_of_image(Needs(), least, {}, Told()).cuda == (9, 0)


def test_an_image_of_which_nothing_is_known_is_unknown() -> None:
    needs = needs_of_image(Needs(), {"PATH": "/usr/bin"}, {}, Told("team/app:1"))
    decision = decide(machine(550), needs)
    assert (decision.verdict, decision.rule) == (UNKNOWN, "runtime")
    assert decide(machine(550), Needs()).verdict == UNKNOWN


def test_requirement_needs_one_word_with_all_its_conditions() -> None:
    for expression, verdict in {
        "cuda>=13.0": BLOCKED,
        "cuda>=13.0 driver>=550": OK,
        "driver>=550,driver<551": OK,
        "driver>550": OK,
        "driver>=550.10.1": OK,
        "driver<=550.10": BLOCKED,
        "cuda=12.4 cuda!=12.4": OK,
        "brand=nvidia,arch=9.0": OK,
        "brand!=nvidia": BLOCKED,
    }.items():
        assert decide(machine(550), Needs(requires=(expression,))).verdict == verdict, expression


def test_machines_are_read_from_facts_and_from_labels_alike() -> None:
    facts = {
        "available": True,
        "driver_version": "535.161.08",
        "cuda_version": "12.2",
        "gpus": [{"model": "Tesla T4", "compute_capability": "7.5"}],
    }
    labels = {
        "nvidia.com/cuda.driver-version.full": "535.161.08",
        "nvidia.com/cuda.runtime-version.full": "12.2",
        "nvidia.com/gpu.product": "Tesla-T4-SHARED",
        "nvidia.com/gpu.compute.major": "7",
        "nvidia.com/gpu.compute.minor": "5",
    }
    assert machine_of_facts(facts) == machine_of_labels(labels)
    assert machine_of_labels({"cuda-major-version": "12", "cuda-minor-version": "4"}).cuda == (12, 4)
    assert machine_of_labels({"nvidia.com/cuda.driver.major": "535"}).cuda == (12, 2)
    assert machine_of_facts({"available": False, "reason": "it hangs"}).reason == "it hangs"


@pytest.mark.parametrize(
    ("limits", "mode", "cores"),
    [
        ({"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "8"}, "vgpu", 30),
        ({"nvidia.com/mps-core": 200, "nvidia.com/mps-memory": "8"}, "mps", 200),
        ({"nvidia.com/mps-core": "1k"}, "mps", 1000),
        ({"nvidia.com/mps-core": "many"}, "mps", 0),
        ({"aliyun.com/gpu-mem": "8"}, "cgpu", 0),
        ({"nvidia.com/gpu": "1"}, "pgpu", 0),
        ({"nvidia.com/t4-shared": "1"}, "pgpu", 0),
        ({"nvidia.com/gpu": "0", "cpu": "1"}, None, 0),
        ({"aliyun.com/gpu-mem": "0m"}, None, 0),
        ({"nvidia.com/mps-core": "0", "aliyun.com/gpu-mem": "8"}, "cgpu", 0),
    ],
)
def test_a_container_tells_its_mode_and_cores(limits: dict[str, object], mode: str | None, cores: int) -> None:
    needs = needs_of_container(Needs(), {"resources": {"limits": limits}})
    assert (needs and (needs.mode, needs.cores)) == (mode and (mode, cores))


def test_a_containers_variables_are_those_with_plain_values() -> None:
    container = {"env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {}}, {"name": "C"}]}
    assert environment_of(container) == {"A": "1", "C": ""}


def test_errors_are_explained_by_code_and_by_name() -> None:
    for error in ERRORS.values():
        assert explain(str(error.code)) is explain(error.name.lower()) is error
        assert re.fullmatch(r"(CUDA_ERROR|cudaError)\w+", error.name)
        assert error.cause.endswith(".")
        assert error.remedy.endswith(".")
    assert explain("12345") is explain("nothing") is None
    for named in ("CUDA_ERROR_INVALID_IMAGE", "CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"):
        assert explain(named) is not None
