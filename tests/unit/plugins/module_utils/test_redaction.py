# SPDX-License-Identifier: Apache-2.0
"""What is taken out of text that others are shown."""

from __future__ import annotations

import base64
import json
import time

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.redaction import REDACTED, Redaction
from hypothesis import given
from hypothesis import strategies as st

BODY = base64.b64encode(bytes(range(96))).decode()
PEM = f"-----BEGIN PRIVATE KEY-----\n{BODY[:64]}\n{BODY[64:]}\n-----END PRIVATE KEY-----"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJzZWNyZXQifQ.c2lnbmF0dXJl"
SECRETS = {
    "a password": ("DB_PASSWORD=hunter2-x", "hunter2-x"),
    "a short password": ("password=ab", "=ab"),
    "a quoted password": ("{'password': 'two words', 'port': 1}", "two words"),
    "JSON": ('{"api_key": "k-123456", "n": 1}', "k-123456"),
    "JSON in JSON": (json.dumps({"a": '{"token": "t-98765", "n": 1}'}), "t-98765"),
    "YAML": ("client-key-data: TFMwdExTMUNSVWRK", "TFMwdExTMUNSVWRK"),
    "a flag": ("vllm serve --api-key s3cr3tkey --port 1", "s3cr3tkey"),
    "a flag with =": ("--hf-token=abcdef", "abcdef"),
    "words of a command": ('["serve", "--auth-token", "t0k3n-x"]', "t0k3n-x"),
    "a bearer token": ("sending Bearer abc.def-ghi=", "abc.def-ghi"),
    "a header": ("Authorization: Digest user=me, response=77aa88", "77aa88"),
    "basic": ("curl -H 'authorization: Basic dXNlcjpwYXNz'", "dXNlcjpwYXNz"),
    "a URL": ("postgres://bob:p@ss@db:5432/x", "p@ss"),
    "a URL's user": ("https://ghp_token@example.org/x.git", "ghp_token"),
    "a query": ("GET /v1?token=abc123&x=1", "abc123"),
    "a JWT": (f"got {JWT} from there", JWT.split(".")[1]),
    "AWS": ("key AKIAIOSFODNN7EXAMPLE used", "AKIAIOSFODNN7EXAMPLE"),
    "GitHub": ("pushed with ghp_0123456789abcdefghijABCD", "ghp_0123456789"),
    "Hugging Face": ("login hf_abcdefghijklmnopqrstuvwx", "hf_abcdefgh"),
    "NVIDIA": ("nvapi-0123456789abcdef-ABCDEF", "0123456789abcdef"),
    "Docker": ('{"auths":{"r":{"auth":"dXNlcjpwYXNzd29yZA=="}}}', "dXNlcjpwYXNzd29yZA"),
    "a PEM block": (f"key:\n{PEM}\nrest", BODY[:40]),
    "a PEM block on one line": (json.dumps({"k": PEM}), BODY[:40]),
    "a PEM block cut off at its end": (PEM[:70], BODY[:40]),
    "a PEM block cut off at its start": (PEM[40:], BODY[64:100]),
}


@pytest.mark.parametrize(("text", "secret"), SECRETS.values(), ids=SECRETS.keys())
def test_what_looks_or_is_called_secret_goes(text: str, secret: str) -> None:
    assert secret in text
    shown = Redaction().text(text)
    assert secret not in shown
    assert REDACTED in shown


@pytest.mark.parametrize(
    "text",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "prompt tokens: 512, max_tokens=4096",
        "GPU 3 (GPU-0b1c2d3e-aaaa-bbbb-cccc-0123456789ab) is not handed out: XID 79",
        "https://example.org/a@b?x=1",
        "quota of namespace team-a for GPUs: has 50, asks for 30",
        "basic info: fine",
    ],
)
def test_what_helps_stays(text: str) -> None:
    assert Redaction().text(text) == text


def test_a_value_known_as_secret_is_taken_out_everywhere() -> None:
    redaction = Redaction(["hunter2-long", "it"])
    assert redaction.text("it logs hunter2-long.") == f"it logs {REDACTED}."


def test_names_and_values_of_documents_are_looked_at() -> None:
    told = Redaction().document(
        {
            "a": [{"password": "x", "port": 1}],
            "db-secret": "y",
            "secretName": None,
            "note": "token=zzzz",
            "SSH_KEY": "w",
        }
    )
    assert told == {
        "a": [{"password": REDACTED, "port": 1}],
        "db-secret": REDACTED,
        "secretName": None,
        "note": f"token={REDACTED}",
        "SSH_KEY": REDACTED,
    }


@pytest.mark.parametrize(
    "piece",
    ["-----BEGIN A-----", "eyJa-", "password=", 'token="', "a://", "--token ", "AAAAAAAAAAAAAAAA\n", "secret", "\\"],
)
def test_hostile_text_costs_no_more_than_its_length(piece: str) -> None:
    """Four times the text takes a quadratic pattern sixteen times as long."""

    def cost(length: int) -> float:
        text = f"{piece * (length // len(piece))}-----END"
        begin = time.process_time()
        Redaction().text(text)
        return time.process_time() - begin

    few = min(cost(60_000) for _ in range(3))
    assert min(cost(240_000) for _ in range(3)) < 10 * max(few, 0.01)


@given(st.text())
def test_any_text_is_shown(text: str) -> None:
    assert isinstance(Redaction(["known-value"]).text(text), str)
