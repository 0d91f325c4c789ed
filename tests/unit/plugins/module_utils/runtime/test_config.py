# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import copy
import difflib
import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime import config as runtime_config
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.config import Owned, Wanted
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.dialect import ConfigError, parse
from hypothesis import example, given, settings
from hypothesis import strategies as st

import real_runtimes

FIXTURES = Path(__file__).parents[2] / "fixtures"
BINARY = "/usr/bin/nvidia-container-runtime"
FILE = "/etc/the.file"
CRI = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
SCATTERED = "containerd-commented.toml"
TOML_FIXTURES = ["containerd-1.7.toml", "containerd-2.1.toml", SCATTERED]


def text_of(name: str) -> str:
    return (FIXTURES / name).read_text()


def present(text: str, wanted: Wanted, runtime: str = "containerd", owned: Owned | None = None) -> runtime_config.Plan:
    return runtime_config.plan_present(runtime, text, wanted, owned or Owned(), text, FILE)


def containerd_part(text: str) -> dict[str, Any]:
    data = parse("containerd", text, FILE)
    part: dict[str, Any] = data["plugins"][CRI[min(data["version"], 3)]]
    return part


@pytest.mark.parametrize("name", TOML_FIXTURES)
def test_the_runtime_is_added_with_the_cgroup_driver_of_runc(name: str) -> None:
    plan = present(text_of(name), Wanted("nvidia", BINARY))

    part = containerd_part(plan.text)["containerd"]
    assert part["runtimes"]["nvidia"]["runtime_type"] == "io.containerd.runc.v2"
    assert part["runtimes"]["nvidia"]["options"]["BinaryName"] == BINARY
    assert part["runtimes"]["nvidia"]["options"]["SystemdCgroup"] is True
    assert part["default_runtime_name"] == "runc"


@pytest.mark.parametrize("name", TOML_FIXTURES)
def test_only_the_lines_that_have_to_change_do(name: str) -> None:
    before = text_of(name)
    after = present(before, Wanted("nvidia", BINARY, default=True, cdi=True)).text

    gone = [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line.startswith("- ")]
    assert all("default_runtime_name" in line or "enable_cdi" in line for line in gone)
    assert len(gone) <= 2


@pytest.mark.parametrize("name", TOML_FIXTURES)
@pytest.mark.parametrize("default", [True, False])
def test_absent_after_present_is_the_same_text(name: str, default: bool) -> None:
    before = text_of(name)
    plan = present(before, Wanted("nvidia", BINARY, default))

    assert runtime_config.plan_absent("containerd", plan.text, "nvidia", plan.owned, before, FILE).text == before


def test_a_runtime_without_runc_gets_no_invented_cgroup_driver() -> None:
    plan = present("version = 2\n", Wanted("nvidia", BINARY))

    assert "SystemdCgroup" not in plan.text


def test_a_version_2_file_that_names_no_runtime_keeps_runc() -> None:
    # Debian's own file: containerd 1 forgets its built-in runc as soon as the file names any runtime.
    before = (FIXTURES / "runtimes" / "containerd-debian.toml").read_text()

    plan = present(before, Wanted("nvidia", BINARY))

    assert containerd_part(plan.text)["containerd"]["runtimes"]["runc"] == {"runtime_type": "io.containerd.runc.v2"}
    gone = runtime_config.plan_absent("containerd", plan.text, "nvidia", plan.owned, before, FILE)
    assert parse("containerd", gone.text, FILE) == parse("containerd", before, FILE)


def test_runc_entry_goes_with_ours_unless_another_joined() -> None:
    before = f"version = 2\n[plugins.'{CRI[2]}'.containerd.runtimes.kata]\nruntime_type = 'io.containerd.kata.v2'\n"
    plan = present(before, Wanted("nvidia", BINARY))
    assert "runc" in containerd_part(plan.text)["containerd"]["runtimes"]
    assert runtime_config.plan_absent("containerd", plan.text, "nvidia", plan.owned, before, FILE).text == before
    joined = f"{plan.text}[plugins.'{CRI[2]}'.containerd.runtimes.other]\nruntime_type = 'x'\n"
    after = runtime_config.plan_absent("containerd", joined, "nvidia", plan.owned, before, FILE).text
    assert set(containerd_part(after)["containerd"]["runtimes"]) == {"kata", "runc", "other"}


OURS_TO_BE = f"""version = 2
[plugins.'{CRI[2]}']
enable_cdi = false
[plugins.'{CRI[2]}'.containerd]
default_runtime_name = "kata"
[plugins.'{CRI[2]}'.containerd.runtimes]
kata = {{ runtime_type = "io.containerd.kata.v2" }}
nvidia = {{ runtime_type = "io.containerd.runc.v2", options = {{ BinaryName = "/opt/theirs" }} }}
"""


def migrated(text: str) -> str:
    """What ``containerd config migrate`` makes of the tables that matter here."""
    return text.replace("version = 2", "version = 3").replace(CRI[2], CRI[3])


def test_original_returns_in_a_file_of_a_newer_version() -> None:
    plan = present(OURS_TO_BE, Wanted("nvidia", BINARY, default=True, cdi=True))
    for change in (migrated, lambda text: f"# a later hand\n{migrated(text)}"):
        absent = runtime_config.plan_absent("containerd", change(plan.text), "nvidia", plan.owned, OURS_TO_BE, FILE)
        assert tomllib.loads(absent.text) == tomllib.loads(migrated(OURS_TO_BE))
    again = runtime_config.plan_present(
        "containerd", migrated(plan.text), Wanted("gpu", BINARY), plan.owned, OURS_TO_BE, FILE
    )
    found = containerd_part(again.text)["containerd"]
    assert found["default_runtime_name"] == "kata"
    assert found["runtimes"]["nvidia"]["options"]["BinaryName"] == "/opt/theirs"


@pytest.mark.parametrize("containerd", real_runtimes.containerds())
def test_original_returns_after_a_real_migration(containerd: Path, tmp_path: Path) -> None:
    def migrate(text: str) -> str:
        file = tmp_path / "config.toml"
        file.write_text(text)
        command = [containerd, "--config", file, "config", "migrate"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip("this containerd has no 'config migrate'")
        return done.stdout

    plan = present(OURS_TO_BE, Wanted("nvidia", BINARY, default=True, cdi=True))
    absent = runtime_config.plan_absent("containerd", migrate(plan.text), "nvidia", plan.owned, OURS_TO_BE, FILE)
    assert containerd_part(absent.text) == containerd_part(migrate(OURS_TO_BE))


def test_the_cgroup_driver_follows_a_later_change_of_runc() -> None:
    first = present(text_of("containerd-1.7.toml"), Wanted("nvidia", BINARY))
    switched = first.text.replace("SystemdCgroup = true", "SystemdCgroup = false", 1)

    second = present(switched, Wanted("nvidia", BINARY), owned=first.owned)

    assert "SystemdCgroup = true" not in second.text


def test_fields_that_others_set_in_our_runtime_stay() -> None:
    first = present(text_of("containerd-commented.toml"), Wanted("nvidia", BINARY))
    edited = first.text.replace(
        '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]',
        '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]\npod_annotations = ["a/*"]',
    )

    assert present(edited, Wanted("nvidia", BINARY), owned=first.owned).edits == ()


def test_a_default_we_made_is_taken_back_when_no_longer_wanted() -> None:
    before = text_of("containerd-2.1.toml")
    first = present(before, Wanted("nvidia", BINARY, default=True))

    second = runtime_config.plan_present("containerd", first.text, Wanted("nvidia", BINARY), first.owned, before, FILE)

    assert containerd_part(second.text)["containerd"]["default_runtime_name"] == "runc"
    assert not second.owned.default


def test_a_default_that_others_made_stays() -> None:
    theirs = present(text_of("containerd-2.1.toml"), Wanted("nvidia", BINARY, default=True)).text

    assert present(theirs, Wanted("nvidia", BINARY)).edits == ()


def test_a_renamed_runtime_replaces_the_old_one() -> None:
    before = text_of("containerd-1.7.toml")
    first = present(before, Wanted("nvidia", BINARY, default=True))

    second = runtime_config.plan_present(
        "containerd", first.text, Wanted("gpu", BINARY, default=True), first.owned, before, FILE
    )

    part = containerd_part(second.text)["containerd"]
    assert "nvidia" not in part["runtimes"]
    assert part["runtimes"]["gpu"]["options"]["BinaryName"] == BINARY
    assert part["default_runtime_name"] == "gpu"


def test_absent_makes_runc_the_default_without_a_record() -> None:
    theirs = present(text_of("containerd-1.7.toml"), Wanted("nvidia", BINARY, default=True)).text

    plan = runtime_config.plan_absent("containerd", theirs, "nvidia", Owned(), None, FILE)

    part = containerd_part(plan.text)["containerd"]
    assert part["default_runtime_name"] == "runc"
    assert "nvidia" not in part["runtimes"]


def test_merged_configuration_without_the_runtime_is_refused() -> None:
    wanted = Wanted("nvidia", BINARY, default=True)
    good = present(text_of("containerd-2.1.toml"), wanted).text

    def complaint(text: str) -> str:
        data = parse("containerd", text, FILE)
        return str(runtime_config.complaint("containerd", data, wanted, FILE))

    assert complaint(good) == ""
    assert "'runc' instead of 'nvidia'" in complaint(
        good.replace("default_runtime_name = 'nvidia'", "default_runtime_name = 'runc'")
    )
    assert "BinaryName" in complaint(good.replace(BINARY, "/usr/bin/other"))
    assert "no runtime nvidia" in complaint(text_of("containerd-2.1.toml"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[plugins]\n", ["version 1", "config migrate"]),
        ("version = 1\n", ["version 1", "config migrate"]),
        ("version = 9\n", ["version 9", "2, 3, and 4"]),
        ("version = 2\n\nbroken =\n", [FILE, "line 3"]),
        ('version = 2\ndisabled_plugins = ["cri"]\n', ["'cri'", "disabled_plugins"]),
        ("version = 2\n[[plugins]]\nx = 1\n", ["plugins", "where a table belongs"]),
    ],
)
def test_a_containerd_file_that_cannot_be_edited_is_refused(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as refusal:
        present(text, Wanted("nvidia", BINARY))
    assert all(word in str(refusal.value) for word in words)


def test_docker_keeps_the_layout_of_its_file() -> None:
    before = text_of("daemon.json")
    plan = present(before, Wanted("nvidia", BINARY, default=True, cdi=True), "docker")

    data = json.loads(plan.text)
    assert data["runtimes"] == {"crun": {"path": "/usr/bin/crun"}, "nvidia": {"path": BINARY}}
    assert data["default-runtime"] == "nvidia"
    assert data["features"] == {"buildkit": True, "cdi": True}
    assert '"log-driver": "json-file", "log-opts": {"max-size": "100m"},' in plan.text
    assert runtime_config.plan_absent("docker", plan.text, "nvidia", plan.owned, before, FILE).text == before


def test_docker_without_a_default_gets_none_back() -> None:
    plan = present("{}\n", Wanted("nvidia", BINARY, default=True), "docker")

    assert runtime_config.plan_absent("docker", plan.text, "nvidia", plan.owned, "{}\n", FILE).text == "{}\n"


@pytest.mark.parametrize(("text", "words"), [('{"a": 1,\n}', ["line 2"]), ("[]", ["list"])])
def test_a_docker_file_that_cannot_be_edited_is_refused(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as refusal:
        present(text, Wanted("nvidia", BINARY), "docker")
    assert all(word in str(refusal.value) for word in words)


def test_crio_gets_a_drop_in_and_loses_all_of_it() -> None:
    plan = present("", Wanted("nvidia", BINARY, default=True), "crio")

    assert parse("crio", plan.text, FILE) == {
        "crio": {
            "runtime": {
                "default_runtime": "nvidia",
                "runtimes": {"nvidia": {"runtime_path": BINARY, "runtime_type": "oci"}},
            }
        }
    }
    assert runtime_config.plan_absent("crio", plan.text, "nvidia", plan.owned, "", FILE).text.strip() == ""


@pytest.mark.parametrize(
    ("default", "programs"),
    [
        ("crun", ["/usr/libexec/crio/crun"]),
        ("runc", ["runc"]),
        ("nvidia", ["/usr/libexec/crio/crun", "runc"]),
        ("kata", ["/usr/libexec/crio/crun", "runc"]),
        ("other", ["/usr/libexec/crio/crun", "runc"]),
        ("", ["/usr/libexec/crio/crun", "runc"]),
    ],
)
def test_what_crio_runs_containers_with(default: str, programs: list[str]) -> None:
    runtimes = {
        "nvidia": {"runtime_path": BINARY},
        "other": {"runtime_path": "/usr/local/nvidia/toolkit/nvidia-container-runtime.cdi"},
        "kata": {"runtime_path": "/usr/bin/containerd-shim-kata-v2", "runtime_type": "vm"},
        "runc": {"runtime_type": "oci"},
        "crun": {"runtime_path": "/usr/libexec/crio/crun", "monitor_path": "/usr/libexec/crio/conmon"},
    }
    data = {"crio": {"runtime": {"default_runtime": default, "runtimes": runtimes}}}

    found = runtime_config.crio_low_levels(data, Wanted("nvidia", BINARY))

    assert [low.program for low in found] == programs
    assert runtime_config.crio_low_levels({}, Wanted("nvidia", BINARY)) == []


def test_crio_has_no_switch_for_cdi() -> None:
    with pytest.raises(ConfigError, match="cdi"):
        present("", Wanted("nvidia", BINARY, cdi=True), "crio")


# Any order, any subset and any comments: what a file that people edit for years looks like.


def blocks_of(name: str) -> list[str]:
    """The file cut before each header; the first piece has none."""
    return re.split(r"(?m)^(?=[ ]*\[plugins)", text_of(name))


@st.composite
def configurations(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(TOML_FIXTURES))
    head, *blocks = blocks_of(name)
    chosen = draw(st.lists(st.sampled_from(blocks), unique=True))
    if name != SCATTERED:
        chosen.sort(key=blocks.index)
    comment = st.sampled_from(["", "\n# theirs: keep", "\n  # [not.a.table]"])
    text = head + "\n" + "".join(block + draw(comment) + "\n" for block in chosen)
    # tomlkit does not read every order of tables.
    with contextlib.suppress(ConfigError):
        parse("containerd", text, FILE)
        return text
    return head


WANTED = st.builds(
    Wanted,
    st.sampled_from(["nvidia", "gpu.v2"]),
    st.sampled_from([BINARY, "/opt/it's here/runtime"]),
    st.booleans(),
    st.sampled_from([None, True, False]),
)


def without_ours(data: dict[str, Any], *names: str) -> dict[str, Any]:
    """The data less what the module may touch, and less tables that are empty then."""
    data = copy.deepcopy(data)
    part = data.get("plugins", {}).get(CRI[min(data["version"], 3)], {})
    part.pop("enable_cdi", None)
    part.get("containerd", {}).pop("default_runtime_name", None)
    for name in names:
        part.get("containerd", {}).get("runtimes", {}).pop(name, None)

    def pruned(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        kept = {key: pruned(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item != {}}

    result: dict[str, Any] = pruned(data)
    return result


SCATTERED = """version = 3
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins]
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd]
  default_runtime_name = "runc"
[plugins."io.containerd.cri.v1.images".registry]
  config_path = "/etc/containerd/certs.d"
[plugins."io.containerd.cri.v1.runtime"]
  max_container_log_line_size = 262144
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  SystemdCgroup = true
"""
"""Tables between those below them, which tomlkit 0.15.2 takes for one that is there twice."""


@settings(max_examples=75)
@example(SCATTERED, Wanted("nvidia", "/usr/bin/nvidia-container-runtime", False, None))
@given(configurations(), WANTED)
def test_any_file_gets_and_loses_our_runtime_alone(text: str, wanted: Wanted) -> None:
    before = parse("containerd", text, FILE)
    plan = present(text, wanted)
    after = parse("containerd", plan.text, FILE)

    assert after == tomllib.loads(plan.text)
    if not runtime_config.has_runtime("containerd", before, "runc", FILE):
        # Version 2 files get a plain one.
        assert without_ours(after, wanted.name, "runc") == without_ours(before, wanted.name)
    else:
        assert without_ours(after, wanted.name) == without_ours(before, wanted.name)
    assert runtime_config.complaint("containerd", after, wanted, FILE) == ""
    assert plan.text.count("# theirs: keep") == text.count("# theirs: keep")

    again = runtime_config.plan_present("containerd", plan.text, wanted, plan.owned, text, FILE)
    assert (again.edits, again.text) == ((), plan.text)

    gone = runtime_config.plan_absent("containerd", plan.text, wanted.name, plan.owned, text, FILE)
    assert parse("containerd", gone.text, FILE) == before
    assert gone.text.count("# theirs: keep") == text.count("# theirs: keep")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def daemons(draw: st.DrawFn) -> str:
    data = draw(st.dictionaries(st.text(max_size=6), JSON_VALUES, max_size=4))
    if draw(st.booleans()):
        data["runtimes"] = {"crun": {"path": "/usr/bin/crun"}}
    if draw(st.booleans()):
        data["features"] = {"buildkit": True}
    indent = draw(st.sampled_from([None, 2, 4, "\t"]))
    return json.dumps(data, indent=indent) + draw(st.sampled_from(["", "\n"]))


@settings(max_examples=150)
@given(daemons(), WANTED)
def test_any_json_gets_and_loses_our_runtime_alone(text: str, wanted: Wanted) -> None:
    before = json.loads(text)
    plan = present(text, wanted, "docker")
    after = json.loads(plan.text)

    assert after["runtimes"][wanted.name]["path"] == wanted.binary
    touched = {"runtimes", "default-runtime", "features"}
    assert {key: after[key] for key in after.keys() - touched} == {key: before[key] for key in before.keys() - touched}
    assert present(plan.text, wanted, "docker", plan.owned).edits == ()
    gone = runtime_config.plan_absent("docker", plan.text, wanted.name, plan.owned, text, FILE)
    assert json.loads(gone.text) == before


ODD_RUNTIMES = ["5", "true", '"x"', '[{"a": 1}]', "[]"]


@pytest.mark.parametrize("value", ODD_RUNTIMES)
def test_absent_leaves_a_file_whose_runtimes_are_no_table(value: str) -> None:
    text = f'{{"runtimes": {value}}}'
    gone = runtime_config.plan_absent("docker", text, "nvidia", runtime_config.Owned("nvidia"), "{}", "/f")
    assert gone.text == text


@pytest.mark.parametrize("text", ['{"a": ' + "[" * 100000 + "]" * 100000 + "}", '{"a": ' + "9" * 5000 + "}"])
def test_json_that_python_cannot_hold_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"nested too deeply|cannot be read as JSON"):
        parse("docker", text, "/f")


def test_toml_nested_too_deeply_is_refused() -> None:
    with pytest.raises(ConfigError, match="nested too deeply"):
        parse("containerd", "a = " + "[" * 3000 + "]" * 3000, "/f")


def test_options_of_the_base_that_are_no_table_are_refused() -> None:
    text = "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]\noptions = 'x'\n"
    wanted = runtime_config.Wanted("nvidia", "/b")
    with pytest.raises(ConfigError, match=r"runc\.options, where a table belongs"):
        runtime_config.plan_present("containerd", text, wanted, runtime_config.Owned(), text, "/f")


@pytest.mark.parametrize("runtimes", [5, [{"a": 1}], {"runc": 5}, {}])
def test_low_levels_of_odd_tables_are_none(runtimes: object) -> None:
    data = {"crio": {"runtime": {"runtimes": runtimes, "default_runtime": ["runc"]}}}
    assert runtime_config.crio_low_levels(data, runtime_config.Wanted("nvidia", "/b")) == []
