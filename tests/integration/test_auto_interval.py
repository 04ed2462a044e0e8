"""A run that solves its own checkpoint interval, through a preemption on the fake cluster."""

from __future__ import annotations

import json
from itertools import pairwise

from integration_bench import RunBench

TRAINING = """
import time
import torch
import resilient_launch as rl

with rl.attach() as run:
    model = torch.nn.Linear(2, 2)
    state = rl.TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    run.restore(state)
    for step in run.steps(state, until=200):
        time.sleep(0.1 if run.attempt == 0 else 0.0)
        if step == (10 if run.attempt == 0 else 195):
            run.checkpoint(state)
            time.sleep(1.0)
"""


def test_decisions_follow_checkpoints_and_interruptions_across_attempts(bench: RunBench) -> None:
    (bench.workdir / "train.py").write_text(TRAINING)
    config = bench.config(
        "auto",
        nodes=1,
        partition="low",
        checkpoint={"every": "auto", "failures_per_1000_node_days": 100_000},
        faults=[{"at": {"step": 30}, "do": "preempt"}],
    )
    done = bench.rlaunch("submit", str(config), "--wait")
    assert done.returncode == 0, f"{done.stderr}{bench.trace('auto')}"
    decisions = [event for event in bench.events("auto", "decision") if event["what"] == "checkpoint interval"]
    # The save at the end may be over before the agent looks again.
    decisions = decisions[:4]
    reasons = [(event["attempt"], event["why"].split(":")[0]) for event in decisions]
    made, new = "a checkpoint was made", "a new attempt"
    assert reasons == [(0, new), (0, made), (1, new), (1, made)], bench.trace("auto")
    assert [event["inputs"]["num_interruptions"] for event in decisions] == [0, 0, 1, 1]
    assert [event["inputs"]["notice"] for event in decisions] == [0, 0, 0.5, 0.5], "the notice's save was in time"
    for before, after in pairwise(event["interval_s"] for event in decisions):
        assert 0.75 * before - 1e-6 <= after <= 1.25 * before + 1e-6
    done = bench.rlaunch("plan", "interval", "auto", "--json")
    assert done.returncode == 0, done.stderr
    fit = json.loads(done.stdout)["fit"]
    assert (fit["num_interruptions"], fit["notice"]) == (1, 0.5)
    assert fit["cost"]["count"] >= 2
    assert fit["emergency"]["count"] == 1
