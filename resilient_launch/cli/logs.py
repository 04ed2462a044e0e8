"""``rlaunch logs``."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resilient_launch.cli.common import Root, RunName, find_run
from resilient_launch.core.errors import UsageError

if TYPE_CHECKING:
    from resilient_launch.core.paths import RunPaths

POLL_S = 0.5


def logs(
    run: RunName,
    root: Root = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as the run does, until it is over.")] = False,
    attempt: Annotated[int | None, typer.Option(help="One attempt only.  [default: all]", show_default=False)] = None,
    rank: Annotated[int | None, typer.Option(help="One rank only.  [default: all]", show_default=False)] = None,
    grep: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Only lines in which this regular expression is found.")
    ] = None,
) -> None:
    """Print what the workers of a run printed, each line behind its attempt, node and rank."""
    from resilient_launch.report.state import read_verdict

    try:
        pattern = re.compile(grep or "")
    except re.error as error:
        raise UsageError(
            f"--grep {grep!r}",
            why=f"is no regular expression: {error}",
            hint="a backslash before what is meant as it is",
        ) from None
    found = find_run(run, root)
    places: dict[Path, tuple[int, int]] = {}
    while True:
        over = not follow or read_verdict(found.paths) is not None
        for path in _files(found.paths, attempt, rank):
            _print_new(path, places, pattern, whole=over)
        if over:
            return
        time.sleep(POLL_S)


def _files(paths: RunPaths, attempt: int | None, rank: int | None) -> Iterator[Path]:
    for directory in sorted(paths.logs.glob("[0-9]*")):
        if attempt is None or directory.name == f"{attempt:04d}":
            for path in sorted(directory.glob("*.log"), key=lambda file: int(file.stem.rpartition(".")[2])):
                if rank is None or path.stem.endswith(f".{rank}"):
                    yield path


def _print_new(path: Path, places: dict[Path, tuple[int, int]], pattern: re.Pattern[str], *, whole: bool) -> None:
    """Print the lines that came since last time; an unfinished last line only when no more can come.

    ``places`` are inode and offset: a file that was rotated or cut begins anew.
    """
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        stat = os.fstat(file.fileno())
        inode, place = places.get(path, (stat.st_ino, 0))
        if inode != stat.st_ino or stat.st_size < place:
            place = 0
        file.seek(place)
        data = file.read()
        end = len(data) if whole else data.rfind(b"\n") + 1
        places[path] = (stat.st_ino, place + end)
        prefix = f"{path.parent.name}/{path.stem}: "
        for line in data[:end].decode(errors="replace").splitlines():
            if pattern.search(line):
                typer.echo(prefix + line)
