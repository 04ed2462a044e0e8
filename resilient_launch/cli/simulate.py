"""``rlaunch simulate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from resilient_launch.cli import simulate_cluster

if TYPE_CHECKING:
    from resilient_launch.lab.simulate.gaps import Gaps
    from resilient_launch.lab.simulate.job import JobModel, Outcome

SCHEMA = 1
app = typer.Typer(no_args_is_help=True, help="Play runs with random failures, without running anything.")
simulate_cluster.register(app)


@app.callback()
def _root() -> None:
    """Play runs with random failures, without running anything."""


@app.command("job")
def job(
    write_cost: Annotated[str, typer.Option(help="How long one checkpoint blocks training: 120s.")],
    mtbf: Annotated[str | None, typer.Option(help="Mean time between failures: 3.1h. Not needed with --trace.")] = None,
    restart: Annotated[str, typer.Option(help="From an interruption to training again.")] = "10m",
    work: Annotated[str, typer.Option(help="Useful training of the whole run.")] = "200h",
    interval: Annotated[
        list[str] | None,
        typer.Option(help="Work between checkpoints; may be given again.  [default: the best]", show_default=False),
    ] = None,
    weibull_shape: Annotated[
        float | None, typer.Option(help="Failures from a Weibull distribution of this shape.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Failures from a file: the time between two of them, one a line.")
    ] = None,
    notice: Annotated[float, typer.Option(help="Share of interruptions that leave time for a save, 0 to 1.")] = 0.0,
    emergency_cost: Annotated[
        str | None, typer.Option(help="How long that save takes.  [default: the write cost]", show_default=False)
    ] = None,
    preempt_mtbf: Annotated[str | None, typer.Option(help="Preemptions come on top, this far apart.")] = None,
    preempt_exempt: Annotated[str, typer.Option(help="How old an attempt must be before one may come.")] = "0s",
    time_limit: Annotated[str | None, typer.Option(help="Every attempt ends at this age.")] = None,
    runs: Annotated[int, typer.Option(help="How often each interval is played.")] = 400,
    seed: Annotated[int, typer.Option(help="The same seed gives the same answer.")] = 1,
    events: Annotated[
        Path | None, typer.Option(help="Write one run's events to this file, for the first interval.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with the table and bars.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Play one job many times: goodput by component, with its 95 % confidence interval."""
    import math

    from resilient_launch.cli.common import seconds
    from resilient_launch.lab.simulate.job import JobModel, simulate
    from resilient_launch.lab.simulate.plans import HazardAware, Plan, Spaced
    from resilient_launch.policy.hazard import Hazard
    from resilient_launch.policy.interval import Situation

    gaps = _gaps(mtbf, weibull_shape, trace)
    cost_s, exempt_s = seconds("--write-cost", write_cost), seconds("--preempt-exempt", preempt_exempt)
    preempt_s = seconds("--preempt-mtbf", preempt_mtbf) if preempt_mtbf else math.inf
    limit_s = seconds("--time-limit", time_limit) if time_limit else math.inf
    _check_seed(seed)

    def model(plan: Plan) -> JobModel:
        return JobModel(
            work_s=seconds("--work", work),
            cost_s=cost_s,
            restart_s=seconds("--restart", restart),
            gaps=gaps,
            plan=plan,
            notice=notice,
            emergency_s=seconds("--emergency-cost", emergency_cost) if emergency_cost else None,
            preempt_mtbf_s=preempt_s,
            exempt_s=exempt_s,
            limit_s=limit_s,
        )

    base_rate, late_rate = 1 / gaps.mean_s, (1 / preempt_s if preempt_s > 0 else 0.0)
    situation = Situation(cost_s=cost_s, mtbf_s=1 / (base_rate + (0 if exempt_s else late_rate)), notice=notice)
    plans: dict[str, Plan] = {}
    for text in interval or []:
        interval_s = _positive("--interval", seconds("--interval", text))
        plans[text] = Spaced(interval_s)
    if not plans and ((late_rate and exempt_s) or math.isfinite(limit_s)):
        hazard = Hazard(base_rate=base_rate, late_rate=late_rate, exempt_s=exempt_s, limit_s=limit_s)
        plans["hazard-aware"] = HazardAware(hazard, cost_s)
    if not plans:
        plans["best"] = Spaced(min(situation.best_s, seconds("--work", work)))
    models = [model(plan) for plan in plans.values()]
    if events is not None:
        _write_events(events, models[0], seed)
    outcomes = simulate(models, num_runs=runs, seed=seed)
    warnings = [oddity] if (oddity := situation.oddity()) else []
    rows = [_row(name, each, outcome) for (name, each), outcome in zip(plans.items(), outcomes, strict=True)]
    if html is not None:
        from resilient_launch.cli.common import write_text
        from resilient_launch.lab.simulate.page import job_page

        write_text(html, job_page(rows, runs))
    if as_json:
        import json

        typer.echo(json.dumps({"schema": SCHEMA, "runs": runs, "seed": seed, "warnings": warnings, "intervals": rows}))
        return
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    _print_job(rows, runs)


def _gaps(mtbf: str | None, shape: float | None, trace: Path | None) -> Gaps:
    from resilient_launch.cli.common import seconds
    from resilient_launch.core.errors import UsageError
    from resilient_launch.lab.simulate.gaps import Exponential, Trace, Weibull

    if trace is not None:
        if mtbf or shape is not None:
            raise UsageError(
                "--trace beside --mtbf or --weibull-shape", why="a trace says it all", hint="leave one out"
            )
        try:
            lines = trace.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = (getattr(error, "strerror", None) or "is not text").lower()
            raise UsageError("the trace", where=str(trace), why=why, hint="one duration a line: 3.1h") from None
        numbered = [(number, line.split("#")[0].strip()) for number, line in enumerate(lines, 1)]
        return Trace(tuple(seconds(f"{trace}:{number}", line) for number, line in numbered if line))
    if not mtbf:
        raise UsageError("no --mtbf", why="failures must come from somewhere", hint="--mtbf 3.1h, or --trace FILE")
    mean_s = seconds("--mtbf", mtbf)
    return Exponential(mean_s) if shape is None else Weibull(mean_s, shape)


def _positive(option: str, value_s: float) -> float:
    from resilient_launch.core.errors import UsageError

    if not value_s > 0:
        raise UsageError(f"{value_s:g} s", where=option, why="must be above 0", hint=f"{option} 30m")
    return value_s


def _check_seed(seed: int) -> None:
    from resilient_launch.core.errors import UsageError

    if seed < 0:
        raise UsageError(f"seed {seed}", why="must be 0 or more", hint="--seed 1")


def _row(name: str, plan: Any, outcome: Outcome) -> dict[str, Any]:
    import math

    from resilient_launch.lab.simulate.job import COMPONENTS

    error = outcome.goodput_error
    return {
        "name": name,
        "interval_s": getattr(plan, "interval_s", None),
        "goodput": outcome.goodput,
        "goodput_error": error if math.isfinite(error) else None,
        "shares": {component: outcome.share(component) for component in COMPONENTS},
        "attempts": float(outcome.attempts.mean()),
        "wall_s": float(outcome.wall_s.mean()),
    }


def _print_job(rows: list[dict[str, Any]], runs: int) -> None:
    from resilient_launch.cli.common import table
    from resilient_launch.core.units import format_duration

    def interval(row: dict[str, Any]) -> str:
        return row["name"] if row["interval_s"] is None else format_duration(round(row["interval_s"]))

    cells = [
        (
            interval(row),
            f"{row['goodput']:.3f}",
            "-" if row["goodput_error"] is None else f"{row['goodput_error']:.3f}",
            *(f"{row['shares'][name]:.3f}" for name in ("checkpoint", "lost", "emergency", "restart")),
            round(row["attempts"], 1),
        )
        for row in rows
    ]
    header = ("interval", "goodput", "±", "checkpoint", "lost", "emergency", "restart", "attempts")
    typer.echo(table(header, cells))
    typer.echo(f"means of {runs} runs; ± is half a 95 % confidence interval", err=True)


def _write_events(path: Path, model: JobModel, seed: int) -> None:
    import json

    from resilient_launch.core.errors import RlaunchError
    from resilient_launch.lab.simulate.job import simulate_once
    from resilient_launch.lab.simulate.story import tell

    _, spans = simulate_once(model, seed=seed)
    lines, _ = tell(model, spans, step_s=max(model.work_s / 100_000, 1.0))
    try:
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise RlaunchError("the events", where=str(path), why=reason, hint="a file in a directory of yours") from None
    typer.echo(f"events: {path} ({len(lines)} lines, {len(spans)} attempts)", err=True)


@app.command("stragglers")
def stragglers(
    ranks: Annotated[list[int] | None, typer.Option(help="Ranks of the job; may be given again.")] = None,
    probability: Annotated[
        list[float] | None, typer.Option(help="How likely a rank is slow in a step; may be given again.")
    ] = None,
    slow: Annotated[float, typer.Option(help="How many times longer a slow rank takes.")] = 2.0,
    steps: Annotated[int, typer.Option(help="Steps to play for each row.")] = 20_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same answer.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Say what ranks that are slow now and then cost: a step ends when its slowest rank does."""
    from dataclasses import asdict

    from resilient_launch.cli.common import table
    from resilient_launch.lab.simulate.stragglers import straggler_table

    _check_seed(seed)
    rows = straggler_table(
        ranks or (8, 64, 512, 4096), probability or (0.0005, 0.002), slow=slow, num_steps=steps, seed=seed
    )
    if as_json:
        import json

        typer.echo(json.dumps({"schema": SCHEMA, "seed": seed, "rows": [asdict(row) for row in rows]}))
        return
    cells = [
        (row.num_ranks, row.probability, f"{row.any_slow:.3f}", f"{row.step_time:.3f}", f"{row.formula:.3f}")
        for row in rows
    ]
    typer.echo(table(("ranks", "p(slow)", "p(any slow)", "step time", "formula"), cells))
