"""What follows the end of an attempt: done, requeue, or an end with a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from resilient_launch.core.causes import Cause

NO_BUDGET = frozenset({Cause.PREEMPTED, Cause.TIME_LIMIT, Cause.MAINTENANCE, Cause.YIELDED})
"""Interruptions that are nobody's fault: always requeued, and never counted."""
PROGRESS_STEPS = 100
"""New steps that give every budget back; one new checkpoint does too."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How often failures are forgiven: ``max_failures`` of each cause without progress, the same step ``same_step``
    times in a row, and ``same_step`` restarts from one checkpoint that lead nowhere."""

    max_failures: int = 3
    same_step: int = 3


@dataclass(frozen=True, kw_only=True)
class AttemptEnd:
    """How one attempt ended: at ``end_step`` completed steps, with a checkpoint of ``saved_step``; None for none."""

    cause: Cause
    end_step: int | None
    saved_step: int | None = None


@dataclass(frozen=True, kw_only=True)
class Life:
    """One worker group, from its start to its end, within an attempt.

    ``checkpoint`` is the name it resumed from (None: it started fresh, or never got that far), ``has_saved`` whether
    it made a checkpoint of its own, ``has_failed`` whether it ended by itself and not after a notice.
    """

    attempt: int
    restart: int
    checkpoint: str | None
    resume_step: int | None
    end_step: int | None
    has_saved: bool
    has_failed: bool

    @property
    def has_progressed(self) -> bool:
        """Whether it led anywhere: a checkpoint of its own, or a good number of steps."""
        return self.has_saved or (self.end_step or 0) - (self.resume_step or 0) >= PROGRESS_STEPS


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do next, and the reason in words. ``num_failures`` in a row, without progress, led to it."""

    action: Literal["done", "requeue", "fail", "cancel", "stop"]
    why: str
    hint: str = ""
    num_failures: int = 0


def decide(
    end: AttemptEnd,
    earlier: Sequence[AttemptEnd],
    *,
    limits: Limits,
    lives: Sequence[Life] = (),
    checkpoints: Collection[str] = (),
    user_error: str = "",
    stop_requested: bool = False,
) -> Decision:
    """Decide after ``end``, given every earlier attempt in order.

    ``lives`` are the newest worker groups, oldest first, ``checkpoints`` the names that a resume may choose from, and
    ``user_error`` says why the failure would come back for certain, if that is known.
    """
    if end.cause is Cause.FINISHED:
        return Decision(action="done", why="the last step is done")
    if stop_requested:
        return Decision(action="stop", why="stopped on request", hint="rlaunch requeue RUN goes on from there")
    if end.cause is Cause.CANCELLED:
        return Decision(action="cancel", why="the job was cancelled")
    if end.cause in NO_BUDGET:
        return Decision(action="requeue", why=f"{end.cause}: saved, nothing to blame")
    has_stepped = any((each.end_step or 0) > 0 for each in (*earlier, end))
    if user_error and not has_stepped:
        return Decision(
            action="fail",
            why=f"{user_error}, before any step: it would come back every time",
            hint="correct it, then submit again",
        )
    if stuck := stuck_at(lives, checkpoints, limits=limits):
        return Decision(action="fail", why=stuck, hint="correct what fails at that step, then submit again")
    failures = _failures_without_progress(end, earlier)
    if failures > limits.max_failures:
        return Decision(
            action="fail",
            why=f"{failures} times {end.cause} without progress; budget {limits.max_failures}",
            hint=_HINTS.get(end.cause, "look at the first error, then submit again"),
            num_failures=failures,
        )
    return Decision(
        action="requeue",
        why=f"{end.cause} {failures} of {limits.max_failures} allowed without progress",
        num_failures=failures,
    )


_HINTS = {
    Cause.OUT_OF_MEMORY: "ask for more memory, or use less, then submit again",
    Cause.NODE_FAILURE: "ask your site about the nodes, then submit again",
    Cause.HANG: "look at the stacks of the ranks that stood still, then submit again",
    Cause.CRASH: "correct the error, then submit again",
}


def _failures_without_progress(end: AttemptEnd, earlier: Sequence[AttemptEnd]) -> int:
    """Ends of this cause, this one included, since a budget was last given back."""
    counts: Counter[Cause] = Counter()
    mark, saved = 0, -1
    for each in (*earlier, end):
        step = each.end_step or 0
        if step >= mark + PROGRESS_STEPS or (each.saved_step is not None and each.saved_step > saved):
            counts.clear()
            mark = max(mark, step)
            saved = max(saved, each.saved_step if each.saved_step is not None else -1)
        if each.cause not in NO_BUDGET:
            counts[each.cause] += 1
    return counts[end.cause]


def passed_over(lives: Sequence[Life], checkpoints: Collection[str], *, limits: Limits) -> frozenset[str]:
    """Those of ``checkpoints`` from which so many restarts in a row led nowhere that another one is due.

    Empty when no other is left: starting afresh would throw away the whole run.
    """
    found = set()
    current, in_a_row = None, 0
    for life in lives:
        if life.checkpoint != current:
            current, in_a_row = life.checkpoint, 0
        if life.has_progressed:
            in_a_row = 0
        elif life.has_failed:
            in_a_row += 1
            if current is not None and in_a_row >= limits.same_step:
                found.add(current)
    return frozenset(found) if set(checkpoints) - found else frozenset()


def stuck_at(lives: Sequence[Life], checkpoints: Collection[str], *, limits: Limits) -> str:
    """Why going on is useless, in words: the same step was reached too often in a row; empty when it was not.

    While they all came from one checkpoint and there is an older one, that one may be what is wrong: not stuck yet.
    """
    failed = [life for life in lives if life.has_failed]
    last = failed[-limits.same_step :]
    steps = {life.end_step for life in last}
    if len(last) < limits.same_step or len(steps) > 1:
        return ""
    step = last[0].end_step
    if step is None:
        return ""
    starts = {life.checkpoint for life in last}
    if starts <= passed_over(lives, checkpoints, limits=limits):
        return ""
    return f"step {step} was reached {limits.same_step} times in a row and not passed"
