"""A script that is killed twice by itself: rework is compared, an evaluation happens once, lives end as one would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from resilient_launch.core.events import read_events

SCRIPT = """
import os, sys, torch
import resilient_launch as rl

crash_at, rate = int(sys.argv[1]), float(sys.argv[2])
with rl.attach("own", every_steps=5) as run:
    run.seed(1)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = rl.TrainState(model=model, optimizer=optimizer)
    run.restore(state)
    for step in run.steps(state, until=20):
        loss = (model(torch.rand(4, 2)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        run.log(step, loss=loss.item(), lr=rate)
        if step in (6, 12):
            with run.once(step, "eval") as is_due:
                if is_due:
                    torch.rand(3)
                    print("evaluated", step, flush=True)
        if step + 1 == crash_at:
            raise RuntimeError("crash")
"""


def live(directory: Path, crash_at: int, rate: str = "0.1") -> subprocess.CompletedProcess[str]:
    (directory / "train.py").write_text(SCRIPT)
    repository = Path(__file__).resolve().parents[3]
    return subprocess.run(
        [sys.executable, "train.py", str(crash_at), rate],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(repository), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def reworks(directory: Path) -> list[dict[str, Any]]:
    return [event for event in read_events(directory / "own" / "events") if event["kind"] == "rework"]


def test_rework_is_compared_and_evaluations_happen_once(tmp_path: Path) -> None:
    first = live(tmp_path, crash_at=8)
    assert first.returncode == 1 and first.stdout == "evaluated 6\n"
    second = live(tmp_path, crash_at=13)
    assert second.returncode == 1 and second.stdout == "evaluated 12\n", second.stderr
    (same,) = reworks(tmp_path)
    # Steps 5 to 7, a loss and a learning rate each, told at the first step that is new.
    assert (same["status"], same["step"], same["num_compared"]) == ("same", 8, 6)
    assert "came out otherwise" not in second.stderr
    # The third life was given another learning rate.
    third = live(tmp_path, crash_at=99, rate="0.2")
    assert third.returncode == 0 and third.stdout == "", third.stderr
    differs = reworks(tmp_path)[1]
    assert (differs["status"], differs["step"], differs["name"], differs["now"]) == ("differs", 10, "lr", 0.2)
    assert third.stderr.count("step 10 came out otherwise than before the resume: lr was 0.1 and is 0.2") == 1
