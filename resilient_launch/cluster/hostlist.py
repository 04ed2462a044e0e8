"""Slurm's hostlists, such as ``n[1-3,7],gpu-[001-004]``, to names and back."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from resilient_launch.core.errors import UsageError

MAX_NAMES = 100_000
"""No cluster is larger; a hostlist that says so is a mistake, and would fill the memory."""

_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\],]+)")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
_NUMBERED = re.compile(r"(.*?)(\d{1,18})(\D*)", re.DOTALL)
_NOT_IN_NAMES = re.compile(r"[\[\],\s]")


def expand(hostlist: str) -> tuple[str, ...]:
    """Every name of ``hostlist``, in its order; several brackets in one name multiply, the last one fastest.

    Raises UsageError for text that is no hostlist and for one of more than ``MAX_NAMES`` names.
    """
    names: list[str] = []
    for term in _terms(hostlist):
        parts = [_values(match, hostlist) for match in _PIECE.finditer(term)]
        count = 1
        for part in parts:
            count *= len(part)
            if len(names) + count > MAX_NAMES:
                raise _too_many(hostlist)
        names += ["".join(choice) for choice in itertools.product(*parts)]
    return tuple(names)


def compress(names: Iterable[str]) -> str:
    """The shortest usual hostlist for ``names``: sorted, without repeats, one bracket per family of names.

    Raises UsageError for a name that a hostlist cannot hold.
    """
    families: dict[tuple[str, str | None], list[str]] = {}
    for name in sorted(set(names)):
        if not name or _NOT_IN_NAMES.search(name):
            raise UsageError(f"node name {name[:80]!r}", why="it is empty or holds brackets, commas or blanks")
        match = _NUMBERED.fullmatch(name)
        if match is None:
            families[(name, None)] = []
        else:
            prefix, number, suffix = match.groups()
            families.setdefault((prefix, suffix), []).append(number)
    terms = []
    for (prefix, suffix), numbers in families.items():
        ranges = _ranges(sorted(numbers, key=lambda number: (int(number), len(number))))
        bracketed = f"[{','.join(ranges)}]" if len(numbers) > 1 else "".join(ranges)
        terms.append(f"{prefix}{bracketed}{suffix or ''}")
    return ",".join(terms)


def _terms(hostlist: str) -> list[str]:
    """The comma-separated parts, commas inside brackets left alone."""
    text = hostlist.strip()
    if not text:
        return []
    terms = re.split(r",(?![^\[]*\])", text)
    for term in terms:
        if not term or re.search(r"\s", term) or "".join(match[0] for match in _PIECE.finditer(term)) != term:
            raise _malformed(hostlist)
    return terms


def _values(piece: re.Match[str], hostlist: str) -> list[str]:
    if piece[1] is None:
        return [piece[2]]
    values: list[str] = []
    for part in piece[1].split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise _malformed(hostlist)
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low):
            raise _malformed(hostlist)
        if len(values) + int(high) - int(low) >= MAX_NAMES:
            raise _too_many(hostlist)
        values += [f"{number:0{len(low)}d}" for number in range(int(low), int(high) + 1)]
    return values


def _ranges(numbers: list[str]) -> list[str]:
    runs: list[tuple[str, str]] = []
    for number in numbers:
        if runs and number == f"{int(runs[-1][1]) + 1:0{len(runs[-1][0])}d}":
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return [low if low == high else f"{low}-{high}" for low, high in runs]


def _malformed(hostlist: str) -> UsageError:
    return UsageError(f"hostlist {hostlist[:80]!r}", why="it cannot be read", hint="n[1-3,7],gpu-[001-004]")


def _too_many(hostlist: str) -> UsageError:
    return UsageError(f"hostlist {hostlist[:80]!r}", why=f"it stands for more than {MAX_NAMES} names")
