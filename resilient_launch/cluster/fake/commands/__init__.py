"""Slurm's commands, carried out in the controller: arguments in, exit code and text out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from resilient_launch.cluster import hostlist
from resilient_launch.cluster.fake.launch import Launcher
from resilient_launch.cluster.fake.lifecycle import Lifecycle
from resilient_launch.cluster.fake.options import Option, OptionError, parse
from resilient_launch.core.errors import UsageError

_COLUMN = re.compile(r"%(\.?)(\d*)(.?)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Call:
    """One command as a user typed it. ``script`` is what sbatch was asked to read, None until it was."""

    name: str
    arguments: list[str]
    cwd: str
    environment: list[str]
    uid: int
    gid: int
    script: str | None = None

    def variable(self, name: str, default: str = "") -> str:
        prefix = f"{name}="
        return next((pair[len(prefix) :] for pair in self.environment if pair.startswith(prefix)), default)


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a command may look at and change."""

    life: Lifecycle
    launcher: Launcher
    now: float


@dataclass(kw_only=True)
class Reply:
    """What a command answers. ``read`` asks for a script, ``wait`` keeps the command until that job or step is over,
    ``delay_s`` for so long before it prints anything."""

    code: int = 0
    out: str = ""
    err: str = ""
    read: str | None = None
    wait: str = ""
    delay_s: float = 0.0


class CommandError(Exception):
    """Ends a command: text for stderr, and the exit code."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.text, self.code = text, code


@dataclass
class Arguments:
    """A parsed command line: the last value of each option, every value in order, and the other words."""

    values: Mapping[str, str | None]
    words: list[str] = field(default_factory=list)
    every: Sequence[tuple[str, str | None]] = ()

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def get(self, name: str, default: str = "") -> str:
        value = self.values.get(name)
        return default if value is None else value

    def joined(self, name: str) -> str:
        """All values of an option whose repetition adds to it, with commas between."""
        return ",".join(value for found, value in self.every if found == name and value)


def read_arguments(
    program: str, words: Sequence[str], options: Sequence[Option], *, permute: bool = True, code: int = 1
) -> Arguments:
    """Parse a command line, or end the command as getopt does. Repeated options: the last one counts."""
    try:
        found, rest = parse(words, options, permute=permute)
    except OptionError as error:
        raise CommandError(f'{program}: {error}\nTry "{program} --help" for more information\n', code) from None
    return Arguments(dict(found), rest, found)


def id_words(text: str) -> list[str]:
    """The job ids of a comma-separated list, in which ``7_[1,3]`` is one."""
    return re.findall(r"[^\s,\[]+(?:\[[^\]]*\])?", text)


def expand_nodes(program: str, text: str) -> tuple[str, ...]:
    """The names of a host list on a command line. Raises CommandError."""
    try:
        return hostlist.expand(text)
    except UsageError:
        raise CommandError(f"{program}: error: Invalid hostlist: {text}\n") from None


def layout(format_text: str, fields: Mapping[str, str]) -> str:
    """Fill a ``%.8i``-style format: a width cuts and pads, a dot pads on the left."""

    def column(match: re.Match[str]) -> str:
        right, width, letter = match.groups()
        value = fields.get(letter, "%" if letter == "%" else "")
        if not width:
            return value
        value = value[: int(width)]
        return value.rjust(int(width)) if right else value.ljust(int(width))

    return _COLUMN.sub(column, format_text)
