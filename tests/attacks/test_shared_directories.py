# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F811 -- fixtures of other files
"""A user of the host who makes first what root uses later: nothing that root does takes it."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import image_archives
from playbooks.conftest import Run, collections  # noqa: F401 -- a fixture
from playbooks.test_image import Containerd, containerd, image, parts  # noqa: F401 -- fixtures
from unit.plugins.conftest import RunModule, forks, run_module, start_module  # noqa: F401 -- fixtures

from .conftest import NOBODY, needs_root, stranger

pytestmark = [pytest.mark.attack, needs_root]

JOURNAL = "os.makedirs(sys.argv[1]); open(sys.argv[1] + '/journal.json', 'w').write(sys.argv[2])"
DIGEST = hashlib.sha256(b"mine").hexdigest()
MAKE = "os.makedirs(sys.argv[1], exist_ok=True); open(sys.argv[2], 'w').write('mine')"
OLD = Path("/var/tmp/kube-accel-image.tar")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory as /tmp is, where a local user has been first: ``theirs/file``, and ``link``, which leads away."""
    with tempfile.TemporaryDirectory(prefix="shared") as directory:
        root = Path(directory)
        root.chmod(0o755)
        (root / "ours").mkdir(mode=0o755)
        (root / "tmp").mkdir()
        (root / "tmp").chmod(0o1777)
        stranger(MAKE, root / "tmp/theirs", root / "tmp/theirs/file")
        stranger("os.symlink(sys.argv[1], sys.argv[2])", root / "ours", root / "tmp/link")
        yield root / "tmp"


def owner(path: Path) -> int:
    return path.lstat().st_uid


@pytest.mark.parametrize("path", ["theirs", "theirs/new", "link", "link/new", "theirs/file"])
def test_a_directory_that_a_local_user_made_first_is_refused(
    shared: Path,
    run_module: RunModule,
    path: str,
) -> None:
    before = sorted(shared.rglob("*"))
    refused = run_module("trusted_path", {"path": str(shared / path)})
    assert refused["failed"], refused
    assert f"belongs to the user {NOBODY}" in refused["msg"] or "Not a directory" in refused["msg"]
    assert sorted(shared.rglob("*")) == before


@pytest.mark.parametrize("path", ["theirs/file", "theirs", "link"])
def test_what_a_local_user_made_is_not_removed(shared: Path, run_module: RunModule, path: str) -> None:
    refused = run_module("trusted_path", {"path": str(shared / path), "state": "absent"})
    assert refused["failed"], refused
    assert os.path.lexists(shared / path)


@pytest.mark.parametrize("path", ["theirs/file", "link", "link/none"])
def test_a_file_that_a_local_user_made_is_not_trusted(
    shared: Path,
    run_module: RunModule,
    path: str,
) -> None:
    refused = run_module("trusted_path", {"path": str(shared / path), "state": "file"})
    assert refused["failed"], refused


def test_a_directory_of_ours_in_a_shared_one_stays_ours(shared: Path, run_module: RunModule) -> None:
    made = run_module("trusted_path", {"path": str(shared / "a/b")})
    assert made["created"] == [str(shared / "a"), str(shared / "a/b")]
    assert (owner(shared / "a"), (shared / "a").stat().st_mode & 0o7777) == (0, 0o700)
    taken = "import pathlib\ntry: os.rename(sys.argv[1], sys.argv[2])\nexcept OSError as error: print(error.errno)"
    assert stranger(taken, shared / "a", shared / "mine").strip() == "1"


def test_an_archive_in_a_shared_directory_is_not_loaded(shared: Path, run_module: RunModule) -> None:
    """Neither one of a local user nor one of root, which lies where others can put another."""
    runtime = shared / "ctr"
    runtime.write_text(f'#!/bin/sh\ncase "$*" in *import*) touch {shared}/loaded ;; esac\n')
    runtime.chmod(0o755)
    made = image_archives.image()
    image_archives.Archive.of(made).write(shared / "ours.tar")
    for path in (shared / "ours.tar", shared / "theirs/file"):
        arguments = {"repository": image_archives.REPOSITORY, "tag": "1", "digests": [made.manifest.digest]}
        options = {"runtime": "containerd", "command": [str(runtime)], "archive": str(path)}
        for check in (True, False):
            refused = run_module("node_image", arguments | options | {"_ansible_check_mode": check})
            assert refused["failed"], refused
            assert "use a directory below it" in refused["msg"] or f"belongs to the user {NOBODY}" in refused["msg"]
    assert not (shared / "loaded").exists()


@pytest.mark.parametrize("path", ["theirs/file", "way"])
def test_an_image_is_not_assembled_into_a_file_of_a_local_user(shared: Path, run_module: RunModule, path: str) -> None:
    """Where it is theirs, or a link of theirs that leads to a file of root."""
    stranger("os.symlink(sys.argv[1], sys.argv[2])", shared.parent / "ours/passwd", shared / "way")
    options = {"path": str(shared / path), "reference": image_archives.REFERENCE, "base": str(shared.parent / "ours")}
    refused = run_module("oci_archive", options)
    assert refused["failed"], refused
    assert f"belongs to the user {NOBODY}" in refused["msg"]
    assert not (shared.parent / "ours/passwd").exists()


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("path", ["theirs", "link"])
def test_a_journal_that_a_local_user_wrote_is_not_believed(
    shared: Path, run_module: RunModule, path: str, check: bool
) -> None:
    """It would have root write any bytes to any file."""
    passwd, config = shared.parent / "ours/passwd", shared.parent / "ours/config.toml"
    passwd.write_text("root\n")
    config.write_text("version = 3\n")
    options = {"runtime": "containerd", "config_path": str(config), "service": ""}
    name = f"nvidia_runtime-{hashlib.sha256(bytes(config.resolve())).hexdigest()[:12]}"
    journal = {
        "phase": "writing",
        "files": [{"path": str(passwd), "backup": str(shared / "theirs/file"), "before": DIGEST, "mode": 0o644}],
        "restart": False,
        "record": {"originals": {}, "written": {}, "owned": {}, "directories": []},
    }
    journal["files"][0]["after"] = hashlib.sha256(passwd.read_bytes()).hexdigest()  # type: ignore[index]
    stranger(JOURNAL, shared / "theirs" / name, json.dumps(journal))
    refused = run_module("nvidia_runtime", options | {"backup_dir": str(shared / path)}, check=check)
    assert refused["failed"], refused
    assert f"belongs to the user {NOBODY}" in refused["msg"]
    assert passwd.read_text() == "root\n"
    assert config.read_text() == "version = 3\n"


def test_a_fifo_at_a_report_s_path_keeps_nobody_waiting(shared: Path, run_module: RunModule) -> None:
    stranger("os.mkfifo(sys.argv[1], 0o600)", shared / "support.tar.gz")
    options = {"path": str(shared / "support.tar.gz"), "kubeconfig": str(shared / "none")}
    assert "API server did not answer" in run_module("gpu_support_bundle", options)["msg"]


@pytest.mark.full
def test_the_image_role_takes_nothing_that_a_local_user_made(
    shared: Path,
    containerd: Containerd,
    parts: Callable[[str], dict[str, Any]],
    image: Callable[..., Run],
) -> None:
    variables = parts("one") | containerd.variables
    stranger(MAKE, shared / "image", shared / "image/kube-accel-image.tar")
    refused = image("image", **variables | {"kube_accel_image_staging_dir": str(shared / "image")})
    assert refused.code != 0
    assert f"{shared}/image belongs to the user {NOBODY}" in refused.output
    assert containerd.images() == {}
    assert (shared / "image/kube-accel-image.tar").read_text() == "mine"

    # The name of older versions. A link there leads nowhere.
    OLD.unlink(missing_ok=True)
    stranger("os.symlink(sys.argv[1], sys.argv[2])", variables["kube_accel_image_dir"], OLD)
    archives = Path(variables["kube_accel_image_dir"])
    dry = image("image", "--check", **variables)
    assert os.path.lexists(OLD)
    done = image("image", **variables)
    assert (dry.code, done.code) == (0, 0), dry.output + done.output
    assert dry.changed == done.changed
    assert len(containerd.images()) == 1
    assert not os.path.lexists(OLD)
    assert list(archives.iterdir())
