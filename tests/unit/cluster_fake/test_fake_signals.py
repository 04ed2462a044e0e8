"""Who gets which signal when."""

from __future__ import annotations

import os
from collections.abc import Callable

from fake_lab import HIGH, Lab, wait_for

from resilient_launch.cluster.fake.spec import PartitionSpec

# A task that notes every signal, and a child that notes its own; both start before "ready" appears.
NOTES = r"""
cat > note.py <<'END'
import os, signal, sys, time
name = sys.argv[1]
def note(number, frame):
    with open("notes", "a") as file: file.write(f"{name} {signal.Signals(number).name}\n")
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT):
    signal.signal(number, note)
if name == "task":
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, __file__, "child"])
with open("notes", "a") as file: file.write(f"{name} ready\n")
end = time.time() + 60
while time.time() < end and not os.path.exists("stop"): time.sleep(0.05)
END
"""
STEP = (
    NOTES + "trap 'echo shell TERM >> notes' TERM; trap 'echo shell USR1 >> notes' USR1\nsrun python3 note.py task & "
)
WAITS = "\nwhile ! wait; do :; done; wait"


def settle_steps(lab: Lab, job: str) -> str:
    """Every signal that was on its way to the task has arrived once this one has; the notes so far."""
    lab.run("scancel", "--signal=USR2", job)
    return lab.wait_text("notes", "task SIGUSR2")


def settle_shell(lab: Lab, job: str) -> str:
    """The same for the batch shell."""
    lab.run("scancel", "--batch", "--signal=USR1", job)
    return lab.wait_text("notes", "shell USR1")


def started(lab: Lab, *options: str) -> str:
    job = lab.submit(STEP + WAITS, "-N1", *options)
    lab.wait_text("notes", "child ready")
    lab.wait_text("notes", "task ready")
    return job


def test_tree_signals_reach_the_children_of_a_task(lab: Lab) -> None:
    job = started(lab)
    lab.run("scancel", "--signal=USR1", job)
    lab.wait_text("notes", "child SIGUSR1")
    lab.wait_text("notes", "task SIGUSR1")
    assert settle_shell(lab, job).count("shell") == 1


def test_task_signals_reach_the_task_alone(lab_of: Callable[..., Lab]) -> None:
    lab = lab_of(signals="task")
    job = started(lab)
    lab.run("scancel", "--signal=USR1", job)
    lab.wait_text("notes", "task SIGUSR1")
    assert "child SIG" not in settle_steps(lab, job)


def test_batch_option_signals_the_batch_shell_alone(lab: Lab) -> None:
    job = started(lab)
    lab.run("scancel", "--batch", "--signal=USR1", job)
    lab.wait_text("notes", "shell USR1")
    assert "SIGUSR1" not in settle_steps(lab, job)


def test_full_option_signals_shell_and_steps(lab: Lab) -> None:
    job = started(lab)
    lab.run("scancel", "--full", "--signal=USR1", job)
    lab.wait_text("notes", "shell USR1")
    # srun is in the batch script's process group, and forwards the signal to its tasks.
    lab.wait_text("notes", "task SIGUSR1")


def test_grace_starts_with_cont_and_term_to_the_steps_not_to_the_batch_shell(lab_of: Callable[..., Lab]) -> None:
    lab = lab_of(partitions=(PartitionSpec(name="low", preempt_mode="requeue", grace_s=20), HIGH))
    job = started(lab)
    lab.cluster.preempt(job)
    lab.wait_text("notes", "task SIGTERM")
    lab.wait_text("notes", "task SIGCONT")
    lab.wait_text("notes", "child SIGTERM")
    assert "shell TERM" not in settle_shell(lab, job)
    assert lab.state(job) == "RUNNING"
    preempted, end = lab.field(job, "PreemptTime"), lab.field(job, "EndTime")
    assert preempted != "None"
    assert preempted < end


def test_send_user_signal_replaces_the_term_at_the_start_of_grace(lab_of: Callable[..., Lab]) -> None:
    low = PartitionSpec(name="low", preempt_mode="requeue", grace_s=20)
    lab = lab_of(partitions=(low, HIGH), send_user_signal=True)
    job = started(lab, "--signal=USR2@5")
    lab.cluster.preempt(job)
    lab.wait_text("notes", "task SIGUSR2")
    lab.run("scancel", "--signal=USR1", job)
    assert "SIGTERM" not in lab.wait_text("notes", "task SIGUSR1")


def test_kill_takes_a_process_that_left_its_session(lab: Lab) -> None:
    job = lab.submit("srun bash -c 'setsid sleep 600 & disown; echo $! > pid; sleep 600'", "-N1")
    lab.wait_text("pid", "\n")
    lab.run("scancel", job)
    lab.wait_state(job, "CANCELLED")
    assert lab.processes() == []


def test_a_step_that_ends_leaves_no_process(lab: Lab) -> None:
    job = lab.submit("srun bash -c 'setsid sleep 600 & disown'; echo after > after; sleep 60", "-N1")
    lab.wait_text("after", "after")
    # What is left is the batch step: its supervisor, the shell and its sleep.
    wait_for(lambda: len(lab.processes()) == 3, "the step's processes to be gone")
    lab.run("scancel", job)


def test_an_early_usr2_kills_a_bare_task(lab: Lab) -> None:
    job = lab.submit("srun sleep 600", "-N1", "--signal=USR2@60")
    lab.wait_for_step(job)
    lab.cluster.time_limit(job, 30)
    lab.wait_state(job, "FAILED")
    assert lab.rows(job)[0][1:] == ["FAILED", "140:0"]


def test_srun_turns_term_into_kill_and_forwards_usr1(lab: Lab) -> None:
    job = lab.submit(NOTES + "srun python3 note.py task & echo $! > srun.pid; wait; echo code $? > code", "-N1")
    lab.wait_text("notes", "child ready")
    pid = lab.wait_text("srun.pid", "\n").strip()
    lab.run("kill", "-USR1", pid)
    lab.wait_text("notes", "task SIGUSR1")
    lab.run("kill", "-TERM", pid)
    lab.wait_state(job, "COMPLETED")
    assert "SIGTERM" not in lab.text("notes")
    assert "srun: forcing job termination" in lab.text(f"slurm-{job}.out")


def test_the_lead_signal_reaches_steps_only_and_the_limit_ends_the_run(lab_of: Callable[..., Lab]) -> None:
    # Both have time to note what they got before they are killed.
    lab = lab_of(kill_wait_s=8)
    job = started(lab, "--signal=USR2@3", "--time=5")
    lab.cluster.time_limit(job, 4)
    lab.wait_text("notes", "task SIGUSR2")
    lab.wait_text("notes", "shell TERM")
    lab.wait_state(job, "TIMEOUT")
    assert lab.field(job, "Reason") == "TimeLimit"
    assert lab.states(job) == ["TIMEOUT"]
    notes = lab.text("notes")
    assert notes.index("task SIGUSR2") < notes.index("task SIGTERM")
    assert f"*** JOB {job} ON n1 CANCELLED AT " in lab.text(f"slurm-{job}.out")
    assert "DUE TO TIME LIMIT ***" in lab.text(f"slurm-{job}.out")


def test_a_lead_marked_b_reaches_the_batch_shell_alone(lab: Lab) -> None:
    job = started(lab, "--signal=B:USR1@30")
    lab.cluster.time_limit(job, 20)
    lab.wait_text("notes", "shell USR1")
    assert "SIGUSR1" not in settle_steps(lab, job)


def test_scancel_ends_with_term_kill_wait_kill(lab_of: Callable[..., Lab]) -> None:
    lab = lab_of(kill_wait_s=8)
    job = started(lab)
    lab.run("scancel", job)
    lab.wait_text("notes", "shell TERM")
    lab.wait_state(job, "CANCELLED")
    assert lab.states(job) == [f"CANCELLED by {os.getuid()}"]
    assert lab.processes() == []
