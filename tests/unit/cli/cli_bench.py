"""The command line in a process of its own, in a directory of its own, with Slurm's commands as small scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resilient_launch.core.events import EventWriter
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.attempt import AttemptRecord, claim, record_end
from resilient_launch.launch.records import RunRecord, write_run

REPOSITORY = Path(__file__).resolve().parents[3]
MAIN = "from resilient_launch.cli.main import main; main()"
GOOD = "name: run\nscript: train.py\ntime: 10m\nsignal_lead: 30s\n"


class CommandLine:
    """``root`` is where runs live, ``work`` the working directory, ``bin`` all that is on PATH."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root, self.work, self.bin = (directory / name for name in ("runs", "work", "bin"))
        self.work.mkdir()
        self.bin.mkdir()
        (self.work / "train.py").write_text("print('hello')\n")

    def slurm(self, name: str, script: str) -> None:
        """Put one of Slurm's commands on PATH."""
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def config(self, text: str = GOOD) -> str:
        path = self.work / "c.yaml"
        path.write_text(text)
        return str(path)

    def run(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60,
        program: str = MAIN,
    ) -> subprocess.CompletedProcess[str]:
        variables = {
            "PATH": str(self.bin),
            "PYTHONPATH": str(REPOSITORY),
            "RLAUNCH_ROOT": str(self.root),
            "COLUMNS": "100",
            "HOME": os.environ.get("HOME", "/"),
        }
        return subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env={**variables, **(env or {})},
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def tree(self) -> list[str]:
        """Every path below the directory."""
        return sorted(str(path.relative_to(self.directory)) for path in self.directory.rglob("*"))


def make_run(root: Path, name: str = "run", *, cluster: str = "slurm", jobs: tuple[str, ...] = ("7",)) -> RunPaths:
    """A run's directory as ``submit`` leaves it."""
    paths = RunPaths.of(name, root)
    paths.directory.mkdir(parents=True)
    for directory in paths.all():
        directory.mkdir()
    record = RunRecord(
        id="x", name=name, cluster=cluster, created_at=time.time(), parent=None, code_version="v", jobs=jobs
    )
    write_run(paths, record)
    return paths


def add_attempt(
    paths: RunPaths,
    *,
    resume_step: int,
    steps: int,
    cause: str | None,
    rework_steps: int = 0,
    job_id: str = "7",
    restart: int = 0,
    why: str = "because",
) -> int:
    """One more attempt, with the first rank's events and, where ``cause`` is given, its end."""
    attempt = claim(
        paths,
        job_id=job_id,
        slurm_restart_count=restart,
        nodes=["n1", "n2"],
        addresses=[],
        port=0,
        code_version="v",
    )
    events = EventWriter(paths.events / f"a{attempt.number:04d}.r0.w00000.jsonl", attempt=attempt.number, rank=0)
    events.emit("phase", phase="restore")
    events.emit(
        "resume",
        resume_step=resume_step,
        rework_steps=rework_steps,
        world_size=2,
        slurm_restart_count=restart,
        torchelastic_restart_count=0,
        last_cause=None,
    )
    events.emit("phase", phase="step")
    if steps:
        events.emit("window", first=resume_step, mono0=0.0, end_s=[0.1 * number for number in range(steps)])
    events.close()
    if cause is not None:
        record_end(
            paths,
            AttemptRecord(
                number=attempt.number,
                cause=cause,
                end_step=resume_step + steps,
                ended_at=attempt.claimed_at + 5.0,
                action="requeue",
                why=why,
            ),
        )
    return attempt.number


def set_verdict(paths: RunPaths, state: str, **more: Any) -> None:
    values = {"state": state, "cause": "finished", "attempt": 0, "step": 1, "why": "so it is", "error": "", **more}
    paths.verdict.write_text(json.dumps(values))


def job(state: str, *, restarts: int = 0, reason: str = "None") -> str:
    """A ``scontrol`` that knows one job."""
    lines = (
        "JobId=7 JobName=run",
        "   UserId=a(1) GroupId=a(1) MCS_label=N/A",
        f"   JobState={state} Reason={reason} Dependency=(null)",
        f"   Requeue=1 Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode=0:0",
        "   SubmitTime=1 EligibleTime=1",
        "   StartTime=1 EndTime=Unknown Deadline=N/A",
    )
    return "; ".join(f"echo '{line}'" for line in lines)
