"""Three runs on the fake save large states to one disk, each when it likes and then in turns: write times side by side.

``python -m tests.faults.side_by_side`` prints one JSON object. It is a measurement on whatever disk there is, and
fails only when a run does not finish.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from resilient_launch.cluster.fake.cluster import FakeCluster
from resilient_launch.core.events import read_events
from resilient_launch.launch.clusters import fake_state_dir

MAIN = "from resilient_launch.cli.main import main; main()"
TIMEOUT_S = 240.0
TRAINING = """
import sys, time
import torch
import resilient_launch as rl

torch.set_num_threads(1)
with rl.attach() as run:
    run.seed(1)
    model = torch.nn.Linear(int(sys.argv[1]), 4096, bias=False)
    state = rl.TrainState(model=model)
    run.restore(state)
    for step in run.steps(state, until=int(sys.argv[2])):
        with torch.no_grad():
            model.weight.add_(0.001)
        time.sleep(0.05)
"""


def run_once(
    root: Path, *, shared: Path | None, num_runs: int, num_mib: int, steps: int, every: int, in_background: bool
) -> dict[str, list[float]]:
    """Run all at the same time; what each of their saves took, in seconds."""
    root.mkdir()
    (root / "train.py").write_text(TRAINING)
    processes = []
    for number in range(num_runs):
        config = root / f"run{number}.yaml"
        stagger = f"stagger: {{group: {shared}, writers: 1, max_wait: 30s}}\n" if shared is not None else ""
        config.write_text(
            f"name: run{number}\ncluster: fake\nscript: train.py\nargs: ['{num_mib * 64}', '{steps}']\n"
            f"time: 10m\nsignal_lead: 30s\nworkdir: {root}\ncode: {{snapshot: false}}\n"
            f"checkpoint: {{every: {every} steps, keep: 1, async: {str(in_background).lower()}}}\n"
            f"{stagger}fake: {{nodes: 1, cpus: 2}}\n"
        )
        command = [sys.executable, "-c", MAIN, "submit", str(config), "--root", str(root / f"runs{number}"), "--wait"]
        log = (root / f"run{number}.log").open("w")
        processes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL))
    try:
        codes = [process.wait(TIMEOUT_S) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for number in range(num_runs):
            FakeCluster(fake_state_dir(root / f"runs{number}")).down()
    if any(codes):
        logs = "\n".join((root / f"run{number}.log").read_text()[-1000:] for number in range(num_runs))
        raise SystemExit(f"a run failed: {codes}\n{logs}")
    blocking, drains, waits = [], [], []
    for number in range(num_runs):
        for event in read_events(root / f"runs{number}" / f"run{number}" / "events"):
            if event["kind"] == "checkpoint" and event["status"] == "durable" and event["reason"] == "steps":
                blocking.append(float(event["blocking_s"]))
                drains.append(float(event.get("drain_s", 0.0)))
            elif event["kind"] == "decision" and event["what"] == "save":
                waits.append(float(event["waited_s"]))
    return {"blocking_s": blocking, "drain_s": drains, "wait_while_training_s": waits}


def summary(rounds: Sequence[dict[str, list[float]]]) -> dict[str, Any]:
    """Mean, median and longest of each measure over all rounds."""
    together = {name: [value for each in rounds for value in each[name]] for name in rounds[0]}
    return {"saves": len(together["blocking_s"])} | {
        name: {"mean": round(fmean(values), 3), "median": round(median(values), 3), "longest": round(max(values), 3)}
        for name, values in together.items()
        if values
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--mib", type=int, default=128, help="size of each state")
    parser.add_argument("--steps", type=int, default=130)
    parser.add_argument("--every", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=2, help="how often each way is measured, in alternation")
    parser.add_argument("--foreground", action="store_true", help="training stands still for the whole of each save")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sizes = {
        "num_runs": given.runs,
        "num_mib": given.mib,
        "steps": given.steps,
        "every": given.every,
        "in_background": not given.foreground,
    }
    found: dict[bool, list[dict[str, list[float]]]] = {False: [], True: []}
    for number in range(given.rounds):
        # A machine that grows slower or faster meanwhile must favour neither way.
        for in_turns in (False, True) if number % 2 == 0 else (True, False):
            with tempfile.TemporaryDirectory(prefix="rlaunch-side-") as name:
                shared = Path(name) / "group" if in_turns else None
                found[in_turns].append(run_once(Path(name) / "runs", shared=shared, **sizes))
    answer = {"each_when_it_likes": summary(found[False]), "in_turns": summary(found[True])}
    print(json.dumps({"schema": 1, **sizes, "rounds": given.rounds, **answer}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
