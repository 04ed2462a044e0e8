"""Claims: one attempt for each admission, numbered without gaps, whoever comes at the same time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from job_children import python, read_line

from resilient_launch.core.causes import Cause
from resilient_launch.core.errors import RlaunchError
from resilient_launch.core.events import EventWriter
from resilient_launch.core.paths import RunPaths
from resilient_launch.job import attempt as attempts
from resilient_launch.job.attempt import (
    AttemptRecord,
    claim,
    last_notice,
    last_step,
    read_attempts,
    read_ends,
    record_end,
)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    made = RunPaths(tmp_path / "run")
    made.directory.mkdir()
    for directory in made.all():
        directory.mkdir()
    return made


def _claim(paths: RunPaths, job_id: str = "1", restart: int = 0) -> attempts.Attempt:
    return claim(
        paths,
        job_id=job_id,
        slurm_restart_count=restart,
        nodes=["n1", "n2"],
        addresses=["here"],
        port=4,
        code_version="v",
    )


def _record(number: int, cause: str = "crash", **more: Any) -> AttemptRecord:
    values = {"end_step": 3, "ended_at": 5.0, "action": "requeue", "why": "because"}
    return AttemptRecord(number=number, cause=cause, **{**values, **more})


def test_attempts_are_numbered_in_order_and_read_back(paths: RunPaths) -> None:
    claimed = [_claim(paths, "1", 0), _claim(paths, "1", 1), _claim(paths, "2", 0)]
    assert [attempt.number for attempt in claimed] == [0, 1, 2]
    assert read_attempts(paths) == claimed


def test_one_admission_has_one_leader(paths: RunPaths) -> None:
    _claim(paths, "7", 2)
    with pytest.raises(RlaunchError, match=r"job 7 \(restart 2\) has claimed it already"):
        _claim(paths, "7", 2)


RACER = """
import sys
from pathlib import Path
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.attempt import claim
paths = RunPaths(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for restart in range(25):
    got = claim(paths, job_id=sys.argv[2], slurm_restart_count=restart, nodes=[], addresses=[], port=0, code_version="")
    print(got.number, flush=True)
"""


def test_two_processes_that_claim_at_the_same_time_never_share_a_number(paths: RunPaths) -> None:
    with python(RACER, str(paths.directory), "1") as first, python(RACER, str(paths.directory), "2") as second:
        racers = (first, second)
        assert [read_line(racer) for racer in racers] == ["ready", "ready"]
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("\n")
            racer.stdin.flush()
        numbers = [int(read_line(racer)) for _ in range(25) for racer in racers]
    assert sorted(numbers) == list(range(50))
    assert [attempt.number for attempt in read_attempts(paths)] == list(range(50))
    assert not list(paths.attempts.glob(".tmp-*"))


def test_a_claim_fences_unfinished_checkpoints_and_lists_what_is_published(paths: RunPaths) -> None:
    _claim(paths)
    published, unfinished = (
        paths.checkpoints / "step-00000010.a0000.r0",
        paths.checkpoints / ".tmp-step-00000020.a0000.r0-0123456789ab",
    )
    published.mkdir()
    (published / "MANIFEST.json").touch()
    unfinished.mkdir()
    (paths.checkpoints / "step-00000005.a0000.r0.corrupt").mkdir()
    second = _claim(paths, restart=1)
    assert second.checkpoints == (published.name,)
    assert not unfinished.exists() and list(paths.checkpoints.glob(".fenced-*"))


def test_the_first_word_on_an_end_stands(paths: RunPaths) -> None:
    _claim(paths)
    record_end(paths, _record(0, "preempted", first_rank=3, error="boom"))
    record_end(paths, _record(0, "crash"))
    assert read_ends(paths) == {0: _record(0, "preempted", first_rank=3, error="boom")}


def test_files_that_cannot_be_read_are_passed_over(paths: RunPaths) -> None:
    first = _claim(paths)
    (paths.attempts / "0001.json").write_text('{"number": 1, ')
    (paths.attempts / "0001.end.json").write_text("")
    (paths.attempts / "notes.json").write_text("{}")
    assert read_attempts(paths) == [first]
    assert read_ends(paths) == {}


def test_fields_of_a_later_version_are_ignored(paths: RunPaths) -> None:
    record = json.loads(paths.attempt(_claim(paths).number).read_text())
    paths.attempt(0).write_text(json.dumps({**record, "colour": "blue"}))
    assert read_attempts(paths)[0].job_id == "1"


def test_a_member_waits_for_the_claim_of_its_own_admission(paths: RunPaths) -> None:
    _claim(paths, "1", 0)
    second = _claim(paths, "1", 1)
    wanted = {"job_id": "1", "slurm_restart_count": 1}
    assert attempts.wait_for_claim(paths, **wanted, timeout_s=10, keep_waiting=lambda: True) == second
    wanted = {"job_id": "1", "slurm_restart_count": 2}
    assert attempts.wait_for_claim(paths, **wanted, timeout_s=0.3, keep_waiting=lambda: True) is None
    assert attempts.wait_for_claim(paths, **wanted, timeout_s=600, keep_waiting=lambda: False) is None


def test_the_last_step_is_the_furthest_that_anybody_said(paths: RunPaths) -> None:
    """A killed worker's last events are lost; its node agent read its page."""
    assert last_step(paths, 0) is None
    rank = EventWriter(paths.events / "a0000.r0.w00000.jsonl", rank=0)
    rank.emit("window", first=10, mono0=0.0, end_s=[0.1, 0.2], flush=True)
    assert last_step(paths, 0) == 12
    agent = EventWriter(paths.events / "a0000.n0001.jsonl", node=1)
    agent.emit("group_end", exits={"1": -9}, step=17, flush=True)
    agent.emit("group_end", exits={"1": -9}, step=-1, flush=True)
    assert last_step(paths, 0) == 17
    assert last_step(paths, 1) is None


def test_the_last_notice_is_that_of_the_attempt(paths: RunPaths) -> None:
    agent = EventWriter(paths.events / "a0001.n0000.jsonl", node=0)
    for cause in ("yielded", "preempted"):
        agent.emit("notice", cause=cause, deadline=1.0, source="SIGTERM", flush=True)
    assert (last_notice(paths, 0), last_notice(paths, 1)) == (None, Cause.PREEMPTED)


def test_a_claim_clears_up_after_those_that_were_killed(paths: RunPaths) -> None:
    _claim(paths, "1")
    left = [".tmp-0000.end.json-0123456789ab", ".tmp-0001.json-0123456789ab"]
    others = [".tmp-0002.json-0123456789ab", ".tmp-0000.json-half", "notes"]
    for name in [*left, *others]:
        (paths.attempts / name).write_text("{")
    assert _claim(paths, "2").number == 1
    assert {path.name for path in paths.attempts.iterdir()} == {"0000.json", "0001.json", *others}


def test_a_claim_that_nobody_can_read_keeps_its_number(paths: RunPaths) -> None:
    _claim(paths, "1")
    paths.attempt(1).write_text("")
    assert _claim(paths, "2").number == 2
    assert [each.number for each in read_attempts(paths)] == [0, 2]


def test_a_claim_that_the_storage_refuses_says_where(paths: RunPaths) -> None:
    paths.attempts.rmdir()
    with pytest.raises(RlaunchError, match="can't be claimed") as caught:
        _claim(paths)
    assert str(paths.attempts) in caught.value.where and caught.value.hint
