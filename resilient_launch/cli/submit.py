"""``rlaunch submit``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from resilient_launch.cli.common import Root, root_of
from resilient_launch.core.errors import EXIT_FAILED, EXIT_INTERRUPTED, RefusedError, UsageError

if TYPE_CHECKING:
    from resilient_launch.config.schema import LaunchConfig
    from resilient_launch.launch.clusters import Connection
    from resilient_launch.launch.plan import SubmitPlan


def submit(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The run's YAML file.")],
    root: Root = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key, as in a.b=c. Repeatable.")
    ] = None,
    cluster: Annotated[str | None, typer.Option(metavar="slurm|fake", help="Override the configuration's.")] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="A difference from its checkpoint that the run accepts: topology, code, missing, unexpected, shape, "
            "dtype. Repeatable.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be submitted, touch nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the run to its end.")] = False,
    parsable: Annotated[bool, typer.Option("--parsable", help="Print the job id alone.")] = False,
    fit_maintenance: Annotated[
        bool, typer.Option("--fit-maintenance", help="Shorten a time limit that would cross a maintenance window.")
    ] = False,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Then run it again without its faults, and compare both final states."),
    ] = False,
) -> None:
    """Submit a run, or let one that stopped go on from its checkpoint."""
    from resilient_launch.config import load, notes
    from resilient_launch.launch import advice, connect, make_plan
    from resilient_launch.launch import submit as submit_plan

    overrides = [*(set_ or ()), *([f"cluster={cluster}"] if cluster is not None else ())]
    overrides += [f"checkpoint.allow=[{', '.join(allow)}]"] if allow else []
    resolved = load(config, overrides)
    directory = root_of(root)
    plan = make_plan(resolved, directory)
    if dry_run:
        _print_plan(plan, as_json=as_json)
        return
    wait = wait or verify
    if resolved.faults and not wait:
        raise UsageError(
            "faults",
            where=str(config),
            why="are driven while the run is followed",
            hint=f"rlaunch submit {config} --wait",
        )
    fake_spec = resolved.fake if resolved.cluster == "fake" else None
    connection = connect(resolved.cluster, directory, start=fake_spec)
    if fit_maintenance:
        resolved = _fit_maintenance(resolved, connection)
        plan = make_plan(resolved, directory)
    for note in (*notes(resolved), *advice.notes(resolved, plan.paths, connection.scheduler)):
        typer.echo(f"note: {note}", err=True)
    job_id = submit_plan(plan, connection)
    if parsable:
        typer.echo(job_id)
    elif as_json:
        _print_json({"schema": 1, "name": resolved.name, "job_id": job_id, "directory": str(plan.paths.directory)})
    else:
        typer.echo(f"submitted {resolved.name} as job {job_id} in {plan.paths.directory}", err=wait)
    if not wait:
        if not parsable and not as_json:
            typer.echo(f"next: rlaunch status {resolved.name}", err=True)
        return
    _follow(resolved, plan, directory, verify=verify)


def _fit_maintenance(config: LaunchConfig, connection: Connection) -> LaunchConfig:
    import time

    from resilient_launch.core.units import format_duration
    from resilient_launch.launch import advice

    window = advice.in_the_way(config, connection.scheduler, now=time.time())
    if window is None:
        return config
    fitted = advice.fit(config, window, now=time.time())
    assert fitted.time_s is not None
    limit = format_duration(fitted.time_s)
    typer.echo(f"note: a time limit of {limit}, to end before the maintenance {window.name}", err=True)
    return fitted


def _follow(config: LaunchConfig, plan: SubmitPlan, root: Path, *, verify: bool) -> None:
    from resilient_launch.cli.common import attempts_table, find_run
    from resilient_launch.cli.follow import follow
    from resilient_launch.lab import verify as lab
    from resilient_launch.lab.faults import driving

    found = find_run(config.name, root)
    try:
        with driving(config, found.paths, found.connection, found.job_id, say=_say):
            status = follow(found)
    except KeyboardInterrupt:
        typer.echo(f"the run goes on; next: rlaunch wait {config.name}", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    typer.echo(attempts_table(status.attempts))
    if not status.state.is_final or status.state != "finished":
        typer.echo(f"{config.name}: {status.state}: {status.reason}", err=True)
        if status.error:
            typer.echo(status.error, err=True)
        raise typer.Exit(EXIT_FAILED)
    digest = lab.final_digest(found.paths)
    typer.echo(f"{config.name}: {status.state} at step {status.step}, state {digest}")
    if not verify:
        return
    typer.echo("running it again without faults", err=True)
    reference = lab.run_reference(config, root, follow=lambda name: follow(find_run(name, root)))
    causes = ", ".join(row.cause or "running" for row in status.attempts)
    word = "identical" if reference == digest else "DIFFERENT"
    shown = digest if reference == digest else f"{digest} against {reference}"
    typer.echo(f"{config.name}: {word} {shown} after {len(status.attempts)} attempts ({causes})")
    if reference != digest:
        raise RefusedError("the interrupted run's final state", why="is not the uninterrupted run's")


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _print_plan(plan: SubmitPlan, *, as_json: bool) -> None:
    from resilient_launch.config import as_dict, dump

    if as_json:
        _print_json(
            {
                "schema": 1,
                "config": as_dict(plan.config),
                "sbatch_script": plan.script,
                "run_directory": str(plan.paths.directory),
            }
        )
        return
    typer.echo(f"# run directory: {plan.paths.directory}\n# configuration:\n{dump(plan.config)}\n# sbatch script:")
    typer.echo(plan.script)


def _print_json(value: dict[str, Any]) -> None:
    import json

    typer.echo(json.dumps(value, indent=1, default=str))
