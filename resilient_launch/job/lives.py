"""The newest worker groups of a run, told from its events: where each began, how far it got, whether it failed."""

from __future__ import annotations

from resilient_launch.core.causes import Cause
from resilient_launch.core.events import read_events
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.attempt import FINAL_ACTIONS, read_attempts, read_ends
from resilient_launch.policy.requeue import NO_BUDGET, Life

_ENOUGH = 16
"""Rules look at the newest few; a long history is not read at every restart."""


def read_lives(paths: RunPaths, *, until: tuple[int, int]) -> list[Life]:
    """The newest worker groups before (attempt, restart) ``until``, oldest first; a dozen or so at most.

    One whose attempt has no recorded end counts as failed: the caller asks because it did. Only the attempts since the
    last end that was a verdict count: whoever submitted the run again has had a look at it.
    """
    ends = read_ends(paths)
    lives: list[Life] = []
    for attempt in reversed([each.number for each in read_attempts(paths) if each.number <= until[0]]):
        end = ends.get(attempt)
        if end is not None and attempt < until[0] and end.action in FINAL_ACTIONS:
            break
        last_failed = end is None or Cause(end.cause) not in {*NO_BUDGET, Cause.FINISHED, Cause.CANCELLED}
        found = _lives_of(paths, attempt, last_failed=last_failed)
        lives = [life for life in found if (life.attempt, life.restart) < until] + lives
        if len(lives) >= _ENOUGH:
            break
    return lives


def _lives_of(paths: RunPaths, attempt: int, *, last_failed: bool) -> list[Life]:
    resumes: dict[int, tuple[str | None, int]] = {}
    stepped: dict[int, int] = {}
    ended: dict[int, int] = {}
    saved: set[int] = set()
    for event in read_events(sorted(paths.events.glob(f"a{attempt:04d}.*.jsonl"))):
        restart = int(event.get("restart", 0))
        is_first_rank = event.get("rank") == 0
        if event["kind"] == "group_end":
            ended[restart] = max(ended.get(restart, -1), int(event.get("step", -1)))
        elif event["kind"] == "resume":
            resumes[restart] = (event.get("checkpoint"), int(event["resume_step"]))
        elif event["kind"] == "window" and is_first_rank:
            stepped[restart] = int(event["first"]) + len(event["end_s"])
        elif event["kind"] == "checkpoint" and is_first_rank and event["status"] == "durable":
            saved.add(restart)
    numbers = sorted({*resumes, *ended})
    lives = []
    for number in numbers:
        checkpoint, resume_step = resumes.get(number, (None, None))
        reached = max(ended.get(number, -1), stepped.get(number, -1), -1 if resume_step is None else resume_step)
        lives.append(
            Life(
                attempt=attempt,
                restart=number,
                checkpoint=checkpoint,
                resume_step=resume_step,
                end_step=reached if reached >= 0 else None,
                has_saved=number in saved,
                has_failed=last_failed if number == numbers[-1] else True,
            )
        )
    return lives
