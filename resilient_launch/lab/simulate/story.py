"""The events that a simulated run would have left behind, in the vocabulary of a real one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from resilient_launch.core.causes import Cause
from resilient_launch.core.events import SCHEMA
from resilient_launch.job.run import WINDOW_S, WINDOW_STEPS
from resilient_launch.lab.simulate.job import AttemptSpan, JobModel
from resilient_launch.policy.goodput import Allocation

_CAUSES = {
    "failure": Cause.NODE_FAILURE,
    "preemption": Cause.PREEMPTED,
    "limit": Cause.TIME_LIMIT,
    "finished": Cause.FINISHED,
}
_ROUNDING_S = 1e-6


def tell(
    model: JobModel, spans: Sequence[AttemptSpan], *, step_s: float, num_gpus: int = 8, start_s: float = 0.0
) -> tuple[list[dict[str, Any]], list[Allocation]]:
    """Events and allocations of a run that went through ``spans``, one rank on ``num_gpus`` GPUs from ``start_s`` on.

    A step takes ``step_s`` of work. As in a real run, a failure without notice leaves no last word, and takes the steps
    with it that were not written down yet.
    """
    events: list[dict[str, Any]] = []
    allocations: list[Allocation] = []
    now_s, reached = start_s, 0
    for number, span in enumerate(spans):
        teller = _Teller(model, span, number, now_s, step_s)
        events += teller.tell(reached)
        reached = max(reached, teller.reached)
        end_s = now_s + math.fsum(span.seconds.values())
        allocations.append(Allocation(attempt=number, start_s=now_s, end_s=end_s, num_gpus=num_gpus))
        now_s = end_s
    return events, allocations


class _Teller:
    """One attempt."""

    def __init__(self, model: JobModel, span: AttemptSpan, number: int, start_s: float, step_s: float) -> None:
        self._model, self._span, self._number, self._start_s, self._step_s = model, span, number, start_s, step_s
        self._events: list[dict[str, Any]] = []
        self._train_s = start_s + span.startup_s
        self._first = self.reached = self._steps(span.saved_s)
        self._ends: list[float] = []

    def _steps(self, work_s: float) -> int:
        """Steps that ``work_s`` completes; the last of the run may be a short one."""
        if work_s >= self._model.work_s - _ROUNDING_S:
            return math.ceil(self._model.work_s / self._step_s - _ROUNDING_S)
        return math.floor(work_s / self._step_s + _ROUNDING_S)

    def _emit(self, kind: str, at_s: float, *, by_rank: bool = True, **fields: Any) -> None:
        writer = {"attempt": self._number, "restart": 0, "node": 0, **({"rank": 0} if by_rank else {})}
        self._events.append({"v": SCHEMA, "kind": kind, "t": at_s, "mono": at_s, **writer, **fields})

    def tell(self, reached: int) -> list[dict[str, Any]]:
        span, seconds = self._span, self._span.seconds
        self._emit(
            "attempt", self._start_s, by_rank=False, job_id="1", slurm_restart_count=self._number, nodes=["node0"]
        )
        self._emit("phase", self._start_s, phase="init")
        if seconds["restart"] < span.startup_s:
            return self._events
        self._emit("phase", self._train_s, phase="restore")
        self._emit(
            "resume",
            self._train_s,
            resume_step=self._first,
            rework_steps=max(reached - self._first, 0),
            world_size=1,
            slurm_restart_count=self._number,
            torchelastic_restart_count=0,
            last_cause=None,
        )
        self._emit("phase", self._train_s, phase="first_step")
        self._train()
        return self._events

    def _train(self) -> None:
        """Steps and saves in turn, then whatever ended the attempt."""
        span, seconds, cost_s = self._span, self._span.seconds, self._model.cost_s
        is_finished = span.kind == "finished"
        work_s = seconds["useful"] + seconds["lost"]
        over_s = self._train_s + work_s + seconds["checkpoint"]
        now_s, worked_s = self._train_s, 0.0
        planned = takewhile(lambda held: held <= work_s, self._model.plan.saved_work(span.startup_s))
        saves = [held for held in planned if not is_finished or held < work_s - _ROUNDING_S]
        for held_s in [*saves, *([work_s] if is_finished else [])]:
            if now_s + held_s - worked_s > over_s - _ROUNDING_S:
                break
            self._step_until(held_s, now_s - worked_s)
            now_s, worked_s = now_s + held_s - worked_s, held_s
            is_durable = now_s + cost_s <= over_s + _ROUNDING_S
            self._flush()
            reason = "end" if is_finished and held_s == work_s else "time"
            self._save(reason, now_s, now_s + cost_s if is_durable else over_s, held_s, is_durable=is_durable)
            now_s += cost_s
        self._step_until(work_s, now_s - worked_s)
        if span.has_notice:
            self._flush()
            cause = _CAUSES[span.kind]
            self._emit("notice", over_s, by_rank=False, cause=cause, deadline=None, source="simulation")
            self._save("notice", over_s, over_s + seconds["emergency"], work_s, is_durable=True)
        if span.has_notice or is_finished:
            end_s = over_s + seconds["emergency"]
            self._emit("phase", end_s, phase="leave")
            self._emit("end", end_s, by_rank=False, cause=_CAUSES[span.kind], step=self.reached)

    def _step_until(self, work_s: float, offset_s: float) -> None:
        """Complete the steps that this attempt's first ``work_s`` of work reach; work w is done at w + ``offset_s``."""
        for number in range(self.reached + 1, self._steps(self._span.saved_s + work_s) + 1):
            done_s = min(number * self._step_s, self._model.work_s) - self._span.saved_s + offset_s
            self._ends.append(done_s - self._train_s)
            self.reached = number
            if len(self._ends) >= WINDOW_STEPS or self._ends[-1] - self._ends[0] > WINDOW_S:
                self._flush()

    def _flush(self) -> None:
        if self._ends:
            at_s = self._train_s + self._ends[-1]
            self._emit("window", at_s, first=self._first, mono0=self._train_s, end_s=self._ends)
            self._first += len(self._ends)
            self._ends = []

    def _save(self, reason: str, begin_s: float, end_s: float, held_s: float, *, is_durable: bool) -> None:
        step = self._steps(self._span.saved_s + held_s)
        self._emit("checkpoint", begin_s, step=step, status="begin", reason=reason)
        if is_durable:
            blocking_s = end_s - begin_s
            self._emit("checkpoint", end_s, step=step, status="durable", reason=reason, blocking_s=blocking_s)
        elif self._span.has_notice:
            self._emit("checkpoint", end_s, step=step, status="failed", reason=reason, error="notice")
