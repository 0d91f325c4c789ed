# SPDX-License-Identifier: Apache-2.0
"""What only a GPU can tell. Each check is a process of its own; what cannot be measured is a row that says why."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from gpu.driver import OUT_OF_MEMORY, PTX
from gpu.snippets import SNIPPETS
from kube_accel.enforce import policy as files

TESTS = Path(__file__).parents[1]
NATIVE = TESTS.parent / "roles/gpu_plugins/files/kube_accel/native"
LIBRARY = "libcuda.so.1"
DIRECTORIES = (
    *("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"),
    *("/usr/local/nvidia/lib64", "/usr/local/cuda/compat"),
)
GIB = 1 << 30
QUOTAS = (10, 30, 50, 90)
TOTAL_SECONDS = 440.0


@dataclass(frozen=True, slots=True)
class Row:
    """``good``: as wanted; None: a figure without a target, or not measured."""

    check: str
    value: str
    good: bool | None = None


class NotMeasuredError(Exception):
    """Why a check could not be made."""


def find_driver() -> Path:
    """The directory of the real library: KUBE_ACCEL_GPU_DRIVER, else where distributions and images put it."""
    wanted = os.environ.get("KUBE_ACCEL_GPU_DRIVER")
    for directory in [wanted] if wanted else [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *DIRECTORIES]:
        if directory and Path(directory, LIBRARY).exists():
            return Path(directory)
    sys.exit(f"No {LIBRARY} in {wanted or ', '.join(DIRECTORIES)}. Install the driver, or set KUBE_ACCEL_GPU_DRIVER.")


class Rig:
    """The interposer built, and containers of one GPU as files."""

    def __init__(self, root: Path, seconds: float) -> None:
        self.root, self.seconds, self.driver = root, seconds, find_driver()
        self.begin = time.monotonic()
        self.containers = 0
        subprocess.run([NATIVE / "build.sh", root / "shim"], check=True)
        self.uuid = ""
        self.rounds_each_ms = 0.0

    def environment(self, cores: int = 0, memory: int = 0) -> dict[str, str]:
        """Returns the variables of a new container with these limits."""
        self.containers += 1
        home = self.root / f"container{self.containers}"
        home.mkdir()
        limit = files.Limit(self.uuid, memory, cores)
        (home / "policy").write_bytes(files.pack_policy(files.Policy((limit,), (), 0), 2))
        (home / "state").write_bytes(files.fresh_state(1).ljust(files.state_size(files.NEWEST), b"\0"))
        return {
            **os.environ,
            "LD_LIBRARY_PATH": f"{self.root / 'shim'}:{os.environ.get('LD_LIBRARY_PATH', '')}",
            "KUBE_ACCEL_DRIVER": str(self.driver),
            "KUBE_ACCEL_POLICY": str(home / "policy"),
            "KUBE_ACCEL_STATE": str(home / "state"),
        }

    def direct(self) -> dict[str, str]:
        """The variables of a program without interposer."""
        return {**os.environ, "LD_LIBRARY_PATH": f"{self.driver}:{os.environ.get('LD_LIBRARY_PATH', '')}"}

    def python(self, environment: dict[str, str], code: str) -> str:
        """What the lines print; ``d`` is the driver, opened."""
        prologue = "from ctypes import *\nfrom gpu.driver import *\nd = Driver()\nd.open()\nGIB = 1 << 30\n"
        return run([sys.executable, "-c", prologue + code], environment, 60)

    def workers(self, *environments: dict[str, str], milliseconds: float = 2, times: int = 1) -> list[float]:
        """The shares of GPU time of workers that run at once."""
        command = [sys.executable, "-m", "gpu.worker"]
        command += [str(number) for number in (self.seconds * times, milliseconds, self.rounds_each_ms)]
        started = [
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
            for environment in environments
        ]
        answers = [process.communicate(timeout=120)[0] for process in started]
        if any(process.returncode for process in started):
            raise NotMeasuredError("a worker failed, see above")
        return [float(answer) for answer in answers]


def run(command: Sequence[str | Path], environment: dict[str, str], seconds: float) -> str:
    """A program's output; NotMeasuredError with the end of its stderr when it fails."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds)
    if done.returncode != 0:
        raise NotMeasuredError(" ".join(done.stderr.strip().splitlines()[-1:]) or f"ended with {done.returncode}")
    return done.stdout.strip()


def machine(rig: Rig) -> Iterable[Row]:
    code = "print(d.uuid().hex(), d.value(c_int, 'cuDriverGetVersion'), d.mem_info()[1])"
    uuid, version, total = rig.python(rig.direct(), code).split()
    rig.uuid = f"GPU-{uuid[:8]}-{uuid[8:12]}-{uuid[12:16]}-{uuid[16:20]}-{uuid[20:]}"
    yield Row("driver's CUDA version", version)
    yield Row("GPU memory", f"{int(total) / GIB:.1f} GiB")


def pointers(rig: Rig) -> Iterable[Row]:
    """Whether each answer of cuGetProcAddress is the address of an export, which the interposer goes by."""
    library = ctypes.CDLL(str(rig.driver / LIBRARY))
    known = {
        ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        for name in (line.split()[0] for line in (NATIVE / "names/cuda.txt").read_text().splitlines() if line[0] != "#")
        if hasattr(library, name)
    }
    asked = [line.split() for line in (TESTS / "sim/cuda/requests.txt").read_text().splitlines() if line[0] != "#"]
    same = others = 0
    for name, version, flags, export in asked:
        found, status = ctypes.c_void_p(), ctypes.c_int()
        where = (ctypes.byref(found), int(version), ctypes.c_uint64(int(flags)), ctypes.byref(status))
        library.cuGetProcAddress_v2(name.encode(), *where)
        expected = getattr(library, export, None)
        same += expected is not None and found.value == ctypes.cast(expected, ctypes.c_void_p).value
        others += found.value not in known
    yield Row("cuGetProcAddress answers the export expected", f"{same} of {len(asked)}", same == len(asked))
    yield Row("cuGetProcAddress answers what is no export", str(others), others == 0)


def memory(rig: Rig) -> Iterable[Row]:
    environment = rig.environment(memory=4 * GIB)
    code = """
def ask(name, *arguments):
    try: d.value(c_uint64, name, *arguments)
    except CudaError as error: return error.code
    return 0
print(d.mem_info()[1] >> 30, ask('cuMemAlloc_v2', c_size_t(3 * GIB)), ask('cuMemAlloc_v2', c_size_t(2 * GIB)),
      ask('cuMemAllocAsync', c_size_t(2 * GIB), None),
      ask('cuMemCreate', c_size_t(2 * GIB), (c_int * 8)(1, 0, 1, 0), c_uint64(0)))
"""
    total, below, *beyond = rig.python(environment, code).split()
    yield Row("with 4 GiB: total shown", f"{total} GiB", total == "4")
    yield Row("with 4 GiB: 3 GiB by cuMemAlloc", f"CUDA error {below}", below == "0")
    for name, code in zip(("cuMemAlloc", "cuMemAllocAsync", "cuMemCreate"), beyond, strict=True):
        yield Row(f"with 4 GiB: 2 GiB more by {name}", f"CUDA error {code}", code == str(OUT_OF_MEMORY))


def frameworks(rig: Rig) -> Iterable[Row]:
    for snippet in SNIPPETS:
        asks = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({snippet.module!r}) is None)"
        if subprocess.run([sys.executable, "-c", asks]).returncode != 0:
            yield Row(snippet.name, f"not measured: {snippet.module} is not installed")
            continue
        environment = {**rig.environment(memory=4 * GIB), **snippet.environment}
        try:
            said = run([sys.executable, "-c", snippet.code], environment, 120)
            yield Row(snippet.name, said or "not limited", said == "limited")
        except (NotMeasuredError, subprocess.TimeoutExpired) as error:
            yield Row(snippet.name, f"failed: {error}", False)


def account(rig: Rig) -> Iterable[Row]:
    """What NVML sees of a process beyond what it was charged: a context and what comes with it."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:
        raise NotMeasuredError(f"nvidia-ml-py: {error}") from error
    environment = rig.environment(memory=4 * GIB)
    code = "d.alloc(GIB)\nimport os\nprint(os.getpid(), flush=True)\ninput()"
    prologue = "from gpu.driver import *\nd = Driver()\nd.open()\nGIB = 1 << 30\n"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    holder = subprocess.Popen([sys.executable, "-c", prologue + code], env=environment, text=True, **pipes)
    try:
        assert holder.stdout is not None
        pid = int(holder.stdout.readline())
        gpu = pynvml.nvmlDeviceGetHandleByUUID(rig.uuid)
        seen = {process.pid: process.usedGpuMemory for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)}
        if seen.get(pid) is None:
            raise NotMeasuredError("NVML does not list the process by its pid here")
        state = Path(environment["KUBE_ACCEL_STATE"]).read_bytes()
        charged = files.read_state(state, files.MAX_DEVICES, files.NEWEST).devices[0].used_bytes
        yield Row("charged for a process that holds 1 GiB", f"{charged / 2**20:.0f} MiB", charged == GIB)
        yield Row("NVML sees of it beyond that", f"{(seen[pid] - charged) / 2**20:.0f} MiB")
    finally:
        holder.communicate("\n", timeout=30)


def cost(rig: Rig) -> Iterable[Row]:
    program = rig.root / "cost"
    subprocess.run(["gcc", "-std=gnu11", "-O2", "-o", program, TESTS / "native/cost.c", "-ldl"], check=True)
    (rig.root / "spin.ptx").write_bytes(PTX)
    rounds = str(max(40, int(rig.seconds * 100)))
    for what, call, cores, most in (
        ("a call that is not wrapped", "query", 0, 10),
        ("a launch without gate", "launch", 0, 20),
        ("a gated launch", "launch", 99, 150),
        ("an allocation of 2 MiB", "alloc", 0, 1000),
    ):
        command = [program, str(rig.driver / LIBRARY), call, rounds, str(rig.root / "spin.ptx")]
        answer = json.loads(run(command, rig.environment(cores=cores), 60))
        quartiles = f"quartiles {answer['low_ns']:.0f} to {answer['high_ns']:.0f}"
        value = f"{answer['mean_ns']:.0f} ns added ({quartiles}; direct {answer['direct_ns']:.0f} ns)"
        yield Row(what, value, answer["mean_ns"] < most)


class Feedback:
    """What the daemon would tell two containers: who used the GPU how much, by NVML, each second."""

    def __init__(self, rig: Rig, environments: Sequence[dict[str, str]], shares: Sequence[int]) -> None:
        self.rig, self.environments, self.shares = rig, environments, shares
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._tell)
        self.told = 0

    def __enter__(self) -> Feedback:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()

    def _tell(self) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            gpu = pynvml.nvmlDeviceGetHandleByUUID(self.rig.uuid)
        except Exception:
            return
        generation = 2
        while not self.over.wait(1):
            try:
                since = time.time_ns() // 1000 - 1_000_000
                used = {s.pid: s.smUtil for s in pynvml.nvmlDeviceGetProcessUtilization(gpu, since)}
            except pynvml.NVMLError:
                continue
            pids = [self._pid(environment) for environment in self.environments]
            busy = [10 * used.get(pid, 0) for pid in pids]
            generation += 2
            for environment, share, mine in zip(self.environments, self.shares, busy, strict=True):
                told = files.Feedback(None, mine, min(1000, sum(busy) - mine))
                limit = files.Limit(self.rig.uuid, 0, share)
                wanted = files.Policy((limit,), (told,), time.monotonic_ns())
                with Path(environment["KUBE_ACCEL_POLICY"]).open("r+b") as file:
                    file.write(files.pack_policy(wanted, generation))
            self.told += 1

    def _pid(self, environment: dict[str, str]) -> int:
        for entry in Path("/proc").iterdir():
            try:
                if (
                    entry.name.isdecimal()
                    and environment["KUBE_ACCEL_STATE"].encode() in (entry / "environ").read_bytes()
                ):
                    return int(entry.name)
            except OSError:
                continue
        return 0


def quota(rig: Rig) -> Iterable[Row]:
    calibrate = "from gpu.worker import calibrate\nprint(calibrate(d))"
    rig.rounds_each_ms = float(rig.python(rig.direct(), calibrate))
    [alone] = rig.workers(rig.environment(cores=100))
    yield Row("GPU time without gate, kernels of 2 ms", f"{alone:.1%}")
    for percent in QUOTAS:
        [share] = rig.workers(rig.environment(cores=percent))
        yield Row(f"share at {percent} %", f"{share:.1%}", abs(share - percent / 100) <= 0.05)
    [share] = rig.workers(rig.environment(cores=30), milliseconds=100, times=2)
    yield Row("share at 30 %, kernels of 100 ms", f"{share:.1%}", abs(share - 0.3) <= 0.05)
    four = rig.workers(*[rig.environment(cores=40)] * 4)
    yield Row("four processes in 40 %", f"{sum(four):.1%}", abs(sum(four) - 0.4) <= 0.05)
    tenants = [rig.environment(cores=30), rig.environment(cores=70)]
    with Feedback(rig, tenants, (30, 70)) as feedback:
        first, second = rig.workers(*tenants, times=2)
    how = f"told by NVML {feedback.told} times" if feedback.told else "without feedback"
    good = abs(first / second / (30 / 70) - 1) <= 0.1
    yield Row("two tenants, 30 and 70 %", f"{first:.1%} and {second:.1%}, {how}", good)


def node(rig: Rig) -> Iterable[Row]:
    """The whole plugin, and what it says of a program in a share."""
    try:
        from gpu import node as nodes
    except ImportError as error:
        raise NotMeasuredError(
            f"{error}; install the versions of kube_accel/pyproject.toml, grpcio and trustme"
        ) from error
    code = "from gpu.driver import Driver\nd = Driver()\nd.open()\nd.alloc(1 << 30)\nkernel = d.spinner()\n"
    code += f"rounds = {int(2 * rig.rounds_each_ms)}\nwhile True:\n"
    code += "    for _ in range(8): d.launch(kernel, 2000, rounds)\n    d.synchronize()"
    root = Path("/") if rig.driver.is_relative_to("/usr/lib") else rig.driver.parent
    home = rig.root / "node"
    home.mkdir()
    with ExitStack() as stack:
        started = nodes.Node(home, stack, root, rig.driver, rig.root / "shim", rig.uuid)
        looks = nodes.look(started, [sys.executable, "-c", code], (30, 70), 4 * GIB, rig.seconds)
        seen = next(looks)
        yield Row("plugin: devices offered", ", ".join(f"{count} {name}" for name, count in seen.offered.items()))
        yield Row("plugin: devices in a container", ", ".join(seen.devices) or "none")
        yield Row("plugin: validate", "; ".join(seen.findings) or "all well", not seen.findings)
        try:
            seen = next(looks)
        except nodes.NotAttributedError as error:
            raise NotMeasuredError(f"use of a pod: {error}") from error
    yield Row("plugin: memory of a pod that holds 1 GiB", f"{seen.memory / 2**20:.0f} MiB", seen.memory >= GIB)
    yield Row("plugin: GPU time of a pod with 30 %", f"{seen.alone:.1%}", abs(seen.alone - 0.3) <= 0.05)
    first, second = seen.beside
    good = second > 0 and abs(first / second / (30 / 70) - 1) <= 0.1
    yield Row("plugin: two pods, 30 and 70 %", f"{first:.1%} and {second:.1%}", good)


def mps(rig: Rig) -> Iterable[Row]:
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        raise NotMeasuredError("nvidia-cuda-mps-control is not installed")
    sms = "m = c_int()\nd.ok('cuDeviceGetAttribute', byref(m), 16, 0)\nprint(m.value, d.mem_info()[0])"
    whole, free = (int(word) for word in rig.python(rig.direct(), sms).split())
    home = rig.root / "mps"
    home.mkdir()
    environment = {**rig.direct(), "CUDA_MPS_PIPE_DIRECTORY": str(home), "CUDA_MPS_LOG_DIRECTORY": str(home)}
    run([control, "-d"], environment, 30)
    try:
        orders = "set_default_active_thread_percentage 50\nset_default_device_pinned_mem_limit 0 2G\n"
        subprocess.run([control], env=environment, input=orders, text=True, check=True, capture_output=True, timeout=30)
        half, left = (int(word) for word in rig.python(environment, sms).split())
    finally:
        subprocess.run([control], env=environment, input="quit\n", text=True, capture_output=True, timeout=60)
    yield Row("MPS at 50 %: multiprocessors", f"{half} of {whole}", abs(half / whole - 0.5) <= 0.05)
    yield Row("MPS with 2 GiB: free", f"{left / GIB:.2f} of {free / GIB:.2f} GiB", left <= 2 * GIB)


def nvml(rig: Rig) -> Iterable[Row]:
    try:
        import pynvml

        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByUUID(rig.uuid)
    except Exception as error:
        raise NotMeasuredError(f"nvidia-ml-py: {error}") from error
    calls: dict[str, Callable[[], object]] = {
        "driver": pynvml.nvmlSystemGetDriverVersion,
        "name": lambda: pynvml.nvmlDeviceGetName(gpu),
        "reserved memory": lambda: pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2).reserved,
        "MIG mode": lambda: pynvml.nvmlDeviceGetMigMode(gpu),
        "compute mode": lambda: pynvml.nvmlDeviceGetComputeMode(gpu),
        "process utilization": lambda: len(pynvml.nvmlDeviceGetProcessUtilization(gpu, 0)),
        "GPM": lambda: pynvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice,
    }
    for name, call in calls.items():
        try:
            yield Row(f"NVML: {name}", str(call()))
        except pynvml.NVMLError as error:
            yield Row(f"NVML: {name}", f"not measured: {error}")


CHECKS = (machine, pointers, memory, account, nvml, cost, quota, node, mps, frameworks)


def measure(rig: Rig) -> Iterable[Row]:
    """Every check; one that fails says so and lets the next begin."""
    for check in CHECKS:
        if time.monotonic() > rig.begin + TOTAL_SECONDS:
            yield Row(check.__name__, "not measured: no time left")
            continue
        try:
            yield from check(rig)
        except NotMeasuredError as error:
            yield Row(check.__name__, f"not measured: {error}")
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            yield Row(check.__name__, f"failed: {error}", False)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/gpu/run.sh", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(".cache/gpu"), help="directory of results.json")
    parser.add_argument("--seconds", type=float, default=6, help="of each measurement of a share")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    with tempfile.TemporaryDirectory() as root:
        for row in measure(Rig(Path(root), options.seconds)):
            rows.append(row)
            mark = {True: "ok  ", False: "BAD ", None: "    "}[row.good]
            print(f"{mark} {row.check:<46} {row.value}", flush=True)
    about = {"date": time.strftime("%Y-%m-%d"), "machine": platform.machine(), "kernel": platform.release()}
    document = {**about, "rows": [asdict(row) for row in rows]}
    (options.out / "results.json").write_text(json.dumps(document, indent=1) + "\n")
    print(f"{options.out}/results.json")
    return any(row.good is False for row in rows)


if __name__ == "__main__":
    sys.exit(main())
