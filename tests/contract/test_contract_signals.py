"""Who gets which signal, and when."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from slurm_bench import Bench
from waiting import wait_for


def test_a_signal_to_a_step_reaches_the_children_of_its_tasks(bench: Bench) -> None:
    job_id = bench.sbatch(
        "cat >child.sh <<'END'\ntrap 'echo child got it' USR1\necho child up\nwhile :; do sleep 0.1; done\nEND\n"
        "srun bash -c 'trap \"echo task got it\" USR1; bash child.sh & while :; do sleep 0.1; done'"
    )
    bench.wait_line(job_id, "child up")
    assert bench.run("scancel", "--signal=USR1", job_id).returncode == 0
    bench.wait_line(job_id, "task got it")
    bench.wait_line(job_id, "child got it")


@pytest.mark.parametrize(("option", "who"), [("--batch", {"batch"}), ("--full", {"batch", "task"})])
def test_a_signal_to_the_batch_script_or_to_all(bench: Bench, option: str, who: set[str]) -> None:
    job_id = bench.sbatch(
        "trap 'echo batch got it' USR1\n"
        "srun bash -c 'trap \"echo task got it\" USR1; echo up; while :; do sleep 0.1; done' &\n"
        "while :; do wait; done"
    )
    bench.wait_line(job_id, "up")
    assert bench.run("scancel", option, "--signal=USR1", job_id).returncode == 0
    for name in who:
        bench.wait_line(job_id, f"{name} got it")
    # What was not sent would have come with the rest.
    assert bench.run("scancel", "--signal=USR1", "--batch", job_id).returncode == 0
    wait_for(lambda: bench.output(job_id).count("batch got it") == 2)
    assert ("task got it" in bench.output(job_id)) == ("task" in who)


def test_a_signal_to_a_job_that_is_over(bench: Bench) -> None:
    over = bench.sbatch("true")
    bench.wait_state(over, "COMPLETED")
    assert bench.run("scancel", "--signal=USR1", over).returncode == 1
    assert bench.run("scancel", over).returncode == 0


def test_a_cancelled_job_has_kill_wait_to_end(bench: Bench) -> None:
    job_id = bench.sbatch("trap 'echo time to save; exit 0' TERM; echo up; sleep 600 & wait")
    bench.wait_line(job_id, "up")
    bench.slurm.cancel(job_id)
    bench.wait_line(job_id, "time to save")
    assert bench.wait_state(job_id, "CANCELLED").is_over


def _preempted(bench: Bench, script: str, *options: str) -> str:
    job_id = bench.sbatch(script, "--nodelist=n1", "--exclusive", "--time=10", *options)
    bench.wait_line(job_id, "up")
    bench.sbatch("true", "--nodelist=n1", "--exclusive", "--partition=high")
    return job_id


def test_a_preempted_step_gets_cont_and_term(bench: Bench) -> None:
    job_id = _preempted(
        bench,
        'srun bash -c \'trap "echo cont" CONT; trap "echo term" TERM; echo up; while :; do sleep 0.1; done\' & wait',
    )
    bench.wait_line(job_id, "term")
    # Bash runs its traps in the order of their numbers, so only that both came can be told here.
    bench.wait_line(job_id, "cont")
    assert bench.show(job_id).state == "RUNNING"


@pytest.mark.parametrize("code", ["1", "7"])
def test_an_exit_that_is_not_zero_within_the_grace_window(bench: Bench, code: str) -> None:
    job_id = _preempted(bench, f"trap : TERM; echo up; until [ -e go ]; do sleep 0.1; done; exit {code}")
    wait_for(lambda: bench.show(job_id).preempt_time)
    (bench.directory / "go").touch()
    ended = bench.wait_state(job_id, "COMPLETED", "PENDING", "FAILED")
    what = "an exit that is not 0 in the grace window (state, restarts)"
    assert (ended.state, ended.restart_count) == bench.by_version(what, old=("FAILED", 0), new=("PENDING", 1))


def test_a_second_requeue_within_the_grace_window_says_that_there_was_one(bench: Bench) -> None:
    job_id = _preempted(
        bench,
        'if [ -n "$SLURM_RESTART_COUNT" ]; then echo again; exit 0; fi\ntrap "" TERM; echo up\n'
        "until [ -e go ]; do sleep 0.1; done\n"
        'for n in 1 2; do said=$(scontrol requeue $SLURM_JOB_ID 2>&1); echo "requeue $n: $? $said"; done; sleep 600',
    )
    wait_for(lambda: bench.show(job_id).preempt_time)
    (bench.directory / "go").touch()
    bench.wait_line(job_id, "requeue 1: 0 ")
    bench.wait_line(job_id, f"requeue 2: 1 Job is pending execution for job {job_id}")
    assert bench.wait_state(job_id, "PENDING").restart_count == 1


def test_without_grace_a_preemption_ends_the_job_at_once(bench: Bench) -> None:
    job_id = _preempted(
        bench,
        'if [ -n "$SLURM_RESTART_COUNT" ]; then exit 0; fi\n'
        "trap 'echo batch term' TERM\n"
        "srun bash -c 'trap \"echo step term\" TERM; echo up; while :; do sleep 0.1; done' &\n"
        "while :; do wait; done",
        "--partition=nograce",
    )
    bench.wait_line(job_id, "step term")
    bench.wait_line(job_id, "batch term")
    waiting = bench.wait_state(job_id, "PENDING")
    assert waiting.restart_count == 1
    assert any("DUE TO PREEMPTION" in line for line in bench.output(job_id))


def test_the_worst_exit_of_a_step_is_sruns(bench: Bench) -> None:
    job_id = bench.sbatch(
        "srun --nodes=2 bash -c 'exit $((SLURM_PROCID * 3))'; echo \"first $?\"\n"
        "srun --nodes=1 --ntasks=1 bash -c 'kill -9 $$'; echo \"second $?\"\nexit 0",
        "--nodes=2",
    )
    view = bench.wait_state(job_id, "COMPLETED")
    assert (view.exit_code, view.exit_signal) == (0, 0)
    lines = [line for line in bench.output(job_id) if line.startswith(("first", "second"))]
    assert lines == ["first 3", "second 137"]
    assert "DerivedExitCode=3:0" in bench.run("scontrol", "-d", "show", "job", job_id).stdout.split()


def test_a_program_that_there_is_not(bench: Bench) -> None:
    job_id = bench.sbatch('srun /no/such/program; echo "code $?"')
    bench.wait_state(job_id, "COMPLETED")
    assert "code 2" in bench.output(job_id)


def test_srun_turns_term_into_kill_and_passes_other_signals_on(bench: Bench) -> None:
    job_id = bench.sbatch(
        'srun bash -c \'trap "echo task usr1" USR1; trap "echo task term" TERM; echo up\n'
        "while :; do sleep 0.1; done' &\n"
        "until [ -e usr1 ]; do sleep 0.1; done; kill -USR1 $!\n"
        "until [ -e term ]; do sleep 0.1; done; kill -TERM $!\n"
        'wait $!; echo "code $?"'
    )
    bench.wait_line(job_id, "up")
    (bench.directory / "usr1").touch()
    bench.wait_line(job_id, "task usr1")
    (bench.directory / "term").touch()
    bench.wait_line(job_id, "code 137")
    assert "task term" not in bench.output(job_id)


def test_a_task_without_a_handler_dies_of_the_signal(bench: Bench) -> None:
    job_id = bench.sbatch('srun bash -c "echo up; exec sleep 600"; exit $?')
    bench.wait_line(job_id, "up")
    bench.run("scancel", "--signal=USR2", job_id)
    ended = bench.wait_state(job_id, "FAILED")
    assert (ended.exit_code, ended.exit_signal) == (140, 0)


def test_a_lead_beyond_the_time_limit_is_due_at_once(bench: Bench) -> None:
    job_id = bench.sbatch(
        "srun bash -c 'trap \"echo step usr1\" USR1; while :; do sleep 0.1; done' & wait",
        "--time=4",
        "--signal=B:USR1@300",
    )
    # No handler could be sure to be in time for it, so the batch shell has none.
    ended = bench.wait_state(job_id, "FAILED")
    assert (ended.exit_code, ended.exit_signal) == (0, 10)
    assert ended.start_time is not None and ended.end_time is not None and ended.end_time < ended.start_time + 100
    assert "step usr1" not in bench.output(job_id)


def test_what_ignores_its_cancel_is_killed_after_kill_wait(bench: Bench) -> None:
    step = "srun bash -c 'trap \"\" TERM; echo $$ >task.pid; echo up; sleep 600'"
    job_id = bench.sbatch(f"trap '' TERM\n{step}\nsleep 600")
    bench.wait_line(job_id, "up")
    task = Path("/proc") / (bench.directory / "task.pid").read_text().strip()
    begun = time.monotonic()
    bench.slurm.cancel(job_id)
    bench.wait_state(job_id, "CANCELLED")
    # Slurm counts whole seconds.
    assert time.monotonic() - begun >= 4 and not task.exists()
