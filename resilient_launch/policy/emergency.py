"""What to save when the end is near: a new state, or just the one whose save is under way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

RECENT = 20
"""How many of the newest saves a prediction is made from."""
QUANTILE = 0.95


@dataclass(frozen=True, kw_only=True)
class SaveTimes:
    """One finished save, in seconds: ``stage_s`` copying, ``write_s`` until the files were durable, ``commit_s``."""

    stage_s: float
    write_s: float
    commit_s: float


@dataclass(frozen=True, kw_only=True)
class InFlight:
    """The save under way: the state of ``step``, staged ``elapsed_s`` seconds ago."""

    step: int
    elapsed_s: float


class Act(StrEnum):
    SAVE = "save"
    FINISH = "finish"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """``act``, why, and how many seconds the new save would take from now on; None where nothing was measured."""

    act: Act
    why: str
    predicted_s: float | None


def choose(*, left_s: float | None, past: Sequence[SaveTimes], in_flight: InFlight | None, has_newest: bool) -> Choice:
    """Whether a new save is begun with ``left_s`` seconds to the deadline; None for no deadline.

    ``past`` are the run's finished saves, oldest first. ``has_newest`` says that a save has become durable since the
    notice, so that giving up a new one costs no more than the steps since. A save that will hardly fit is tried all the
    same where there is nothing else to finish: it can't harm what is published.

    The prediction is the sum of the 95th percentiles of staging, writing and committing, nearest rank, which
    overestimates that of the sum unless all three are late together.
    """
    if left_s is None:
        return Choice(act=Act.SAVE, why="there is no deadline", predicted_s=_whole_s(past))
    if not past:
        return Choice(act=Act.SAVE, why="no save has been measured yet", predicted_s=None)
    drain_s = _p95([times.write_s + times.commit_s for times in past])
    whole_s = _whole_s(past) or 0.0
    rest_s = 0.0 if in_flight is None else max(drain_s - in_flight.elapsed_s, 0.0)
    needed_s = rest_s + whole_s
    said = f"a new save needs {needed_s:.3g} s and {left_s:.3g} s are left"
    if needed_s <= left_s:
        return Choice(act=Act.SAVE, why=said, predicted_s=needed_s)
    if in_flight is not None:
        why = f"{said}: finishing the save of step {in_flight.step}, which needs {rest_s:.3g} s more"
        return Choice(act=Act.FINISH, why=why, predicted_s=needed_s)
    if has_newest:
        return Choice(act=Act.FINISH, why=f"{said}: leaving with the save that has just ended", predicted_s=needed_s)
    return Choice(act=Act.SAVE, why=f"{said}: trying, as nothing else is under way", predicted_s=needed_s)


def _whole_s(past: Sequence[SaveTimes]) -> float | None:
    if not past:
        return None
    stage_s = _p95([times.stage_s for times in past])
    return stage_s + _p95([times.write_s for times in past]) + _p95([times.commit_s for times in past])


def _p95(values_s: Sequence[float]) -> float:
    recent = sorted(values_s[-RECENT:])
    return recent[math.ceil(QUANTILE * len(recent)) - 1]
