"""``attach``: how a training script joins its run."""

from __future__ import annotations

import os
from pathlib import Path

from resilient_launch.config.schema import CheckpointConfig, Every
from resilient_launch.job import workplace
from resilient_launch.job.run import Run


def attach(
    run_dir: str | Path | None = None,
    *,
    every_steps: int | None = None,
    every_s: float | None = None,
    keep: int = 3,
    grace_s: float | None = None,
    in_background: bool = True,
    arrays: bool = False,
) -> Run:
    """Join the run that this process is a worker of.

    Under ``rlaunch`` everything comes from the run's configuration and the arguments are not looked at. On its own
    (plain python, torchrun, any supervisor that sends TERM), ``run_dir`` is where checkpoints and events go
    (``runs/default`` unless given), ``every_steps`` or ``every_s`` is the checkpoint interval (10 minutes unless
    given), ``keep`` how many checkpoints stay, ``in_background`` whether training goes on while a copy of its state is
    written, ``grace_s`` the seconds between TERM and KILL (RLAUNCH_GRACE_S, else
    30). There, a worker that saved and left on a signal exits with code 75.

    ``arrays`` is for one worker whose state is an ArrayState, of NumPy arrays: nothing here needs torch then.
    """
    directory = None if run_dir is None else Path(run_dir).absolute()
    every = Every(steps=every_steps, seconds=every_s if every_steps or every_s else 600.0)
    found = workplace.find(directory, CheckpointConfig(every=every, keep=keep, is_async=in_background), grace_s)
    found.has_arrays = arrays
    if "RLAUNCH_PAGE_DIR" in os.environ and found.paths.rehearsal.exists():
        # Not needed by any other run, so not imported by any.
        from resilient_launch.job.rehearsal import Instructions
        from resilient_launch.job.rehearsed import RehearsedRun

        # What is rehearsed is the resume from shared storage, which every other one falls back to.
        found.goes_on_from_memory = False
        return RehearsedRun(found, Instructions.parse(found.paths.rehearsal.read_bytes()))
    return Run(found)
