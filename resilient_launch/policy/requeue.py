"""What follows the end of an attempt: done, requeue, or stop with a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from resilient_launch.core.causes import Cause

NO_BUDGET = frozenset({Cause.PREEMPTED, Cause.TIME_LIMIT, Cause.MAINTENANCE, Cause.YIELDED})
"""Interruptions that are nobody's fault: always requeued, and never counted."""


@dataclass(frozen=True, kw_only=True)
class AttemptEnd:
    """How one attempt ended: at ``end_step`` completed steps, or None where it never began to step."""

    cause: Cause
    end_step: int | None


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do next, and the reason in words."""

    action: Literal["done", "requeue", "fail", "cancel"]
    why: str


def decide(end: AttemptEnd, earlier: Sequence[AttemptEnd], *, max_failures: int) -> Decision:
    """Decide after ``end``, given every earlier attempt in order.

    A failure of some cause is forgiven ``max_failures`` times in a row; a later attempt that got further than the
    failures before it starts the count again, and interruptions with a notice are not counted at all.
    """
    if end.cause is Cause.FINISHED:
        return Decision(action="done", why="the last step is done")
    if end.cause is Cause.CANCELLED:
        return Decision(action="cancel", why="the job was cancelled")
    if end.cause in NO_BUDGET:
        return Decision(action="requeue", why=f"{end.cause}: saved, nothing to blame")
    failures, reached = 1, end.end_step or 0
    for attempt in reversed(earlier):
        if attempt.cause in NO_BUDGET:
            continue
        if (attempt.end_step or 0) < reached or attempt.cause is not end.cause:
            break
        failures += 1
    if failures > max_failures:
        return Decision(
            action="fail",
            why=f"{failures} times {end.cause} in a row with no step beyond {reached}; budget {max_failures}",
        )
    return Decision(action="requeue", why=f"{end.cause} {failures} of {max_failures} allowed in a row without progress")
