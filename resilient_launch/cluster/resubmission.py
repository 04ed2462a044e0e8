"""The same job once more, under a new id, from the script and the pickle that its submission left.

Where a site forbids requeue this is how a run comes back. Nothing of the job is built anew: what sbatch accepted once
is what it gets again.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from resilient_launch.cluster.slurm import check_answer, client_environment, run_command
from resilient_launch.core.errors import RlaunchError, UsageError

_NODES = re.compile(r"[A-Za-z0-9_.,\[\]-]+", re.ASCII)


def resubmit(
    folder: Path,
    job_id: str,
    env: Mapping[str, str],
    *,
    exclude: Sequence[str] = (),
    wait_s: float = 0.0,
    timeout_s: float = 120.0,
) -> str:
    """Submit the job ``job_id``, whose submission left its files in ``folder``, again; returns the new id.

    The new job starts only once the old one is over, so that there are never two, and ``wait_s`` from now at the
    earliest. Raises RlaunchError when the files are gone, RefusedError with sbatch's own words, UnreachableError.
    """
    script, pickle = folder / f"{job_id}_submission.sh", folder / f"{job_id}_submitted.pkl"
    for path in (script, pickle):
        if not path.is_file():
            raise RlaunchError(f"job {job_id}'s {path.name}", where=str(folder), why="is not there to submit again")
    options = [f"--dependency=afterany:{job_id}"]
    if exclude:
        names = ",".join(exclude)
        if not _NODES.fullmatch(names):
            raise UsageError(f"node list {names[:80]!r}", why="it holds characters that a node's name cannot")
        options.append(f"--exclude={names}")
    if wait_s > 0:
        options.append(f"--begin=now+{round(wait_s)}")
    clean = client_environment(env)
    done = run_command(["sbatch", *options, str(script)], clean, timeout_s)
    check_answer("sbatch", done, "the job was not accepted again")
    found = re.search(r"Submitted batch job (\d+)", done.stdout)
    if found is None:
        raise RlaunchError("sbatch's answer", why=f"it names no job: {done.stdout.strip()[:200]!r}")
    # The tasks look for a pickle of their own job's id, and wait a minute for it.
    try:
        for source, name in ((pickle, f"{found[1]}_submitted.pkl"), (script, f"{found[1]}_submission.sh")):
            temporary = folder / f".tmp-{name}"
            shutil.copy2(source, temporary)
            temporary.replace(folder / name)
    except OSError:
        # Without its pickle the job could only fail.
        with contextlib.suppress(RlaunchError):
            run_command(["scancel", found[1]], clean, timeout_s)
        raise
    return found[1]
