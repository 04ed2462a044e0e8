"""How a group of runs that take turns stands, for people and for programs."""

from __future__ import annotations

import pwd
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from resilient_launch.core.errors import RefusedError
from resilient_launch.core.probe import probe
from resilient_launch.policy import stagger
from resilient_launch.report.surroundings import on_nodes
from resilient_launch.stagger.group import Entry, Group

SCHEMA = 1


def group_status(directory: Path, *, writers: int | None = None) -> dict[str, Any]:
    """Who writes, who waits, since when, the expected turn and the bandwidth seen. Raises RefusedError
    without a group.

    Times are the file server's where something can be written there, else this machine's.
    """
    group = Group(directory, writers=writers)
    try:
        mode = directory.stat().st_mode
        try:
            now = group.server_time()
        except OSError:
            now = time.time()
        view = group.look(now)
    except OSError as error:
        raise _refusal(directory, error) from None
    rates = [sample.num_bytes / sample.seconds for sample in view.samples if sample.num_bytes]
    return {
        "schema": SCHEMA,
        "group": str(directory),
        "writers": view.writers,
        "writing": [_entry(entry, now) for entry in view.holders],
        "waiting": [
            {
                **_entry(entry, now),
                "expected_s": round(stagger.expected_wait_s(position, view.hold_s, view.writers), 1),
                "due": stagger.rank(entry.ticket.want, now)[0] == 0,
            }
            for position, entry in enumerate(view.waiters)
        ],
        "lock": group.known_lock(),
        "members": len(view.members),
        "mean_turn_s": round(view.hold_s, 1),
        "bytes_per_s": round(median(rates)) if rates else None,
        "warnings": _warnings(mode),
    }


def probe_group(directory: Path, *, from_nodes: str = "") -> dict[str, Any]:
    """Try out the group's mount, and leave what was found to the group: from now on it decides the lock.

    ``from_nodes`` is a hostlist of nodes to ask too. Raises UsageError when it is none, RefusedError when nothing can
    be written there.
    """
    nodes = on_nodes(from_nodes) if from_nodes else {}
    group = Group(directory)
    try:
        group.prepare()
        report = probe(directory, nodes=nodes)
        group.note_mount(report)
    except OSError as error:
        raise _refusal(directory, error) from None
    return {"schema": SCHEMA, **report.as_json()}


def _refusal(directory: Path, error: OSError) -> RefusedError:
    why = (error.strerror or str(error)).lower()
    return RefusedError("group", where=str(directory), why=why, hint="the directory that stagger.group names")


def _entry(entry: Entry, now: float) -> dict[str, Any]:
    ticket = entry.ticket
    return {
        # A path as its owner gave it: shown, never opened.
        "run": Path(ticket.run).name,
        "user": _user(ticket.uid),
        "job_id": ticket.job_id,
        "kind": ticket.want.kind,
        "weight": ticket.want.weight,
        "since_s": round(max(now - (entry.taken_at or ticket.want.arrived), 0.0), 1),
        "heard_s": round(max(now - entry.heard, 0.0), 1),
    }


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _warnings(mode: int) -> Sequence[str]:
    found = []
    if mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX:
        found.append("others may remove your tickets: chmod +t the directory")
    return found
