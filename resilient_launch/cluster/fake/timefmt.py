"""Slurm's ways to write times and durations."""

from __future__ import annotations

import re
import time

_FORMS = (
    re.compile(r"(?P<m>\d+)(:(?P<s>\d+))?"),
    re.compile(r"(?P<h>\d+):(?P<m>\d+):(?P<s>\d+)"),
    re.compile(r"(?P<d>\d+)-(?P<h>\d+)(:(?P<m>\d+)(:(?P<s>\d+))?)?"),
)
_UNLIMITED = {"-1", "infinite", "unlimited"}
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def parse_limit_s(text: str) -> int | None:
    """Seconds of a ``--time`` value in any of Slurm's forms, rounded up to the minute as Slurm does; None is unlimited.

    Raises ValueError for anything else.
    """
    if text.lower() in _UNLIMITED:
        return None
    for form in _FORMS:
        match = form.fullmatch(text)
        if match:
            parts = {key: int(value) for key, value in match.groupdict().items() if value}
            seconds = sum(value * _UNITS_S[key] for key, value in parts.items())
            return (seconds + 59) // 60 * 60
    raise ValueError(f"invalid time {text!r}")


def parse_moment(text: str, now: float) -> float:
    """Seconds since the epoch of ``now``, ``now+60``, ``now+2hours``, ``HH:MM[:SS]`` or an ISO time; or ValueError."""
    lowered = text.strip().lower()
    match = re.fullmatch(r"now(?:([+-])(\d+)([a-z]*))?", lowered)
    if match:
        sign, count, unit = match.groups()
        if count is None:
            return now
        if unit and unit[0] not in _UNITS_S:
            raise ValueError(f"invalid time {text!r}")
        return now + (-1 if sign == "-" else 1) * int(count) * _UNITS_S[unit[0] if unit else "s"]
    for form in ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d"):
        try:
            return time.mktime(time.strptime(text.strip(), form))
        except ValueError:
            continue
    for form in ("%H:%M:%S", "%H:%M"):
        try:
            clock = time.strptime(lowered, form)
        except ValueError:
            continue
        today = time.localtime(now)
        moment = time.mktime((*today[:3], clock.tm_hour, clock.tm_min, clock.tm_sec, 0, 0, -1))
        return moment if moment >= now else moment + 86400
    raise ValueError(f"invalid time {text!r}")


def moment(epoch_s: float | None) -> str:
    """``2026-01-31T12:00:00`` in local time, whole seconds, rounded down; ``Unknown`` for none."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(int(epoch_s))) if epoch_s else "Unknown"


def duration(seconds: float | None, *, unlimited: str = "UNLIMITED") -> str:
    """``[days-]HH:MM:SS``, as scontrol and sacct write it."""
    if seconds is None:
        return unlimited
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def short_duration(seconds: float | None) -> str:
    """``[days-][hours:]minutes:SS``, as squeue writes it."""
    if seconds is None:
        return "UNLIMITED"
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86400)
    hours, minutes, second = rest // 3600, rest // 60 % 60, rest % 60
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{second:02}"
    return f"{hours}:{minutes:02}:{second:02}" if hours else f"{minutes}:{second:02}"
