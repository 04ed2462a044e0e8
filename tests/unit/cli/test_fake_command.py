"""``rlaunch fake``: up, down, env, status, and every event by hand, on a cluster of real processes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from waiting import wait_for

from resilient_launch.cli.main import app
from resilient_launch.cluster.fake.cluster import FakeCluster
from resilient_launch.core.errors import RlaunchError

SMALL = ("--nodes", "2", "--kill-wait", "1s", "--requeue-delay", "0s")


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeCluster]:
    """The cluster that the command line means where RLAUNCH_ROOT is ``tmp_path``."""
    cluster = FakeCluster(tmp_path / ".fake")
    yield cluster
    cluster.down(remove=True)


def rlaunch(fake: FakeCluster, *words: str) -> tuple[int, str]:
    """Exit code and all that is said; the process's own start is left out."""
    result = CliRunner().invoke(app, ["fake", *words], env={"RLAUNCH_ROOT": str(fake.state_dir.parent)})
    if isinstance(result.exception, RlaunchError):
        return result.exception.exit_code, str(result.exception)
    return result.exit_code, result.output


def good(fake: FakeCluster, *words: str) -> str:
    code, said = rlaunch(fake, *words)
    assert code == 0, said
    return said


def status(fake: FakeCluster) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(good(fake, "status", "--json"))
    return found


def slurm(fake: FakeCluster, *words: str) -> str:
    env = {**os.environ, **fake.env()}
    return subprocess.run(words, env=env, cwd="/", capture_output=True, text=True, timeout=60, check=True).stdout


def traces(directory: Path) -> list[str]:
    """Processes that name the state directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(directory) in words:
                found.append(words)
    return found


def test_from_up_to_down_nothing_is_left(fake: FakeCluster) -> None:
    assert "2 nodes, 4 CPUs and 0 GPUs each, partitions low, high" in good(fake, "up", *SMALL)
    assert fake.state_dir.stat().st_mode & 0o077 == 0
    shell = f"{good(fake, 'env')}\nsbatch --parsable --output=/dev/null --wrap 'sleep 600'"
    done = subprocess.run(["sh", "-ec", shell], capture_output=True, text=True, timeout=60, check=True)
    job_id = done.stdout.strip()
    wait_for(lambda: "RUNNING" in slurm(fake, "squeue", "-h", "-j", job_id, "-o", "%T"))
    found = status(fake)
    assert (found["schema"], found["jobs"], found["spec"]["num_nodes"]) == (1, {"RUNNING": 1}, 2)
    assert "1 RUNNING" in good(fake, "status")
    code, said = rlaunch(fake, "up", *SMALL)
    assert code == 1 and "it is up already" in said
    good(fake, "down")
    assert not fake.state_dir.exists() and traces(fake.state_dir) == []
    code, said = rlaunch(fake, "status")
    assert code == 3 and "rlaunch fake up" in said
    good(fake, "down")


def test_it_comes_back_as_it_was_after_its_controller_was_killed(fake: FakeCluster) -> None:
    good(fake, "up", *SMALL, "--like", "24.11")
    (job_id,) = good(fake, "fill", "--jobs", "1").split()
    wait_for(lambda: status(fake)["jobs"] == {"RUNNING": 1})
    os.kill(int((fake.state_dir / "lock").read_text().split()[0]), 9)
    wait_for(lambda: not fake.is_up())
    assert rlaunch(fake, "status")[0] == 3
    code, said = rlaunch(fake, "up", "--nodes", "3")
    assert code == 1 and "another specification" in said
    assert "Slurm 24.11" in good(fake, "up")
    assert slurm(fake, "squeue", "-h", "-o", "%i %T").strip() == f"{job_id} RUNNING"


def test_every_event_by_hand(fake: FakeCluster) -> None:
    good(fake, "up", *SMALL, "--partition", "low:1:requeue:grace=0s", "--partition", "high:10")
    first, second = good(fake, "fill", "--for", "5m").split()
    wait_for(lambda: status(fake)["jobs"] == {"RUNNING": 2})

    def restarts(job_id: str) -> str:
        return slurm(fake, "squeue", "-h", "-j", job_id, "-O", "restartcnt").strip()

    good(fake, "preempt", first)
    wait_for(lambda: restarts(first) == "1")
    good(fake, "fail-node", "n[1-2]")
    wait_for(lambda: restarts(second) == "1")
    good(fake, "resume-node", "n2")
    assert status(fake)["nodes"][0]["state"] == "DOWN*"
    good(fake, "resume-node", "n1")
    wait_for(lambda: status(fake)["jobs"] == {"RUNNING": 2})
    good(fake, "drain", "n1", "--reason", "a fan is loud")
    assert status(fake)["nodes"][0] == {"name": "n1", "state": "DRAINING", "reason": "a fan is loud"}
    good(fake, "maintenance", "--in", "10m", "--for", "2h", "--nodes", "n[1-2]")
    (window,) = status(fake)["reservations"]
    assert (window["nodes"], window["end"] - window["start"]) == (["n1", "n2"], 7200)
    assert "Nodes=n[1-2]" in slurm(fake, "scontrol", "show", "reservation", "maintenance")
    code, said = rlaunch(fake, "maintenance", "--nodes", "n1")
    assert code == 1 and "already" in said


def test_accounting_and_the_controller_go_and_come_back(fake: FakeCluster) -> None:
    good(fake, "up", *SMALL)
    good(fake, "slow-accounting", "300ms")
    assert status(fake)["accounting_delay_s"] == 0.3
    slurm(fake, "sacct")
    good(fake, "no-accounting")
    with pytest.raises(subprocess.CalledProcessError) as lost:
        slurm(fake, "sacct")
    assert "Connection refused" in lost.value.stderr
    good(fake, "slow-accounting", "0s")
    slurm(fake, "sacct")
    good(fake, "fill", "--jobs", "1")
    good(fake, "controller-down")
    with pytest.raises(subprocess.CalledProcessError):
        slurm(fake, "squeue")
    assert rlaunch(fake, "controller-down")[0] == 3
    good(fake, "controller-up")
    assert len(slurm(fake, "squeue", "-h").splitlines()) == 1


def test_a_cut_network_leaves_the_nodes_processes_alive(fake: FakeCluster) -> None:
    good(fake, "up", *SMALL)
    good(fake, "fill", "--jobs", "1")
    wait_for(lambda: status(fake)["jobs"] == {"RUNNING": 1})
    wait_for(lambda: len(traces(fake.state_dir)) == 2)
    good(fake, "fail-node", "n1", "--partition-network")
    # The job runs again elsewhere, beside what is left of its first run.
    wait_for(lambda: [node["state"] for node in status(fake)["nodes"]] == ["DOWN*", "ALLOCATED"])
    wait_for(lambda: len(traces(fake.state_dir)) == 3)


def test_a_file_says_the_same_as_options_which_win(fake: FakeCluster) -> None:
    path = fake.state_dir.with_name("fake.yaml")
    path.write_text("nodes: 3\ncpus: 2\naccounting: false\npartitions: [{name: only, tier: 5}]\n")
    good(fake, "up", str(path), "--nodes", "2", "--signals", "task", "--send-user-signal")
    spec = fake.spec()
    assert spec is not None
    assert (spec.num_nodes, spec.cpus, spec.accounting) == (2, 2, False)
    assert (spec.signals, spec.send_user_signal, [each.name for each in spec.partitions]) == ("task", True, ["only"])
    assert rlaunch(fake, "slow-accounting", "1s")[0] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nodes", "0", "--cpus", "x"], ["--nodes 0", "--cpus x"]),
        (["--partition", "low:1:grce=5s"], ["grce=5s", "try: --partition"]),
        (["--like", "23.02"], ["--like", "22.05"]),
        (["nowhere.yaml"], ["nowhere.yaml", "no such file"]),
    ],
)
def test_a_shape_that_cannot_be_is_refused(fake: FakeCluster, words: list[str], said: list[str]) -> None:
    code, text = rlaunch(fake, "up", *words)
    assert code == 2
    for each in said:
        assert each in text
    assert fake.spec() is None


def test_events_that_cannot_be_are_refused(fake: FakeCluster) -> None:
    assert rlaunch(fake, "preempt", "1")[0] == 3
    good(fake, "up", *SMALL)
    for words, why in (
        (["preempt", "1"], "Invalid job id"),
        (["preempt", "x"], "no job id"),
        (["fail-node", "n9"], "n1, n2"),
        (["drain", "n["], "hostlist"),
        (["fill", "--partition", "nope"], "low, high"),
        (["maintenance", "--for", "soon"], "--for"),
    ):
        code, said = rlaunch(fake, *words)
        assert code in (1, 2) and why in said, (shlex.join(words), said)
