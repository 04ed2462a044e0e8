"""``python -m resilient_launch.job.node RUN_DIR``: a node agent, and every worker that is forked from it."""

from __future__ import annotations

import sys

from resilient_launch.job import entry
from resilient_launch.job.program import run_as_main

if __name__ == "__main__":
    forked = entry.main(sys.argv[1])
    if forked is not None:
        run_as_main(forked)
