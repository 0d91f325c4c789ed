# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

import pytest

from tools.genproto import PROTO, SRC, generate


def test_generated_classes_are_current(tmp_path):
    generate(tmp_path)
    made = sorted((tmp_path / PROTO.relative_to(SRC)).iterdir())
    assert [path.name for path in made] == sorted(path.name for path in PROTO.glob("*_pb2.py*"))
    for path in made:
        assert path.read_text() == (PROTO / path.name).read_text(), "run python tests/tools/genproto.py"


@pytest.mark.parametrize("module", ["hpack", "google.protobuf"])
def test_importing_the_room_loads_neither_http_nor_protobuf(module):
    code = f"import sys, kube_accel.kube; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=SRC).returncode == 0
