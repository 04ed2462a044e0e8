"""What several commands share: finding a run, and plain tables. Quick to import."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

if TYPE_CHECKING:
    from resilient_launch.core.paths import RunPaths
    from resilient_launch.launch.clusters import Connection

Root = Annotated[
    Path | None,
    typer.Option(help="Where runs live.  [default: RLAUNCH_ROOT, or ./runs]", show_default=False),
]


def complete_run(context: typer.Context, incomplete: str) -> list[str]:
    """The names of runs that begin with ``incomplete``, for the shell; none where there is nothing to read."""
    root = context.params.get("root")
    try:
        names = [entry.parent.name for entry in root_of(Path(root) if root else None).glob("*/run.json")]
    except OSError:
        return []
    return sorted(name for name in names if name.startswith(incomplete))


RunName = Annotated[str, typer.Argument(metavar="RUN", help="The run's name.", autocompletion=complete_run)]


@dataclass(frozen=True, kw_only=True)
class FoundRun:
    """A run that exists, its newest job, and the cluster that it was submitted to."""

    paths: RunPaths
    job_id: str
    connection: Connection


def root_of(option: Path | None) -> Path:
    """The directory of all runs, from the option or the environment."""
    from resilient_launch.core.paths import default_root

    return option.absolute() if option is not None else default_root()


def find_run(name: str, root: Path | None) -> FoundRun:
    """The run called ``name``. Raises RefusedError when there is none."""
    from resilient_launch.core.paths import RunPaths
    from resilient_launch.launch.clusters import connect
    from resilient_launch.launch.records import read_run

    directory = root_of(root)
    paths = RunPaths.of(name, directory)
    record = read_run(paths)
    connection = connect("fake" if record.cluster == "fake" else "slurm", directory)
    return FoundRun(paths=paths, job_id=record.jobs[-1] if record.jobs else "", connection=connection)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as their widest cell; numbers to the right."""
    cells = [list(header), *([("-" if cell is None else str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    numeric = [
        bool(rows) and all(isinstance(row[column], int | float | None) for row in rows) for column in range(len(header))
    ]
    lines = []
    for row in cells:
        padded = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def attempts_table(attempts: Sequence[object]) -> str:
    """The attempts of a run, one a line."""
    from resilient_launch.report.attempts import AttemptRow

    header = ("attempt", "job", "restarts", "in-job", "cause", "resume", "end", "rework", "seconds")
    rows = [
        (
            row.number,
            int(row.job_id) if row.job_id.isdigit() else row.job_id,
            row.slurm_restart_count,
            row.torchelastic_restart_count,
            row.cause,
            row.resume_step,
            row.end_step,
            row.rework_steps,
            round(row.seconds),
        )
        for row in cast("Sequence[AttemptRow]", attempts)
    ]
    return table(header, rows)


def seconds(option: str, text: str) -> float:
    """The duration in an option's value. Raises UsageError, which names the option."""
    from resilient_launch.core.errors import UsageError
    from resilient_launch.core.units import parse_duration

    try:
        return parse_duration(text)
    except UsageError as error:
        raise UsageError(error.what, where=option, why=error.why, hint=f"{option} {error.hint}") from None


def write_text(path: Path, text: str) -> None:
    """Write a file that an option asked for. Raises UsageError where that cannot be."""
    from resilient_launch.core.durable import replace_file
    from resilient_launch.core.errors import UsageError

    try:
        replace_file(path.absolute(), text.encode())
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(f"cannot write {str(path)!r}", why=why, hint="a path in a directory that exists") from error
