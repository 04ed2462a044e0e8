"""Notes: figures from what was measured, and lines that a configuration accepts."""

from __future__ import annotations

from pathlib import Path

import yaml
from trace_maker import Plan, make

from resilient_launch.config import loads
from resilient_launch.report.accounts import RunFacts, RunReport, run_report
from resilient_launch.report.notes import notes, short_duration
from resilient_launch.report.text import Style, render


def account(plans: list[Plan], root: Path) -> RunReport:
    made = make(plans)
    return run_report(RunFacts(paths=made.write(root), created_at=None, rows={"7": made.rows}, is_live=False, now=0.0))


def accepted(line: str) -> bool:
    """Whether the line is one of a configuration."""
    text = yaml.safe_dump({"name": "a", "module": "json.tool", **yaml.safe_load(line)})
    return loads(text).name == "a"


def test_saving_too_often_is_told_with_the_optimum(tmp_path: Path) -> None:
    found = notes(account([Plan(num_steps=1000, ends="crash", save_every=40, save_s=30.0)] * 2, tmp_path))
    assert found[0].line.startswith("checkpoint: {every: ")
    assert found[0].saves > 0.05
    assert "the optimum for 30 s of blocking" in found[0].what
    assert accepted(found[0].line)


def test_hangs_are_told_with_a_line_that_shortens_them(tmp_path: Path) -> None:
    found = notes(
        account([Plan(num_steps=500, ends="hang", hang_s=3000.0), Plan(num_steps=9, ends="finished")], tmp_path)
    )
    (hang,) = [note for note in found if "stood still" in note.what]
    assert hang.saves > 0.3
    assert accepted(hang.line)


def test_a_run_that_fared_well_has_nothing_to_change(tmp_path: Path) -> None:
    assert notes(account([Plan(num_steps=5000, ends="finished", save_every=1000, save_s=1.0)], tmp_path)) == ()


def test_three_notes_at_most_and_the_greatest_first(tmp_path: Path) -> None:
    plans = [
        Plan(num_steps=400, ends="hang", hang_s=900.0, straggler=0.5, save_every=20),
        Plan(num_steps=400, ends="crash"),
    ]
    found = notes(account(plans * 2, tmp_path))
    assert 1 <= len(found) <= 3
    assert list(found) == sorted(found, key=lambda note: -note.saves)


def test_the_screen_is_eighty_columns_with_and_without_colour(tmp_path: Path) -> None:
    report = account([Plan(num_steps=500, ends="crash"), Plan(num_steps=300, ends="finished")], tmp_path)
    plain = render(report, Style(colour=False, unicode=False))
    assert plain.isascii() and max(map(len, plain.splitlines())) <= 80
    assert "\x1b[" in render(report, Style(colour=True))


def test_durations_for_reading() -> None:
    assert [short_duration(each) for each in (0.1534, 119.0, 3000.0, 7200.0, 1e6)] == [
        "0.153 s",
        "119 s",
        "50 min",
        "2 h",
        "11.6 d",
    ]
