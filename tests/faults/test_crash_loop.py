"""User code that fails every time: the run stops soon, says why, and shows the error of the rank that had it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from integration_bench import RunBench

RAISES = 'print(f"step {step}", flush=True)'


def _edit(bench: RunBench, old: str, new: str) -> None:
    script = bench.workdir / "train.py"
    text = script.read_text()
    assert old in text
    script.write_text(text.replace(old, new))


def _fails(bench: RunBench, config: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    bench.submit(config)
    bench.wait("run", expect=100)
    return bench.verdict("run"), bench.status("run")


def test_code_that_raises_at_step_50_stops_after_its_budget(bench: RunBench) -> None:
    # Rank 1 has the error; rank 0 only loses its connection, and must not be the one that is shown.
    error = 'if step == 49 and run.rank == 1: raise ValueError("the loss is NaN")'
    _edit(bench, RAISES, f"{RAISES}\n            {error}")
    verdict, status = _fails(
        bench, bench.config("run", workers_per_node=2, checkpoint={"every": "20 steps"}, restart={"backoff": "1s"})
    )
    assert verdict["state"] == "failed"
    assert "was reached 3 times in a row" in verdict["why"]
    assert "rank 1" in verdict["error"]
    assert 'raise ValueError("the loss is NaN")' in verdict["error"]
    assert verdict["hint"]
    # Three worker groups, all in one attempt: no requeue, and so no back-off, was spent on it.
    assert len(status["attempts"]) == 1
    assert status["attempts"][0]["torchelastic_restart_count"] == 2


def test_without_restarts_in_the_job_the_requeues_are_counted(bench: RunBench) -> None:
    keys: dict[str, Any] = {"restart": {"max_worker_restarts": 0, "backoff": "1s", "max_crashes": 3}}
    _edit(bench, RAISES, f'{RAISES}\n            if step == 5: raise ValueError("the loss is NaN")')
    verdict, status = _fails(bench, bench.config("run", **keys))
    assert "reached 3 times in a row" in verdict["why"]
    assert [row["cause"] for row in status["attempts"]] == ["crash"] * 3


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "import resilient_launch as rl",
            "import resilient_launch as rl\nimport no_such_module",
            "ModuleNotFoundError",
        ),
        ("options = options.parse_args()", 'options.error("no such option")', "wrong usage"),
        ("run.restore(state)", 'run.restore(state)\n        raise KeyError("learning_rate")', "every rank raised"),
    ],
)
def test_an_error_before_the_first_step_stops_at_once(bench: RunBench, old: str, new: str, words: str) -> None:
    _edit(bench, old, new)
    verdict, status = _fails(bench, bench.config("run", workers_per_node=2))
    assert verdict["state"] == "failed"
    assert words in verdict["why"]
    assert [row["torchelastic_restart_count"] for row in status["attempts"]] == [0]


def test_a_checkpoint_that_leads_nowhere_is_passed_over(bench: RunBench) -> None:
    # What was saved at step 40 is poison: whoever resumes from it fails two steps later.
    poison = f'{RAISES}\n            if first == 40 and step == 41: raise ValueError("poisoned")'
    _edit(bench, RAISES, f"{poison}\n            if first == 0 and step == 45: os._exit(9)")
    _edit(bench, "run.restore(state)", "first = run.restore(state)")
    bench.submit(
        bench.config(
            "run",
            ["--steps", "80"],
            checkpoint={"every": "20 steps"},
            restart={"backoff": "0s", "max_worker_restarts": 9},
        )
    )
    bench.wait("run")
    assert [event["resume_step"] for event in bench.events("run", "resume")] == [0, 40, 40, 40, 20]
    assert "step-00000040.a0000.r0 is passed over" in bench.logs("run")
