"""Asking a running attempt for something, and waiting for what comes of it, by the run's files alone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilient_launch.core.errors import RefusedError, UnreachableError
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.attempt import Attempt, AttemptRecord, read_attempts, read_ends
from resilient_launch.job.control import ControlRequest
from resilient_launch.launch.clusters import Connection
from resilient_launch.launch.comeback import newest_job

CLAIM_TIMEOUT_S = 60.0
POLL_S = 0.2
ASK_S = 5.0
_LOOK_BACK_BYTES = 1 << 16


def running_attempt(paths: RunPaths, connection: Connection, *, timeout_s: float = CLAIM_TIMEOUT_S) -> Attempt:
    """The attempt that runs now. Waits for the claim of one that Slurm has just started.

    Raises RefusedError when the run is not running, UnreachableError when Slurm does not answer.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        job_id = newest_job(paths)
        view = connection.scheduler.show(job_id) if job_id else None
        if view is None or view.state != "RUNNING":
            state = "no job" if not job_id else "no longer known to Slurm" if view is None else view.state.lower()
            raise RefusedError(
                f"run {paths.name!r}",
                why=f"is not running: {f'job {job_id} is {state}' if job_id else 'it has no job'}",
                hint=f"rlaunch status {paths.name}",
            )
        attempts = read_attempts(paths)
        if attempts and (attempts[-1].job_id, attempts[-1].slurm_restart_count) == (job_id, view.restart_count or 0):
            if attempts[-1].number in read_ends(paths):
                raise RefusedError(
                    f"run {paths.name!r}",
                    why=f"is not running: attempt {attempts[-1].number} has just ended",
                    hint=f"rlaunch status {paths.name}",
                )
            return attempts[-1]
        if time.monotonic() > deadline:
            raise RefusedError(
                f"run {paths.name!r}",
                why=f"has not started yet: job {job_id} has nodes, and its node agents have not spoken",
                hint=f"rlaunch logs {paths.name}, or try again",
            )
        time.sleep(POLL_S)


def wait_for_end(
    paths: RunPaths, connection: Connection, attempt: Attempt, *, timeout_s: float
) -> AttemptRecord | None:
    """How the attempt ended, once it has; None when it did not within ``timeout_s``, or fell silent."""
    deadline = time.monotonic() + timeout_s
    job = _Job(connection, attempt)
    while (end := read_ends(paths).get(attempt.number)) is None and time.monotonic() < deadline and job.runs():
        time.sleep(POLL_S)
    return end or read_ends(paths).get(attempt.number)


class _Job:
    """Whether an attempt's job still runs, asked of Slurm now and then."""

    def __init__(self, connection: Connection, attempt: Attempt) -> None:
        self._connection, self._attempt = connection, attempt
        self._asked_at = time.monotonic()

    def runs(self) -> bool:
        now = time.monotonic()
        if now - self._asked_at < ASK_S:
            return True
        self._asked_at = now
        try:
            view = self._connection.scheduler.show(self._attempt.job_id)
        except UnreachableError:
            return True
        return view is not None and not view.is_over and (view.restart_count or 0) == self._attempt.slurm_restart_count


@dataclass(frozen=True, kw_only=True)
class SaveOutcome:
    """What came of a request to save: ``step`` is durable, or ``error`` says why nothing is."""

    step: int | None
    error: str = ""


def wait_for_save(
    paths: RunPaths, connection: Connection, attempt: Attempt, request: ControlRequest, *, timeout_s: float
) -> SaveOutcome:
    """Wait until the state that was asked for is durable, a save failed, the attempt ended, or ``timeout_s`` passed."""
    tail = _Tail(paths.events, (f"a{attempt.number:04d}.n0000.jsonl", f"a{attempt.number:04d}.r*.w00000.jsonl"))
    job = _Job(connection, attempt)
    deadline = time.monotonic() + timeout_s
    agreed: int | None = None
    durable: set[int] = set()
    failed: dict[int, str] = {}
    while True:
        ended = attempt.number in read_ends(paths) or not job.runs()
        for event in tail.read():
            if event.get("kind") == "decision" and event.get("request") == request.id:
                agreed = int(event["step"])
            elif event.get("kind") == "checkpoint" and event.get("status") == "durable":
                durable.add(int(event["step"]))
            elif event.get("kind") == "checkpoint" and event.get("status") == "failed":
                failed[int(event["step"])] = str(event.get("error", "failed"))
        if agreed is not None and agreed in durable:
            return SaveOutcome(step=agreed)
        if agreed is not None and agreed in failed:
            return SaveOutcome(step=None, error=f"the save at step {agreed} failed: {failed[agreed]}")
        if ended:
            # Saved by something more urgent, such as a preemption, or overtaken by the end.
            return _after_the_end(durable)
        if time.monotonic() > deadline:
            waits_for = "for all ranks to agree on a step" if agreed is None else f"for the save at step {agreed}"
            return SaveOutcome(step=None, error=f"still waiting {waits_for} after {timeout_s:.0f} s")
        time.sleep(POLL_S)


def _after_the_end(durable: set[int]) -> SaveOutcome:
    if durable:
        return SaveOutcome(step=max(durable), error="the attempt ended meanwhile")
    return SaveOutcome(step=None, error="the attempt ended before it could save")


class _Tail:
    """What is appended to the files that match ``patterns``, from a little before the first look."""

    def __init__(self, directory: Path, patterns: tuple[str, ...]) -> None:
        self._directory, self._patterns = directory, patterns
        self._places: dict[Path, int] = {}

    def read(self) -> Iterator[dict[str, Any]]:
        for pattern in self._patterns:
            for path in sorted(self._directory.glob(pattern)):
                yield from self._read_file(path)

    def _read_file(self, path: Path) -> Iterator[dict[str, Any]]:
        try:
            with path.open("rb") as file:
                if path not in self._places:
                    self._places[path] = max(file.seek(0, 2) - _LOOK_BACK_BYTES, 0)
                file.seek(self._places[path])
                data = file.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._places[path] += len(whole)
        for line in whole.splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                yield event
