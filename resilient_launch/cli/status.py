"""``rlaunch status``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from resilient_launch.cli.common import Root, attempts_table, complete_run, root_of, table

if TYPE_CHECKING:
    from resilient_launch.cluster.base import Scheduler
    from resilient_launch.report.queue import Answer
    from resilient_launch.report.state import RunStatus

WATCH_S = 2.0
SLURM_TIMEOUT_S = 5.0
"""How long Slurm has for its answer before the view is made from what is known."""


def status(
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="The run's name; without it, every run.", autocompletion=complete_run),
    ] = None,
    root: Root = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every two seconds, until interrupted.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Say how a run stands, or list all runs."""
    from resilient_launch.cli.gather import readable

    directory = root_of(root)
    if not watch:
        names, wrong = readable(directory) if run is None else ([run], [])
        _print(*_shown(run, names, directory, as_json=as_json))
        # One damaged run must not hide the others.
        for error in wrong:
            typer.echo(f"error: {error}", err=True)
        if wrong:
            raise typer.Exit(wrong[-1].exit_code)
        return
    import sys

    while True:
        names = readable(directory)[0] if run is None else [run]
        shown, remarks = _shown(run, names, directory, as_json=as_json)
        if sys.stdout.isatty() and not as_json:
            typer.echo("\x1b[H\x1b[2J", nl=False)
        _print(shown, remarks)
        if run is not None and _is_over(run, directory):
            return
        time.sleep(WATCH_S)


def _print(shown: str, remarks: list[str]) -> None:
    for remark in remarks:
        typer.echo(remark, err=True)
    if shown:
        typer.echo(shown)


def _shown(run: str | None, names: list[str], root: Path, *, as_json: bool) -> tuple[str, list[str]]:
    """The view, and what to say of it beside."""
    import json

    from resilient_launch.report.state import SCHEMA

    if run is None:
        stands, silences = standings(names, root)
        if as_json:
            value: dict[str, Any] = {
                "schema": SCHEMA,
                "runs": [each.as_json() for each in stands],
                "silent": silences,
            }
            return json.dumps(value, default=str), []
        if not stands:
            silences.append(f"no runs in {root}; next: rlaunch submit CONFIG")
        return _all(stands), silences
    stands, silences = standings(names, root)
    return json.dumps(stands[0].as_json(), default=str) if as_json else "\n".join(_lines(stands[0])), silences


def standings(names: list[str], root: Path) -> tuple[list[RunStatus], list[str]]:
    """How the runs stand, with one question to each Slurm; the second value says which did not answer."""
    from resilient_launch.cli.gather import known
    from resilient_launch.cluster.slurm import SlurmCommands
    from resilient_launch.launch.clusters import connect
    from resilient_launch.report.queue import ask
    from resilient_launch.report.state import read_verdict, run_status

    runs = known(names, root)
    live = [run for run in runs if run.job_id and read_verdict(run.paths) is None]
    asked: dict[str, Scheduler | Answer] = {}
    silences = []
    for cluster in sorted({run.record.cluster for run in live}):
        env = connect("fake" if cluster == "fake" else "slurm", root).env
        scheduler = SlurmCommands(env, timeout_s=SLURM_TIMEOUT_S)
        if len(runs) == 1:
            # One job is worth the question that tells most.
            asked[cluster] = scheduler
            continue
        jobs = [run.job_id for run in live if run.record.cluster == cluster]
        asked[cluster] = answer = ask(scheduler, jobs, root / f".queue-{cluster}.json")
        if answer.silence:
            age = f"what it said {_ago(time.time() - answer.at_s)}" if answer.at_s else "what the files say"
            silences.append(f"{cluster} does not answer ({answer.silence}): this is {age}")
    return [run_status(run.paths, asked.get(run.record.cluster), run.job_id) for run in runs], silences


def _all(stands: list[RunStatus]) -> str:
    if not stands:
        return ""
    header = ("run", "job", "state", "step", "steps/s", "left", "saved", "attempts", "reason")
    rows = [
        (
            each.name,
            each.job_id,
            str(each.state),
            each.step if each.step is None or each.until_step is None else f"{each.step}/{each.until_step}",
            None if each.steps_per_s is None else round(each.steps_per_s, 2),
            None if each.eta_s is None else _left(each.eta_s),
            None if each.checkpoint_age_s is None else _ago(each.checkpoint_age_s),
            len(each.attempts),
            each.reason,
        )
        for each in stands
    ]
    return table(header, rows)


def _lines(standing: RunStatus) -> Iterator[str]:
    from resilient_launch.report.resumes import difference_lines, resume_lines

    reason = f" ({standing.reason})" if standing.reason else ""
    yield f"{standing.name}: {standing.state}{reason}, job {standing.job_id}"
    if standing.explanation:
        yield standing.explanation
    if standing.starts_at is not None and standing.state == "queued":
        yield f"starts at {time.strftime('%F %T', time.localtime(standing.starts_at))}, by Slurm's estimate"
    if standing.step is not None:
        age = "" if standing.checkpoint_age_s is None else f", {_ago(standing.checkpoint_age_s)}"
        saved = "none" if standing.checkpoint_step is None else f"step {standing.checkpoint_step}{age}"
        goal = "" if standing.until_step is None else f" of {standing.until_step}"
        rate = "" if standing.steps_per_s is None else f" at {standing.steps_per_s:.3g} steps/s"
        left = "" if standing.eta_s is None else f", {_left(standing.eta_s)} left if nothing interrupts it"
        yield f"step {standing.step}{goal}{rate}{left}"
        yield f"newest checkpoint: {saved}"
    if standing.attempts:
        yield attempts_table(standing.attempts)
        yield from resume_lines([each for row in standing.attempts for each in row.group_resumes])
        for line in difference_lines([each for row in standing.attempts for each in row.differences]):
            yield f"warning: {line}"
    if standing.error:
        yield standing.error


def _is_over(name: str, root: Path) -> bool:
    from resilient_launch.core.paths import RunPaths
    from resilient_launch.report.state import read_verdict

    return read_verdict(RunPaths.of(name, root)) is not None


def _left(seconds: float) -> str:
    from resilient_launch.report.notes import short_duration

    return short_duration(seconds)


def _ago(seconds: float) -> str:
    from resilient_launch.report.notes import short_duration

    return f"{short_duration(max(seconds, 0.0))} ago"
