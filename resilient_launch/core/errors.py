"""Errors that a user sees: what is wrong, where, why, and what to try. One class, one rendering, one exit code each."""

from __future__ import annotations

from typing import Any

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_TEMPORARY = 75
"""A training script's own exit code after a notice: saved, start me again (EX_TEMPFAIL of sysexits.h)."""
EXIT_WAIT_FAILED = 100
EXIT_WAIT_UNFINISHED = 101
EXIT_WAIT_NOT_FOUND = 102
EXIT_WAIT_CANCELLED = 103
EXIT_INTERRUPTED = 130


class RlaunchError(Exception):
    """Base of every error a user may see.

    ``what`` names the thing that is wrong, ``why`` says why it is refused, ``where`` is a file position, path or
    command, ``hint`` is the next thing to try. ``exit_code`` is what the command line exits with.
    """

    exit_code = EXIT_FAILED

    def __init__(self, what: str, *, why: str = "", where: str = "", hint: str = "") -> None:
        super().__init__(what, why, where, hint)
        self.what, self.why, self.where, self.hint = what, why, where, hint

    def __str__(self) -> str:
        head = ": ".join(part for part in (self.where, self.what) if part)
        text = f"{head}, {self.why}" if self.why else head
        return f"{text}\ntry: {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.what, self.why, self.where, self.hint)


def _rebuild(cls: type[RlaunchError], what: str, why: str, where: str, hint: str) -> RlaunchError:
    return cls(what, why=why, where=where, hint=hint)


class UsageError(RlaunchError):
    """A bad argument or configuration: exit code 2."""

    exit_code = EXIT_USAGE


class UnreachableError(RlaunchError):
    """The scheduler's commands are missing or its controller does not answer: exit code 3."""

    exit_code = EXIT_UNREACHABLE


class RefusedError(RlaunchError):
    """The scheduler answered, and said no: exit code 1."""


class CheckpointError(RlaunchError):
    """A checkpoint could not be written, or could not be used: exit code 1."""
