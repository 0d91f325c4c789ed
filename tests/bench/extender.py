# SPDX-License-Identifier: Apache-2.0
"""``make bench BENCH=extender``: the extender, run and timed from outside.

The shipped command in a process of its own, an API server in another (``bench.api_stub``) with a cluster of the stated
size behind it, and this process in the place of kube-scheduler: TLS with a client certificate, kept connection. Each
sample is a new pod that is filtered over all nodes, scored over those left, and bound to the best one, while other
pods change and earlier samples end. Before each, an empty call on the same connection tells what the machine itself
takes at that time.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trustme

from bench.api_stub import NAMESPACE, Size, node_name, pod, shares
from bench.measure import Result, cpu_seconds, pss_bytes, report
from cluster.control_plane import free_port

LARGE = Size(1000, 20_000, 100_000)
LARGER = Size(5000, 100_000, 20_000)
SIZES = (LARGE, LARGER)
REQUESTS = (
    *((shares(cores, units), {}) for cores, units in ((5, 4), (10, 8), (20, 40), (25, 32), (30, 64), (50, 100))),
    *((shares(cores, 0), {}) for cores in (100, 200)),
    (shares(15, 16), {"kube-accel.io/placement": "spread"}),
    (shares(15, 16), {"kube-accel.io/use-gpu-model": "h100"}),
)
"""What the sampled pods ask for, in turn."""
START_TIMEOUT = 300.0


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured; a tenth more comes first and does not count."""

    samples: int = 1000
    full: int = 20
    """Samples with node objects instead of names."""


class Peer:
    """A kept HTTPS connection."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self._connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)

    def close(self) -> None:
        """The next call connects again."""
        self._connection.close()

    def call(self, method: str, path: str, document: object = None) -> Any:
        """The JSON answered. Raises RuntimeError for a status other than 2xx."""
        body = None if document is None else json.dumps(document)
        return json.loads(self.timed(method, path, body)[0] or b"null")

    def timed(self, method: str, path: str, body: str | None) -> tuple[bytes, float]:
        """The answer, and the seconds from the first byte sent to the last one read."""
        begin = time.perf_counter()
        self._connection.request(method, path, body)
        response = self._connection.getresponse()
        answer = response.read()
        taken = time.perf_counter() - begin
        if response.status // 100 != 2:
            raise RuntimeError(f"{method} {path}: {response.status} {answer[:200]!r}")
        return answer, taken


@dataclass(frozen=True, slots=True)
class Bench:
    """What runs."""

    extender: subprocess.Popen[bytes]
    scheduler: Peer
    api: Peer


@contextmanager
def process(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        running = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield running
    finally:
        running.terminate()
        running.wait(15)


@contextmanager
def running(size: Size) -> Iterator[Bench]:
    """The extender beside a cluster of this size. It has not listed anything yet."""
    with tempfile.TemporaryDirectory(prefix="x", dir="/tmp") as name:
        root = Path(name)
        authority = trustme.CA()
        authority.cert_pem.write_to_path(root / "ca.crt")
        (root / "token").write_text("token")
        server = authority.issue_cert("127.0.0.1")
        server.private_key_and_cert_chain_pem.write_to_path(root / "server.pem")
        context = ssl.create_default_context(cafile=root / "ca.crt")
        authority.issue_cert("scheduler").configure_cert(context)
        stub = [sys.executable, "-m", "bench.api_stub", f"--cert={root}/server.pem", f"--port-file={root}/port"]
        stub += [f"--nodes={size.nodes}", f"--gpu-pods={size.gpu_pods}", f"--other-pods={size.other_pods}"]
        kubeconfig = {
            "current-context": "bench",
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
            "users": [{"name": "bench", "user": {"tokenFile": "token"}}],
        }
        with process(stub, root / "stub.log"):
            api_port = int(wait_for(lambda: text_of(root / "port")))
            cluster = {"server": f"https://127.0.0.1:{api_port}", "certificate-authority": "ca.crt"}
            kubeconfig["clusters"] = [{"name": "bench", "cluster": cluster}]
            (root / "kubeconfig").write_text(json.dumps(kubeconfig))
            port = free_port()
            command = [str(Path(sys.executable).with_name("kube-accel")), "extender", f"--listen=127.0.0.1:{port}"]
            command += [f"--tls-cert={root}/server.pem", f"--tls-key={root}/server.pem", f"--client-ca={root}/ca.crt"]
            command += [f"--kubeconfig={root}/kubeconfig"]
            with process(command, root / "extender.log") as extender:
                try:
                    yield Bench(extender, Peer(port, context), Peer(api_port, context))
                except Exception as error:
                    error.add_note(
                        (root / "extender.log").read_text()[-3000:] + (root / "stub.log").read_text()[-2000:]
                    )
                    raise


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def wait_for(probe: Any) -> Any:
    """The first true answer. Raises TimeoutError."""
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        found = probe()
        if found:
            return found
        time.sleep(0.05)
    raise TimeoutError(f"nothing within {START_TIMEOUT:g} s")


def ready(bench: Bench) -> bool:
    try:
        bench.scheduler.timed("GET", "/readyz", None)
    except (OSError, RuntimeError, http.client.HTTPException):
        bench.scheduler.close()
        return False
    return True


def gauge(bench: Bench, name: str) -> float:
    text = bench.scheduler.timed("GET", "/metrics", None)[0].decode()
    return float(next(line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(f"{name} ")))


def empty(bench: Bench) -> float:
    """Seconds of a call that asks for nothing."""
    return bench.scheduler.timed("GET", "/healthz", None)[1]


def written(document: object) -> str:
    """JSON as Go writes it."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def sampled(bench: Bench, size: Size, number: int) -> tuple[float, float]:
    """Seconds of filter and prioritize together, and of bind, for one new pod."""
    limits, annotations = REQUESTS[number % len(REQUESTS)]
    name, uid = f"sample-{number}", f"00000000-0000-4000-b000-{number:012x}"
    item = pod(name, uid, limits, annotations=dict(annotations))
    item = bench.api.call("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", item)
    names = [node_name((number + index) % size.nodes) for index in range(size.nodes)]
    body = written({"Pod": item, "Nodes": None, "NodeNames": names})
    answer, filtering = bench.scheduler.timed("POST", "/scheduler/predicates", body)
    passed = json.loads(answer)["NodeNames"]
    if not passed:
        raise RuntimeError(f"no node for {limits}: {answer[:500]!r}")
    body = written({"Pod": item, "Nodes": None, "NodeNames": passed})
    answer, scoring = bench.scheduler.timed("POST", "/scheduler/priorities", body)
    best = max(json.loads(answer), key=lambda entry: entry["Score"])["Host"]
    body = json.dumps({"PodName": name, "PodNamespace": NAMESPACE, "PodUID": uid, "Node": best})
    answer, binding = bench.scheduler.timed("POST", "/scheduler/bind", body)
    if json.loads(answer)["Error"]:
        raise RuntimeError(f"not bound: {answer!r}")
    return filtering + scoring, binding


def measure(size: Size, effort: Effort) -> list[Result]:
    """Everything about a cluster of one size."""
    results: list[Result] = []

    def add(metric: str, value: float, note: str, names: bool = True) -> None:
        results.append(Result("extender", metric, value, {"nodes": size.nodes, "names": names}, note))

    with running(size) as bench:
        begin = time.perf_counter()
        wait_for(lambda: ready(bench))
        first = time.perf_counter() - begin
        choosing, binding, nothing, new = [], [], [], []
        kept: list[str] = []
        used = 0.0
        warm_up = effort.samples // 10
        for number in range(warm_up + effort.samples):
            if number == warm_up:
                bench.api.call("GET", "/stub/bind-seconds")
                used = cpu_seconds(bench.extender.pid)
            if number >= warm_up:
                nothing.append(empty(bench))
            chose, bound = sampled(bench, size, number)
            if number < len(REQUESTS):
                new.append(chose)
            kept.append(f"sample-{number}")
            if len(kept) > min(200, size.nodes):
                bench.api.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{kept.pop(0)}")
            if number >= warm_up:
                choosing.append(chose)
                binding.append(bound)
        used = (cpu_seconds(bench.extender.pid) - used) / effort.samples
        api_seconds = bench.api.call("GET", "/stub/bind-seconds")
        beside = sorted(mine - api for mine, api in zip(binding, api_seconds, strict=True))
        for samples in (choosing, nothing):
            samples.sort()
        note = (
            f"{quantiles(choosing)} after {warm_up}; two empty calls p50 {2000 * quantile(nothing, 0.5):.2f}, "
            f"p99 {2000 * quantile(nothing, 0.99):.2f} ms; first of a new request: worst {1000 * max(new):.1f} ms; "
            f"{1000 * used:.1f} ms of processor time a pod, bind and watches included; load {os.getloadavg()[0]:.1f}"
        )
        add("filter_prioritize_p99_seconds", quantile(choosing, 0.99), note)
        note = f"beside the API server's own time; {quantiles(beside)} after {warm_up}"
        add("bind_p99_seconds", quantile(beside, 0.99), note)
        steady = pss_bytes(bench.extender.pid)
        full = [sampled_full(bench, size, 10_000 + number) for number in range(effort.full + 2)]
        full = sorted(full[2:])
        add(
            "filter_prioritize_p99_seconds",
            quantile(full, 0.99),
            f"filter alone; {quantiles(full)} after 2",
            names=False,
        )
        full_bytes = pss_bytes(bench.extender.pid)
        lists = gauge(bench, 'accel_extender_lists{kind="pods"}')
        bench.api.call("POST", "/stub/relist")
        begin = time.perf_counter()
        busy = []
        while gauge(bench, 'accel_extender_lists{kind="pods"}') == lists:
            busy.append(sampled(bench, size, 20_000 + len(busy))[0])
            kept.append(f"sample-{20_000 + len(busy) - 1}")
            bench.api.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{kept.pop(0)}")
        again = time.perf_counter() - begin
        busy.sort()
        add("sync_seconds", first, f"from start to ready; relist {again:.1f} s, meanwhile {quantiles(busy)}")
        again_bytes = pss_bytes(bench.extender.pid)
        mib = 2**20
        after = f"{full_bytes / mib:.1f} MiB after node objects, {again_bytes / mib:.1f} after a relist"
        add("pss_bytes", steady, after)
    return results


def sampled_full(bench: Bench, size: Size, number: int) -> float:
    """Seconds of a filter call with node objects."""
    item = pod(f"sample-{number}", f"00000000-0000-4000-b000-{number:012x}", REQUESTS[0][0])
    images = [
        {"names": [f"registry.example.internal/image-{index}@sha256:{index:064x}"], "sizeBytes": 1}
        for index in range(50)
    ]
    labels = {f"feature.node.kubernetes.io/label-{index}": "true" for index in range(40)}
    items = [
        {"metadata": {"name": node_name(index), "labels": labels}, "status": {"images": images}}
        for index in range(size.nodes)
    ]
    body = json.dumps({"Pod": item, "Nodes": {"metadata": {}, "items": items}, "NodeNames": None})
    return bench.scheduler.timed("POST", "/scheduler/predicates", body)[1]


def quantile(samples: list[float], share: float) -> float:
    return samples[min(len(samples) - 1, int(share * len(samples)))]


def quantiles(samples: list[float]) -> str:
    worst = samples[-1] * 1000
    return (
        f"p50 {quantile(samples, 0.5) * 1000:.2f}, p99 {quantile(samples, 0.99) * 1000:.2f}, "
        f"worst {worst:.2f} ms, {len(samples)} samples"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.extender", description="Measure kube-accel extender from outside.")
    parser.add_argument("--samples", type=int, default=1000)
    arguments = parser.parse_args()
    results = []
    for size in SIZES:
        print(f"{size}", file=sys.stderr, flush=True)
        results += measure(size, Effort(samples=arguments.samples))
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    report(results)


if __name__ == "__main__":
    main()
