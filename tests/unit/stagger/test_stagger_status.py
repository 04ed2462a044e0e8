from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from resilient_launch.cli.main import app
from resilient_launch.core.errors import RefusedError, UsageError
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


def test_a_group_that_is_new_claims_nothing_of_its_turns(tmp_path: Path) -> None:
    text = CliRunner().invoke(app, ["stagger", "status", str(tmp_path)]).stdout
    assert text.strip() == f"{tmp_path}: 0 of 1 write, 0 wait; no turn is measured"


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
    as_json = CliRunner().invoke(app, ["stagger", "status", "--root", str(tmp_path), "--json"])
    assert json.loads(as_json.stdout) == {"schema": 1, "groups": []}


def test_watching_goes_on_while_the_directory_is_away(tmp_path: Path) -> None:
    directory = tmp_path / "group"
    busy(directory)
    code = "from resilient_launch.cli.main import main; main()"
    command = [sys.executable, "-c", code, "stagger", "status", str(directory), "--watch", "--json"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    watcher = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert watcher.stdout is not None and watcher.stderr is not None
        assert len(json.loads(watcher.stdout.readline())["waiting"]) == 2
        directory.rename(tmp_path / "away")
        while "no such file" not in watcher.stderr.readline():
            pass
        (tmp_path / "away").rename(directory)
        while not json.loads(watcher.stdout.readline())["members"]:
            pass
        watcher.send_signal(signal.SIGINT)
        assert watcher.wait(60) == 130
    finally:
        watcher.kill()
        watcher.communicate()


@pytest.fixture
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of that name which runs what it is given here, and notes what it was told."""
    told = tmp_path / "told"
    program = tmp_path / "bin" / "srun"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$*" >> {told}\nwhile case $1 in -*) true;; *) false;; esac; do\n'
        '  [ $1 != --nodelist=n2 ] || exit 1\n  shift\ndone\nexec "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return told


def test_a_probe_of_the_group_decides_its_lock(tmp_path: Path, srun: Path) -> None:
    directory = tmp_path / "group"
    done = CliRunner().invoke(app, ["stagger", "probe", str(directory), "--from-nodes", "n[1,3]", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["schema"], found["lock"], found["flock_excludes_nodes"]) == (1, "flock", True)
    assert (found["nodes"], found["silent_nodes"]) == (["n1", "n3"], [])
    assert "--nodelist=n1" in srun.read_text() and "--immediate" in srun.read_text()
    assert Group(directory).known_lock() is LockKind.FLOCK


def test_a_node_that_does_not_answer_is_named(tmp_path: Path, srun: Path) -> None:
    done = CliRunner().invoke(app, ["stagger", "probe", str(tmp_path / "group"), "--from-nodes", "n[1-2]"])
    assert done.exit_code == 0, done.output
    assert "the group's lock: flock" in done.stdout
    assert "no answer from n2" in done.stderr
    doctor = CliRunner().invoke(app, ["doctor", "--root", str(tmp_path), "--from-nodes", "n1,n2", "--json"])
    findings = {each["what"]: each for each in json.loads(doctor.stdout)["findings"]}
    assert findings["flock between 3 nodes"]["found"] == "no answer from n2"


def test_a_probe_where_nothing_can_be_written_or_of_no_nodes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = CliRunner().invoke(app, ["stagger", "probe", str(tmp_path / "file" / "group")])
    assert isinstance(done.exception, RefusedError)
    bad = CliRunner().invoke(app, ["stagger", "probe", str(tmp_path), "--from-nodes", "n[1"])
    assert isinstance(bad.exception, UsageError)
