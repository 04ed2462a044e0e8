"""Faults strike when the run's events say so, in order, and on a real fake cluster or real processes."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from resilient_launch.cluster.fake.spec import FakeSpec, PartitionSpec
from resilient_launch.config import loads
from resilient_launch.config.schema import Fault, LaunchConfig
from resilient_launch.core.errors import CheckpointError
from resilient_launch.core.events import EventWriter
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.attempt import AttemptRecord, claim, record_end
from resilient_launch.lab.faults import driving
from resilient_launch.lab.verify import final_digest
from resilient_launch.launch.clusters import Connection, connect

TEXT = "name: run\nnodes: 2\nworkdir: /\ncommand: [worker]\ncluster: fake\ntime: 10m\nsignal_lead: 30s\n"


def wait_for(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.02)


class Lab:
    """A fake cluster with one job that sleeps, and the files of a run that pretends to be in it."""

    def __init__(self, directory: Path) -> None:
        self.connection: Connection = connect(
            "fake",
            directory / "runs",
            start=FakeSpec(
                num_nodes=2,
                requeue_delay_s=600,
                partitions=(PartitionSpec(name="low", preempt_mode="requeue", grace_s=300),),
            ),
        )
        self.paths = RunPaths.of("run", directory / "runs")
        self.paths.directory.mkdir()
        for each in self.paths.all():
            each.mkdir()
        script = directory / "job.sh"
        script.write_text("#!/bin/sh\nsrun sh -c 'trap : TERM USR2; while :; do sleep 600 & wait; done'\n")
        options = ["--parsable", "--requeue", "--nodes=2", "--time=10", "--signal=USR2@30", "--output=/dev/null"]
        done = subprocess.run(
            ["sbatch", *options, str(script)], env=dict(self.connection.env), capture_output=True, text=True, check=True
        )
        self.job_id = done.stdout.strip()
        self.said: list[str] = []
        wait_for(lambda: self.view("state") == "RUNNING")

    def close(self) -> None:
        assert self.connection.fake is not None
        self.connection.fake.down()

    def view(self, field: str) -> object:
        view = self.connection.scheduler.show(self.job_id)
        return getattr(view, field)

    def attempt(self, restart: int = 0) -> EventWriter:
        number = claim(
            self.paths,
            job_id=self.job_id,
            slurm_restart_count=restart,
            nodes=["n1", "n2"],
            addresses=[],
            port=0,
            code_version="",
        ).number
        return EventWriter(self.paths.events / f"a{number:04d}.r0.w00000.jsonl", attempt=number, rank=0)

    def end(self, number: int) -> None:
        record = AttemptRecord(number=number, cause="preempted", end_step=1, ended_at=1.0, action="requeue", why="")
        record_end(self.paths, record)

    def driving(self, faults: str) -> object:
        config: LaunchConfig = loads(f"{TEXT}faults: {faults}\n", base=Path("/"), frozen=True)
        return driving(config, self.paths, self.connection, self.job_id, say=self.said.append)


def step(events: EventWriter, until: int) -> None:
    events.emit("window", first=0, mono0=0.0, end_s=[0.1] * until, flush=True)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    yield made
    made.close()


def test_faults_strike_at_their_step_each_in_its_own_attempt(lab: Lab) -> None:
    schedule = "[{at: {step: 20}, do: time-limit}, {at: {step: 20}, do: preempt}]"
    with lab.driving(schedule):  # type: ignore[attr-defined]
        events = lab.attempt()
        limit = lab.view("end_time")
        step(events, 19)
        assert lab.view("end_time") == limit and lab.said == []
        step(events, 20)
        wait_for(lambda: lab.said)
        assert lab.said == ["fault time-limit at step 20"]
        # Pulled in so far that the signal's lead still fits.
        end = lab.view("end_time")
        assert isinstance(end, int) and time.time() + 10 < end <= time.time() + 32
        # The second is due by its step, but belongs to what comes after the first.
        step(events, 25)
        lab.end(0)
        second = lab.attempt(1)
        assert lab.view("preempt_time") is None and len(lab.said) == 1
        step(second, 21)
        wait_for(lambda: len(lab.said) == 2)
        assert lab.said[1] == "fault preempt at step 21" and lab.view("preempt_time")


def test_a_node_that_fails_is_the_gangs_node_of_that_index(lab: Lab) -> None:
    with lab.driving("[{at: {step: 1}, do: fail-node, node: 1}]"):  # type: ignore[attr-defined]
        step(lab.attempt(), 1)
        wait_for(lambda: lab.view("restart_count") == 1)
    states = subprocess.run(
        ["sinfo", "-h", "-N", "-o", "%N %T"], env=dict(lab.connection.env), capture_output=True, text=True, check=True
    ).stdout.split()
    assert (states[0], states[2]) == ("n1", "n2")
    assert states[3].startswith("down") and not states[1].startswith("down")


def test_what_happens_to_the_cluster_leaves_the_attempt_alone(lab: Lab) -> None:
    verbs = (
        "drain, node: 1",
        "maintenance, in: 1h, for: 2h",
        "fill, jobs: 3, for: 1m",
        "slow-accounting, delay: 20ms",
        "no-accounting",
        "controller-down",
        "controller-up",
    )
    schedule = ", ".join(f"{{at: {{step: 1}}, do: {verb}}}" for verb in verbs)
    fake = lab.connection.fake
    assert fake is not None
    with lab.driving(f"[{schedule}]"):  # type: ignore[attr-defined]
        step(lab.attempt(), 1)
        wait_for(lambda: len(lab.said) == len(verbs))
    assert [line.split()[1] for line in lab.said] == [verb.partition(",")[0] for verb in verbs]
    found = fake.status()
    assert [(node["name"], node["state"], bool(node["reason"])) for node in found["nodes"]] == [
        ("n1", "MIXED", False),
        ("n2", "DRAINING", True),
    ]
    (window,) = found["reservations"]
    assert window["nodes"] == ["n1", "n2"] and window["end"] - window["start"] == 7200
    assert found["jobs"] == {"RUNNING": 1, "PENDING": 3}
    assert found["accounting"] == "lost"
    with lab.driving("[{at: {step: 1}, do: resume-node}]"):  # type: ignore[attr-defined]
        wait_for(lambda: len(lab.said) == len(verbs) + 1)
    assert not any(node["reason"] for node in fake.status()["nodes"])
    assert lab.view("restart_count") == 0 and lab.view("state") == "RUNNING"


def test_a_cancel_is_the_users(lab: Lab) -> None:
    with lab.driving("[{at: {step: 1}, do: cancel}]"):  # type: ignore[attr-defined]
        step(lab.attempt(), 1)
        wait_for(lambda: lab.view("state") in ("CANCELLED", "COMPLETING"))


def test_a_worker_of_the_newest_group_gets_the_signal_and_its_peers_do_not(lab: Lab) -> None:
    workers = [subprocess.Popen(["sleep", "600"]) for _ in range(3)]
    pids = [worker.pid for worker in workers]
    try:
        for groups in ({"0": pids[0], "1": pids[2]}, {"0": pids[0], "1": pids[1]}):
            agent = EventWriter(lab.paths.events / f"a0000.n{groups['1']}.jsonl", attempt=0)
            agent.emit("group_begin", flush=True, pids=groups)
            agent.close()
        with lab.driving("[{at: {after: 10ms}, do: kill-worker, rank: 1, signal: KILL}]"):  # type: ignore[attr-defined]
            step(lab.attempt(), 5)
            assert workers[1].wait(60) == -signal.SIGKILL
        assert workers[0].poll() is None and workers[2].poll() is None
        lab.said.clear()
        with lab.driving("[{at: {step: 0}, do: kill-worker, rank: 1}]"):  # type: ignore[attr-defined]
            wait_for(lambda: lab.said)
        assert "worker 1, is not running" in lab.said[0]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def test_a_run_that_is_over_before_says_that_the_moment_never_came(lab: Lab) -> None:
    with lab.driving("[{at: {step: 100}, do: preempt}]"):  # type: ignore[attr-defined]
        step(lab.attempt(), 5)
        lab.paths.verdict.write_text('{"state": "finished", "why": "done"}')
        wait_for(lambda: lab.said)
    assert lab.said == ["fault preempt: its moment never came"]


def test_a_fault_without_a_driver_is_said(lab: Lab) -> None:
    class Flood(Fault):
        verb = "flood"

    config = loads(f"{TEXT}faults: [{{at: {{step: 0}}, do: preempt}}]\n", base=Path("/"), frozen=True)
    config = replace(config, faults=(Flood(at=config.faults[0].at),))
    with driving(config, lab.paths, lab.connection, lab.job_id, say=lab.said.append):
        step(lab.attempt(), 1)
        wait_for(lambda: lab.said)
    assert "has no driver" in lab.said[0]


def test_a_run_without_a_checkpoint_has_no_final_state(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run")
    paths.checkpoints.mkdir(parents=True)
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        final_digest(paths)
