"""When the wait of a requeued job may be lifted."""

from __future__ import annotations

import pytest

from resilient_launch.policy.waits import MARGIN_S, wait_left_s

NOW, KILL_WAIT_S = 1_000_000.0, 30.0
SAFE_S = KILL_WAIT_S + MARGIN_S


@pytest.mark.parametrize(
    ("not_before", "pending_s", "left_s"),
    [
        # The last attempt's end is known: only what it asked for counts.
        (0.0, 0.0, 0.0),
        (NOW - 1, 0.0, 0.0),
        (NOW, 0.0, 0.0),
        (NOW + 40, 0.0, 40.0),
        (NOW + 40, 10 * SAFE_S, 40.0),
        # It ended without a word: what it started may be alive.
        (None, 0.0, SAFE_S),
        (None, KILL_WAIT_S, MARGIN_S),
        (None, SAFE_S - 1, 1.0),
        (None, SAFE_S, 0.0),
        (None, 10 * SAFE_S, 0.0),
    ],
)
def test_a_wait_is_lifted_once_nothing_speaks_for_it(not_before: float | None, pending_s: float, left_s: float) -> None:
    assert wait_left_s(now=NOW, not_before=not_before, pending_s=pending_s, kill_wait_s=KILL_WAIT_S) == left_s
