"""Why an attempt ended, told from what its nodes reported, or from what was left when none did."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from resilient_launch.core.causes import Cause

_OF_STATE = {
    "PREEMPTED": Cause.PREEMPTED,
    "TIMEOUT": Cause.TIME_LIMIT,
    "DEADLINE": Cause.TIME_LIMIT,
    "NODE_FAIL": Cause.NODE_FAILURE,
    "BOOT_FAIL": Cause.NODE_FAILURE,
    "OUT_OF_MEMORY": Cause.OUT_OF_MEMORY,
    "CANCELLED": Cause.CANCELLED,
    "FAILED": Cause.CRASH,
}


_BLAMES = (Cause.NODE_FAILURE, Cause.OUT_OF_MEMORY, Cause.HANG)
"""What a node's agent may know of its workers' end, the cause of the others' ends first."""


def of_reports(
    *, finished: Sequence[bool], num_missing: int, notice: Cause | None, blamed: Collection[Cause] = ()
) -> Cause:
    """The cause of an attempt, from ``finished`` of every node that reported and ``num_missing`` that did not.

    Work that is done is done, whatever was announced meanwhile; after a notice, how the workers ended no longer
    matters, unless it had no cause of its own, as Slurm's signals to what is left of a job whose node was lost; a node
    that says nothing is a node that failed; then counts what the agents know (``blamed``); what is left is a crash.
    """
    if finished and all(finished) and not num_missing:
        return Cause.FINISHED
    if notice is not None and not (notice is Cause.YIELDED and num_missing):
        return notice
    if num_missing:
        return Cause.NODE_FAILURE
    return next((cause for cause in _BLAMES if cause in blamed), Cause.CRASH)


def of_silence(*, state: str | None, notice: Cause | None) -> Cause:
    """The cause of an attempt that ended without a word, from Slurm's word for that run of the job, if there is one.

    A job that comes back although its agents neither requeued it nor heard a notice lost its first node.
    """
    if notice is not None:
        return notice
    return _OF_STATE.get((state or "").split(" ")[0], Cause.NODE_FAILURE)


@dataclass(frozen=True, kw_only=True)
class RankFailure:
    """How one rank ended by itself: its exit code (negative: a signal), the last line of its traceback (empty for
    none), and when it wrote that, in seconds since the epoch (None: it wrote nothing)."""

    rank: int
    exit_code: int
    error: str = ""
    at: float | None = None


_USER_ERRORS = frozenset({"ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "TabError"})
_TRANSIENT_ERRORS = re.compile(
    r"ConnectionError|Connection(Refused|Reset|Aborted)Error|BrokenPipeError|TimeoutError|OSError|IOError|BlockingIOError"
    r"|PermissionError|MemoryError|OutOfMemoryError|AcceleratorError|Dist\w*Error|\w*Rendezvous\w*"
)
_TRANSIENT_WORDS = re.compile(
    r"CUDA|NCCL|cuDNN|\bECC\b|GPU|gloo|connection|connect\b|timed? ?out|unreachable|resource temporarily|No space left"
    r"|Stale file|out of memory|address already in use",
    re.IGNORECASE,
)
_EXIT_USAGE, _EXIT_NOT_EXECUTABLE, _EXIT_NOT_FOUND = 2, 126, 127


def user_error(failures: Sequence[RankFailure], *, num_ranks: int) -> str:
    """Why ranks that failed before their first step will do so every time, in words; empty when that is not certain.

    A wrong option, a missing module and a syntax error are certain from one rank. Any other exception is when all
    ``num_ranks`` raised one, unless its kind or its words speak of the machine, the network or the driver.
    """
    for each in failures:
        kind = error_kind(each.error)
        if kind in _USER_ERRORS:
            return f"rank {each.rank} raised {each.error}"
        if each.exit_code == _EXIT_USAGE and not kind:
            return f"rank {each.rank} exited with 2, which means wrong usage"
        if each.exit_code in (_EXIT_NOT_EXECUTABLE, _EXIT_NOT_FOUND) and not kind:
            return f"rank {each.rank} exited with {each.exit_code}: its command cannot be run"
    if failures and len(failures) == num_ranks and all(_is_certain(each) for each in failures):
        return f"every rank raised an exception, rank {failures[0].rank} {failures[0].error}"
    return ""


def first_failure(failures: Sequence[RankFailure]) -> RankFailure | None:
    """The rank that took the others down: not one that only lost its connection, and the earliest of what remains."""
    return min(failures, key=lambda each: (may_be_machine(each) and each.exit_code > 0, each.at or 0.0), default=None)


def may_be_machine(failure: RankFailure) -> bool:
    """Whether a node, the network or a driver can be at fault: a signal, or an error that speaks of them."""
    return failure.exit_code < 0 or bool(
        _TRANSIENT_ERRORS.fullmatch(error_kind(failure.error)) or _TRANSIENT_WORDS.search(failure.error)
    )


def error_kind(line: str) -> str:
    """The class of the exception in the last line of a traceback, without its module; empty for any other line."""
    match = re.match(r"(?:\w+\.)*([A-Z]\w*)(?::|$)", line)
    return match[1] if match else ""


def last_error(text: str) -> str:
    """The last line of the last traceback in ``text``: the exception itself; empty where there is none."""
    # torch puts the rank in front of every line once the process group is up.
    lines = [re.sub(r"^\[rank\d+\]:\s?", "", line) for line in text.splitlines()]
    start = next((at for at in reversed(range(len(lines))) if lines[at].startswith("Traceback (most recent")), None)
    # A syntax error in the script itself is shown without that heading.
    candidates = lines[start + 1 :] if start is not None else [line for line in lines if "SyntaxError:" in line]
    return next((line.strip() for line in candidates if line[:1].strip() and error_kind(line)), "")


def _is_certain(failure: RankFailure) -> bool:
    return bool(error_kind(failure.error)) and not may_be_machine(failure)
