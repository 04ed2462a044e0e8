from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from resilient_launch.cli.main import app
from resilient_launch.core.errors import RefusedError
from resilient_launch.core.probe import LockKind
from resilient_launch.policy.stagger import Want, WriteSample
from resilient_launch.report.stagger import group_status
from resilient_launch.stagger.group import Group
from resilient_launch.stagger.ticket import OwnTicket
from resilient_launch.stagger.tickets import Member


def want(age_s: float) -> Want:
    return Want(id="", kind="save", weight=8, write_s=30, mtbf_s=1e5, age_s=age_s, period_s=600, arrived=0)


def busy(directory: Path) -> None:
    group = Group(directory, writers=1, lock=LockKind.FLOCK)
    group.prepare()
    samples = (WriteSample(num_writers=1, seconds=20.0, num_bytes=4e9),)
    group.publish(Member(run="/r/writer", weight=8, write_s=20, mtbf_s=1e5, period_s=600, samples=samples))
    OwnTicket(group, "/r/writer", want(700), job_id="41", place="hold")
    OwnTicket(group, "/r/early", want(500))
    OwnTicket(group, "/r/next", want(900))


def test_who_writes_who_waits_and_when_its_turn_should_come(tmp_path: Path) -> None:
    busy(tmp_path / "group")
    done = CliRunner().invoke(app, ["stagger", "status", str(tmp_path / "group"), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["schema"] == 1
    assert [(each["run"], each["job_id"], each["kind"]) for each in found["writing"]] == [("writer", "41", "save")]
    assert [(each["run"], each["expected_s"], each["due"]) for each in found["waiting"]] == [
        ("next", 20.0, True),
        ("early", 40.0, False),
    ]
    assert (found["bytes_per_s"], found["mean_turn_s"], found["members"]) == (200_000_000, 20.0, 1)
    assert found["warnings"] == []


def test_the_text_says_the_same(tmp_path: Path) -> None:
    busy(tmp_path)
    text = CliRunner().invoke(app, ["stagger", "status", str(tmp_path)]).stdout
    assert "1 of 1 write, 2 wait; a turn takes 20s, 190.7M/s a writer" in text
    rows = [line.split()[:2] for line in text.splitlines()[2:]]
    assert rows == [["writing", "writer"], ["waiting", "next"], ["early", "early"]]


def test_a_group_that_others_can_disturb_is_warned_about(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert "chmod +t" in group_status(tmp_path)["warnings"][0]


def test_no_group_is_a_refusal(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["stagger", "status", str(tmp_path / "none")])
    assert isinstance(done.exception, RefusedError)
    assert "no such file" in str(done.exception)


def test_without_runs_there_is_no_group(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["stagger", "status", "--root", str(tmp_path)])
    assert done.exit_code == 0
    assert done.stdout == ""
