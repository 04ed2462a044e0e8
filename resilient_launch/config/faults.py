"""The faults a configuration may ask of the fake cluster: one table, from verb to class and keys."""

from __future__ import annotations

import signal
from typing import Any

from resilient_launch.config.cursor import Cursor, Field, Fields, read_fields, write_fields
from resilient_launch.config.issues import closest
from resilient_launch.config.schema import (
    At,
    Cancel,
    ControllerDown,
    ControllerUp,
    Drain,
    FailNode,
    Fault,
    Fill,
    KillWorker,
    Maintenance,
    NoAccounting,
    Preempt,
    ResumeNode,
    SlowAccounting,
    StopWorker,
    TimeLimit,
)
from resilient_launch.config.values import boolean, duration, exactly_one, integer
from resilient_launch.core.errors import UsageError
from resilient_launch.core.units import format_duration

_AT_FIELDS = {
    "step": Field("step", integer(0)),
    "after": Field("after_s", duration(0), format_duration),
}


def _at(cursor: Cursor) -> At:
    return At(**exactly_one(cursor, _AT_FIELDS, "{step: 100}, or {after: 20s}"))


def _signal_name(cursor: Cursor) -> str:
    node = cursor.scalar("a signal's name", "KILL")
    name = node.text.upper().removeprefix("SIG")
    known = {member.name.removeprefix("SIG") for member in signal.Signals}
    if name not in known:
        hint = closest(name, sorted(known)) or "KILL"
        raise UsageError(f"signal {node.text[:40]!r}", why="is not a signal's name", hint=hint)
    return name


FAULTS: dict[type[Fault], Fields] = {
    Preempt: {},
    TimeLimit: {"in": Field("in_s", duration(1), format_duration)},
    FailNode: {"node": Field("node", integer(0)), "partition_network": Field("partition_network", boolean)},
    ResumeNode: {},
    Drain: {"node": Field("node", integer(0))},
    Maintenance: {
        "in": Field("in_s", duration(0), format_duration),
        "for": Field("for_s", duration(1), format_duration),
    },
    Fill: {"jobs": Field("num_jobs", integer(1, 10_000)), "for": Field("for_s", duration(1), format_duration)},
    SlowAccounting: {"delay": Field("delay_s", duration(0), format_duration)},
    NoAccounting: {},
    ControllerDown: {},
    ControllerUp: {},
    KillWorker: {"rank": Field("rank", integer(0)), "signal": Field("signal", _signal_name)},
    StopWorker: {"rank": Field("rank", integer(0))},
    Cancel: {},
}
_BY_VERB = {fault.verb: fault for fault in FAULTS}
_ALL_KEYS = {key: spec for fields in FAULTS.values() for key, spec in fields.items()}
_REQUIRED = {"node": "0", "rank": "0", "delay": "10s"}
"""Keys that a fault cannot do without, each with an example."""


def read_faults(cursor: Cursor) -> tuple[Fault, ...]:
    """The list under ``faults``."""
    hint = "- {at: {step: 100}, do: preempt}"
    return tuple(fault for item in cursor.items("a list of faults", hint) for fault in item.read(_fault))


def _fault(cursor: Cursor) -> Fault:
    hint = "{at: {step: 100}, do: preempt}"
    entry = cursor.mapping("a mapping of keys to values", hint).get("do")
    if entry is None:
        raise UsageError("no do", why="a fault says what is done", hint=hint)
    num_before = len(cursor.report.issues)
    # Without a verb the other keys mean nothing; without issues the placeholder is never seen.
    cls = next(iter(cursor.child("do", entry.value).read(_verb)), Fault)
    known = {"at": Field("at", _at), "do": Field("verb", lambda _: None), **FAULTS.get(cls, _ALL_KEYS)}
    values = read_fields(cursor, known)
    values.pop("verb", None)
    if len(cursor.report.issues) > num_before:
        return Fault(at=At())
    for key in ("at", *(key for key in FAULTS[cls] if key in _REQUIRED)):
        if known[key].attr not in values:
            example = hint if key == "at" else f"{key}: {_REQUIRED[key]}"
            raise UsageError(f"no {key}", why=f"{cls.verb} needs it", hint=example)
    return cls(**values)


def _verb(cursor: Cursor) -> type[Fault]:
    text = cursor.scalar("the name of a fault", "preempt").text
    if text not in _BY_VERB:
        near = closest(text, _BY_VERB)
        why = f"did you mean {near}?" if near else "is not one"
        raise UsageError(f"fault {text[:40]!r}", why=why, hint=near or f"one of {', '.join(_BY_VERB)}")
    return _BY_VERB[text]


def write_faults(faults: tuple[Fault, ...]) -> list[dict[str, Any]]:
    """What a file would say for ``faults``."""
    return [
        {"at": write_fields(fault.at, _AT_FIELDS), "do": fault.verb, **write_fields(fault, FAULTS[type(fault)])}
        for fault in faults
    ]
