"""Readers of single values: words, numbers, durations, sizes, paths, lists of words."""

from __future__ import annotations

import math
import re
import shlex
from typing import Any

from resilient_launch.config.cursor import MAX_INT, Cursor, Decoder, Field, Fields, check_text, describe, read_fields
from resilient_launch.config.issues import closest
from resilient_launch.config.schema import Best, Every, NodeRange
from resilient_launch.config.yamlpos import Mapping as MappingNode
from resilient_launch.config.yamlpos import Scalar
from resilient_launch.core.errors import UsageError
from resilient_launch.core.units import MIB, format_duration, parse_duration, parse_size


def integer(minimum: int, maximum: int = MAX_INT) -> Decoder:
    """A whole number between two bounds, both included."""

    def decode(cursor: Cursor) -> int:
        node = cursor.scalar("a whole number", str(max(minimum, 1)))
        if node.kind != "int":
            hint = f"{node.text} without quotes" if re.fullmatch("[0-9]+", node.text) else str(max(minimum, 1))
            raise UsageError(describe(node), why="must be a whole number", hint=hint)
        if len(node.text) > 20 or not minimum <= _int(node.text) <= maximum:
            bounds = f"must be at least {minimum}" if maximum == MAX_INT else f"must be {minimum} to {maximum}"
            raise UsageError(f"the number {node.text[:40]}", why=bounds, hint=str(max(minimum, 1)))
        return _int(node.text)

    return decode


def _int(text: str) -> int:
    # int(text, 0) refuses the leading zeros that YAML allows.
    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


def number(minimum: float, maximum: float) -> Decoder:
    """A number between two bounds, both included."""

    def decode(cursor: Cursor) -> float:
        node = cursor.scalar("a number", f"{minimum:g}")
        # Python reads words such as nan and 1_000 too, which a file should not say.
        if not re.fullmatch(r"[+-]?[0-9]{1,12}(\.[0-9]{0,12})?(e[+-]?[0-9]{1,3})?", node.text):
            raise UsageError(describe(node), why="must be a number", hint="6.5")
        if not minimum <= float(node.text) <= maximum:
            raise UsageError(f"the number {node.text}", why=f"must be {minimum:g} to {maximum:g}", hint="6.5")
        return float(node.text)

    return decode


def boolean(cursor: Cursor) -> bool:
    """true or false; yes, no, on and off are plain words in YAML 1.2."""
    node = cursor.scalar("true or false", "true")
    if node.kind != "bool":
        hint = {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(node.text.lower(), "true or false")
        raise UsageError(describe(node), why="must be true or false", hint=hint)
    return node.text.lower() == "true"


def word(cursor: Cursor) -> str:
    """Text on one line, not empty. A number stands for the characters it is written with."""
    node = cursor.scalar("text", "one word")
    if node.kind in ("null", "bool"):
        raise UsageError(describe(node), why="must be text", hint=f'"{node.text}" in quotes, if it is meant as text')
    text = check_text(node.text)
    if not text.strip():
        raise UsageError("empty text", why="there must be something here", hint="leave the key out")
    return text


def raw_text(cursor: Cursor) -> str:
    """Exactly the characters that the file has, line breaks included: 1e-3 and true stay as they are written."""
    node = cursor.scalar("one value", "text, a number, true or false")
    if node.kind == "null" and not node.text:
        raise UsageError("nothing", why="must be text", hint='"" for empty text')
    return check_text(node.text, multiline=True)


def choice(*words: str) -> Decoder:
    """One of a few words."""

    def decode(cursor: Cursor) -> str:
        node = cursor.scalar(f"one of {', '.join(words)}", words[0])
        if node.text not in words:
            hint = closest(node.text, words) or words[0]
            raise UsageError(describe(node), why=f"must be one of {', '.join(words)}", hint=hint)
        return node.text

    return decode


def duration(minimum_s: float = 0.001) -> Decoder:
    """Seconds, from a number with a unit or a clock."""

    def decode(cursor: Cursor) -> float:
        seconds = parse_duration(cursor.scalar("a duration", "10m").text)
        if seconds < minimum_s:
            least = format_duration(minimum_s)
            raise UsageError(f"duration {format_duration(seconds)}", why=f"must be at least {least}", hint=least)
        return seconds

    return decode


def whole_seconds(minimum: int, maximum: int = MAX_INT) -> Decoder:
    """A duration that Slurm takes in whole seconds."""

    def decode(cursor: Cursor) -> int:
        seconds = duration(minimum)(cursor)
        if seconds != int(seconds):
            raise UsageError(f"duration {format_duration(seconds)}", why="must be whole seconds", hint=_ceil(seconds))
        if seconds > maximum:
            why = f"must be at most {format_duration(maximum)}"
            raise UsageError(f"duration {format_duration(seconds)}", why=why, hint=format_duration(maximum))
        return int(seconds)

    return decode


def _ceil(seconds: float) -> str:
    return format_duration(math.ceil(seconds))


def time_limit(cursor: Cursor) -> float:
    """A duration, or infinity for ``unlimited``."""
    node = cursor.scalar("a duration", "2h30m")
    if node.text.lower() == "unlimited":
        return math.inf
    if re.fullmatch("0+", node.text):
        raise UsageError("time limit 0", why="Slurm takes it for no limit", hint="unlimited")
    return float(duration(1)(cursor))


def memory_mb(cursor: Cursor) -> int:
    """MiB, rounded up."""
    num_mb = math.ceil(parse_size(cursor.scalar("a size", "4G").text) / MIB)
    if num_mb < 1:
        raise UsageError("memory 0", why="Slurm takes it for all of the node's", hint="4G")
    return num_mb


def nodes(cursor: Cursor) -> NodeRange:
    """A number of nodes, or a range such as 2-4."""
    text = cursor.scalar("a number of nodes or a range", "2-4").text
    match = re.fullmatch(r"([0-9]{1,6})(?:\s*-\s*([0-9]{1,6}))?", text)
    if match is None:
        raise UsageError(describe(cursor.node), why="must be a number of nodes or a range", hint="2, or 2-4")
    low, high = int(match[1]), int(match[2] or match[1])
    if low < 1 or high < low:
        why = "a range goes from the fewest to the most nodes, from 1 up"
        raise UsageError(f"range {text}", why=why, hint=f"{max(1, min(low, high))}-{max(1, low, high)}")
    return NodeRange(min=low, max=high)


def texts(decode: Decoder, hint: str) -> Decoder:
    """A list, each element read by ``decode``."""

    def decode_list(cursor: Cursor) -> tuple[Any, ...]:
        return tuple(value for item in cursor.items("a list", hint) for value in item.read(decode))

    return decode_list


def arguments(cursor: Cursor) -> tuple[str, ...]:
    """Program arguments. One string is refused: nobody but a shell knows how to split it."""
    hint = "[--lr, 1e-3]"
    if isinstance(cursor.node, Scalar) and 0 < len(cursor.node.text) <= 100:
        try:
            hint = f"[{', '.join(shlex.split(cursor.node.text))}]"
        except ValueError:
            hint = f"[{cursor.node.text!r}]"
    found: tuple[str, ...] = texts(raw_text, hint)(cursor)
    return found


def program(cursor: Cursor) -> tuple[str, ...]:
    """An argument list that starts with a program."""
    argv = arguments(cursor)
    if (not argv or not argv[0]) and cursor.report.is_good(cursor.key):
        raise UsageError("no program", why="the list's first element is the program to run", hint="[bash, train.sh]")
    return argv


def shell_lines(cursor: Cursor) -> tuple[str, ...]:
    """Lines of shell, from a list of texts or one text of many lines."""
    if isinstance(cursor.node, Scalar):
        blocks: list[str] = [raw_text(cursor)]
    else:
        hint = "- module load cuda"
        blocks = [value for item in cursor.items("shell lines", hint) for value in item.read(raw_text)]
    return tuple(line for block in blocks for line in block.removesuffix("\n").split("\n"))


def exactly_one(cursor: Cursor, fields: Fields, example: str) -> dict[str, Any]:
    """The values of a mapping of which exactly one key may be given; empty when that one is refused elsewhere."""
    num_before = len(cursor.report.issues)
    values = read_fields(cursor, fields)
    if len(cursor.report.issues) == num_before and len(values) != 1:
        raise UsageError(f"{len(values) or 'none'} of {', '.join(fields)}", why="give exactly one", hint=example)
    return values


def every(cursor: Cursor) -> Every:
    """``auto``, ``100 steps``, ``{steps: 100}`` or a duration."""
    if isinstance(cursor.node, MappingNode):
        fields = {"steps": Field("steps", integer(1)), "seconds": Field("seconds", integer(1))}
        return Every(**exactly_one(cursor, fields, "{steps: 100}"))
    text = cursor.scalar("auto, steps or a duration", "auto, 100 steps, or 10m").text
    if text == "auto":
        return Every(auto=True)
    if match := re.fullmatch(r"([0-9]{1,9})\s*steps?", text):
        if int(match[1]) < 1:
            raise UsageError("0 steps", why="must be at least 1", hint="100 steps")
        return Every(steps=int(match[1]))
    if re.fullmatch("[0-9]+", text):
        raise UsageError(f"the number {text}", why="has no unit", hint=f"{text} steps, {text}s or {text}m")
    return Every(seconds=duration(1)(cursor))


def write_every(value: Every) -> str:
    if value.auto:
        return "auto"
    return f"{value.steps} steps" if value.steps is not None else format_duration(value.seconds or 0)


def best(cursor: Cursor) -> Best:
    """``lowest loss``, ``highest accuracy``, or ``3 lowest loss``."""
    text = cursor.scalar("which value, and whether low or high is good", "lowest loss").text
    match = re.fullmatch(r"(?:([0-9]{1,6})\s+)?(lowest|highest)\s+(\S+)", check_text(text))
    if match is None or (match[1] and int(match[1]) < 1):
        why = "must be lowest or highest, and the name of a value that the script logs"
        raise UsageError(f"{text[:60]!r}", why=why, hint="lowest loss, or 3 highest accuracy")
    return Best(metric=match[3], count=int(match[1] or 1), is_highest=match[2] == "highest")


def write_best(value: Best) -> str:
    count = f"{value.count} " if value.count > 1 else ""
    return f"{count}{'highest' if value.is_highest else 'lowest'} {value.metric}"


def check_path(text: str) -> str:
    """Return ``text`` if it may be a path: no control characters, and no % (Slurm expands %j and the like)."""
    check_text(text)
    if "%" in text:
        raise UsageError(f"path {text!r}", why="Slurm expands % in file names", hint="rename it without %")
    return text
