"""``rlaunch ckpt``: look at a run's checkpoints, verify, compare, clear away and export them."""

from __future__ import annotations

import typer

from resilient_launch.cli.ckpt import diff, export, gc, ls, push, show, verify

app = typer.Typer(no_args_is_help=True, help="Look at a run's checkpoints; verify, compare, remove and export them.")


@app.callback()
def _group() -> None:
    """Look at a run's checkpoints; verify, compare, remove and export them."""


app.command("ls")(ls.ls)
app.command("show")(show.show)
app.command("verify")(verify.verify)
app.command("diff")(diff.diff)
app.command("gc")(gc.gc)
app.command("export")(export.export)
app.command("push")(push.push)
app.command("pull")(push.pull)
