"""``rlaunch fake``: a Slurm of real processes on this machine, up, down and looked at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from resilient_launch.cli import fake_events
from resilient_launch.cli.common import table
from resilient_launch.cli.fake_events import State, cluster_of

if TYPE_CHECKING:
    from resilient_launch.cluster.fake.cluster import FakeCluster

SCHEMA = 1
_HELP = "A Slurm of real processes on this machine, to rehearse on: bring it up, look at it, make things happen to it."

app = typer.Typer(name="fake", no_args_is_help=True, help=_HELP)
fake_events.add_to(app)


@app.callback()
def _group() -> None:
    """A Slurm of real processes on this machine, to rehearse on: bring it up, look at it, make things happen to it."""


@app.command("up")
def up(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="YAML with the keys that a configuration has under fake.")
    ] = None,
    nodes: Annotated[str | None, typer.Option(metavar="N", help="How many nodes: n1, n2, …")] = None,
    cpus: Annotated[str | None, typer.Option(metavar="N", help="CPUs of each node.")] = None,
    gpus: Annotated[str | None, typer.Option(metavar="N", help="GPUs of each node; they need not exist.")] = None,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Memory of each node, as 16G.")] = None,
    partition: Annotated[
        list[str] | None,
        typer.Option(metavar="SPEC", help="As low:1:requeue:grace=60s; repeat it. The first is the default one."),
    ] = None,
    like: Annotated[str | None, typer.Option(metavar="VERSION", help="Where versions differ: 22.05 or 24.11.")] = None,
    signals: Annotated[
        str | None, typer.Option(metavar="tree|task", help="Whom a step's signals reach: all below it, or its tasks.")
    ] = None,
    send_user_signal: Annotated[
        bool, typer.Option("--send-user-signal", help="A preemption begins with the signal of --signal, not TERM.")
    ] = False,
    kill_wait: Annotated[str | None, typer.Option(metavar="TIME", help="From TERM to KILL.")] = None,
    requeue_delay: Annotated[str | None, typer.Option(metavar="TIME", help="How long a requeued job waits.")] = None,
    no_sacct: Annotated[bool, typer.Option("--no-sacct", help="No accounting, as on many sites.")] = False,
    state: State = None,
) -> None:
    """Bring it up; without a file or options as it was before, or with four nodes and two partitions."""
    from resilient_launch.config.fake_file import load_fake, partitions_value
    from resilient_launch.core.errors import RefusedError

    cluster = cluster_of(state)
    given: dict[str, str | None] = {
        "nodes": nodes,
        "cpus": cpus,
        "gpus": gpus,
        "memory": memory,
        "partitions": partitions_value(partition) if partition else None,
        "like": None if like is None else f'"{like}"',
        "signals": signals,
        "send_user_signal": "true" if send_user_signal else None,
        "kill_wait": kill_wait,
        "requeue_delay": requeue_delay,
        "accounting": "false" if no_sacct else None,
    }
    options = {key: value for key, value in given.items() if value is not None}
    spec = load_fake(file, options)
    if cluster.is_up():
        raise RefusedError(
            f"fake cluster in {cluster.state_dir}", why="it is up already", hint=f"rlaunch fake status{_again(state)}"
        )
    known = cluster.spec()
    if known is not None and file is None and not options:
        spec = known
    cluster.up(spec)
    typer.echo(f"{spec.num_nodes} nodes, {_shape(spec.to_dict())}: a Slurm {spec.like} in {cluster.state_dir}")
    typer.echo(f'next: eval "$(rlaunch fake env{_again(state)})"', err=True)


@app.command("down")
def down(
    keep_state: Annotated[
        bool, typer.Option("--keep-state", help="Keep accounting and the list of jobs for the next time.")
    ] = False,
    state: State = None,
) -> None:
    """Kill its jobs and its controller; leave no process, no socket and no file."""
    cluster = cluster_of(state)
    existed = cluster.spec() is not None
    cluster.down(remove=not keep_state)
    typer.echo(f"{cluster.state_dir}: {'down' if existed else 'there was no fake cluster'}")


@app.command("env")
def env(state: State = None) -> None:
    """Print what makes a shell's sbatch, squeue and so on mean this cluster."""
    import shlex

    cluster = _existing(state)
    typer.echo(f'export PATH={shlex.quote(str(cluster.bin_dir))}:"$PATH"')
    typer.echo(f"export RLAUNCH_FAKE_CLUSTER={shlex.quote(str(cluster.state_dir))}")


@app.command("status")
def status(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False, state: State = None
) -> None:
    """Say whether it is up, what its nodes do and what is reserved. Exit code 3 when it is down."""
    import json

    cluster = _existing(state)
    found = cluster.status()
    if as_json:
        typer.echo(json.dumps({"schema": SCHEMA, "state_dir": str(cluster.state_dir), **found}))
        return
    spec = found["spec"]
    typer.echo(f"a Slurm {spec['like']} in {cluster.state_dir}: {_shape(spec)}; {_accounting(found)}")
    typer.echo(
        table(("node", "state", "reason"), [(n["name"], n["state"], n["reason"] or "-") for n in found["nodes"]])
    )
    jobs = ", ".join(f"{count} {name}" for name, count in sorted(found["jobs"].items()))
    typer.echo(f"jobs: {jobs or 'none'}")
    for each in found["reservations"]:
        typer.echo(_reserved(each))


def _existing(state: Path | None) -> FakeCluster:
    """The cluster, up or down. Raises UnreachableError where there never was one."""
    from resilient_launch.core.errors import UnreachableError

    cluster = cluster_of(state)
    if cluster.spec() is None:
        hint = f"rlaunch fake up{_again(state)}"
        raise UnreachableError(f"fake cluster in {cluster.state_dir}", why="there is none", hint=hint)
    return cluster


def _again(state: Path | None) -> str:
    return "" if state is None else f" --state {state}"


def _shape(spec: dict[str, Any]) -> str:
    each = f"{spec['cpus']} CPUs and {spec['gpus']} GPUs each"
    return f"{each}, partitions {', '.join(partition['name'] for partition in spec['partitions'])}"


def _accounting(found: dict[str, Any]) -> str:
    delay_s = found["accounting_delay_s"]
    words = {"on": "accounting works", "lost": "accounting does not answer", "disabled": "no accounting"}
    return words[found["accounting"]] + (f", {delay_s:g} s late" if delay_s else "")


def _reserved(each: dict[str, Any]) -> str:
    from datetime import datetime

    from resilient_launch.cluster.hostlist import compress

    start, end = (datetime.fromtimestamp(each[name]).isoformat(timespec="seconds") for name in ("start", "end"))
    return f"reserved: {compress(each['nodes'])} from {start} to {end} ({each['name']})"
