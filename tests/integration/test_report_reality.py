"""The account of a real run against clocks of the script's own: steps, rework, slow saves, a slow restore, a hang."""

from __future__ import annotations

import json
import re

import pytest
from integration_bench import RunBench

TIMED = """
import os, time
import torch
import torch.distributed as dist
import resilient_launch as rl

def tell(word, began):
    print(word, f"{time.monotonic() - began:.6f}", f"{time.monotonic():.6f}", flush=True)

class Slow:
    def state_dict(self):
        began = time.monotonic()
        time.sleep(0.7)
        tell("saved", began)
        return {"one": 1}

    def load_state_dict(self, state):
        began = time.monotonic()
        time.sleep(2.0)
        tell("restored", began)

dist.init_process_group("gloo")
with rl.attach() as run:
    run.seed(1)
    model = torch.nn.Linear(4, 4)
    state = rl.TrainState(model=model, slow=Slow())
    run.restore(state)
    for step in run.steps(state, until=240):
        began = time.monotonic()
        time.sleep(0.05)
        dist.barrier()
        tell(f"step {step}", began)
dist.destroy_process_group()
"""
TOLERANCE, SLACK_S = 0.05, 0.5


@pytest.mark.slow
def test_every_component_is_what_was_injected(bench: RunBench) -> None:
    (bench.workdir / "train.py").write_text(TIMED)
    config = bench.config(
        "run",
        nodes=1,
        workers_per_node=2,
        checkpoint={"every": "100 steps"},
        hang={"floor": "5s", "ceiling": "8s"},
        faults=[
            {"at": {"step": 70}, "do": "kill-worker", "rank": 1},
            {"at": {"step": 150}, "do": "stop-worker", "rank": 1},
            {"at": {"step": 200}, "do": "preempt"},
        ],
    )
    done = bench.rlaunch("submit", str(config), "--wait", timeout_s=240.0)
    assert done.returncode == 0, done.stderr + bench.trace("run")
    report = json.loads(bench.rlaunch("report", "run", "--json").stdout)
    found = {
        label: sum(each["seconds"][label] for each in report["attempts"])
        for label in ("useful", "rework", "checkpoint", "emergency", "restore", "hang")
    }
    log = "".join(
        file.read_text()
        for attempt in sorted(bench.paths("run").logs.iterdir())
        for file in sorted(attempt.glob("*.0.log"))
    )
    steps = [(int(step), float(took)) for step, took in re.findall(r"^step (\d+) ([\d.]+)", log, re.MULTILINE)]
    seen: set[int] = set()
    truth = dict.fromkeys(found, 0.0)
    for step, took_s in steps:
        truth["rework" if step in seen else "useful"] += took_s
        seen.add(step)
    # A restore asks for the present state first, to compare it with what is stored.
    words = [
        (word, float(took)) for word, took in re.findall(r"^(saved|restored|step \d+) ([\d.]+)", log, re.MULTILINE)
    ]
    saves = 0.0
    for (word, took_s), (following, _) in zip(words, [*words[1:], ("", 0.0)], strict=True):
        if word == "restored" or (word == "saved" and following == "restored"):
            truth["restore"] += took_s
        elif word == "saved":
            saves += took_s
    assert truth["rework"] > 1.0 and truth["restore"] >= 4.0 and saves >= 2.0
    for label in ("useful", "rework", "restore"):
        # A killed worker's cut-off step is rework, and every save and restore also does its real work.
        slack_s = SLACK_S + 0.3 * len(report["attempts"]) * (label != "useful")
        assert abs(found[label] - truth[label]) <= TOLERANCE * truth[label] + slack_s, (label, found, truth)
    both_s = found["checkpoint"] + found["emergency"]
    assert saves <= both_s + SLACK_S and both_s <= saves * (1 + TOLERANCE) + SLACK_S + 0.2 * saves, (found, saves)
    assert found["emergency"] >= 0.7
    # From the last step before the silence to the abort: the detector's patience is between its floor and its ceiling.
    assert 4.5 <= found["hang"] <= 8.0 + 5.0, found
    total_s = sum(each["allocated_s"] for each in report["attempts"])
    assert sum(part["share"] for part in report["partition"].values()) == pytest.approx(1.0, abs=1e-9)
    assert all(each["allocation_source"] == "slurm" for each in report["attempts"])
    assert total_s == pytest.approx(report["allocated_unit_seconds"] / report["attempts"][0]["units"])
