"""The account of a real run against clocks of the script's own: steps, rework, saves, restores, a slow rank, a hang."""

from __future__ import annotations

import itertools
import json
import re
from collections import defaultdict
from statistics import median
from typing import Any

import pytest
from integration_bench import RunBench

TIMED = """
import atexit, gc, os, time

def say(*words):
    print(*words, f"{time.monotonic():.6f}", flush=True)

def watch():
    # A process of its own notes until when this one was there, whatever ended it.
    parent, name = os.getpid(), os.environ["TORCHELASTIC_RESTART_COUNT"] + "." + os.environ["RLAUNCH_ATTEMPT"]
    if os.fork() == 0:
        file = os.open("alive." + name, os.O_CREAT | os.O_WRONLY)
        while os.getppid() == parent:
            os.pwrite(file, f"{time.monotonic():020.6f}".encode(), 0)
            time.sleep(0.01)
        os._exit(0)

if os.environ["RANK"] == "0":
    watch()

# Hooks run in reverse: this one sees what attach left to be done.
atexit.register(lambda: say("frozen", gc.get_freeze_count()))

import torch
import torch.distributed as dist
import resilient_launch as rl

class Slow:
    def state_dict(self):
        time.sleep(0.7)
        return {"one": 1}

    def load_state_dict(self, state):
        time.sleep(2.0)

dist.init_process_group("gloo")
with rl.attach() as run:
    run.seed(1)
    model = torch.nn.Linear(4, 4)
    state = rl.TrainState(model=model, slow=Slow())
    say("restoring")
    run.restore(state)
    say("restored")
    try:
        for step in run.steps(state, until=340):
            say("begin", step)
            began = time.monotonic()
            with run.local_work():
                time.sleep(0.1 if run.rank == 2 and 20 <= step < 60 else 0.05)
            own = time.monotonic() - began
            dist.barrier()
            say("step", step, f"{own:.6f}")
    finally:
        say("over")
dist.destroy_process_group()
"""
TOLERANCE, SLACK_S = 0.05, 0.5
SAVE_S = 0.6
"""A pause between two steps that is longer holds a save: its state takes 0.7 s to gather."""


def truth_of(bench: RunBench) -> dict[str, float]:
    """Seconds by label, by the clocks of the script and of the process beside it."""
    truth: dict[str, float] = defaultdict(float)
    seen = 0
    for directory in sorted(bench.paths("run").logs.iterdir()):
        attempt = int(directory.name)
        own: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        words = []
        for file in sorted(directory.glob("*.log")):
            rank, restart = int(file.stem.rpartition(".")[2]), -1
            for line in file.read_text().splitlines():
                match = re.fullmatch(r"(restoring|restored|begin|step|over)((?: [\d.]+)*) ([\d.]+)", line)
                if match is None:
                    continue
                word, values, at = match[1], match[2].split(), float(match[3])
                restart += word == "restoring"
                if word == "step":
                    own[restart][int(values[0])].append(float(values[1]))
                if rank == 0:
                    words.append((restart, word, int(values[0]) if values else -1, at))
        for restart in sorted({each[0] for each in words}):
            group = [each[1:] for each in words if each[0] == restart]
            high_water, last = seen, None
            for (before, _, since), (word, step, at) in itertools.pairwise(group):
                took_s = at - since
                if word == "restored":
                    truth["restore"] += took_s
                elif word == "step":
                    spent = own[restart][step]
                    excess_s = max(spent) - median(spent)
                    truth["straggler"] += excess_s
                    truth["rework" if step < high_water else "useful"] += took_s - excess_s
                    seen, last = max(seen, step + 1), at
                elif before == "step" and took_s > SAVE_S:
                    truth["saves"] += took_s
            gone = float((bench.workdir / f"alive.{restart}.{attempt}").read_text())
            if group[-1][0] != "over":
                # Killed in a step, or stopped in one: it is over when the process is gone.
                assert last is not None
                truth["hang" if gone - last > 4.0 else "rework"] += gone - last
    return truth


@pytest.mark.slow
def test_every_component_is_what_was_injected(bench: RunBench) -> None:
    (bench.workdir / "train.py").write_text(TIMED)
    config = bench.config(
        "run",
        nodes=1,
        workers_per_node=3,
        checkpoint={"every": "140 steps"},
        hang={"floor": "5s", "ceiling": "8s"},
        # A step is known a second after it: that much, and a stall, stay in front of the next save and of the end.
        faults=[
            {"at": {"step": 70}, "do": "kill-worker", "rank": 1},
            {"at": {"step": 160}, "do": "stop-worker", "rank": 1},
            {"at": {"step": 240}, "do": "preempt"},
        ],
    )
    done = bench.rlaunch("submit", str(config), "--wait", timeout_s=240.0)
    assert done.returncode == 0, done.stderr + bench.trace("run")
    report: dict[str, Any] = json.loads(bench.rlaunch("report", "run", "--json").stdout)
    found: dict[str, float] = defaultdict(float)
    for each in report["attempts"]:
        for label, seconds in each["seconds"].items():
            found[label] += seconds
    found["saves"] = found["checkpoint"] + found["emergency"]
    truth = truth_of(bench)
    # What was injected, at least: two restores, four saves, forty slow steps twice, a silence of the detector's floor.
    least = {"restore": 4.0, "saves": 4 * 0.7, "straggler": 2 * 40 * 0.05, "hang": 4.5, "rework": 3.5, "useful": 17.0}
    for label, injected_s in least.items():
        assert truth[label] >= 0.95 * injected_s, (label, found, truth)
        assert abs(found[label] - truth[label]) <= TOLERANCE * truth[label] + SLACK_S, (label, found, truth)
    assert found["emergency"] >= 0.7
    frozen = re.findall(r"^frozen (\d+)", bench.logs("run", 1), re.MULTILINE)
    assert len(frozen) == 3 and "0" not in frozen, "leaving waits for no last walk over all of torch's objects"
    total_s = sum(each["allocated_s"] for each in report["attempts"])
    assert sum(part["share"] for part in report["partition"].values()) == pytest.approx(1.0, abs=1e-9)
    assert all(each["allocation_source"] == "slurm" for each in report["attempts"])
    assert total_s == pytest.approx(report["allocated_unit_seconds"] / report["attempts"][0]["units"])
