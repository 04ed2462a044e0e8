"""The job simulator, against the article's printed numbers, the formulas, and itself."""

from __future__ import annotations

import math

import numpy as np
import pytest

from resilient_launch.core.errors import UsageError
from resilient_launch.lab.simulate.gaps import Exponential, Gaps, Trace, Weibull
from resilient_launch.lab.simulate.job import JobModel, Outcome, simulate, simulate_once
from resilient_launch.lab.simulate.plans import HazardAware, Plan, Spaced
from resilient_launch.lab.simulate.stragglers import straggler_table
from resilient_launch.policy import interval
from resilient_launch.policy.hazard import Hazard

HOUR = 3600.0
MTBF_S = 3.1 * HOUR
MINUTES = (5, 10, 20, 30, 45, 60, 90, 120, 180)
ARTICLE = {
    20: (0.876, 0.892, 0.883, 0.864, 0.832, 0.799, 0.736, 0.674, 0.562, 0.893),
    120: (0.665, 0.765, 0.812, 0.815, 0.799, 0.775, 0.719, 0.662, 0.554, 0.816),
    600: (0.304, 0.449, 0.583, 0.638, 0.667, 0.671, 0.647, 0.608, 0.519, 0.671),
}
"""Goodput by checkpoint cost in seconds: one for each interval of MINUTES, and Young's last."""
STRAGGLERS = {
    (8, 0.0005): (0.004, 1.004),
    (8, 0.002): (0.016, 1.017),
    (64, 0.0005): (0.032, 1.031),
    (64, 0.002): (0.120, 1.119),
    (512, 0.0005): (0.226, 1.228),
    (512, 0.002): (0.641, 1.644),
    (4096, 0.0005): (0.871, 1.873),
    (4096, 0.002): (1.000, 2.000),
}


def job(plan: Plan, gaps: Gaps | None = None, **changes: float) -> JobModel:
    values = {"work_s": 200 * HOUR, "cost_s": 120.0, "restart_s": 600.0, **changes}
    return JobModel(gaps=gaps or Exponential(MTBF_S), plan=plan, **values)


def played(*models: JobModel, num_runs: int = 400, seed: int = 1) -> list[Outcome]:
    return simulate(models, num_runs=num_runs, seed=seed)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_articles_thirty_goodputs(seed: int) -> None:
    configurations = [
        (float(cost_s), interval_s, printed)
        for cost_s, row in ARTICLE.items()
        for interval_s, printed in zip(
            (*(60.0 * minutes for minutes in MINUTES), interval.young(cost_s, MTBF_S)), row, strict=True
        )
    ]
    models = [job(Spaced(interval_s), cost_s=cost_s) for cost_s, interval_s, _ in configurations]
    for (cost_s, interval_s, printed), outcome in zip(
        configurations, played(*models, num_runs=1200, seed=seed), strict=True
    ):
        assert outcome.goodput == pytest.approx(printed, abs=0.006), (cost_s, interval_s)
        exact = interval.goodput(interval_s, cost_s=cost_s, mtbf_s=MTBF_S, restart_s=600)
        assert exact == pytest.approx(printed, abs=0.004)


def test_the_articles_components() -> None:
    (outcome,) = played(job(Spaced(interval.young(120, MTBF_S))), num_runs=1200)
    for component, printed in {"checkpoint": 0.060, "lost": 0.072, "restart": 0.052}.items():
        assert outcome.share(component) == pytest.approx(printed, abs=0.003)


def test_the_articles_stragglers() -> None:
    rows = straggler_table((8, 64, 512, 4096), (0.0005, 0.002), num_steps=200_000, seed=1)
    assert len(rows) == len(STRAGGLERS)
    for row in rows:
        any_slow, step_time = STRAGGLERS[row.num_ranks, row.probability]
        assert row.any_slow == pytest.approx(any_slow, abs=0.0005)
        assert row.step_time == pytest.approx(step_time, abs=0.004)


@pytest.mark.parametrize("notice", [0.0, 0.5, 0.9])
def test_the_formula_for_notice_is_what_happens(notice: float) -> None:
    interval_s = interval.exact(120, MTBF_S, notice=notice)
    (outcome,) = played(job(Spaced(interval_s), notice=notice, emergency_s=90.0, work_s=600 * HOUR))
    expected = interval.goodput(interval_s, cost_s=120, mtbf_s=MTBF_S, restart_s=600, notice=notice, emergency_s=90)
    assert outcome.goodput == pytest.approx(expected, abs=0.003)


def test_knowing_the_hazard_beats_every_constant_interval() -> None:
    hazard = Hazard(base_rate=1 / (24 * HOUR), late_rate=1 / HOUR, exempt_s=2 * HOUR)
    risk = {"preempt_mtbf_s": HOUR, "exempt_s": 2 * HOUR}
    gaps = Exponential(24 * HOUR)
    constants = [job(Spaced(60.0 * minutes), gaps, **risk) for minutes in range(10, 61, 2)]
    *fixed, aware = played(*constants, job(HazardAware(hazard, 120.0), gaps, **risk), num_runs=300)
    best = max(outcome.goodput for outcome in fixed)
    assert best == pytest.approx(0.80, abs=0.005)
    assert aware.goodput == pytest.approx(0.829, abs=0.005)
    assert aware.goodput >= best + 0.02


@pytest.mark.parametrize(
    ("gaps", "changes"),
    [
        (Exponential(MTBF_S), {}),
        (Weibull(MTBF_S, 0.7), {"notice": 0.4}),
        (Trace((HOUR, 5 * HOUR, 200.0)), {"limit_s": 4 * HOUR, "startup_s": 60.0}),
        (Weibull(MTBF_S, 2.0), {"preempt_mtbf_s": 2 * HOUR, "exempt_s": HOUR, "notice": 0.2, "emergency_s": 5.0}),
    ],
)
def test_every_second_has_one_component_and_all_work_is_done(gaps: Gaps, changes: dict[str, float]) -> None:
    (outcome,) = played(job(Spaced(1800.0), gaps, **changes), num_runs=50)
    assert outcome.seconds["useful"] == pytest.approx(200 * HOUR)
    assert min(values.min() for values in outcome.seconds.values()) >= -1e-6
    one, spans = simulate_once(job(Spaced(1800.0), gaps, **changes), seed=3)
    assert sum(sum(span.seconds.values()) for span in spans) == pytest.approx(float(one.wall_s[0]))
    assert [span.kind for span in spans].count("finished") == 1 and spans[-1].kind == "finished"
    assert len(spans) == one.attempts[0]


def test_a_notice_in_the_last_save_keeps_no_more_than_there_is() -> None:
    model = job(Spaced(1800.0), Exponential(HOUR), work_s=1000.0, cost_s=3000.0, notice=0.5)
    for seed in range(20):
        _, spans = simulate_once(model, seed=seed)
        assert all(0 <= span.seconds["useful"] <= 1000 for span in spans), "a later attempt has nothing to give back"


def test_the_same_seed_gives_the_same_answer_and_another_does_not() -> None:
    model = job(Spaced(1800.0))
    first, again, other = (simulate([model], num_runs=20, seed=seed)[0].wall_s for seed in (4, 4, 5))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_models_with_other_failures_share_a_batch_without_mixing() -> None:
    often, rarely = played(job(Spaced(1800.0), Exponential(HOUR)), job(Spaced(1800.0), Exponential(100 * HOUR)))
    assert often.attempts.mean() > 20 * rarely.attempts.mean()


@pytest.mark.parametrize("gaps", [Weibull(MTBF_S, 0.7), Weibull(MTBF_S, 3.0), Exponential(MTBF_S)])
def test_gaps_have_the_mean_they_are_given(gaps: Gaps) -> None:
    drawn = gaps.source(1, np.random.default_rng(1)).draw(np.zeros(100_000, dtype=np.intp))
    assert drawn.mean() == pytest.approx(gaps.mean_s, rel=0.02)


def test_a_trace_is_played_in_order() -> None:
    source = Trace((1.0, 2.0, 3.0)).source(2, np.random.default_rng(1))
    lanes = np.array([0, 1])
    rounds = np.array([source.draw(lanes) for _ in range(4)])
    for lane in range(2):
        assert np.array_equal(rounds[0, lane], rounds[3, lane])
        assert sorted(rounds[:3, lane]) == [1.0, 2.0, 3.0]
        assert all((second - first) % 3 == 1 for first, second in zip(rounds[:-1, lane], rounds[1:, lane], strict=True))


def test_a_weibull_job_that_wears_out_is_told_from_one_that_bursts() -> None:
    bursts, wears = played(job(Spaced(1800.0), Weibull(MTBF_S, 0.5)), job(Spaced(1800.0), Weibull(MTBF_S, 4.0)))
    assert bursts.share("lost") != pytest.approx(wears.share("lost"), abs=0.002)


@pytest.mark.parametrize(
    "changes",
    [
        {"work_s": 0.0},
        {"cost_s": math.nan},
        {"cost_s": -1.0},
        {"restart_s": math.inf},
        {"notice": 1.1},
        {"limit_s": 700.0},
        {"limit_s": 0.0},
        {"preempt_mtbf_s": 0.0},
        {"exempt_s": -1.0},
        {"emergency_s": -1.0},
    ],
)
def test_impossible_jobs_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        job(Spaced(1800.0), **changes)


def test_impossible_failures_and_tables_are_refused() -> None:
    for make in (
        lambda: Exponential(0.0),
        lambda: Exponential(math.nan),
        lambda: Weibull(HOUR, 0.0),
        lambda: Trace(()),
        lambda: Trace((1.0, -1.0)),
        lambda: simulate([job(Spaced(60.0))], num_runs=0, seed=1),
        lambda: straggler_table((0,), (0.1,), seed=1),
        lambda: straggler_table((8,), (1.5,), seed=1),
        lambda: straggler_table((8,), (0.5,), slow=0.5, seed=1),
        lambda: straggler_table((8,), (0.5,), num_steps=0, seed=1),
    ):
        with pytest.raises(UsageError):
            make()


def test_a_job_that_cannot_end_says_so() -> None:
    with pytest.raises(UsageError, match="does not get to its end"):
        simulate([job(Spaced(100 * HOUR), Exponential(60.0))], num_runs=1, seed=1)
