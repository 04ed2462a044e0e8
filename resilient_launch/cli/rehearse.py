"""``rlaunch rehearse``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from resilient_launch.cli.common import Root, root_of
from resilient_launch.core.errors import EXIT_FAILED, UsageError

QUICK = ("crash", "torn-save", "preempt")
"""What is rehearsed when nothing is said: where most of what is forgotten shows."""


def rehearse(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The run's YAML file.")],
    scenario: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A scenario, by letter or name. Repeatable.  [default: crash, torn-save, preempt]"
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every scenario, B to O.")] = False,
    steps: Annotated[int | None, typer.Option(metavar="N", help="Steps of each run, 16 to 60.  [default: 40]")] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the moments at which processes are killed.")] = 1,
    tolerance: Annotated[
        bool,
        typer.Option("--tolerance", help="Let the loss decide, as far apart as other seeds, where bits differ."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the account as one page.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key, as in a.b=c. Repeatable.")
    ] = None,
    root: Root = None,
) -> None:
    """Interrupt a job in every way on this machine, and prove that it ends as it would have ended undisturbed.

    Runs the job's own command on a fake cluster, first alone and then under each scenario, and compares final state,
    every step's state, data, learning rate, loss and random numbers. Exit code 0: identical, or within tolerance;
    1: different, not deterministic, or not to be rehearsed.
    """
    import json

    from resilient_launch.config import load
    from resilient_launch.lab.rehearse.performance import leave_out
    from resilient_launch.lab.rehearse.scenarios import DEFAULT_STEPS, Moments, choose
    from resilient_launch.lab.rehearse.session import Session
    from resilient_launch.lab.rehearse.text import result_lines, summary_lines

    if all_ and scenario:
        raise UsageError("--all and --scenario", why="ask for different things", hint="give one of them")
    chosen = choose([] if all_ else (scenario or QUICK))
    moments = Moments.of(DEFAULT_STEPS if steps is None else steps)
    directory = root_of(root)
    resolved = leave_out(load(config, set_ or ()), directory)
    where = directory / "rehearsals" / f"{resolved.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    words = ["rlaunch", "rehearse", str(config), "--steps", str(moments.steps), "--seed", str(seed)]
    words += [word for each in set_ or () for word in ("--set", each)]
    session = Session(
        config=resolved,
        directory=where,
        moments=moments,
        seed=seed,
        is_tolerant=tolerance,
        say=lambda text: typer.echo(text, err=True),
        on_result=lambda result: None if as_json else typer.echo("\n".join(result_lines(result, words))),
    )
    found = session.run(chosen)
    if html is not None:
        from resilient_launch.lab.rehearse.page import page

        html.write_text(page(found))
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=1))
    else:
        typer.echo("\n".join(summary_lines(found)))
    if not found.is_good:
        raise typer.Exit(EXIT_FAILED)
