"""The run directory: the only place that names its files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from resilient_launch.core.ids import check_run_name


def default_root() -> Path:
    """Where runs live: RLAUNCH_ROOT, or ./runs."""
    return Path(os.environ.get("RLAUNCH_ROOT") or "runs").absolute()


@dataclass(frozen=True)
class RunPaths:
    """Names inside one run directory. Nothing here touches the disk."""

    directory: Path

    @classmethod
    def of(cls, name: str, root: Path | None = None) -> RunPaths:
        """The run called ``name`` under ``root``. Raises UsageError when the name can't be one."""
        return cls((root or default_root()) / check_run_name(name))

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def config(self) -> Path:
        return self.directory / "config.yaml"

    @property
    def run(self) -> Path:
        return self.directory / "run.json"

    @property
    def code(self) -> Path:
        return self.directory / "code"

    @property
    def rehearsal(self) -> Path:
        """What a rehearsal tells the workers; outside, since it is there before the run is."""
        return self.directory.parent / f"{self.name}.rehearsal.json"

    @property
    def attempts(self) -> Path:
        return self.directory / "attempts"

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    @property
    def events(self) -> Path:
        return self.directory / "events"

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    @property
    def control(self) -> Path:
        return self.directory / "control"

    @property
    def submitit(self) -> Path:
        """submitit's own folder: its pickle, its result and the batch script's output."""
        return self.directory / "submitit"

    @property
    def lineage(self) -> Path:
        """Which checkpoints were left behind, where the run was told to go on from an older one."""
        return self.directory / "lineage.json"

    @property
    def once(self) -> Path:
        """What was done and must not be done again."""
        return self.directory / "once"

    @property
    def verdict(self) -> Path:
        return self.directory / "verdict.json"

    def attempt(self, number: int) -> Path:
        return self.attempts / f"{number:04d}.json"

    def attempt_end(self, number: int) -> Path:
        return self.attempts / f"{number:04d}.end.json"

    def attempt_logs(self, number: int) -> Path:
        return self.logs / f"{number:04d}"

    def once_mark(self, step: int, name: str) -> Path:
        """The file that says that ``name`` is done for ``step``."""
        return self.once / f"step-{step:08d}.{name}.json"

    def requeue_request(self, job_id: str, restart_count: int) -> Path:
        """The file that asks the watcher in the batch shell to requeue this admission of the job."""
        return self.control / f"requeue-{job_id}-{restart_count}"

    def control_request(self, kind: str, attempt: int | None = None) -> Path:
        """The file by which somebody asks something of the run, or of one of its attempts alone."""
        return self.control / (f"{kind}.json" if attempt is None else f"{kind}.a{attempt:04d}.json")

    def all(self) -> tuple[Path, ...]:
        """Every directory that a run needs before its first attempt."""
        return (self.attempts, self.checkpoints, self.events, self.logs, self.control, self.submitit)
