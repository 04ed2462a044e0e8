"""The function that submitit pickles by name. It imports little, so that submitting a job does not either."""

from __future__ import annotations

import os
import signal
import sys


def main(run_dir: str) -> None:
    """Become the node agent that takes this node's part in one attempt of the run in ``run_dir``; does not return.

    A process of its own image: workers that are forked from it later have neither submitit's modules nor its stack,
    and its handlers, which only say so for signals that mean nothing here, are gone.
    """
    # The mask and what is pending behind it outlive the exec.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2})
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-u", "-m", "resilient_launch.job.node", run_dir])
