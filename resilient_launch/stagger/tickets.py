"""What lies in a group's directory, tickets and members, and what of it is to be believed.

The directory is shared by users who may not trust each other. Nothing in it names a path, links are not followed, and
a file that is not exactly what this package writes is passed over.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from resilient_launch.policy.stagger import Kind, Want, WriteSample
from resilient_launch.stagger.processes import ProcessMark

VERSION = 1
MAX_BYTES = 16384
MAX_SAMPLES = 16
_TICKET = re.compile(r"(?:wait|hold-(\d{1,12}))-([0-9a-f]{16})\.json")
_MEMBER = re.compile(r"member-([0-9a-f]{16})\.json")
# Beyond these a number is no duration or weight of any job, and would only upset the arithmetic.
_LEAST, _MOST = 1e-6, 1e12

Place = Literal["wait", "hold"]


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """One run's wish for a turn, or its turn. Never changes but for its name and its time stamp."""

    run: str
    uid: int
    """Owner of the file: the one thing about it that nobody can make up."""
    job_id: str
    mark: ProcessMark
    want: Want


@dataclass(frozen=True, kw_only=True)
class Member:
    """What one run last said of itself, and how its newest writes went."""

    run: str
    weight: float
    write_s: float
    mtbf_s: float
    period_s: float
    samples: tuple[WriteSample, ...] = ()


def ticket_name(ticket_id: str, taken_at: float | None = None) -> str:
    """Of a ticket that waits, or whose turn came ``taken_at`` (server time)."""
    return f"wait-{ticket_id}.json" if taken_at is None else f"hold-{max(taken_at, 0):.0f}-{ticket_id}.json"


def parse_ticket_name(name: str) -> tuple[str, float | None] | None:
    """(id, when its turn came, to the second), or None for the name of anything else."""
    match = _TICKET.fullmatch(name)
    return (match[2], None if match[1] is None else float(match[1])) if match else None


def member_name(run: str) -> str:
    """Where the run says what it is; ``run`` tells it from every other run of every user."""
    return f"member-{hashlib.sha256(f'{os.getuid()}:{run}'.encode()).hexdigest()[:16]}.json"


def is_member_name(name: str) -> bool:
    return _MEMBER.fullmatch(name) is not None


def encode_ticket(ticket: Ticket) -> bytes:
    mark, want = ticket.mark, ticket.want
    return _encode(
        {
            "run": ticket.run,
            "job_id": ticket.job_id,
            "place": mark.place,
            "pid": mark.pid,
            "started": mark.started,
            "kind": want.kind,
            "weight": want.weight,
            "write_s": want.write_s,
            "mtbf_s": want.mtbf_s,
            "age_s": want.age_s,
            "period_s": want.period_s,
            "arrived": want.arrived,
        }
    )


def read_ticket(path: Path, ticket_id: str) -> Ticket | None:
    """The ticket in ``path``; None for a file that is none, or is gone."""
    found = read_record(path)
    if found is None:
        return None
    uid, record = found
    try:
        kind = _text(record, "kind")
        if kind not in ("restore", "save"):
            return None
        mark = ProcessMark(
            place=_text(record, "place"), pid=_integer(record, "pid"), started=_integer(record, "started")
        )
        want = Want(
            id=ticket_id,
            kind=cast("Kind", kind),
            weight=_positive(record, "weight"),
            write_s=_positive(record, "write_s"),
            mtbf_s=_positive(record, "mtbf_s"),
            age_s=_number(record, "age_s"),
            period_s=_number(record, "period_s"),
            arrived=_number(record, "arrived"),
        )
        return Ticket(run=_text(record, "run"), uid=uid, job_id=_text(record, "job_id"), mark=mark, want=want)
    except ValueError:
        return None


def encode_member(member: Member) -> bytes:
    return _encode(
        {
            "run": member.run,
            "weight": member.weight,
            "write_s": member.write_s,
            "mtbf_s": member.mtbf_s,
            "period_s": member.period_s,
            "samples": [[each.num_writers, each.seconds, each.num_bytes] for each in member.samples[-MAX_SAMPLES:]],
        }
    )


def read_member(path: Path) -> Member | None:
    """What ``path`` says of a run; None for a file that says nothing, or is gone."""
    found = read_record(path)
    if found is None:
        return None
    record = found[1]
    try:
        return Member(
            run=_text(record, "run"),
            weight=_positive(record, "weight"),
            write_s=_positive(record, "write_s"),
            mtbf_s=_positive(record, "mtbf_s"),
            period_s=_positive(record, "period_s"),
            samples=_samples(record.get("samples")),
        )
    except ValueError:
        return None


def _encode(record: Mapping[str, Any]) -> bytes:
    return json.dumps({"v": VERSION, **record}, separators=(",", ":")).encode()


def read_record(path: Path) -> tuple[int, dict[str, Any]] | None:
    """(owner, content) of a small regular file; None for a link, a pipe, a giant, or no JSON object of this version."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        # A second name would be a hard link to somebody's file elsewhere.
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES or status.st_nlink > 1:
            return None
        record = json.loads(os.read(fd, MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        os.close(fd)
    return (status.st_uid, record) if isinstance(record, dict) and record.get("v") == VERSION else None


def _text(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str) or len(value) > 200 or not value.isprintable():
        raise ValueError(key)
    return value


def _integer(record: Mapping[str, Any], key: str) -> int:
    value = record.get(key)
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(key)
    return value


def _number(record: Mapping[str, Any], key: str) -> float:
    value = record.get(key)
    # NaN and the infinities fail the comparison too.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
        raise ValueError(key)
    return float(value)


def _positive(record: Mapping[str, Any], key: str) -> float:
    value = _number(record, key)
    if value < _LEAST:
        raise ValueError(key)
    return value


def _samples(value: Any) -> tuple[WriteSample, ...]:
    if not isinstance(value, list) or len(value) > MAX_SAMPLES:
        raise ValueError("samples")
    found = []
    for item in value:
        if not isinstance(item, list) or len(item) != 3:
            raise ValueError("samples")
        fields = dict(zip(("num_writers", "seconds", "num_bytes"), item, strict=True))
        found.append(
            WriteSample(
                num_writers=_integer(fields, "num_writers"),
                seconds=_positive(fields, "seconds"),
                num_bytes=_number(fields, "num_bytes"),
            )
        )
    return tuple(found)
