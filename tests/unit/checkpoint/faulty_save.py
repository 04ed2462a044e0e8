"""A server that forks a fresh, stopped, single-threaded process for each save, for a tracer to attach to.

Reads one JSON object a line: {"directory", "step"}. Prints the child's pid, waits for it, prints its wait status. The
child's verdict is in the file ``outcome`` beside the directory: "saved", or the error.
"""

import json
import os
import signal
import sys
from pathlib import Path

from resilient_launch.checkpoint import store
from resilient_launch.core.errors import CheckpointError
from resilient_launch.core.ids import CheckpointId

DIGESTING = store.Digesting(chunk_bytes=1 << 16)


def buffers(step: int) -> dict[str, bytes]:
    """Two files, one above the size that is written at once and one below."""
    return {"large.bin": bytes([step]) * (5 << 18), "small.bin": bytes([step]) * 100}


def save(directory: Path, step: int, attempt: int = 0) -> None:
    ident = CheckpointId(attempt=attempt, restart=0, step=step)
    store.write_buffers(directory, ident, buffers(step), digesting=DIGESTING)


def serve() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        directory = Path(request["directory"])
        pid = os.fork()
        if pid == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
            try:
                save(directory, request["step"])
                outcome = "saved"
            except CheckpointError as error:
                outcome = str(error)
            directory.with_name("outcome").write_text(outcome)
            os._exit(0)
        os.waitpid(pid, os.WUNTRACED)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(status, flush=True)


if __name__ == "__main__":
    serve()
