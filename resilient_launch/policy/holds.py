"""Why a job waits although nodes may be free, in words, from Slurm's own reason, and what to do about it."""

from __future__ import annotations

import re

_RELEASE = "rlaunch requeue RUN releases it"
_EXPLAINED = (
    (
        r"JobHoldMaxRequeue|launch.failure.limit.exceeded",
        "Slurm held it: its batch script ended or its launch failed more often than MaxBatchRequeue allows, "
        f"which no run of rlaunch does by itself; look at the nodes and the batch log, then {_RELEASE}",
    ),
    (
        r"launch.failed.requeued.held",
        "Slurm held it: a node's prolog or launch failed, or the node still ran its last attempt (duplicate jobid), "
        "and Slurm drained that node; "
        f"{_RELEASE} where the site allows, and it avoids drained nodes",
    ),
    (r"JobHeldUser|job.requeued.in.held.state", f"held by its user, as rlaunch yield --hold and drain do; {_RELEASE}"),
    (r"JobHeldAdmin", "held by an administrator, who alone can release it"),
    (
        r"reserved.for.maintenance",
        "its time limit would cross a maintenance window; rlaunch submit --fit-maintenance asks for one that fits",
    ),
    (r"BadConstraints", "no node has what it asks for; the site may have changed its nodes: submit again with others"),
    (r"PartitionTimeLimit", "its time limit is longer than the partition allows; submit again with a shorter time"),
    (r"DependencyNeverSatisfied", "a job that it depends on failed; rlaunch cancel RUN, then submit it again"),
)


def explain(reason: str) -> str:
    """What Slurm's ``reason`` of a pending job means and what to do; empty where it says enough or nothing."""
    words = reason.replace("_", " ")
    found = (text for pattern, text in _EXPLAINED if re.search(pattern, words, re.IGNORECASE))
    return next(found, "")
