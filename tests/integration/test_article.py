"""The article's training: its experiments, and the same training as a run under rlaunch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from integration_bench import REPOSITORY, RunBench

TRAINING = "resilient_launch.examples.article.train"


@pytest.mark.slow
def test_every_experiment_comes_out_as_in_the_article() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "resilient_launch.examples.article"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    lines = done.stdout.splitlines()
    verdicts = [line for line in lines if line.startswith(("PASS", "FAIL"))]
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.removeprefix("PASS ") for line in verdicts] == [
        "A reference",
        "B crashes",
        "C kills",
        "D discard mom",
        "D discard rng",
        "D discard pos",
        "D discard step",
        "E naive writer",
        "E atomic writer",
        "F damage",
    ]
    assert sum("matches reference: True" in line for line in lines) == 4
    assert sum("matches reference: False" in line for line in lines) == 5


@pytest.mark.slow
def test_as_a_run_it_ends_with_the_digest_that_it_has_alone(bench: RunBench, tmp_path: Path) -> None:
    alone = subprocess.run(
        [sys.executable, "-m", TRAINING, "--steps", "500", "--directory", str(tmp_path / "alone")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    config = bench.config(
        "run",
        ["--steps", "500", "--step-s", "0.02"],
        script=None,
        module=TRAINING,
        checkpoint={"every": "50 steps"},
        faults=[{"at": {"step": 40}, "do": "preempt"}, {"at": {"step": 100}, "do": "kill-worker", "rank": 0}],
    )
    done = bench.rlaunch("submit", str(config), "--wait")
    assert done.returncode == 0, done.stdout + done.stderr + bench.trace("run")
    rows = bench.status("run")["attempts"]
    assert [row["cause"] for row in rows] == ["preempted", "finished"]
    assert rows[1]["torchelastic_restart_count"] == 1
    expected = json.loads(alone.stdout.splitlines()[-1])
    assert json.loads(bench.logs("run", 1).splitlines()[-1]) == expected
