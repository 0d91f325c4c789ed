# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.manifest import CHECKSUM, Manifest, Wanted
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.schema import ConfigError
from hypothesis import given, settings
from hypothesis import strategies as st

FILE = "/etc/kubernetes/manifests/kube-scheduler.yaml"
KUBEADM = (Path(__file__).parents[2] / "fixtures" / "kube-scheduler.yaml").read_text()
CONFIG = "/etc/kubernetes/kube-accel/scheduler.yaml"


def added(text: str, wanted: Wanted) -> str:
    manifest = Manifest(text, FILE)
    manifest.add(wanted)
    return str(manifest.text())


def removed(text: str, original: str | None, keep_config: bool = False) -> str:
    manifest = Manifest(text, FILE)
    manifest.remove(original, keep_config)
    return str(manifest.text())


def data_of(text: str) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(text)
    return data


def with_config(flag: str | list[str], *, mount: dict[str, Any], volume: dict[str, Any]) -> str:
    """kubeadm's manifest, already reading a configuration."""
    data = data_of(KUBEADM)
    container = data["spec"]["containers"][0]
    container["command"] += [flag] if isinstance(flag, str) else flag
    container["volumeMounts"].append({"name": "theirs", **mount})
    data["spec"]["volumes"].append({"name": "theirs", **volume})
    return yaml.safe_dump(data)


def test_the_pod_reads_the_file_and_sees_its_directory() -> None:
    data = data_of(added(KUBEADM, Wanted(CONFIG, "content", ["/etc/kubernetes/tls"])))

    container = data["spec"]["containers"][0]
    assert container["command"][:2] == ["kube-scheduler", f"--config={CONFIG}"]
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume["hostPath"] for volume in data["spec"]["volumes"]}
    assert mounts.keys() == volumes.keys()
    shown = {mounts[name]["mountPath"]: (volumes[name], mounts[name]["readOnly"]) for name in mounts}
    assert shown["/etc/kubernetes/kube-accel"] == (
        {"path": "/etc/kubernetes/kube-accel", "type": "DirectoryOrCreate"},
        True,
    )
    assert shown["/etc/kubernetes/tls"] == ({"path": "/etc/kubernetes/tls", "type": "Directory"}, True)


def test_lines_are_only_added() -> None:
    after = added(KUBEADM, Wanted(CONFIG, "content")).splitlines()

    position = -1
    for line in KUBEADM.splitlines():
        position = after.index(line, position + 1)


def test_another_configuration_is_another_checksum() -> None:
    checksums = [
        data_of(added(KUBEADM, Wanted(CONFIG, content)))["metadata"]["annotations"][CHECKSUM] for content in "ab"
    ]
    assert checksums[0] != checksums[1]


@pytest.mark.parametrize(
    ("flag", "mount", "volume", "outside"),
    [
        ("--config=/c/s.yaml", {"mountPath": "/c"}, {"hostPath": {"path": "/etc/theirs"}}, "/etc/theirs/s.yaml"),
        (["--config", "/c/s.yaml"], {"mountPath": "/c/"}, {"hostPath": {"path": "/etc/x/"}}, "/etc/x/s.yaml"),
        ("--config=/c/s.yaml", {"mountPath": "/c/s.yaml"}, {"hostPath": {"path": "/etc/y.yaml"}}, "/etc/y.yaml"),
        (
            "--config=/c/s.yaml",
            {"mountPath": "/c", "subPath": "in/it"},
            {"hostPath": {"path": "/etc/z"}},
            "/etc/z/in/it/s.yaml",
        ),
    ],
)
def test_a_configuration_it_reads_already_is_found_and_kept(
    flag: str | list[str], mount: dict[str, Any], volume: dict[str, Any], outside: str
) -> None:
    before = with_config(flag, mount=mount, volume=volume)

    assert Manifest(before, FILE).config_file() == outside
    after = data_of(added(before, Wanted(CONFIG, "content")))
    assert CHECKSUM in after["metadata"].pop("annotations")
    assert after == data_of(before)


def test_a_configuration_inside_the_image_is_refused() -> None:
    before = with_config("--config=/baked/in.yaml", mount={"mountPath": "/c"}, volume={"hostPath": {"path": "/d"}})

    with pytest.raises(ConfigError, match=r"--config=/baked/in\.yaml"):
        Manifest(before, FILE).config_file()


def test_flags_in_args_are_found_and_joined() -> None:
    data = data_of(KUBEADM)
    container = data["spec"]["containers"][0]
    container["args"] = container["command"][1:]
    container["command"] = ["kube-scheduler"]

    after = data_of(added(yaml.safe_dump(data), Wanted(CONFIG, "")))["spec"]["containers"][0]

    assert after["command"] == ["kube-scheduler"]
    assert after["args"] == [f"--config={CONFIG}", *container["args"]]


def test_a_certificate_the_pod_cannot_see_is_refused() -> None:
    wanted = Wanted(CONFIG, "", files=["/etc/kubernetes/pki/client.crt"])

    with pytest.raises(ConfigError, match="add /etc/kubernetes/pki to mounts"):
        added(KUBEADM, wanted)
    added(KUBEADM, Wanted(CONFIG, "", ["/etc/kubernetes/pki"], wanted.files))


def test_a_mount_no_longer_wanted_goes() -> None:
    first = added(KUBEADM, Wanted(CONFIG, "", ["/a", "/b"]))

    assert added(first, Wanted(CONFIG, "", ["/b"])) == added(KUBEADM, Wanted(CONFIG, "", ["/b"]))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: Pod\nspec: {}\n", ["manifest_path"]),
        ("kind: Deployment\nspec: {containers: [{}]}\n", ["no Pod"]),
        ("a: [\n", [FILE, "line"]),
        (KUBEADM.replace("v1.31.2", "v1.24.17"), ["v1.24.17", "1.25"]),
    ],
)
def test_what_is_no_manifest_of_ours_is_refused(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as refusal:
        Manifest(text, FILE)
    assert all(word in str(refusal.value) for word in words)


def started(command: list[str], args: list[str] | None = None) -> str:
    """kubeadm's manifest with another command and a hostPath at /c."""
    data = data_of(with_config([], mount={"mountPath": "/c"}, volume={"hostPath": {"path": "/etc/theirs"}}))
    container = data["spec"]["containers"][0]
    container["command"] = command
    if args is not None:
        container["args"] = args
    return yaml.safe_dump(data)


SCRIPT = (
    "mkfifo /run/p; exec /usr/local/bin/kube-scheduler --v=2 '--config=/c/s.yaml' --leader-elect=false >/run/p 2>&1"
)


@pytest.mark.parametrize(
    ("command", "args", "flags"),
    [
        (["kube-scheduler", "--config=/c/a", "--config", "/c/s.yaml"], None, {"config": "/c/s.yaml"}),
        (["kube-scheduler", "--config=/c/a"], ["--config=/c/s.yaml"], {"config": "/c/s.yaml"}),
        (["kube-scheduler", "--leader-elect", "--config", "/c/s.yaml"], None, {"leader-elect": "true"}),
        (["kube-scheduler", "--leader_elect=false", "--config=/c/s.yaml"], None, {"leader-elect": "false"}),
        (["/bin/sh", "-c", SCRIPT], None, {"config": "/c/s.yaml", "leader-elect": "false", "v": "2"}),
        (["/bin/sh"], ["-ec", SCRIPT], {"config": "/c/s.yaml"}),
    ],
)
def test_flags_are_those_that_kube_scheduler_takes(
    command: list[str], args: list[str] | None, flags: dict[str, str]
) -> None:
    text = started(command, args)
    manifest = Manifest(text, FILE)
    assert {name: manifest.flag(name) for name in flags} == flags
    assert manifest.config_file() == "/etc/theirs/s.yaml"
    after = data_of(added(text, Wanted(CONFIG, "content")))
    assert CHECKSUM in after["metadata"].pop("annotations")
    assert after == data_of(text)


NO_EFFECT: list[tuple[list[str], list[str]]] = [
    (["/bin/sh", "-c", "exec kube-scheduler --v=2"], ["a shell's text", "as a list", "--config"]),
    (["bash", "-c", "exec kube-scheduler 'x"], ["cannot be read", "quotation"]),
    (["kube-scheduler", "--write-config-to=/x"], ["--write-config-to=/x", "take it out"]),
    (["kube-scheduler", "--policy-config-file", "/x"], ["--policy-config-file=/x", "1.23"]),
    (["kube-scheduler", "--algorithm-provider=y"], ["--algorithm-provider=y", "1.23"]),
    (["kube-scheduler", "--config=$(FILE)"], ["a variable", "write its path"]),
    (["kube-scheduler", "--config="], ["without the name of a file", "take it out"]),
    (["/usr/bin/dumb-init", "--", "/bin/sh", "-c", "exec kube-scheduler --v=2"], ["a shell's text"]),
    (["busybox", "sh", "-c", "exec kube-scheduler"], ["a shell's text"]),
]


@pytest.mark.parametrize(("command", "words"), NO_EFFECT)
def test_a_command_that_would_not_heed_it_is_refused(command: list[str], words: list[str]) -> None:
    manifest = Manifest(started(command), FILE)
    with pytest.raises(ConfigError) as refusal:
        manifest.add(Wanted(manifest.config_file() or CONFIG, ""))
    assert all(word in str(refusal.value) for word in [FILE, *words])


def test_second_configuration_flag_is_refused_and_survives() -> None:
    once = data_of(added(started(["kube-scheduler"]), Wanted(CONFIG, "")))
    once["spec"]["containers"][0]["command"].append("--config=/c/s.yaml")
    text = yaml.safe_dump(once)

    with pytest.raises(ConfigError, match=r"--config=/c/s\.yaml besides the module's own.*remove one of them"):
        added(text, Wanted(CONFIG, ""))

    after = data_of(removed(text, None))
    assert after["spec"]["containers"][0]["command"] == ["kube-scheduler", "--config=/c/s.yaml"]
    # Ours last holds.
    once["spec"]["containers"][0]["command"][:0] = ["kube-scheduler", "--config=/c/s.yaml"]
    del once["spec"]["containers"][0]["command"][2], once["spec"]["containers"][0]["command"][-1]
    text = yaml.safe_dump(once)
    assert Manifest(text, FILE).config_file() == CONFIG
    added(text, Wanted(CONFIG, ""))


@pytest.mark.parametrize(
    ("path", "words"),
    [("/etc/kubernetes/kube-accel", "one volume at a path"), (CONFIG, "would not see the file")],
)
def test_a_mount_of_others_in_our_place_is_refused(path: str, words: str) -> None:
    text = with_config([], mount={"mountPath": path}, volume={"hostPath": {"path": "/etc/theirs"}})
    with pytest.raises(ConfigError, match=rf"{words}.*scheduler_config_path"):
        added(text, Wanted(CONFIG, ""))
    mounts = Wanted("/etc/kubernetes/x/y.yaml", "", [path])
    with pytest.raises(ConfigError, match="take it out of mounts"):
        added(text, mounts)


@st.composite
def manifests(draw: st.DrawFn) -> str:
    data = data_of(KUBEADM)
    container = data["spec"]["containers"][0]
    if draw(st.booleans()):
        data["metadata"]["annotations"] = {"theirs": "yes"}
    if draw(st.booleans()):
        del container["volumeMounts"], data["spec"]["volumes"]
    if draw(st.booleans()):
        data["spec"]["containers"].insert(0, {"name": "sidecar", "command": ["--config=/not/this"]})
    if draw(st.booleans()):
        container["command"] = draw(st.permutations(container["command"]))
    return yaml.safe_dump(data, indent=draw(st.sampled_from([2, 4])), sort_keys=draw(st.booleans()))


@settings(max_examples=40)
@given(manifests(), st.lists(st.sampled_from(["/a", "/b/c"]), unique=True))
def test_whatever_the_manifest_ours_comes_and_goes(text: str, mounts: list[str]) -> None:
    wanted = Wanted(CONFIG, "content", mounts)
    once = added(text, wanted)

    assert added(once, wanted) == once
    assert Manifest(once, FILE).config_file() == CONFIG
    kept = data_of(once)
    assert data_of(text)["spec"]["containers"][:-1] == kept["spec"]["containers"][:-1]

    assert data_of(removed(once, text)) == data_of(text)
    unremembered = copy.deepcopy(data_of(text))
    assert data_of(removed(once, None)) == unremembered


def test_the_configuration_can_be_left_in_place() -> None:
    once = added(KUBEADM, Wanted(CONFIG, "content", ["/a"]))

    left = removed(once, KUBEADM, keep_config=True)

    assert Manifest(left, FILE).config_file() == CONFIG
    assert not Manifest(left, FILE).bears_checksum()


GO_RUNNER = ["--log-file=/var/log/kube-scheduler.log", "--also-stdout=false", "/usr/local/bin/kube-scheduler"]
FLAG = f"--config={CONFIG}"


@pytest.mark.parametrize(
    ("command", "args", "expected"),
    [
        # kube-up, and kops since 1.31
        (["/go-runner", *GO_RUNNER, "--v=2"], None, (["/go-runner", *GO_RUNNER, FLAG, "--v=2"], None)),
        (["/go-runner"], [*GO_RUNNER, "--v=2"], (["/go-runner"], [*GO_RUNNER, FLAG, "--v=2"])),
        (["/go-runner", *GO_RUNNER], ["--v=2"], (["/go-runner", *GO_RUNNER], [FLAG, "--v=2"])),
        (["kube-scheduler"], ["-v", "2", "--x"], (["kube-scheduler"], [FLAG, "-v", "2", "--x"])),
        (["/usr/bin/env", "A=b", "kube-scheduler"], None, (["/usr/bin/env", "A=b", "kube-scheduler", FLAG], None)),
        (["kube-scheduler"], [], (["kube-scheduler", FLAG], [])),
        ([], ["--v=2"], ([], [FLAG, "--v=2"])),
        ([], None, ([], [FLAG])),
    ],
)
def test_the_flag_is_given_to_kube_scheduler_and_taken_back(
    command: list[str], args: list[str] | None, expected: tuple[list[str], list[str] | None]
) -> None:
    text = started(command, args)
    once = added(text, Wanted(CONFIG, ""))
    container = data_of(once)["spec"]["containers"][0]
    assert (container["command"], container.get("args")) == expected
    assert Manifest(once, FILE).config_file() == CONFIG
    assert added(once, Wanted(CONFIG, "")) == once
    assert data_of(removed(f"{once}# theirs\n", text)) == data_of(text)
    # Another hand wrote it as two words.
    for key in ("command", "args"):
        words = container.get(key) or []
        if FLAG in words:
            words[words.index(FLAG) : words.index(FLAG) + 1] = ["--config", CONFIG]
    edited = data_of(once)
    edited["spec"]["containers"][0] = container
    assert data_of(removed(yaml.safe_dump(edited), text)) == data_of(text)


def test_flags_of_what_starts_kube_scheduler_are_not_its_own() -> None:
    manifest = Manifest(started(["/go-runner", "--config=/not/this", *GO_RUNNER, "--v=2"]), FILE)
    assert manifest.config_file() is None
    assert manifest.flag("log-file") is None
    assert manifest.flag("v") == "2"


@pytest.mark.parametrize("empty", [[], None])
def test_lists_without_entries_are_given_back_as_they_were(empty: list[str] | None) -> None:
    data = data_of(KUBEADM)
    data["metadata"]["annotations"] = {} if empty is not None else None
    data["spec"]["volumes"] = data["spec"]["containers"][0]["volumeMounts"] = empty
    text = yaml.safe_dump(data)
    once = added(text, Wanted(CONFIG, ""))
    assert data_of(removed(f"{once}# theirs\n", text)) == data


def test_a_document_without_content_at_the_end_is_no_matter() -> None:
    text = f"---\n{KUBEADM}---\n"
    once = added(text, Wanted(CONFIG, ""))
    assert once.endswith("status: {}\n---\n")
    assert removed(once, text) == text
    with pytest.raises(ConfigError, match="2 documents, of which the first alone"):
        added(f"{KUBEADM}---\nkind: Pod\n", Wanted(CONFIG, ""))
