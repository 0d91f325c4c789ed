# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus that scrapes the demo's plugins, and the report of what pods had."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import yaml

import prometheus
from demo.story import WAIT_SECONDS, DemoError, Story

OUTPUT = Path(__file__).resolve().parents[2] / ".build" / "demo"
"""What is left of the demo."""
LOG = OUTPUT / "report.log"
PRICES = {"NVIDIA H100 80GB HBM3": 2.5, "Tesla T4": 0.35}
JOB = "kube-accel"
SCRAPE_SECONDS = 2


@contextmanager
def scraped(root: Path, targets: Collection[str], story: Story) -> Iterator[str | None]:
    """Runs a Prometheus that scrapes these plugins; its address, or None where there is none."""
    if prometheus.find("prometheus") is None:
        story.say("NO PROMETHEUS HERE: neither on PATH nor unpacked by make setup; the report will ask the plugins")
        yield None
        return
    # By address: Debian's Prometheus cannot look for pods.
    job = {"job_name": JOB, "honor_labels": True, "static_configs": [{"targets": sorted(targets)}]}
    configuration = root / "prometheus.yml"
    configuration.write_text(
        yaml.safe_dump({"global": {"scrape_interval": f"{SCRAPE_SECONDS}s"}, "scrape_configs": [job]})
    )
    with prometheus.serve(configuration, root / "prometheus") as server:
        story.say(f"a Prometheus scrapes the {len(targets)} plugins: {server.url}")
        yield server.url


@dataclass(frozen=True)
class Expected:
    """What the report is to say of pods, by their names."""

    wasteful: frozenset[str]
    # They live about as long as a scrape takes: whether the report has heard of one is chance.
    brief: frozenset[str] = frozenset()


def report(
    root: Path, url: str | None, began: float, models: Collection[str], expected: Expected, story: Story
) -> None:
    """Runs the report playbook, with the prices of these models of GPUs.

    Asks again while too little was scraped of what pods used. Raises DemoError when it fails, or takes other pods than
    these for wasteful.
    """
    wanted = {
        "report_prices": {model: PRICES[model] for model in sorted(models)},
        "report_currency": "EUR",
        "report_right_size_after": "0h",
        "report_html": str(OUTPUT / "report.html"),
    }
    if url is None:
        wanted |= {"gpu_plugins_kubeconfig": str(root / "admin.conf")}
    else:
        wanted |= {"report_prometheus_url": url, "report_prometheus_selector": f'job="{JOB}"'}
        wanted |= {"report_start": period_start(began, time.time())}
    command = ["ansible-playbook", "accel.kubernetes.report", "-e", json.dumps(wanted)]
    environment = os.environ | {"ANSIBLE_FORCE_COLOR": "0", "ANSIBLE_LOCALHOST_WARNING": "0", "TMPDIR": str(root)}
    lines, deadline = _asked(command, environment), time.monotonic() + WAIT_SECONDS
    while (why := misjudged(lines, expected)) and time.monotonic() < deadline:
        story.say(f"too little was scraped so far ({why}); asking again")
        lines = _asked(command, environment)
    story.show("\n".join(lines))
    if why:
        raise DemoError(f"the report does not tell what pods did: {why}; see {LOG}")
    story.say(f"the same with charts, open it in a browser: {wanted['report_html']}")


def period_start(began: float, now: float) -> str:
    """When a report of all since `began` starts: at least a minute ago, the shortest period that a report has."""
    return datetime.fromtimestamp(min(began, now - 60), UTC).isoformat(timespec="seconds")


def _asked(command: list[str], environment: Mapping[str, str]) -> list[str]:
    """The lines of one report."""
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    LOG.write_text(done.stdout + done.stderr)
    shown = re.search(r'"msg": (\[\n.*?\n    \])', done.stdout, re.DOTALL)
    if done.returncode or shown is None:
        raise DemoError(f"report.yml failed; see {LOG}:\n{done.stdout[-3000:]}")
    lines: list[str] = json.loads(shown[1])
    return lines


def misjudged(lines: Iterable[str], expected: Expected) -> str:
    """Says what a report tells that is not so, where every namespace has pods that work; empty when all is so."""
    sections: list[list[list[str]]] = [[]]
    for line in lines:
        if line:
            sections[-1].append(re.split(" {2,}", line))
        else:
            sections.append([])
    _, table, *rest = sections
    used = table[0].index("USED")  # "≥" where a busy machine scraped too late
    for row in table[1:]:
        if row[0] not in ("(free)", "TOTAL") and float(row[used].removeprefix("≥ ")) == 0:
            return f"namespace {row[0]} used no GPU time in mode {row[1]}"
    flagged = {row[1] for row in rest[0][2:]} - expected.brief if rest else set()
    if rest and flagged != expected.wasteful:
        return (
            f"{', '.join(sorted(flagged))} ask for more than they use, and not {', '.join(sorted(expected.wasteful))}"
        )
    return ""
