"""The end of an attempt that Slurm took for lost, and that a newer one has replaced."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from torch.distributed import HashStore

from resilient_launch.cluster.slurm import SlurmCommands
from resilient_launch.config.schema import LaunchConfig
from resilient_launch.core.paths import RunPaths
from resilient_launch.job import control
from resilient_launch.job.attempt import Attempt, claim, read_ends
from resilient_launch.job.context import Allocation
from resilient_launch.job.ending import Conclusion, conclude
from resilient_launch.job.failures import NodeReport
from resilient_launch.report.state import read_verdict


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    made = RunPaths(tmp_path / "run")
    made.directory.mkdir()
    for directory in made.all():
        directory.mkdir()
    return made


def _claim(paths: RunPaths, restart: int) -> Attempt:
    return claim(
        paths, job_id="1", slurm_restart_count=restart, nodes=["n1"], addresses=["here"], port=4, code_version=""
    )


def _end(paths: RunPaths, attempt: Attempt, *, finished: bool) -> Conclusion:
    allocation = Allocation(
        job_id="1",
        slurm_restart_count=attempt.slurm_restart_count,
        node_index=0,
        node="n1",
        nodes=("n1",),
        end_time=None,
    )
    report = NodeReport(
        node="n1", finished=finished, end_step=9, saved_step=9, first_rank=None if finished else 0, error=""
    )
    return conclude(
        store=HashStore(),
        # Nothing here has a Slurm: a requeue would fail, and be seen in the answer.
        scheduler=SlurmCommands({"PATH": "/nonexistent"}),
        config=LaunchConfig(name="run", script="train.py", workdir=paths.directory, python=sys.executable),
        paths=paths,
        allocation=allocation,
        attempt=attempt,
        report=report,
        standing_notice=lambda: None,
        request=None,
    )


@pytest.mark.parametrize("finished", [True, False])
def test_it_gives_no_verdict_and_takes_nothing_from_the_newer_one(paths: RunPaths, finished: bool) -> None:
    old, newer = _claim(paths, 0), _claim(paths, 1)
    control.ask(paths, "stop")
    assert not _end(paths, old, finished=finished).requeued
    assert read_verdict(paths) is None
    assert [request.kind for request in control.pending(paths, newer.number)] == ["stop"]
    assert old.number in read_ends(paths)
    _end(paths, newer, finished=True)
    verdict = read_verdict(paths)
    assert verdict is not None and (verdict["state"], verdict["attempt"]) == ("finished", 1)
