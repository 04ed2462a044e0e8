"""Requeue of a job in every state, hold and release, and what becomes of its log."""

from __future__ import annotations

import os

import pytest
from slurm_bench import Bench
from waiting import wait_for

STAYS = "trap '' TERM; echo up; sleep 600 & wait"


def _scontrol(bench: Bench, *words: str) -> tuple[int, str]:
    done = bench.run("scontrol", *words)
    return done.returncode, done.stdout + done.stderr


def test_requeue_of_a_pending_job_is_refused(bench: Bench) -> None:
    job_id = bench.sbatch("true", "--begin=now+1hour")
    assert _scontrol(bench, "requeue", job_id) == (1, f"Job is pending execution for job {job_id}\n")
    assert bench.show(job_id).restart_count == 0


def test_requeue_of_a_job_that_may_not_be_is_refused(bench: Bench) -> None:
    job_id = bench.sbatch("sleep 600", "--no-requeue")
    bench.wait_state(job_id, "RUNNING")
    assert _scontrol(bench, "requeue", job_id) == (1, f"Requested operation is presently disabled for job {job_id}\n")


def test_requeue_of_an_unknown_job_is_refused(bench: Bench) -> None:
    assert _scontrol(bench, "requeue", "987654") == (1, "Invalid job id specified for job 987654\n")


@pytest.mark.parametrize(("script", "state"), [("exit 0", "COMPLETED"), ("exit 3", "FAILED")])
def test_requeue_of_a_job_that_is_over(bench: Bench, script: str, state: str) -> None:
    job_id = bench.sbatch(f'[ -n "$SLURM_RESTART_COUNT" ] && exit 0\n{script}')
    bench.wait_state(job_id, state)
    assert _scontrol(bench, "requeue", job_id) == (0, "")
    bench.slurm.start_now(job_id)
    assert bench.wait_state(job_id, "COMPLETED").restart_count == 1


def test_requeue_of_a_job_that_is_on_its_way_out(bench: Bench) -> None:
    job_id = bench.sbatch(
        'if [ -n "$SLURM_RESTART_COUNT" ]; then exit 0; fi\nsrun bash -c "trap \\"\\" TERM; echo up; sleep 600" & wait'
    )
    bench.wait_line(job_id, "up")
    bench.slurm.cancel(job_id)
    bench.wait_state(job_id, "COMPLETING")
    code, said = _scontrol(bench, "requeue", job_id)
    assert (code, said) == (0, "")
    assert bench.wait_state(job_id, "PENDING").restart_count == 1


def test_requeue_in_held_state_waits_for_its_release(bench: Bench) -> None:
    job_id = bench.sbatch('echo "run [$SLURM_RESTART_COUNT]"; [ -n "$SLURM_RESTART_COUNT" ] || sleep 600')
    bench.wait_line(job_id, "run []")
    assert _scontrol(bench, "requeuehold", job_id) == (0, "")
    held = bench.wait_state(job_id, "PENDING")
    assert held.restart_count == 1
    wait_for(
        lambda: bench.show(job_id).reason in ("JobHeldUser", "job requeued in held state", "job_requeued_in_held_state")
    )
    assert _scontrol(bench, "release", job_id)[0] == 0
    bench.slurm.start_now(job_id)
    bench.wait_line(job_id, "run [1]")


def test_hold_and_release(bench: Bench) -> None:
    job_id = bench.sbatch("true", "--hold")
    assert (bench.show(job_id).state, bench.show(job_id).reason) == ("PENDING", "JobHeldUser")
    assert _scontrol(bench, "release", job_id) == (0, "")
    bench.wait_state(job_id, "COMPLETED")
    waiting = bench.sbatch("true", "--begin=now+1hour")
    assert _scontrol(bench, "hold", waiting) == (0, "")
    # root's hold is an administrator's, which the user cannot lift.
    wait_for(lambda: bench.show(waiting).reason == ("JobHeldAdmin" if os.geteuid() == 0 else "JobHeldUser"))
    assert _scontrol(bench, "release", waiting) == (0, "")
    wait_for(lambda: bench.show(waiting).reason == "BeginTime")


def test_cancel_of_a_job_that_has_just_been_requeued(bench: Bench) -> None:
    job_id = bench.sbatch(STAYS)
    bench.wait_line(job_id, "up")
    bench.slurm.requeue(job_id)
    bench.slurm.cancel(job_id)
    ended = bench.wait_state(job_id, "CANCELLED")
    assert ended.is_over


def test_a_requeued_job_truncates_its_log_unless_told_to_append(bench: Bench) -> None:
    script = 'echo "run [$SLURM_RESTART_COUNT]"; [ -n "$SLURM_RESTART_COUNT" ] || sleep 600'
    jobs = [bench.sbatch(script, f"--open-mode={mode}") for mode in ("truncate", "append")]
    for job_id in jobs:
        bench.wait_line(job_id, "run []")
        bench.slurm.requeue(job_id)
        bench.wait_state(job_id, "PENDING")
        bench.slurm.start_now(job_id)
        bench.wait_state(job_id, "COMPLETED")
    assert bench.output(jobs[0]) == ["run [1]"]
    assert bench.output(jobs[1])[0] == "run []" and bench.output(jobs[1])[-1] == "run [1]"
    assert any("DUE TO JOB REQUEUE" in line for line in bench.output(jobs[1]))


def test_a_job_knows_its_start_and_end_from_its_environment(bench: Bench) -> None:
    job_id = bench.sbatch("env | grep -E '^SLURM_JOB_(START|END)_TIME=' | sort; echo over", "--time=7")
    bench.wait_line(job_id, "over")
    view = bench.wait_state(job_id, "COMPLETED")
    assert view.start_time is not None
    told = [f"SLURM_JOB_END_TIME={view.start_time + 420}", f"SLURM_JOB_START_TIME={view.start_time}"]
    what = "SLURM_JOB_START_TIME and _END_TIME in the batch script"
    assert (bench.output(job_id) == [*told, "over"]) == bench.by_version(what, old=False, new=True)


def test_a_requeued_job_has_its_whole_time_limit_again(bench: Bench) -> None:
    job_id = bench.sbatch('echo "run [$SLURM_RESTART_COUNT]"; trap "" TERM; sleep 600 & wait', "--time=7")
    bench.wait_line(job_id, "run []")
    bench.run("scontrol", "update", f"jobid={job_id}", "timelimit=5")
    bench.slurm.requeue(job_id)
    bench.wait_state(job_id, "PENDING")
    bench.slurm.start_now(job_id)
    bench.wait_line(job_id, "run [1]")
    view = bench.show(job_id)
    assert view.start_time is not None and (view.time_limit_s, view.end_time) == (300, view.start_time + 300)
