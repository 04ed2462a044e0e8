"""A configuration becomes a SubmitPlan: the very values that a submission uses, so that a dry run shows the truth."""

from __future__ import annotations

import math
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from resilient_launch.cluster import submitit_glue
from resilient_launch.cluster.submitit_glue import SbatchRequest
from resilient_launch.config.schema import LaunchConfig
from resilient_launch.core.paths import RunPaths
from resilient_launch.job import task

_BLOCKED = ("TERM", "USR1", "USR2")
_WATCH_S = 2
# Where env cannot block signals (coreutils before 8.31), Python does it and becomes the real command.
_SHIELD_STUB = (
    "import os,signal,sys;"
    "signal.pthread_sigmask(signal.SIG_BLOCK,[signal.SIGTERM,signal.SIGUSR1,signal.SIGUSR2]);"
    "os.execvp(sys.argv[1],sys.argv[1:])"
)


@dataclass(frozen=True, kw_only=True)
class SubmitPlan:
    """All that a submission does, decided. ``script`` is the sbatch script to the letter."""

    config: LaunchConfig
    paths: RunPaths
    request: SbatchRequest
    script: str


def make_plan(config: LaunchConfig, root: Path) -> SubmitPlan:
    """Decide how ``config`` is submitted with its run directory under ``root``. Touches nothing. Raises UsageError."""
    paths = RunPaths.of(config.name, root)
    request = SbatchRequest(
        job_name=config.name,
        folder=paths.submitit,
        function=task.main,
        args=(str(paths.directory),),
        nodes=str(config.nodes),
        ntasks_per_node=1,
        cpus_per_task=config.cpus_per_node,
        gpus_per_node=config.gpus_per_node or None,
        mem=f"{config.memory_mb}M" if config.memory_mb else None,
        time_s=config.time_s,
        partition=config.partition,
        account=config.account,
        qos=config.qos,
        signal="USR2",
        signal_lead_s=config.signal_lead_s,
        extra=dict(config.sbatch),
        # srun stopped inheriting --cpus-per-task in 22.05; sites may end a step early when one task ends, or fails.
        srun_args=(f"--cpus-per-task={config.cpus_per_node}", "--kill-on-bad-exit=0", "--wait=0"),
        setup=(*config.setup, *watcher_lines(paths)),
        python=shielded(config.python),
    )
    return SubmitPlan(config=config, paths=paths, request=request, script=submitit_glue.script_text(request))


def shielded(python: str) -> str:
    """Shell words that start ``python`` with the notice signals blocked, so that one that comes early is kept."""
    blocks = [f"--block-signal={name}" for name in _BLOCKED]
    try:
        can = subprocess.run(["env", *blocks, "true"], capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        can = False
    return shlex.join(["env", *blocks, python] if can else [python, "-I", "-S", "-c", _SHIELD_STUB, python])


def watcher_lines(paths: RunPaths) -> tuple[str, ...]:
    """Batch-shell lines that requeue the job when a request file asks for it.

    Node agents in a container may have no scontrol; the batch shell is outside. It is listed, not tested for, since NFS
    may go on answering "absent" for a name; the watcher ends with its shell and holds none of its files. Slurm's TERM
    to the requeued job, which comes before scontrol has returned, must not keep it from withdrawing the request.
    """
    control = shlex.quote(str(paths.control))
    return (
        "# requeue on request of the node agents",
        f"rlaunch_control={control}",
        'rlaunch_request="requeue-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"',
        '{ trap "" TERM; while kill -0 "$$"; do if ls -A -- "$rlaunch_control" | grep -Fqx -- "$rlaunch_request" && '
        'scontrol requeue "$SLURM_JOB_ID"; then rm -f -- "$rlaunch_control/$rlaunch_request"; fi; '
        f"sleep {_WATCH_S}; done; }} >/dev/null 2>&1 </dev/null &",
    )


def time_limit_s(config: LaunchConfig) -> float | None:
    """The time limit that Slurm will use, in seconds, rounded up to its whole minutes; None where the site decides."""
    if config.time_s is None or math.isinf(config.time_s):
        return None
    return math.ceil(config.time_s / 60) * 60.0
