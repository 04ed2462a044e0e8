"""Attempts: claimed atomically by the first node's agent, found by the others, told apart from whatever came before."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from resilient_launch.checkpoint import store as checkpoint_store
from resilient_launch.core import durable
from resilient_launch.core.causes import Cause
from resilient_launch.core.errors import RlaunchError
from resilient_launch.core.events import read_events
from resilient_launch.core.ids import CheckpointId
from resilient_launch.core.paths import RunPaths

FINAL_ACTIONS = frozenset({"done", "fail", "cancel", "stop"})
"""What is decided at an end that no further attempt follows by itself."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One admission of the run.

    ``checkpoints`` are the names that were published when it was claimed: of an older attempt, only these count.
    ``addresses`` and ``port`` say where the first node's store listens.
    """

    number: int
    job_id: str
    slurm_restart_count: int
    nodes: tuple[str, ...]
    addresses: tuple[str, ...]
    port: int
    claimed_at: float
    code_version: str = ""
    checkpoints: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AttemptRecord:
    """How an attempt ended, written once by the first node's agent (or, after a silent end, by the next attempt's).

    ``suspects`` are nodes that certainly failed, ``possible_suspect`` is where a failure began that a node can cause.
    The job was asked to wait until ``not_before``, seconds since the epoch, 0 for not at all.
    """

    number: int
    cause: str
    end_step: int | None
    ended_at: float
    action: str
    why: str
    first_rank: int | None = None
    error: str = ""
    saved_step: int | None = None
    suspects: tuple[str, ...] = ()
    possible_suspect: str = ""
    not_before: float = 0.0


_Record = TypeVar("_Record", Attempt, AttemptRecord)
_LISTS = frozenset({"nodes", "addresses", "checkpoints", "suspects"})


def read_attempts(paths: RunPaths) -> list[Attempt]:
    """Every claimed attempt in order. A claim that cannot be read yet (a mount without hard links) is left out."""
    return [found for path in _claims(paths) if (found := _load(Attempt, path)) is not None]


def read_ends(paths: RunPaths) -> dict[int, AttemptRecord]:
    """How attempts ended, by number; attempts that run, or ended without a word, are absent."""
    found = (_load(AttemptRecord, path) for path in sorted(paths.attempts.glob("[0-9]*.end.json")))
    return {end.number: end for end in found if end is not None}


def claim(
    paths: RunPaths,
    *,
    job_id: str,
    slurm_restart_count: int,
    nodes: Sequence[str],
    addresses: Sequence[str],
    port: int,
    code_version: str,
) -> Attempt:
    """Claim the next attempt for this admission of the job.

    Older attempts' unfinished checkpoints are fenced first, then what is published is listed, and only then is the
    number taken: whatever an older writer publishes later is not on the list. Raises RlaunchError when this very
    admission has an attempt already, and when the storage refuses.
    """
    try:
        attempt = _claim(
            paths,
            job_id=job_id,
            slurm_restart_count=slurm_restart_count,
            nodes=tuple(nodes),
            addresses=tuple(addresses),
            port=port,
            code_version=code_version,
        )
    except OSError as error:
        raise RlaunchError(
            "the run's next attempt can't be claimed",
            where=str(error.filename or paths.attempts),
            why=error.strerror or str(error),
            hint="look at the storage of the run directory, then requeue or resubmit",
        ) from error
    # Also what a claim of this number left: it can't be won any more.
    durable.sweep_temporaries(paths.attempts, lambda name: _is_over(name, attempt.number))
    return attempt


def _claim(paths: RunPaths, *, job_id: str, slurm_restart_count: int, **facts: Any) -> Attempt:
    while True:
        earlier = read_attempts(paths)
        for attempt in earlier:
            if (attempt.job_id, attempt.slurm_restart_count) == (job_id, slurm_restart_count):
                raise RlaunchError(
                    f"attempt {attempt.number}",
                    where=str(paths.attempts),
                    why=f"job {job_id} (restart {slurm_restart_count}) has claimed it already; "
                    "two node agents must not lead one gang",
                )
        # By name: a claim that nobody can read has its number all the same.
        number = max((int(path.stem) for path in _claims(paths)), default=-1) + 1
        checkpoint_store.fence(paths.checkpoints, number)
        published = [entry.name for entry in paths.checkpoints.iterdir() if CheckpointId.parse(entry.name)]
        attempt = Attempt(
            number=number,
            job_id=job_id,
            slurm_restart_count=slurm_restart_count,
            claimed_at=time.time(),
            **facts,
            checkpoints=tuple(sorted(published)),
        )
        if durable.claim_file(paths.attempt(number), json.dumps(asdict(attempt), indent=1).encode()):
            return attempt


def wait_for_claim(
    paths: RunPaths, *, job_id: str, slurm_restart_count: int, timeout_s: float, keep_waiting: Callable[[], bool]
) -> Attempt | None:
    """The attempt that the first node claimed for this admission; None when it did not within ``timeout_s``.

    The directory is listed at every look: on NFS a stat of a name that was absent may answer "absent" for a minute.
    """
    deadline = time.monotonic() + timeout_s
    while keep_waiting() and time.monotonic() < deadline:
        for attempt in reversed(read_attempts(paths)):
            if (attempt.job_id, attempt.slurm_restart_count) == (job_id, slurm_restart_count):
                return attempt
        time.sleep(0.1)
    return None


def record_end(paths: RunPaths, record: AttemptRecord) -> None:
    """Write down how an attempt ended; the first word stands."""
    durable.claim_file(paths.attempt_end(record.number), json.dumps(asdict(record), indent=1).encode())


def last_step(paths: RunPaths, number: int) -> int | None:
    """The most completed steps that an attempt's events show; None where it never stepped."""
    windows = read_events(paths.events.glob(f"a{number:04d}.r*.w00000.jsonl"))
    ends = read_events(paths.events.glob(f"a{number:04d}.n*.jsonl"))
    steps = [event["first"] + len(event["end_s"]) for event in windows if event["kind"] == "window"]
    steps += [event["step"] for event in ends if event["kind"] == "group_end" and event.get("step", -1) >= 0]
    return max(steps, default=None)


def last_saved_step(paths: RunPaths, number: int) -> int | None:
    """The step of the newest checkpoint that an attempt made; None where it made none."""
    events = read_events(sorted(paths.events.glob(f"a{number:04d}.r*.w00000.jsonl")))
    saves = (each for each in events if each["kind"] == "checkpoint" and each["status"] == "durable")
    return max((int(each["step"]) for each in saves), default=None)


def last_notice(paths: RunPaths, number: int) -> Cause | None:
    """The cause of the last notice that reached an attempt."""
    files = paths.events.glob(f"a{number:04d}.n*.jsonl")
    causes = [event["cause"] for event in read_events(files) if event["kind"] == "notice"]
    return Cause(causes[-1]) if causes else None


def last_group_cause(paths: RunPaths, number: int, restart: int) -> Cause:
    """Why a worker group of an attempt ended that was started again: what a node's agent knew of it, else a crash."""
    files = paths.events.glob(f"a{number:04d}.n*.jsonl")
    ends = [event for event in read_events(files) if event["kind"] == "group_end" and event["restart"] == restart]
    return next((Cause(event["cause"]) for event in ends if "cause" in event), Cause.CRASH)


def _is_over(name: str, number: int) -> bool:
    """Whether the claim or the end that ``name`` stands for is one that attempt ``number`` has left behind."""
    stem = name.partition(".")[0]
    return stem.isdigit() and int(stem) <= number


def _claims(paths: RunPaths) -> list[Path]:
    return sorted(path for path in paths.attempts.glob("[0-9]*.json") if path.stem.isdigit())


def _load(kind: type[_Record], path: Path) -> _Record | None:
    """One file of ours; None where it can't be read, or says something else."""
    try:
        record = json.loads(path.read_bytes())
        known = {name: record[name] for name in kind.__dataclass_fields__ if name in record}
        for name in _LISTS & known.keys():
            known[name] = tuple(str(each) for each in known[name])
        found = kind(**known)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return found if found.number == int(path.name.partition(".")[0]) else None
