from __future__ import annotations

from pathlib import Path

from storm import run_storm


def test_a_short_storm_never_has_too_many_writers(tmp_path: Path) -> None:
    found = run_storm(tmp_path, num_processes=12, writers=2, seconds=12.0, hold_s=1.0, seed=3, freeze_s=4.0, least=3)
    assert found["most_writers"] <= 2
    assert found["turns"] >= 3
    assert found["kills"] + found["freezes"] >= 3
    # Whoever looks late on a busy machine may find a slot that was just left for somebody else.
    assert found["inversions"] <= 1
