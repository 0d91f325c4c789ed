# SPDX-License-Identifier: Apache-2.0
"""What molecule scenarios ask of a simulated cluster: how it is, and what two runs of a playbook said they changed.

``python -m scenario look ROOT`` prints the state of hosts and cluster. ``python -m scenario differences FILE ROOT``
prints what is not as it was when FILE was written, ``python -m scenario broken CHECK RUN`` what a run changed that its
dry run did not announce, and the other way around; both end with 1 if they print anything. ``python -m scenario node
NAME`` prints a node whose plugin has reported two GPUs in mode vgpu.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from playbooks.scheduler import gpu_node
from sim.cluster.client import Api
from sim.cluster.kinds import KINDS, Kind

_WRITTEN_BY_OTHERS = ("gpusim.conf.cuda", "proc", "run", "tmp", "var/lib/kubelet", "var/lib/sim-systemd", "var/log")
"""What processes of a simulated host write: containers, systemd and the GPUs."""
_BACKUPS = "var/lib/accel-kubernetes"
"""Our modules keep copies of what they changed there, after an uninstall too."""
_KINDS_OF_OTHERS = {"events", "leases", "pods", "endpointslices"}
_METADATA_OF_SERVER = ("generation", "managedFields", "resourceVersion")
_PREFIX = re.compile(r"^\S+ \S+ p=([0-9]+) u=\S+ n=\S+ [A-Z]+\| ", re.MULTILINE)
_TASK = re.compile(r"^(?:TASK|RUNNING HANDLER) \[(.*)\] \*+$")
_CHANGED = re.compile(r"^changed: \[([^\] ]+)(?: -> [^\]]*)?\](?: => \(item=(.*)\))?")


def look(root: Path) -> dict[str, str]:
    """Return digests of all files on the simulated hosts below ``root``, and all objects of their cluster as JSON."""
    hosts = (path for path in root.iterdir() if (path / "etc").is_dir())
    return {key: text for host in hosts for key, text in _files(root, host)} | dict(_objects(Api(root / "admin.conf")))


def _files(root: Path, host: Path) -> Iterator[tuple[str, str]]:
    for path in host.rglob("*"):
        if str(path.relative_to(host)).startswith((*_WRITTEN_BY_OTHERS, _BACKUPS)):
            continue
        mode = oct(path.lstat().st_mode)
        if path.is_symlink():
            yield str(path.relative_to(root)), f"{mode} {path.readlink()}"
        elif path.is_file():
            yield str(path.relative_to(root)), f"{mode} {_digest(path.read_bytes())}"
        elif path.is_dir():
            yield f"{path.relative_to(root)}/", mode


def _objects(api: Api) -> Iterator[tuple[str, str]]:
    for kind in KINDS.values():
        if kind.plural in _KINDS_OF_OTHERS:
            continue
        code, answer = api.call("GET", _path(kind))
        # The kinds of an operator that is not installed.
        for item in answer["items"] if code == 200 else ():
            metadata = {key: value for key, value in item["metadata"].items() if key not in _METADATA_OF_SERVER}
            kept = {key: value for key, value in item.items() if key != "status"} | {"metadata": metadata}
            if kind.plural == "nodes":
                # Kubelet writes the rest of it.
                kept["conditions"] = sorted(each["type"] for each in item.get("status", {}).get("conditions", ()))
            name = f"{kind.name} {metadata.get('namespace', '')}/{metadata['name']}"
            yield name, json.dumps(kept, sort_keys=True)


def _path(kind: Kind) -> str:
    return f"/apis/{kind.group}/v1/{kind.plural}" if kind.group else f"/api/v1/{kind.plural}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return what came, went, and is another, by name; of an object also the parts that differ."""
    words = {
        name: "came" if name not in before else "went" if name not in after else _difference(before[name], after[name])
        for name in before.keys() | after.keys()
        if before.get(name) != after.get(name)
    }
    return [f"{name} {word}" for name, word in sorted(words.items())]


def _difference(before: str, after: str) -> str:
    if not before.startswith("{"):
        return "is another"
    one, other = _parts(json.loads(before)), _parts(json.loads(after))
    return f"differs in {', '.join(sorted(key for key in one | other if one.get(key) != other.get(key)))}"


def _parts(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of an object, two levels deep, by their place in it."""
    found: dict[str, Any] = {}
    for key, value in item.items():
        found |= {f"{key}.{part}": each for part, each in value.items()} if isinstance(value, dict) else {key: value}
    return found


def changed(log: str) -> list[str]:
    """Return what the first playbook of a log of Ansible changed: task, host, and item where there is one."""
    _, *parts = _PREFIX.split(log)
    lines = [text.strip() for process, text in zip(parts[::2], parts[1::2], strict=True) if process == parts[0]]
    task, found = "", []
    for line in lines:
        if match := _TASK.match(line):
            task = match[1]
        elif match := _CHANGED.match(line):
            found.append(f"{task}: {match[1]}" + (f": {match[2]}" if match[2] else ""))
    return found


def broken(told: list[str], done: list[str]) -> list[str]:
    """Return what a run changed without a word before, and what it was to change and did not."""
    silent = [f"not told: {each}" for each in done if each not in told]
    return silent + [f"not done: {each}" for each in told if each not in done]


def main(words: list[str]) -> int:
    """Run a command. Returns 1 if it found something that should not be."""
    match words:
        case ["look", root]:
            print(json.dumps(look(Path(root)), indent=1, sort_keys=True))
            return 0
        case ["node", name]:
            print(json.dumps(gpu_node(name)))
            return 0
        case ["differences", file, root]:
            found = differences(json.loads(Path(file).read_text()), look(Path(root)))
        case ["broken", check, run]:
            found = broken(changed(Path(check).read_text()), changed(Path(run).read_text()))
        case _:
            sys.exit(__doc__)
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
