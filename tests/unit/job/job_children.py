"""Real processes for tests of signals and endings, and what /proc says of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def wait_until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Until ``condition`` holds; fails the test at the deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.005)


@contextmanager
def python(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that runs ``code`` in a session of its own; killed at the end, whatever happened."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.communicate(timeout=30)


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]) != "Z"
    except FileNotFoundError:
        return False


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
