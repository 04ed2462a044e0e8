"""What a contract test works with: a scheduler, a directory, and ways to submit small shell scripts and wait."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from waiting import wait_for

from resilient_launch.cluster.base import JobView
from resilient_launch.cluster.slurm import SlurmCommands
from resilient_launch.core.errors import UnreachableError

T = TypeVar("T")


class Bench:
    """A scheduler under test. Every job submitted through it is cancelled at the end.

    ``version`` is the Slurm whose behaviour it has: where versions differ, a test expects what that one does.
    """

    def __init__(self, env: Mapping[str, str], directory: Path, *, backend: str) -> None:
        self.env = env
        self.backend = backend
        self.version = "24.11" if backend.endswith("24.11") else "22.05"
        self.differences: list[str] = []
        self.directory = directory
        self.slurm = SlurmCommands(env)
        self.jobs: list[str] = []
        self.reservations: list[str] = []

    def by_version(self, what: str, *, old: T, new: T) -> T:
        """What this scheduler's version does: ``old`` on 22.05, ``new`` on 24.11; kept for the run's last words."""
        self.differences.append(f"{what}: {old!r} on 22.05, {new!r} on 24.11")
        return new if self.version == "24.11" else old

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=dict(self.env), cwd=self.directory, capture_output=True, text=True, timeout=60, check=False
        )

    def sbatch(self, script: str, *options: str) -> str:
        """Submit a bash script; its output is appended to <job id>.out in the directory."""
        path = self.directory / f"script-{len(self.jobs)}.sh"
        path.write_text(f"#!/bin/bash\n{script}\n")
        defaults = ("--output=%j.out", "--open-mode=append", "--requeue", "--ntasks-per-node=1", "--mem=64")
        done = self.run("sbatch", "--parsable", *defaults, *options, str(path))
        assert done.returncode == 0, done.stderr
        job_id = done.stdout.strip()
        self.jobs.append(job_id)
        return job_id

    def show(self, job_id: str) -> JobView:
        view = self.slurm.show(job_id)
        assert view is not None
        return view

    def wait_state(self, job_id: str, *states: str, timeout_s: float = 60.0) -> JobView:
        """The job's view as soon as it is in one of ``states``."""

        def reached() -> JobView | None:
            try:
                view = self.show(job_id)
            except UnreachableError:
                # A controller on a busy machine may be silent for longer than a command waits.
                return None
            return view if view.state in states else None

        return wait_for(reached, timeout_s, lambda: f"job {job_id} in {states}: {self.show(job_id)}")

    def output(self, job_id: str) -> list[str]:
        path = self.directory / f"{job_id}.out"
        return path.read_text().splitlines() if path.exists() else []

    def wait_line(self, job_id: str, line: str, timeout_s: float = 60.0) -> None:
        wait_for(lambda: line in self.output(job_id), timeout_s, f"{line!r} from job {job_id}")

    def close(self) -> None:
        for name in self.reservations:
            self.run("scontrol", "delete", f"reservationname={name}")
        for job_id in self.jobs:
            self.slurm.cancel(job_id)
        for job_id in self.jobs:
            # The next test starts with idle nodes.
            wait_for(lambda job_id=job_id: self._has_left(job_id), 60, f"job {job_id} to leave")

    def _has_left(self, job_id: str) -> bool:
        """Of an array, every task."""
        done = self.run("squeue", "-h", "-j", job_id)
        return not done.stdout.strip() and (done.returncode == 0 or "Invalid job id" in done.stderr)
