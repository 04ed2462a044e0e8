"""Sites that track processes by cgroups: a signal to a step reaches its tasks alone, KILL reaches everything."""

from __future__ import annotations

from pathlib import Path

from slurm_bench import Bench
from waiting import wait_for

CHILD = (
    "cat >child.sh <<'END'\nfor name in USR1 TERM CONT; do trap \"echo child $name\" $name; done\n"
    "trap 'echo child usr2' USR2\necho $$ >child.pid; echo child up\nwhile :; do sleep 0.1; done\nEND\n"
    "cat >task.sh <<'END'\ntrap 'echo task USR1' USR1; trap 'echo task TERM' TERM\nbash child.sh &\n"
    "while :; do sleep 0.1; done\nEND\n"
)


def _child_got_nothing(bench: Bench, job_id: str) -> None:
    """Whatever had been sent to the child would have been said before what comes now."""
    bench.run("kill", "-USR2", (bench.directory / "child.pid").read_text().strip())
    bench.wait_line(job_id, "child usr2")
    assert [line for line in bench.output(job_id) if line.startswith("child")] == ["child up", "child usr2"]


def test_a_signal_reaches_the_tasks_and_not_their_children(cgroup_bench: Bench) -> None:
    job_id = cgroup_bench.sbatch(f"{CHILD}srun bash task.sh")
    cgroup_bench.wait_line(job_id, "child up")
    assert cgroup_bench.run("scancel", "--signal=USR1", job_id).returncode == 0
    cgroup_bench.wait_line(job_id, "task USR1")
    _child_got_nothing(cgroup_bench, job_id)


def test_a_preemption_tells_the_tasks_and_not_their_children(cgroup_bench: Bench) -> None:
    options = ("--nodelist=n1", "--exclusive", "--time=10")
    job_id = cgroup_bench.sbatch(f"{CHILD}srun bash task.sh", *options)
    cgroup_bench.wait_line(job_id, "child up")
    cgroup_bench.sbatch("true", "--partition=high", *options)
    cgroup_bench.wait_line(job_id, "task TERM")
    _child_got_nothing(cgroup_bench, job_id)


def _is_gone(pid_file: Path) -> bool:
    return not Path(f"/proc/{pid_file.read_text().strip()}").exists()


def test_a_kill_reaches_what_left_its_session_and_its_parent(cgroup_bench: Bench) -> None:
    job_id = cgroup_bench.sbatch(
        "cat >away.sh <<'END'\ntrap '' TERM\necho $$ >away.pid\nsleep 600 & wait\nEND\n"
        "srun bash -c 'trap \"\" TERM; setsid -f bash away.sh >/dev/null 2>&1 </dev/null; echo up; sleep 600'"
    )
    away = cgroup_bench.directory / "away.pid"
    cgroup_bench.wait_line(job_id, "up")
    wait_for(lambda: away.exists() and away.read_text())
    cgroup_bench.slurm.cancel(job_id)
    wait_for(lambda: _is_gone(away), what="the process that left its session to be killed")


def test_a_job_that_is_over_is_forgotten_after_a_while(cgroup_bench: Bench) -> None:
    job_id = cgroup_bench.sbatch("true")
    # Slurm looks for such jobs once a minute.
    wait_for(lambda: cgroup_bench.slurm.show(job_id) is None, 180, "the job to be forgotten")
    assert cgroup_bench.slurm.queue([job_id]) == {}
    done = cgroup_bench.run("scontrol", "requeue", job_id)
    assert (done.returncode, done.stdout + done.stderr) == (1, f"Invalid job id specified for job {job_id}\n")
