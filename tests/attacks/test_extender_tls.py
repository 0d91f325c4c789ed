# SPDX-License-Identifier: Apache-2.0
"""A stranger at the extender's TLS: certificates that are not kube-scheduler's, odd handshakes, and paths to a verb."""

from __future__ import annotations

import datetime
import json
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import suppress

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from attacks.stranger import GOOD, SUITES, client_hello, record, statuses, until_closed
from bench.api_stub import shares
from unit.kube_accel.extender.outside import Outside, Running

pytestmark = pytest.mark.attack

Key = ec.EllipticCurvePrivateKey
DAY = datetime.timedelta(days=1)


@pytest.fixture(scope="module")
def extender(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One extender for all attacks. Whatever they do, it has logged no fault in the end."""
    outside = Outside(tmp_path_factory.mktemp("tls"), nodes=2)
    with outside.extender() as running:
        yield running
        assert "a request failed" not in (outside.root / "extender.log").read_text()
    outside.api.stop()


@pytest.fixture(autouse=True)
def pod_of_others(extender: Running) -> Iterator[bytes]:
    """A call that would bind a waiting pod. No attack does that; afterwards kube-scheduler does, at once."""
    item = extender.outside.create(f"waiting-{len(extender.outside.stub.added)}", shares(1, 1))
    name, node = item["metadata"]["name"], extender.outside.names[0]
    call = {"PodName": name, "PodNamespace": item["metadata"]["namespace"], "PodUID": item["metadata"]["uid"]}
    yield json.dumps({**call, "Node": node}).encode()
    assert name not in extender.outside.bound()
    assert extender.ready()
    scheduler = extender.scheduler()
    scheduler.filter(item, [node])
    assert scheduler.bind(item, node) == ""
    scheduler.close()
    assert extender.outside.bound()[name] == node


def post(path: str, body: bytes, fields: str = "", method: str = "POST") -> bytes:
    return (
        f"{method} {path} HTTP/1.1\r\nHost: a\r\n{fields}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body
    )


def answer_to(extender: Running, context: ssl.SSLContext, data: bytes, name: str = "127.0.0.1") -> bytes:
    """What comes back over TLS; nothing where the handshake is refused."""
    with suppress(ssl.SSLError, ConnectionError), context.wrap_socket(extender.plain(), server_hostname=name) as stream:
        stream.sendall(data)
        return until_closed(stream)
    return b""


# --- certificates


def named(words: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, words)])


def signed(
    key: Key,
    issuer: x509.Name,
    signer: object,
    usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.CLIENT_AUTH,
    days: tuple[int, int] = (-1, 1),
    ca: bool = False,
    subject: str = "system:kube-scheduler",
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(named(subject))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + days[0] * DAY)
        .not_valid_after(now + days[1] * DAY)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    )
    return builder.sign(signer, hashes.SHA256())  # type: ignore[arg-type]


class Certificates:
    """What the extender's authority signed, and what it did not."""

    def __init__(self, outside: Outside) -> None:
        self.outside = outside
        self.name = x509.load_pem_x509_certificate(outside.authority.cert_pem.bytes()).subject
        self.signer = serialization.load_pem_private_key(outside.authority.private_key_pem.bytes(), None)
        self.key = ec.generate_private_key(ec.SECP256R1())

    def context(self, *chain: x509.Certificate) -> ssl.SSLContext:
        """A client with this chain, which has our key."""
        path = self.outside.root / "attacker.pem"
        pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        parts = [self.key.private_bytes(pem, pkcs8, serialization.NoEncryption())]
        path.write_bytes(b"".join([*parts, *(each.public_bytes(pem) for each in chain)]))
        context = self.outside.client("")
        context.load_cert_chain(path)
        return context

    def good(self) -> ssl.SSLContext:
        return self.context(signed(self.key, self.name, self.signer))

    def self_signed(self) -> ssl.SSLContext:
        return self.context(signed(self.key, named("system:kube-scheduler"), self.key))

    def of_another_authority(self) -> ssl.SSLContext:
        context = self.outside.client("")
        trustme.CA().issue_cert("scheduler").configure_cert(context)
        return context

    def of_an_authority_of_the_same_name(self) -> ssl.SSLContext:
        other = ec.generate_private_key(ec.SECP256R1())
        return self.context(signed(self.key, self.name, other))

    def with_its_authority_along(self) -> ssl.SSLContext:
        other = ec.generate_private_key(ec.SECP256R1())
        root = signed(other, self.name, other, ca=True, subject=self.name.rfc4514_string())
        return self.context(signed(self.key, root.subject, other), root)

    def expired(self) -> ssl.SSLContext:
        return self.context(signed(self.key, self.name, self.signer, days=(-9, -1)))

    def not_yet_valid(self) -> ssl.SSLContext:
        return self.context(signed(self.key, self.name, self.signer, days=(1, 9)))

    def of_a_server(self) -> ssl.SSLContext:
        return self.context(signed(self.key, self.name, self.signer, ExtendedKeyUsageOID.SERVER_AUTH))

    def of_who_signs_code(self) -> ssl.SSLContext:
        return self.context(signed(self.key, self.name, self.signer, ExtendedKeyUsageOID.CODE_SIGNING))

    def signed_by_a_client(self) -> ssl.SSLContext:
        client = ec.generate_private_key(ec.SECP256R1())
        middle = signed(client, self.name, self.signer, subject="client")
        return self.context(signed(self.key, middle.subject, client), middle)

    def changed_after_it_was_signed(self) -> ssl.SSLContext:
        whole = signed(self.key, self.name, self.signer).public_bytes(serialization.Encoding.DER)
        other = whole.replace(b"system:kube-scheduler", b"system:kube-schedules")
        assert other != whole
        return self.context(x509.load_der_x509_certificate(other))


REFUSED_CERTIFICATES = {
    "self-signed": Certificates.self_signed,
    "of another authority": Certificates.of_another_authority,
    "of another authority of the same name": Certificates.of_an_authority_of_the_same_name,
    "with its own authority along": Certificates.with_its_authority_along,
    "expired": Certificates.expired,
    "not yet valid": Certificates.not_yet_valid,
    "of a server": Certificates.of_a_server,
    "for signing code": Certificates.of_who_signs_code,
    "signed by a client": Certificates.signed_by_a_client,
    "changed after it was signed": Certificates.changed_after_it_was_signed,
}


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
@pytest.mark.parametrize("certificate", REFUSED_CERTIFICATES)
def test_a_certificate_that_is_not_a_client_s_is_not_served(
    extender: Running, pod_of_others: bytes, certificate: str, version: ssl.TLSVersion
) -> None:
    made = Certificates(extender.outside)
    context = REFUSED_CERTIFICATES[certificate](made)
    context.maximum_version = version
    assert answer_to(extender, context, post("/scheduler/bind", pod_of_others)) == b""
    # It is not for a slip of ours: a good one made likewise is served.
    assert statuses(answer_to(extender, made.good(), post("/scheduler/priorities", b"", "Connection: close\r\n"))) == [
        400
    ]


CLAIMS = {
    "a certificate in a field": 'X-Forwarded-Client-Cert: Subject="CN=system:kube-scheduler"\r\n',
    "a proxy's verdict": "X-SSL-Client-Verify: SUCCESS\r\nX-SSL-Client-S-DN: CN=system:kube-scheduler\r\n",
    "a user's name": "X-Remote-User: system:kube-scheduler\r\nX-Remote-Group: system:masters\r\n",
    "a token": "Authorization: Bearer x\r\n",
    "an address": "X-Forwarded-For: 127.0.0.1\r\nForwarded: for=127.0.0.1\r\n",
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_who_only_says_who_it_is_stays_a_stranger(extender: Running, pod_of_others: bytes, claim: str) -> None:
    data = post("/scheduler/bind", pod_of_others, CLAIMS[claim])
    assert statuses(answer_to(extender, extender.outside.client(""), data)) == [403]


def test_a_session_taken_up_again_makes_nobody_known(extender: Running, pod_of_others: bytes) -> None:
    context = extender.outside.client("")
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # whose tickets come with the handshake
    with context.wrap_socket(extender.plain(), server_hostname="127.0.0.1") as first:
        session = first.session
    with context.wrap_socket(extender.plain(), server_hostname="127.0.0.1", session=session) as stream:
        assert stream.session_reused
        stream.sendall(post("/scheduler/bind", pod_of_others))
        assert statuses(until_closed(stream)) == [403]


@pytest.mark.parametrize(
    "name", ["kube-scheduler", "*.local", "a" * 63 + "." + "b" * 63, "127.0.0.1.", "xn--80ak6aa92e"]
)
def test_another_server_s_name_changes_nothing(extender: Running, pod_of_others: bytes, name: str) -> None:
    context = extender.outside.client("")
    context.check_hostname = False
    assert statuses(answer_to(extender, context, post("/scheduler/bind", pod_of_others), name)) == [403]


# --- handshakes

HANDSHAKES = {
    "SSL 2.0": b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10\x07\x00\xc0" + bytes(34),
    "SSL 3.0": client_hello(0x0300),
    "TLS 1.0": client_hello(0x0301),
    "TLS 1.1": client_hello(0x0302),
    "TLS 1.2 without encryption": client_hello(0x0303, [0x0001, 0x0002, 0x003B, 0xC006, 0xC010]),
    "TLS 1.2 without authentication": client_hello(0x0303, [0x0034, 0x006C, 0x00A6, 0xC018]),
    "TLS 1.2 with RC4 and DES": client_hello(0x0303, [0x0003, 0x0005, 0x0009, 0x000A, 0xC011]),
    "a fallback to TLS 1.2": client_hello(0x0303, [*SUITES, 0x5600]),
    "a server's name with a NUL": client_hello(0x0303, server=b"127.0.0.1\0.other"),
    "a server's name that is too long": client_hello(0x0303, server=b"a" * 4000),
    "a record of zeros": bytes(64),
    "a record that is too large": b"\x16\x03\x01\xff\xff" + bytes(70_000),
    "an empty record": record(22, b""),
    "a heartbeat before the handshake": record(24, b"\x01\x40\x00"),
    "keys changed before there are any": record(20, b"\x01") + client_hello(0x0303),
    "data before the handshake": record(23, GOOD),
    "the words of a proxy first": b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n" + client_hello(0x0303),
    "HTTP in the clear": b"POST /scheduler/bind HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
    "the preface of HTTP/2 in the clear": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}


def without_keys(extender: Running, words: bytes) -> bytes:
    """What comes back to words in the clear."""
    with extender.plain() as stream:
        with suppress(OSError):  # ended already
            stream.sendall(words)
            stream.shutdown(socket.SHUT_WR)
        return until_closed(stream)


@pytest.mark.parametrize("kind", HANDSHAKES)
def test_an_odd_handshake_gets_an_alert_and_no_more(extender: Running, kind: str) -> None:
    answer = without_keys(extender, HANDSHAKES[kind])
    assert re.fullmatch(rb"(\x15\x03.\0\x02\x02.)?", answer, re.DOTALL), answer
    # It is not for a slip of ours: the same hello without its oddity gets a certificate.
    assert without_keys(extender, client_hello(0x0303, server=b"127.0.0.1")).startswith(b"\x16\x03\x03")


@pytest.mark.parametrize(
    "words", [GOOD, record(23, GOOD), record(20, b"\x01") + record(22, bytes(40))], ids=["words", "data", "other keys"]
)
def test_nothing_in_the_clear_counts_after_a_hello(extender: Running, words: bytes) -> None:
    answer = without_keys(extender, client_hello(0x0303) + words)
    assert re.search(rb"\x15\x03.\0\x02\x02.\Z", answer, re.DOTALL), answer[-50:]


def test_keys_are_not_negotiated_again(extender: Running) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on PATH: nothing else here asks for new keys")
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{extender.port}", "-tls1_2", "-legacy_renegotiation"]
    done = subprocess.run(command, input="R\n", capture_output=True, text=True, timeout=30, check=False)
    assert "RENEGOTIATING" in done.stdout + done.stderr
    assert "no renegotiation" in done.stderr


def test_a_request_that_is_cut_off_is_not_carried_out(extender: Running, pod_of_others: bytes) -> None:
    """Known, and cut off by who sits between: TLS tells no end, and what came looks whole but for its last byte."""
    context = extender.outside.client()
    with context.wrap_socket(extender.plain(), server_hostname="127.0.0.1") as stream:
        stream.sendall(post("/scheduler/bind", pod_of_others + b" ")[:-1])
        plain = socket.socket(fileno=stream.detach())
    with plain:
        plain.shutdown(socket.SHUT_WR)
        plain.settimeout(30)
        until_closed(plain)


# --- paths

PATHS = {
    "up and down again": "/scheduler/../scheduler/bind",
    "up and down again, encoded": "/scheduler/%2e%2e/scheduler/bind",
    "out of a page": "/healthz/../scheduler/bind",
    "out of a page, encoded": "/healthz/%2e%2e/scheduler/bind",
    "out of the root": "/../../scheduler/bind",
    "two slashes in front": "//scheduler/bind",
    "two slashes within": "/scheduler//bind",
    "a slash at the end": "/scheduler/bind/",
    "a dot": "/scheduler/./bind",
    "a backslash": "/scheduler\\bind",
    "an encoded slash": "/scheduler%2fbind",
    "encoded letters": "/scheduler/%62ind",
    "encoded twice": "/scheduler/%2562ind",
    "an overlong slash": "/scheduler%c0%afbind",
    "capitals": "/Scheduler/BIND",
    "a parameter": "/scheduler/bind;x=1",
    "a page's parameter": "/healthz;/scheduler/bind",
    "an encoded NUL": "/healthz%00/scheduler/bind",
    "a NUL": "/healthz\0/scheduler/bind",
    "a fragment": "/scheduler/bind#x",
    "an encoded line end": "/healthz%0d%0aX:%20y",
    "a URL": "https://127.0.0.1/scheduler/bind",
    "a URL of a page": "http://127.0.0.1/healthz",
    "no slash": "scheduler/bind",
    "two verbs": "/scheduler/predicates,bind",
    "a verb below a verb": "/scheduler/predicates/bind",
    "a very long one": "/scheduler/" + "../scheduler/" * 2000 + "bind",
    "letters of another script": "/scheduler/b\xefnd",
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("certificate", ["", "client"])
def test_no_other_path_leads_to_a_verb(extender: Running, pod_of_others: bytes, path: str, certificate: str) -> None:
    """Not for kube-scheduler either: what looks at paths before us would take them for something else."""
    data = post(PATHS[path], pod_of_others, "Connection: close\r\n")
    assert statuses(answer_to(extender, extender.outside.client(certificate), data))[0] in (400, 404, 431)


@pytest.mark.parametrize("query", ["?x=1", "?", "?/healthz", "?/../healthz", "??", "?%00"])
def test_a_query_makes_no_page_of_a_verb(extender: Running, pod_of_others: bytes, query: str) -> None:
    data = post(f"/scheduler/bind{query}", pod_of_others)
    assert statuses(answer_to(extender, extender.outside.client(""), data)) == [403]


@pytest.mark.parametrize(
    "method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "post", "X"]
)
def test_no_method_binds_without_a_certificate(extender: Running, pod_of_others: bytes, method: str) -> None:
    fields = "X-HTTP-Method-Override: POST\r\n"
    for path in ("/scheduler/bind", "/healthz?/scheduler/bind"):
        answer = answer_to(extender, extender.outside.client(""), post(path, pod_of_others, fields, method))
        assert statuses(answer)[0] in (403, 405, 413), answer
