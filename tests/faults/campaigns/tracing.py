"""Runs one operation in a single-threaded process of its own under strace, which records it or strikes at one call."""

from __future__ import annotations

import mmap
import os
import re
import select
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from resilient_launch.core.errors import RlaunchError
from tests.faults.campaigns.tally import hold

DONE, REFUSED, RAISED = 0, 3, 4
ATTACH_TIMEOUT_S = 60.0
HANG_S = 120
MOST_TEXT_BYTES = 1 << 16
_CALL = re.compile(r"(\d+) +(\w+)\((.*)")


@dataclass(frozen=True, kw_only=True)
class Call:
    """One system call of an operation: the ``count``-th of its name, and its line in the record."""

    name: str
    count: int
    line: str

    def __str__(self) -> str:
        return f"{self.name}:{self.count}"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How the operation ended: ``code`` is DONE, REFUSED (an error of ours), RAISED (any other), None where killed."""

    code: int | None
    text: str
    trace: list[str]

    @property
    def num_struck(self) -> int:
        """How often the fault that was asked for did happen."""
        return 1 if self.code is None else sum("(INJECTED)" in line for line in self.trace)


def run(act: Callable[[], object], *options: str) -> Ended:
    """Fork, attach strace with ``options``, act."""
    with tempfile.TemporaryDirectory(prefix="rlaunch-trace-") as scratch:
        trace = Path(scratch) / "trace"
        # Memory, because no system call that it would make is safe from the faults.
        outcome = mmap.mmap(-1, MOST_TEXT_BYTES)
        pid = os.fork()
        if pid == 0:
            _child(act, outcome)
        os.waitpid(pid, os.WUNTRACED)
        command = ["strace", "-f", "-qqq", "-y", "-o", str(trace), *options, "-p", str(pid)]
        tracer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            _wait_for_tracer(pid, tracer)
            os.kill(pid, signal.SIGCONT)
            wait_for_end(pid)
            _, status = os.waitpid(pid, 0)
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            tracer.wait(ATTACH_TIMEOUT_S)
            os.waitpid(pid, 0)
            raise
        tracer.communicate(timeout=ATTACH_TIMEOUT_S)
        text = outcome[:].rstrip(b"\0").decode(errors="replace")
        outcome.close()
        code = None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        return Ended(code=code, text=text, trace=read_trace(trace))


@contextmanager
def attached(pid: int, *options: str) -> Iterator[Path]:
    """strace with ``options`` on a process that is there already and all its threads; gives its record, a file."""
    with tempfile.TemporaryDirectory(prefix="rlaunch-trace-") as scratch:
        trace = Path(scratch) / "trace"
        trace.touch()
        command = ["strace", "-f", "-qqq", "-y", "-o", str(trace), *options, "-p", str(pid)]
        tracer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            _wait_for_tracer(pid, tracer)
            yield trace
        finally:
            # It lets go of what still lives.
            tracer.send_signal(signal.SIGINT)
            tracer.communicate(timeout=ATTACH_TIMEOUT_S)


def read_trace(trace: Path) -> list[str]:
    return trace.read_text(errors="surrogateescape").splitlines()


def calls(act: Callable[[], object], place: Path) -> list[Call]:
    """Every call of ``act`` on a file or directory below ``place``, in order, each with its number among its name's."""
    ended = run(act, "-e", "trace=%file,%desc")
    assert ended.code == DONE, ended.text
    return list_calls(ended.trace, place)


def list_calls(trace: Sequence[str], place: Path) -> list[Call]:
    # strace counts for each thread.
    seen: Counter[tuple[str, str]] = Counter()
    found = []
    for line in trace:
        match = _CALL.match(line)
        if match is None:
            continue
        name = match[2]
        seen[match[1], name] += 1
        if str(place) in line:
            found.append(Call(name=name, count=seen[match[1], name], line=line))
    return found


def _child(act: Callable[[], object], outcome: mmap.mmap) -> NoReturn:
    code, text = RAISED, ""
    try:
        # Whoever attaches finds a process that has not begun.
        os.kill(os.getpid(), signal.SIGSTOP)
        act()
        code = DONE
    except RlaunchError as error:
        code, text = REFUSED, str(error)
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"
    finally:
        data = text.encode(errors="replace")[:MOST_TEXT_BYTES]
        outcome[: len(data)] = data
        os._exit(code)


def wait_for_end(pid: int) -> None:
    """Raises BrokenError where the process is still there after HANG_S."""
    ended = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        hold(poll.poll(1000 * HANG_S), f"no end within {HANG_S} s")
    finally:
        os.close(ended)


def _wait_for_tracer(pid: int, tracer: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + ATTACH_TIMEOUT_S
    status = Path(f"/proc/{pid}/status")
    while "TracerPid:\t0\n" in status.read_text():
        if tracer.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"strace does not attach: {tracer.communicate()[1]}")
        time.sleep(0.001)
