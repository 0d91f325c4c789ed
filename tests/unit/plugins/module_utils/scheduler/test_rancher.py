# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.accel.kubernetes.plugins.module_utils.host.rancher_settings import load, merged, rank
from ansible_collections.accel.kubernetes.plugins.module_utils.host.systemd_units import effective
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.manifest import Wanted
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.rancher import (
    DISTRIBUTIONS,
    Distribution,
    Settings,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.schema import ConfigError
from hypothesis import given, settings
from hypothesis import strategies as st

FIXTURES = Path(__file__).parents[2] / "fixtures"
K3S, RKE2 = DISTRIBUTIONS
CONFIG = "/etc/kubernetes/kube-accel/scheduler.yaml"
UNIT = "/etc/systemd/system/k3s.service"
PKI = "/etc/kubernetes/kube-accel-pki/scheduler"


def main_file(distribution: Distribution) -> str:
    return f"{distribution.directory}/config.yaml"


def drop_in(distribution: Distribution, name: str) -> str:
    return f"{distribution.directory}/config.yaml.d/{name}"


def after(
    distribution: Distribution, files: dict[str, str], wanted: Wanted | None, keep_config: bool = False
) -> dict[str, str]:
    """The files once ours holds what is wanted, or with None once ours is taken out."""
    told = Settings(distribution, files)
    if wanted is None:
        told.remove(None, keep_config)
    else:
        told.add(wanted)
    text = told.text()
    others = {path: content for path, content in files.items() if path != distribution.our_file}
    # In another order than they are read in.
    return ({} if text is None else {distribution.our_file: text}) | others


def effective_settings(files: dict[str, str]) -> dict[str, Any]:
    return dict(merged({path: load(files[path], path) for path in sorted(files, key=rank)}))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda item: item.name)
def test_the_scheduler_reads_our_file_beside_what_it_was_told(distribution: Distribution) -> None:
    text = (FIXTURES / f"{distribution.name}-config.yaml").read_text()
    before = {main_file(distribution): text}

    files = after(distribution, before, Wanted(CONFIG, "content", [PKI], [f"{PKI}/ca.crt"]))

    told = effective_settings(files)
    theirs = effective_settings(before)
    given = theirs["kube-scheduler-arg"]
    assert told["kube-scheduler-arg"] == [*(given if isinstance(given, list) else [given]), f"config={CONFIG}"]
    mounts = [*theirs.get("kube-scheduler-extra-mount", []), *([f"{PKI}:{PKI}:ro"] if distribution is RKE2 else [])]
    assert told.get("kube-scheduler-extra-mount", []) == mounts
    ours = {"kube-scheduler-arg", "kube-scheduler-extra-mount"}
    assert {key: told[key] for key in told if key not in ours} == {
        key: theirs[key] for key in theirs if key not in ours
    }
    assert files[main_file(distribution)] == text


def test_rke2_is_given_a_mount_for_each_certificate() -> None:
    wanted = Wanted(CONFIG, "content", [], ["/etc/ssl/x/ca.crt"])
    with pytest.raises(ConfigError, match="add /etc/ssl/x to mounts"):
        after(RKE2, {}, wanted)
    assert after(K3S, {}, wanted) == after(K3S, {}, Wanted(CONFIG, "content"))


def test_existing_configuration_argument_is_found_and_kept() -> None:
    files = {drop_in(K3S, "50-theirs.yaml"): "kube-scheduler-arg: [v=2, --config=/etc/theirs.yaml, config=/etc/last]\n"}

    told = Settings(K3S, files)

    assert told.config_file() == "/etc/last"
    assert told.flag("v") == "2"
    assert after(K3S, files, Wanted("/etc/last", "content", [PKI])) == files
    on_rke2 = {drop_in(RKE2, "50-theirs.yaml"): files[drop_in(K3S, "50-theirs.yaml")]}
    ours = yaml.safe_load(after(RKE2, on_rke2, Wanted("/etc/last", "content", [PKI]))[RKE2.our_file])
    assert ours == {"kube-scheduler-extra-mount+": [f"{PKI}:{PKI}:ro"]}


@pytest.mark.parametrize(
    ("files", "units", "words"),
    [
        (
            {drop_in(K3S, "zzz.yaml"): "kube-scheduler-arg: [v=2]\n"},
            {},
            [drop_in(K3S, "zzz.yaml"), "kube-scheduler-arg+", "before zz-kube-accel.yaml"],
        ),
        (
            {},
            {UNIT: "[Service]\nExecStart=/bin/k3s \\\n server '--kube-scheduler-arg=v=2'\n"},
            [UNIT, "--kube-scheduler-arg=v=2", "move it to /etc/rancher/k3s/config.yaml"],
        ),
        (
            {},
            {UNIT: "[Service]\nExecStart=/bin/k3s server --config /x.yaml"},
            [UNIT, "/x.yaml by --config", "take --config out"],
        ),
        (
            {},
            {UNIT: "[Service]\nExecStart=/bin/k3s server -c /etc/k.yaml\nEnvironment='K3S_CONFIG_FILE=/y.yaml'"},
            [UNIT, "/y.yaml by K3S_CONFIG_FILE", "take K3S_CONFIG_FILE out"],
        ),
        ({}, {UNIT: "[Service]\nExecStart=/bin/k3s server --disable-scheduler"}, [UNIT, "runs no kube-scheduler"]),
        (
            {main_file(K3S): "disable-scheduler: yes\n"},
            {},
            [main_file(K3S), "runs no kube-scheduler"],
        ),
        (
            {
                main_file(K3S): "kube-scheduler-arg: [config=/a]\n",
                K3S.our_file: f"kube-scheduler-arg+: [config={CONFIG}]",
            },
            {},
            ["The other file's is /a", "state=absent"],
        ),
        ({main_file(K3S): "a: [\n"}, {}, [main_file(K3S), "line"]),
    ],
    ids=[
        "later file",
        "command line",
        "file by option",
        "file by variable",
        "none by option",
        "none by file",
        "two",
        "no YAML",
    ],
)
def test_what_would_have_no_effect_is_refused(files: dict[str, str], units: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as refusal:
        Settings(K3S, files, effective(units, lambda pattern: {})).add(Wanted(CONFIG, "content"))
    assert all(word in str(refusal.value) for word in words)


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ("[config=/a, config-=/b]", "/a"),
        ("[config-=/a, config=/b]", "/b"),
        ("[config+=/a]", "/a"),
        ("--config=/a", "/a"),
        ("[config]", "true"),
        ("[v=2]", None),
    ],
)
def test_repeated_argument_is_the_one_k3s_puts_last(arguments: str, value: str | None) -> None:
    assert Settings(K3S, {main_file(K3S): f"kube-scheduler-arg: {arguments}\n"}).config_file() == value


def test_a_later_file_that_adds_is_no_obstacle() -> None:
    files = {drop_in(K3S, "zzz.yaml"): "kube-scheduler-arg+: [v=2]\n"}
    told = effective_settings(after(K3S, files, Wanted(CONFIG, "content")))
    assert told["kube-scheduler-arg"] == [f"config={CONFIG}", "v=2"]


def test_the_configuration_can_be_left_in_place() -> None:
    once = after(RKE2, {}, Wanted(CONFIG, "content", [PKI]))
    left = after(RKE2, once, None, keep_config=True)
    assert yaml.safe_load(left[RKE2.our_file]) == {"kube-scheduler-arg+": [f"config={CONFIG}"]}


ARGUMENTS = st.one_of(
    st.sampled_from(["v=2", "secure-port=10260"]),
    st.lists(st.sampled_from(["v=2", "profiling=false", "--leader-elect=false"]), max_size=3),
)
CONTENTS = st.dictionaries(
    st.sampled_from(["tls-san", "kube-scheduler-arg", "kube-scheduler-arg+", "kube-scheduler-extra-mount", "debug"]),
    ARGUMENTS,
    max_size=3,
)


@settings(max_examples=60)
@given(
    st.sampled_from(DISTRIBUTIONS),
    st.dictionaries(st.sampled_from(["", "10-a.yaml", "50-b.yml"]), CONTENTS, max_size=3),
    st.lists(st.sampled_from(["/a", "/b/c"]), unique=True),
)
def test_whatever_the_settings_ours_come_and_go(
    distribution: Distribution, contents: dict[str, dict[str, Any]], mounts: list[str]
) -> None:
    before = {
        drop_in(distribution, name) if name else main_file(distribution): yaml.safe_dump(content)
        for name, content in contents.items()
    }
    wanted = Wanted(CONFIG, "content", mounts)

    once = after(distribution, before, wanted)

    assert after(distribution, once, wanted) == once
    assert Settings(distribution, once).config_file() == CONFIG
    theirs, told = effective_settings(before), effective_settings(once)
    added = {"kube-scheduler-arg": [f"config={CONFIG}"]}
    if distribution is RKE2 and mounts:
        added["kube-scheduler-extra-mount"] = [f"{mount}:{mount}:ro" for mount in mounts]
    assert {key: told[key] for key in told if key not in added} == {
        key: theirs[key] for key in theirs if key not in added
    }
    for key, ours in added.items():
        value = theirs.get(key, [])
        assert told[key] == (value if isinstance(value, list) else [value]) + ours
    assert after(distribution, once, None) == before


def test_a_setting_that_a_later_file_takes_back_does_not_count() -> None:
    files = {
        main_file(RKE2): "---\n# nothing\n",
        drop_in(RKE2, "10-a.yaml"): "disable-scheduler: true\n",
        drop_in(RKE2, "20-b.yaml"): "disable-scheduler: false\n",
    }
    Settings(RKE2, files).add(Wanted(CONFIG, "content"))
    unit = {"/etc/systemd/system/rke2-server.service": "[Service]\nExecStart=/x server --disable-scheduler\n"}
    with pytest.raises(ConfigError, match="has disable-scheduler"):
        Settings(RKE2, files, effective(unit, lambda pattern: {})).add(Wanted(CONFIG, "content"))


def test_a_file_that_the_environment_names_is_refused() -> None:
    path = "/etc/systemd/system/rke2-server.service"
    service = effective({path: "[Service]\nEnvironment=RKE2_CONFIG_FILE=/etc/other.yaml\n"}, lambda pattern: {})
    with pytest.raises(ConfigError, match=rf"{path} has rke2 read /etc/other\.yaml"):
        Settings(RKE2, {}, service).add(Wanted(CONFIG, "content"))
