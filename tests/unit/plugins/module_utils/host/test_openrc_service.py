# SPDX-License-Identifier: Apache-2.0
"""What OpenRC starts a service with."""

from __future__ import annotations

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.host.openrc_service import started

SCRIPT = "/etc/init.d/k3s"
# As k3s's installer writes it.
K3S = r"""#!/sbin/openrc-run
depend() {
    after network-online
    want cgroups
}
start_pre() {
    ebegin it
}
supervisor=supervise-daemon
name=k3s
command="/usr/local/bin/k3s"
command_args="server \
	'--docker' \
	'--kube-scheduler-arg' \
	'v=2' \
    >>/var/log/k3s.log 2>&1"

output_log=/var/log/k3s.log
pidfile="/var/run/k3s.pid"
respawn_delay=5

set -o allexport
if [ -f /etc/environment ]; then . /etc/environment; fi
if [ -f /etc/rancher/k3s/k3s.env ]; then . /etc/rancher/k3s/k3s.env; fi
set +o allexport
"""


def test_the_script_that_k3s_brings_is_read() -> None:
    variables = {"/etc/rancher/k3s/k3s.env": "# ours\nK3S_CONFIG_FILE='/srv/k3s.yaml'\n"}
    start = started({SCRIPT: K3S}, lambda path: {path: variables[path]} if path in variables else {})
    assert [word.value for word in start.words] == [
        "/usr/local/bin/k3s",
        *("server", "--docker", "--kube-scheduler-arg", "v=2"),
    ]
    assert {word.path for word in start.words} == {SCRIPT}
    assert start.environment["K3S_CONFIG_FILE"].value == "/srv/k3s.yaml"
    assert start.environment["K3S_CONFIG_FILE"].path == "/etc/rancher/k3s/k3s.env"


def test_service_configuration_is_read_before_its_script() -> None:
    files = {
        "/etc/conf.d/k3s": 'K3S_OPTS="--docker"\n',
        SCRIPT: 'command=/bin/k3s\ncommand_args="server ${K3S_OPTS} ${MORE:-$K3S_OPTS-no}"\n',
    }
    words = [word.value for word in started(files, lambda path: {}).words]
    assert words[:3] == ["/bin/k3s", "server", "--docker"]


@pytest.mark.parametrize("script", ["", "echo it's\n", "start() { exec k3s; }\n", "command_args=x\n"])
def test_a_script_that_does_not_say_it_plainly_says_nothing(script: str) -> None:
    assert started({SCRIPT: script}, lambda path: {}).words == []
