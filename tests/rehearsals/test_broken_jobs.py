"""Jobs with one mistake each, and one without, rehearsed: every mistake is found, and called by its name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
MAIN = "from resilient_launch.cli.main import main; main()"

SCRIPT = '''
import random, time
import torch
import resilient_launch as rl
from resilient_launch.examples.broken.common import make_model, make_optimizer, make_sampler, train_step

class Notes:
    """An entry of the state that knows when it was saved."""
    def state_dict(self):
        return {"saved_at": time.time()}
    def load_state_dict(self, state):
        pass

KIND = %r
with rl.attach() as run:
    run.seed(1)
    model = make_model()
    optimizer, sampler = make_optimizer(model), make_sampler(run)
    more = {"notes": Notes()} if KIND == "stamps" else {}
    state = rl.TrainState(model=model, optimizer=optimizer, data=sampler, **more)
    if KIND != "never-restores":
        run.restore(state)
    batches = sampler.batches()
    if KIND == "silent":
        for step in range(10):
            train_step(model, optimizer, next(batches))
        raise SystemExit(0)
    if KIND == "deaf":
        # Between two words with the run it trains for longer than any grace.
        while state.step < 60:
            train_step(model, optimizer, next(batches))
            state.advance()
            run.boundary(state)
            while run.stop_requested():
                time.sleep(0.1)
    for step in run.steps(state, until=60):
        if KIND == "random" and step == 6:
            with torch.no_grad():
                next(model.parameters()).add_(random.SystemRandom().random())
        run.log(step, loss=train_step(model, optimizer, next(batches)))
'''


def rehearse(config: Path, root: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    """The exit code, the answer, and what was said beside it."""
    words = [sys.executable, "-c", MAIN, "rehearse", str(config), "--root", str(root), "--json", *options]
    done = subprocess.run(
        words,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


def job(kind: str, directory: Path) -> Path:
    work = directory / "work"
    work.mkdir()
    (work / "train.py").write_text(SCRIPT % kind)
    keys = {"name": kind, "cluster": "fake", "script": "train.py", "workdir": str(work), "python": sys.executable}
    path = directory / "job.yaml"
    path.write_text(yaml.safe_dump({**keys, "time": "10m", "signal_lead": "30s"}))
    return path


def test_a_job_that_resumes_exactly_is_identical(tmp_path: Path) -> None:
    names = ["crash", "drop", "world-size"]
    options = [word for name in names for word in ("--scenario", name)]
    code, found, said = rehearse(REPOSITORY / "configs" / "quickstart.yaml", tmp_path, *options)
    assert (code, found["verdict"], found["schema"]) == (0, "identical", 1), said
    assert [(each["name"], each["verdict"]) for each in found["scenarios"]] == [(name, "pass") for name in names]
    crash, drop, world_size = found["scenarios"]
    assert crash["digest"] == drop["digest"] == found["reference"]["digest"]
    assert crash["test"] == "bit-exact" and "different seeds" in world_size["test"]
    assert "seen to be missing, each: model, optimizer" in drop["why"]
    for each in found["scenarios"]:
        assert each["faults"] and [attempt["cause"] for attempt in each["attempts"]][-1] == "finished"


@pytest.mark.parametrize(
    ("name", "scenario", "piece"),
    [
        ("forgets-optimizer", "crash", "optimizer"),
        ("forgets-sampler", "crash", "data"),
        ("seeds-at-resume", "crash", "rng"),
        ("saves-in-place", "torn-save", "saves in place"),
    ],
)
def test_a_shipped_mistake_is_named(tmp_path: Path, name: str, scenario: str, piece: str) -> None:
    code, found, said = rehearse(
        REPOSITORY / "configs" / "broken" / f"{name}.yaml", tmp_path, "--steps", "40", "--scenario", scenario
    )
    (result,) = found["scenarios"]
    assert (code, found["verdict"], result["verdict"], result["piece"]) == (1, "different", "fail", piece), said


@pytest.mark.parametrize(
    ("kind", "scenario", "verdict", "word"),
    [
        ("silent", "crash", "unusable", "the job never checkpoints"),
        ("random", "crash", "not deterministic", "differ at step 7"),
        ("stamps", "crash", "not deterministic", "notes/saved_at"),
        ("never-restores", "crash", "different", "never resumes"),
        ("deaf", "preempt", "different", "ignores notices"),
    ],
)
def test_what_is_no_fault_of_the_resume_has_words_of_its_own(
    tmp_path: Path, kind: str, scenario: str, verdict: str, word: str
) -> None:
    code, found, said = rehearse(job(kind, tmp_path), tmp_path, "--steps", "16", "--scenario", scenario)
    texts = [str(found["why"]), *(str(each["why"]) for each in found["scenarios"])]
    assert (code, found["verdict"]) == (1, verdict), f"{texts}\n{said}"
    assert any(word in text for text in texts), f"{texts}\n{said}"
