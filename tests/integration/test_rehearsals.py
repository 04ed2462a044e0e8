"""Rehearsals of whole jobs: one that resumes exactly, in a test as a user would write it, and one that does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from integration_bench import REPOSITORY, RunBench, marked

if TYPE_CHECKING:
    from resilient_launch.testing import Rehearse

pytest_plugins = ["resilient_launch.testing"]


@pytest.mark.slow
def test_a_training_that_resumes_exactly_passes(rehearse: Rehearse, tmp_path: Path) -> None:
    found = rehearse(REPOSITORY / "configs" / "article.yaml", steps=24, scenarios=["crash", "preempt"])
    assert found.verdict == "identical"
    crash, preempt = found.results
    assert crash.outcome is not None and preempt.outcome is not None
    assert list(crash.outcome.seen.resume_steps) == [0, 6, 18]
    assert crash.outcome.digest == preempt.outcome.digest == found.reference.digest != ""
    assert [row.cause for row in preempt.outcome.attempts] == ["preempted", "finished"]
    assert not marked(str(tmp_path))


@pytest.mark.slow
def test_a_training_that_seeds_at_resume_is_found_out(bench: RunBench) -> None:
    config = REPOSITORY / "configs" / "broken" / "seeds-at-resume.yaml"
    page = bench.workdir / "page.html"
    done = bench.rlaunch(
        "rehearse", str(config), "--steps", "16", "--scenario", "crash", "--json", "--html", str(page), timeout_s=280
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads(done.stdout)
    (crash,) = found["scenarios"]
    assert (found["verdict"], crash["name"], crash["verdict"]) == ("different", "crash", "fail")
    assert (crash["piece"], crash["first_step"]) == ("rng", 4)
    assert "run.seed" in crash["hint"] and len(crash["attempts"]) == 1
    assert "seeds-at-resume" in page.read_text() and "polyline" in page.read_text()
    assert not marked(str(bench.root))
