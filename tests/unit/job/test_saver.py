"""A worker's saves, seen from outside: a script of its own that is disturbed while its writer is at work."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from resilient_launch.core.errors import EXIT_TEMPORARY
from resilient_launch.core.events import read_events
from resilient_launch.core.paths import RunPaths

TIMEOUT_S = 240
HEAD = """
import os, shutil, signal, sys, threading, time
from pathlib import Path
import torch
import resilient_launch as rl
from resilient_launch.core.events import read_events

def writer():
    return int(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()[0])

def wait_for(kind, status=None):
    while not any(e["kind"] == kind and e.get("status") == status for e in read_events(Path("own/events"))):
        time.sleep(0.01)
"""


def run(directory: Path, body: str, **environment: str) -> tuple[int, list[dict[str, Any]], list[str]]:
    """The script's exit code, its events and the checkpoints that it left."""
    script = directory / "train.py"
    script.write_text(HEAD + body)
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        timeout=TIMEOUT_S,
    )
    paths = RunPaths(directory / "own")
    names = sorted(path.name for path in paths.checkpoints.glob("*") if path.name != "LATEST")
    return done.returncode, list(read_events(paths.events)), names


def saves(events: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(event["step"], event["status"]) for event in events if event["kind"] == "checkpoint"]


def test_training_goes_on_without_its_directory_and_saves_again_when_it_is_back(tmp_path: Path) -> None:
    body = """
with rl.attach("own", every_steps=10) as run:
    model = torch.nn.Linear(2, 2)
    state = rl.TrainState(model=model)
    run.restore(state)
    for step in run.steps(state, until=35):
        if step == 15:
            while not Path("own/checkpoints/LATEST").exists():
                time.sleep(0.01)
            Path("own/checkpoints").rename("own/away")
        if step == 25:
            wait_for("checkpoint", "failed")
            Path("own/away").rename("own/checkpoints")
"""
    code, events, names = run(tmp_path, body)
    assert code == 0
    assert names == [f"step-000000{step}.a0000.r0" for step in (10, 30, 35)]
    told = saves(events)
    assert {(10, "durable"), (20, "failed"), (30, "durable"), (35, "durable")} <= set(told)
    assert (20, "durable") not in told
    (failed,) = (event for event in events if event.get("status") == "failed")
    assert "own/checkpoints" in failed["error"]
    durable = next(event for event in events if event.get("status") == "durable" and event["step"] == 10)
    staged = next(event for event in events if event.get("status") == "staged" and event["step"] == 10)
    assert durable["drain_s"] > 0
    assert staged["blocking_s"] <= durable["blocking_s"] + durable["drain_s"]


def test_the_save_in_flight_is_finished_where_a_new_one_will_not_fit(tmp_path: Path) -> None:
    body = """
with rl.attach("own", every_steps=1000) as run:
    model = torch.nn.Linear(2, 2)
    state = rl.TrainState(model=model)
    run.restore(state)
    for step in run.steps(state, until=10**6):
        if step == 1999:
            run._saver.settle()
            stopped = writer()
            os.kill(stopped, signal.SIGSTOP)
        if step == 2000:
            wake = lambda: (wait_for("decision"), os.kill(stopped, signal.SIGCONT))
            threading.Thread(target=wake, daemon=True).start()
            os.kill(os.getpid(), signal.SIGTERM)
        if step >= 2000:
            time.sleep(0.01)
"""
    code, events, names = run(tmp_path, body, RLAUNCH_GRACE_S="0")
    assert code == EXIT_TEMPORARY
    assert names == [f"step-0000{step}.a0000.r0" for step in (1000, 2000)]
    (decision,) = (event for event in events if event["kind"] == "decision")
    assert decision["act"] == "finish"
    assert "finishing the save of step 2000" in decision["why"]


def test_a_failure_ends_training_where_that_is_wanted(tmp_path: Path) -> None:
    body = """
from resilient_launch.config.schema import CheckpointConfig, Every
from resilient_launch.job import workplace
from resilient_launch.job.run import Run
config = CheckpointConfig(every=Every(steps=5), on_save_failure="stop")
with Run(workplace.find(Path("own").absolute(), config, None)) as run:
    state = rl.TrainState(model=torch.nn.Linear(2, 2))
    run.restore(state)
    for step in run.steps(state, until=10**6):
        if step == 4:
            Path("own/checkpoints").rename("own/away")
        time.sleep(0.001)
"""
    code, events, names = run(tmp_path, body)
    assert code == 1
    assert (5, "failed") in saves(events)
    assert names == []
