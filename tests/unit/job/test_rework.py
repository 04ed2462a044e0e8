"""Steps that are computed again against what was logged of them before."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from resilient_launch.core.events import EventWriter, read_events
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.rework import ReworkCheck, is_compared, read_logged


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    found = RunPaths(tmp_path)
    found.events.mkdir()
    return found


@pytest.fixture
def now(paths: RunPaths) -> Iterator[EventWriter]:
    writer = EventWriter(paths.events / "a0002.r0.w00000.jsonl", attempt=2, restart=0)
    yield writer
    writer.close()


def log_steps(paths: RunPaths, attempt: int, losses: dict[int, float], restart: int = 0) -> None:
    writer = EventWriter(paths.events / f"a{attempt:04d}.r{restart}.w00000.jsonl", attempt=attempt, restart=restart)
    for step, loss in losses.items():
        writer.emit("metric", step=step, values={"loss": loss, "lr": 0.1, "seconds": 0.01 * attempt})
    writer.close()


def told(paths: RunPaths) -> list[tuple[str, int]]:
    return [(event["status"], event["step"]) for event in read_events(paths.events) if event["kind"] == "rework"]


@pytest.mark.parametrize("name", ["loss", "train_loss", "eval/loss", "lr", "lr_0", "learning_rate", "Loss"])
def test_losses_and_learning_rates_are_compared(name: str) -> None:
    assert is_compared(name)


@pytest.mark.parametrize("name", ["seconds", "tokens_per_s", "glossary", "clr", "grad_norm", "mfu"])
def test_times_and_rates_are_not(name: str) -> None:
    assert not is_compared(name)


def test_the_newest_word_on_each_step_counts(paths: RunPaths) -> None:
    log_steps(paths, 0, {5: 5.0, 6: 6.0, 7: 7.0})
    log_steps(paths, 1, {6: 6.5})
    log_steps(paths, 1, {7: 7.5}, restart=1)
    log_steps(paths, 2, {5: 1.0})
    assert read_logged(paths, until=(2, 0), since_step=6) == {6: {"loss": 6.5, "lr": 0.1}, 7: {"loss": 7.5, "lr": 0.1}}
    assert read_logged(paths, until=(1, 1), since_step=7) == {7: {"loss": 7.0, "lr": 0.1}}
    # Another lineage is meant to come out otherwise.
    assert read_logged(paths, until=(2, 0), since_step=0, first_attempt=2) == {}


def test_torn_and_foreign_lines_cost_no_more_than_themselves(paths: RunPaths) -> None:
    log_steps(paths, 0, {5: 5.0})
    with (paths.events / "a0000.r0.w00000.jsonl").open("a") as file:
        file.write('{"kind":"metric","step":"x","values":3}\n{"kind":"metric","step":6,"values":{"loss":')
    assert read_logged(paths, until=(1, 0), since_step=0).keys() == {5}


def test_the_first_difference_is_told_once(paths: RunPaths, now: EventWriter, caplog: pytest.LogCaptureFixture) -> None:
    check = ReworkCheck({5: {"loss": 1.0}, 6: {"loss": 2.0, "lr": 0.1}, 7: {"loss": 3.0}}, now)
    with caplog.at_level(logging.WARNING, "rlaunch"):
        for step, values in ((5, {"loss": 1.0}), (6, {"loss": 2.0, "lr": 0.2}), (7, {"loss": 9.0}), (8, {"loss": 1.0})):
            check.compare(step, values)
    assert told(paths) == [("differs", 6)]
    (event,) = (each for each in read_events(paths.events) if each["kind"] == "rework")
    assert (event["name"], event["before"], event["now"], event["num_compared"]) == ("lr", 0.1, 0.2, 3)
    assert len(caplog.records) == 1 and "step 6 came out otherwise" in caplog.text


def test_steps_that_come_out_the_same_are_told_at_their_end(paths: RunPaths, now: EventWriter) -> None:
    nan = float("nan")
    check = ReworkCheck({5: {"loss": 1.0}, 6: {"loss": nan}}, now)
    for step, loss in ((5, 1.0), (6, nan), (7, 2.0), (8, 2.0)):
        check.compare(step, {"loss": loss, "seconds": step})
    assert told(paths) == [("same", 7)]


def test_where_nothing_was_logged_nothing_is_told(paths: RunPaths, now: EventWriter) -> None:
    for before in ({}, {5: {"other": 1.0}}):
        check = ReworkCheck(before, now)
        for step in (5, 6):
            check.compare(step, {"loss": 1.0})
    now.flush()
    assert told(paths) == []
