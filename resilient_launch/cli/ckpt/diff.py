"""``rlaunch ckpt diff``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from resilient_launch.cli.ckpt.common import SCHEMA, AsJson, look, pick
from resilient_launch.cli.common import Root, RunName, table
from resilient_launch.core.errors import EXIT_FAILED

if TYPE_CHECKING:
    from resilient_launch.checkpoint.compare import Comparison, TensorDifference

_WIDEST = 40


def diff(
    run: RunName,
    first: Annotated[str, typer.Argument(metavar="FIRST", help="A step, a name as ls prints it, or newest.")],
    second: Annotated[
        str | None,
        typer.Argument(metavar="[SECOND]", help="Likewise.  [default: what a resume would use]", show_default=False),
    ] = None,
    root: Root = None,
    of: Annotated[str | None, typer.Option("--of", metavar="RUN", help="The second one is this run's.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two checkpoints tensor by tensor, and in every plain value; exits with 1 where they differ.

    The full states are compared to the bit: how each was sharded, when and by whom does not matter.
    """
    from resilient_launch.checkpoint.compare import compare

    looked = look(run, root)
    other = looked if of is None else look(of, root)
    one, two = pick(looked, first), pick(other, second)
    found = compare(one.path, two.path)
    if as_json:
        names = {"first": str(one.path), "second": str(two.path)}
        typer.echo(json.dumps({"schema": SCHEMA, "is_same": found.is_same, **names, **_as_json(found)}))
    else:
        typer.echo("\n".join(_lines(found, one.name, two.name)))
    if not found.is_same:
        raise typer.Exit(EXIT_FAILED)


def _as_json(found: Comparison) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "num_same": found.num_same,
        "tensors": [asdict(each) for each in found.tensors],
        "values": [asdict(each) for each in found.values],
    }


def _lines(found: Comparison, first: str, second: str) -> Iterator[str]:
    if found.tensors:
        yield table(("tensor", "differs in", "what"), [_row(each) for each in found.tensors])
    if found.values:
        rows = [(each.place, _short(each.first), _short(each.second)) for each in found.values]
        yield table(("value", "first", "second"), rows)
    verdict = "the same" if found.is_same else "not the same"
    yield (
        f"{first} and {second}: {verdict} ({found.num_same} tensors equal, {len(found.tensors)} differ, "
        f"{len(found.values)} values differ)"
    )


def _row(each: TensorDifference) -> tuple[str, str, str]:
    if each.num_different is None:
        return each.key, each.kind, each.detail
    share = f"{each.num_different} of {each.num_elements} elements"
    largest = "" if each.max_abs_difference is None else f", by {each.max_abs_difference:.3g} at most"
    return each.key, each.kind, f"{each.detail}: {share}{largest}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."
