"""Where every rank stands: stacks are collected from running processes, and nothing is stopped or ended for it.

A worker that joined the run prints the stacks of its threads on a real-time signal of its own, in C, without the
interpreter's lock. A stopped process can't; what /proc says of it is the finding. py-spy is asked too where it is.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

STACK_SIGNAL = signal.SIGRTMAX - 2
"""Outside the mask that holds back notices; real-time signals mean nothing to Slurm, Python or NCCL."""
DUMP_TIMEOUT_S = 1.0
PY_SPY_TIMEOUT_S = 5.0
NCCL_TIMEOUT_S = 3.0
_QUIET_S = 0.05
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$')
_MAX_CONCURRENT = 8


@dataclass(frozen=True, kw_only=True)
class Target:
    """One rank of this node. ``dump`` is the file that its process writes to when it is asked."""

    rank: int
    pid: int
    dump: Path


def register(dump: Path) -> None:
    """In a worker: print every thread's stack to ``dump``, which the node agent collects, on STACK_SIGNAL."""
    file = dump.open("ab", buffering=0)
    # faulthandler keeps the file for as long as the signal is registered: the life of the process.
    faulthandler.register(STACK_SIGNAL, file=file, all_threads=True, chain=False)


def state_of(pid: int) -> str:
    """The letter that /proc gives the process; empty where it is gone or a zombie."""
    try:
        # Asked of every rank, again and again: no more than one small read.
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            state = file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""
    return "" if state in "ZX" else state


def collect(targets: Sequence[Target], directory: Path, node: str) -> dict[int, str]:
    """Append the stacks of every target to ``<node>.<rank>.stack.txt`` in ``directory``.

    Returns the innermost Python line of the main thread of each rank that printed its stack. Takes DUMP_TIMEOUT_S, and
    PY_SPY_TIMEOUT_S more for every eight ranks where py-spy is installed. A full disk costs the file, not the finding.
    """
    printed = _ask_all(targets)
    py_spy = shutil.which("py-spy")
    with ThreadPoolExecutor(_MAX_CONCURRENT) as pool:
        spied = list(pool.map(lambda target: _py_spy(py_spy, target.pid) if py_spy else "", targets))
    for target, native in zip(targets, spied, strict=True):
        text = printed.get(target.rank, "")
        parts = [f"== {time.strftime('%Y-%m-%dT%H:%M:%S%z')} rank {target.rank}: {_describe(target.pid)}", text, native]
        if not text:
            parts.insert(1, "no answer from the process itself")
        with contextlib.suppress(OSError), (directory / f"{node}.{target.rank}.stack.txt").open("a") as file:
            file.write("\n".join(part for part in parts if part) + "\n")
    return {rank: line for rank, text in printed.items() if (line := innermost(text))}


def dump_nccl(pipes: str, traces: str, ranks: Sequence[int]) -> None:
    """Have NCCL's flight recorder written for every rank that has one: to ``traces`` + rank, within NCCL_TIMEOUT_S.

    torch's NCCL monitor makes a named pipe for each rank and dumps its records once something comes through it.
    """
    asked = []
    for rank in ranks:
        # ENXIO and ENOENT: nobody reads it, so there is no monitor.
        with contextlib.suppress(OSError):
            pipe = os.open(f"{pipes}{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK)
            with os.fdopen(pipe, "wb", buffering=0) as file:
                file.write(b"1\n")
            asked.append(Path(f"{traces}{rank}"))
    deadline = time.monotonic() + NCCL_TIMEOUT_S
    while time.monotonic() < deadline and not all(_size(trace) for trace in asked):
        time.sleep(_QUIET_S)


def innermost(text: str) -> str:
    """The innermost Python line of the main thread in faulthandler's output, as ``file:line function``.

    faulthandler prints the newest thread first, so the main one is last, and each thread's innermost frame first.
    """
    line = ""
    expects = False
    for row in text.splitlines():
        if row.endswith("(most recent call first):"):
            expects = True
        elif expects and (match := _FRAME.match(row)):
            line, expects = f"{match[1]}:{match[2]} {match[3]}", False
    return line


def _ask_all(targets: Sequence[Target]) -> dict[int, str]:
    """Signal every process that can answer, and read what each printed."""
    began: dict[int, int] = {}
    for target in targets:
        # Not every process has joined the run, and an unexpected real-time signal kills.
        if state_of(target.pid) in "RSDI" and _catches(target.pid):
            began[target.rank] = _size(target.dump)
            with contextlib.suppress(ProcessLookupError):
                os.kill(target.pid, STACK_SIGNAL)
    waiting = {target.rank: target.dump for target in targets if target.rank in began}
    deadline = time.monotonic() + DUMP_TIMEOUT_S
    sizes = dict(began)
    while time.monotonic() < deadline and waiting:
        time.sleep(_QUIET_S)
        now = {rank: _size(dump) for rank, dump in waiting.items()}
        if all(now[rank] == sizes[rank] > began[rank] for rank in waiting):
            break
        sizes = now
    found = {}
    for rank, dump in waiting.items():
        with contextlib.suppress(OSError), dump.open("rb") as file:
            file.seek(began[rank])
            found[rank] = file.read().decode(errors="replace").rstrip()
    return found


def _catches(pid: int) -> bool:
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{pid}/status").read_text()
        caught = int(status.split("SigCgt:")[1].split()[0], 16)
        return bool(caught >> (STACK_SIGNAL - 1) & 1)
    return False


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _describe(pid: int) -> str:
    """What /proc says of a process, in a line."""
    words = {"T": "stopped", "t": "stopped by a tracer", "D": "uninterruptible sleep", "S": "sleeping", "R": "running"}
    state = state_of(pid)
    if not state:
        return f"process {pid} is gone"
    kernel = ""
    with contextlib.suppress(OSError):
        kernel = Path(f"/proc/{pid}/wchan").read_text().strip("0")
    where = f", waits in the kernel's {kernel}" if kernel else ""
    return f"process {pid}, state {state} ({words.get(state, 'other')}){where}"


def _py_spy(py_spy: str, pid: int) -> str:
    # --nonblocking: nothing is stopped, so a process that is ended meanwhile is not left behind, stopped.
    command = [py_spy, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PY_SPY_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"py-spy: {error}"
    return done.stdout.rstrip() if done.returncode == 0 else f"py-spy: {done.stderr.strip()[-300:]}"
