import numpy as np
import pytest

from resilient_launch.policy.straggler import Finding, flags, judge, usual

NODES = {rank: f"n{rank // 2}" for rank in range(8)}
EVEN = [1.0, 1.01, 0.99, 1.0, 1.0, 1.01, 0.99, 1.0]


def with_slow(ratio: float, *ranks: int) -> list[float]:
    return [value * ratio if rank in ranks else value for rank, value in enumerate(EVEN)]


def test_one_window() -> None:
    assert flags(with_slow(1.2, 3)) == [rank == 3 for rank in range(8)]
    assert not any(flags(EVEN))
    # Without any spread at all, half a per cent stands in for it; less than three per cent is never flagged.
    assert flags([1.0, 1.0, 1.0, 1.029]) == [False] * 4
    assert flags([1.0, 1.0, 1.0, 1.031]) == [False, False, False, True]
    # A fast rank is no straggler, and two ranks can't tell which of them is odd.
    assert not any(flags(with_slow(0.5, 3)))
    assert not any(flags([1.0, 2.0]))
    assert not any(flags([0.0, 0.0, 0.0]))


def test_three_windows_running() -> None:
    slow, even = with_slow(1.2, 3), EVEN
    assert judge([slow, slow], None, NODES) == []
    assert judge([slow, even, slow], None, NODES) == []
    assert judge([with_slow(1.2, 3), with_slow(1.2, 4), with_slow(1.2, 5)], None, NODES) == []
    (found,) = judge([even, slow, slow, slow], None, NODES)
    assert found == Finding(scope="rank", ranks=(3,), nodes=("n1",), ratio=pytest.approx(1.2))


def test_a_slow_node_is_told_from_slow_ranks_and_from_everything_being_slower() -> None:
    (found,) = judge([with_slow(1.3, 2, 3)] * 3, 1.0, NODES)
    assert (found.scope, found.ranks, found.nodes) == ("node", (2, 3), ("n1",))
    (found,) = judge([[1.5 * value for value in EVEN]] * 3, 1.0, NODES)
    assert (found.scope, found.ranks, found.nodes, found.ratio) == ("all", (), (), 1.5)
    assert judge([[1.2 * value for value in EVEN]] * 3, 1.0, NODES) == []
    scopes = [each.scope for each in judge([[1.5 * value for value in with_slow(1.2, 3)]] * 3, 1.0, NODES)]
    assert scopes == ["all", "rank"]


def test_what_is_usual_needs_some_windows() -> None:
    assert usual([1.0] * 5) is None
    assert usual([1.0] * 5 + [9.0]) == 1.0


@pytest.mark.parametrize(
    ("slowdown", "least", "most"), [(1.0, 0.0, 0.0), (1.05, 0.0, 0.25), (1.08, 0.6, 0.95), (1.12, 0.98, 1.0)]
)
def test_detection_power_at_512_ranks(slowdown: float, least: float, most: float) -> None:
    """Ranks differ by 1 %, steps by 3 %, one step in 500 takes twice as long; one rank is slower by ``slowdown``."""
    rng = np.random.default_rng(5)
    num_ranks, num_trials = 512, 60
    detected = 0
    for _ in range(num_trials):
        rate = 1.0 + 0.01 * rng.standard_normal(num_ranks)
        rate[7] *= slowdown
        steps = rate[:, None, None] * (1.0 + 0.03 * rng.standard_normal((num_ranks, 3, 50)))
        steps *= np.where(rng.random(steps.shape) < 0.002, 2.0, 1.0)
        windows = np.median(steps, axis=2).T.tolist()
        slow = {rank for found in judge(windows, None, dict.fromkeys(range(num_ranks), "n")) for rank in found.ranks}
        assert not slow - {7}, "a false alarm"
        detected += 7 in slow
        # The usual rule: a rank whose own median is under three quarters of the best rank's speed.
        middles = np.median(steps, axis=(1, 2))
        assert not (middles.min() / middles < 0.75).any()
    assert least <= detected / num_trials <= most
