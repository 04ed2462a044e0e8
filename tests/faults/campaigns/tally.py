"""What a campaign counts, and what it says of a promise that was broken."""

from __future__ import annotations

import shlex
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import resilient_launch

MOST_SHOWN = 20


class BrokenError(Exception):
    """A promise that did not hold; the text says which."""


class StopError(BaseException):
    """Ends the campaigns at the first failure where that was asked for."""


def hold(promise: object, what: str, *seen: object) -> None:
    """Raises BrokenError with ``what`` and what was ``seen`` unless ``promise`` is true."""
    if not promise:
        raise BrokenError("; ".join([what, *map(str, seen)]))


@dataclass(kw_only=True)
class Tally:
    """Counts by name, failures with the command that replays each, and what could not run here and why.

    ``only`` is the one case to run, by its name; None runs all of them, or of the cases the ``share`` (number, of how
    many). ``at_once`` schedules are played at the same time, 0 means the part's own number.
    """

    form: str = "short"
    seed: int = 1
    only: str | None = None
    share: tuple[int, int] = (0, 1)
    at_once: int = 0
    stops_at_first: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, str]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def is_long(self) -> bool:
        return self.form == "long"

    def wants(self, case: str) -> bool:
        number, of = self.share
        return self.only == case if self.only is not None else zlib.crc32(case.encode()) % of == number

    @contextmanager
    def case(self, part: str, name: str) -> Iterator[None]:
        """What goes wrong inside is one failure of ``part``, not the end of the campaign."""
        try:
            yield
        except Exception as error:
            self.fail(
                part, name, f"{type(error).__name__}: {error}" if not isinstance(error, BrokenError) else f"{error}"
            )

    def fail(self, part: str, name: str, what: str) -> None:
        replay = shlex.join(
            [
                "python",
                "-m",
                "tests.faults.campaigns",
                part,
                "--form",
                self.form,
                "--seed",
                str(self.seed),
                "--only",
                name,
            ]
        )
        self.failures.append({"part": part, "case": name, "what": what, "replay": replay})
        if len(self.failures) <= MOST_SHOWN:
            say(f"BAD {part} {name}: {what}\n    again: {replay}")
        if self.stops_at_first:
            raise StopError

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "package": str(Path(resilient_launch.__file__).parent),
            "form": self.form,
            "seed": self.seed,
            "counts": dict(self.counts),
            "left_out": self.left_out,
            "bad": len(self.failures),
            "failures": self.failures,
        }


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
