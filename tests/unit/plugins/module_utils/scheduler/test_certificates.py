# SPDX-License-Identifier: Apache-2.0
"""The certificates that the scheduler role makes on a control plane, and what it removes of their directory."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from file_trees import left, listed, put
from unit.plugins.scheduler_asked import Asked

SCRIPT = (Path(__file__).parents[5] / "roles/scheduler/files/certificates.sh").read_text()


def certificates(action: str, directory: Path, days: int = 30, *more: str) -> list[str]:
    command = ["sh", "-s", action, str(directory), str(days), *(more or ("local",))]
    return subprocess.run(command, input=SCRIPT, capture_output=True, text=True, check=True).stdout.splitlines()


def verified(ca: Path, certificate: Path) -> bool:
    return subprocess.run(["openssl", "verify", "-CAfile", ca, certificate], capture_output=True).returncode == 0


def test_certificates_are_made_once_and_belong_together(tmp_path: Path) -> None:
    missing = certificates("check", tmp_path)
    assert len(missing) == 6
    assert not list(tmp_path.iterdir())
    client = certificates("make", tmp_path)[-1].split()[1]
    assert certificates("check", tmp_path) == [f"client {client}"]
    assert verified(tmp_path / "scheduler/ca.crt", tmp_path / "extender/server.crt")
    assert verified(tmp_path / "extender/ca.crt", tmp_path / f"scheduler/{client}.crt")
    keys = list(tmp_path.rglob("*.key"))
    assert len(keys) == 3
    assert all(key.stat().st_mode & 0o077 == 0 for key in keys)
    assert not list(tmp_path.rglob("*.new"))
    assert {path.name for path in (tmp_path / "scheduler").iterdir()} == {"ca.crt", f"{client}.crt", f"{client}.key"}


def test_certificates_that_end_soon_or_are_damaged_are_made_anew(tmp_path: Path) -> None:
    certificates("make", tmp_path)
    assert len(certificates("check", tmp_path, 3651)) == 4
    before = (tmp_path / "ca/ca.crt").read_bytes()
    (tmp_path / "extender/server.crt").write_text("damaged")
    assert certificates("check", tmp_path)[0].endswith("server.crt")
    certificates("make", tmp_path)
    assert len(certificates("check", tmp_path)) == 1
    assert (tmp_path / "ca/ca.crt").read_bytes() == before


def test_a_lost_ca_renews_all_and_gives_the_client_another_name(tmp_path: Path) -> None:
    certificates("make", tmp_path)
    old = tmp_path / "scheduler/client-1"
    (found,) = (tmp_path / "scheduler").glob("client-*.crt")
    found.rename(old.with_suffix(".crt"))
    found.with_suffix(".key").rename(old.with_suffix(".key"))
    (tmp_path / "ca/ca.key").unlink()
    new = certificates("make", tmp_path)[-1].split()[1]
    assert new != "client-1"
    assert old.with_suffix(".crt").exists()
    assert verified(tmp_path / "extender/ca.crt", tmp_path / f"scheduler/{new}.crt")


@pytest.mark.parametrize("name", ["ca/ca", "extender/server", "scheduler/client"])
def test_a_certificate_that_is_not_of_its_key_is_made_anew(tmp_path: Path, name: str) -> None:
    """As of a machine that stopped between the two."""
    certificates("make", tmp_path)
    (key,) = tmp_path.glob(f"{name}*.key")
    certificates("make", tmp_path / "other")
    key.write_bytes((tmp_path / "other/extender/server.key").read_bytes())

    assert str(key.with_suffix(".crt")) in certificates("check", tmp_path) or name.startswith("scheduler")
    assert len(certificates("check", tmp_path)) > 1
    client = certificates("make", tmp_path)[-1].split()[1]

    assert len(certificates("check", tmp_path)) == 1
    for made in (tmp_path / "extender/server.crt", tmp_path / f"scheduler/{client}.crt"):
        assert verified(tmp_path / "extender/ca.crt", made)


def test_a_ca_that_cannot_sign_is_named(tmp_path: Path) -> None:
    for name in ("cluster", "other"):
        certificates("make", tmp_path / name)
    words = ("proxied", str(tmp_path / "cluster/ca/ca.crt"), str(tmp_path / "other/ca/ca.key"))
    with pytest.raises(subprocess.CalledProcessError) as refusal:
        certificates("make", tmp_path / "pki", 30, *words)
    assert "other/ca/ca.key cannot sign with" in refusal.value.stderr


def test_the_proxied_client_is_signed_by_the_cluster(tmp_path: Path) -> None:
    certificates("make", tmp_path / "cluster")
    ca = tmp_path / "cluster/ca/ca.crt"
    words = ("proxied", str(ca), str(ca.with_suffix(".key")))
    client = certificates("make", tmp_path / "pki", 30, *words)[-1].split()[1]
    assert verified(ca, tmp_path / f"pki/scheduler/{client}.crt")
    assert not (tmp_path / "pki/ca").exists()
    assert len(certificates("check", tmp_path / "pki", 30, *words)) == 1


def removed_of(tree: Path) -> list[str]:
    found: list[str] = Asked(pki_dir=str(tree), removing=True).leftovers(
        files={"files": [{"path": path} for path in listed(tree)]}
    )["files"]
    return found


def test_of_a_directory_of_certificates_only_ours_go(tmp_path: Path) -> None:
    theirs = {"ca.crt", "ca.key", "etcd/ca.key", "scheduler/theirs.crt", "ca/ca.srl"}
    put(tmp_path, *theirs)
    assert removed_of(tmp_path) == []
    certificates("make", tmp_path)
    removed = removed_of(tmp_path)
    assert left(tmp_path, removed) == theirs
    assert "extender" in removed


def test_a_directory_of_certificates_goes_with_the_last(tmp_path: Path) -> None:
    certificates("make", tmp_path)
    assert removed_of(tmp_path)[-1] == ""
    assert Asked(removing=True).leftovers(files={"skipped": True})["files"] == []
