"""What each attempt did, from the files alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_files import RunFiles

from resilient_launch.report.attempts import attempt_rows, metrics


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    return RunFiles(tmp_path / "run")


def test_a_run_without_attempts_has_no_rows(files: RunFiles) -> None:
    assert attempt_rows(files.paths) == []


def test_a_claimed_attempt_has_a_row_before_it_has_any_event(files: RunFiles) -> None:
    files.attempt()
    (row,) = attempt_rows(files.paths)
    assert (row.number, row.job_id, row.cause, row.resume_step, row.end_step, row.rework_steps) == (
        0,
        "7",
        None,
        None,
        None,
        0,
    )
    assert (row.nodes, row.phase, row.seconds >= 0) == (("n1", "n2"), "init", True)


def test_rows_tell_where_each_attempt_began_ended_and_what_it_did_again(files: RunFiles) -> None:
    first = files.attempt()
    files.steps(first, 0, 130)
    files.end(first, "preempted", 130)
    second = files.attempt(1)
    files.steps(second, 130, 70)
    # Killed without a word: the next attempt knows how far it had come.
    third = files.attempt(2)
    files.end(second, "node_failure", 205)
    files.steps(third, 150, 60, rework=55)
    rows = attempt_rows(files.paths)
    assert [(row.resume_step, row.end_step, row.rework_steps, row.cause) for row in rows] == [
        (0, 130, 0, "preempted"),
        (130, 205, 0, "node_failure"),
        (150, 210, 55, None),
    ]
    assert [row.slurm_restart_count for row in rows] == [0, 1, 2]
    assert rows[0].why == "it was preempted" and rows[2].why == "" and rows[2].phase == "step"
    assert 4 < rows[0].seconds < 10


def test_worker_group_restarts_are_counted_and_their_rework_added(files: RunFiles) -> None:
    attempt = files.attempt()
    files.steps(attempt, 0, 45)
    files.steps(attempt, 40, 20, rework=5, group=1)
    for group in range(2, 11):
        files.steps(attempt, 60, 10, rework=1, group=group)
    (row,) = attempt_rows(files.paths)
    assert (row.resume_step, row.end_step, row.torchelastic_restart_count) == (0, 70, 10)
    assert row.rework_steps == 5 + 9


def test_other_ranks_and_torn_lines_do_not_matter(files: RunFiles) -> None:
    attempt = files.attempt()
    files.steps(attempt, 0, 20)
    other = files.rank(attempt, rank=1)
    other.emit("window", first=0, mono0=0.0, end_s=[1.0] * 500, flush=True)
    with (files.paths.events / "a0000.r0.w00000.jsonl").open("a") as file:
        file.write('{"kind":"window","first":20,"end_s":[0.1')
    (row,) = attempt_rows(files.paths)
    assert row.end_step == 20


def test_a_step_that_ran_again_has_its_newest_values(files: RunFiles) -> None:
    first, second = files.attempt(), files.attempt(1)
    for attempt, group, loss in ((first, 0, 1.0), (first, 2, 2.0), (first, 10, 3.0)):
        events = files.rank(attempt, group)
        events.emit("metric", step=5, values={"loss": loss}, flush=True)
        events.emit("metric", step=group, values={"loss": -loss}, flush=True)
    assert metrics(files.paths)[5] == {"loss": 3.0}
    files.rank(second).emit("metric", step=5, values={"loss": 4.0}, flush=True)
    assert metrics(files.paths) == {5: {"loss": 4.0}, 0: {"loss": -1.0}, 2: {"loss": -2.0}, 10: {"loss": -3.0}}
