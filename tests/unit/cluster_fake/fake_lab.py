"""A fake cluster to test, and the few things that tests of it do all the time."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from resilient_launch.cluster.fake import proctree
from resilient_launch.cluster.fake.cluster import FakeCluster
from resilient_launch.cluster.fake.environment import MARKER
from resilient_launch.cluster.fake.spec import FakeSpec, PartitionSpec

WAIT_S = 30.0


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """The condition's first true value; fails the test when it stays false."""
    deadline = time.monotonic() + WAIT_S
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"still waiting for {what}")
        time.sleep(0.02)
    return value


class Lab:
    """A cluster that is up, a directory to work in, and Slurm's commands."""

    def __init__(self, directory: Path, spec: FakeSpec) -> None:
        self.work = directory / "work"
        self.work.mkdir()
        self.cluster = FakeCluster(directory / "state")
        self.cluster.up(spec)

    def run(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run one command on the cluster; ``code`` is the exit code it must have, None for any."""
        environment = {**os.environ, **self.cluster.env()}
        done = subprocess.run(words, env=environment, cwd=self.work, capture_output=True, text=True, timeout=WAIT_S)
        if code is not None:
            assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def submit(self, body: str, *options: str) -> str:
        """Queue a batch script with this body; the job's id."""
        script = self.work / "job.sh"
        script.write_text(f"#!/bin/bash\n{body}\n")
        return self.run("sbatch", "--parsable", *options, str(script)).stdout.strip()

    def field(self, job: str, name: str) -> str:
        """One field of ``scontrol show job``."""
        words = self.run("scontrol", "-o", "show", "job", job).stdout.split()
        return next(word for word in words if word.startswith(f"{name}=")).partition("=")[2]

    def state(self, job: str) -> str:
        return self.field(job, "JobState")

    def wait_state(self, job: str, *states: str) -> str:
        return str(wait_for(lambda: (found := self.state(job)) in states and found, f"job {job} to be {states}"))

    def rows(self, job: str, fields: str = "JobID,State,ExitCode", *options: str) -> list[list[str]]:
        """sacct's rows, all runs of the job."""
        words = ("sacct", "-D", "-n", "--parsable2", "-o", fields, "-j", job, *options)
        return [line.split("|") for line in self.run(*words).stdout.splitlines()]

    def states(self, job: str) -> list[str]:
        """How accounting names each run of the job."""
        return [row[1] for row in self.rows(job, "JobID,State", "-X")]

    def text(self, name: str) -> str:
        """What a file in the working directory holds so far."""
        path = self.work / name
        return path.read_text() if path.exists() else ""

    def wait_text(self, name: str, part: str, times: int = 1) -> str:
        return str(wait_for(lambda: (text := self.text(name)).count(part) >= times and text, f"{part!r} in {name}"))

    def wait_for_step(self, job: str) -> None:
        """Until an srun of the job has started."""
        wait_for(lambda: any(row[0] == f"{job}.0" for row in self.rows(job)), "the step to start")

    def wait_file(self, name: str) -> None:
        wait_for((self.work / name).exists, f"the file {name}")

    def processes(self) -> list[int]:
        """Every process of the cluster's jobs, supervisors included."""
        config = self.cluster.state_dir / "cluster.json"
        identity = config.read_text().partition('"cluster_id": "')[2].partition('"')[0]
        return proctree.with_marker(f"{MARKER}={identity}/")


def controllers(state_dir: Path) -> list[int]:
    """The controllers of this state directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if os.fsencode(state_dir) in words and proctree.start_ticks(int(entry.name)) is not None:
                found.append(int(entry.name))
    return found


LOW = PartitionSpec(name="low", tier=1, preempt_mode="requeue", grace_s=2)
HIGH = PartitionSpec(name="high", tier=10)


def spec(**changes: Any) -> FakeSpec:
    """A small, quick cluster."""
    quick: dict[str, Any] = {"num_nodes": 2, "partitions": (LOW, HIGH), "kill_wait_s": 1, "requeue_delay_s": 0}
    return FakeSpec(**{**quick, **changes})
