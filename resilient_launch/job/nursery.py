"""Workers that need not import torch: forked from a process that has, which each node agent keeps for the purpose.

Importing torch takes seconds of every start; the node agent does it once for itself, forks the nursery before it has
any thread, and the nursery imports what else training needs while the agents still meet. A worker is forked twice, and
the process between ends at once, so that it becomes the agent's own child: the agent can wait for it as for any other.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import logging
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from resilient_launch.job.program import Program, imported_from_elsewhere

PRELOADED = (
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    # The first optimizer imports it, which takes as long as torch itself.
    "torch._dynamo",
    "resilient_launch.checkpoint.checkpointer",
    "resilient_launch.checkpoint.torch_board",
    "resilient_launch.checkpoint.train_state",
    "resilient_launch.job.attach",
)
ANSWER_TIMEOUT_S = 60.0
_POLL_S = 0.01
_READ_AT_START = ("LD_", "PYTHON", "MALLOC_", "GLIBC_", "LC_", "LANG")
_HARMLESS = frozenset({"PYTHONPATH", "PYTHONUNBUFFERED"})
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
log = logging.getLogger("rlaunch.agent")


def why_not(program: Program, variables: Iterable[str], env: Mapping[str, str]) -> str:
    """Why the program's workers have to be started by themselves; empty when they may be forked.

    ``variables`` are the names that the run adds to the environment, ``env`` is all of it.
    """
    if program.command:
        return "not a Python script or module"
    if shutil.which(program.python, path=env.get("PATH")) != sys.executable:
        return f"{program.python} is another interpreter than the agent's"
    at_start = [name for name in variables if name.startswith(_READ_AT_START) and name not in _HARMLESS]
    return f"{at_start[0]} is read when a process starts" if at_start else ""


class Forked:
    """A worker that the nursery made, with the part of ``subprocess.Popen`` that its elastic agent uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """The exit code, negative for a signal's number; None while the process lives."""
        with self._lock:
            if self.returncode is None:
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:
                    # Somebody else took its status: it is over, and nothing good can be said of it.
                    self.returncode = 1
                else:
                    self.returncode = os.waitstatus_to_exitcode(status) if pid else None
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(_POLL_S)
        return code


class Nursery:
    """The agent's end. ``start`` is for one thread at a time."""

    def __init__(self, channel: socket.socket) -> None:
        channel.settimeout(ANSWER_TIMEOUT_S)
        self._channel = channel
        self._answers = channel.makefile("r", encoding="utf-8", newline="\n")

    def start(self, env: Mapping[str, str], log_file: Path) -> Forked | None:
        """Start a worker that writes to ``log_file``; None when the nursery can't, whatever the reason."""
        order = json.dumps({"env": dict(env), "log": str(log_file)})
        try:
            self._channel.sendall(order.encode(errors="surrogateescape") + b"\n")
            answer = json.loads(self._answers.readline())
        except (OSError, ValueError) as error:
            log.warning("the nursery is gone (%s): workers start by themselves", error)
            return None
        if "pid" in answer:
            return Forked(int(answer["pid"]))
        log.warning("workers start by themselves: %s", answer["why"])
        return None


@dataclass(frozen=True, kw_only=True)
class Opened:
    """What ``open_nursery`` returns: the agent gets a ``nursery``, a worker its ``program``."""

    nursery: Nursery | None = None
    program: Program | None = None


def open_nursery(program: Program, rest: Sequence[str], *, modules: Sequence[str] = PRELOADED) -> Opened:
    """Fork the nursery, for workers of ``program``; ``rest`` is the ``own_search_path`` this process began with.
    Each worker finds ``modules`` imported.

    Call it before there is any thread, with torch imported. Returns in the agent, and later in every worker, whose
    stack is then as deep as this call's.
    """
    ours, theirs = socket.socketpair()
    # A worker whose maker has ended is the child of the next process above that takes orphans in: the agent.
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    agent = os.getpid()
    if os.fork():
        theirs.close()
        return Opened(nursery=Nursery(ours))
    ours.close()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != agent:
        os._exit(1)
    _show_as(["rlaunch-nursery"])
    try:
        _serve(theirs, program, rest, modules)
    except _IsWorker:
        return Opened(program=program)
    except BaseException:
        log.exception("the nursery failed")
    os._exit(1)


class _IsWorker(Exception):  # noqa: N818
    """This process is a worker now."""


def _serve(channel: socket.socket, program: Program, rest: Sequence[str], modules: Sequence[str]) -> None:
    """In the nursery: prepare, then fork a worker for each line. Raises _IsWorker in every worker."""
    why = _prepare(program, rest, modules)
    with channel.makefile("r", encoding="utf-8", errors="surrogateescape", newline="\n") as orders:
        while line := orders.readline():
            if why:
                channel.sendall(json.dumps({"why": why}).encode() + b"\n")
                continue
            order = json.loads(line)
            pid = _fork_twice()
            if pid == 0:
                _settle(program, order["env"], order["log"], rest)
                channel.close()
                raise _IsWorker
            channel.sendall(json.dumps({"pid": pid}).encode() + b"\n")
    os._exit(0)


def _prepare(program: Program, rest: Sequence[str], modules: Sequence[str]) -> str:
    """Import what workers need; why none may be forked from this process, empty when they may."""
    try:
        for name in modules:
            importlib.import_module(name)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    path = program.search_path(os.environ.get("PYTHONPATH", ""), rest)
    if elsewhere := imported_from_elsewhere(path):
        return f"the run has its own {', '.join(sorted(elsewhere)[:5])}"
    if threading.active_count() > 1:
        return "an imported library has started a Python thread"
    # Garbage collections in a worker then neither look at nor copy what all share, and its exit is a second shorter.
    gc.freeze()
    return ""


def _fork_twice() -> int:
    """0 in the worker; its process id here."""
    reader, writer = os.pipe()
    between = os.fork()
    if between == 0:
        worker = os.fork()
        if worker == 0:
            os.close(reader)
            os.close(writer)
            return 0
        os.write(writer, str(worker).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(between, 0)
    with os.fdopen(reader, "rb") as found:
        return int(found.read())


def _settle(program: Program, env: Mapping[str, str], log_file: str, rest: Sequence[str]) -> None:
    """In a new worker: be as a process that was started by itself with this environment."""
    os.setsid()
    target = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for standard in (1, 2):
        os.dup2(target, standard)
    os.close(target)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    sys.path[:] = program.search_path(env.get("PYTHONPATH", ""), rest)
    # Python reseeds its own generator at a fork; numpy's would be the same in every rank.
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    logging.getLogger().handlers.clear()
    logging.getLogger().setLevel(logging.WARNING)
    _show_as([program.python, *([program.script] if program.script else ["-m", program.module or ""]), *program.args])


def _show_as(argv: list[str]) -> None:
    """Have ``ps`` show this process by the command line that it stands for, as much of it as there is room for."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begin, end = int(fields[45]), int(fields[46])
        text = b"\0".join(os.fsencode(word) for word in argv)[: end - begin - 1]
        with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
            memory.seek(begin)
            memory.write(text.ljust(end - begin, b"\0"))


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
