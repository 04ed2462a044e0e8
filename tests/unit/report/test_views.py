"""Views of runs: one question to Slurm for all, its last answer when it is silent, events as they come, metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from test_cli_setup import rlaunch
from trace_maker import Plan, make

from resilient_launch.cluster.base import JobView
from resilient_launch.cluster.slurm import SlurmCommands
from resilient_launch.core.errors import UnreachableError
from resilient_launch.core.paths import RunPaths
from resilient_launch.report.accounts import RunFacts, run_report
from resilient_launch.report.allocation import allocations
from resilient_launch.report.metrics import exposition
from resilient_launch.report.queue import ask
from resilient_launch.report.state import run_status
from resilient_launch.report.tail import EventTail


class Counting(SlurmCommands):
    """A scheduler that answers with what it was given, and counts the questions."""

    def __init__(self, answer: dict[str, JobView] | None) -> None:
        super().__init__({})
        self.answer, self.num_questions = answer, 0

    def queue(self, job_ids: Sequence[str]) -> dict[str, JobView]:
        self.num_questions += 1
        if self.answer is None:
            raise UnreachableError("Slurm does not answer", why="connect failure")
        return self.answer


VIEW = JobView(job_id="7", state="RUNNING", start_time=1_700_000_000)


def test_one_question_for_many_runs_then_the_last_answer_and_a_back_off(tmp_path: Path) -> None:
    cache = tmp_path / "queue.json"
    good, dead = Counting({"7": VIEW, "8": VIEW}), Counting(None)
    assert ask(good, ["7", "8"], cache, now=100.0).views["7"] == VIEW
    assert ask(good, ["7"], cache, now=101.0).views["7"] == VIEW
    assert good.num_questions == 1
    silent = ask(dead, ["7"], cache, now=200.0)
    assert (silent.views["7"], silent.at_s, silent.silence) == (VIEW, 100.0, "connect failure")
    assert ask(dead, ["7"], cache, now=210.0).silence == "connect failure"
    assert dead.num_questions == 1
    assert ask(good, ["7"], cache, now=300.0).silence == ""


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"views": {"7": {"rain": 1}}, "at_s": 1}'])
def test_a_damaged_cache_is_done_without(tmp_path: Path, content: bytes) -> None:
    cache = tmp_path / "queue.json"
    cache.write_bytes(content)
    assert ask(Counting({"7": VIEW}), ["7"], cache).views == {"7": VIEW}
    assert ask(Counting({"7": VIEW}), ["7"], tmp_path / "no" / "such").views == {"7": VIEW}


def test_status_from_an_answer_tells_attempts_apart_by_time(tmp_path: Path) -> None:
    made = make([Plan(num_steps=50, ends="preempted")])
    paths = made.write(tmp_path)
    claimed = int(made.claims[0]["claimed_at"])
    next_life = JobView(job_id="7", state="RUNNING", start_time=claimed + 5000)
    same_life = JobView(job_id="7", state="RUNNING", start_time=claimed - 8)
    cache = tmp_path / "queue.json"
    assert run_status(paths, ask(Counting({"7": next_life}), ["7"], cache, now=1.0), "7").state == "starting"
    assert run_status(paths, ask(Counting({"7": same_life}), ["7"], cache, now=10.0), "7").state == "interrupted"
    waiting = JobView(job_id="7", state="PENDING", reason="Priority", start_time=claimed + 9000)
    queued = run_status(paths, ask(Counting({"7": waiting}), ["7"], cache, now=20.0), "7")
    assert (queued.state, queued.reason, queued.starts_at) == ("queued", "Priority", claimed + 9000)


def test_events_come_once_whole_and_by_time(tmp_path: Path) -> None:
    tail = EventTail(tmp_path)
    one, two = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    one.write_text('{"kind":"phase","t":1}\n{"kind":"phase","t":3}\n{"kind":"pha')
    two.write_text('{"kind":"phase","t":2}\nnonsense\n')
    assert [each["t"] for each in tail.new()] == [1, 2, 3]
    assert list(tail.new()) == []
    with one.open("a") as file:
        file.write('se","t":4}\n')
    assert [each["t"] for each in tail.new()] == [4]


def test_allocations_without_an_attempt_are_kept_apart(tmp_path: Path) -> None:
    made = make([Plan(num_steps=10, ends="preempted"), Plan(num_steps=10, ends="finished")])
    paths = made.write(tmp_path)
    paths.attempt(1).unlink()
    report = run_report(RunFacts(paths=paths, created_at=None, rows={"7": made.rows}, is_live=False, now=0.0))
    assert [each.number for each in report.attempts] == [0, None]
    assert report.allocated == pytest.approx(made.allocated_s * report.attempts[0].units)
    assert allocations([], {"7": made.rows}).unclaimed == made.rows


def test_metrics_are_in_the_textfile_collectors_format(tmp_path: Path) -> None:
    made = make([Plan(num_steps=300, ends="crash"), Plan(num_steps=200, ends="finished")])
    facts = RunFacts(paths=made.write(tmp_path), created_at=None, rows={}, is_live=False, now=0.0)
    lines = exposition([run_report(facts)]).splitlines()
    assert lines[-1] == "# EOF"
    sample = re.compile(r'[a-z_]+\{(?:[a-z_]+="[^"]*",?)+\} -?[0-9.e+-]+')
    assert all(line.startswith("# ") or sample.fullmatch(line) for line in lines)
    assert 'rlaunch_step{run="made"} 400.0' in lines
    assert sum(line.startswith("rlaunch_allocated_unit_seconds{") for line in lines) == 11


def _root(tmp_path: Path) -> RunPaths:
    """A finished run as commands find it."""
    made = make([Plan(num_steps=300, ends="crash"), Plan(num_steps=200, ends="finished")])
    paths = made.write(tmp_path)
    record = {"id": "i", "name": "made", "cluster": "fake", "created_at": 1_699_999_900.0, "parent": None}
    paths.run.write_text(json.dumps({**record, "code_version": "c0ffee", "jobs": ["7"]}))
    paths.verdict.write_text(json.dumps({"state": "finished", "why": "the last step is done"}))
    return paths


def test_commands_about_runs(tmp_path: Path) -> None:
    _root(tmp_path)
    root = ("--root", str(tmp_path))
    listed = json.loads(rlaunch("runs", *root, "--json").stdout)["runs"]
    assert [(each["name"], each["state"], each["step"]) for each in listed] == [("made", "finished", 400)]
    assert "no such runs" in rlaunch("runs", *root, "--name", "other-*").stderr
    assert rlaunch("runs", *root, "--state", "weird").returncode == 2
    admissions = json.loads(rlaunch("history", "made", *root, "--json").stdout)["admissions"]
    assert [each["cause"] for each in admissions] == ["crash", "finished"]
    lines = rlaunch("events", "made", *root, "--kind", "end").stdout.splitlines()
    assert [json.loads(line)["cause"] for line in lines] == ["crash", "finished"]
    assert rlaunch("report", "nobody", *root).returncode == 102
    document = json.loads(rlaunch("report", "made", *root, "--json").stdout)
    assert document["schema"] == 1
    assert sum(part["share"] for part in document["partition"].values()) == pytest.approx(1.0, abs=1e-9)
    target = tmp_path / "made.prom"
    text = rlaunch("report", "made", *root, "--metrics", str(target))
    assert text.returncode == 0 and target.read_text().endswith("# EOF\n")
    assert "\x1b" not in text.stdout
    assert max(map(len, text.stdout.splitlines())) <= 80
    assert rlaunch("report", "made", *root, "--since", "yesterday").returncode == 2
    assert "0 attempts" in rlaunch("report", "made", *root, "--since", "1h").stdout


def test_honest_reports_of_little(tmp_path: Path) -> None:
    paths = _root(tmp_path)
    for file in paths.events.iterdir():
        file.unlink()
    bare = rlaunch("report", "made", "--root", str(tmp_path))
    assert bare.returncode == 0
    assert "unknown" in bare.stdout and "100.0%" in bare.stdout
    for file in paths.attempts.iterdir():
        file.unlink()
    assert "nothing was allocated" in rlaunch("report", "made", "--root", str(tmp_path)).stdout
    paths.config.write_text("name: [")
    assert "cannot be read" in rlaunch("report", "made", "--root", str(tmp_path)).stdout
