"""The function that submitit pickles by name. It imports nothing, so that submitting a job does not either."""

from __future__ import annotations


def main(run_dir: str) -> None:
    """Take this node's part in one attempt of the run in ``run_dir``."""
    from resilient_launch.job import entry

    entry.main(run_dir)
