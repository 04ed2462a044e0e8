"""submitit's Slurm executor with its submission made strict. Importing this module imports submitit."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from submitit import Job, SlurmExecutor, SlurmJob
from submitit.core.utils import DelayedSubmission, JobPaths

from resilient_launch.cluster.slurm import check_answer, run_command
from resilient_launch.core.errors import RlaunchError

SUBMIT_TIMEOUT_S = 120.0
"""A busy controller may take a minute to accept a job; giving up early leaves one that nobody knows of."""


class RequestExecutor(SlurmExecutor):
    """Finds and runs sbatch in a given environment, passes its refusals on as errors, and cleans up after them."""

    def __init__(self, folder: Path, *, python: str, client_env: Mapping[str, str]) -> None:
        super().__init__(folder, python=python)
        self._client_env = client_env

    @classmethod
    def affinity(cls) -> int:
        # The base class says no where srun is not on PATH: a dry run needs none, and a submission looks elsewhere.
        return 2

    def script_text(self) -> str:
        """The sbatch script that a submission submits."""
        return self._make_submission_file_text(self._submitit_command_str, uid="")

    def _internal_process_submissions(self, delayed_submissions: list[DelayedSubmission]) -> list[Job[Any]]:
        (delayed,) = delayed_submissions
        existed = self.folder.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / f".submission-{secrets.token_hex(6)}"
        script, pickle = temporary.with_suffix(".sh"), temporary.with_suffix(".pkl")
        try:
            # submitit's own guess at a timeout, which the blocked signals keep it from making.
            delayed.set_timeout(0, self.max_num_timeout)
            delayed.dump(pickle)
            script.write_text(self.script_text(), encoding="utf-8")
            job_id = self._sbatch(script)
            try:
                paths = JobPaths(self.folder, job_id=job_id)
                pickle.rename(paths.submitted_pickle)
                script.rename(paths.submission_file)
            except OSError:
                # Without its pickle the job could only fail.
                with contextlib.suppress(RlaunchError):
                    run_command(["scancel", job_id], self._client_env, SUBMIT_TIMEOUT_S)
                raise
        finally:
            script.unlink(missing_ok=True)
            pickle.unlink(missing_ok=True)
            if not existed:
                with contextlib.suppress(OSError):
                    self.folder.rmdir()
        return [SlurmJob(folder=self.folder, job_id=job_id, tasks=[0])]

    def _sbatch(self, script: Path) -> str:
        done = run_command(["sbatch", str(script)], self._client_env, SUBMIT_TIMEOUT_S)
        check_answer("sbatch", done, "the job was not accepted")
        found = re.search(r"Submitted batch job (\d+)", done.stdout)
        if found is None:
            raise RlaunchError("sbatch's answer", why=f"it names no job: {done.stdout.strip()[:200]!r}")
        return found[1]
