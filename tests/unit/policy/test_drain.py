"""Which runs a maintenance touches, how they come back, and which limit ends before it."""

import pytest

from resilient_launch.policy.drain import FIT_MARGIN_S, Window, comes_back, fitting_limit_s, is_touched

NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("window", "nodes", "end_time", "touched"),
    [
        (Window(nodes=frozenset({"n1"})), ["n1", "n2"], NOW + 10, True),
        (Window(nodes=frozenset({"n3"})), ["n1", "n2"], NOW + 10, False),
        (Window(nodes=frozenset({"n1"}), start=NOW + 100), ["n1"], NOW + 99, False),
        (Window(nodes=frozenset({"n1"}), start=NOW + 100), ["n1"], NOW + 101, True),
        (Window(nodes=frozenset({"n1"}), start=NOW + 100), ["n1"], None, True),
        (Window(nodes=None, start=NOW + 100), ["n9"], NOW + 200, True),
        (Window(nodes=None, start=NOW + 100), ["n9"], NOW + 50, False),
    ],
)
def test_touched(window: Window, nodes: list[str], end_time: float | None, touched: bool) -> None:
    assert is_touched(window, nodes=nodes, end_time=end_time) is touched


def test_back_at_the_end_of_the_window_or_held_where_that_is_not_known() -> None:
    assert comes_back(Window(nodes=None, start=NOW, end=NOW + 60), now=NOW) == (False, NOW + 60)
    assert comes_back(Window(nodes=None, start=NOW), now=NOW) == (True, None)
    assert comes_back(Window(nodes=None, start=NOW - 99, end=NOW - 1), now=NOW) == (True, None)


@pytest.mark.parametrize(
    ("asked_s", "room_s", "limit_s"),
    [(3600, 7200, 3600), (7200, 3600, 3600), (None, 3600, 3600), (7200, 3659, 3600), (7200, 179, None), (60, 100, 60)],
)
def test_the_longest_limit_that_fits(asked_s: float | None, room_s: float, limit_s: float | None) -> None:
    start = NOW + room_s + FIT_MARGIN_S
    assert fitting_limit_s(now=NOW, start=start, asked_s=asked_s, least_s=180) == limit_s
