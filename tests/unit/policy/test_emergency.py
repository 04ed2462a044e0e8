"""With so many seconds left: is a new save begun, or the one in flight finished?"""

import pytest

from resilient_launch.policy.emergency import RECENT, Act, InFlight, SaveTimes, choose


def saves(*whole_s: float) -> list[SaveTimes]:
    """Saves that took so many seconds each: a tenth staging, eight writing, one committing."""
    return [SaveTimes(stage_s=0.1 * each, write_s=0.8 * each, commit_s=0.1 * each) for each in whole_s]


TEN = saves(10.0, 10.0, 10.0)


@pytest.mark.parametrize(
    ("left_s", "past", "elapsed_s", "has_newest", "act", "why"),
    [
        # Nothing in flight: there is nothing to lose by trying.
        (30.0, TEN, None, False, Act.SAVE, "needs 10 s and 30 s are left"),
        (5.0, TEN, None, False, Act.SAVE, "trying, as nothing else is under way"),
        (0.0, TEN, None, False, Act.SAVE, "trying"),
        (5.0, [], None, False, Act.SAVE, "no save has been measured"),
        (None, TEN, None, False, Act.SAVE, "no deadline"),
        (None, TEN, 1.0, False, Act.SAVE, "no deadline"),
        # One is, which has nine seconds to write and commit: the new one comes after it.
        (20.0, TEN, 0.0, False, Act.SAVE, "needs 19 s and 20 s are left"),
        (18.0, TEN, 0.0, False, Act.FINISH, "finishing the save of step 7, which needs 9 s more"),
        (18.0, TEN, 5.0, False, Act.SAVE, "needs 14 s"),
        (9.0, TEN, 5.0, False, Act.FINISH, "needs 4 s more"),
        # It takes longer than any before it: any moment now.
        (9.0, TEN, 100.0, False, Act.FINISH, "needs 0 s more"),
        (10.0, TEN, 100.0, False, Act.SAVE, "needs 10 s"),
        # One has just ended: a new one is worth it only where it fits.
        (10.0, TEN, None, True, Act.SAVE, "needs 10 s"),
        (9.0, TEN, None, True, Act.FINISH, "leaving with the save that has just ended"),
        # The prediction is a bad case's, not the middle one.
        (15.0, saves(1.0, 1.0, 20.0), 0.0, False, Act.FINISH, "needs 38 s"),
        # What was long ago no longer counts.
        (15.0, saves(100.0, *[1.0] * RECENT), 0.0, False, Act.SAVE, "needs 1.9 s"),
        # One in twenty may be worse than the prediction.
        (15.0, saves(*[1.0] * (RECENT - 1), 100.0), 0.0, False, Act.SAVE, "needs 1.9 s"),
    ],
)
def test_choice(
    left_s: float | None,
    past: list[SaveTimes],
    elapsed_s: float | None,
    has_newest: bool,
    act: Act,
    why: str,
) -> None:
    flight = None if elapsed_s is None else InFlight(step=7, elapsed_s=elapsed_s)
    choice = choose(left_s=left_s, past=past, in_flight=flight, has_newest=has_newest)
    assert choice.act is act
    assert why in choice.why
