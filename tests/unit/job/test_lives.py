"""The newest worker groups, told from events and ends as real attempts leave them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from resilient_launch.core.events import EventWriter
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.attempt import Attempt, AttemptRecord, last_saved_step, record_end
from resilient_launch.job.lives import read_lives


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path)
    for directory in paths.all():
        directory.mkdir()
    return paths


def attempt(paths: RunPaths, number: int) -> None:
    record = Attempt(
        number=number,
        job_id="1",
        slurm_restart_count=number,
        nodes=("n1",),
        addresses=(),
        port=0,
        claimed_at=0.0,
    )
    paths.attempt(number).write_text(json.dumps(asdict(record)))


def end(paths: RunPaths, number: int, cause: str, action: str = "requeue") -> None:
    record_end(paths, AttemptRecord(number=number, cause=cause, end_step=None, ended_at=0.0, action=action, why=""))


def group(
    paths: RunPaths, number: int, restart: int, *, start: str | None, resume: int, steps: int, saves: bool = False
) -> None:
    """A worker group that resumed and stepped, as its first rank and its node agent would tell it."""
    rank = EventWriter(
        paths.events / f"a{number:04d}.r{restart}.w00000.jsonl", attempt=number, restart=restart, node=0, rank=0
    )
    rank.emit(
        "resume",
        resume_step=resume,
        rework_steps=0,
        world_size=1,
        slurm_restart_count=number,
        torchelastic_restart_count=restart,
        last_cause=None,
        checkpoint=start,
    )
    # The last steps of a killed worker never reach its file.
    rank.emit("window", first=resume, mono0=0.0, end_s=[0.1] * max(steps - 2, 0))
    if saves:
        rank.emit("checkpoint", step=resume + 1, status="durable", reason="steps")
    rank.close()
    agent = EventWriter(paths.events / f"a{number:04d}.n0000.jsonl", attempt=number, restart=restart, node=0)
    agent.emit("group_end", exits={0: -9}, step=resume + steps)
    agent.close()


def test_lives_of_two_attempts_in_order(paths: RunPaths) -> None:
    attempt(paths, 0)
    group(paths, 0, 0, start=None, resume=0, steps=50, saves=True)
    group(paths, 0, 1, start="c40", resume=40, steps=10)
    end(paths, 0, "preempted")
    attempt(paths, 1)
    group(paths, 1, 0, start="c40", resume=40, steps=10)
    lives = read_lives(paths, until=(2, 0))
    assert [(life.attempt, life.restart, life.checkpoint, life.end_step) for life in lives] == [
        (0, 0, None, 50),
        (0, 1, "c40", 50),
        (1, 0, "c40", 50),
    ]
    # The second ended after a notice; the third has no word yet, and is asked about because it failed.
    assert [life.has_failed for life in lives] == [True, False, True]
    assert [life.has_saved for life in lives] == [True, False, False]
    assert [life.attempt for life in read_lives(paths, until=(1, 0))] == [0, 0]
    assert last_saved_step(paths, 0) == 1
    assert last_saved_step(paths, 1) is None


def test_after_a_verdict_the_count_begins_anew(paths: RunPaths) -> None:
    for number, action in enumerate(("requeue", "fail", "requeue")):
        attempt(paths, number)
        group(paths, number, 0, start=None, resume=0, steps=5)
        end(paths, number, "crash", action)
    assert [life.attempt for life in read_lives(paths, until=(3, 0))] == [2]


def test_an_attempt_without_a_worker_group_has_no_lives(paths: RunPaths) -> None:
    attempt(paths, 0)
    assert read_lives(paths, until=(1, 0)) == []
