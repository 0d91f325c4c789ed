# SPDX-License-Identifier: Apache-2.0
"""The commands of a simulated host. Run by the scripts in its ``usr/bin``, which name the host in SIMHOST_ROOT."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

Table = dict[str, Any]

_WANTS = "etc/systemd/system/multi-user.target.wants"
_SERVICE_DIRECTORIES = ("etc/systemd/system", "usr/lib/systemd/system")
_VALUED = ("kernel-module-type", "kernel-name", "kernel-source-path", "concurrency-level", "tmpdir", "log-file-name",
           "ui", "module-signing-secret-key", "module-signing-public-key", "module-signing-hash",
           "module-signing-script")  # fmt: skip
_PLAIN = ("silent", "dkms", "no-dkms", "uninstall", "check", "no-questions", "accept-license", "skip-module-load",
          "no-kernel-modules", "no-drm", "no-peermem", "install-libglvnd", "no-install-libglvnd", "no-systemd",
          "rebuild-initramfs", "no-rebuild-initramfs", "allow-installation-with-running-driver", "no-nouveau-check",
          "no-disable-nouveau", "no-cc-version-check", "print-recommended-kernel-module-type")  # fmt: skip
_CUDA = {470: 11040, 525: 12000, 535: 12020, 550: 12040, 570: 12080, 580: 13000, 590: 13010}
_DEFAULT = """version = {version}

[plugins]
  [plugins."{key}"]
    enable_selinux = false
    [plugins."{key}".containerd]
      default_runtime_name = "runc"
      [plugins."{key}".containerd.runtimes.runc]
        runtime_type = "io.containerd.runc.v2"
        [plugins."{key}".containerd.runtimes.runc.options]
          SystemdCgroup = true
"""
CONTAINERD_VERSION = "var/lib/sim-systemd/containerd.version"
RUNNING_CONFIG = "var/lib/sim-systemd/containerd.toml"
"""What containerd read when it was last started."""
MOUNTS = "var/lib/sim-systemd/mounts.json"
MODULE = "var/lib/sim-systemd/nvidia.module"
"""What ``modinfo`` says of the installed kernel module."""


def _fail(message: str, code: int = 1) -> NoReturn:
    print(message, file=sys.stderr)
    raise SystemExit(code)


def _host() -> Path:
    root = os.environ.get("SIMHOST_ROOT")
    if not root:
        _fail("SIMHOST_ROOT is not set: run this through the python3 of a simulated host")
    return Path(root)


# systemd


class _Unit:
    """A unit and its state, kept as a file."""

    def __init__(self, host: Path, name: str) -> None:
        self.id = name if name.endswith(".mount") else f"{name.removesuffix('.service')}.service"
        self.name = name.removesuffix(".service")
        self.host = host
        self._file = host / "var/lib/sim-systemd" / f"{self.name}.json"
        template, self._at, self._instance = self.name.partition("@")
        file = f"{template}{self._at}.service" if self._at else self.id
        places = [host / directory / file for directory in _SERVICE_DIRECTORIES]
        self.fragment = next((place for place in places if place.exists()), None)
        self.state: Table = {"active": "inactive", "enabled": False, "starts": 0}
        if self._file.exists():
            self.state = json.loads(self._file.read_text())

    def save(self) -> None:
        self._file.write_text(json.dumps(self.state))
        if self._at:
            wants = self.host / _WANTS / f"{self.name}.service"
            wants.unlink(missing_ok=True)
            if self.state["enabled"]:
                wants.parent.mkdir(parents=True, exist_ok=True)
                wants.symlink_to(str(self.fragment))
            elif wants.parent.is_dir() and not any(wants.parent.iterdir()):
                # systemd removes a directory with its last link.
                wants.parent.rmdir()

    def run(self) -> str:
        """Start what an instance of a template unit names, or mount; why that failed. Others run nothing."""
        if self.id.endswith(".mount"):
            self._mount()
        if not self._at:
            return ""
        for line in self._lines("ExecStartPre"):
            if self._call(line):
                return f"{line} failed"
        (main,) = self._lines("ExecStart")
        process = subprocess.Popen(
            shlex.split(main),
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.state["pid"] = process.pid
        return next((f"{line} failed" for line in self._lines("ExecStartPost") if self._call(line)), "")

    @property
    def reloads(self) -> bool:
        """Whether it has a command for that; others are restarted."""
        return bool(self._lines("ExecReload"))

    def reload(self) -> str:
        """Run the command for that; why it failed."""
        return next((f"{line} failed" for line in self._lines("ExecReload") if self._call(line)), "")

    def end(self) -> None:
        """End what ``run`` started."""
        if self.id.endswith(".mount"):
            self._unmount()
        if "pid" not in self.state:
            return
        for line in self._lines("ExecStop"):
            self._call(line)
        with suppress(ProcessLookupError):
            os.killpg(self.state.pop("pid"), signal.SIGKILL)
        for line in self._lines("ExecStopPost"):
            self._call(line)

    def _mount(self) -> None:
        (where,), (what,), (options,) = map(self._lines, ("Where", "What", "Options"))
        Path(where).mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._is_real:
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, what, where], check=True)
            return
        size, inodes = (next(word for word in options.split(",") if word.startswith(key)) for key in ("size=", "nr_"))
        kib = int(size.removeprefix("size=").removesuffix("m")) * 1024
        self._listed().write_text(f"1 0 0:99 / {where} rw - tmpfs {what} rw,size={kib}k,{inodes},mode=700\n")

    def _unmount(self) -> None:
        if not self._is_real:
            self._listed().write_text("")
        for where in self._lines("Where"):
            if self._is_real and os.path.ismount(where):
                subprocess.run(["umount", "--lazy", where], check=True)

    @property
    def _is_real(self) -> bool:
        """Whether the host is a machine of its own, whose kernel mounts."""
        return self.host == Path("/")

    def _listed(self) -> Path:
        """What stands for the kernel's list of mounts."""
        return self.host / "proc/self/mountinfo"

    def _lines(self, key: str) -> list[str]:
        lines = self.fragment.read_text().splitlines() if self.fragment else []
        found = [line.partition("=")[2] for line in lines if line.startswith(f"{key}=")]
        return [line.replace("%i", self._instance).replace("%%", "%") for line in found]

    def _environment(self) -> dict[str, str]:
        path = {"PATH": f"{self.host}/usr/bin:{os.environ['PATH']}"}
        return os.environ | path | dict(line.split("=", 1) for line in self._lines("Environment"))

    def _call(self, line: str) -> int:
        words = shlex.split(line.lstrip("-+"))
        return subprocess.run(words, env=self._environment(), stdin=subprocess.DEVNULL).returncode


def systemctl(host: Path, arguments: list[str]) -> int:
    options = [word for word in arguments if word.startswith("-")]
    action, *names = [word for word in arguments if not word.startswith("-")] or [""]
    if action in ("daemon-reload", "reset-failed") or "--version" in options:
        print("systemd 252 (simulated)" if options else "", end="")
        return 0
    code = 0
    for name in names:
        if name.endswith(".timer"):
            end_timer(host / f"var/lib/sim-systemd/{name}")
            continue
        code = max(code, _unit_action(host, action, _Unit(host, name), options))
    return code


def _unit_action(host: Path, action: str, unit: _Unit, options: list[str]) -> int:
    quiet = "-q" in options or "--quiet" in options
    if action == "show":
        shown = {"Id": unit.id, "LoadState": "loaded" if unit.fragment else "not-found"}
        shown |= {"ActiveState": unit.state["active"], "NRestarts": "0", "FragmentPath": str(unit.fragment or "")}
        shown |= {"SubState": {"active": "running", "failed": "failed"}.get(unit.state["active"], "dead")}
        shown |= {"UnitFileState": "enabled" if unit.state["enabled"] else "disabled"}
        wanted = [word.split("=", 1)[1] for word in options if word.startswith(("--property=", "-p="))]
        for key, value in shown.items():
            if not wanted or key in ",".join(wanted).split(","):
                print(value if "--value" in options else f"{key}={value}")
        return 0
    if action == "is-active":
        print("" if quiet else unit.state["active"] + "\n", end="")
        return 0 if unit.state["active"] == "active" else 3
    if not unit.fragment:
        _fail(f"Unit {unit.id} could not be found.", 5)
    if action == "is-enabled":
        print("" if quiet else ("enabled" if unit.state["enabled"] else "disabled") + "\n", end="")
        return 0 if unit.state["enabled"] else 1
    if action in ("enable", "disable"):
        unit.state["enabled"] = action == "enable"
        if "--now" in options:
            action = "start" if action == "enable" else "stop"
    failed = ""
    if action == "reload" and unit.reloads:
        failed = unit.reload()
    elif action in ("start", "restart", "reload") and (action != "start" or unit.state["active"] != "active"):
        unit.end()
        failed = _load_containerd(host) if unit.name == "containerd" else unit.run()
        unit.state["active"], unit.state["starts"] = "failed" if failed else "active", unit.state["starts"] + 1
    elif action == "stop":
        unit.end()
        unit.state["active"] = "inactive"
    elif action not in ("start", "enable", "disable"):
        _fail(f"systemctl {action} is not simulated")
    unit.save()
    if failed:
        _fail(f"{failed}\nJob for {unit.name}.service failed because the control process exited with error code.")
    return 0


def systemd_run(host: Path, arguments: list[str]) -> int:
    """A transient timer: a process that sleeps, its id in a file."""
    options = dict(word[2:].partition("=")[::2] for word in arguments if word.startswith("--"))
    command = [word for word in arguments if not word.startswith("--")]
    if not {"unit", "on-active"} <= options.keys() or not command:
        _fail("systemd-run without --unit, --on-active and a command is not simulated")
    file = host / f"var/lib/sim-systemd/{options['unit']}.timer"
    script = 'sleep "$1"; rm -f "$2"; shift 2; exec "$@"'
    process = subprocess.Popen(
        ["sh", "-c", script, "timer", options["on-active"], file, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    file.write_text(str(process.pid))
    return 0


def mounts(host: Path, arguments: list[str]) -> int:
    """``mount``, ``mountpoint`` and ``umount``: what is mounted where is a list in a file."""
    name, *words, target = arguments
    file = host / MOUNTS
    known = json.loads(file.read_text()) if file.exists() else {}
    if name == "mountpoint":
        return 0 if target in known else 32
    if name == "umount" and known.pop(target, None) is None:
        _fail(f"umount: {target}: not mounted.", 32)
    if name == "mount":
        if not Path(target).is_dir():
            _fail(f"mount: {target}: mount point does not exist.", 32)
        known[target] = words[words.index("-o") + 1]
    file.write_text(json.dumps(known))
    return 0


def end_services(host: Path) -> None:
    """End what units of a host have started."""
    for file in (host / "var/lib/sim-systemd").glob("*@*.json"):
        unit = _Unit(host, file.stem)
        unit.end()
        unit.save()


def end_timer(file: Path) -> None:
    """End a transient timer, if it still runs."""
    if file.exists():
        with suppress(ProcessLookupError):
            os.killpg(int(file.read_text()), signal.SIGKILL)
        file.unlink()


# containerd


def _read_config(file: Path, version: tuple[int, int]) -> Table:
    """A containerd configuration. Raises ValueError."""
    config = tomllib.loads(file.read_text())
    most = 2 if version < (2, 0) else 3 if version < (2, 3) else 4
    if config.get("version", 1) > most:
        raise ValueError(
            f"expected containerd config version equal to or less than `{most}`, got `{config['version']}`"
        )
    if config.get("imports"):
        raise ValueError("imports are not simulated")
    return config


def _load_containerd(host: Path) -> str:
    """What containerd does at start with its configuration: keep it for the node agent, or say why not."""
    import tomlkit

    file = host / "etc/containerd/config.toml"
    try:
        config = _read_config(file, _containerd_version(host))
    except (OSError, ValueError) as error:
        return f"containerd: failed to load TOML: {file}: {error}"
    (host / RUNNING_CONFIG).write_text(tomlkit.dumps(config))
    return ""


def _containerd_version(host: Path) -> tuple[int, int]:
    major, minor = (host / CONTAINERD_VERSION).read_text().split(".")[:2]
    return int(major), int(minor)


def default_config(version: tuple[int, int]) -> str:
    """What ``containerd config default`` prints, cut to what matters here."""
    key = "io.containerd.grpc.v1.cri" if version < (2, 0) else "io.containerd.cri.v1.runtime"
    return _DEFAULT.format(key=key, version=2 if version < (2, 0) else 3)


def containerd(host: Path, words: list[str]) -> int:
    import tomlkit

    file = host / "etc/containerd/config.toml"
    if words[:1] in (["--config"], ["-c"]):
        file, words = Path(words[1]), words[2:]
    if words in (["--version"], ["-v"]):
        print(f"containerd github.com/containerd/containerd v{(host / CONTAINERD_VERSION).read_text()} simulated")
    elif words == ["config", "default"]:
        print(default_config(_containerd_version(host)), end="")
    elif words == ["config", "dump"]:
        try:
            print(tomlkit.dumps(_read_config(file, _containerd_version(host))), end="")
        except (OSError, ValueError) as error:
            _fail(f"containerd: failed to load TOML: {file}: {error}")
    else:
        _fail(f"containerd {' '.join(words)} is not simulated")
    return 0


def ctr(host: Path, arguments: list[str]) -> int:
    if arguments != ["version"]:
        _fail(f"ctr {' '.join(arguments)} is not simulated")
    if _Unit(host, "containerd").state["active"] != "active":
        _fail('ctr: failed to dial "/run/containerd/containerd.sock": connect: connection refused')
    return 0


# NVIDIA


def toolkit(_: Path, arguments: list[str]) -> int:
    name, *words = arguments
    if words != ["--version"]:
        _fail(f"{name} {' '.join(words)} is not simulated")
    print(f"{name} version 1.18.0 (simulated)")
    return 0


def installer(host: Path, arguments: list[str]) -> int:
    """NVIDIA-Linux-<arch>-<version>.run and, with --uninstall, nvidia-uninstall."""
    from sim import driver, mps
    from sim.nvml import sysfs, topology

    version, *words = arguments
    given: dict[str, str] = {}
    for word in words:
        long = {"-s": "--silent", "-M": "--kernel-module-type"}.get(word, word)
        name, equals, value = long.removeprefix("--").partition("=")
        if not long.startswith("--") or (name not in _VALUED if equals else name not in _PLAIN):
            _fail(f"ERROR: unrecognized option: '{word}'")
        given[name] = value
    if given.get("kernel-module-type", "open") not in ("open", "proprietary"):
        _fail(f"ERROR: Invalid kernel module type: '{given['kernel-module-type']}'")
    if "check" in given:
        print("Verifying archive integrity... All good.")
        return 0
    if "print-recommended-kernel-module-type" in given:
        print("open")
        return 0
    file, names = host / "gpusim.conf", ("nvidia-smi", "nvidia-modprobe", "nvidia-uninstall")
    control = host / "usr/bin/nvidia-cuda-mps-control"
    if not file.exists():
        _fail("ERROR: You do not appear to have an NVIDIA GPU supported by this driver installed in this system.")
    if not {"silent", "no-questions"} & given.keys():
        _fail("ERROR: the installer asks questions and there is nobody to answer: use --silent")
    if "uninstall" in given:
        sysfs.unload_driver(topology.Topology.load(file), host)
        for installed in (
            control,
            host / MODULE,
            *driver.installed(host / "usr/lib"),
            *(host / "usr/bin" / name for name in names),
        ):
            installed.unlink(missing_ok=True)
        return 0
    if (host / "sys/module/nvidia").exists() and "allow-installation-with-running-driver" not in given:
        _fail("ERROR: An NVIDIA kernel module 'nvidia' appears to be already loaded in your kernel.")
    driver.install(host / "usr/lib", version)
    mps.install(control.parent)
    licence = "Dual MIT/GPL" if given.get("kernel-module-type", "open") == "open" else "NVIDIA"
    (host / MODULE).write_text(f"version {version}\nlicense {licence}\n")
    exports = f"export SIMHOST_ROOT='{host}' PYTHONPATH='{Path(__file__).parents[2]}' GPUSIM_FILE='{file}'"
    # A container has libraries of its own, and says where; empty is where its loader looks.
    exports += f' LD_LIBRARY_PATH="${{GPUSIM_LIBRARIES-{host}/usr/lib}}"'
    uninstall = f"exec '{sys.executable}' -P '{__file__}' installer {version} --silent --uninstall"
    # The device nodes that nvidia-modprobe makes are there already.
    calls = (f"exec '{sys.executable}' -m sim.nvml.nvidia_smi", "exit 0 #", uninstall)
    for name, call in zip(names, calls, strict=True):
        command = host / "usr/bin" / name
        command.write_text(f'#!/bin/sh\n{exports}\n{call} "$@"\n')
        command.chmod(0o755)
    # Last: a container that waits for the driver starts as soon as it is loaded.
    if not (host / "sys/module/nvidia").exists():
        modprobe(host, ["nvidia"])
    return 0


def modprobe(host: Path, arguments: list[str]) -> int:
    """Loads the installed driver, or with -r unloads the loaded one."""
    from sim.nvml import sysfs, topology

    file = host / "gpusim.conf"
    if arguments == ["-r", "nvidia"]:
        sysfs.unload_driver(topology.Topology.load(file), host)
        with topology.edit(file) as edited:  # MIG devices do not outlive it
            edited.migs.clear()
            edited.gpu_instances.clear()
        return 0
    if arguments != ["nvidia"]:
        _fail(f"modprobe {' '.join(arguments)} is not simulated")
    version = (host / MODULE).read_text().split()[1]
    with topology.edit(file) as edited:
        edited.system.driver = version
        edited.system.cuda = _CUDA.get(int(version.split(".")[0]), edited.system.cuda)
    sysfs.load_driver(topology.Topology.load(file), host)
    return 0


if __name__ == "__main__":
    commands = {
        "systemctl": systemctl,
        "systemd-run": systemd_run,
        "containerd": containerd,
        "ctr": ctr,
        "toolkit": toolkit,
        "installer": installer,
        "modprobe": modprobe,
        "mounts": mounts,
    }
    raise SystemExit(commands[sys.argv[1]](_host(), sys.argv[2:]))
