# SPDX-License-Identifier: Apache-2.0
"""The attackers have what their like has in a cluster, no less and no more: else what they fail at shows nothing."""

from __future__ import annotations

from attacks.conftest import NOBODY, Attacked, needs_root, stranger

WHO = """
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(os.getuid(), *(int(status[name], 16) for name in ("CapEff", "CapPrm")), int(status["NoNewPrivs"]))
"""


@needs_root
def test_tenant_is_root_without_rights_and_sees_only_its_files(node: Attacked) -> None:
    tenant = node.start("tenant")
    assert tenant.run(WHO).split() == ["0", "0", "0", "1"]
    code = """
files = "/run/kube-accel/state", "/etc/kube-accel/policy"
print(os.getpid(), os.listdir(sys.argv[1]), *(os.stat(file).st_ino for file in files))
"""
    files = [tenant.state.stat().st_ino, tenant.path("/etc/kube-accel/policy").stat().st_ino]
    assert tenant.run(code, node.state_dir).split() == ["1", "[]", *map(str, files)]


@needs_root
def test_tenant_gets_memory_of_its_gpu(node: Attacked) -> None:
    code = "from gpu.driver import Driver; driver = Driver(); driver.open(); print(driver.mem_info())"
    assert node.start("user", gpu=1, gib=4).run(code) == f"({4 << 30}, {4 << 30})\n"


@needs_root
def test_local_user_has_no_rights_but_may_gain_some() -> None:
    assert stranger(WHO).split() == [str(NOBODY), "0", "0", "0"]
