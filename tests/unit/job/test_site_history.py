"""The site's failure history: fed by ends, read with the caution that a file of everybody's deserves."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from resilient_launch.config.schema import CheckpointConfig
from resilient_launch.core.paths import RunPaths
from resilient_launch.core.units import DAY_S
from resilient_launch.job.attempt import Attempt, AttemptRecord
from resilient_launch.job.site_history import MAX_AGE_S, node_rate, note_attempt, prior_rate
from resilient_launch.policy.failure_rate import FAILURES_PER_1000_NODE_DAYS, mtbf_of_nodes_s


def run(root: Path, name: str) -> RunPaths:
    paths = RunPaths.of(name, root)
    paths.directory.mkdir()
    for each in paths.all():
        each.mkdir()
    paths.run.write_text(json.dumps({"id": f"id-{name}"}))
    return paths


def note(file: Path, paths: RunPaths, cause: str, *, days: float, nodes: int = 100, ago_s: float = 0.0) -> None:
    ended_at = time.time() - ago_s
    number = len(file.read_text().splitlines()) if file.exists() else 0
    names = tuple(f"n{index}" for index in range(nodes))
    claimed_at = ended_at - days * DAY_S
    attempt = Attempt(
        number=number, job_id="1", slurm_restart_count=0, nodes=names, addresses=(), port=0, claimed_at=claimed_at
    )
    record = AttemptRecord(number=number, cause=cause, end_step=1, ended_at=ended_at, action="requeue", why="")
    note_attempt(file, paths, attempt, record)


def per_1000_node_days(file: Path, paths: RunPaths) -> float:
    return node_rate(file, paths).per_second * 1000 * DAY_S


def test_what_others_saw_is_worth_a_few_failures_at_most(tmp_path: Path) -> None:
    file, mine, other = tmp_path / "history", run(tmp_path, "mine"), run(tmp_path, "other")
    alone = prior_rate(CheckpointConfig(), mine, 100)
    assert (alone.events, alone.mtbf_s) == (1.0, pytest.approx(mtbf_of_nodes_s(100)))
    config = CheckpointConfig(failure_history=file)
    assert prior_rate(config, mine, 100) == alone
    note(file, other, "hang", days=0.5)
    note(file, other, "hang", days=0.5)
    assert prior_rate(config, mine, 100).events == 3.0
    for _ in range(30):
        note(file, other, "node_failure", days=0.5)
    many = prior_rate(config, mine, 100)
    assert many.events == 4.0
    assert many.mtbf_s == pytest.approx(node_rate(file, mine).mtbf_s / 100)


def test_what_other_runs_saw_of_the_nodes_takes_over_from_the_belief(tmp_path: Path) -> None:
    file, mine, other = tmp_path / "history", run(tmp_path, "mine"), run(tmp_path, "other")
    assert per_1000_node_days(file, mine) == pytest.approx(FAILURES_PER_1000_NODE_DAYS)
    for _ in range(30):
        note(file, other, "node_failure", days=0.5)
        note(file, other, "preempted", days=0.5)
    # Thirty in 3000 node-days, and the belief's one in 154.
    expected = (30 + 1) / (3000 + 1000 / FAILURES_PER_1000_NODE_DAYS) * 1000
    assert per_1000_node_days(file, mine) == pytest.approx(expected, rel=1e-3)
    assert per_1000_node_days(file, other) == pytest.approx(FAILURES_PER_1000_NODE_DAYS), "its own history"


def test_lines_told_twice_old_ones_and_junk_count_for_nothing(tmp_path: Path) -> None:
    file, mine, other = tmp_path / "history", run(tmp_path, "mine"), run(tmp_path, "other")
    note(file, other, "hang", days=10)
    before = per_1000_node_days(file, mine)
    text = file.read_text()
    good = json.loads(text)
    junk = [
        "{", "7", "[]", "\x00\xff", json.dumps({**good, "v": 2, "attempt": 5}), json.dumps({**good, "attempt": "6"}),
        json.dumps({**good, "attempt": 7, "seconds": -1}), json.dumps({**good, "attempt": 8, "nodes": 1e300}),
        json.dumps({**good, "attempt": 9, "seconds": float("nan")}), "[" * 100_000, text[:20],
    ]  # fmt: skip
    file.write_text(text + text + "\n".join(junk) + "\n")
    note(file, other, "hang", days=1, ago_s=MAX_AGE_S + DAY_S)
    assert per_1000_node_days(file, mine) == before


def test_the_queue_before_a_silent_end_is_no_exposure(tmp_path: Path) -> None:
    file, paths = tmp_path / "history", run(tmp_path, "mine")
    event = paths.events / "a0000.n0000.jsonl"
    event.touch()
    os.utime(event, (time.time() - 9 * DAY_S,) * 2)
    note(file, paths, "node_failure", days=10)
    assert json.loads(file.read_text())["seconds"] == pytest.approx(DAY_S, rel=0.01)


def test_links_pipes_and_missing_directories_stop_nothing(tmp_path: Path) -> None:
    paths = run(tmp_path, "mine")
    target = tmp_path / "elsewhere"
    target.touch()
    link, pipe, missing = tmp_path / "link", tmp_path / "pipe", tmp_path / "no" / "history"
    link.symlink_to(target)
    os.mkfifo(pipe)
    for file in (link, pipe, missing):
        attempt = Attempt(
            number=0, job_id="1", slurm_restart_count=0, nodes=("a",), addresses=(), port=0, claimed_at=0.0
        )
        record = AttemptRecord(number=0, cause="hang", end_step=1, ended_at=9.0, action="requeue", why="")
        note_attempt(file, paths, attempt, record)
        assert per_1000_node_days(file, paths) == pytest.approx(FAILURES_PER_1000_NODE_DAYS)
    assert target.read_bytes() == b""
