# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A registry as far as pushing an image and reading what it is made of need it.

OCI distribution specification 1.1, token authentication as Docker's.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass, field
from email.message import Message
from http.client import HTTPException
from typing import Any, BinaryIO, Dict, Iterable, Iterator, List, Mapping, Sequence, Tuple
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urljoin, urlsplit

from ansible.module_utils.urls import open_url
from ansible_collections.accel.kubernetes.plugins.module_utils.oci.image import (
    CHUNK,
    INDEX_TYPE,
    MANIFEST_TYPE,
    Blob,
    Image,
    Platform,
    Reference,
    merged_index,
)

MAX_ANSWER = 1 << 20
# What Docker calls manifests and indexes; registries hold both kinds.
DOCKER_TYPES = (
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
# The name Docker gives its registry is not the host that serves it.
HOSTS = {"docker.io": "registry-1.docker.io"}


class RegistryError(Exception):
    """The registry did not take the image. Says which one, at what, and what to do."""


@dataclass(frozen=True)
class Access:
    """How a registry is reached."""

    username: str = ""
    password: str = ""
    token: str = ""
    ca_path: str | None = None
    insecure: bool = False
    """Plain HTTP."""
    timeout: float = 60
    """Seconds a network operation may take without progress."""


@dataclass(frozen=True)
class Answer:
    """What a registry says. Names of headers in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class StoredLayer:
    """A layer as the registry holds it."""

    digest: str
    size: int
    """Bytes, packed."""


@dataclass(frozen=True)
class Described:
    """An image as the registry describes it."""

    configuration: Dict[str, Any]
    layers: Sequence[StoredLayer]


class Registry:
    """One repository of a registry."""

    def __init__(self, reference: Reference, access: Access) -> None:
        self.reference = reference
        self.access = access
        host = HOSTS.get(reference.registry, reference.registry)
        self._root = f"{'http' if access.insecure else 'https'}://{host}/v2/{reference.repository}"
        self._authorization = f"Bearer {access.token}" if access.token else ""

    def lacks(self, image: Image) -> bool:
        """Return whether the tag names something else, or nothing."""
        answer = self._call("HEAD", f"manifests/{self.reference.tag}", {"Accept": MANIFEST_TYPE}, fine=(404,))
        if answer.status == 404:
            return True
        digest = answer.headers.get("docker-content-digest")
        if digest is None:
            # The header is optional; the bytes are not.
            answer = self._call("GET", f"manifests/{self.reference.tag}", {"Accept": MANIFEST_TYPE})
            digest = Blob.of(answer.body).digest
        return bool(digest != image.manifest.digest)

    def index(self, image: Image) -> Tuple[Blob, bool]:
        """Return the index for the tag, other architectures' images kept, and whether the tag names another or none."""
        accept = {"Accept": ", ".join((INDEX_TYPE, MANIFEST_TYPE, *DOCKER_TYPES))}
        answer = self._call("GET", f"manifests/{self.reference.tag}", accept, fine=(404,))
        # An index need not say that it is one. A single image has no ``manifests``.
        index = merged_index(image, _document(answer) if answer.status == 200 else {})
        return index, answer.body != index.read()

    def describe(self, architecture: str) -> Described:
        """Return what is said of the image the tag names for an architecture.

        Raises RegistryError when there is none.
        """
        accept = {"Accept": ", ".join((INDEX_TYPE, MANIFEST_TYPE, *DOCKER_TYPES))}
        document = _document(self._call("GET", f"manifests/{self.reference.tag}", accept))
        if "manifests" in document:
            listed = [(Platform.of(one.get("platform") or {}), one["digest"]) for one in document["manifests"]]
            fitting = [(platform.level, digest) for platform, digest in listed if platform.fits(architecture)]
            if not fitting:
                raise self._other(architecture, [platform for platform, _digest in listed])
            _level, digest = min(fitting, key=lambda one: one[0])
            document = _document(self._call("GET", f"manifests/{digest}", accept))
        digest = document.get("config", {}).get("digest")
        if digest is None:
            raise RegistryError(f"what {self.reference} names is no image: it has no configuration")
        found = _document(self._call("GET", f"blobs/{digest}"))
        platform = Platform.of(found)
        if not platform.fits(architecture):
            raise self._other(architecture, [platform])
        layers = document.get("layers")
        return Described(found, [*_layers(layers if isinstance(layers, list) else [])])

    def save(self, layer: StoredLayer, into: BinaryIO) -> None:
        """Write a layer as it is stored. Raises RegistryError when its bytes are others than the manifest says."""
        copied = _Copied(into, layer.size)
        self._call("GET", f"blobs/{layer.digest}", into=copied)
        if f"sha256:{copied.hash.hexdigest()}" != layer.digest:
            raise RegistryError(f"{self.reference.registry} sent other bytes than those of {layer.digest}")

    def _other(self, architecture: str, there: Iterable[Platform]) -> RegistryError:
        known = ", ".join(sorted({platform.name for platform in there if platform.architecture != "unknown"}))
        return RegistryError(f"{self.reference} is there for {known or 'nothing'} and not for {architecture}")

    def push(self, image: Image, index: Blob | None = None) -> List[str]:
        """Send what is missing, what the tag names last; returns the digests of the blobs sent."""
        sent = []
        for blob in image.blobs():
            if self._call("HEAD", f"blobs/{blob.digest}", fine=(404,)).status == 404:
                self._upload(blob)
                sent.append(blob.digest)
        if index is None:
            self._put(self.reference.tag, MANIFEST_TYPE, image.manifest)
        else:
            self._put(image.manifest.digest, MANIFEST_TYPE, image.manifest)
            self._put(self.reference.tag, INDEX_TYPE, index)
        return sent

    def _put(self, name: str, media_type: str, manifest: Blob) -> None:
        answer = self._call("PUT", f"manifests/{name}", {"Content-Type": media_type}, manifest)
        stored = answer.headers.get("docker-content-digest", manifest.digest)
        if stored != manifest.digest:
            raise RegistryError(f"{self.reference.registry} stored {stored} instead of {manifest.digest}")

    def _upload(self, blob: Blob) -> None:
        started = self._call("POST", "blobs/uploads/", body=Blob.of(b""))
        location = urljoin(f"{self._root}/blobs/uploads/", started.headers.get("location", ""))
        if not self.access.insecure and urlsplit(location).scheme != "https":
            raise RegistryError(f"{self.reference.registry} wants the upload at {location}, which is not HTTPS")
        location += ("&" if urlsplit(location).query else "?") + urlencode({"digest": blob.digest})
        self._call("PUT", location, {"Content-Type": "application/octet-stream"}, blob)

    def _call(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: Blob | None = None,
        fine: Tuple[int, ...] = (),
        into: _Copied | None = None,
    ) -> Answer:
        """Return the answer to one request, authenticated if needed. Any failure that is not ``fine`` raises.

        The body of one that succeeds goes ``into`` what is given, if anything, and is empty in the answer.
        """
        url = urljoin(f"{self._root}/", path)
        # An upload may go to a host of its own, which has no business with our credentials.
        ours = urlsplit(url)[:2] == urlsplit(self._root)[:2]
        answer = self._send(method, url, self._authorized(headers, ours), body, into)
        if answer.status == 401 and ours:
            self._authenticate(answer)
            answer = self._send(method, url, self._authorized(headers, ours), body, into)
        if answer.status >= 300 and answer.status not in fine:
            raise RegistryError(self._complaint(method, url, answer))
        return answer

    def _authorized(self, headers: Mapping[str, str] | None, ours: bool) -> Dict[str, str]:
        with_credentials = {"Authorization": self._authorization} if ours and self._authorization else {}
        return {**(headers or {}), **with_credentials}

    def _authenticate(self, answer: Answer) -> None:
        """Get the credentials the registry asks for. Raises RegistryError when there are none to give."""
        scheme, _space, rest = answer.headers.get("www-authenticate", "").partition(" ")
        basic = ""
        if self.access.username:
            pair = f"{self.access.username}:{self.access.password}"
            basic = f"Basic {base64.b64encode(pair.encode()).decode()}"
        if scheme.lower() == "basic" and basic and self._authorization != basic:
            self._authorization = basic
            return
        if scheme.lower() != "bearer" or self.access.token:
            raise RegistryError(self._complaint("GET", self._root, answer))
        asked: Dict[str, str] = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        realm = asked.get("realm", "")
        if urlsplit(realm).scheme != "https" and not self.access.insecure:
            raise RegistryError(f"{self.reference.registry} wants credentials sent to {realm!r}, which is not HTTPS")
        query = {"scope": asked.get("scope") or f"repository:{self.reference.repository}:pull,push"}
        if "service" in asked:
            query["service"] = asked["service"]
        url = realm + ("&" if urlsplit(realm).query else "?") + urlencode(query)
        given = self._send("GET", url, {"Authorization": basic} if basic else {}, None)
        if given.status != 200:
            raise RegistryError(self._complaint("GET", realm, given))
        answered = _document(given)
        token = answered.get("token") or answered.get("access_token")
        if not token:
            raise RegistryError(f"{realm} answered without a token")
        self._authorization = f"Bearer {token}"

    def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: Blob | None, into: _Copied | None = None
    ) -> Answer:
        lengths = {} if body is None else {"Content-Length": str(body.size)}
        handle = None if body is None else body.open()
        try:
            with open_url(
                url,
                data=handle,
                method=method,
                headers={**headers, **lengths},
                timeout=self.access.timeout,
                ca_path=self.access.ca_path,
                # A redirect leads to a storage service; it gets no credentials.
                unredirected_headers=["Authorization"],
                decompress=False,
                use_netrc=False,
            ) as response:
                if into is not None:
                    into.copy(response)
                return Answer(response.status, _lower(response.headers), response.read(MAX_ANSWER))
        except HTTPError as error:
            with error:
                return Answer(error.code, _lower(error.headers), error.read(MAX_ANSWER))
        except (URLError, HTTPException, OSError, ValueError) as error:
            reason = str(getattr(error, "reason", None) or error)
            hint = ""
            if "CERTIFICATE_VERIFY_FAILED" in reason:
                hint = "; name the certificate authority that signed it in 'ca_path'"
            elif "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER_FAILURE" in reason:
                hint = "; it seems to speak plain HTTP: set 'insecure' if it may"
            raise RegistryError(f"{method} {_shown(url)} failed: {reason}{hint}") from error
        finally:
            if handle is not None:
                handle.close()

    def _complaint(self, method: str, url: str, answer: Answer) -> str:
        errors = _document(answer).get("errors")
        said = ""
        if isinstance(errors, list):
            said = "; ".join(f"{e.get('code')}: {e.get('message')}" for e in errors if isinstance(e, dict))
        text = f"{method} {_shown(url)} was answered with status {answer.status}" + (f" ({said})" if said else "")
        if answer.status not in (401, 403):
            return text
        if self.access.token:
            return f"{text}; the registry did not accept 'token'"
        if self.access.username:
            return f"{text}; the registry did not accept 'username' and 'password'"
        return f"{text}; give 'username' and 'password', or 'token'"


@dataclass
class _Copied:
    """What is copied from a registry to a file."""

    file: BinaryIO
    most: int
    """Bytes that are copied, at most."""
    hash: Any = field(default_factory=hashlib.sha256)

    def copy(self, response: BinaryIO) -> None:
        """Copy the body of an answer; what is longer than it may be has another hash."""
        while self.most > 0:
            data = response.read(min(self.most, CHUNK))
            if not data:
                return
            self.file.write(data)
            self.hash.update(data)
            self.most -= len(data)


def _layers(listed: Sequence[object]) -> Iterator[StoredLayer]:
    """Yield the layers of a manifest that a registry stores, by digest."""
    for layer in listed:
        if isinstance(layer, dict) and isinstance(layer.get("size"), int) and layer["size"] >= 0:
            digest = layer.get("digest")
            if isinstance(digest, str) and re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
                yield StoredLayer(digest, layer["size"])


def _shown(url: str) -> str:
    """Return a URL without its query, which may hold a secret."""
    return url.partition("?")[0]


def _lower(headers: Message[str, str]) -> Dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _document(answer: Answer) -> Dict[str, Any]:
    """Return the JSON object of an answer, empty when it is something else."""
    try:
        document = json.loads(answer.body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
