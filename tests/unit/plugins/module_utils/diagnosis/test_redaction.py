# SPDX-License-Identifier: Apache-2.0
"""What is taken out of text that others are shown."""

from __future__ import annotations

import base64
import json
import time

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.redaction import (
    _SECRET_NAME,
    REDACTED,
    Redaction,
)
from hypothesis import example, given, settings
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
    "the user of curl": ("curl -sS -u admin:hunter2-x https://h/", "hunter2-x"),
    "the user of curl, at once": ("curl -uadmin:hunter2-x https://h/", "hunter2-x"),
    "the user of curl, in full": ("curl --user 'admin:hunter2-x' https://h/", "hunter2-x"),
    "the proxy of curl": ("curl -x p --proxy-user bob:hunter2-x https://h/", "hunter2-x"),
    "Slack": ("to https://hooks.slack.com/services/T00/B00/XXXXsecretXXXX now", "XXXXsecretXXXX"),
    "Teams": ("https://acme.webhook.office.com/webhookb2/aa@bb/IncomingWebhook/s3cr3t/x", "s3cr3t"),
    "Discord": ("https://discord.com/api/webhooks/123/s3cr3t-token", "s3cr3t-token"),
    "Discord, as it was": ("https://discordapp.com/api/v10/webhooks/123/s3cr3t-token", "s3cr3t-token"),
    "Telegram": ("https://api.telegram.org/bot123456789:AAE-s3cr3t/sendMessage", "AAE-s3cr3t"),
    "Mattermost": ("https://chat.example.org/hooks/xyzs3cr3t", "xyzs3cr3t"),
    "Azure storage": (
        "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=Zm9vYmFy+/==;EndpointSuffix=x",
        "Zm9vYmFy",
    ),
    "a shared access key": ("Endpoint=sb://x/;SharedAccessKeyName=n;SharedAccessKey=s3cr3t=;x", "s3cr3t"),
    "a shared access signature": ("https://a.blob.core.windows.net/c?sv=2024&sig=s3%2Bcr3t%3D&se=1", "s3%2Bcr3t"),
    "a signed URL of AWS": ("https://b.s3.amazonaws.com/k?X-Amz-Signature=abcdef0123&x=1", "abcdef0123"),
    "a sentence": ("The password is hunter2.", "hunter2"),
    "a sentence of a user": ("password for user bob was hunter2", "hunter2"),
    "a sentence with quotes": ('the secret is "two words"', "two words"),
    "a sentence of use": ("login with password hunter2", "hunter2"),
    "another language": ("Passwort: hunter2", "hunter2"),
    "Negotiate": ("www: Negotiate YIIabc123==", "YIIabc123"),
    "a folded header": ("Authorization: Basic\r\n dXNlcjpwYXNz", "dXNlcjpwYXNz"),
    "cookies": ("Cookie: a=1; session=s3cr3t; b=2", "s3cr3t"),
    "a set cookie": ("< Set-Cookie: sid=abc; Path=/; x=s3cr3t", "s3cr3t"),
    "a header of an API": ("X-Api-Key: s3cr3t", "s3cr3t"),
    "PostgreSQL": ("PGPASSWORD=hunter2 psql", "hunter2"),
    "netrc": ("machine h login bob password hunter2", "hunter2"),
    "netrc, by lines": ("machine h\n  login bob\n  password hunter2\n", "hunter2"),
    "MySQL": ("mysql -h db -u root -phunter2 x", "hunter2"),
    "docker login": ("docker login -u bob -p hunter2 registry", "hunter2"),
    "docker login by a pipe": ("echo hunter2 | docker login --password-stdin", "hunter2"),
    "kubectl": ("kubectl create secret docker-registry r --docker-password hunter2", "hunter2"),
    "sshpass": ("sshpass -p hunter2 ssh h", "hunter2"),
    "redis": ("redis-cli -h r -a hunter2 ping", "hunter2"),
    "LDAP": ("ldapsearch -D cn=x -w hunter2 -b o", "hunter2"),
    "openssl": ("openssl rsa -passin pass:hunter2", "hunter2"),
    "skopeo": ("skopeo copy --src-creds bob:hunter2 a b", "hunter2"),
    "kubeadm": ("kubeadm join h --token abcdef.0123456789abcdef", "0123456789abcdef"),
    "kubeadm, alone": ("token abcde1.0123456789abcdef created", "0123456789abcdef"),
    "a certificate's key": ("--certificate-key 0123abcd", "0123abcd"),
    "a DSN of Go": ("root:hunter2@tcp(db:3306)/x", "hunter2"),
    "a host without a scheme": ("admin:hunter2@db.example.org:5432", "hunter2"),
    "Sentry": ("https://abc123@o1.ingest.sentry.io/2", "abc123"),
    "GitLab": ("glpat-0123456789abcdefghij", "0123456789abcdef"),
    "OpenAI": ("sk-proj-0123456789abcdef", "0123456789abcdef"),
    "Anthropic": ("sk-ant-api03-0123456789abcdef", "0123456789abcdef"),
    "Weights & Biases": ("wandb login 0123456789abcdef0123456789abcdef01234567", "0123456789abcdef"),
    "npm": ("//r.example.org/:_authToken=npm_0123456789abcdefghijABCDEFGHIJ012345", "0123456789abcdef"),
    "Vault": ("hvs.CAESIJ0123456789abcdef", "0123456789abcdef"),
    "age": ("AGE-SECRET-KEY-1QQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQ", "QQQQQQQQQQ"),
    "PuTTY": ("Private-Lines: 2\nAAAAB3Nza\nC1yc2EAAA\nPrivate-MAC: x", "C1yc2EAAA"),
    "a variable in YAML": ("- name: DB_PASSWORD\n  value: hunter2", "hunter2"),
    "a variable in JSON": ('{"name":"DB_PASS","value":"hunter2"}', "hunter2"),
    "a variable": ("DB_PASS=hunter2", "hunter2"),
    "a pass": ("user=bob pass=hunter2", "hunter2"),
    "a Secret in YAML": (
        "apiVersion: v1\nkind: Secret\ndata:\n  x: aHVudGVyMg==\n  y: eHl6\nmetadata: {}",
        "aHVudGVyMg",
    ),
    "a Secret in JSON": ('{"kind":"Secret","data":{"x":"aHVudGVyMg=="}}', "aHVudGVyMg"),
    "a value on the next line": ("password:\n  hunter2", "hunter2"),
    "a block of YAML": ("password: |-\n  hunter2", "hunter2"),
    "a wrapped command": ("--password \\\n  hunter2", "hunter2"),
    "words without a space": ('["--password","hunter2"]', "hunter2"),
    "words of YAML": ("- --password\n- hunter2", "hunter2"),
    "a quoted user of curl": ("curl -u 'bob:hunter 2' h", "hunter 2"),
    "a quote within quotes": ('password = "abc\\"hunter2"', "hunter2"),
    "a quote of a shell": ("PASSWORD=$'hunter2'", "hunter2"),
    "a secret key": ("secret key: hunter2", "hunter2"),
    "a word behind its name": ("the password hunter2 was used", "hunter2"),
    "SQL": ("CREATE USER x IDENTIFIED BY 'hunter'", "hunter'"),
    "npm's": ("_auth=aHVudGVy", "aHVudGVy"),
    "a colon behind a verb": ("password is: hunter2", "hunter2"),
    "a session": ("PHPSESSID=hunter2", "hunter2"),
    "a bearer's flag": ("curl --oauth2-bearer hunter2 h", "hunter2"),
    "a quote cut off": ('{"password": "hunt er2', "hunt er2"),
    "the user of curl, as words of JSON": ('["curl", "-u", "bob:hunter2", "https://h"]', "hunter2"),
    "the user of curl, as words of YAML": ("- curl\n- -u\n- bob:hunter2\n- https://h", "hunter2"),
    "Slack, escaped": ("https:\\/\\/hooks.slack.com\\/services\\/T0\\/B0\\/s3cr3t", "s3cr3t"),
    "Slack, in a URL": ("?to=https%3A%2F%2Fhooks.slack.com%2Fservices%2FT0%2FB0%2Fs3cr3t", "s3cr3t"),
    "Slack, in the clear": ("http://hooks.slack.com/services/T0/B0/s3cr3t", "s3cr3t"),
    "a key in the environment": ("AZURE_STORAGE_KEY=hunter2", "hunter2"),
    "a bearer with a colon": ("bearer: hunter2", "hunter2"),
    "a registry in YAML": ("auth: Ym9iOmh1bnRlcjI=", "Ym9iOmh1bnRlcjI"),
    "a variable whose value comes first": ('{"value":"hunter2","name":"PGPASSWORD"}', "hunter2"),
    "XML": ("<password>hunter2</password>", "hunter2"),
    "a setting in XML": ('<add key="password" value="hunter2"/>', "hunter2"),
    "a comparison": ("password == hunter2", "hunter2"),
    "a pass in YAML": ("pass: hunter2", "hunter2"),
    "a pass in JSON": ('"pass": "hunter"', '"hunter"'),
    "a pass of Ansible": ("ansible_become_pass: hunter2", "hunter2"),
    "a pass of a database": ("DBPASS=hunter2", "hunter2"),
    "sudo": ("echo hunter2 | sudo -S ls", "hunter2"),
    "openssl, in short": ("openssl enc -k hunter2", "hunter2"),
    "Redis' configuration": ("requirepass hunter2", "hunter2"),
    "JWT, by name": ("jwt=hunter2", "hunter2"),
    "a token behind its name": ("got token 0123456789abcdef0123", "0123456789abcdef"),
    "Chinese": ("密码：hunter2", "hunter2"),
    "a pw": ("pw=hunter22", "hunter22"),
    "a pw of a database": ("DB_PW=hunter22", "hunter22"),
    "a pw in JSON": ('{"pw": "hunter22"}', "hunter22"),
    "a user's pw": ("user_pw = hunter22", "hunter22"),
    "a pass's flag": ("tool --pass hunter22", "hunter22"),
    "the user of HTTPie": ("http --auth user:hunter22 h", "hunter22"),
    "the user of HTTPie, as words": ('["http", "--auth", "user:hunter22"]', "hunter22"),
    "an auth": ("auth=hunter22", "hunter22"),
    "sqlcmd": ("sqlcmd -S db -U sa -P hunter22 -Q x", "hunter22"),
    "a word in quotes behind its name": ("password 'hunter22'", "hunter22"),
    "a word in brackets behind its name": ("password (hunter22)", "hunter22"),
    "a word behind its name and a dash": ("password - hunter22", "hunter22"),
    "whose password": ("the password of root: hunter22", "hunter22"),
    "a sentence in German": ("Passwort ist hunter22", "hunter22"),
    "Discord, without a scheme": ("discord.com/api/webhooks/123/s3cr3t-token", "s3cr3t-token"),
    "Slack, without a scheme": ("post to hooks.slack.com/services/T0/B0/s3cr3t", "s3cr3t"),
    "a value that is wrapped": (f"client-key-data: {BODY[:64]}\n  {BODY[64:]}\n", BODY[64:]),
}


@pytest.mark.attack
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
        "GPU 3 (GPU-0b1c2d3e-aaaa-bbbb-cccc-0123456789ab) is not allocated: XID 79",
        "https://example.org/a@b?x=1",
        "quota of namespace team-a for GPUs: has 50, asks for 30",
        "basic info: fine",
        "basic authentication failed",
        "Bearer authentication is on",
        "nvidia/cuda:12.4@sha256:0123456789abcdef0123456789abcdef",
        "docker://busybox@sha256:0123456789abcdef",
        "nvcr.io/nvidia/k8s-device-plugin:v0.17.0@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "pod 0b1c2d3e-4f5a-6b7c-8d9e-0f1a2b3c4d5e of team-a/train-0",
        "secretName: tls-cert",
        "imagePullSecrets: []",
        "automountServiceAccountToken: false",
        "tokenizer: meta-llama/Llama-3",
        "--tokenizer mistral --max-num-batched-tokens 8192",
        "PWD=/workspace",
        "--token-file /var/run/token",
        "--authorization-mode=Node,RBAC",
        "the token is expired",
        "password is required",
        "using password: NO",
        "tencent.com/vcuda-core: 30, nvidia.com/gpu: 1",
        "mailto:ops@example.org",
        "git@github.com:acme/x.git",
        "curl -sS https://example.org/x",
        "mysql -h db -u root -p",
        "docker run -p 8080:80 nginx",
        "PASS: 12, FAIL: 0",
        "http://10.0.0.1:9445/metrics",
        "kind: ConfigMap\ndata:\n  x: y\n",
        "webhook: hami-webhook",
        "PASS: test_1 of 12",
        "auth: basic",
        "compass: north",
        '- "-u"\n- 1000',
        'secret "tls-1" not found',
        "invalid token at position 12",
        "auth=basic mode",
        "auth=oauth2",
        "--auth basic",
        "--auth-mode=jwt",
        "ffmpeg -pass 1 --pass 2",
        "the tool --bypass node2",
        "password (optional)",
        "password - it is wrong",
        "the password of root: expired",
        "Passwort ist falsch",
        "no token for pod team/train-0: not found",
        "src/hooks/use2",
        "hpwr: 300",
        "mypw1.example.org",
        "- name: PATH\n  value: /usr/bin",
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
            "tokens": ["v", "u"],
            "volume": {"secret": {"secretName": "tls"}},
        }
    )
    assert told == {
        "a": [{"password": REDACTED, "port": 1}],
        "db-secret": REDACTED,
        "secretName": None,
        "note": f"token={REDACTED}",
        "SSH_KEY": REDACTED,
        "tokens": REDACTED,
        "volume": {"secret": {"secretName": "tls"}},
    }


@pytest.mark.attack
@pytest.mark.parametrize(
    "words",
    [
        ["curl", "-u", "bob:hunter2", "https://h"],
        ["mysql", "-phunter2", "x"],
        ["--password", "hunter2"],
        ["sh", "-c", "curl -u bob:hunter2 https://h"],
        ["docker", "login", "-p", "hunter2"],
        ["curl", "-H", "Authorization: Bearer hunter2"],
    ],
)
def test_words_of_a_command_are_looked_at_together(words: list[str]) -> None:
    told = Redaction().document({"args": words})
    assert "hunter2" not in str(told)
    assert told["args"][0] == words[0]


def test_words_that_tell_no_secret_stay() -> None:
    words = ["vllm", "serve", "--max-num-batched-tokens", "8192", "two words", ""]
    assert Redaction().document(words) == words


@pytest.mark.attack
@pytest.mark.parametrize(
    "piece",
    [
        *(
            "-----BEGIN A-----",
            "eyJa-",
            "password=",
            'token="',
            "a://",
            "--token ",
            "AAAAAAAAAAAAAAAA\n",
            "secret",
            "\\",
        ),
        *(
            "curl ",
            "curl -u ",
            "mysql ",
            "docker -",
            "login a ",
            "a:bcd@",
            "name: x_token ",
            "Bearer\n ",
            "token is ",
            "?sig=",
        ),
        *(
            "password for ",
            "kind: Secret\ndata:\n  a",
            '"data":{',
            "https://a/hooks/",
            "abcde1.",
            "password:\n",
            "echo a |",
        ),
        *("value: ", '"value":"a', "<a_token>", "-u, ", "A_KEY=", "pass: ", "openssl -", "redis-cli ", "token a1"),
    ],
)
def test_hostile_text_costs_no_more_than_its_length(piece: str) -> None:
    """Four times the text takes a quadratic pattern sixteen times as long."""

    def cost(length: int) -> float:
        text = f"{piece * (length // len(piece))}-----END"
        begin = time.process_time()
        Redaction().text(text)
        return time.process_time() - begin

    few = min(cost(5_000) for _ in range(3))
    assert min(cost(20_000) for _ in range(3)) < 10 * max(few, 0.01)


ALPHABET = "abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"
SHAPES = (
    "password={}",
    "password: '{}'",
    '{{"apiKey": "{}"}}',
    '{{\\"token\\": \\"{}\\"}}',
    "export DB_PASSWORD={}",
    "https://bob:{}@db.example.org/x",
    "bob:{}@db.example.org:5432",
    "curl -u bob:{} https://h",
    "Authorization: Bearer {}",
    "AccountKey={};x=1",
    "GET /?token={}&x=1",
    "the password is {}1",
    "--api-key {} --port 1",
    "--api-key={}",
    "- --api-key\n- {}",
    "login bob password {}",
    "mysql -uroot -p{} x",
    "hf_{0}{0}",
    "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----",
    "https://hooks.slack.com/services/{}",
    "- name: A_TOKEN\n  value: {}",
    "password: >-\n    {}",
    "secret -> {}",
    "PGPASSWORD=`{}` psql",
)
AROUND = (
    "",
    "\n",
    " ",
    "\t",
    "{",
    "x ",
    "2026-11-25T05:00:00Z stderr F ",
    "> ",
    "[",
    "- ",
    '"',
    "'",
    "\u201c",
    "a=1, ",
)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(SHAPES),
    st.text(ALPHABET, min_size=12, max_size=40),
    st.sampled_from(AROUND),
    st.sampled_from(AROUND),
)
@example("bob:{}@db.example.org:5432", "a2" * 8, "", "")
def test_no_secret_survives_wherever_it_stands(shape: str, secret: str, before: str, after: str) -> None:
    assert secret not in Redaction().text(f"{before}{shape.format(secret)}{after}")


@settings(max_examples=100)
@given(
    st.uuids(),
    st.text("0123456789abcdef", min_size=64, max_size=64),
    # What follows a name like pw is taken for a password.
    st.from_regex(r"[a-z][a-z0-9-]{2,20}[a-z]", fullmatch=True).filter(lambda name: not _SECRET_NAME.search(name)),
)
def test_names_and_digests_stay(uuid: object, digest: str, name: str) -> None:
    text = f"pod team-a/{name} ({uuid}) on GPU-{uuid}: image example.org/{name}:v1@sha256:{digest} is there"
    assert Redaction().text(text) == text


@given(st.text())
def test_any_text_is_shown(text: str) -> None:
    assert isinstance(Redaction(["known-value"]).text(text), str)
