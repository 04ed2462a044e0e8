"""``rlaunch config``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="config",
    help="The configuration's vocabulary, and what one comes to.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("schema")
def schema() -> None:
    """Print the JSON Schema of a configuration, for editors."""
    import json

    from resilient_launch.config.json_schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=1))


@app.command("show")
def show(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A run's YAML file.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key, as in a.b=c. Repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Print every value of a configuration, resolved, and where it came from. Values of env are not shown."""
    import json

    from resilient_launch.cli.common import table
    from resilient_launch.config.provenance import origins

    found = origins(config, set_ or ())
    rows = [(each.key, "…" if each.key.startswith("env.") else _text(each.value), each.where) for each in found]
    if as_json:
        values = [{"key": key, "value": value, "from": where} for key, value, where in rows]
        typer.echo(json.dumps({"schema": 1, "values": values}, default=str))
    else:
        typer.echo(table(("key", "value", "from"), rows))


def _text(value: object) -> str:
    import json

    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
