# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.host import command_line, systemd_units
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime import config as runtime_config
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime import rancher_config
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.config import Wanted
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.dialect import ConfigError
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.rancher_config import Places, Seen
from hypothesis import given, settings
from hypothesis import strategies as st

from hosts import rancher

BINARY = "/usr/bin/nvidia-container-runtime"
K3S = Places(
    "k3s", "/var/lib/rancher/k3s/agent/etc/containerd", "/etc/rancher/k3s/config.yaml.d/99-accel-kubernetes.yaml"
)
TEMPLATE = K3S.template("config.toml.tmpl")
TEMPLATE_3 = K3S.template("config-v3.toml.tmpl")
DROP_IN = f"{K3S.containerd}/config-v3.toml.d/99-accel-kubernetes.toml"
EXTENDED = '# site\n{{ template "base" . }}\n\n[debug]\n  level = "info"\n'
FROZEN = rancher.base(2, K3S.containerd, "", "runc").replace(rancher.HEADER, "")


class Host:
    """Files of a host, and what k3s wrote at its last start."""

    def __init__(self, generation: int, files: dict[str, str] | None = None, program: str = BINARY) -> None:
        self.generation, self.files, self.program = generation, dict(files or {}), program
        self.written = ""
        self.start(found=False)

    def start(self, *, found: bool = True) -> None:
        program = self.program if found else ""
        self.written = rancher.start(self.files, K3S.containerd, K3S.settings, self.generation, program)

    def seen(self) -> Seen:
        names = rancher_config.TEMPLATES
        return Seen(
            self.written, {name: self.files[K3S.template(name)] for name in names if K3S.template(name) in self.files}
        )

    def apply(self, plan: rancher_config.RancherPlan) -> bool:
        before = dict(self.files)
        self.files.update({path: text for path, text in plan.files.items() if text is not None})
        for path, text in plan.files.items():
            if text is None:
                self.files.pop(path, None)
        return self.files != before

    def complaint(self, wanted: Wanted) -> str:
        data = rancher.merged(self.files, self.written)
        return str(runtime_config.complaint("containerd", data, wanted, "merged"))


def present(host: Host, wanted: Wanted) -> bool:
    return host.apply(rancher_config.plan_present(K3S, host.seen(), wanted))


def test_a_drop_in_where_the_configuration_imports_one() -> None:
    host = Host(3)

    assert present(host, Wanted("nvidia", BINARY, True, True))

    assert host.files == {
        DROP_IN: "# Written by accel.kubernetes.nvidia_runtime\n"
        "version = 3\n\n"
        '[plugins."io.containerd.cri.v1.runtime"]\n'
        "  enable_cdi = true\n\n"
        '[plugins."io.containerd.cri.v1.runtime".containerd]\n'
        '  default_runtime_name = "nvidia"\n\n'
        '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]\n'
        '  runtime_type = "io.containerd.runc.v2"\n\n'
        '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options]\n'
        '  BinaryName = "/usr/bin/nvidia-container-runtime"\n'
        "  SystemdCgroup = true\n"
    }


def test_what_an_old_release_finds_by_itself_needs_no_file() -> None:
    host = Host(2)
    wanted = Wanted("nvidia", BINARY)

    plan = rancher_config.plan_present(K3S, host.seen(), wanted)

    assert not host.apply(plan)
    assert plan.awaited
    host.start()
    assert host.complaint(wanted) == ""


def test_the_default_of_an_old_release_is_a_setting_of_it() -> None:
    host = Host(2)

    present(host, Wanted("nvidia", BINARY, default=True))

    assert list(host.files) == [K3S.settings]
    assert 'default-runtime: "nvidia"' in host.files[K3S.settings]


def test_a_template_that_replaces_everything_gets_a_marked_block() -> None:
    host = Host(2, {TEMPLATE: FROZEN})
    wanted = Wanted("nvidia", BINARY)

    present(host, wanted)

    assert host.files[TEMPLATE].startswith(FROZEN)
    assert host.files[TEMPLATE].count("accel.kubernetes") == 2
    host.start()
    assert host.complaint(wanted) == ""


def test_a_template_that_already_names_the_runtime_is_left_alone() -> None:
    by_hand = rancher.base(2, K3S.containerd, BINARY, "runc").replace(rancher.HEADER, "")
    host = Host(2, {TEMPLATE: by_hand})

    assert not present(host, Wanted("nvidia", BINARY))


def test_upgrade_to_drop_ins_removes_the_older_form() -> None:
    host = Host(2)
    wanted = Wanted("gpu", "/opt/gpu/runtime", default=True)
    present(host, wanted)
    assert set(host.files) == {TEMPLATE, K3S.settings}
    host.generation = 3
    host.files.pop(TEMPLATE)
    host.start()

    present(host, wanted)

    assert set(host.files) == {DROP_IN}


@pytest.mark.parametrize(
    ("generation", "files", "wanted", "words"),
    [
        (2, {TEMPLATE: FROZEN}, Wanted("nvidia", BINARY, default=True), [TEMPLATE, "set it to nvidia there"]),
        (2, {}, Wanted("nvidia", BINARY, cdi=True), ["imports no drop-ins", "leave cdi unset"]),
    ],
)
def test_what_an_old_release_cannot_be_told_is_refused(
    generation: int, files: dict[str, str], wanted: Wanted, words: list[str]
) -> None:
    with pytest.raises(ConfigError) as refusal:
        present(Host(generation, files), wanted)
    assert all(word in str(refusal.value) for word in words)


MAIN = "/etc/rancher/k3s/config.yaml"
OURS = {K3S.settings: 'default-runtime: "nvidia"\n'}


def unit(flags: str, environment: str = "") -> command_line.Start:
    service = f"[Service]\nEnvironment={environment}\nExecStart=/usr/bin/k3s server {flags}\n"
    cat = f"# /etc/systemd/system/k3s.service\n{service}"
    return systemd_units.effective(systemd_units.shown(cat), lambda pattern: {})


@pytest.mark.parametrize(
    ("flags", "files", "says"),
    [
        ("", {}, ""),
        ("", OURS, ""),
        ("--docker=false --default-runtime=nvidia", OURS, ""),
        ("--default-runtime crun", {}, ""),  # A drop-in of containerd is read after that.
        ("--default-runtime crun", OURS, "k3s.service has k3s run containers with crun by default"),
        ("--default-runtime=crun", OURS, "k3s.service has k3s run containers with crun by default"),
        ("", {MAIN: "default-runtime: crun", **OURS}, ""),
        ("", {f"{MAIN}.d/99-zz.yaml": "default-runtime: crun", **OURS}, "99-zz.yaml has k3s run containers with crun"),
        ("", {f"{MAIN}.d/10.yaml": "default-runtime: crun", **OURS}, ""),
        ("--docker", {}, "k3s.service has k3s use Docker, and no containerd of its own: set runtime=docker"),
        ("", {MAIN: "docker: true"}, f"{MAIN} has k3s use Docker"),
        ("-docker", {}, "k3s.service has k3s use Docker"),
        ("--docker=F", {MAIN: "docker: true"}, ""),
        ("-default-runtime=crun", OURS, "k3s.service has k3s run containers with crun by default"),
        ("--kubelet-arg --container-runtime-endpoint=/x", {}, ""),
        ("", {MAIN: "container-runtime-endpoint:"}, ""),
        ("--docker=false", {MAIN: "docker: true"}, ""),
        ("--container-runtime-endpoint unix:///x", {}, "use the runtime at unix:///x"),
        ("--config /srv/k3s.yaml", OURS, "k3s.service has k3s read /srv/k3s.yaml and what is in /srv/k3s.yaml.d"),
        (f"--config={MAIN}", OURS, ""),
        ("--debug -c /srv/k3s.yaml -c=/y", OURS, "k3s.service has k3s read /srv/k3s.yaml"),
        ("-config /srv/k3s.yaml", OURS, ""),  # Who looks for the file knows no such flag.
    ],
)
def test_settings_that_override_the_distribution_are_named(flags: str, files: dict[str, str], says: str) -> None:
    found = rancher_config.overriding(K3S, unit(flags), files, Wanted("nvidia", BINARY, default=True))
    assert says in found
    assert bool(found) == bool(says)


def test_other_settings_that_the_environment_names_are_named() -> None:
    service = unit("", environment="K3S_CONFIG_FILE=/srv/k3s.yaml")
    assert "has k3s read /srv/k3s.yaml" in rancher_config.overriding(K3S, service, OURS, Wanted("nvidia", BINARY))


def test_settings_that_are_no_yaml_are_named() -> None:
    with pytest.raises(ConfigError, match=f"^{MAIN} "):
        rancher_config.overriding(K3S, unit(""), {MAIN: "a: [", **OURS}, Wanted("nvidia", BINARY))


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, ""),
        (OURS, ""),
        ({MAIN: "tls-san: [a]\n", **OURS}, ""),
        ({MAIN: "docker: true\n", **OURS}, f"{MAIN} has docker"),
        ({f"{MAIN}.d/x.yaml": "{default-runtime: x}\n"}, f"{MAIN}.d/x.yaml has default-runtime"),
    ],
)
def test_unreadable_settings_count_if_they_mention_ours(files: dict[str, str], says: str) -> None:
    found = rancher_config.unread(K3S, files)
    assert says in found
    assert bool(found) == bool(says)


@st.composite
def hosts(draw: st.DrawFn) -> Host:
    generation = draw(st.sampled_from([2, 3]))
    files = {}
    if draw(st.booleans()):
        files[TEMPLATE if generation == 2 else TEMPLATE_3] = draw(st.sampled_from([EXTENDED, EXTENDED.rstrip("\n")]))
    if draw(st.booleans()):
        files[f"{K3S.containerd}/config-v3.toml.d/10-site.toml"] = '[debug]\n  level = "warn"\n'
    return Host(generation, files)


WANTED = st.builds(
    Wanted,
    st.sampled_from(["nvidia", "gpu.v2"]),
    st.sampled_from([BINARY, "/opt/it's here/run\"time"]),
    st.booleans(),
    st.none(),
)


@settings(max_examples=100)
@given(hosts(), WANTED)
def test_any_host_gets_the_runtime_once_and_loses_it_wholly(host: Host, wanted: Wanted) -> None:
    before = dict(host.files)
    present(host, wanted)
    host.program = wanted.binary if wanted.binary == BINARY else ""
    host.start()

    assert host.complaint(wanted) == ""
    assert {path: host.files[path] for path in before if "tmpl" not in path} == {
        path: text for path, text in before.items() if "tmpl" not in path
    }
    assert not present(host, wanted)
    assert rancher_config.plan_present(K3S, host.seen(), wanted).files == {
        path: host.files.get(path) for path in rancher_config.plan_present(K3S, host.seen(), wanted).files
    }

    host.apply(rancher_config.plan_absent(K3S, host.seen()))
    assert {path: text.strip() for path, text in host.files.items()} == {
        path: text.strip() for path, text in before.items()
    }
