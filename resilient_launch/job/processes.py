"""Ending the processes of a worker group, whatever they turned into: found through /proc, ended with SIGKILL."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path


def members(leaders: Collection[int]) -> set[int]:
    """Every live process that is one of ``leaders``, a descendant of one, or in a session that one of them leads.

    A leader's session outlives it, so data-loading processes are found even when their parent died first. Zombies and
    processes in uninterruptible sleep are included: the caller decides how long to wait for them.
    """
    parents: dict[int, int] = {}
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The command name may hold spaces and parentheses; everything after its last ')' is plain fields.
            state, parent, _group, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if state == "Z":
            continue
        pid = int(entry.name)
        parents[pid] = int(parent)
        if pid in leaders or int(session) in leaders:
            found.add(pid)
    grown = True
    while grown:
        children = {pid for pid, parent in parents.items() if parent in found and pid not in found}
        found |= children
        grown = bool(children)
    return found - {os.getpid()}


def kill(leaders: Collection[int], *, timeout_s: float = 5.0) -> set[int]:
    """SIGKILL every member of the groups that ``leaders`` lead and wait for them to go; returns those that did not."""
    deadline = time.monotonic() + timeout_s
    while True:
        left = members(leaders)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.01)
