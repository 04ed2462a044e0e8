"""When the clock asks for a save: at a fixed interval, or at the one that the job keeps solving for."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from resilient_launch.config.schema import LaunchConfig
from resilient_launch.core.causes import Cause
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.attempt import Attempt
from resilient_launch.job.context import Allocation
from resilient_launch.job.drains import Drains
from resilient_launch.job.interval_history import DECISION, History, read_history
from resilient_launch.job.page import Page
from resilient_launch.job.site_history import prior_rate
from resilient_launch.policy.auto_interval import FALLBACK_S, NUM_COSTS, Choice, Measured, Stretch, choose
from resilient_launch.policy.failure_rate import Rate
from resilient_launch.policy.hazard import Hazard, next_save

Emit = Callable[..., None]
log = logging.getLogger("rlaunch.agent")


class SaveClock(Protocol):
    """Tells the first node's agent when a save is due."""

    @property
    def mtbf_s(self) -> float | None:
        """The job's mean time between failures as it was measured, in seconds; None where it was not."""

    def group_started(self) -> None:
        """A worker group starts; every one but the attempt's first follows a crash."""

    def is_due(self, now: float, last: float, pages: Sequence[Page]) -> bool:
        """Whether to ask for a save at ``now``, ``last`` being when the last was made or asked for (monotonic)."""

    def period_s(self, pages: Sequence[Page]) -> float:
        """The interval that stands, in seconds; infinity where there is none."""


class FixedClock:
    """Saves every ``every_s`` seconds; None leaves it to the steps."""

    mtbf_s: float | None = None

    def __init__(self, every_s: float | None) -> None:
        self._every_s = every_s

    def group_started(self) -> None:
        pass

    def is_due(self, now: float, last: float, pages: Sequence[Page]) -> bool:
        return self._every_s is not None and now - last >= self._every_s

    def period_s(self, pages: Sequence[Page]) -> float:
        return math.inf if self._every_s is None else self._every_s


class StepsClock:
    """Saves every ``every_steps`` steps, for runs whose saves wait for a turn; others count their steps themselves."""

    mtbf_s: float | None = None

    def __init__(self, every_steps: int) -> None:
        self._every_steps = every_steps

    def group_started(self) -> None:
        pass

    def is_due(self, now: float, last: float, pages: Sequence[Page]) -> bool:
        saved = max(0, *(page.saved_step for page in pages), *(page.resume_step for page in pages))
        return min(page.step for page in pages) - saved >= self._every_steps

    def period_s(self, pages: Sequence[Page]) -> float:
        return max(self._every_steps * max(page.step_s for page in pages), 1e-3)


class AutoClock:
    """Solves the interval anew after every checkpoint and every interruption, and tells each decision as an event.

    ``history`` is what earlier attempts left, ``end_s`` the attempt's wall-clock end where Slurm names one. Nothing it
    meets stops training: what can't be solved leaves the interval that stands.
    """

    def __init__(
        self,
        *,
        attempt: Attempt,
        history: History,
        prior: Rate,
        exempt_s: float,
        signal_lead_s: float,
        end_s: float | None,
        emit: Emit,
    ) -> None:
        self._emit, self._history = emit, history
        self._prior, self._exempt_s, self._signal_lead_s = prior, exempt_s, signal_lead_s
        # Ages are told by the monotonic clock; the claim was made moments ago by the other one.
        self._born = time.monotonic() - max(time.time() - attempt.claimed_at, 0.0)
        self._limit_s = end_s - attempt.claimed_at if end_s is not None else None
        self._costs_s = list(history.costs_s)
        self._drains = Drains(history.drains_s, history.slowdown)
        self._restart_s = history.restart_s
        self._crashes: list[Stretch] = []
        self._stretch_began_s = 0.0
        self._num_groups = 0
        self._saved_mono = 0.0
        self._has_stepped = False
        self.choice: Choice | None = None
        """The newest decision."""
        self._interval_s = history.interval_s or FALLBACK_S

    @property
    def mtbf_s(self) -> float | None:
        return self.choice.rate.mtbf_s if self.choice is not None else None

    @property
    def interval_s(self) -> float:
        """The interval that stands."""
        return self._interval_s

    def period_s(self, pages: Sequence[Page]) -> float:
        return self._interval_s

    def group_started(self) -> None:
        self._num_groups += 1
        self._drains.group_started()
        if self._num_groups > 1:
            age_s = self._age_s()
            began_s = self._stretch_began_s
            self._crashes.append(Stretch(length_s=age_s - began_s, cause=Cause.CRASH, start_age_s=began_s))
            self._stretch_began_s = age_s
        self._solve("a worker group failed" if self._num_groups > 1 else "a new attempt")

    def is_due(self, now: float, last: float, pages: Sequence[Page]) -> bool:
        if not self._has_stepped:
            self._has_stepped, self._restart_s = True, self._age_s()
        self._drains.look(now, pages)
        newest = max(pages, key=lambda page: page.saved_mono)
        if newest.saved_mono > self._saved_mono:
            self._saved_mono = newest.saved_mono
            self._costs_s = [*self._costs_s, max(page.blocked_s for page in pages)][-NUM_COSTS:]
            self._solve("a checkpoint was made")
        if self.choice is None:
            return now - last >= self._interval_s
        cost_s, age_s = self.choice.cost_s or 0.0, now - self._born
        begin_s = next_save(
            self._risk(self.choice, cost_s),
            age_s=age_s,
            saved_age_s=last - self._born,
            cost_s=cost_s,
            interval_s=self.choice.interval_at(age_s),
        )
        return age_s >= begin_s

    def _risk(self, choice: Choice, cost_s: float) -> Hazard:
        # The notice ahead of the time limit brings a save of its own, unless that would come too late.
        lands = self._limit_s is not None and cost_s > self._signal_lead_s
        return replace(choice.hazard, limit_s=self._limit_s) if lands and self._limit_s else choice.hazard

    def _age_s(self) -> float:
        return time.monotonic() - self._born

    def _solve(self, trigger: str) -> None:
        try:
            began_s = self._stretch_began_s
            running = Stretch(length_s=self._age_s() - began_s, cause=None, start_age_s=began_s)
            measured = Measured(
                current_s=self._interval_s,
                prior_mtbf_s=self._prior.mtbf_s,
                prior_failures=self._prior.events,
                stretches=[*self._history.stretches, *self._crashes, running],
                costs_s=self._costs_s,
                drains_s=self._drains.drains_s,
                slowdown=self._drains.slowdown,
                exempt_s=self._exempt_s,
            )
            choice = choose(measured)
        except Exception:
            log.exception("the checkpoint interval stays at %.0f s", self._interval_s)
            return
        log.info("checkpoint every %.0f s (%s): %s", choice.interval_s, trigger, choice.why)
        self._emit(
            "decision",
            what=DECISION,
            why=f"{trigger}: {choice.why}",
            interval_s=choice.interval_s,
            target_s=choice.target_s,
            inputs={
                "current_s": self._interval_s,
                "costs_s": self._costs_s,
                "drains_s": self._drains.drains_s,
                "slowdown": self._drains.slowdown,
                "restart_s": self._restart_s,
                "prior_mtbf_s": self._prior.mtbf_s,
                "prior_failures": self._prior.events,
                "exempt_s": self._exempt_s,
                "num_interruptions": choice.num_interruptions,
                "exposure_s": choice.exposure_s,
                "mtbf_s": choice.rate.mtbf_s,
                "mtbf_range_s": choice.rate.mtbf_range_s(),
                "notice": choice.notice,
            },
        )
        self.choice, self._interval_s = choice, choice.interval_s


def save_clock(
    config: LaunchConfig, paths: RunPaths, attempt: Attempt, allocation: Allocation, emit: Emit
) -> SaveClock:
    """The clock that the configuration asks for. Only the first node's agent asks for saves: only there it solves."""
    checkpoint = config.checkpoint
    if checkpoint.every.steps is not None and config.stagger.group is not None:
        return StepsClock(checkpoint.every.steps)
    if not (checkpoint.every.auto and allocation.is_first):
        return FixedClock(checkpoint.every.seconds)
    try:
        history = read_history(paths, before=attempt.number)
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("earlier attempts can't be read (%s): the interval starts without their history", error)
        history = History(stretches=(), interval_s=None, costs_s=(), restart_s=None)
    return AutoClock(
        attempt=attempt,
        history=history,
        prior=prior_rate(checkpoint, paths, allocation.num_nodes),
        exempt_s=checkpoint.preempt_exempt_s,
        signal_lead_s=config.signal_lead_s,
        end_s=allocation.end_time,
        emit=emit,
    )
