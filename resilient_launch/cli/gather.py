"""What commands about many runs share: all runs under a root, and one question to Slurm for all of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from resilient_launch.core.errors import RlaunchError

if TYPE_CHECKING:
    from resilient_launch.cluster.base import JobRow
    from resilient_launch.core.paths import RunPaths
    from resilient_launch.launch.records import RunRecord
    from resilient_launch.report.accounts import RunReport


@dataclass(frozen=True, kw_only=True)
class KnownRun:
    """A run under a root: its directory and its record."""

    paths: RunPaths
    record: RunRecord

    @property
    def job_id(self) -> str:
        return self.record.jobs[-1] if self.record.jobs else ""


def all_names(root: Path) -> list[str]:
    """The names of all runs under ``root``."""
    return sorted(entry.parent.name for entry in root.glob("*/run.json"))


def known(names: Sequence[str], root: Path) -> list[KnownRun]:
    """The runs of these names. Raises RefusedError for one that is not there."""
    from resilient_launch.core.paths import RunPaths
    from resilient_launch.launch.records import read_run

    paths = [RunPaths.of(name, root) for name in names]
    return [KnownRun(paths=each, record=read_run(each)) for each in paths]


def readable(root: Path) -> tuple[list[str], list[RlaunchError]]:
    """The names of the runs under ``root`` whose records can be read, and what is wrong with the others."""
    good, wrong = [], []
    for name in all_names(root):
        try:
            known([name], root)
            good.append(name)
        except RlaunchError as error:
            wrong.append(error)
    return good, wrong


def gather(names: Sequence[str], root: Path, *, since_s: float, in_full: bool) -> list[RunReport]:
    """The accounts of these runs, read one after the other."""
    from resilient_launch.report.accounts import RunFacts, run_report

    found = []
    for run in known(names, root):
        rows, is_live = _accounting(run, root)
        facts = RunFacts(paths=run.paths, created_at=run.record.created_at, rows=rows, is_live=is_live, now=time.time())
        found.append(run_report(facts, since_s=since_s, in_full=in_full))
    return found


def _accounting(run: KnownRun, root: Path) -> tuple[dict[str, list[JobRow]], bool]:
    """Slurm's accounting of a run's jobs, and whether the run may still be running."""
    from resilient_launch.launch.clusters import connect
    from resilient_launch.report.state import read_verdict

    verdict = read_verdict(run.paths)
    rows: dict[str, list[JobRow]] = {}
    try:
        scheduler = connect("fake" if run.record.cluster == "fake" else "slurm", root).scheduler
        rows = {job_id: scheduler.history(job_id) for job_id in run.record.jobs}
        view = scheduler.queue([run.job_id]).get(run.job_id) if verdict is None and run.job_id else None
        return rows, view is not None and not view.is_over and view.state != "PENDING"
    except RlaunchError:
        return rows, verdict is None and _is_fresh(run.paths)


def _is_fresh(paths: RunPaths) -> bool:
    """Whether a process of the run wrote an event lately: the files' word where Slurm's is not to be had."""
    newest = 0.0
    try:
        newest = max((entry.stat().st_mtime for entry in paths.events.iterdir()), default=0.0)
    except OSError:
        return False
    return time.time() - newest < 120
