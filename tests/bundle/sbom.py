# SPDX-License-Identifier: Apache-2.0
"""What a bundle is made of, for those who look for vulnerabilities and licences: CycloneDX 1.6."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import uuid
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from email import message_from_bytes, message_from_string
from email.message import Message
from pathlib import Path
from typing import Any

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from license_expression import ExpressionError, get_spdx_licensing
from packageurl import PackageURL


def render(name: str, version: str, parts: list[Component], epoch: int, digest: str) -> str:
    """The document of the bundle ``name``, which has these parts, was made at ``epoch``, and has this digest."""
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_OID, digest))
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    bom.metadata.component = Component(name=name, version=version, type=ComponentType.APPLICATION, bom_ref=name)
    bom.components.update(parts)
    bom.register_dependency(bom.metadata.component, parts)
    return JsonV1Dot6(bom).output_as_string(indent=1)


def collection(path: Path) -> Component:
    """That of the archive of a collection."""
    with tarfile.open(path) as archive:
        info = json.load(_file(archive, "MANIFEST.json"))["collection_info"]
    name = f"{info['namespace']}.{info['name']}"
    purl = PackageURL("generic", "ansible", name, info["version"])
    return _component(name, info["version"], purl, " AND ".join(info["license"]), path.read_bytes())


def wheel(path: Path) -> Component:
    """That of a wheel."""
    with zipfile.ZipFile(path) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA") and name.count("/") == 1]
        said = message_from_bytes(archive.read(name))
    return _python(said, path.name, path.read_bytes())


def image(path: Path) -> Component:
    """That of an OCI archive, with the Debian and Python packages that its layers name in it."""
    with tarfile.open(path) as archive:
        index = json.load(_file(archive, "index.json"))["manifests"][0]
        manifest = _blob(archive, index)
        reference = index["annotations"]["io.containerd.image.name"]
        found = [part for layer in manifest["layers"] for part in _packages(archive, layer)]
    name, _, tag = reference.rpartition(":")
    purl = PackageURL("oci", None, name.rpartition("/")[2], index["digest"])
    whole = _component(name, tag, purl, "", path.read_bytes(), ComponentType.CONTAINER)
    whole.components.update({part.bom_ref.value: part for part in found}.values())
    return whole


def _blob(archive: tarfile.TarFile, descriptor: dict[str, Any]) -> Any:
    return json.load(_file(archive, f"blobs/{descriptor['digest'].replace(':', '/')}"))


def _packages(archive: tarfile.TarFile, layer: dict[str, Any]) -> Iterator[Component]:
    with tarfile.open(fileobj=_file(archive, f"blobs/{layer['digest'].replace(':', '/')}")) as files:
        for member in files:
            path = member.name.removeprefix("./")
            if not member.isfile():
                continue
            if path == "var/lib/dpkg/status":
                for text in _file(files, member.name).read().decode().strip().split("\n\n"):
                    yield _debian(message_from_string(text))
            elif path.endswith(".dist-info/METADATA"):
                yield _python(message_from_bytes(_file(files, member.name).read()), "image")


def _debian(said: Message) -> Component:
    name, version = said["Package"], said["Version"]
    purl = PackageURL("deb", "debian", name, version, {"arch": said["Architecture"]})
    return _component(name, version, purl)


def _python(said: Message, qualifier: str, content: bytes = b"") -> Component:
    """A wheel for each Python is a part of its own."""
    name, version = said["Name"], said["Version"]
    purl = PackageURL("pypi", None, name.lower().replace("_", "-"), version, {"file_name": qualifier})
    return _component(name, version, purl, said["License-Expression"] or said["License"] or "", content)


def _component(
    name: str,
    version: str,
    purl: PackageURL,
    license_text: str = "",
    content: bytes = b"",
    kind: ComponentType = ComponentType.LIBRARY,
) -> Component:
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(content).hexdigest())] if content else []
    return Component(
        name=name,
        version=version,
        type=kind,
        purl=purl,
        bom_ref=str(purl),
        hashes=hashes,
        licenses=[_license(license_text)] if license_text else [],
    )


def _license(text: str) -> LicenseExpression | DisjunctiveLicense:
    """An expression of SPDX where it is one; else the first line of what the author wrote."""
    try:
        get_spdx_licensing().parse(text, validate=True, strict=True)
    except ExpressionError:
        return DisjunctiveLicense(name=text.splitlines()[0].strip())
    return LicenseExpression(text)


def _file(archive: tarfile.TarFile, name: str) -> io.BufferedReader:
    file = archive.extractfile(name)
    assert file is not None, f"{name} is no file"
    return file  # type: ignore[return-value]
