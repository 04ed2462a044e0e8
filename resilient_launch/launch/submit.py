"""Making a run's directory and its job: all of it, or nothing."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from filelock import FileLock, Timeout

from resilient_launch.cluster import submitit_glue
from resilient_launch.config import dump
from resilient_launch.core import durable
from resilient_launch.core.errors import RefusedError, UsageError
from resilient_launch.core.paths import RunPaths
from resilient_launch.core.probe import filesystem
from resilient_launch.job import code
from resilient_launch.launch.clusters import Connection
from resilient_launch.launch.plan import SubmitPlan
from resilient_launch.launch.records import RunRecord, read_run, write_run

_NOT_SHARED = frozenset({"tmpfs", "ramfs", "devtmpfs"})


def submit(plan: SubmitPlan, connection: Connection) -> str:
    """Submit the run and return its job id.

    A new run gets its directory; one that stopped, failed or was cancelled goes on from its checkpoint as a new
    attempt. Raises RefusedError for a run that is live or finished, or with sbatch's own words; UsageError when the
    directory cannot be used. A refused new run leaves nothing behind.
    """
    paths = plan.paths
    _check_root(plan)
    made = _make_directory(paths)
    if not made and not _lock_path(paths).exists():
        # Not even a lock file goes into a directory that is somebody else's.
        _check_is_run(paths)
    try:
        with locked(paths):
            if not made:
                _check_resubmission(paths, connection)
            _fill(plan, is_new=made)
            with verdict_set_aside(paths):
                job_id = submitit_glue.submit(plan.request, connection.env)
            write_run(paths, read_run(paths).with_job(job_id))
            return job_id
    except BaseException:
        if made:
            shutil.rmtree(paths.directory, ignore_errors=True)
        raise


def _check_root(plan: SubmitPlan) -> None:
    root = plan.paths.directory.parent
    existing = next(parent for parent in (root, *root.parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(
            f"run directory {str(root)!r}",
            why=f"{str(existing)!r} is not a directory that you can write to",
            hint="--root DIR or RLAUNCH_ROOT with a directory on shared storage",
        )
    kind = filesystem(existing)
    if plan.config.cluster == "slurm" and plan.config.nodes.max > 1 and kind in _NOT_SHARED:
        raise UsageError(
            f"run directory {str(root)!r}",
            why=f"lies on {kind}, which other nodes do not see",
            hint="--root DIR or RLAUNCH_ROOT with a directory on shared storage",
        )


def _make_directory(paths: RunPaths) -> bool:
    """Make the run's directory; whether it is new. Raises UsageError where the file system says no."""
    root = paths.directory.parent
    try:
        root.mkdir(parents=True, exist_ok=True)
        paths.directory.mkdir()
    except FileExistsError:
        return False
    except OSError as error:
        raise UsageError(
            f"run directory {str(root)!r}",
            why=f"cannot be made: {error.strerror}",
            hint="--root DIR or RLAUNCH_ROOT with a directory on shared storage",
        ) from error
    return True


def _lock_path(paths: RunPaths) -> Path:
    return paths.directory / "submit.lock"


def locked(paths: RunPaths) -> FileLock:
    """The lock of whoever submits the run, taken. Raises RefusedError when somebody has it, UsageError."""
    lock = FileLock(_lock_path(paths), timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise RefusedError(f"run {paths.name!r}", why="is being submitted by another process") from None
    except OSError as error:
        raise UsageError(
            f"run directory {str(paths.directory)!r}", why=f"cannot be written to: {error.strerror}"
        ) from error
    return lock


def _check_is_run(paths: RunPaths) -> None:
    if not paths.run.exists():
        raise RefusedError(
            f"directory {str(paths.directory)!r}",
            why="exists and is not a run",
            hint="another name, or remove the directory",
        )


def _check_resubmission(paths: RunPaths, connection: Connection) -> None:
    """Raise RefusedError unless the run is one that stopped."""
    _check_is_run(paths)
    verdict = None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        verdict = json.loads(paths.verdict.read_bytes())["state"]
    if verdict == "finished":
        raise RefusedError(
            f"run {paths.name!r}", why="is finished", hint=f"rlaunch status {paths.name}, or another name"
        )
    for job_id, view in connection.scheduler.queue(read_run(paths).jobs).items():
        # With a verdict, all that a job does while it is COMPLETING is to leave.
        if not view.is_over and not (verdict and view.state == "COMPLETING"):
            raise RefusedError(
                f"run {paths.name!r}",
                why=f"is live: job {job_id} is {view.state.lower()}",
                hint=f"rlaunch status {paths.name}, or rlaunch cancel {paths.name} first",
            )


def _fill(plan: SubmitPlan, *, is_new: bool) -> None:
    config, paths = plan.config, plan.paths
    for directory in paths.all():
        directory.mkdir(exist_ok=True)
    files = code.list_files(config.workdir, config.code.exclude, outside=paths.directory.parent)
    if config.code.snapshot:
        staged = paths.directory / f".tmp-code-{uuid.uuid4().hex[:12]}"
        code.copy(config.workdir, files, staged)
        shutil.rmtree(paths.code, ignore_errors=True)
        staged.rename(paths.code)
    copied = paths.code if config.code.snapshot else None
    version = code.version(config.workdir, files, tree_at=copied)
    durable.replace_file(paths.config, dump(config).encode())
    if is_new:
        record = RunRecord(
            id=uuid.uuid4().hex,
            name=config.name,
            cluster=config.cluster,
            created_at=time.time(),
            parent=None,
            code_version=version,
        )
    else:
        record = replace(read_run(paths), cluster=config.cluster, code_version=version)
    write_run(paths, record)
    for request in paths.control.iterdir():
        request.unlink(missing_ok=True)


@contextlib.contextmanager
def verdict_set_aside(paths: RunPaths) -> Iterator[None]:
    """A run that goes on has no verdict; one whose submission is refused keeps the one it had."""
    aside = paths.verdict.with_suffix(".before.json")
    with contextlib.suppress(FileNotFoundError):
        paths.verdict.replace(aside)
    try:
        yield
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            aside.replace(paths.verdict)
        raise
    aside.unlink(missing_ok=True)
