"""Maintenance on a real Slurm: a reservation is drained, a limit is fitted in front of it, victims are named."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator

import pytest
from integration_bench import RunBench
from waiting import wait_for

from resilient_launch.cluster.slurm import SlurmCommands
from resilient_launch.core.units import parse_duration
from resilient_launch.job.attempt import read_ends
from resilient_launch.policy.victims import parse_comment

# Beyond every command of a test, however slow the machine; the run is cancelled at the end.
STEPS = ["--steps", "3000", "--step-s", "0.2"]


@pytest.fixture
def site(bench: RunBench, real_slurm: dict[str, str]) -> Iterator[SlurmCommands]:
    """The bench's runs go to the real Slurm, which has its reservations and jobs taken away afterwards."""
    bench.env = {**real_slurm, **{name: bench.env[name] for name in ("PYTHONPATH", "RLAUNCH_ROOT")}}
    slurm = SlurmCommands(bench.env)
    yield slurm
    bench.rlaunch("cancel", "run")
    for each in slurm.reservations():
        _scontrol(bench, "delete", f"reservationname={each.name}")


def _scontrol(bench: RunBench, *words: str) -> None:
    subprocess.run(["scontrol", *words], env=bench.env, check=True, stdout=subprocess.DEVNULL, timeout=60)


def _reserve(bench: RunBench, name: str, nodes: str, *, in_minutes: int) -> None:
    when = (f"StartTime=now+{in_minutes}minutes", "Duration=30", f"Nodes={nodes}", "Users=root")
    _scontrol(bench, "create", "reservation", f"ReservationName={name}", *when, "Flags=MAINT,IGNORE_JOBS")


@pytest.mark.slow
def test_a_reservation_is_drained_and_the_run_goes_on_after_it(bench: RunBench, site: SlurmCommands) -> None:
    job_id = bench.submit(bench.config("run", STEPS, cluster="slurm", nodes=2, workers_per_node=1, time="30m"))
    bench.wait_step("run", 10)
    view = site.show(job_id)
    assert view is not None
    _reserve(bench, "mnt", view.nodes, in_minutes=10)

    wrong = bench.rlaunch("drain", "--reservation", "nosuch")
    assert (wrong.returncode, "one of: mnt" in wrong.stderr) == (1, True)
    nowhere = bench.rlaunch("drain", "--nodes", "n[7-9]")
    assert (nowhere.returncode, "no node n7" in nowhere.stderr) == (1, True)
    assert bench.rlaunch("drain").returncode == 2
    assert "is in the way" in bench.rlaunch("drain", "--before", "1d").stdout
    dry = bench.rlaunch("drain", "--reservation", "mnt", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert job_id in dry.stdout
    assert not list(bench.paths("run").control.iterdir())

    wait_for(lambda: parse_comment(((v := site.show(job_id)) and v.comment) or ""), what="what the run publishes")
    victims = bench.rlaunch("victims", "--nodes", "1", "--json")
    assert victims.returncode == 0, victims.stderr
    (victim,) = json.loads(victims.stdout)["victims"]
    assert (victim["run"], victim["job_id"], victim["nodes"]) == ("run", job_id, 2)

    done = bench.rlaunch("drain", "--reservation", "mnt")
    assert done.returncode == 0, done.stderr + bench.trace("run")
    assert "saved at step" in done.stdout
    view = site.show(job_id)
    assert view is not None
    assert (view.state, view.reason) == ("PENDING", "BeginTime")
    (window,) = site.reservations()
    assert view.eligible_time is not None
    assert abs(view.eligible_time - window.end_time) <= 2
    again = bench.rlaunch("drain", "--reservation", "mnt")
    assert (again.returncode, "is in the way" in again.stdout) == (0, True)

    # The window closes early: the run may go on.
    _scontrol(bench, "delete", "reservationname=mnt")
    assert bench.rlaunch("requeue", "run").returncode == 0
    wait_for(lambda: bench.paths("run").attempt(1).exists(), what="the second attempt")
    bench.wait_step("run", int(read_ends(bench.paths("run"))[0].end_step or 0), attempt=1)
    status = bench.status("run")["attempts"]
    assert [row["cause"] for row in status] == ["maintenance", None]
    assert status[1]["resume_step"] == status[0]["end_step"]
    assert status[1]["rework_steps"] == 0


@pytest.mark.slow
def test_a_limit_that_would_cross_a_maintenance_is_explained_and_fitted(bench: RunBench, site: SlurmCommands) -> None:
    _reserve(bench, "all", "ALL", in_minutes=5)
    config = bench.config("run", STEPS, cluster="slurm", time="30m", signal_lead="60s")
    waits = bench.rlaunch("submit", str(config))
    assert waits.returncode == 0, waits.stderr
    assert "crosses the maintenance all" in waits.stderr
    assert "--fit-maintenance" in waits.stderr
    assert bench.rlaunch("stop", "run").returncode == 0
    fitted = bench.rlaunch("submit", str(config), "--fit-maintenance", "--parsable")
    assert fitted.returncode == 0, fitted.stderr
    job_id = fitted.stdout.strip()
    wait_for(lambda: (view := site.show(job_id)) and view.state == "RUNNING", what="the job to run")
    view, (window,) = site.show(job_id), site.reservations()
    assert view is not None
    assert view.time_limit_s is not None
    assert view.end_time is not None
    assert time.time() + parse_duration("1m") < view.end_time <= window.start_time
