"""Slurm's lists of node names: ``n[1-3,7],gpu-[001-004]``."""

from __future__ import annotations


def expand(expression: str) -> list[str]:
    """Every name of a host list, in its order. Raises ValueError for unbalanced brackets or a bad range."""
    names: list[str] = []
    for part in _split(expression):
        names.extend(_expand_one(part))
    return names


def compress(names: list[str] | tuple[str, ...]) -> str:
    """The names as one expression, ranges folded, in order of first appearance of each prefix."""
    groups: dict[tuple[str, int], list[int]] = {}
    order: list[tuple[str, int] | str] = []
    for name in names:
        digits = len(name) - len(name.rstrip("0123456789"))
        if not digits:
            order.append(name)
            continue
        number = name[len(name) - digits :]
        # Zero-padded numbers fold only with numbers of the same width.
        key = (name[: len(name) - digits], digits if number[0] == "0" and digits > 1 else 0)
        if not key[1] and (key[0], digits) in groups:
            key = (key[0], digits)
        if key not in groups:
            groups[key] = []
            order.append(key)
        groups[key].append(int(number))
    parts = []
    for item in order:
        if isinstance(item, str):
            parts.append(item)
            continue
        prefix, width = item
        ranges = _ranges(sorted(groups[item]), width)
        parts.append(f"{prefix}[{','.join(ranges)}]" if len(groups[item]) > 1 else f"{prefix}{ranges[0]}")
    return ",".join(parts)


def _ranges(numbers: list[int], width: int) -> list[str]:
    ranges: list[str] = []
    start = previous = numbers[0]
    for number in [*numbers[1:], None]:
        if number is not None and number == previous + 1:
            previous = number
            continue
        ranges.append(f"{start:0{width}}" if start == previous else f"{start:0{width}}-{previous:0{width}}")
        if number is not None:
            start = previous = number
    return ranges


def _split(expression: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for position, character in enumerate(expression):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(expression[start:position])
            start = position + 1
        if depth not in (0, 1):
            raise ValueError(f"unbalanced brackets in {expression!r}")
    if depth:
        raise ValueError(f"unbalanced brackets in {expression!r}")
    parts.append(expression[start:])
    return [part for part in (part.strip() for part in parts) if part]


def _expand_one(part: str) -> list[str]:
    open_at = part.find("[")
    if open_at < 0:
        return [part]
    close_at = part.index("]", open_at)
    head, body, tails = part[:open_at], part[open_at + 1 : close_at], _expand_one(part[close_at + 1 :])
    middles: list[str] = []
    for piece in body.split(","):
        low, dash, high = piece.partition("-")
        if not low.isdigit() or (dash and not high.isdigit()) or (dash and int(high) < int(low)):
            raise ValueError(f"bad range {piece!r}")
        middles.extend(f"{number:0{len(low)}}" for number in range(int(low), int(high or low) + 1))
    return [head + middle + tail for middle in middles for tail in (tails or [""])]
