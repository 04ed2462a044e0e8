"""Durations and sizes as people write them, and as Slurm wants them."""

from __future__ import annotations

import math
import re

from resilient_launch.core.errors import UsageError

MINUTE_S = 60
HOUR_S = 3600
DAY_S = 86400
MAX_DURATION_S = 10_000 * DAY_S

MIB = 1024**2
_SIZE_UNITS = {"K": 1024, "M": MIB, "G": 1024**3, "T": 1024**4}
MAX_SIZE_BYTES = 2**60

_NUMBER = r"([0-9]{1,12}(?:\.[0-9]{1,9})?)"
_NANO = 10**9
_PARTS = re.compile("".join(rf"(?:{_NUMBER}{unit}\s*)?" for unit in ("d", "h", "m", "s", "ms")))
_PART_MS = (DAY_S * 1000, HOUR_S * 1000, MINUTE_S * 1000, 1000, 1)
_CLOCK = re.compile(r"(?:([0-9]{1,5})-)?([0-9]{1,6}):([0-9]{2}):([0-9]{2})")
_SIZE = re.compile(rf"{_NUMBER}\s*([KMGT])(?:iB)?")

_DURATION_FORMS = "a duration is numbers with units (90s, 10m, 2h30m, 1d12h) or a clock (12:30:00, 1-12:00:00)"


def parse_duration(text: str) -> float:
    """Seconds in ``text``: numbers with the units d, h, m, s, ms, or [days-]hours:minutes:seconds, or a bare 0.

    Whole milliseconds are kept exactly. Raises UsageError for anything else, a bare number above all: nobody can tell
    whether it means seconds or Slurm's minutes.
    """
    what = f"duration {_shorten(text)}"
    stripped = text.strip()
    if re.fullmatch("0+", stripped):
        return 0.0
    if re.fullmatch(_NUMBER, stripped):
        raise UsageError(what, why="has no unit", hint=f"{stripped}s for seconds, {stripped}m for minutes")
    if clock := _CLOCK.fullmatch(stripped):
        milliseconds = _clock_seconds(what, clock) * 1000
    elif stripped and (parts := _PARTS.fullmatch(stripped)):
        given = [_nano(part) * unit for part, unit in zip(parts.groups(), _PART_MS, strict=True) if part]
        milliseconds, finer = divmod(sum(given), _NANO)
        if finer:
            raise UsageError(what, why="is finer than a millisecond", hint=f"{milliseconds + 1}ms")
    elif short := re.fullmatch("([0-9]{1,4}):([0-9]{1,4})", stripped):
        hint = f"{short[1]}h{short[2]}m or {short[1]}m{short[2]}s"
        raise UsageError(what, why="may mean hours:minutes or minutes:seconds", hint=hint)
    else:
        raise UsageError(what, why=_DURATION_FORMS, hint="10m")
    if milliseconds > MAX_DURATION_S * 1000:
        raise UsageError(what, why="is too long", hint=f"{MAX_DURATION_S // DAY_S}d at most")
    return milliseconds / 1000


def _nano(number: str) -> int:
    whole, _, decimals = number.partition(".")
    return int(whole + decimals.ljust(9, "0"))


def _clock_seconds(what: str, clock: re.Match[str]) -> int:
    days, hours, minutes, seconds = (int(group or 0) for group in clock.groups())
    if minutes > 59 or seconds > 59 or (clock[1] and hours > 23):
        raise UsageError(what, why="has minutes or seconds above 59, or hours above 23 beside days", hint="12:30:00")
    return days * DAY_S + hours * HOUR_S + minutes * MINUTE_S + seconds


def format_duration(seconds: float) -> str:
    """``seconds`` rounded to the millisecond, in the form that parse_duration reads back: 1d12h, 2h30m, 1.5s, 0s."""
    if math.isinf(seconds):
        return "unlimited"
    total_ms = round(seconds * 1000)
    if total_ms < 0:
        return f"-{format_duration(-seconds)}"
    whole, milliseconds = divmod(total_ms, 1000)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    day, hour = divmod(hours, 24)
    fraction = f".{milliseconds:03d}".rstrip("0") if milliseconds else ""
    parts = [f"{count}{unit}" for count, unit in ((day, "d"), (hour, "h"), (minute, "m")) if count]
    if second or fraction or not parts:
        parts.append(f"{second}{fraction}s")
    return "".join(parts)


def slurm_minutes(seconds: float) -> int:
    """The whole minutes that Slurm counts for a limit of ``seconds``: rounded up."""
    return math.ceil(seconds / MINUTE_S)


def format_slurm_time(seconds: float) -> str:
    """``seconds`` for sbatch's --time, rounded up to Slurm's whole minutes; infinity is UNLIMITED."""
    if math.isinf(seconds):
        return "UNLIMITED"
    hours, minute = divmod(slurm_minutes(seconds), 60)
    day, hour = divmod(hours, 24)
    clock = f"{hour:02d}:{minute:02d}:00"
    return f"{day}-{clock}" if day else clock


def parse_size(text: str) -> int:
    """Bytes in ``text``: a number and K, M, G or T (also KiB, MiB, …), powers of 1024 as in Slurm, rounded up.

    Raises UsageError for anything else: a bare number, and GB, of which nobody can tell whether it is 1000³ or 1024³.
    """
    what = f"size {_shorten(text)}"
    stripped = text.strip()
    if match := _SIZE.fullmatch(stripped):
        num_bytes = -(-_nano(match[1]) * _SIZE_UNITS[match[2]] // _NANO)
        if num_bytes > MAX_SIZE_BYTES:
            raise UsageError(what, why="is larger than an exbibyte", hint="4G")
        return num_bytes
    if re.fullmatch(_NUMBER, stripped):
        raise UsageError(what, why="has no unit", hint=f"{stripped}M for MiB, {stripped}G for GiB")
    if loose := re.fullmatch(rf"{_NUMBER}\s*([kmgtKMGT])[bB]?", stripped):
        hint = f"{loose[1]}{loose[2].upper()} (powers of 1024)"
        raise UsageError(what, why="is not one of Slurm's units: K, M, G, T", hint=hint)
    raise UsageError(what, why="a size is a number and K, M, G or T", hint="4G")


def format_size(num_bytes: int) -> str:
    """``num_bytes`` in the largest unit that leaves at least 1, to a tenth: 512B, 4K, 1.5G."""
    for unit in reversed(_SIZE_UNITS):
        if num_bytes >= _SIZE_UNITS[unit]:
            return f"{num_bytes / _SIZE_UNITS[unit]:.1f}".removesuffix(".0") + unit
    return f"{num_bytes}B"


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
