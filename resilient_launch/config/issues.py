"""What is wrong with a configuration, where, and how it is shown."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from resilient_launch.core.errors import UsageError

_LINE_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
_MAX_SHOWN = 100


@dataclass(frozen=True)
class Source:
    """A text that values come from: a file, or one --set option, which has no lines to point at."""

    name: str
    text: str = field(repr=False)
    is_option: bool = False

    def line(self, number: int) -> str:
        """Line ``number``, counted from 1, by YAML's idea of a line break."""
        lines = _LINE_BREAK.split(self.text)
        return lines[number - 1] if 0 < number <= len(lines) else ""


@dataclass(frozen=True)
class Mark:
    """A place in a source; line and column count from 1."""

    source: Source
    line: int
    column: int

    def issue(self, key: str, what: str, *, why: str = "", hint: str = "") -> ConfigIssue:
        """Say that the value here is wrong."""
        located = not self.source.is_option
        return ConfigIssue(
            file=self.source.name,
            line=self.line if located else None,
            column=self.column if located else None,
            key=key,
            what=what,
            why=why,
            hint=hint,
            source_line=self.source.line(self.line) if located else None,
        )


@dataclass(frozen=True, kw_only=True)
class ConfigIssue:
    """One thing that is wrong. ``line`` and ``column`` count from 1 and are None where there is no place to show."""

    file: str
    line: int | None
    column: int | None
    key: str
    what: str
    why: str = ""
    hint: str = ""
    source_line: str | None = None

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}:{self.column}"
        head = ": ".join(part for part in (where, self.key, self.what) if part)
        lines = [f"{head}, {self.why}" if self.why else head]
        if self.source_line is not None and self.source_line.strip():
            lines += _excerpt(self.source_line, self.line or 1, self.column or 1)
        if self.hint:
            lines.append(f"try: {self.hint}")
        return "\n".join(_visible(line) for line in lines)


class ConfigErrors(UsageError):  # noqa: N818 - it holds several
    """Everything that is wrong with a configuration, in the order of the file.

    Its text starts without ``error: `` and has it before every further issue, so that a command line which puts
    ``error: `` before any error shows each issue alike.
    """

    def __init__(self, issues: Iterable[ConfigIssue]) -> None:
        self.issues = tuple(issues)
        first = self.issues[0]
        where = first.file if first.line is None else f"{first.file}:{first.line}:{first.column}"
        super().__init__(f"{first.key}: {first.what}" if first.key else first.what, why=first.why, where=where)
        self.hint = first.hint

    def __str__(self) -> str:
        return "\nerror: ".join(str(issue) for issue in self.issues)

    def __reduce__(self) -> tuple[Any, ...]:
        return ConfigErrors, (self.issues,)


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that ``word`` most likely stands for."""
    names = {name.lower().replace("-", "_"): name for name in known}
    found = difflib.get_close_matches(word.lower().replace("-", "_")[:200], names, n=1, cutoff=0.65)
    return names[found[0]] if found else None


def _excerpt(text: str, line: int, column: int) -> list[str]:
    start = max(0, column - _MAX_SHOWN)
    shown = text[start : start + 2 * _MAX_SHOWN]
    # A tab before the caret stays a tab, so that the caret stands under its character however wide a tab is.
    pad = "".join("\t" if char == "\t" else " " for char in text[start : column - 1])
    gutter = f"{line:5d} | "
    return [gutter + shown, " " * (len(gutter) - 2) + "| " + pad + "^"]


def _visible(line: str) -> str:
    return "".join(char if char.isprintable() or char == "\t" else ascii(char)[1:-1] for char in line)
