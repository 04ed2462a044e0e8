"""The quickstart's training on a real Slurm, through a real preemption and a real time limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from integration_bench import MAIN, RunBench, newest_digest
from waiting import wait_for

from resilient_launch.cluster.slurm import SlurmCommands
from resilient_launch.report.attempts import attempt_rows

STEPS = 240
# Two attempts as slow as it takes to be interrupted, then as fast as it goes.
PACED = """
import os, time
from torch.optim.optimizer import register_optimizer_step_post_hook
from resilient_launch.examples import quickstart

if int(os.environ["RLAUNCH_ATTEMPT"]) < int(os.environ["SLOW_ATTEMPTS"]):
    register_optimizer_step_post_hook(lambda *_: time.sleep(0.3))
quickstart.main()
"""


# On a busy machine a life of two minutes gets less far, and more of them are needed.
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_real_preemption_and_a_real_time_limit_change_nothing(
    bench: RunBench, real_slurm: dict[str, str], tmp_path: Path
) -> None:
    # A fake cluster's commands go in front of these, for the uninterrupted run.
    env = bench.env = {**real_slurm, **{name: bench.env[name] for name in ("PYTHONPATH", "RLAUNCH_ROOT")}}
    slurm, paths = SlurmCommands(env), bench.paths("run")
    (bench.workdir / "paced.py").write_text(PACED)
    args = ["--steps", str(STEPS)]
    common = {"script": "paced.py", "nodes": 2, "signal_lead": "59s"}
    bench.submit(bench.config("whole", args, **common, env={"SLOW_ATTEMPTS": "0"}))

    config = bench.config("run", args, **common, cluster="slurm", time="2m", env={"SLOW_ATTEMPTS": "2"})
    job_id = bench.submit(config)
    followed = subprocess.Popen(
        [sys.executable, "-c", MAIN, "wait", "run", "--timeout", "780"], env=env, stdout=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: (rows := attempt_rows(paths)) and (rows[-1].end_step or 0) > 10, 90, "the first steps")
        nodes = slurm.show(job_id).nodes  # type: ignore[union-attr]
        high = ["sbatch", "--partition=high", f"--nodelist={nodes}", "--exclusive", "--output=/dev/null", "--wrap=true"]
        subprocess.run(high, env=env, check=True, stdout=subprocess.DEVNULL, cwd=tmp_path)
        assert followed.wait(800) == 0
    finally:
        followed.kill()
        slurm.cancel(job_id)
    rows = attempt_rows(paths)
    # Slurm signals up to a minute early: on a slow machine the last stretch may meet a second time limit.
    causes = [row.cause for row in rows]
    assert causes == ["preempted", *["time_limit"] * (len(rows) - 2), "finished"] and len(rows) > 2
    assert not any(row.rework_steps for row in rows)
    assert [row.resume_step for row in rows] == [0, *[row.end_step for row in rows[:-1]]]
    assert {row.job_id for row in rows} == {job_id}
    bench.wait("whole")
    assert newest_digest(paths.checkpoints) == bench.digest("whole")
