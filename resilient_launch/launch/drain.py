"""Emptying nodes for maintenance: the runs in the way save, leave, and queue again for afterwards."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from resilient_launch.cluster.hostlist import expand
from resilient_launch.cluster.slurm import SlurmCommands
from resilient_launch.core.causes import Cause
from resilient_launch.core.errors import RefusedError, RlaunchError, UsageError
from resilient_launch.core.paths import RunPaths
from resilient_launch.job import control
from resilient_launch.job.attempt import Attempt, read_attempts, read_ends
from resilient_launch.launch.clusters import Connection, connect
from resilient_launch.launch.comeback import newest_job
from resilient_launch.launch.records import read_run
from resilient_launch.launch.requests import running_attempt
from resilient_launch.policy import drain as policy
from resilient_launch.policy.drain import Window


@dataclass(frozen=True, kw_only=True)
class LiveRun:
    """A run whose job has nodes now."""

    paths: RunPaths
    connection: Connection
    job_id: str
    nodes: tuple[str, ...]
    end_time: int | None
    user: str


@dataclass(frozen=True, kw_only=True)
class Drained:
    """Where one run stands on its way out: ``attempt`` None before it could be asked; ``problem`` says why not."""

    run: LiveRun
    attempt: Attempt | None
    problem: str = ""


def live_runs(roots: Sequence[Path]) -> list[LiveRun]:
    """Every run under ``roots`` whose job runs now. Raises UnreachableError when Slurm does not answer."""
    found = []
    for root in roots:
        jobs: dict[str, dict[str, RunPaths]] = {}
        for path in sorted(root.glob("*/run.json")):
            paths = RunPaths(path.parent)
            with contextlib.suppress(RlaunchError):
                if job_id := newest_job(paths):
                    jobs.setdefault(read_run(paths).cluster, {})[job_id] = paths
        for cluster, of_job in jobs.items():
            connection = connect("fake" if cluster == "fake" else "slurm", root)
            for job_id, view in connection.scheduler.queue(list(of_job)).items():
                # Ids are reused after a controller lost its state: the name tells whose this one is.
                if view.state == "RUNNING" and view.name == of_job[job_id].name:
                    found.append(
                        LiveRun(
                            paths=of_job[job_id],
                            connection=connection,
                            job_id=job_id,
                            nodes=tuple(expand(view.nodes)),
                            end_time=view.end_time,
                            user=view.user,
                        )
                    )
    return found


def window_of(scheduler: SlurmCommands, *, nodes: str | None, reservation: str | None, before: float | None) -> Window:
    """The window that a drain is for. Raises UsageError unless exactly one is given, and RefusedError for a node or a
    reservation that Slurm does not know."""
    if sum(each is not None for each in (nodes, reservation, before)) != 1:
        raise UsageError("what to drain", why="takes one of --nodes, --reservation and --before", hint="--nodes n1,n2")
    if before is not None:
        return Window(nodes=None, start=before)
    if reservation is not None:
        known = {each.name: each for each in scheduler.reservations()}
        if reservation not in known:
            names = ", ".join(sorted(known)) or "there are none"
            raise RefusedError(f"reservation {reservation[:80]!r}", why="does not exist", hint=f"one of: {names}")
        chosen = known[reservation]
        return Window(nodes=frozenset(expand(chosen.nodes)), start=float(chosen.start_time), end=float(chosen.end_time))
    try:
        wanted = frozenset(expand(nodes or ""))
    except (ValueError, RlaunchError) as error:
        raise UsageError(f"node list {(nodes or '')[:80]!r}", why=str(error), hint="--nodes 'n[1-3],n7'") from error
    unknown = sorted(wanted - set(scheduler.nodes()))
    if unknown or not wanted:
        raise RefusedError(
            f"node list {(nodes or '')[:80]!r}",
            why=f"Slurm has no node {', '.join(unknown[:10])}" if unknown else "names no node",
            hint="sinfo --Node",
        )
    return Window(nodes=wanted)


def touched(runs: Sequence[LiveRun], window: Window) -> list[LiveRun]:
    """The runs that are in the window's way."""
    return [run for run in runs if policy.is_touched(window, nodes=run.nodes, end_time=run.end_time)]


def ask(run: LiveRun, window: Window) -> Drained:
    """Ask one run to leave; a run that is leaving, or was asked already, is no error."""
    held, begin = policy.comes_back(window, now=time.time())
    deadline = window.start if window.start is not None and window.start > time.time() else None
    try:
        attempt = running_attempt(run.paths, run.connection)
        control.ask(
            run.paths,
            "yield",
            attempt=attempt.number,
            cause=Cause.MAINTENANCE,
            deadline=deadline,
            begin=begin,
            held=held,
        )
    except RlaunchError as error:
        attempts = read_attempts(run.paths)
        if attempts and attempts[-1].job_id == run.job_id and attempts[-1].number in read_ends(run.paths):
            return Drained(run=run, attempt=attempts[-1])
        return Drained(run=run, attempt=None, problem=str(error).splitlines()[0])
    return Drained(run=run, attempt=attempt)


def progress(drained: Drained) -> tuple[str, bool]:
    """How far a run is, in words, and whether it has given its nodes back."""
    if drained.attempt is None:
        return drained.problem, False
    end = read_ends(drained.run.paths).get(drained.attempt.number)
    if end is None:
        return "saving", False
    saved = "nothing to save" if end.saved_step is None else f"saved at step {end.saved_step}"
    view = drained.run.connection.scheduler.show(drained.run.job_id)
    if view is None or view.is_over:
        return f"{saved}, {end.action}", True
    if view.state == "PENDING":
        return f"{saved}, queued ({view.reason})", True
    return f"{saved}, leaving", False
