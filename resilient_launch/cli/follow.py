"""Following a run to its end: one live line on a terminal, a line a change elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING

from resilient_launch.core.errors import RlaunchError

if TYPE_CHECKING:
    from resilient_launch.cli.common import FoundRun
    from resilient_launch.cluster.slurm import SlurmCommands
    from resilient_launch.core.paths import RunPaths
    from resilient_launch.report.state import RunStatus

POLL_FAKE_S = 0.5
POLL_SLURM_S = 5.0
PLAIN_PROGRESS_S = 15.0


class _Screen:
    """Where progress goes. A terminal shows one line that changes; a log gets a line when something happened."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._said = ""
        self._progress_at = 0.0

    def show(self, headline: str, progress: str) -> None:
        """``headline`` changes rarely and is kept; ``progress`` changes all the time."""
        now = time.monotonic()
        if headline != self._said:
            self._said, self._progress_at = headline, now
            self._write(f"{headline}\n")
        elif not self._live and progress and now - self._progress_at > PLAIN_PROGRESS_S:
            self._progress_at = now
            self._write(f"{progress}\n")
        if self._live:
            self._write(progress)

    def _write(self, text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{text}" if self._live else text)
        sys.stderr.flush()

    def close(self) -> None:
        if self._live:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def follow(found: FoundRun, *, timeout_s: float | None = None) -> RunStatus:
    """Wait until the run is over, saying what happens on the way; returns how it stands then, or at ``timeout_s``.

    A wait that Slurm adds after a requeue is lifted, where it lets us, though not one that a failure called for; after
    an attempt that ended without a word, not before its processes have had their time to end. A run whose site forbids
    requeue, and whose nodes could not submit it again, is submitted again from here.
    """
    from resilient_launch.launch.comeback import newest_job, submit_again
    from resilient_launch.report.state import read_verdict, run_status

    scheduler = found.connection.scheduler
    poll_s = POLL_FAKE_S if found.connection.fake is not None else POLL_SLURM_S
    deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    screen, wait, seen_over, rate = _Screen(), _Wait(found.paths, scheduler), 0, _Rate()
    try:
        while True:
            job_id = newest_job(found.paths)
            status = run_status(found.paths, scheduler, job_id)
            number = status.attempts[-1].number if status.attempts else 0
            headline = f"{status.name}: {status.state}"
            if status.attempts:
                headline += f", attempt {number}"
            if status.reason and status.state.is_final:
                headline += f": {status.reason}"
            if status.explanation:
                headline += f" ({status.reason}): {status.explanation}"
            screen.show(headline, _progress(status, rate.update(status.step)))
            verdict = read_verdict(found.paths) if status.state.is_final else None
            if verdict is not None and verdict.get("is_resubmittable"):
                new_id = submit_again(found.paths, found.connection)
                screen.show(f"{status.name}: submitted again as job {new_id}", "")
                continue
            # A verdict is final; a job without one, between two lives, may look gone for a moment.
            seen_over = seen_over + 1 if status.state.is_final else 0
            if verdict is not None or seen_over > 2 or time.monotonic() > deadline:
                return status
            with contextlib.suppress(RlaunchError):
                wait.tend(status)
            time.sleep(min(poll_s, max(deadline - time.monotonic(), 0.0)))
    finally:
        screen.close()


class _Wait:
    """The wait that follows a requeue: seen from its first moment on, and lifted once."""

    def __init__(self, paths: RunPaths, scheduler: SlurmCommands) -> None:
        self._paths, self._scheduler = paths, scheduler
        self._since: float | None = None
        self._num_lifted_after = 0

    def tend(self, status: RunStatus) -> None:
        """Lift the wait if it serves nothing any more. Raises UnreachableError, RefusedError."""
        from resilient_launch.launch.comeback import wait_left_s

        if status.job_state not in ("PENDING", ""):
            self._since = None
        # Before the first attempt nothing was requeued: the wait is one that the user asked for.
        if status.reason != "BeginTime" or self._num_lifted_after == len(status.attempts):
            return
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if wait_left_s(self._paths, self._scheduler, pending_s=now - self._since) <= 0:
            self._num_lifted_after = len(status.attempts)
            self._scheduler.start_now(status.job_id)


class _Rate:
    """Steps a second over the last change of the step."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._at = 0.0
        self._rate = 0.0

    def update(self, step: int | None) -> float:
        now = time.monotonic()
        if step is not None and step != self._step:
            if self._step is not None and step > self._step and now > self._at:
                self._rate = (step - self._step) / (now - self._at)
            self._step, self._at = step, now
        return self._rate


def _progress(status: RunStatus, rate: float) -> str:
    if status.step is None:
        return ""
    saved = "none" if status.checkpoint_step is None else f"step {status.checkpoint_step}"
    return f"{status.name}: step {status.step}, {rate:.1f} steps/s, newest checkpoint {saved}"
