"""Attempts that could not say how they ended: told from Slurm's rows and from the events they left."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from resilient_launch.cluster.slurm import SlurmCommands
from resilient_launch.config import loads
from resilient_launch.core.events import EventWriter
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.attempt import claim, read_ends
from resilient_launch.job.judgement import record_silent_ends


def _run(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "run")
    paths.directory.mkdir()
    for directory in paths.all():
        directory.mkdir()
    return paths


def _sacct(tmp_path: Path, *states: str) -> SlurmCommands:
    """Slurm with nothing but accounting rows of one job, one a run."""
    row = "7|{}|1700000000|1700000001|1700000002|0:0|0:0|n1"
    rows = "\n".join(row.format(state) for state in states)
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "sacct"
    script.write_text(f"#!/bin/sh\ncat <<'EOF'\n{rows}\nEOF\n" if rows else "#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    return SlurmCommands({**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"})


@pytest.mark.parametrize(
    ("states", "notice", "cause"),
    [
        (("NODE_FAIL",), None, "node_failure"),
        (("TIMEOUT",), None, "time_limit"),
        (("PREEMPTED",), None, "preempted"),
        (("OUT_OF_MEMORY",), None, "out_of_memory"),
        (("CANCELLED by 0",), None, "cancelled"),
        # A site without accounting: it came back, so its first node was lost.
        ((), None, "node_failure"),
        # What the attempt itself had heard counts for more.
        (("REQUEUED",), "preempted", "preempted"),
        ((), "time_limit", "time_limit"),
    ],
)
def test_a_silent_end_gets_its_cause(tmp_path: Path, states: tuple[str, ...], notice: str | None, cause: str) -> None:
    paths, slurm = _run(tmp_path), _sacct(tmp_path, *states)
    common = {"nodes": ["n1"], "addresses": [], "port": 0, "code_version": ""}
    claim(paths, job_id="7", slurm_restart_count=0, **common)  # type: ignore[arg-type]
    rank = EventWriter(paths.events / "a0000.r0.w00000.jsonl", rank=0)
    rank.emit("window", first=0, mono0=0.0, end_s=[0.1] * 30, flush=True)
    if notice is not None:
        agent = EventWriter(paths.events / "a0000.n0000.jsonl", node=0)
        agent.emit("notice", cause=notice, deadline=None, source="SIGTERM", flush=True)
    text = "name: run\nmodule: train\ncheckpoint: {failure_history: history}\n"
    config = loads(text, base=tmp_path)
    second = claim(paths, job_id="7", slurm_restart_count=1, **common)  # type: ignore[arg-type]
    record_silent_ends(config, paths, slurm, second)
    (end,) = read_ends(paths).values()
    assert (end.number, end.cause, end.end_step, end.action) == (0, cause, 30, "requeue")
    # Said once, and not of attempts that spoke for themselves.
    record_silent_ends(config, paths, slurm, second)
    assert read_ends(paths) == {0: end}
    # The site's other runs learn of it.
    (line,) = (tmp_path / "history").read_text().splitlines()
    assert json.loads(line)["cause"] == cause
