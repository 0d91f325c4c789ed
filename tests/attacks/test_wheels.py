# SPDX-License-Identifier: Apache-2.0
"""Python packages as hostile input, of the image and of the bundle: refused with a reason before any of it is used."""

from __future__ import annotations

import base64
import hashlib
import io
import platform
import random
import stat
import struct
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.oci import image as oci_image
from ansible_collections.accel.kubernetes.plugins.module_utils.oci import wheel as oci_wheel
from ansible_collections.accel.kubernetes.plugins.module_utils.oci.python_tree import Python

from bundle import wheels

pytestmark = pytest.mark.attack

PYTHON = Python(11, "usr/bin/python3.11", "usr/local", "usr/local/lib/python3.11/dist-packages")
INFO = "wanted-1.0.dist-info"
LINK = (stat.S_IFLNK | 0o777) << 16


@dataclass
class Wheel:
    """A good wheel, until it is changed."""

    filename: str = "wanted-1.0-py3-none-any.whl"
    info: str = INFO
    files: dict[str, bytes] = field(default_factory=lambda: {"wanted/__init__.py": b"def main(): pass\n"})
    metadata: bytes = b"Metadata-Version: 2.1\nName: wanted\nVersion: 1.0\n"
    entry_points: str = ""
    attributes: dict[str, int] = field(default_factory=dict)
    """External ones, of a ZIP entry."""
    compression: int = zipfile.ZIP_DEFLATED
    unlisted: list[tuple[str, bytes]] = field(default_factory=list)
    """Entries behind the others that no list tells of."""
    more_record: bytes = b""
    change: Callable[[bytes], bytes] = bytes
    """The last change, to its bytes."""

    def data(self) -> bytes:
        """Its bytes."""
        files = {**self.files, f"{self.info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
        files[f"{self.info}/METADATA"] = self.metadata
        if self.entry_points:
            files[f"{self.info}/entry_points.txt"] = f"[console_scripts]\n{self.entry_points}\n".encode()
        rows = [f"{name},sha256={_record_digest(data)},{len(data)}" for name, data in files.items()]
        record = "\n".join([*rows, f"{self.info}/RECORD,,", ""]).encode() + self.more_record
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", self.compression) as archive:
            for name, data in [*files.items(), (f"{self.info}/RECORD", record), *self.unlisted]:
                entry = zipfile.ZipInfo(name)
                entry.compress_type = self.compression
                entry.external_attr = self.attributes.get(name, 0o644 << 16)
                archive.writestr(entry, data)
        return self.change(buffer.getvalue())

    def write(self, directory: Path) -> Path:
        """Its file."""
        path = directory / self.filename
        path.write_bytes(self.data())
        return path


def _record_digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def lying(size: int) -> Callable[[bytes], bytes]:
    """The first entry says that it has so many bytes."""

    def change(data: bytes) -> bytes:
        changed = bytearray(data)
        struct.pack_into("<I", changed, changed.index(b"PK\x01\x02") + 24, size)
        return bytes(changed)

    return change


def many(count: int) -> list[tuple[str, bytes]]:
    return [(f"wanted/{number}", b"") for number in range(count)]


BOMB = bytes(16 << 20)
HOSTILE: dict[str, tuple[Callable[[], Wheel], str]] = {
    "a path that leads out": (lambda: Wheel(files={"../../etc/cron.d/x": b""}), "leads out"),
    "a path that leads out of its data": (lambda: Wheel(files={"wanted-1.0.data/scripts/../../x": b""}), "leads out"),
    "an absolute path": (lambda: Wheel(files={"/etc/cron.d/x": b""}), "leads out"),
    "data for another place": (lambda: Wheel(files={"wanted-1.0.data/etc/x": b""}), "no such installation scheme"),
    "a symbolic link": (
        lambda: Wheel(files={"wanted/shadow": b"/etc/shadow"}, attributes={"wanted/shadow": LINK}),
        "no regular file",
    ),
    "a device": (
        lambda: Wheel(files={"wanted/null": b""}, attributes={"wanted/null": (stat.S_IFCHR | 0o666) << 16}),
        "no regular file",
    ),
    "another name than its file's": (lambda: Wheel(filename="other-1.0-py3-none-any.whl"), "is of 'wanted-1.0'"),
    "another version than its file's": (lambda: Wheel(filename="wanted-2.0-py3-none-any.whl"), "is of 'wanted-1.0'"),
    "another name within": (lambda: Wheel(metadata=b"Name: other\nVersion: 1.0\n"), "says that its name is 'other'"),
    "two packages": (lambda: Wheel(files={"other-1.0.dist-info/WHEEL": b""}), "2 files *.dist-info/WHEEL"),
    "an entry twice": (lambda: Wheel(unlisted=[("wanted/__init__.py", b"def main(): pass\n")]), "twice"),
    "an entry twice, spelt otherwise": (lambda: Wheel(unlisted=[("./wanted//__init__.py", b"x")]), "twice"),
    "a file below a file": (lambda: Wheel(files={"wanted": b"", "wanted/x.py": b""}), "below 'usr/local/lib"),
    "a file that its list lacks": (lambda: Wheel(unlisted=[("added.py", b"x")]), "not what its RECORD says"),
    "a list with a huge field": (lambda: Wheel(more_record=b"x" * 200_000 + b",,\n"), "RECORD"),
    "a script that leads out": (lambda: Wheel(entry_points="../../sbin/init = wanted:main"), "unusable console script"),
    "a script with code": (lambda: Wheel(entry_points="x = os:system('id')"), "unusable console script"),
    "a script in the interpreter's place": (lambda: Wheel(entry_points="python3 = wanted:main"), "the interpreter"),
    "data in the interpreter's place": (
        lambda: Wheel(files={"wanted-1.0.data/data/bin/python3.11": b"#!/bin/sh\n"}),
        "the interpreter",
    ),
    "a bomb": (lambda: Wheel(files={"wanted/x": b"x"}, change=lying(2 << 30)), "more than 1024 MiB"),
    "a bomb that says it is small": (lambda: Wheel(files={"wanted/x": BOMB}, change=lying(10)), "damaged"),
    "a bomb that says it is empty": (lambda: Wheel(files={"wanted/x": BOMB}, change=lying(0)), "damaged"),
    "a bomb by LZMA": (lambda: Wheel(files={"wanted/x": BOMB}, compression=zipfile.ZIP_LZMA), "not by deflate"),
    "a bomb by bzip2": (lambda: Wheel(files={"wanted/x": BOMB}, compression=zipfile.ZIP_BZIP2), "not by deflate"),
    "very many files": (lambda: Wheel(unlisted=many(50_000)), "50004 files"),
    "sources in place of a wheel": (lambda: Wheel(filename="wanted-1.0.tar.gz"), "not named as a wheel is"),
    "metadata that are no text": (lambda: Wheel(metadata=b"Name: \xff\nRequires-Dist: \xfe\n"), "says that its name"),
    "a requirement without end": (
        lambda: Wheel(metadata=b"Name: wanted\nRequires-Python: >=3." + b"9" * 9000 + b"\n"),
        "needs Python",
    ),
    "scripts that are no text": (lambda: Wheel(files={f"{INFO}/entry_points.txt": b"[\xff"}), "entry_points.txt"),
    "half of it": (lambda: Wheel(change=lambda data: data[: len(data) // 2]), "damaged"),
}


def installed(*paths: Path) -> oci_image.Tree:
    """What an image gets of wheels, as oci_archive puts it together."""
    read = [oci_wheel.read(str(path), PYTHON, "amd64") for path in paths]
    return oci_image.combine((wheel.origin, oci_wheel.install(wheel, PYTHON)) for wheel in read)


def test_a_good_wheel_is_taken(tmp_path: Path) -> None:
    tree = installed(Wheel(entry_points="wanted = wanted:main").write(tmp_path))
    assert f"{PYTHON.site}/wanted/__init__.py" in tree
    assert "usr/local/bin/wanted" in tree


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_wheel_gets_into_no_image(tmp_path: Path, name: str) -> None:
    make, words = HOSTILE[name]
    path = make().write(tmp_path)
    with pytest.raises(oci_image.ImageError) as refused:
        installed(path)
    assert words in str(refused.value)
    assert str(refused.value).startswith(f"wheel {path.name}")


def test_a_wheel_replaces_no_file_of_another(tmp_path: Path) -> None:
    ours = Wheel(entry_points="wanted = wanted:main").write(tmp_path)
    theirs = Wheel(
        filename="other-1.0-py3-none-any.whl",
        info="other-1.0.dist-info",
        files={"other.py": b""},
        metadata=b"Name: other\nVersion: 1.0\n",
        entry_points="wanted = other:main",
    ).write(tmp_path)
    with pytest.raises(oci_image.ImageError, match="both bring /usr/local/bin/wanted"):
        installed(ours, theirs)


def test_a_small_wheel_takes_little_memory(tmp_path: Path) -> None:
    """However much it makes of itself. In a process of its own, whose peak is its own."""
    path = Wheel(files={"wanted/x": bytes(160 << 20)}, change=lying(10)).write(tmp_path)
    code = (
        "import resource, sys, collection\n"
        "from ansible_collections.accel.kubernetes.plugins.module_utils.oci import image, python_tree, wheel\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"python = python_tree.{PYTHON!r}\n"
        "try: wheel.read(sys.argv[1], python, 'amd64')\n"
        "except image.ImageError: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 64 << 10


def test_a_wheel_with_any_other_bytes_is_refused_or_the_same(tmp_path: Path) -> None:
    whole = Wheel(entry_points="wanted = wanted:main").data()
    path = Wheel().write(tmp_path)
    good = {name: entry.content.read() for name, entry in installed(Wheel().write(tmp_path)).items()}
    chance = random.Random(24)
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        path.write_bytes(data)
        try:
            tree = installed(path)
        except oci_image.ImageError:
            continue
        module = f"{PYTHON.site}/wanted/__init__.py"
        assert tree[module].content.read() == good[module]


# --- a package index that is not what it was


def some_full(names: Iterable[str], *fast: str) -> list[object]:
    """Parameters, of which these alone are not ``full``: each takes a run of pip."""
    return [name if name in fast else pytest.param(name, marks=pytest.mark.full) for name in names]


MACHINE = platform.machine()
BACKEND = """
import pathlib
pathlib.Path({mark!r}).touch()
def get_requires_for_build_wheel(settings=None): return []
def prepare_metadata_for_build_wheel(directory, settings=None):
    info = pathlib.Path(directory, "wanted-1.0.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: wanted\\nVersion: 1.0\\n")
    return info.name
"""
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


@dataclass
class Index:
    """A package index of one package, ``wanted``, on this machine."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    hrefs: dict[str, str] = field(default_factory=dict)
    """Where files are said to be, if not at their names."""
    disposition: str = ""
    """What a file is to be called, as it says when it is fetched."""

    def page(self) -> bytes:
        links = (
            f'<a href="{self.hrefs.get(name, f"/files/{name}")}#sha256={hashlib.sha256(data).hexdigest()}">{name}</a>'
            for name, data in self.files.items()
        )
        return f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """The only one that pip and uv ask."""
    served = Index()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            body = served.page() if self.path.startswith("/simple/wanted/") else served.files.get(name)
            self.send_response(404 if body is None else 200)
            kind = "text/html" if self.path.startswith("/simple/") else "application/octet-stream"
            self.send_header("Content-Type", kind)
            if served.disposition and not self.path.startswith("/simple/"):
                self.send_header("Content-Disposition", f'attachment; filename="{served.disposition}"')
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body or b"")

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    served.url = f"http://127.0.0.1:{server.server_port}/simple"
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX"):
        monkeypatch.setenv(name, served.url)
    for name, value in {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_CACHE_DIR": "1", "UV_NO_CONFIG": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield served
    server.shutdown()
    server.server_close()


def sources(mark: Path) -> bytes:
    """A source distribution that leaves a mark where it is built."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in {
            "backend.py": BACKEND.format(mark=str(mark)),
            "pyproject.toml": PROJECT,
        }.items():
            entry = tarfile.TarInfo(f"wanted-1.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


def locked(data: bytes) -> str:
    return f"wanted==1.0 --hash=sha256:{hashlib.sha256(data).hexdigest()}"


GOOD = Wheel().data()
WANTED = "wanted-1.0-py3-none-any.whl"
EVIL = Wheel(files={"wanted/__init__.py": b"import os\n"}).data()


def outside(tmp_path: Path, target: Path) -> list[Path]:
    """What lies beside the directory that is fetched into."""
    return [path for path in tmp_path.iterdir() if path != target and path.name != "uv"]


def test_the_locked_wheel_is_fetched(index: Index, tmp_path: Path) -> None:
    index.files[WANTED] = GOOD
    lock = wheels.resolve(["wanted"], "3.11", MACHINE)
    assert locked(GOOD).split(" --")[0] in lock
    wheels.fetch(lock, "3.11", MACHINE, tmp_path / "t")
    assert [path.read_bytes() for path in (tmp_path / "t").iterdir()] == [GOOD]


def another_hash(index: Index, _: Path) -> str:
    index.files[WANTED] = EVIL
    return locked(GOOD)


def another_build(index: Index, _: Path) -> str:
    """A newer build of the same version, which an installer prefers, and the right one gone."""
    index.files["wanted-1.0-9-py3-none-any.whl"] = EVIL
    return locked(GOOD)


def another_version(index: Index, _: Path) -> str:
    index.files["wanted-1.1-py3-none-any.whl"] = GOOD
    return locked(GOOD)


def another_version_by_another_name(index: Index, _: Path) -> str:
    data = Wheel(metadata=b"Metadata-Version: 2.1\nName: wanted\nVersion: 9.0\n").data()
    index.files[WANTED] = data
    return locked(data)


def another_package(index: Index, _: Path) -> str:
    data = Wheel(info="other-1.0.dist-info", metadata=b"Metadata-Version: 2.1\nName: other\nVersion: 1.0\n").data()
    index.files[WANTED] = data
    return locked(data)


def only_sources(index: Index, mark: Path) -> str:
    data = sources(mark)
    index.files["wanted-1.0.tar.gz"] = data
    return locked(data)


def no_hash(index: Index, _: Path) -> str:
    index.files[WANTED] = GOOD
    return "wanted==1.0"


def a_weak_hash(index: Index, _: Path) -> str:
    index.files[WANTED] = GOOD
    return f"wanted==1.0 --hash=md5:{hashlib.md5(GOOD).hexdigest()}"


OTHERWISE = {
    "with another checksum": (another_hash, "DO NOT MATCH THE HASHES"),
    "as another build": (another_build, "DO NOT MATCH THE HASHES"),
    "of another version": (another_version, "No matching distribution"),
    "of another version by its name": (another_version_by_another_name, "No matching distribution"),
    "of another package by its name": (another_package, "wanted"),
    "as sources": (only_sources, "No matching distribution"),
    "and no checksum is known": (no_hash, "Hashes are required"),
    "by a weak checksum": (a_weak_hash, "md5"),
}


@pytest.mark.parametrize("kind", some_full(OTHERWISE, "with another checksum", "as sources"))
def test_another_package_than_the_locked_one_is_not_fetched(index: Index, tmp_path: Path, kind: str) -> None:
    change, words = OTHERWISE[kind]
    target, mark = tmp_path / "t", tmp_path / "built"
    lock = change(index, mark)
    with pytest.raises(LookupError, match=words):
        wheels.fetch(lock, "3.11", MACHINE, target)
    assert not target.exists() or list(target.iterdir()) == []
    assert outside(tmp_path, target) == []


@pytest.mark.parametrize(
    ("href", "disposition"),
    [
        ("", "../../" + WANTED),
        pytest.param("", "/tmp/../" + WANTED, marks=pytest.mark.full),
        pytest.param("", "../.bashrc", marks=pytest.mark.full),
        pytest.param("/files/..%2f..%2f" + WANTED, "", marks=pytest.mark.full),
    ],
)
def test_an_index_chooses_no_other_directory(index: Index, tmp_path: Path, href: str, disposition: str) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    index.files |= {WANTED: GOOD, "..%2f..%2f" + WANTED: GOOD}
    index.hrefs |= {WANTED: href} if href else {}
    index.disposition = disposition
    with_it = tmp_path / "a/b/t"
    with suppress(LookupError):
        wheels.fetch(locked(GOOD), "3.11", MACHINE, with_it)
    found = [path for path in tmp_path.rglob("*") if path.is_file() and "uv" not in path.parts]
    assert {path.parent for path in found} <= {with_it}


def test_no_sources_are_built_to_know_what_they_need(index: Index, tmp_path: Path) -> None:
    """To build a package runs its code as whoever makes the bundle."""
    mark = tmp_path / "built"
    index.files["wanted-1.0.tar.gz"] = sources(mark)
    with pytest.raises(LookupError, match="wanted"):
        wheels.resolve(["wanted"], "3.11", MACHINE)
    assert not mark.exists()


def test_newer_sources_are_not_built_beside_a_wheel(index: Index, tmp_path: Path) -> None:
    index.files |= {WANTED: GOOD, "wanted-2.0.tar.gz": sources(tmp_path / "built")}
    assert "wanted==1.0" in wheels.resolve(["wanted"], "3.11", MACHINE)
    assert not (tmp_path / "built").exists()


# --- a bundle that others could write to


def unpacked(tmp_path: Path) -> Path:
    """A bundle of hardly anything, as it lies on a controller."""
    root = tmp_path / "bundle"
    for name, data in {
        "install.sh": (Path(wheels.__file__).parent / "install.sh").read_bytes(),
        f"requirements/3.{sys.version_info.minor}.txt": locked(GOOD).encode(),
        f"wheels/{WANTED}": GOOD,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    sums = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n" for path in files)
    (root / "SHA256SUMS").write_text("".join(sums))
    return root


def install(root: Path, target: str) -> subprocess.CompletedProcess[str]:
    """Run its install.sh, with a Python that says of itself when it makes an environment, and does not."""
    python = root.parent / "python"
    python.write_text(f'#!/bin/sh\n[ "$1" != -m ] || {{ echo "makes $3"; exit 1; }}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    command = ["sh", root / "install.sh", target]
    return subprocess.run(
        command, env={"PATH": "/usr/bin:/bin", "PYTHON": python}, cwd=root, capture_output=True, text=True
    )


def test_a_bundle_as_it_was_made_is_installed(tmp_path: Path) -> None:
    root = unpacked(tmp_path)
    assert install(root, "../target").stdout == f"makes {tmp_path}/target\n"
    # Again, and within the bundle.
    (root / "it").mkdir()
    (root / "it/pyvenv.cfg").write_text("")
    assert install(root, "it").stdout == f"makes {root}/it\n"


@pytest.mark.parametrize(
    "name", ["collections/evil-evil-1.0.0.tar.gz", "wheels/wanted-1.0-9-py3-none-any.whl", ".hidden", "a\nb"]
)
@pytest.mark.parametrize("link", [False, True])
def test_a_bundle_with_a_file_more_is_not_installed(tmp_path: Path, name: str, link: bool) -> None:
    root = unpacked(tmp_path)
    path = root / name
    path.parent.mkdir(exist_ok=True)
    if link:
        path.symlink_to(root / f"wheels/{WANTED}")
    else:
        path.write_bytes(EVIL)
    done = install(root, "../target")
    assert (done.returncode, done.stdout) == (1, "")
    assert "SHA256SUMS does not list as many; bring it here again" in done.stderr
    assert list((tmp_path / "target").iterdir()) == []
