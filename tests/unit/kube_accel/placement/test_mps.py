# SPDX-License-Identifier: Apache-2.0
import pytest

from kube_accel.shared.offers import client_limit


@pytest.mark.parametrize(("cuda", "clients"), [((11, 5), 48), ((13, 0), 48), ((13, 1), 60), ((14, 0), 60)])
def test_the_driver_decides_how_many_clients_share_a_gpu(cuda: tuple[int, int], clients: int) -> None:
    assert client_limit(cuda) == clients
