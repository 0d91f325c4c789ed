# SPDX-License-Identifier: Apache-2.0
"""A local user of the host, and the unix sockets on which the plugin listens."""

from __future__ import annotations

import pytest

from attacks.conftest import Attacked, needs_root, stranger

pytestmark = pytest.mark.attack

CONNECT = """
with socket.socket(socket.AF_UNIX) as client:
    try:
        client.connect(sys.argv[1])
        print("connected")
    except PermissionError:
        print("refused")
"""


@needs_root
def test_no_local_user_reaches_a_socket_of_the_plugin(node: Attacked) -> None:
    ours = [path for path in node.root.rglob("*.sock") if path.is_socket() and path.name != "kubelet.sock"]
    assert {path.name for path in ours} >= {"admin.sock", "handover.sock"}
    assert len(ours) == 4, ours
    for path in ours:
        assert stranger(CONNECT, path) == "refused\n", path
    node.start("neighbour")
