"""Every checked table of intervals, to its printed digits, and what must hold for any values."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from resilient_launch.core.errors import UsageError
from resilient_launch.policy import interval as policy
from resilient_launch.policy.interval import Situation

POSITIVE = st.floats(1e-9, 1e12)
ANY_POSITIVE = st.floats(min_value=5e-324, allow_nan=False, allow_infinity=False)
NOT_ABSURD = st.floats(min_value=1e-300, max_value=1e150)
SHARE = st.floats(0, 1)


@pytest.mark.parametrize(
    ("cost", "mtbf", "young", "daly", "exact", "at_young", "at_exact"),
    [
        (5, 1440, "120.00", "116.69", "116.69", ".9126", ".9126"),
        (5, 360, "60.00", "56.71", "56.71", ".8192", ".8194"),
        (5, 15, "12.25", "9.14", "9.17", ".1943", ".1997"),
        (10, 186, "60.99", "54.51", "54.52", ".6687", ".6699"),
        (30, 60, "60.00", "41.67", "41.90", ".2431", ".2554"),
    ],
)
def test_intervals_and_their_goodput(
    cost: float, mtbf: float, young: str, daly: str, exact: str, at_young: str, at_exact: str
) -> None:
    found = policy.young(cost, mtbf), policy.daly(cost, mtbf), policy.exact(cost, mtbf)
    assert tuple(f"{each:.2f}" for each in found) == (young, daly, exact)
    goodputs = [policy.goodput(each, cost_s=cost, mtbf_s=mtbf, restart_s=10) for each in (found[0], found[2])]
    assert [f"{each:.4f}"[1:] for each in goodputs] == [at_young, at_exact]


@pytest.mark.parametrize(
    ("notice", "best", "digits", "at_best", "at_young"),
    [
        (0.0, "25.96", 2, ".815", ".815"),
        (0.5, "38.0", 1, ".852", ".847"),
        (0.75, "55.5", 1, ".878", ".863"),
        (0.9, "91.7", 1, ".902", ".872"),
    ],
)
def test_notice_lengthens_the_interval(notice: float, best: str, digits: int, at_best: str, at_young: str) -> None:
    found = policy.exact(2, 186, notice=notice)
    assert f"{found:.{digits}f}" == best
    goodputs = [
        policy.goodput(each, cost_s=2, mtbf_s=186, restart_s=10, notice=notice, emergency_s=2)
        for each in (found, policy.young(2, 186))
    ]
    assert [f"{each:.3f}"[1:] for each in goodputs] == [at_best, at_young]


def test_the_literal_ratio_of_expectations_is_what_goodput_computes() -> None:
    interval, cost, mtbf, restart, notice, emergency = 38.0, 2.0, 186.0, 10.0, 0.5, 3.0
    rate = 1 / mtbf
    noticed = notice * rate
    survives, trains = math.exp(-rate * (interval + cost)), math.exp(-rate * interval)
    useful = interval * survives + noticed * (1 - trains * (1 + rate * interval)) / rate**2
    useful += interval * notice * (trains - survives)
    time = (1 - survives) * (math.exp(rate * restart) / rate + notice * emergency)
    found = policy.goodput(interval, cost_s=cost, mtbf_s=mtbf, restart_s=restart, notice=notice, emergency_s=emergency)
    assert found == pytest.approx(useful / time, rel=1e-12)


@pytest.mark.parametrize(
    ("nodes", "interval_min", "cost_s", "restart_min", "rate", "expected"),
    [
        (2000, 60, 0, 5, 6.5, ".684"),
        (2000, 5, 0, 5, 6.5, ".932"),
        (2048, policy.young(10, 3.0931 * 3600) / 60, 10, 10, 3.7887, ".906"),
    ],
)
def test_effective_training_time(
    nodes: int, interval_min: float, cost_s: float, restart_min: float, rate: float, expected: str
) -> None:
    found = policy.effective_training_time(
        interval_s=interval_min * 60,
        cost_s=cost_s,
        num_nodes=nodes,
        failures_per_1000_node_days=rate,
        restart_s=restart_min * 60,
    )
    assert f"{found:.3f}"[1:] == expected


def test_the_articles_first_order_model() -> None:
    rows = {(20, 5): 0.882, (20, 60): 0.819, (120, 30): 0.833, (600, 5): 0.326, (600, 180): 0.628}
    for (cost_s, minutes), expected in rows.items():
        waste = policy.first_order_waste(minutes * 60, cost_s=cost_s, mtbf_s=3.1 * 3600, restart_s=600)
        assert 1 / (1 + waste) == pytest.approx(expected, abs=0.0006)


def test_background_writes_cost_their_stall_and_the_speed_lost_while_they_drain() -> None:
    inputs = {"stall_s": 2.0, "slowdown": 0.05, "drain_s": 120.0, "mtbf_s": 11160.0}
    best_s = policy.background(**inputs)
    assert best_s == pytest.approx(math.sqrt(2 * (2 + 0.05 * 120) * 11160))
    wastes = [policy.background_waste(best_s * factor, **inputs) for factor in (0.8, 1.0, 1.25)]
    assert wastes[1] == min(wastes)
    assert policy.background(**{**inputs, "drain_s": 5000.0}) == 5000.0


def test_a_misjudged_rate() -> None:
    assert policy.misjudged(1) == 0
    assert policy.misjudged(4) == policy.misjudged(0.25) == pytest.approx(0.25)
    truth = policy.first_order_waste(policy.young(10, 3600), cost_s=10, mtbf_s=3600)
    wrong = policy.first_order_waste(policy.young(10, 4 * 3600), cost_s=10, mtbf_s=3600)
    assert wrong / truth - 1 == pytest.approx(policy.misjudged(4))


@given(cost=st.floats(1e-3, 1e5), mtbf=st.floats(1, 1e8), notice=st.floats(0, 0.95), factor=st.floats(0.3, 3))
def test_no_interval_beats_the_exact_one(cost: float, mtbf: float, notice: float, factor: float) -> None:
    assume(cost < 20 * mtbf)
    best = policy.exact(cost, mtbf, notice=notice)
    kwargs = {"cost_s": cost, "mtbf_s": mtbf, "notice": notice}
    assert policy.goodput(best * factor, **kwargs) <= policy.goodput(best, **kwargs) * (1 + 1e-9)


@given(cost=st.floats(1e-6, 1e6), mtbf=st.floats(1e-3, 1e9))
def test_the_exact_interval_solves_its_equation(cost: float, mtbf: float) -> None:
    share = policy.exact(cost, mtbf) / mtbf
    assume(1e-7 < share < 1)
    assert -share - math.log1p(-share) == pytest.approx(cost / mtbf, rel=1e-6, abs=1e-15)


@given(cost=POSITIVE, mtbf=POSITIVE, notice=SHARE)
def test_the_exact_interval_is_below_youngs_and_grows_with_notice(cost: float, mtbf: float, notice: float) -> None:
    plain = policy.exact(cost, mtbf)
    assert 0 < plain <= min(mtbf, policy.young(cost, mtbf)) * (1 + 1e-9)
    assert policy.exact(cost, mtbf, notice=notice) >= plain * (1 - 1e-9)


@given(cost=ANY_POSITIVE, mtbf=ANY_POSITIVE, interval=ANY_POSITIVE, restart=ANY_POSITIVE, notice=SHARE)
def test_formulas_never_raise(cost: float, mtbf: float, interval: float, restart: float, notice: float) -> None:
    for found in (
        policy.young(cost, mtbf),
        policy.daly(cost, mtbf),
        policy.exact(cost, mtbf, notice=notice),
        policy.first_order(cost, mtbf, notice=notice),
        policy.background(stall_s=cost, slowdown=notice, drain_s=restart, mtbf_s=mtbf),
        policy.first_order_waste(interval, cost_s=cost, mtbf_s=mtbf, restart_s=restart),
    ):
        assert not math.isnan(found)
    kept = policy.goodput(interval, cost_s=cost, mtbf_s=mtbf, restart_s=restart, notice=notice, emergency_s=cost)
    assert 0 <= kept <= 1


@given(cost=NOT_ABSURD, mtbf=NOT_ABSURD, restart=NOT_ABSURD, notice=SHARE, drain=NOT_ABSURD, slowdown=SHARE)
def test_a_situation_always_has_an_answer(
    cost: float, mtbf: float, restart: float, notice: float, drain: float, slowdown: float
) -> None:
    situation = Situation(cost_s=cost, mtbf_s=mtbf, restart_s=restart, notice=notice, drain_s=drain, slowdown=slowdown)
    low_s, high_s = situation.flat_region()
    assert not math.isnan(situation.best_s)
    assert low_s <= max(high_s, situation.drain_s)
    situation.oddity()


@given(current=POSITIVE, target=POSITIVE)
def test_an_update_moves_at_most_a_quarter(current: float, target: float) -> None:
    moved = policy.move(current, target)
    assert 0.75 * current * (1 - 1e-12) <= moved <= 1.25 * current * (1 + 1e-12)
    if abs(target / current - 1) < 0.249:
        assert moved == target


def test_the_flat_region_ends_where_a_hundredth_is_lost() -> None:
    situation = Situation(cost_s=120, mtbf_s=3.1 * 3600, restart_s=600, notice=0.5)
    best = situation.goodput_at(situation.best_s)
    low_s, high_s = situation.flat_region()
    assert low_s < situation.best_s < high_s
    for end_s in (low_s, high_s):
        assert situation.goodput_at(end_s) == pytest.approx(0.99 * best, rel=1e-6)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"cost_s": 0.0}, "write cost of 0 s"),
        ({"cost_s": math.nan}, "write cost of nan s"),
        ({"mtbf_s": -1.0}, "MTBF of -1 s"),
        ({"mtbf_s": math.inf}, "MTBF of inf s"),
        ({"restart_s": -1.0}, "restart of -1 s"),
        ({"notice": 1.5}, "notice of 1.5"),
        ({"notice": math.nan}, "notice of nan"),
        ({"slowdown": -0.1}, "slowdown of -0.1"),
        ({"emergency_s": math.nan}, "emergency save of nan s"),
    ],
)
def test_impossible_values_are_refused(values: dict[str, float], word: str) -> None:
    with pytest.raises(UsageError, match=word.replace(".", r"\.")):
        Situation(**{"cost_s": 120.0, "mtbf_s": 3600.0, **values})


def test_absurd_values_have_an_answer_and_a_word() -> None:
    assert "most checkpoints will not complete" in str(Situation(cost_s=600, mtbf_s=60).oddity())
    assert "most restarts will not complete" in str(Situation(cost_s=1, mtbf_s=60, restart_s=90).oddity())
    assert Situation(cost_s=1, mtbf_s=3600, restart_s=60).oddity() is None
