"""Coming back: the job goes back to the queue under its own id, or, where the site forbids that, under a new one."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from resilient_launch.cluster.base import Scheduler
from resilient_launch.cluster.hostlist import expand
from resilient_launch.cluster.resubmission import resubmit
from resilient_launch.core import durable
from resilient_launch.core.errors import RefusedError, RlaunchError
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.context import Allocation

REQUEUE_TIMEOUT_S = 120.0
WATCHER_TIMEOUT_S = 10.0
log = logging.getLogger("rlaunch.agent")


@dataclass(frozen=True, kw_only=True)
class Wish:
    """How the job should come back: ``held``, or not before ``not_before`` (seconds since the epoch; 0 for at once),
    and not on ``exclude``."""

    held: bool = False
    not_before: float = 0.0
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Return:
    """Whether the job comes back, and how. ``job_id`` is a new one after a resubmission.

    ``is_resubmittable`` when it does not, and only because this node could not submit it again.
    """

    comes_back: bool
    why: str = ""
    job_id: str = ""
    is_resubmittable: bool = False


def come_back(scheduler: Scheduler, paths: RunPaths, allocation: Allocation, wish: Wish) -> Return:
    """Put the job back into the queue: by scontrol here, by the watcher in the batch shell, or as a new job.

    Asks again while Slurm does not answer, for two minutes. What the wish asks beyond coming back is done as far as
    the site allows, and said where it is not.
    """
    request = paths.requeue_request(allocation.job_id, allocation.slurm_restart_count)
    deadline = time.monotonic() + REQUEUE_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            scheduler.requeue(allocation.job_id, hold=wish.held)
        except RefusedError as error:
            log.warning("%s; submitting the run again", error)
            return _resubmit(paths, allocation, wish, refusal=error.why or error.what)
        except RlaunchError as error:
            log.warning("%s; asking the watcher in the batch shell", error)
        else:
            _adjust(scheduler, allocation.job_id, wish)
            return Return(comes_back=True)
        with contextlib.suppress(FileExistsError):
            durable.write_file(request, b"")
        if _vanishes(request, timeout_s=WATCHER_TIMEOUT_S):
            return Return(comes_back=True, why="requeued by the batch shell")
    return Return(comes_back=False, why=f"job {allocation.job_id} could not be requeued: Slurm does not answer")


def _adjust(scheduler: Scheduler, job_id: str, wish: Wish) -> None:
    if wish.not_before > time.time() and not wish.held:
        with _said():
            scheduler.start_at(job_id, wish.not_before)
    if wish.exclude:
        with _said():
            scheduler.exclude(job_id, wish.exclude)


@contextlib.contextmanager
def _said() -> Iterator[None]:
    try:
        yield
    except RlaunchError as error:
        log.warning("%s", error)


def _resubmit(paths: RunPaths, allocation: Allocation, wish: Wish, *, refusal: str) -> Return:
    why = f"Slurm refused to requeue job {allocation.job_id}: {refusal}"
    try:
        job_id = resubmit_run(
            paths, allocation.job_id, initial_environment(), exclude=wish.exclude, not_before=wish.not_before
        )
    except (RlaunchError, OSError) as error:
        log.error("%s", error)
        return Return(comes_back=False, why=f"{why}; nor could it be submitted again here", is_resubmittable=True)
    return Return(comes_back=True, why=f"{why}; submitted again as job {job_id}", job_id=job_id)


def resubmit_run(
    paths: RunPaths,
    job_id: str,
    env: Mapping[str, str],
    *,
    exclude: Sequence[str] = (),
    not_before: float = 0.0,
) -> str:
    """Submit the run's job once more and write its new id into run.json; returns the id. Raises RlaunchError."""
    wait_s = max(not_before - time.time(), 0.0)
    new_id = resubmit(paths.submitit, job_id, env, exclude=exclude, wait_s=wait_s)
    record = json.loads(paths.run.read_bytes())
    record["jobs"] = [*record.get("jobs", []), new_id]
    durable.replace_file(paths.run, json.dumps(record, indent=1).encode())
    return new_id


def initial_environment() -> dict[str, str]:
    """The environment that this process was started with, before anything of this run was added to it."""
    with contextlib.suppress(OSError):
        pairs = [os.fsdecode(pair).partition("=") for pair in Path("/proc/self/environ").read_bytes().split(b"\0")]
        return {name: value for name, separator, value in pairs if separator}
    return dict(os.environ)


def excludable(
    scheduler: Scheduler, suspects: Sequence[str], *, asked: str, partition: str, num_nodes: int
) -> list[str]:
    """The nodes to stay away from: those of ``asked``, the user's own hostlist, and as many of the ``suspects``, the
    newest first, as leave ``num_nodes`` others. Empty for no change, also where the others can't be counted."""
    own = expand(asked) if asked else []
    try:
        usable = set(scheduler.usable_nodes(partition)) - set(own)
    except RlaunchError as error:
        log.warning("%s: no node is excluded", error)
        return []
    chosen: list[str] = []
    for node in suspects:
        if len(usable - {*chosen, node}) >= num_nodes:
            chosen.append(node)
        else:
            log.warning("node %s is suspect, but too few others are left to stay away from it", node)
    return [*own, *chosen] if chosen else []


def _vanishes(request: Path, *, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if request.name not in {entry.name for entry in request.parent.iterdir()}:
            return True
        time.sleep(0.2)
    return False
