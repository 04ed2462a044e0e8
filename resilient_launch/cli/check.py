"""``rlaunch check``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resilient_launch.core.errors import EXIT_USAGE, UsageError

if TYPE_CHECKING:
    from resilient_launch.config import ConfigIssue

_FORMATS = ("text", "json", "github")


def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Configurations.")],
    output_format: Annotated[str, typer.Option(metavar="text|json|github", help="How issues are shown.")] = "text",
) -> None:
    """Check configurations and say everything that is wrong with them. Exit codes: 0 all good, 2 otherwise."""
    import json

    if output_format not in _FORMATS:
        why = f"is not one of {', '.join(_FORMATS)}"
        raise UsageError(f"--output-format {output_format!r}", why=why, hint="--output-format json")
    found = [issue for file in files for issue in _issues(file)]
    if output_format == "json":
        keys = ("file", "line", "column", "key", "what", "why", "hint")
        typer.echo(json.dumps({"schema": 1, "issues": [{key: getattr(each, key) for key in keys} for each in found]}))
    else:
        for issue in found:
            typer.echo(_github(issue) if output_format == "github" else f"error: {issue}")
    if output_format == "text":
        bad = len({issue.file for issue in found})
        typer.echo(
            f"{len(files)} checked, {len(found)} errors in {bad}" if found else f"{len(files)} checked, all good"
        )
    if found:
        raise typer.Exit(EXIT_USAGE)


def _issues(file: Path) -> tuple[ConfigIssue, ...]:
    from resilient_launch.config import ConfigErrors, ConfigIssue, load

    try:
        load(file)
    except ConfigErrors as errors:
        return errors.issues
    except UsageError as error:
        return (
            ConfigIssue(
                file=str(file), line=None, column=None, key="", what=error.what, why=error.why, hint=error.hint
            ),
        )
    return ()


def _github(issue: ConfigIssue) -> str:
    """A workflow command, which GitHub shows at the line that it names."""
    place = f"file={_property(issue.file)}"
    if issue.line is not None:
        place += f",line={issue.line},col={issue.column}"
    text = ": ".join(part for part in (issue.key, issue.what) if part)
    text += f", {issue.why}" if issue.why else ""
    text += f"; try: {issue.hint}" if issue.hint else ""
    return f"::error {place}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
