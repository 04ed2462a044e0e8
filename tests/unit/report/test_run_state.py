"""Where a run stands: the verdict before all, then Slurm's word, then the files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_files import RunFiles, SaidScheduler, view

from resilient_launch.cluster.base import JobView
from resilient_launch.report.state import RunStatus, run_status


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    return RunFiles(tmp_path / "run")


def _status(files: RunFiles, scheduler: SaidScheduler, job_id: str = "7") -> RunStatus:
    return run_status(files.paths, scheduler, job_id)


@pytest.mark.parametrize("state", ["finished", "failed", "cancelled", "stopped"])
def test_a_verdict_is_the_last_word_and_slurm_is_not_asked(files: RunFiles, state: str) -> None:
    files.verdict(state, error="boom")
    scheduler = SaidScheduler(view("RUNNING"))
    status = _status(files, scheduler)
    assert (status.state, status.reason, status.error, status.job_state) == (state, "so it is", "boom", "")
    assert scheduler.asked == [] and status.state.is_final


@pytest.mark.parametrize(
    ("job", "state", "reason"),
    [
        (view("PENDING", reason="Resources"), "queued", "Resources"),
        (view("PENDING"), "queued", "waiting"),
        (view("RUNNING"), "starting", ""),
        (view("CANCELLED"), "cancelled", "the job was cancelled"),
        (view("FAILED"), "failed", "the job is failed, and left no verdict"),
        (view("COMPLETED"), "failed", "the job is completed, and left no verdict"),
        (None, "failed", "the job is no longer known to Slurm, and left no verdict"),
    ],
)
def test_before_the_first_attempt_slurm_says_it(files: RunFiles, job: JobView | None, state: str, reason: str) -> None:
    status = _status(files, SaidScheduler(job))
    assert (status.state, status.reason) == (state, reason)


def test_the_phases_of_an_attempt_are_the_states_of_the_run(files: RunFiles) -> None:
    running = SaidScheduler(view("RUNNING"))
    attempt = files.attempt()
    assert _status(files, running).state == "starting"
    files.steps(attempt, 0, 30)
    status = _status(files, running)
    assert (status.state, status.step, status.checkpoint_step) == ("running", 30, None)
    # The workers crashed, and a new group loads its state.
    events = files.rank(attempt, 1)
    events.emit("phase", phase="restore", flush=True)
    assert _status(files, running).state == "restarting"
    files.steps(attempt, 20, 5, rework=10, group=1)
    assert _status(files, running).state == "running"
    files.end(attempt, "preempted", 30)
    status = _status(files, running)
    assert (status.state, status.reason) == ("interrupted", "it was preempted")
    assert _status(files, SaidScheduler(view("COMPLETING"))).state == "interrupted"
    # Back in the queue, then on nodes again, before the next attempt is claimed.
    assert _status(files, SaidScheduler(view("PENDING", restarts=1, reason="BeginTime"))).state == "queued"
    assert _status(files, SaidScheduler(view("RUNNING", restarts=1))).state == "starting"


def test_a_silent_slurm_leaves_the_files_word(files: RunFiles) -> None:
    attempt = files.attempt()
    files.steps(attempt, 0, 30)
    status = _status(files, SaidScheduler(is_reachable=False))
    assert status.state == "running" and "out of reach" in status.reason and status.step == 30


def test_a_run_that_was_never_submitted_asks_nobody(files: RunFiles) -> None:
    scheduler = SaidScheduler(view("RUNNING"))
    assert _status(files, scheduler, job_id="").state == "failed" and scheduler.asked == []


def test_the_newest_checkpoint_and_its_age_are_told(files: RunFiles) -> None:
    for name in ("step-00000010.a0000.r0", "step-00000030.a0000.r0", "step-00000020.a0000.r1", ".tmp-x", "y.corrupt"):
        (files.paths.checkpoints / name).mkdir()
        (files.paths.checkpoints / name / "MANIFEST.json").touch()
    files.verdict("finished")
    status = _status(files, SaidScheduler())
    # Lineage, not step: a later worker group went on from 10.
    assert status.checkpoint_step == 20
    assert status.checkpoint_age_s is not None and 0 <= status.checkpoint_age_s < 60


def test_the_json_form_has_the_promised_fields(files: RunFiles) -> None:
    attempt = files.attempt()
    files.steps(attempt, 0, 3)
    answer = json.loads(json.dumps(_status(files, SaidScheduler(view("RUNNING"))).as_json(), default=str))
    assert (answer["schema"], answer["state"], answer["name"], answer["step"]) == (1, "running", "run", 3)
    (row,) = answer["attempts"]
    promised = {
        "job_id": "7",
        "slurm_restart_count": 0,
        "torchelastic_restart_count": 0,
        "cause": None,
        "resume_step": 0,
        "end_step": 3,
        "rework_steps": 0,
    }
    assert {name: row[name] for name in promised} == promised


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_a_verdict_that_cannot_be_read_is_none(files: RunFiles, text: str) -> None:
    files.paths.verdict.write_text(text)
    assert _status(files, SaidScheduler(view("PENDING"))).state == "queued"


@pytest.mark.parametrize("verdict", [{}, {"state": "flying", "why": "x"}, {"state": "finished"}])
def test_a_verdict_of_another_shape_is_no_crash(files: RunFiles, verdict: dict[str, str]) -> None:
    files.paths.verdict.write_text(json.dumps(verdict))
    assert _status(files, SaidScheduler(view("PENDING"))).state in ("queued", "finished")


def test_what_is_left_is_told_from_the_newest_attempts_steps(files: RunFiles) -> None:
    """It computes old steps again at the moment: they are left as well."""
    first = files.attempt()
    files.steps(first, 0, 400, until=1000)
    files.end(first, "crash", 400)
    second = files.attempt(1)
    files.steps(second, 200, 100, rework=200, until=1000)
    status = _status(files, SaidScheduler(view("RUNNING", restarts=1)))
    assert (status.state, status.step, status.until_step) == ("running", 400, 1000)
    assert status.steps_per_s == pytest.approx(10.0)
    assert status.eta_s == pytest.approx(70.0)


def test_a_script_that_does_not_say_how_far_it_goes_has_no_end_in_sight(files: RunFiles) -> None:
    files.steps(files.attempt(), 0, 400)
    status = _status(files, SaidScheduler(view("RUNNING")))
    assert (status.until_step, status.eta_s) == (None, None) and status.steps_per_s == pytest.approx(10.0)
