"""Preemption, requeue and what becomes of a job after each kind of end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_lab import HIGH, LOW, Lab, wait_for

from resilient_launch.cluster.fake import proctree
from resilient_launch.cluster.fake.spec import PartitionSpec
from resilient_launch.core.errors import RefusedError

SAVES = "echo run ${SLURM_RESTART_COUNT:-first} >> runs; "
LONG_GRACE = (PartitionSpec(name="low", preempt_mode="requeue", grace_s=20), HIGH)


def test_killed_at_the_end_of_grace_is_preempted_and_comes_back(lab: Lab) -> None:
    body = (
        SAVES + "[ -n \"$SLURM_RESTART_COUNT\" ] && exit 0; srun bash -c 'trap true TERM; while :; do sleep 0.1; done'"
    )
    job = lab.submit(body, "-N2", "--open-mode=append")
    lab.wait_text("runs", "run first")
    lab.wait_state(job, "RUNNING")
    lab.cluster.preempt(job)
    lab.wait_text("runs", "run 1")
    lab.wait_state(job, "COMPLETED")
    assert lab.states(job) == ["PREEMPTED", "COMPLETED"]
    assert lab.field(job, "Restarts") == "1"
    log = lab.text(f"slurm-{job}.out")
    assert f"slurmstepd: error: *** JOB {job} ON n1 CANCELLED AT " in log
    assert "DUE TO PREEMPTION ***" in log


REQUEUES = """
cat > task.sh <<'END'
notice() {
    scontrol requeue $SLURM_JOB_ID 2>> out; echo first $? >> out
    scontrol requeue $SLURM_JOB_ID 2>> out; echo second $? >> out
}
trap notice TERM
touch ready
while :; do sleep 0.1; done
END
"""


def test_a_requeue_from_inside_the_grace_window_keeps_the_job(lab_of: Callable[..., Lab]) -> None:
    lab = lab_of(partitions=LONG_GRACE, signals="task")
    job = lab.submit(SAVES + '[ -n "$SLURM_RESTART_COUNT" ] && exit 0' + REQUEUES + "srun bash task.sh", "-N1")
    lab.wait_file("ready")
    lab.cluster.preempt(job)
    lab.wait_text("runs", "run 1")
    lab.wait_state(job, "COMPLETED")
    out = lab.text("out")
    assert "first 0\n" in out
    assert f"Job is pending execution for job {job}\nsecond 1" in out
    assert lab.states(job) == ["REQUEUED", "COMPLETED"]
    assert lab.field(job, "Restarts") == "1"


@pytest.mark.parametrize(("code", "state"), [(0, "COMPLETED"), (3, "FAILED")])
def test_an_exit_inside_the_grace_window_is_final_on_22_05(lab_of: Callable[..., Lab], code: int, state: str) -> None:
    lab = lab_of(partitions=LONG_GRACE)
    job = lab.submit(
        SAVES + f"srun bash -c 'trap \"exit {code}\" TERM; touch ready; while :; do sleep 0.1; done'", "-N1"
    )
    lab.wait_text("runs", "first")
    lab.wait_file("ready")
    lab.cluster.preempt(job)
    lab.wait_state(job, state)
    assert lab.states(job) == [state]
    assert lab.field(job, "ExitCode") == f"{code}:0"


def test_an_exit_inside_the_grace_window_is_requeued_on_24_11_and_counted(lab_of: Callable[..., Lab]) -> None:
    lab = lab_of(partitions=LONG_GRACE, like="24.11", max_batch_requeue=2, requeue_delay_s=0)
    job = lab.submit(
        SAVES + "srun bash -c 'trap \"exit 0\" TERM; touch ready$SLURM_RESTART_COUNT; while :; do sleep 0.1; done'",
        "-N1",
    )
    lab.wait_file("ready")
    lab.cluster.preempt(job)
    lab.wait_file("ready1")
    assert lab.states(job) == ["PREEMPTED", "RUNNING"]
    lab.cluster.preempt(job)
    lab.wait_state(job, "REQUEUE_HOLD")
    assert lab.field(job, "Reason") == "launch_failure_limit_exceeded_requeued_held"
    lab.run("scancel", job)
    assert lab.state(job) == "CANCELLED"


def test_no_requeue_jobs_end_preempted(lab: Lab) -> None:
    job = lab.submit("sleep 600", "--no-requeue")
    lab.wait_state(job, "RUNNING")
    assert "Requested operation is presently disabled" in lab.run("scontrol", "requeue", job, code=1).stderr
    lab.cluster.preempt(job)
    lab.wait_state(job, "PREEMPTED")


def test_a_higher_tier_takes_the_nodes_and_gives_them_back(lab: Lab) -> None:
    low = lab.submit(SAVES + "sleep 600", "-N2", "--exclusive")
    lab.wait_text("runs", "first")
    high = lab.submit("sleep 0.3", "-N1", "--exclusive", "-phigh")
    lab.wait_state(high, "COMPLETED")
    lab.wait_text("runs", "run 1")
    assert lab.states(low) == ["PREEMPTED", "RUNNING"]


def test_the_requeue_delay_is_begin_time_and_starttime_now_lifts_it(lab_of: Callable[..., Lab]) -> None:
    lab = lab_of(requeue_delay_s=121.0, partitions=(PartitionSpec(name="low", preempt_mode="requeue"), HIGH))
    job = lab.submit(SAVES + '[ -n "$SLURM_RESTART_COUNT" ] || sleep 600')
    lab.wait_text("runs", "first")
    lab.run("scontrol", "requeue", job)
    lab.wait_state(job, "PENDING")
    assert lab.field(job, "Reason") == "BeginTime"
    assert lab.run("squeue", "-h", "-j", job, "-o", "%T %r").stdout.split() == ["PENDING", "BeginTime"]
    waits = lab.field(job, "StartTime") > lab.field(job, "SubmitTime")
    assert waits
    assert lab.field(job, "RunTime") == "00:00:00"
    lab.run("scontrol", "update", f"jobid={job}", "StartTime=now")
    lab.wait_state(job, "COMPLETED")
    assert lab.text("runs") == "run first\nrun 1\n"
    assert lab.states(job) == ["REQUEUED", "COMPLETED"]


def test_requeue_of_a_finished_job_runs_it_again(lab: Lab) -> None:
    job = lab.submit(SAVES)
    lab.wait_state(job, "COMPLETED")
    lab.run("scontrol", "requeue", job)
    lab.wait_text("runs", "run 1")


def test_requeuehold_holds_until_released(lab: Lab) -> None:
    job = lab.submit(SAVES + '[ -n "$SLURM_RESTART_COUNT" ] || sleep 600')
    lab.wait_text("runs", "first")
    lab.run("scontrol", "requeuehold", job)
    lab.wait_state(job, "PENDING")
    assert lab.field(job, "Priority") == "0"
    assert "held" in lab.field(job, "Reason")
    lab.run("scontrol", "release", job)
    lab.wait_state(job, "COMPLETED")


def test_logs_are_truncated_on_requeue_unless_appended(lab: Lab) -> None:
    jobs = {
        mode: lab.submit('echo run $SLURM_RESTART_COUNT; [ -n "$SLURM_RESTART_COUNT" ]', f"--open-mode={mode}")
        for mode in ("append", "truncate")
    }
    for mode, job in jobs.items():
        lab.wait_state(job, "FAILED")
        lab.run("scontrol", "requeue", job)
        lab.wait_state(job, "COMPLETED")
        assert lab.text(f"slurm-{job}.out").count("run") == (2 if mode == "append" else 1)


def test_scancel_of_a_job_on_its_way_back_to_the_queue_ends_it(lab_of: Callable[..., Lab]) -> None:
    lab = lab_of(kill_wait_s=20)
    job = lab.submit("trap true TERM; touch ready; while ! [ -e stop ]; do sleep 0.1; done")
    lab.wait_file("ready")
    lab.run("scontrol", "requeue", job)
    assert lab.state(job) == "COMPLETING"
    lab.run("scancel", job)
    (lab.work / "stop").touch()
    lab.wait_state(job, "CANCELLED")


def test_scancel_of_a_pending_job(lab: Lab) -> None:
    job = lab.submit("true", "--hold")
    assert lab.field(job, "Reason") == "JobHeldUser"
    lab.run("scancel", job)
    assert lab.state(job) == "CANCELLED"
    assert lab.states(job) == [f"CANCELLED by {os.getuid()}"]


def test_a_failed_node_requeues_its_job_elsewhere(lab_of: Callable[..., Lab]) -> None:
    lab = lab_of(partitions=(LOW, HIGH))
    job = lab.submit(SAVES + "echo $SLURMD_NODENAME >> where; sleep 600", "-N1")
    lab.wait_text("where", "n1")
    lab.cluster.fail_node("n1")
    lab.wait_text("where", "n2")
    assert lab.states(job) == ["NODE_FAIL", "RUNNING"]
    assert "down" in lab.run("sinfo", "-h", "-N", "-o", "%N %t").stdout
    lab.cluster.resume_node("n1")
    assert "down" not in lab.run("sinfo", "-h").stdout


def test_a_cut_off_node_keeps_running_the_old_processes_until_it_is_back(lab: Lab) -> None:
    beat = "echo $SLURMD_NODENAME >> beats; squeue > /dev/null 2>> errors; sleep 0.1"
    body = f"echo $SLURMD_NODENAME >> where; while :; do {beat}; done"
    job = lab.submit(body, "-N1")
    lab.wait_text("beats", "n1")
    lab.cluster.fail_node("n1", network_only=True)
    lab.wait_text("where", "n2")
    seen = lab.text("beats").count("n1")
    lab.wait_text("beats", "n1", seen + 3)
    lab.wait_text("errors", "Unable to contact slurm controller")
    lab.cluster.resume_node("n1")
    wait_for(lambda: sum(b"n1" in line for line in _environments(lab)) == 0, "the old processes to be killed")
    assert lab.states(job) == ["NODE_FAIL", "RUNNING"]


def _environments(lab: Lab) -> list[bytes]:
    lines = []
    for pid in lab.processes():
        try:
            text = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        lines += [entry for entry in text.split(b"\0") if entry.startswith(b"RLAUNCH_FAKE_STEP=")]
    return [line for line in lines if line.endswith(b".n1")]


def test_what_a_job_goes_on_without_lives_where_nobody_reaches_it(lab: Lab) -> None:
    job = lab.submit("srun --no-kill bash -c 'echo $$ >pid$SLURM_NODEID; sleep 600'", "-N2", "--no-kill")
    wait_for(lambda: lab.text("pid1").strip(), "the second node's task")
    lab.cluster.fail_node("n2", network_only=True)
    wait_for(lambda: lab.field(job, "NodeList") == "n1", "the job to go on without n2")
    cut_off = int(lab.text("pid1"))
    assert lab.state(job) == "RUNNING" and proctree.start_ticks(cut_off) is not None
    lab.cluster.resume_node("n2")
    wait_for(lambda: proctree.start_ticks(cut_off) is None, "the task to be killed as its node comes back")
    assert lab.state(job) == "RUNNING"


def test_verbs_refuse_what_does_not_run(lab: Lab) -> None:
    job = lab.submit("true", "--hold")
    for verb in (
        lambda: lab.cluster.preempt(job),
        lambda: lab.cluster.time_limit(job, 5),
        lambda: lab.cluster.preempt(99),
    ):
        with pytest.raises(RefusedError):
            verb()
    with pytest.raises(RefusedError, match="n1, n2"):
        lab.cluster.fail_node("n9")
