# SPDX-License-Identifier: Apache-2.0
"""An authority as clusters of MicroK8s and old ones of kubeadm and EKS have it, and a Python that is strict."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


class OldAuthority(trustme.CA):
    """Its certificates have no key identifiers and no key usage."""

    def __init__(self) -> None:
        super().__init__()
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._own = self._made("kubernetes", self._key, x509.BasicConstraints(ca=True, path_length=None))

    @property
    def cert_pem(self) -> trustme.Blob:
        return trustme.Blob(self._own.public_bytes(Encoding.PEM))

    def issue_cert(self, *identities: str, common_name: str | None = None, **_: Any) -> trustme.LeafCert:
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(host)) for host in identities or ("127.0.0.1",)])
        made = self._made(common_name or "server", key, names).public_bytes(Encoding.PEM)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        return trustme.LeafCert(private, made, [])

    def _made(self, name: str, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType) -> x509.Certificate:
        def named(common_name: str) -> x509.Name:
            return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])

        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(named(name))
            .issuer_name(named("kubernetes"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(extension, critical=True)
            .sign(self._key, hashes.SHA256())
        )


def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have any Python's contexts be as those of 3.13 are."""
    lenient = ssl.create_default_context

    def made(*arguments: Any, **options: Any) -> ssl.SSLContext:
        context = lenient(*arguments, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", made)
