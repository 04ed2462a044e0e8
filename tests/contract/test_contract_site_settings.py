"""What a site may set otherwise: whose signal a preemption brings, and how often Slurm requeues by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from slurm_bench import Bench
from waiting import wait_for

TELLS = (
    "cat >tells.sh <<'END'\ntrap 'echo \"$1 usr1\"' USR1\ntrap 'echo \"$1 usr2\"' USR2\ntrap 'echo \"$1 term\"' TERM\n"
    'echo "$1 up"\nwhile :; do sleep 0.1; done\nEND\n'
)
STEP_AND_SHELL = (
    f"{TELLS}srun bash tells.sh step &\n"
    "trap 'echo \"batch usr1\"' USR1; trap 'echo \"batch term\"' TERM\nwhile :; do wait; done"
)


def _preempted(bench: Bench, script: str, *options: str) -> str:
    job_id = bench.sbatch(script, "--nodelist=n1", "--exclusive", "--time=10", *options)
    bench.wait_line(job_id, "step up")
    bench.sbatch("true", "--nodelist=n1", "--exclusive", "--partition=high")
    return job_id


@pytest.mark.parametrize(
    ("option", "who"),
    [("--signal=USR1@60", "step"), ("--signal=B:USR1@60", "batch"), ("--comment=none", "")],
    ids=["steps", "batch-script", "none"],
)
def test_a_preemption_brings_the_signal_that_the_job_asked_for(strict_bench: Bench, option: str, who: str) -> None:
    job_id = _preempted(strict_bench, STEP_AND_SHELL, option)
    strict_bench.wait_line(job_id, f"{who} usr1" if who else "step term")
    view = strict_bench.show(job_id)
    assert view.state == "RUNNING" and view.preempt_time is not None and view.end_time == view.preempt_time + 10
    # What was not sent would have come with the next one.
    assert strict_bench.run("scancel", "--signal=USR2", job_id).returncode == 0
    strict_bench.wait_line(job_id, "step usr2")
    told = {line for line in strict_bench.output(job_id) if line.startswith(("step ", "batch "))}
    assert told - {"step up", "step usr2"} == ({f"{who} usr1"} if who else {"step term"})


def _comes_back(bench: Bench, job_id: str, run: int) -> str:
    """The job's reason once it waits, after ``run`` requeues; where it may start again it does."""
    waiting = wait_for(lambda: (view := bench.show(job_id)).state == "PENDING" and view.restart_count == run and view)
    assert waiting
    reason = wait_for(lambda: bench.show(job_id).reason)
    if reason == "BeginTime":
        bench.slurm.start_now(job_id)
        bench.wait_line(job_id, f"run {run}")
    return reason


STAYS = 'trap "" TERM; echo "run ${SLURM_RESTART_COUNT:-0}"; sleep 600 & wait'


def test_requeues_by_hand_never_hold_a_job(strict_bench: Bench) -> None:
    job_id = strict_bench.sbatch(STAYS)
    strict_bench.wait_line(job_id, "run 0")
    for run in (1, 2, 3):
        strict_bench.slurm.requeue(job_id)
        assert _comes_back(strict_bench, job_id, run) == "BeginTime"


def test_failed_nodes_and_the_limit_of_requeues(strict_bench: Bench) -> None:
    script = 'echo $$ >"run${SLURM_RESTART_COUNT:-0}.pid"; echo "run ${SLURM_RESTART_COUNT:-0}"; sleep 600 & wait'
    job_id = strict_bench.sbatch(script, "--nodelist=n3")
    strict_bench.wait_line(job_id, "run 0")
    reasons = []
    for run in (1, 2, 3):
        strict_bench.run("scontrol", "update", "nodename=n3", "state=down", "reason=test")
        strict_bench.wait_state(job_id, "PENDING")
        strict_bench.run("scontrol", "update", "nodename=n3", "state=resume")
        old = Path("/proc") / (strict_bench.directory / f"run{run - 1}.pid").read_text().strip()
        wait_for(lambda old=old: not old.exists(), what="the lost run to end")
        reasons.append(_comes_back(strict_bench, job_id, run))
        if reasons[-1] != "BeginTime":
            break
    assert reasons == ["BeginTime"] * 3


def test_exits_in_the_grace_window_and_the_limit_of_requeues(strict_bench: Bench) -> None:
    bench = strict_bench
    script = 'run=${SLURM_RESTART_COUNT:-0}; trap "" TERM; echo "run $run"; until [ -e go$run ]; do sleep 0.1; done'
    job_id = bench.sbatch(script, "--nodelist=n2", "--exclusive", "--time=10")
    bench.wait_line(job_id, "run 0")
    ends = []
    for run in (1, 2):
        high = bench.sbatch("true", "--nodelist=n2", "--exclusive", "--partition=high")
        wait_for(lambda: bench.show(job_id).preempt_time, what="the preemption")
        (bench.directory / f"go{run - 1}").touch()
        bench.wait_state(job_id, "PENDING", "COMPLETED")
        bench.wait_state(high, "COMPLETED")
        if bench.show(job_id).state == "COMPLETED":
            ends.append("COMPLETED")
            break
        ends.append(_comes_back(bench, job_id, run))
    what = "ends of runs that exit in their grace windows, MaxBatchRequeue=2"
    held = "launch failure limit exceeded requeued held"
    assert ends == bench.by_version(what, old=["COMPLETED"], new=["BeginTime", held.replace(" ", "_")])
    if len(ends) > 1:
        shown = bench.run("squeue", "-h", "-t", "all", "-j", job_id, "-o", "%T|%t|%r")
        assert shown.stdout == f"REQUEUE_HOLD|RH|{held}\n"
        assert bench.run("squeue", "-h", "-t", "PD", "-j", job_id).stdout == ""
        assert bench.run("scontrol", "release", job_id).returncode == 0
        bench.slurm.start_now(job_id)
        bench.wait_line(job_id, "run 2")
