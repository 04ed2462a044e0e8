"""``rlaunch``: the application, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import sys

import typer

from resilient_launch import __version__
from resilient_launch.cli import (
    cancel,
    check,
    checkpoint,
    ckpt,
    config_,
    doctor,
    drain,
    events,
    fake,
    history,
    init,
    logs,
    plan,
    rehearse,
    report,
    requeue,
    resume,
    runs,
    simulate,
    stagger,
    status,
    stop,
    submit,
    victims,
    wait,
    yield_,
)
from resilient_launch.core.errors import EXIT_FAILED, RlaunchError

app = typer.Typer(
    name="rlaunch",
    help="Take a distributed PyTorch run on Slurm to its last step, whatever happens to the machines under it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("submit")(submit.submit)
app.command("status")(status.status)
app.command("report")(report.report)
app.command("history")(history.history)
app.command("runs")(runs.runs)
app.command("events")(events.events)
app.command("logs")(logs.logs)
app.command("wait")(wait.wait)
app.command("cancel")(cancel.cancel)
app.command("checkpoint")(checkpoint.checkpoint)
app.command("yield")(yield_.yield_)
app.command("stop")(stop.stop)
app.command("requeue")(requeue.requeue)
app.command("resume")(resume.resume)
app.command("drain")(drain.drain)
app.command("victims")(victims.victims)
app.add_typer(ckpt.app, name="ckpt")
app.add_typer(plan.app, name="plan")
app.add_typer(simulate.app, name="simulate")
app.command("rehearse")(rehearse.rehearse)
app.add_typer(fake.app, name="fake")
app.command("init")(init.init)
app.command("check")(check.check)
app.add_typer(config_.app)
app.command("doctor")(doctor.doctor)
app.add_typer(stagger.app, name="stagger")


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"rlaunch {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Options that go before a command."""


def main() -> None:
    """The entry point: no traceback for what a user can mend, and the exit codes that the README lists."""
    try:
        app()
    except RlaunchError as error:
        text = str(error)
        typer.echo(text if text.startswith("error:") else f"error: {text}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        # A full or vanished disk is the user's to mend, and needs no traceback.
        where = f"{error.filename}: " if error.filename else ""
        typer.echo(f"error: {where}{error.strerror or error}", err=True)
        sys.exit(EXIT_FAILED)
