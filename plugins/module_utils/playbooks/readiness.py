# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decides what a person has to bring before the first run of the playbook site: what no role installs. Pure."""

from __future__ import annotations

import re
import shlex
from typing import Any, Iterator, List, Mapping

from ..shared.finding import Finding
from ..shared.inventory import GPU_NODES, Inventory
from ..shared.minimums import version_in
from ..shared.printable import line
from ..shared.registers import entries, mapping, mappings

_LONGEST = 512
"""Characters of what somebody else's program said, in a finding."""
_INSTALL_PYTHON = "apt-get install -y python3 || dnf install -y python3"


def controller(inventory: Inventory, looked: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what the controller lacks.

    ``looked`` has its ``python``, and ``packages`` and ``collections``, each with the range ``wanted`` and the
    ``version`` found, empty for none; and the ``wheels`` that were found where ``make image`` is said to have left the
    daemons' image.
    """
    packages = [entry for entry in mappings(looked.get("packages")) if _lacks(entry)]
    if packages:
        python = str(looked.get("python", "python3"))
        wanted = " ".join(shlex.quote(f"{entry['name']}{entry['wanted']}") for entry in packages)
        yield Finding(
            "blocked", "Python packages", f"{_named(packages)}, for {python}.", f"{python} -m pip install {wanted}"
        )
    collections = [entry for entry in mappings(looked.get("collections")) if _lacks(entry)]
    if collections:
        wanted = " ".join(shlex.quote(f"{entry['name']}:{entry['wanted']}") for entry in collections)
        remedy = f"ansible-galaxy collection install --upgrade {wanted}"
        yield Finding("blocked", "collections", f"{_named(collections)}.", remedy)
    yield from _image(inventory, entries(looked.get("wheels")))


def cluster(looked: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield that the API server did not answer.

    ``looked`` has the ``message`` of who asked, and the ``kubeconfig`` and ``context`` that were asked.
    """
    if looked.get("message"):
        which = f"--kubeconfig {line(looked.get('kubeconfig') or '~/.kube/config', _LONGEST)}"
        if looked.get("context"):
            which += f" --context {line(looked['context'], _LONGEST)}"
        yield Finding(
            "blocked",
            "API server",
            f"It did not answer: {_words({'msg': looked['message']})}",
            f"kubectl {which} get nodes must work on the controller: correct the file, or set another in"
            " gpu_plugins_kubeconfig",
        )


def host(name: str, variables: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield why a host could not be looked at, from the answers to ``ping`` and to a command that root ran."""
    reached, root = (mapping(variables.get(key)) for key in ("validate_reached", "validate_root"))
    address = shlex.quote(str(variables.get("ansible_host") or name))
    if reached.get("unreachable") or root.get("unreachable"):
        said = _words(reached if reached.get("unreachable") else root)
        yield Finding(
            "blocked", "host", f"It cannot be reached: {said}", f"ssh {address} must log in without a question"
        )
    elif reached and "ping" not in reached:
        said = _words(reached)
        remedy = f"ansible {shlex.quote(name)} -i INVENTORY --become -m ansible.builtin.raw -a '{_INSTALL_PYTHON}'"
        yield Finding("blocked", "host", f"Python does not run on it: {said}", remedy)
    elif root and root.get("rc") != 0:
        remedy = "add --ask-become-pass to the command, or let the user run sudo without a password"
        yield Finding("blocked", "host", f"The user cannot become root on it: {_words(root)}", remedy)


def node(name: str, variables: Mapping[str, Any], nodes: List[Any]) -> Iterator[Finding]:
    """Yield that a GPU host is no node of the cluster, which has ``nodes``."""
    wanted = variables.get("gpu_plugins_node_name") or name
    if wanted not in nodes:
        yield Finding(
            "blocked",
            "node",
            f"The cluster has no node '{wanted}'.",
            "kubeadm token create --print-join-command on a control plane prints the command that joins the host to"
            " the cluster; if the node has another name, set gpu_plugins_node_name",
        )


def _image(inventory: Inventory, wheels: List[Any]) -> Iterator[Finding]:
    known = [inventory.variables(name) for name in inventory.members(GPU_NODES)[:1]]
    for variables in known:
        assemble = variables.get("kube_accel_image_assemble")
        remedy = (
            "make image in a clone of the collection, and set kube_accel_image_assemble to the clone's .build; or set"
            " gpu_plugins_image to an image in a registry, as jobs of AWX need it"
        )
        if not assemble and not variables.get("gpu_plugins_image"):
            yield Finding("blocked", "image", "No variable names an image of the daemons.", remedy)
        elif isinstance(assemble, str) and assemble and not wheels:
            said = f"kube_accel_image_assemble is '{line(assemble, _LONGEST)}', where 'make image' left nothing."
            yield Finding("blocked", "image", said, remedy)


def _lacks(entry: Mapping[str, Any]) -> bool:
    least = re.match(r">=(.*)", str(entry.get("wanted", "")))
    found = str(entry.get("version") or "")
    return not found or (least is not None and () < version_in(found) < version_in(least[1]))


def _named(wanting: List[Mapping[str, Any]]) -> str:
    return ", ".join(
        f"{entry['name']} is {entry['version']}, but must be {entry['wanted']}"
        if entry.get("version")
        else f"{entry['name']} is not installed"
        for entry in wanting
    )


def _words(answer: Mapping[str, Any]) -> str:
    """Return what a task that failed said, on one line, as a sentence."""
    said = [str(answer.get(key) or "").strip() for key in ("module_stderr", "stderr", "module_stdout", "msg")]
    return line(" ".join(next(filter(None, said), "no reason given").split()).rstrip("."), _LONGEST) + "."
