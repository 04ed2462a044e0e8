"""One job, many times over: every run of every configuration goes from one interruption to the next in the same arrays.

An attempt restarts (which may be interrupted itself), then trains and saves in turn. An interruption takes the work
since the last durable checkpoint, unless a notice comes: then an emergency save, in which nothing fails, keeps it all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resilient_launch.core.errors import UsageError
from resilient_launch.lab.simulate.gaps import Floats, Gaps
from resilient_launch.lab.simulate.plans import Plan, Spaced

Bools = NDArray[np.bool_]

COMPONENTS = ("useful", "lost", "checkpoint", "emergency", "restart")
KINDS = ("failure", "preemption", "limit")
_FAILURE = 0
MAX_ATTEMPTS = 50_000
_LANES_AT_ONCE = 4096
"""Arrays of this many runs stay in the processor's cache."""
MOST_RUNS = 100_000
"""More would tell no digit that anybody can use, and would not fit memory."""


@dataclass(frozen=True, kw_only=True)
class JobModel:
    """A job of ``work_s`` seconds of useful training, how it saves, and what befalls it.

    ``gaps`` are failures. Preemptions, ``preempt_mtbf_s`` apart on average, come on top once an attempt is older than
    ``exempt_s``; ``limit_s`` ends every attempt. ``notice`` is the share of all these with time for a save, which takes
    ``emergency_s`` (None: as long as any checkpoint). The first attempt starts within ``startup_s``, later ones within
    ``restart_s``. Raises UsageError for values that no job can have.
    """

    work_s: float
    cost_s: float
    restart_s: float
    gaps: Gaps
    plan: Plan
    notice: float = 0.0
    emergency_s: float | None = None
    preempt_mtbf_s: float = math.inf
    exempt_s: float = 0.0
    limit_s: float = math.inf
    startup_s: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("work", self.work_s), ("checkpoint cost", self.cost_s)):
            if not (math.isfinite(value) and value > 0):
                raise UsageError(f"{name} of {value:g} s", why="must be a finite time above 0", hint="200h")
        others = {"restart": self.restart_s, "start-up": self.startup_s, "exempt window": self.exempt_s}
        for name, value in {**others, "emergency save": self.emergency_s or 0.0}.items():
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{name} of {value:g} s", why="must be a finite time, 0 or more", hint="10m")
        for name, value in (("time limit", self.limit_s), ("preemption MTBF", self.preempt_mtbf_s)):
            if not value > 0:
                raise UsageError(f"{name} of {value:g} s", why="must be above 0", hint="24h")
        if not 0 <= self.notice <= 1:
            raise UsageError(f"notice of {self.notice:g}", why="is a share, from 0 to 1", hint="0.75")
        if self.limit_s <= max(self.restart_s, self.startup_s) + self.cost_s:
            raise UsageError(
                f"time limit of {self.limit_s:g} s",
                why="leaves no time to train beside a restart and one checkpoint",
                hint=f"more than {max(self.restart_s, self.startup_s) + self.cost_s:g} s",
            )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the runs of one model spent, in seconds a run, by component; ``attempts`` of each run."""

    seconds: dict[str, Floats]
    attempts: NDArray[np.int64]

    @property
    def wall_s(self) -> Floats:
        """Time on the nodes of each run."""
        total: Floats = np.sum(list(self.seconds.values()), axis=0)
        return total

    @property
    def goodput(self) -> float:
        """Mean useful share of the time on the nodes."""
        return float(np.mean(self.seconds["useful"] / self.wall_s))

    @property
    def goodput_error(self) -> float:
        """Half the width of the mean's 95 % confidence interval; infinity for a single run."""
        shares = self.seconds["useful"] / self.wall_s
        return float(1.96 * np.std(shares, ddof=1) / math.sqrt(len(shares))) if len(shares) > 1 else math.inf

    def share(self, component: str) -> float:
        """Mean share of the time on the nodes that went to ``component``."""
        return float(np.mean(self.seconds[component] / self.wall_s))


@dataclass(frozen=True, kw_only=True)
class AttemptSpan:
    """One attempt of one run: what it spent by component, the work that was saved before it, and what ended it."""

    seconds: dict[str, float]
    startup_s: float
    saved_s: float
    kind: str
    has_notice: bool


@dataclass(frozen=True)
class _Lanes:
    """What never changes about a run, in arrays with one element for each run that still goes on."""

    work_s: Floats
    cost_s: Floats
    restart_s: Floats
    startup_s: Floats
    emergency_s: Floats
    notice: Floats
    preempt_mtbf_s: Floats
    exempt_s: Floats
    limit_s: Floats
    interval_s: Floats

    @classmethod
    def of(cls, models: Sequence[JobModel], num_runs: int) -> _Lanes:
        rows = [
            (
                model.work_s,
                model.cost_s,
                model.restart_s,
                model.startup_s,
                model.cost_s if model.emergency_s is None else model.emergency_s,
                model.notice,
                model.preempt_mtbf_s,
                model.exempt_s,
                model.limit_s,
                model.plan.interval_s if isinstance(model.plan, Spaced) else math.nan,
            )
            for model in models
        ]
        return cls(*np.repeat(np.array(rows, dtype=float), num_runs, axis=0).T)

    def only(self, wanted: Bools) -> _Lanes:
        return self if wanted.all() else _Lanes(*(values[wanted] for values in vars(self).values()))


def simulate(models: Sequence[JobModel], *, num_runs: int, seed: int) -> list[Outcome]:
    """Play each model ``num_runs`` times. The same seed gives the same answer.

    Raises UsageError for no or absurdly many runs, and for a model that does not get to its end in 50 000 attempts.
    """
    if not 1 <= num_runs <= MOST_RUNS:
        raise UsageError(f"{num_runs:,} runs", why=f"must be from 1 to {MOST_RUNS:,}", hint="--runs 400")
    rng = np.random.default_rng(seed)
    return [outcome for batch in _batches(models, num_runs) for outcome in _play(batch, num_runs, rng, None)]


def simulate_once(model: JobModel, *, seed: int) -> tuple[Outcome, list[AttemptSpan]]:
    """Play ``model`` once and tell of every attempt in order."""
    spans: list[AttemptSpan] = []
    (outcome,) = _play([model], 1, np.random.default_rng(seed), spans)
    return outcome, spans


def _batches(models: Sequence[JobModel], num_runs: int) -> Iterator[Sequence[JobModel]]:
    """Models to play in the same arrays: many with one interval each, or one with a plan of its own."""
    together = max(1, _LANES_AT_ONCE // num_runs)
    batch: list[JobModel] = []
    for model in models:
        is_spaced = isinstance(model.plan, Spaced)
        if batch and (len(batch) == together or not is_spaced or not isinstance(batch[0].plan, Spaced)):
            yield batch
            batch = []
        batch.append(model)
    if batch:
        yield batch


def _play(
    models: Sequence[JobModel], num_runs: int, rng: np.random.Generator, spans: list[AttemptSpan] | None
) -> list[Outcome]:
    num_lanes = len(models) * num_runs
    lanes = _Lanes.of(models, num_runs)
    draw = _gap_drawer(models, num_runs, rng)
    ids, saved_s = np.arange(num_lanes), np.zeros(num_lanes)
    until_failure_s = draw(ids)
    sums = np.zeros((len(COMPONENTS), num_lanes))
    attempts = np.zeros(num_lanes, dtype=np.int64)
    for number in range(MAX_ATTEMPTS):
        startup_s = lanes.startup_s if number == 0 else lanes.restart_s
        age_s, kinds = _first_end(lanes, until_failure_s, rng)
        left_s = lanes.work_s - saved_s
        spent, done, noticed = _attempt(lanes, models[0].plan, age_s, left_s, startup_s, rng)
        sums[:, ids] += spent
        attempts[ids] += 1
        if spans is not None:
            spans.append(_span(spent[:, 0], kinds[0], bool(done[0]), bool(noticed[0]), saved_s[0], startup_s[0]))
        going_on = ~done
        ids, lanes, kinds = ids[going_on], lanes.only(going_on), kinds[going_on]
        if not len(ids):
            return [
                Outcome(seconds=dict(zip(COMPONENTS, sums[:, row], strict=True)), attempts=attempts[row])
                for row in (slice(each * num_runs, (each + 1) * num_runs) for each in range(len(models)))
            ]
        saved_s = (saved_s + spent[0])[going_on]
        until_failure_s = until_failure_s[going_on] - age_s[going_on]
        failed = kinds == _FAILURE
        until_failure_s[failed] = draw(ids[failed])
    raise UsageError(
        "the job",
        why=f"does not get to its end in {MAX_ATTEMPTS} attempts",
        hint="a shorter interval, a longer MTBF or less work",
    )


def _attempt(
    lanes: _Lanes, plan: Plan, age_s: Floats, left_s: Floats, startup_s: Floats, rng: np.random.Generator
) -> tuple[Floats, Bools, Bools]:
    """What one attempt of every run spends, by component; which finish, and which have time for an emergency save."""
    if isinstance(plan, Spaced):
        plan = Spaced(lanes.interval_s)
    trained_s = np.maximum(age_s - startup_s, 0.0)
    num_saves = plan.saves_for(left_s, float(startup_s[0]))
    done = left_s + num_saves * lanes.cost_s <= trained_s
    _, durable_s, worked_s = plan.reached(trained_s, lanes.cost_s, float(startup_s[0]))
    # The last piece of work may be shorter than the plan's, so its save comes sooner.
    worked_s = np.minimum(worked_s, left_s)
    noticed = (trained_s > 0) & ~done
    noticed &= rng.random(len(age_s)) < lanes.notice if lanes.notice.any() else False
    kept_s = np.where(done, left_s, np.where(noticed, worked_s, durable_s))
    spent = np.stack(
        [
            kept_s,
            np.where(done, 0.0, worked_s - kept_s),
            # What is neither start-up nor work went into saves, finished or cut short.
            np.where(done, num_saves * lanes.cost_s, trained_s - worked_s),
            np.where(noticed, lanes.emergency_s, 0.0),
            np.minimum(age_s, startup_s),
        ]
    )
    return spent, done, noticed


def _first_end(lanes: _Lanes, until_failure_s: Floats, rng: np.random.Generator) -> tuple[Floats, NDArray[np.int64]]:
    """The age at which each attempt is interrupted, and the index in ``KINDS`` of what does it."""
    if not (np.isfinite(lanes.preempt_mtbf_s).any() or np.isfinite(lanes.limit_s).any()):
        return until_failure_s, np.zeros(len(until_failure_s), dtype=np.int64)
    preempted_s = lanes.exempt_s + lanes.preempt_mtbf_s * rng.standard_exponential(len(until_failure_s))
    ends = np.stack([until_failure_s, preempted_s, lanes.limit_s])
    return ends.min(axis=0), np.argmin(ends, axis=0)


def _gap_drawer(
    models: Sequence[JobModel], num_runs: int, rng: np.random.Generator
) -> Callable[[NDArray[np.intp]], Floats]:
    """Draws the next gap of the lanes named; models with equal gaps share one source."""
    num_lanes = len(models) * num_runs
    sources = {gaps: gaps.source(num_lanes, rng) for gaps in dict.fromkeys(model.gaps for model in models)}
    if len(sources) == 1:
        return next(iter(sources.values())).draw
    numbers = {gaps: number for number, gaps in enumerate(sources)}
    of_lane = np.repeat([numbers[model.gaps] for model in models], num_runs)

    def draw(lanes: NDArray[np.intp]) -> Floats:
        drawn = np.empty(len(lanes))
        for gaps, source in sources.items():
            mine = of_lane[lanes] == numbers[gaps]
            drawn[mine] = source.draw(lanes[mine])
        return drawn

    return draw


def _span(spent: Floats, kind: int, is_done: bool, has_notice: bool, saved_s: float, startup_s: float) -> AttemptSpan:
    return AttemptSpan(
        seconds=dict(zip(COMPONENTS, spent.tolist(), strict=True)),
        startup_s=float(startup_s),
        saved_s=float(saved_s),
        kind="finished" if is_done else KINDS[kind],
        has_notice=has_notice,
    )
