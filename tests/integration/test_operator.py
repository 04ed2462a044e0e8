"""What an operator asks of a run on the fake cluster: save, yield, stop, requeue; asked twice, too early, too late."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from integration_bench import RunBench
from waiting import wait_for

from resilient_launch.job.control import ask

Reference = Callable[[int], str]


def _steps() -> list[str]:
    return ["--step-s", "0.02", "--slow-from", "20"]


def test_checkpoint_now_costs_no_attempt_and_two_askers_share_one_save(bench: RunBench, reference: Reference) -> None:
    bench.submit(bench.config("run", _steps(), workers_per_node=2))
    bench.wait_step("run", 20)
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(lambda _: bench.rlaunch("checkpoint", "run"), range(2))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    steps = {int(done.stdout.split("step ")[1].split()[0]) for done in (first, second)}
    assert all(step > 20 for step in steps)
    saves = [event for event in bench.events("run", "checkpoint") if event["status"] == "durable" and not event["rank"]]
    assert {event["step"] for event in saves if event["reason"] == "request"} == steps
    assert not list(bench.paths("run").control.iterdir())
    (bench.workdir / "fast").touch()
    bench.wait("run")
    assert len(bench.status("run")["attempts"]) == 1
    assert bench.digest("run") == reference(2)


def test_yield_and_hold_until_it_is_released(bench: RunBench, reference: Reference) -> None:
    bench.submit(bench.config("run", _steps(), nodes=2))
    bench.wait_step("run", 20)
    done = bench.rlaunch("yield", "run", "--hold")
    assert done.returncode == 0, done.stderr + bench.trace("run")
    assert "yielded, saved at step" in done.stdout
    wait_for(lambda: bench.status("run")["state"] == "queued", what="the run to be queued")
    assert "held" in bench.status("run")["reason"].lower()
    assert "rlaunch requeue RUN" in bench.status("run")["explanation"]
    again = bench.rlaunch("yield", "run")
    assert again.returncode == 1
    assert "is not running" in again.stderr
    released = bench.rlaunch("requeue", "run")
    assert released.returncode == 0, released.stderr
    assert "released job" in released.stdout
    bench.wait("run")
    attempts = bench.status("run")["attempts"]
    assert [row["cause"] for row in attempts] == ["yielded", "finished"]
    assert attempts[1]["rework_steps"] == 0
    assert bench.digest("run") == reference(2)


def test_a_maintenance_that_is_drained_costs_no_step(bench: RunBench, reference: Reference) -> None:
    job_id = bench.submit(bench.config("run", _steps(), nodes=2, time="30m", fake={"kill_wait": "60s"}))
    bench.wait_step("run", 20)
    running = bench.slurm.show(job_id)
    assert running is not None
    when = ("StartTime=now+10minutes", "Duration=30", f"Nodes={running.nodes}", "Users=root")
    words = ("create", "reservation", "ReservationName=mnt", *when, "Flags=MAINT,IGNORE_JOBS")
    made = bench.slurm_run("scontrol", *words)
    assert made.returncode == 0, made.stderr
    done = bench.rlaunch("drain", "--reservation", "mnt")
    assert done.returncode == 0, done.stderr + bench.trace("run")
    assert "saved at step" in done.stdout
    waiting, (reserved,) = bench.slurm.show(job_id), bench.slurm.reservations()
    assert waiting is not None and waiting.eligible_time is not None
    assert (waiting.state, waiting.reason) == ("PENDING", "BeginTime")
    assert abs(waiting.eligible_time - reserved.end_time) <= 2
    # The window closes early: the run may go on.
    assert bench.slurm_run("scontrol", "delete", "reservationname=mnt").returncode == 0
    assert bench.rlaunch("requeue", "run").returncode == 0
    bench.wait("run")
    attempts = bench.status("run")["attempts"]
    assert [row["cause"] for row in attempts] == ["maintenance", "finished"]
    assert attempts[1]["rework_steps"] == 0
    assert bench.digest("run") == reference(2)


def test_stop_saves_and_stays_away_until_it_is_requeued(bench: RunBench, reference: Reference) -> None:
    job_id = bench.submit(bench.config("run", _steps()))
    bench.wait_step("run", 20)
    done = bench.rlaunch("stop", "run")
    assert done.returncode == 0, done.stderr + bench.trace("run")
    verdict = bench.verdict("run")
    assert (verdict["state"], verdict["cause"]) == ("stopped", "cancelled")
    assert int(verdict["step"]) > 20
    again = bench.rlaunch("stop", "run")
    assert again.returncode == 0
    assert "already" in again.stdout
    assert "is not running" in bench.rlaunch("checkpoint", "run").stderr
    # The verdict comes before the job's end.
    wait_for(lambda: (view := bench.slurm.show(job_id)) and view.is_over, what="the end of the job")
    gone = bench.rlaunch("requeue", "run")
    assert gone.returncode == 0, gone.stderr
    bench.wait("run")
    attempts = bench.status("run")["attempts"]
    assert (attempts[1]["resume_step"], attempts[1]["rework_steps"]) == (verdict["step"], 0)
    assert bench.digest("run") == reference(1)
    finished = bench.rlaunch("requeue", "run")
    assert finished.returncode == 1
    assert "is finished" in finished.stderr


def test_a_run_is_stopped_while_it_waits(bench: RunBench) -> None:
    bench.submit(bench.config("run", _steps(), sbatch={"hold": True}))
    done = bench.rlaunch("stop", "run")
    assert done.returncode == 0, done.stderr
    assert bench.verdict("run")["state"] == "stopped"
    assert bench.status("run")["attempts"] == []


def test_a_request_to_stop_finds_an_attempt_that_starts_later(bench: RunBench) -> None:
    bench.submit(bench.config("run", _steps(), sbatch={"hold": True}))
    ask(bench.paths("run"), "stop")
    assert bench.rlaunch("requeue", "run").returncode == 0
    wait_for(lambda: bench.paths("run").verdict.exists(), what="the verdict")
    assert bench.verdict("run")["state"] == "stopped"
    # After the verdict: a request is served only once that is written.
    wait_for(lambda: not list(bench.paths("run").control.iterdir()), what="the served request to go")


def test_unknown_runs_and_an_unreachable_controller(bench: RunBench) -> None:
    for command in ("checkpoint", "yield", "stop", "requeue"):
        done = bench.rlaunch(command, "nosuch")
        assert (done.returncode, done.stdout) == (102, ""), command
        assert "no run 'nosuch'" in done.stderr
    bench.submit(bench.config("run", _steps()))
    bench.wait_step("run", 1)
    bench.fake.down()
    for command in ("checkpoint", "yield", "stop", "requeue"):
        done = bench.rlaunch(command, "run")
        assert done.returncode == 3, (command, done.stderr)
        assert "try:" in done.stderr
    assert not list(bench.paths("run").control.iterdir())


def test_a_site_that_forbids_requeue_gets_the_same_job_under_a_new_id(bench: RunBench, reference: Reference) -> None:
    job_id = bench.submit(bench.config("run", _steps(), nodes=2))
    bench.wait_step("run", 20)
    assert bench.slurm_run("scontrol", "update", f"JobId={job_id}", "Requeue=0").returncode == 0
    bench.fake.preempt(job_id)
    bench.wait("run")
    attempts = bench.status("run")["attempts"]
    assert [row["cause"] for row in attempts] == ["preempted", "finished"]
    assert attempts[0]["job_id"] == job_id != attempts[1]["job_id"]
    assert attempts[1]["rework_steps"] == 0
    views = bench.slurm.queue([row["job_id"] for row in attempts])
    start, end = views[attempts[1]["job_id"]].start_time, views[job_id].end_time
    assert start is not None and end is not None and start >= end
    assert bench.digest("run") == reference(2)


def test_where_no_node_can_submit_the_follower_does(bench: RunBench, reference: Reference) -> None:
    job_id = bench.submit(bench.config("run", _steps()))
    bench.wait_step("run", 20)
    assert bench.slurm_run("scontrol", "update", f"JobId={job_id}", "Requeue=0").returncode == 0
    sbatch = bench.fake.bin_dir / "sbatch"
    sbatch.rename(sbatch.with_name("sbatch.away"))
    bench.fake.preempt(job_id)
    wait_for(lambda: bench.paths("run").verdict.exists(), what="the verdict")
    assert bench.verdict("run")["is_resubmittable"]
    sbatch.with_name("sbatch.away").rename(sbatch)
    bench.wait("run")
    attempts = bench.status("run")["attempts"]
    assert [row["cause"] for row in attempts] == ["preempted", "finished"]
    assert bench.digest("run") == reference(1)


def test_the_commands_start_without_torch() -> None:
    code = "import sys, resilient_launch.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
