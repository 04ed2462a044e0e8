"""What resumes went on from, and whether what they computed again came out as before: for status and report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_LINES = 5
_PLACES = {"local": "the nodes' memory", "shared": "shared storage"}


@dataclass(frozen=True, kw_only=True)
class GroupResume:
    """What a worker group that was started again inside an attempt went on from. ``tier`` is local or shared."""

    attempt: int
    restart: int
    step: int
    tier: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first step that a worker group computed again with another result than the one logged before."""

    attempt: int
    restart: int
    step: int
    name: str
    before: float
    now: float


def group_resumes(events: Iterable[Mapping[str, Any]]) -> tuple[GroupResume, ...]:
    """Of the first rank's events, the resumes that could have gone on from memory."""
    return tuple(
        GroupResume(
            attempt=int(event.get("attempt", 0)),
            restart=int(event.get("restart", 0)),
            step=int(event["resume_step"]),
            tier=str(event["tier"]),
            why=str(event.get("tier_why", "")),
        )
        for event in events
        if event["kind"] == "resume" and event.get("tier") in _PLACES and event.get("tier_why")
    )


def differences(events: Iterable[Mapping[str, Any]]) -> tuple[Difference, ...]:
    """Of the first rank's events, where rework came out otherwise."""
    return tuple(
        Difference(
            attempt=int(event.get("attempt", 0)),
            restart=int(event.get("restart", 0)),
            step=int(event["step"]),
            name=str(event.get("name")),
            before=float(event.get("before", float("nan"))),
            now=float(event.get("now", float("nan"))),
        )
        for event in events
        if event["kind"] == "rework" and event["status"] == "differs"
    )


def resume_lines(resumes: Sequence[GroupResume]) -> list[str]:
    """The newest of them, one a line."""
    return [
        f"attempt {each.attempt}, worker group {each.restart}: went on from step {each.step} in {_PLACES[each.tier]}: "
        f"{each.why}"
        for each in resumes[-MOST_LINES:]
    ]


def difference_lines(found: Sequence[Difference]) -> list[str]:
    """The first of them, one a line: what differs later may differ because of it."""
    return [
        f"step {each.step} came out otherwise than before the resume in attempt {each.attempt}, worker group "
        f"{each.restart}: {each.name} was {each.before!r} and is {each.now!r}"
        for each in found[:MOST_LINES]
    ]
