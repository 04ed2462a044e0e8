"""One run on a real Slurm through what Slurm alone decides: a signal to one node, a lost node, a cancel."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from integration_bench import MAIN, RunBench, newest_digest, wait_for

from resilient_launch.cluster.slurm import SlurmCommands


def _agent_of(pid: int) -> int:
    """The node agent that a worker belongs to: its parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _slurmd_of(node: str, env: dict[str, str]) -> int:
    """The daemon of one node of the cluster that ``env`` leads to."""
    conf, words = env["SLURM_CONF"].encode(), [b"-N", node.encode()]
    for process in Path("/proc").glob("[0-9]*"):
        # Any other process may end while it is looked at.
        with contextlib.suppress(OSError):
            line = (process / "cmdline").read_bytes().split(b"\0")
            is_slurmd = line[0].endswith(b"slurmd") and words[1] in line and words[0] in line
            if is_slurmd and conf in (process / "environ").read_bytes():
                return int(process.name)
    raise AssertionError(f"no slurmd of {node}")


@pytest.mark.slow
def test_each_cause_is_told_and_answered(
    bench: RunBench, real_slurm: dict[str, str], reference: Callable[[int], str]
) -> None:
    env = bench.env = {**real_slurm, **{name: bench.env[name] for name in ("PYTHONPATH", "RLAUNCH_ROOT")}}
    slurm, paths = SlurmCommands(env), bench.paths("run")
    script = bench.workdir / "train.py"
    script.write_text(script.read_text().replace("sleep(options.step_s)", "sleep(0.1 * (run.attempt < 3))"))
    keys = {"nodes": 2, "time": "20m", "checkpoint": {"every": "20 steps"}, "restart": {"backoff": "0s"}}
    config = bench.config("run", cluster="slurm", partition="low", **keys)
    job_id = bench.submit(config)
    # Whoever follows a run lifts Slurm's wait after a requeue.
    followed = subprocess.Popen([sys.executable, "-c", MAIN, "wait", "run"], env=env, stdout=subprocess.DEVNULL)
    slurmd, lost = 0, ""
    try:
        bench.wait_step("run", 10)
        pid, _ = bench.worker("run", 1)
        os.kill(_agent_of(pid), signal.SIGUSR1)

        bench.wait_step("run", 50, attempt=1)
        _, lost = bench.worker("run", 1)
        # One that answers would be taken back, perhaps before anybody asks.
        slurmd = _slurmd_of(lost, env)
        os.kill(slurmd, signal.SIGSTOP)
        scontrol = ["scontrol", "update", f"nodename={lost}"]
        subprocess.run([*scontrol, "state=down", "reason=test"], env=env, check=True)

        wait_for(lambda: bench.events("run", "resume")[-1]["attempt"] == 2, what="the third attempt")
        resumed = bench.events("run", "resume")[-1]["resume_step"]
        bench.wait_step("run", resumed + 5, attempt=2)
        slurm.cancel(job_id)
        assert followed.wait(90) == 103
    finally:
        followed.kill()
        followed.wait()
        slurm.cancel(job_id)
        if slurmd:
            os.kill(slurmd, signal.SIGCONT)
            # Refused where the node has come back by itself.
            subprocess.run(["scontrol", "update", f"nodename={lost}", "state=resume"], env=env, check=False)
    bench.submit(config)
    bench.wait("run")
    rows = bench.status("run")["attempts"]
    assert [row["cause"] for row in rows] == ["yielded", "node_failure", "cancelled", "finished"]
    assert [row["job_id"] == job_id for row in rows] == [True, True, True, False]
    # Rework only where nothing announced the end, and no more than an interval then.
    assert [row["rework_steps"] for row in (rows[0], rows[1], rows[3])] == [0, 0, 0]
    assert rows[2]["rework_steps"] <= 20
    assert rows[3]["resume_step"] == rows[2]["end_step"]
    assert newest_digest(paths.checkpoints) == reference(2)
