# SPDX-License-Identifier: Apache-2.0
"""The worker's answers in the words of the model."""

from __future__ import annotations

from typing import Any

import pytest

from kube_accel.model import Ancestor, GpuLink, Inventory, UnreadableGpu
from kube_accel.nvml import translate
from kube_accel.nvml.health import Poll

GONE = {"code": 15, "text": "GPU is lost"}


def gpu(index: int, **changes: Any) -> dict[str, Any]:
    return {
        "index": index,
        "uuid": f"GPU-{index}",
        "pci": f"0000:{index:02x}:00.0",
        "numa": None,
        "minor": index,
        "model": "NVIDIA T4",
        "memory": 16 << 30,
        "cc": [7, 5],
        "mig_capable": False,
        "mig": False,
        "mig_devices": [],
        "ecc": None,
        "remap_pending": None,
        "remap_failed": None,
        "recovery": None,
    } | changes


def link(left: int, right: int, ancestor: int = 20) -> dict[str, Any]:
    return {"pair": [f"GPU-{left}", f"GPU-{right}"], "ancestor": ancestor, "nvlinks": 0}


def answer(*gpus: dict[str, Any], links: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {"driver": "580.1", "cuda": [13, 0], "gpus": list(gpus), "links": list(links)}


def pair(left: int, right: int) -> frozenset[str]:
    return frozenset((f"GPU-{left}", f"GPU-{right}"))


def known(count: int) -> Inventory:
    links = tuple(link(left, right) for left in range(count) for right in range(left))
    return translate.inventory(answer(*map(gpu, range(count)), links=links), None)


def test_levels_between_the_known_ones_count_as_the_farther() -> None:
    links = (link(0, 1, 10), link(0, 2, 11), link(1, 2, 70))
    inventory = translate.inventory(answer(gpu(0), gpu(1), gpu(2), links=links), None)
    assert dict(inventory.links) == {
        pair(0, 1): GpuLink(Ancestor.SINGLE_SWITCH, 0),
        pair(0, 2): GpuLink(Ancestor.MULTIPLE_SWITCHES, 0),
        pair(1, 2): GpuLink(Ancestor.SYSTEM, 0),
    }


def test_gpus_that_are_gone_stay_with_their_links() -> None:
    previous = known(3)
    lost_without_name = {"index": 1, "error": GONE}
    inventory = translate.inventory(answer(gpu(0), lost_without_name), previous)
    assert inventory == previous
    assert translate.polls([gpu(0), lost_without_name], inventory) == {
        "GPU-0": Poll(),
        "GPU-1": Poll("NVML: GPU is lost (15)", lost=True, answered=False),
        "GPU-2": translate.NOT_ENUMERATED,
    }


def test_gpus_never_readable_are_listed_apart() -> None:
    inventory = translate.inventory(
        answer(gpu(0), {"index": 1, "error": GONE}, {"index": 2, "uuid": "GPU-2", "error": GONE}), known(1)
    )
    assert [gpu.uuid for gpu in inventory.gpus] == ["GPU-0"]
    assert inventory.unreadable == (
        UnreadableGpu(1, None, "NVML: GPU is lost (15)"),
        UnreadableGpu(2, "GPU-2", "NVML: GPU is lost (15)"),
    )


def test_gpu_that_moved_keeps_its_name() -> None:
    inventory = translate.inventory(answer(gpu(0, uuid="GPU-1"), gpu(1, uuid="GPU-0")), known(2))
    assert [(gpu.index, gpu.uuid) for gpu in inventory.gpus] == [(0, "GPU-1"), (1, "GPU-0")]


@pytest.mark.parametrize(
    ("changes", "poll"),
    [
        ({"ecc": 3, "remap_failed": False, "recovery": 0}, Poll(ecc=3)),
        ({"recovery": 1, "ecc": 3}, Poll("the driver asks for a GPU reset", ecc=3)),
        ({"recovery": 99}, Poll("the driver asks for recovery action 99")),
        ({"remap_failed": True}, Poll("a faulty memory row could not be remapped: replace the GPU")),
        (
            {"remap_pending": True, "remap_failed": False},
            Poll(advice="a faulty memory row will be remapped when the GPU is reset: reset it once no pod uses it"),
        ),
        ({"error": {"code": 999, "text": "Unknown Error"}}, Poll("NVML: Unknown Error (999)", answered=False)),
        ({"error": GONE}, Poll("NVML: GPU is lost (15)", lost=True, answered=False)),
    ],
)
def test_poll(changes: dict[str, Any], poll: Poll) -> None:
    assert translate.polls([gpu(0, **changes)], known(1)) == {"GPU-0": poll}


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (4, "/dev/nvidiactl"),
        (9, "modprobe nvidia"),
        (12, "install the NVIDIA driver"),
        (18, "reload the kernel modules or reboot the node"),
        (999, "this pod has to be restarted"),
        (17, "nvidia-smi"),
    ],
)
def test_why_nvml_cannot_be_used_and_what_to_do(code: int, says: str) -> None:
    sentence = translate.unavailable({"code": code, "text": "Its Own Words"})
    assert says in sentence
    assert sentence.endswith(f"(NVML: Its Own Words, {code})")


def told(code: int | None, text: str = "Its Own Words") -> dict[str, Any]:
    return {"code": code, "text": text, "function": "nvmlDeviceGetMinorNumber"}


def test_undescribable_gpu_names_function_cause_and_remedy() -> None:
    reason = translate.inventory(answer({"index": 0, "error": told(999)}), None).unreadable[0].reason
    assert reason.startswith("nvmlDeviceGetMinorNumber: Its Own Words (999); read NVRM lines")
    odd = translate.inventory(answer({"index": 0, "error": told(None)}), None).unreadable[0].reason
    assert odd.startswith("nvmlDeviceGetMinorNumber: Its Own Words; reset the GPU")


def test_unsupported_value_is_reported_for_its_platform() -> None:
    raw = answer({"index": 0, "error": told(3, "Not Supported")})
    reason = translate.inventory(raw, None, "this is WSL2: use another").unreadable[0].reason
    assert reason == "nvmlDeviceGetMinorNumber: Not Supported (3); this is WSL2: use another"
    assert "WSL2" not in translate.inventory(raw, None).unreadable[0].reason
    assert translate.unavailable(told(12), "this is a Jetson: use another").startswith("this is a Jetson: use another")


def test_unloadable_library_reports_the_loaders_words() -> None:
    error = told(12) | {"loader": "/usr/lib/libnvidia-ml.so.1: undefined symbol: made_up"}
    sentence = translate.unavailable(error)
    assert "is there and cannot be loaded: /usr/lib/libnvidia-ml.so.1: undefined symbol: made_up" in sentence
    assert "not found" not in sentence.partition("(NVML:")[0]


@pytest.mark.parametrize(
    ("ecc", "pending", "poll"),
    [
        (0, False, Poll(ecc=0)),
        (None, None, Poll()),
        (0, True, Poll(ecc=0, advice=translate._RETIRE_PENDING)),
        (1, True, Poll(translate._RETIRE_BLOCKS, ecc=1)),
    ],
)
def test_pages_that_wait_to_be_retired(ecc: int | None, pending: bool | None, poll: Poll) -> None:
    """After an uncorrectable error no program gets a context until the page is retired."""
    assert translate.polls([gpu(0, ecc=ecc, retire_pending=pending)], known(1)) == {"GPU-0": poll}
