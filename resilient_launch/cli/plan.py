"""``rlaunch plan``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from resilient_launch.cli.common import Root, write_text

if TYPE_CHECKING:
    from resilient_launch.lab.simulate.fit import RunFit
    from resilient_launch.policy.interval import Situation

SCHEMA = 1
NUM_BARS = 13
BAR_WIDTH = 50
app = typer.Typer(no_args_is_help=True, help="Work out settings from what is measured or expected.")


@app.callback()
def _root() -> None:
    """Work out settings from what is measured or expected."""


@app.command("interval")
def interval(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Take what the options leave open from this run's events.")
    ] = None,
    write_cost: Annotated[str | None, typer.Option(help="How long one checkpoint blocks training: 120s.")] = None,
    mtbf: Annotated[str | None, typer.Option(help="Mean time between interruptions of the job: 3.1h.")] = None,
    restart: Annotated[str | None, typer.Option(help="From an interruption to training again: 10m.")] = None,
    notice: Annotated[
        float | None, typer.Option(help="Share of interruptions that leave time for a save, 0 to 1.")
    ] = None,
    emergency_cost: Annotated[
        str | None, typer.Option(help="How long that save takes.  [default: the write cost]", show_default=False)
    ] = None,
    drain: Annotated[
        str | None,
        typer.Option(help="How long a checkpoint goes on in the background.  [default: 0s]", show_default=False),
    ] = None,
    slowdown: Annotated[
        float | None, typer.Option(help="Share of speed lost meanwhile, 0 to 1.  [default: 0]", show_default=False)
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="Instead of --mtbf: how many nodes the job has.")] = None,
    failures_per_1000_node_days: Annotated[
        float | None, typer.Option(help="With --nodes: how often a node fails.  [default: 6.5]", show_default=False)
    ] = None,
    time_limit: Annotated[str | None, typer.Option(help="The attempt's time limit, to check the cost against.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Write the curve to this file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with the answer and the curve.")] = None,
    root: Root = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Say how often to save: Young, Daly, exact and notice-aware, and how much a wrong interval costs."""
    from resilient_launch.cli.common import seconds
    from resilient_launch.core.errors import UsageError
    from resilient_launch.policy.interval import Situation

    fit = _fit(run, root) if run is not None else None
    cost_s = seconds("--write-cost", write_cost) if write_cost else fit.cost.middle if fit and fit.cost else None
    if cost_s is None:
        _lacking("--write-cost", fit, "no checkpoint is measured yet", "--write-cost 120s")
    mtbf_s = _mtbf(mtbf, nodes, failures_per_1000_node_days, fit)
    fitted_restart_s = fit.restart.middle if fit and fit.restart else 0.0
    fitted_drain_s = fit.drain.middle if fit and fit.drain else 0.0
    fitted_emergency_s = fit.emergency.middle if fit and fit.emergency else None
    situation = Situation(
        cost_s=cost_s,
        mtbf_s=mtbf_s,
        restart_s=seconds("--restart", restart) if restart else fitted_restart_s,
        notice=notice if notice is not None else fit.notice if fit else 0.0,
        emergency_s=seconds("--emergency-cost", emergency_cost) if emergency_cost else fitted_emergency_s,
        drain_s=seconds("--drain", drain) if drain else fitted_drain_s,
        slowdown=slowdown if slowdown is not None else fit.slowdown if fit else 0.0,
    )
    limit_s = seconds("--time-limit", time_limit) if time_limit else None
    if limit_s is not None and situation.effective_cost_s + situation.restart_s >= limit_s:
        raise UsageError(
            f"time limit of {time_limit}",
            why="leaves no time to train beside a restart and one checkpoint",
            hint="a longer limit, or checkpoints in the background (--drain, --slowdown)",
        )
    answer = _answer(situation, limit_s, fit, has_own_mtbf=bool(mtbf or nodes))
    if svg is not None:
        from resilient_launch.lab.simulate.svg import curve

        write_text(svg, curve(answer["curve"], answer["flat"]))
    if html is not None:
        from resilient_launch.lab.simulate.page import plan_page

        write_text(html, plan_page(answer))
    if as_json:
        import json

        typer.echo(json.dumps(answer))
        return
    for warning in answer["warnings"]:
        typer.echo(f"warning: {warning}", err=True)
    _print(answer, situation)
    if svg is not None:
        typer.echo(f"curve: {svg}", err=True)
    if html is not None:
        typer.echo(f"page: {html}", err=True)


def _lacking(option: str, fit: RunFit | None, why: str, hint: str) -> NoReturn:
    from resilient_launch.core.errors import UsageError

    if fit is not None:
        raise UsageError(f"run {fit.name}", why=why, hint=hint)
    raise UsageError(f"no {option}", why="the interval depends on it", hint=f"{hint}, or the name of a run")


def _fit(run: str, root: Path | None) -> RunFit:
    from resilient_launch.cli.common import root_of
    from resilient_launch.core.paths import RunPaths
    from resilient_launch.lab.simulate.fit import fit_run

    return fit_run(RunPaths.of(run, root_of(root)))


def _mtbf(mtbf: str | None, nodes: int | None, rate: float | None, fit: RunFit | None) -> float:
    from resilient_launch.cli.common import seconds
    from resilient_launch.core.errors import UsageError
    from resilient_launch.policy.failure_rate import FAILURES_PER_1000_NODE_DAYS, mtbf_of_nodes_s

    if mtbf and nodes is not None:
        raise UsageError("--mtbf beside --nodes", why="each of them says how often the job fails", hint="leave one out")
    if rate is not None and nodes is None:
        raise UsageError("--failures-per-1000-node-days", why="needs the number of nodes", hint="--nodes 16")
    if mtbf:
        return seconds("--mtbf", mtbf)
    if nodes is not None:
        return mtbf_of_nodes_s(nodes, FAILURES_PER_1000_NODE_DAYS if rate is None else rate)
    if fit is not None:
        return fit.rate.mtbf_s
    _lacking("--mtbf", None, "", "--mtbf 3.1h, or --nodes 16")


def _answer(situation: Situation, limit_s: float | None, fit: RunFit | None, *, has_own_mtbf: bool) -> dict[str, Any]:
    import math
    from dataclasses import asdict, replace

    from resilient_launch.policy import interval as policy

    cost_s, mtbf_s = situation.effective_cost_s, situation.mtbf_s
    best_s = situation.best_s
    low_s, high_s = situation.flat_region()
    named = {
        "young": policy.young(cost_s, mtbf_s),
        "daly": policy.daly(cost_s, mtbf_s),
        "exact": policy.exact(cost_s, mtbf_s),
        "notice_first_order": policy.first_order(cost_s, mtbf_s, notice=situation.notice),
        "best": best_s,
    }
    centre_s = best_s if math.isfinite(best_s) else 4 * low_s
    grid = [centre_s * 2 ** ((number - NUM_BARS // 2) / 2) for number in range(NUM_BARS)]
    oddity = situation.oddity()
    answer: dict[str, Any] = {
        "schema": SCHEMA,
        "inputs": {**asdict(situation), "time_limit_s": limit_s},
        "intervals": {
            name: {
                "interval_s": _finite(each_s),
                "goodput": situation.goodput_at(each_s) if each_s < math.inf else None,
            }
            for name, each_s in named.items()
        },
        "flat": {"low_s": low_s, "high_s": _finite(high_s), "loss": policy.FLAT_LOSS},
        "curve": [{"interval_s": each_s, "goodput": situation.goodput_at(each_s)} for each_s in grid],
        "warnings": [oddity] if oddity else [],
        "fit": None,
    }
    if fit is not None:
        answer["fit"] = fit.as_json()
        if not has_own_mtbf:
            ends = [replace(situation, mtbf_s=each).best_s for each in fit.rate.mtbf_range_s() if math.isfinite(each)]
            answer["fit"]["best_range_s"] = [min(ends), max(ends)]
        if fit.num_interruptions == 0:
            answer["warnings"].append(
                f"run {fit.name} was never interrupted: its MTBF is the prior's, and what the time without one says"
            )
    return answer


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None


def _print(answer: dict[str, Any], situation: Situation) -> None:
    from resilient_launch.cli.common import table
    from resilient_launch.core.units import format_duration

    def text(value_s: float | None) -> str:
        return "never" if value_s is None else format_duration(round(value_s, 0 if value_s >= 10 else 3))

    titles = {
        "young": "Young",
        "daly": "Daly",
        "exact": "exact",
        "notice_first_order": "notice, first order",
        "best": "best",
    }
    hidden = set() if situation.notice > 0 else {"notice_first_order"}
    rows = [
        (titles[name], text(each["interval_s"]), "-" if each["goodput"] is None else f"{each['goodput']:.4f}")
        for name, each in answer["intervals"].items()
        if name not in hidden
    ]
    inputs = (
        f"write cost {text(situation.cost_s)}, MTBF {text(situation.mtbf_s)}, restart {text(situation.restart_s)}, "
        f"notice {situation.notice:.0%}"
    )
    if situation.drain_s > 0:
        inputs += f", drain {text(situation.drain_s)} at {situation.slowdown:.0%} of the speed lost"
    typer.echo(inputs)
    if (fit := answer["fit"]) is not None:
        low_s, high_s = fit["mtbf_range_s"]
        typer.echo(
            f"from {fit['run']}: {fit['num_interruptions']} interruptions in {text(fit['exposure_s'])}, MTBF 90 % sure "
            f"between {text(low_s)} and {text(high_s)}"
            + (
                f": best interval {' to '.join(text(end) for end in fit['best_range_s'])}"
                if "best_range_s" in fit
                else ""
            )
        )
        for name in ("cost", "drain", "restart", "emergency"):
            if (sample := fit[name]) is not None:
                spread = f"{text(sample['low'])} to {text(sample['high'])}"
                typer.echo(f"  {name}: median {text(sample['middle'])} of {sample['count']}, half of them {spread}")
    typer.echo(table(("formula", "interval", "goodput"), rows))
    flat = answer["flat"]
    typer.echo(f"within {flat['loss']:.0%} of the best: {text(flat['low_s'])} to {text(flat['high_s'])}")
    typer.echo("")
    peak = max(each["goodput"] for each in answer["curve"]) or 1.0
    for each in answer["curve"]:
        bar = "#" * round(each["goodput"] / peak * BAR_WIDTH)
        is_flat = flat["low_s"] <= each["interval_s"] <= (flat["high_s"] or each["interval_s"])
        typer.echo(f"{text(each['interval_s']):>10} {each['goodput']:.3f} {bar}{' *' if is_flat else ''}")
    best_s = answer["intervals"]["best"]["interval_s"]
    if situation.oddity() is not None:
        typer.echo("next: a cheaper checkpoint or a faster restart first; no interval makes up for that", err=True)
    elif best_s is not None:
        typer.echo(f"next: checkpoint: {{every: {text(best_s)}}}, or every: auto", err=True)
