"""Runs on the fake cluster through one interruption each, against the uninterrupted run's final state."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from integration_bench import RunBench, marked
from waiting import wait_for

Reference = Callable[[int], str]
NOTICE_MASK = sum(1 << (number - 1) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2))


def _processes(bench: RunBench, *words: str) -> list[int]:
    """Processes of the bench's fake cluster whose environment or command line has every word."""
    found = set(marked(str(bench.fake.state_dir)))
    for word in words:
        found &= set(marked(word))
    return sorted(found)


def _causes(bench: RunBench, name: str) -> list[str]:
    return [row["cause"] for row in bench.status(name)["attempts"]]


def _assert_went_on_without_rework(bench: RunBench, name: str, cause: str) -> None:
    """Two attempts: the first ended for ``cause``, the second went on at the very step where it saved."""
    attempts = bench.status(name)["attempts"]
    assert [row["cause"] for row in attempts] == [cause, "finished"]
    assert attempts[1]["resume_step"] == attempts[0]["end_step"] > 0
    assert [row["rework_steps"] for row in attempts] == [0, 0]
    assert attempts[0]["job_id"] == attempts[1]["job_id"]
    assert [row["slurm_restart_count"] for row in attempts] == [0, 1]
    assert [event["last_cause"] for event in bench.events(name, "resume") if event["attempt"] == 1] == [cause]


@pytest.mark.parametrize(("signals", "grace"), [("tree", "30s"), ("task", "0s")])
def test_a_preemption_costs_no_step(bench: RunBench, reference: Reference, signals: str, grace: str) -> None:
    """With a grace, and without one, where Slurm requeues at once and KillWait is all there is."""
    low = {"name": "low", "tier": 1, "preempt": "requeue", "grace": grace}
    fake = {"signals": signals, "kill_wait": "30s", "partitions": [low, {"name": "high", "tier": 10}]}
    job_id = bench.submit(bench.config("run", ["--slow-from", "30"], workers_per_node=2, fake=fake))
    bench.wait_step("run", 30)
    bench.fake.preempt(job_id)
    bench.wait("run")
    _assert_went_on_without_rework(bench, "run", "preempted")
    assert bench.digest("run") == reference(2)
    assert not _processes(bench, "train.py")


def test_a_signal_on_one_node_only_makes_all_nodes_save_the_same_step(bench: RunBench, reference: Reference) -> None:
    bench.submit(bench.config("run", ["--slow-from", "30"], nodes=2))
    bench.wait_step("run", 30)
    (agent,) = _processes(bench, "SLURMD_NODENAME=n2", "resilient_launch.job.node")
    os.kill(agent, signal.SIGUSR1)
    bench.wait("run")
    _assert_went_on_without_rework(bench, "run", "yielded")
    agreed = {event["step"] for event in bench.events("run", "agreement") if event["status"] == "final"}
    assert agreed == {bench.status("run")["attempts"][0]["end_step"]}
    assert bench.digest("run") == reference(2)


@pytest.mark.parametrize("importing", ["agent", "worker"])
def test_a_signal_before_the_first_step_is_kept(bench: RunBench, importing: str) -> None:
    """A notice that comes while Python still imports is acted on: nothing is lost, and the job comes back."""
    waits = "import time\nfrom pathlib import Path\nwhile not Path('go').exists():\n    time.sleep(0.01)\n"
    (bench.workdir / "train.py").write_text(waits + (bench.workdir / "train.py").read_text())
    job_id = bench.submit(bench.config("run", ["--steps", "20"]))
    word = {"agent": "resilient_launch.job.node", "worker": "train.py"}[importing]

    def is_there() -> bool:
        return any(_blocks_notices(pid) for pid in _processes(bench, word))

    wait_for(is_there, what=f"a process that has {word}")
    bench.slurm_run("scancel", "--signal=USR1", job_id)
    bench.wait_attempt("run", 1)
    (bench.workdir / "go").touch()
    bench.wait("run")
    rows = bench.status("run")["attempts"]
    assert [row["cause"] for row in rows] == ["yielded", "finished"]
    assert (rows[0]["resume_step"] or 0, rows[1]["resume_step"], rows[1]["end_step"]) == (0, 0, 20)
    assert [event["source"] for event in bench.events("run", "notice")] == ["SIGUSR1"]


def _blocks_notices(pid: int) -> bool:
    """Whether the process has become a Python that blocks the notice signals."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        is_python = b"python" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    except OSError:
        return False
    blocked = next(int(line.split()[1], 16) for line in lines if line.startswith("SigBlk"))
    return is_python and blocked & NOTICE_MASK == NOTICE_MASK


def test_a_worker_killed_on_its_way_out_is_started_again_with_those_that_had_left(
    bench: RunBench, reference: Reference
) -> None:
    """The other node's worker is done and gone by then, and has to come back: no group can start without it."""
    dies_last = "import os, time\nif os.environ['RANK'] + os.environ['TORCHELASTIC_RESTART_COUNT'] == '00':\n"
    dies_last += "    while not os.path.exists('go'):\n        time.sleep(0.01)\n    os.kill(os.getpid(), 9)\n"
    (bench.workdir / "train.py").write_text((bench.workdir / "train.py").read_text() + dies_last)
    bench.submit(bench.config("run", nodes=2))

    def other_has_left() -> bool:
        return any(event["exits"] == {"1": 0} for event in bench.events("run", "group_end"))

    wait_for(other_has_left, what="the end of rank 1")
    (bench.workdir / "go").touch()
    bench.wait("run")
    (row,) = bench.status("run")["attempts"]
    assert (row["cause"], row["torchelastic_restart_count"]) == ("finished", 1)
    assert bench.digest("run") == reference(2)


def test_a_killed_worker_is_restarted_within_the_attempt(bench: RunBench, reference: Reference) -> None:
    config = bench.config("run", ["--slow-from", "55"], workers_per_node=2, checkpoint={"every": "40 steps"})
    bench.submit(config)
    bench.wait_step("run", 60)
    pid, node = bench.worker("run", 1)
    # It was just saying why it failed.
    (bench.paths("run").logs / "0000" / f"{node}.1.r0.error.json").write_text('{"message": {"mess')
    os.kill(pid, signal.SIGKILL)
    bench.wait("run")
    (row,) = bench.status("run")["attempts"]
    assert (row["cause"], row["torchelastic_restart_count"], row["resume_step"]) == ("finished", 1, 0)
    resumed = bench.events("run", "resume")[-1]
    assert resumed["last_cause"] == "crash" and resumed["resume_step"] >= 40 and resumed["resume_step"] % 40 == 0
    assert row["rework_steps"] == resumed["rework_steps"] < 60
    assert bench.digest("run") == reference(2)


def test_a_crash_on_one_node_restarts_the_gang(bench: RunBench, reference: Reference) -> None:
    args = ["--crash-once-at", "25"]
    bench.submit(bench.config("run", args, nodes=2, checkpoint={"every": "10 steps"}))
    bench.wait("run")
    (row,) = bench.status("run")["attempts"]
    assert (row["cause"], row["torchelastic_restart_count"], row["rework_steps"]) == ("finished", 1, 5)
    assert bench.digest("run") == reference(2)


def test_a_crash_loop_stops_with_its_traceback(bench: RunBench) -> None:
    args = ["--crash-at", "5"]
    restart = {"max_worker_restarts": 1, "max_crashes": 1}
    bench.submit(bench.config("run", args, workers_per_node=2, restart=restart))
    done = bench.rlaunch("wait", "run", "--timeout", "120")
    assert done.returncode == 100, done.stderr + bench.trace("run")
    assert "ValueError: the loss went through the roof" in done.stderr and "train.py" in done.stderr
    verdict = bench.verdict("run")
    assert (verdict["state"], verdict["cause"], verdict["attempt"]) == ("failed", "crash", 1)
    assert _causes(bench, "run") == ["crash", "crash"]
    # The second attempt may stop sooner, where the same step fails again.
    assert bench.status("run")["attempts"][0]["torchelastic_restart_count"] == 1
    shown = bench.rlaunch("status", "run").stdout
    assert "the loss went through the roof" in shown and "failed" in shown


def test_a_cancelled_run_saves_stays_away_and_goes_on_when_submitted_again(
    bench: RunBench, reference: Reference
) -> None:
    config = bench.config("run", ["--slow-from", "30"], workers_per_node=2, fake={"kill_wait": "60s"})
    first = bench.submit(config)
    bench.wait_step("run", 30)
    live = bench.rlaunch("submit", str(config))
    assert (live.returncode, live.stdout) == (1, "") and f"is live: job {first}" in live.stderr
    assert bench.rlaunch("cancel", "run").returncode == 0
    bench.wait("run", expect=103)
    (row,) = bench.status("run")["attempts"]
    assert (row["cause"], bench.status("run")["checkpoint_step"]) == ("cancelled", row["end_step"])
    view = wait_for(lambda: (seen := bench.slurm.show(first)) and seen.is_over and seen)
    assert (view.state, view.restart_count) == ("CANCELLED", 0)
    again = bench.rlaunch("cancel", "run")
    assert again.returncode == 0 and "over already" in again.stdout

    second = bench.submit(config)
    assert second != first
    bench.wait("run")
    rows = bench.status("run")["attempts"]
    assert [row["cause"] for row in rows] == ["cancelled", "finished"]
    assert rows[1]["job_id"] == second and rows[1]["resume_step"] == rows[0]["end_step"]
    assert bench.digest("run") == reference(2)
    finished = bench.rlaunch("submit", str(config))
    assert (finished.returncode, finished.stdout) == (1, "") and "is finished" in finished.stderr


def test_busy_data_loaders_survive_the_notice_and_do_not_hold_the_end(bench: RunBench, reference: Reference) -> None:
    """Every process of the step is signalled, loaders too; and both ends find loaders in the middle of their work."""
    job_id = bench.submit(bench.config("run", ["--loaders", "2", "--slow-from", "30"], workers_per_node=2))
    bench.wait_step("run", 30)
    bench.fake.preempt(job_id)
    bench.wait("run")
    _assert_went_on_without_rework(bench, "run", "preempted")
    assert bench.logs("run", 1).count("the end of the script") == 2
    assert bench.digest("run") == reference(2)
    assert not _processes(bench, "train.py")


def test_without_scontrol_in_the_job_the_batch_shell_requeues(
    bench: RunBench, reference: Reference, tmp_path: Path
) -> None:
    """As in a container: the agents find no Slurm commands, and leave a request to the watcher outside."""
    (tmp_path / "empty").mkdir()
    job_id = bench.submit(
        bench.config("run", ["--slow-from", "30"], workers_per_node=2, env={"PATH": str(tmp_path / "empty")})
    )
    bench.wait_step("run", 30)
    bench.fake.preempt(job_id)
    bench.wait("run")
    _assert_went_on_without_rework(bench, "run", "yielded")
    assert "asking the watcher" in bench.batch_log("run")
    # After the verdict at the latest: the watcher may be killed before it withdraws the request.
    wait_for(lambda: list(bench.paths("run").control.iterdir()) == [])
    assert bench.digest("run") == reference(2)


def test_a_lost_node_is_replaced_and_the_run_goes_on(bench: RunBench, reference: Reference) -> None:
    config = bench.config("run", ["--slow-from", "50"], nodes=2, checkpoint={"every": "20 steps"}, fake={"nodes": 3})
    bench.submit(config)
    bench.wait_step("run", 50)
    bench.fake.fail_node("n2")
    bench.wait("run")
    rows = bench.status("run")["attempts"]
    assert [row["cause"] for row in rows] == ["node_failure", "finished"]
    assert rows[1]["nodes"] == ["n1", "n3"]
    assert rows[1]["resume_step"] % 20 == 0 and 0 < rows[1]["rework_steps"] <= 40 + 20
    assert bench.digest("run") == reference(2)


def test_a_requeued_run_that_is_finished_leaves_at_once(bench: RunBench) -> None:
    job_id = bench.submit(bench.config("run", ["--steps", "5"]))
    bench.wait("run")
    wait_for(lambda: bench.slurm.show(job_id).is_over)  # type: ignore[union-attr]
    bench.slurm.requeue(job_id)
    wait_for(lambda: (view := bench.slurm.show(job_id)) and view.is_over and view.restart_count == 1)
    assert len(bench.status("run")["attempts"]) == 1
    assert bench.verdict("run")["state"] == "finished"


def test_a_command_that_is_not_python_is_run_and_requeued(bench: RunBench, tmp_path: Path) -> None:
    """A shell command ends when it ends: exit 0 is finished, a notice before it is a requeue."""
    script = f'echo "$1" >>{tmp_path}/said; [ "$(wc -l <{tmp_path}/said)" -gt 1 ] || sleep 600'
    config = bench.config("run", ["hello"], script=None, command=["/bin/sh", "-c", script, "sh"])
    job_id = bench.submit(config)
    wait_for((tmp_path / "said").exists)
    bench.slurm_run("scancel", "--signal=USR2", job_id)
    bench.wait("run")
    assert _causes(bench, "run") == ["yielded", "finished"]
    assert (tmp_path / "said").read_text().splitlines()[0] == "hello"
    assert json.loads(bench.paths("run").verdict.read_bytes())["state"] == "finished"
