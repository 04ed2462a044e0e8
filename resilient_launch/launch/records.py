"""``run.json``: what a run is, apart from its configuration."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, replace

from resilient_launch.core import durable
from resilient_launch.core.errors import EXIT_WAIT_NOT_FOUND, RefusedError, RlaunchError
from resilient_launch.core.paths import RunPaths


class RunNotFoundError(RefusedError):
    """There is no run of that name: exit code 102."""

    exit_code = EXIT_WAIT_NOT_FOUND


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run's identity. ``id`` is stable for its whole life; ``jobs`` are its Slurm job ids, oldest first."""

    id: str
    name: str
    cluster: str
    created_at: float
    parent: str | None
    code_version: str
    jobs: tuple[str, ...] = ()

    def with_job(self, job_id: str) -> RunRecord:
        """This record with one more job."""
        return replace(self, jobs=(*self.jobs, job_id))


def write_run(paths: RunPaths, record: RunRecord) -> None:
    durable.replace_file(paths.run, json.dumps(asdict(record), indent=1).encode())


def read_run(paths: RunPaths) -> RunRecord:
    """The record of the run. Raises RunNotFoundError, or RlaunchError for a file that is not one."""
    try:
        record = json.loads(paths.run.read_bytes())
        known = {name: record[name] for name in RunRecord.__dataclass_fields__}
        return RunRecord(**{**known, "jobs": tuple(str(job) for job in known["jobs"])})
    except (FileNotFoundError, NotADirectoryError):
        raise _not_found(paths) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RlaunchError("run.json", where=str(paths.run), why=f"cannot be read: {error}") from error


def _not_found(paths: RunPaths) -> RunNotFoundError:
    root = paths.directory.parent
    hint = "--root DIR or RLAUNCH_ROOT, if it lives elsewhere"
    with contextlib.suppress(OSError):
        names = sorted(entry.parent.name for entry in root.glob("*/run.json"))
        if names:
            hint = f"one of: {', '.join(names[:10])}"
    return RunNotFoundError(f"no run {paths.name!r}", where=str(root), hint=hint)
