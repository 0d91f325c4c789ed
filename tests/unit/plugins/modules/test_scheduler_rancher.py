# SPDX-License-Identifier: Apache-2.0
"""The module scheduler_extender on k3s and rke2, whose scheduler shows the same certificate at each start."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from unit.plugins.modules.control_plane import BINPACK, EXTENDER, FIXTURES, Kubelet, administrator, heeded, running

PKI = "/etc/kubernetes/kube-accel-pki/scheduler"


@dataclass
class Server:
    """A machine whose service starts kube-scheduler anew."""

    name: str
    run_module: Callable[..., dict[str, Any]]
    root: Path
    kubelet: Kubelet

    @property
    def settings(self) -> Path:
        return self.root / f"etc/rancher/{self.name}/config.yaml.d/zz-kube-accel.yaml"

    @property
    def config(self) -> Path:
        return self.root / "etc/kubernetes/kube-accel/scheduler.yaml"

    def run(self, *, check: bool = False, **options: Any) -> dict[str, Any]:
        arguments = {
            "host_root": str(self.root),
            "backup_dir": str(self.root.parent / "backups"),
            "health_url": f"https://127.0.0.1:{self.kubelet.port}/healthz",
            "timeout": 30,
            "mounts": [PKI],
            **options,
        }
        path = f"{self.root.parent}/bin:{os.environ['PATH']}"
        return self.run_module("scheduler_extender", arguments, check=check, environment={"PATH": path})

    def restarts(self) -> list[str]:
        return (self.root.parent / "run/restarts").read_text().splitlines()[1:]

    def files(self) -> dict[str, bytes]:
        paths = (path for path in (self.root / "etc").rglob("*") if path.is_file())
        return {str(path.relative_to(self.root)): path.read_bytes() for path in paths}


@pytest.fixture(params=["k3s", "rke2"])
def server(
    run_module: Callable[..., dict[str, Any]], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Server]:
    name, root = request.param, tmp_path / "root"
    for directory in (root / f"etc/rancher/{name}", root / f"var/lib/rancher/{name}/server/cred", tmp_path / "run"):
        directory.mkdir(parents=True)
    (root / f"etc/rancher/{name}/config.yaml").write_text((FIXTURES / f"{name}-config.yaml").read_text())
    (root / f"var/lib/rancher/{name}/server/cred/scheduler.kubeconfig").write_text("")
    systemctl = tmp_path / "bin/systemctl"
    systemctl.parent.mkdir()
    systemctl.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/run/restarts\n')
    systemctl.chmod(0o755)
    (tmp_path / "run/restarts").write_text("boot\n")
    certificate = tmp_path / "server.pem"
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
    kubelet = Kubelet(tmp_path / "run", file="restarts", certificate=certificate)

    def flags() -> str:
        files = sorted((root / f"etc/rancher/{name}/config.yaml.d").glob("*.yaml"))
        return "\0".join(
            f"--{word}" for file in files for word in yaml.safe_load(file.read_text()).get("kube-scheduler-arg+", ())
        )

    if name == "rke2":
        # A pod of its own; k3s runs it inside its process.
        kubelet.processes = root / "proc"
        kubelet.flags = flags
    with running(kubelet):
        yield Server(name, run_module, root, kubelet)


def test_present_is_planned_done_once_and_absent_restores_bytes(server: Server) -> None:
    before = server.files()
    wanted = {"extenders": [EXTENDER], "binpack_resources": BINPACK}
    unit = {"k3s": "k3s", "rke2": "rke2-server"}[server.name]

    foretold = server.run(check=True, **wanted)
    assert foretold["changed"]
    assert server.files() == before

    done = server.run(**wanted)
    assert done["changed"], done
    assert done["diff"] == foretold["diff"]
    assert server.restarts() == [f"restart {unit}"]
    told = yaml.safe_load(server.settings.read_text())
    assert told["kube-scheduler-arg+"] == ["config=/etc/kubernetes/kube-accel/scheduler.yaml"]
    assert told.get("kube-scheduler-extra-mount+") == ([f"{PKI}:{PKI}:ro"] if server.name == "rke2" else None)
    config = yaml.safe_load(server.config.read_text())
    kubeconfig = f"/var/lib/rancher/{server.name}/server/cred/scheduler.kubeconfig"
    assert config["clientConnection"] == {"kubeconfig": kubeconfig}
    assert config["enableProfiling"] is False
    assert [item["urlPrefix"] for item in config["extenders"]] == [EXTENDER["url_prefix"]]

    assert not server.run(**wanted)["changed"]
    assert server.run(binpack_resources=BINPACK)["changed"]
    assert len(server.restarts()) == 2

    assert server.run(state="absent")["changed"]
    assert server.files() == before
    assert not server.settings.parent.exists()
    assert len(server.restarts()) == 3
    assert not server.run(state="absent")["changed"]


def test_a_scheduler_that_does_not_start_gets_its_old_settings(server: Server) -> None:
    before = server.files()
    server.kubelet.accepts = lambda _restarts: not server.settings.exists()

    result = server.run(binpack_resources=BINPACK, timeout=4)

    assert result["failed"]
    assert "does not answer" in result["msg"]
    assert "the previous files are back and the service is well" in result["msg"]
    assert server.files() == before
    assert len(server.restarts()) == 2


def test_a_configuration_of_others_is_merged_into(server: Server) -> None:
    text = (FIXTURES / "scheduler-config.yaml").read_text()
    theirs = server.root / "etc/theirs.yaml"
    theirs.write_text(text)
    more = server.settings.with_name("50-theirs.yaml")
    more.parent.mkdir()
    more.write_text("kube-scheduler-arg+: [config=/etc/theirs.yaml]\n")
    before = server.files()

    result = server.run(extenders=[{**EXTENDER, "bind_verb": None}])

    assert result["scheduler_config_path"] == str(theirs)
    assert not server.config.exists()
    urls = [extender["urlPrefix"] for extender in yaml.safe_load(theirs.read_text())["extenders"]]
    assert urls == ["https://storage.example:8443/", EXTENDER["url_prefix"]]
    server.run(state="absent")
    assert server.files() == before


def test_a_later_file_that_would_undo_it_is_named(server: Server) -> None:
    later = server.settings.with_name("zzz.yaml")
    later.parent.mkdir()
    later.write_text("kube-scheduler-arg: [v=4]\n")
    before = server.files()

    for check in (True, False):
        result = server.run(check=check, extenders=[EXTENDER])
        assert result["failed"]
        assert str(later) in result["msg"]
        assert "kube-scheduler-arg+" in result["msg"]
    assert server.files() == before
    assert server.restarts() == []


def test_a_drop_in_of_systemd_whose_command_line_wins_is_named(server: Server) -> None:
    unit = {"k3s": "k3s", "rke2": "rke2-server"}[server.name]
    units = server.root / "usr/local/lib/systemd/system"
    drop_in = server.root / f"etc/systemd/system/{unit}.service.d/override.conf"
    for directory in (units, drop_in.parent):
        directory.mkdir(parents=True)
    (units / f"{unit}.service").write_text(f"[Service]\nExecStart=/usr/local/bin/{server.name} server\n")
    argument = "--kube-scheduler-arg=config=/etc/s.yaml"
    drop_in.write_text(f"[Service]\nExecStart=\nExecStart=/usr/local/bin/{server.name} server $MORE\n")
    assert server.run(check=True, binpack_resources=BINPACK)["changed"]
    more = server.root / "etc/more.env"
    for file, text in (
        (drop_in, drop_in.read_text().replace("$MORE", argument)),
        (more, f"MORE='{argument}'\n"),
    ):
        if file == more:
            drop_in.write_text("[Service]\nExecStart=\nExecStart=/bin/x server $MORE\nEnvironmentFile=-/etc/more.env\n")
        file.write_text(text)
        before = server.files()
        for check in (True, False):
            result = server.run(check=check, binpack_resources=BINPACK)
            assert result["failed"], result
            assert argument in result["msg"]
            assert f"move it to {server.settings.parents[1]}/config.yaml" in result["msg"]
            assert (str(drop_in) if file == drop_in else "/etc/more.env") in result["msg"]
        assert server.files() == before
    assert server.restarts() == []
    # What wins is gone with a drop-in of the same name that is nothing.
    drop_in.unlink()
    drop_in.symlink_to("/dev/null")
    assert server.run(check=True, binpack_resources=BINPACK)["changed"]
    assert not server.run(state="absent")["changed"]


def test_server_is_restarted_if_its_scheduler_has_other_files(server: Server) -> None:
    admin = administrator(server.kubelet, server.root / f"etc/rancher/{server.name}/{server.name}.yaml")
    server.kubelet.heeds = lambda: heeded(server.config)
    before = server.files()

    done = server.run(extenders=[EXTENDER], binpack_resources=BINPACK)
    assert done["changed"], done
    assert done["effect"] == (
        f"https://127.0.0.1:{server.kubelet.port}/configz, asked with {admin}, calls {EXTENDER['url_prefix']} "
        "and packs by nvidia.com/gpu (weight 3)"
    )
    again = server.run(extenders=[EXTENDER], binpack_resources=BINPACK)
    assert (again["changed"], again["effect"]) == (False, done["effect"])

    # Somebody restarts it meanwhile with other files.
    text = server.config.read_text()
    server.config.write_text("{}")
    (server.root.parent / "run/restarts").open("a").write("by hand\n")
    while server.kubelet.starts < 3:
        pass
    server.config.write_text(text)
    mended = server.run(extenders=[EXTENDER], binpack_resources=BINPACK)
    assert mended["changed"], mended
    assert mended["effect"] == done["effect"]
    assert mended["diff"] == []
    assert not server.run(check=True, extenders=[EXTENDER], binpack_resources=BINPACK)["changed"]

    assert server.run(state="absent")["effect"].endswith(" calls no extender")
    assert server.files() == before


def test_a_server_that_keeps_its_data_elsewhere_is_known(server: Server) -> None:
    main = server.root / f"etc/rancher/{server.name}/config.yaml"
    main.write_text(main.read_text() + "data-dir: /srv/data\n")
    elsewhere = server.root / "srv/data/server/cred"
    elsewhere.parent.mkdir(parents=True)
    (server.root / f"var/lib/rancher/{server.name}/server/cred").rename(elsewhere)

    foretold = server.run(check=True, binpack_resources=BINPACK)

    kubeconfig = "/srv/data/server/cred/scheduler.kubeconfig"
    assert foretold["configuration"]["clientConnection"] == {"kubeconfig": kubeconfig}


def test_what_openrc_starts_a_server_with_is_read(server: Server) -> None:
    unit = {"k3s": "k3s", "rke2": "rke2-server"}[server.name]
    script = server.root / "etc/init.d" / unit
    script.parent.mkdir()
    script.write_text(
        f'command=/usr/local/bin/{server.name}\ncommand_args="server --kube-scheduler-arg=v=2 >>/x.log"\n'
    )

    refused = server.run(check=True, binpack_resources=BINPACK)

    assert f"{script} gives {server.name} --kube-scheduler-arg=v=2, and its command line wins" in refused["msg"]
