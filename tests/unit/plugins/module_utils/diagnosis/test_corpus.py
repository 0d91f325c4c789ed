# SPDX-License-Identifier: Apache-2.0
"""The diagnosis of published messages: nearly all get the finding that helps, and none a wrong one called certain."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.accel.kubernetes.plugins.module_utils.cuda.errors import ERRORS, named
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.evidence import Evidence
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.finding import Finding
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.verdict import diagnose

from unit.plugins.module_utils.diagnosis.test_verdict import CREATING, FAILED, PGPU, event, made, unscheduled

NO_NODE = "0/4 nodes are available: 4 no available node. preemption: 0/4 nodes are available."
LEAST, SHARE = 150, 0.95
"""Messages, and the part of them that gets its finding."""


@dataclass(frozen=True)
class Message:
    """One published message."""

    finding: str
    program: str
    source: str
    told: str
    text: str
    error: str = ""

    def evidence(self) -> Evidence:
        """The evidence of a pod with a whole GPU to which it happened."""
        kind, _, reason = self.told.partition(":")
        options: dict[str, dict[str, Any]] = {
            "log": {"log": self.text},
            "start": {"state": {"state": {"waiting": {"reason": "RunContainerError", "message": self.text}}}},
            "waiting": {"state": {"state": {"waiting": {"reason": reason, "message": self.text}}}},
            "event": {"phase": "Pending", "state": CREATING, "events": [event(reason, self.text)]},
            "admission": {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": self.text},
            "failed": {"phase": "Failed", "reason": reason, "message": self.text},
            "schedule": {"where": "", **unscheduled(self.text)},
            "filter": {"where": "", **unscheduled(NO_NODE), "events": [event(reason, self.text)]},
        }
        return made(**PGPU, **options[kind])

    def helped_by(self, finding: Finding) -> bool:
        """Whether it is what this message is about."""
        return (finding.rule, finding.what[: len(self.error)]) == (self.finding, self.error)


@cache
def messages() -> list[Message]:
    return [Message(**entry) for entry in yaml.safe_load(Path(__file__).with_name("corpus.yml").read_text())]


@cache
def diagnosed() -> dict[Message, list[Finding]]:
    return {message: diagnose(message.evidence()) for message in messages()}


def test_messages_are_many_and_name_where_they_were_published() -> None:
    assert len(diagnosed()) == len(messages()) >= LEAST
    assert all(message.source and message.program for message in messages())


def test_nearly_all_messages_get_the_finding_that_helps() -> None:
    without = [message for message, found in diagnosed().items() if not any(map(message.helped_by, found))]
    assert len(without) <= (1 - SHARE) * len(messages()), without


def test_no_message_gets_a_wrong_finding_called_certain() -> None:
    wrong = [
        (message.text, finding.rule)
        for message, found in diagnosed().items()
        for finding in found
        if finding.confidence == "certain" and not message.helped_by(finding)
    ]
    assert wrong == []


def test_message_of_a_successful_program_is_only_possible() -> None:
    for message in messages():
        if message.told == "log":
            state = {"state": {"terminated": {"reason": "Completed", "exitCode": 0}}}
            found = diagnose(made(**PGPU, log=message.text, state=state))
            assert {finding.confidence for finding in found} <= {"possible"}, message


FORMS = [
    "RuntimeError: CUDA error: {words}",
    'CUDA error at main.cu:66 code={code}({runtime}) "cudaMalloc(&p, n)"',
    "Failed to launch kernel (error code {words})!",
    "host:1:2 [0] enqueue.cc:43 NCCL WARN Cuda failure {code} '{words}'",
    "CUDA failure {code}: {words} ; GPU=0 ; hostname=x",
    "[TRT] [E] 1: [runtime.cpp::execute::145] Error Code 1: Cuda Runtime ({words})",
    "CUDA error {code} at ggml-cuda.cu:12: {words}",
    "cudaGetDeviceCount returned {code}",
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error {code}: {words}",
    "cupy_backends.cuda.api.runtime.CUDARuntimeError: {name}: {words}",
    "RuntimeError: CUDA driver error: {words}",
    "RuntimeError: Triton Error [CUDA]: {words}",
    "cuda runtime error ({code}) : {words} at /pytorch/aten/src/THC/x.cu:1",
]


@pytest.mark.parametrize("form", FORMS)
def test_every_cuda_error_is_known_in_every_form(form: str) -> None:
    for code, error in ERRORS.items():
        line = form.format(code=code, words=error.words, name=error.names[0], runtime=error.names[-1])
        same = {other.code for other in ERRORS.values() if other.words == error.words}
        assert {found.code for found in named(line)} & same, line


def test_name_without_its_prefix_counts_beside_its_words() -> None:
    assert named("ERROR_OUT_OF_MEMORY: out of memory") == (ERRORS[2],)
    assert named("ERROR_NOT_diagnosed(): no such page") == ()


@pytest.mark.parametrize(
    "line",
    [
        "CUDA error handling enabled: 1",
        "epoch 1 CUDA error=0",
        "error_code=2 out of memory (host)",
        "HTTP error code 404: file not found",
        "step 700 loss 2.35",
        "using cuda device 0",
        "PermissionError: [Errno 1] operation not permitted",
    ],
)
def test_words_of_other_programs_are_no_cuda_errors(line: str) -> None:
    assert named(line) == ()


def test_every_state_of_a_program_keeps_a_finding() -> None:
    found = diagnose(made(log="nothing that is known", state={"state": {"terminated": FAILED}}))
    assert [finding.rule for finding in found] == ["crashed"]
