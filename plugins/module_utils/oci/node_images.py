# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The images a node's container runtime has, through its own command line: ctr (containerd 1.6 and newer) or docker."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterable, List, Protocol, Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.host import trusted_path
from ansible_collections.accel.kubernetes.plugins.module_utils.oci import archive as image_archive

PIN = "io.cri-containerd.pinned"
HUB = re.compile(r"^docker\.io/(library/)?")


class Run(Protocol):
    """How commands are run."""

    def __call__(self, command: Sequence[str], data: Iterable[bytes] = ()) -> str:
        """Run a command with ``data`` as its input and return its output. Raises NodeImageError when it fails."""


class NodeImageError(Exception):
    """The runtime did not do what was asked. Says what, why and what to do."""


@dataclass(frozen=True)
class Stored:
    """A name the runtime has for an image."""

    name: str
    digest: str
    pinned: bool = False
    """Kubelet does not remove it when the disk fills up."""


class Runtime(Protocol):
    """What can be done with a runtime's images."""

    def images(self) -> List[Stored]:
        """Return all images of the runtime."""

    def load(self, archive: Iterable[bytes]) -> None:
        """Take the images of an archive, under the names it gives them."""

    def remove(self, names: Sequence[str]) -> None:
        """Remove names of images."""

    def pin(self, name: str, pinned: bool) -> None:
        """Say whether kubelet may remove an image."""


class Containerd:
    """containerd's images as kubelet sees them. ``command`` starts with ctr."""

    def __init__(self, run: Run, command: Sequence[str]) -> None:
        self._run, self._command = run, [*command, "--namespace", "k8s.io", "images"]

    def images(self) -> List[Stored]:
        """Return all images of the runtime."""
        return parse_ctr(self._run([*self._command, "ls"]))

    def load(self, archive: Iterable[bytes]) -> None:
        """Take the images of an archive. What makes a container unpacks them, with the snapshotter it is set to."""
        self._run([*self._command, "import", "--no-unpack", "-"], archive)

    def remove(self, names: Sequence[str]) -> None:
        """Forget names, and what kubelet's side calls the images that lose their last one."""
        before = self.images()
        left = {image.digest for image in before if image.name not in names and not image.name.startswith("sha256:")}
        orphans = [image.name for image in before if image.name.startswith("sha256:") and image.digest not in left]
        gone = {image.digest for image in before if image.name in names}
        digests = {image.name: image.digest for image in before}
        self._run([*self._command, "rm", *names, *(name for name in orphans if digests[name] in gone)])

    def pin(self, name: str, pinned: bool) -> None:
        """Say whether kubelet may remove an image; containerd before 1.7 does not report it."""
        self._run([*self._command, "label", name, f"{PIN}={'pinned' if pinned else ''}"])


class Docker:
    """Docker's images. ``command`` starts with docker. It knows no pins: none is missing, and none is taken."""

    def __init__(self, run: Run, command: Sequence[str]) -> None:
        self._run, self._command = run, list(command)

    def images(self) -> List[Stored]:
        """Return all images of the runtime."""
        form = "{{.Repository}}:{{.Tag}} {{.ID}}"
        return parse_docker(self._run([*self._command, "image", "ls", "--no-trunc", "--format", form]))

    def load(self, archive: Iterable[bytes]) -> None:
        """Take the images of an archive."""
        self._run([*self._command, "image", "load", "--quiet"], archive)

    def remove(self, names: Sequence[str]) -> None:
        """Forget names. Docker keeps an image that a container has."""
        self._run([*self._command, "image", "rm", "--force", "--no-prune", *names])

    def pin(self, name: str, pinned: bool) -> None:
        """Nothing: there are no pins."""


@dataclass(frozen=True)
class Plan:
    """What is missing, and what is more than wanted."""

    load: bool = False
    pin: bool = False
    unpin: Sequence[str] = ()
    remove: Sequence[str] = ()

    @property
    def empty(self) -> bool:
        """Return whether there is nothing to do."""
        return not (self.load or self.pin or self.unpin or self.remove)


def parse_ctr(text: str) -> List[Stored]:
    """Return the rows of ``ctr images ls``. Its sizes hold a blank, so only the outer columns are read."""
    found = []
    for line in text.splitlines():
        match = re.match(r"(\S+)\s+\S+\s+(sha256:[0-9a-f]{64})\s.*\s(\S+)\s*$", line)
        if match:
            labels = dict(label.partition("=")[::2] for label in match.group(3).split(","))
            found.append(Stored(match.group(1), match.group(2), labels.get(PIN) == "pinned"))
    return found


def parse_docker(text: str) -> List[Stored]:
    """Lines of a name and an ID, names as the registry protocol has them."""
    found = []
    for line in text.splitlines():
        name, _blank, digest = line.partition(" ")
        if digest and "<none>" not in name:
            found.append(Stored(_full(name), digest, True))
    return found


def _full(name: str) -> str:
    first, slash, _rest = name.partition("/")
    if slash and (re.search(r"[.:]", first) or first == "localhost"):
        return name
    return f"docker.io/{name}" if slash else f"docker.io/library/{name}"


def plan_present(images: Iterable[Stored], repository: str, tag: str, digests: Sequence[str]) -> Plan:
    """Return the steps after which one image of a repository is there and pinned, and no other of it is pinned."""
    name, found, others = f"{repository}:{tag}", None, []
    for image in images:
        if image.name == name and image.digest in digests:
            found = image
        elif image.name != name and image.name.startswith(f"{repository}:") and image.pinned:
            others.append(image.name)
    return Plan(load=found is None, pin=found is None or not found.pinned, unpin=others)


def plan_absent(images: Iterable[Stored], repository: str) -> Plan:
    """Return the steps after which no image of a repository is there."""
    return Plan(remove=[image.name for image in images if image.name.startswith(f"{repository}:")])


def look_into(archive: str, repository: str, digests: Sequence[str]) -> None:
    """Check an archive and load nothing. Raises ImageError, UntrustedError and OSError as ``carry_out`` does."""
    with trusted_path.regular_file(archive) as file:
        image_archive.check(file, archive, repository, digests)


def carry_out(plan: Plan, runtime: Runtime, archive: str, repository: str, tag: str, digests: Sequence[str]) -> None:
    """Do what the plan says. Of an archive, the runtime sees what was checked and nothing else.

    Raises ImageError where the archive holds anything but the image, UntrustedError where another user could have
    written it, and NodeImageError where the runtime has not the image afterwards.
    """
    name = f"{repository}:{tag}"
    if plan.load:
        with trusted_path.regular_file(archive) as file:
            image = image_archive.check(file, archive, repository, digests)
            runtime.load(image_archive.rewritten(file, archive, image, name))
        found = [image.digest for image in runtime.images() if image.name == name]
        if not set(found) & set(digests):
            raise NodeImageError(
                f"after the import of {archive} the container runtime has {', '.join(found) or 'nothing'} as {name}, "
                f"and {' or '.join(digests)} is expected; see the log of the container runtime"
            )
    if plan.pin:
        runtime.pin(name, True)
    for other in plan.unpin:
        runtime.pin(other, False)
    if plan.remove:
        runtime.remove(plan.remove)
