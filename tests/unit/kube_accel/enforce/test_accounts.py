# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from pathlib import Path

import pytest

from kube_accel.enforce.accounts import MODE, Wrong, found, mend
from kube_accel.files import reserve

SIZE = 200_000


@pytest.fixture
def account(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    with path.open("wb") as file:
        reserve(file.fileno(), SIZE)
    path.chmod(MODE)
    return path


def test_an_account_as_it_was_made_is_right(account: Path) -> None:
    assert not found(account.stat(), ["security.selinux"], SIZE)


@pytest.mark.attack
@pytest.mark.parametrize(
    ("size", "mode", "attributes", "wrong"),
    [
        (SIZE + 1, MODE, [], {Wrong.GROWN}),
        (1 << 40, MODE, [], {Wrong.GROWN}),
        (0, MODE, [], {Wrong.SHORT}),
        (SIZE, 0, [], {Wrong.MODE}),
        (SIZE, 0o6755, [], {Wrong.MODE}),
        (SIZE, MODE, ["security.capability"], {Wrong.ATTRIBUTES}),
        (SIZE, MODE, ["user.notes"], {Wrong.ATTRIBUTES}),
        (1, 0o777, ["user.notes"], {Wrong.SHORT, Wrong.MODE, Wrong.ATTRIBUTES}),
    ],
)
def test_what_a_tenant_did_is_told_and_put_right(
    account: Path, size: int, mode: int, attributes: list[str], wrong: set[Wrong]
) -> None:
    file = os.open(account, os.O_RDWR)
    try:
        os.truncate(account, size)
        account.chmod(mode)
        assert found(os.fstat(file), attributes, SIZE) == wrong
        mend(file, SIZE)
        assert not found(os.fstat(file), [], SIZE)
    finally:
        os.close(file)


@pytest.mark.attack
def test_room_beyond_the_end_of_an_account_is_given_back(account: Path) -> None:
    file = os.open(account, os.O_RDWR)
    try:
        os.posix_fallocate(file, 0, 8 << 20)
        mend(file, SIZE)
        assert os.fstat(file).st_blocks * 512 < 1 << 20
    finally:
        os.close(file)
