# SPDX-License-Identifier: Apache-2.0
import pytest

from kube_accel.enforce.backend import Choice, Name, choose, possible
from kube_accel.model import Enforcement, Mode

AUTO, INTERPOSER, MPS, DMEM, NONE = Enforcement
UNFIT = {INTERPOSER: "no shim", DMEM: "no dmem"}


@pytest.mark.parametrize("mode", [Mode.VGPU, Mode.CGPU])
@pytest.mark.parametrize(
    ("wanted", "unfit", "allow", "expected"),
    [
        (AUTO, {}, False, Choice(Name.INTERPOSER)),
        (INTERPOSER, {}, False, Choice(Name.INTERPOSER)),
        (AUTO, UNFIT, False, Choice(Name.NONE, "no shim", withheld=True)),
        (AUTO, UNFIT, True, Choice(Name.NONE, "no shim")),
        (INTERPOSER, UNFIT, False, Choice(Name.NONE, "no shim", withheld=True)),
        (DMEM, {}, False, Choice(Name.DMEM)),
        (DMEM, UNFIT, False, Choice(Name.NONE, "no dmem", withheld=True)),
        (NONE, UNFIT, False, Choice(Name.NONE)),
    ],
)
def test_shares_are_enforced_or_withheld(
    mode: Mode, wanted: Enforcement, unfit: dict[Enforcement, str], allow: bool, expected: Choice
) -> None:
    assert choose(mode, wanted, unfit, allow) == expected


@pytest.mark.parametrize(
    ("wanted", "unfit", "allow", "expected"),
    [
        (AUTO, {}, False, Choice(Name.MPS_INTERPOSER)),
        (AUTO, UNFIT, False, Choice(Name.MPS, "no shim")),
        (MPS, UNFIT, False, Choice(Name.MPS)),
        (INTERPOSER, UNFIT, False, Choice(Name.MPS, "no shim", withheld=True)),
        (INTERPOSER, UNFIT, True, Choice(Name.MPS, "no shim")),
    ],
)
def test_mps_has_limits_of_its_own(
    wanted: Enforcement, unfit: dict[Enforcement, str], allow: bool, expected: Choice
) -> None:
    assert choose(Mode.MPS, wanted, unfit, allow) == expected


def test_not_every_mode_has_every_way() -> None:
    for mode in (Mode.VGPU, Mode.CGPU):
        assert [wanted for wanted in Enforcement if possible(mode, wanted)] == [AUTO, INTERPOSER, DMEM, NONE]
    assert [wanted for wanted in Enforcement if possible(Mode.MPS, wanted)] == [AUTO, INTERPOSER, MPS]
