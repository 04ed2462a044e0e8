"""``rlaunch simulate cluster``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from resilient_launch.lab.cluster_sim.sweep import Result
    from resilient_launch.lab.cluster_sim.workload import Workload

SCHEMA = 1


def register(app: typer.Typer) -> None:
    """Add the command to ``rlaunch simulate``."""
    app.command("cluster")(cluster)


def cluster(
    workload: Annotated[Path, typer.Argument(help="A YAML file: nodes, system_mtbf, bandwidth, jobs.")],
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="How many seeds each strategy gets.")] = 10,
    days: Annotated[float, typer.Option(min=1, max=3650, help="Days simulated after the warm-up.")] = 120,
    processes: Annotated[int, typer.Option(min=1, max=256, help="Processes at work.")] = 2,
    estimated: Annotated[
        bool, typer.Option("--estimated", help="Add our strategy with estimates, old listings and dying holders.")
    ] = False,
    events: Annotated[
        Path | None, typer.Option(help="Write the events of seed 0 under our strategy into this directory.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with the table and bars.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Simulate many jobs on shared storage, under every strategy of taking turns."""
    import json
    import sys

    from resilient_launch.cli.common import write_text
    from resilient_launch.core.errors import RlaunchError
    from resilient_launch.lab.cluster_sim import strategies
    from resilient_launch.lab.cluster_sim.engine import simulate
    from resilient_launch.lab.cluster_sim.read import read_workload
    from resilient_launch.lab.cluster_sim.sweep import Case, sweep
    from resilient_launch.lab.cluster_sim.trace import Trace

    found = read_workload(workload)
    cases = [Case(workload=found, strategy=strategy) for strategy in strategies.ALL]
    if estimated:
        cases.append(Case(workload=found, strategy=strategies.STAGGERED, imperfections=strategies.ROUGH))
    show = sys.stderr.isatty()

    def progress(done: int, total: int) -> None:
        if show:
            typer.echo(f"\r{done}/{total} simulations", err=True, nl=done == total)

    results = sweep(cases, num_seeds=seeds, days=days, num_processes=processes, on_progress=progress)
    if events is not None:
        trace = Trace(found)
        simulate(found, strategies.STAGGERED, seed=0, days=days, tracer=trace)
        try:
            trace.write(events)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise RlaunchError("the events", where=str(events), why=why, hint="a directory of yours") from None
    record = _record(found, results, seeds, days)
    if html is not None:
        write_text(html, _page(record))
    typer.echo(json.dumps(record) if as_json else _text(record))


def _record(workload: Workload, results: list[Result], num_seeds: int, days: float) -> dict[str, Any]:
    from resilient_launch.lab.cluster_sim.strategies import PERFECT
    from resilient_launch.lab.cluster_sim.sweep import COMPONENTS
    from resilient_launch.policy.stagger import bound_waste, solo_load

    rows = []
    for result in results:
        name = result.case.strategy.name + ("" if result.case.imperfections == PERFECT else ", estimated")
        means = {part: result.mean(part) for part in ("waste", *COMPONENTS)}
        rows.append(
            {
                "strategy": name,
                **{part: round(mean.value, 5) for part, mean in means.items()},
                "half_width": {
                    # A single seed has no spread, and JSON no NaN.
                    part: round(mean.half_width, 5) if num_seeds > 1 else None
                    for part, mean in means.items()
                },
            }
        )
    return {
        "schema": SCHEMA,
        "workload": workload.name,
        "seeds": num_seeds,
        "days": days,
        "load": round(solo_load(workload.sharers), 4),
        "bound": round(bound_waste(workload.sharers), 5),
        "strategies": rows,
    }


def _text(record: dict[str, Any]) -> str:
    from resilient_launch.cli.common import table

    header = ("strategy", "waste", "±95 %", "useful", "rework", "write", "wait", "read", "")
    rows = []
    for row in record["strategies"]:
        half_width = row["half_width"]["waste"]
        rows.append(
            (
                row["strategy"],
                f"{row['waste']:.3f}",
                "-" if half_width is None else f"{half_width:.3f}",
                *(f"{row[part]:.3f}" for part in ("useful", "rework", "write", "wait", "read")),
                "█" * round(40 * row["waste"]),
            )
        )
    head = (
        f"{record['workload']}: {record['seeds']} seeds of {record['days']:g} days; storage load {record['load']:.2f} "
        f"if every job kept its own optimum; first-order bound of the waste {record['bound']:.3f}"
    )
    return f"{head}\n{table(header, rows)}"


def _page(record: dict[str, Any]) -> str:
    from html import escape

    parts = (
        ("useful", "#4c9f70"),
        ("rework", "#d1495b"),
        ("write", "#edae49"),
        ("wait", "#8d96a3"),
        ("read", "#00798c"),
    )
    rows = []
    for row in record["strategies"]:
        bars = "".join(
            f'<span style="width:{100 * row[part]:.2f}%;background:{color}" title="{part} {row[part]:.4f}"></span>'
            for part, color in parts
        )
        cells = "".join(f"<td>{row[part]:.4f}</td>" for part in ("waste", *(part for part, _ in parts)))
        rows.append(f"<tr><th>{escape(row['strategy'])}</th>{cells}<td class=bar>{bars}</td></tr>")
    heads = "".join(f"<th>{part}</th>" for part in ("strategy", "waste", *(part for part, _ in parts), ""))
    return (
        "<!doctype html><meta charset=utf-8><title>Shares of node time</title>"
        "<style>body{font:15px sans-serif;margin:2em}td,th{padding:.3em .8em;text-align:left}"
        ".bar{width:30em}.bar span{display:inline-block;height:1.2em}</style>"
        f"<h1>{escape(record['workload'])}</h1><p>{record['seeds']} seeds of {record['days']:g} days; "
        f"first-order bound of the waste {record['bound']:.4f}</p><table><tr>{heads}</tr>{''.join(rows)}</table>\n"
    )
