"""The running runs that could be preempted, and what each would lose."""

from __future__ import annotations

import contextlib
from pathlib import Path

from resilient_launch.cluster.slurm import SlurmCommands
from resilient_launch.config import load
from resilient_launch.core.errors import RlaunchError
from resilient_launch.core.events import read_events
from resilient_launch.job.attempt import read_attempts
from resilient_launch.launch.drain import LiveRun, live_runs
from resilient_launch.policy.victims import Candidate, Published, loss_gpu_s, parse_comment


def candidates(root: Path, *, now: float) -> list[Candidate]:
    """Runs under ``root`` as their files show them, and everybody's jobs that publish what they would lose.

    Raises UnreachableError when Slurm does not answer.
    """
    found: dict[str, Candidate] = {}
    own = live_runs([root])
    schedulers = [each.connection.scheduler for each in own[:1]] or [SlurmCommands()]
    for job_id, (view, comment) in schedulers[0].comments().items():
        if (published := parse_comment(comment)) is not None:
            loss = loss_gpu_s(published, now=now)
            name = f"of {view.user}" if view.user else job_id
            found[job_id] = Candidate(name=name, job_id=job_id, num_nodes=view.num_nodes, loss_gpu_s=loss)
    for run in own:
        loss = loss_gpu_s(_seen(run), now=now)
        found[run.job_id] = Candidate(name=run.paths.name, job_id=run.job_id, num_nodes=len(run.nodes), loss_gpu_s=loss)
    return list(found.values())


def _seen(run: LiveRun) -> Published:
    """The same from the run's own files: its newest durable checkpoint, or else the start of its attempt."""
    saved_at, step = 0.0, 0
    attempts = read_attempts(run.paths)
    if attempts:
        saved_at = attempts[-1].claimed_at
        files = run.paths.events.glob(f"a{attempts[-1].number:04d}.r*.w00000.jsonl")
        for event in read_events(sorted(files)):
            if event["kind"] == "checkpoint" and event["status"] == "durable":
                saved_at, step = float(event["t"]), int(event["step"])
    num_gpus = len(run.nodes)
    with contextlib.suppress(RlaunchError):
        config = load(run.paths.config, frozen=True)
        num_gpus = len(run.nodes) * (config.gpus_per_node or config.workers_per_node)
    return Published(saved_at=int(saved_at), step=step, num_gpus=num_gpus)
