"""``rlaunch fake preempt`` and the other things that can happen to a fake cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resilient_launch.cli.common import root_of, seconds

if TYPE_CHECKING:
    from resilient_launch.cluster.fake.cluster import FakeCluster

State = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Where it lives.  [default: .fake where runs live: RLAUNCH_ROOT, or ./runs]",
        show_default=False,
    ),
]  # fmt: skip
Nodes = Annotated[str, typer.Argument(metavar="NODES", help="As n1 or n[1-2].")]


def cluster_of(state: Path | None) -> FakeCluster:
    """The cluster in ``state``, or the one that the runs of this place use."""
    from resilient_launch.cluster.fake.cluster import FakeCluster
    from resilient_launch.launch.clusters import fake_state_dir

    return FakeCluster(state if state is not None else fake_state_dir(root_of(None)))


def add_to(app: typer.Typer) -> None:
    """Make every event a command of ``app``."""
    app.command("preempt")(preempt)
    app.command("fail-node")(fail_node)
    app.command("resume-node")(resume_node)
    app.command("drain")(drain)
    app.command("maintenance")(maintenance)
    app.command("fill")(fill)
    app.command("slow-accounting")(slow_accounting)
    app.command("no-accounting")(no_accounting)
    app.command("controller-down")(controller_down)
    app.command("controller-up")(controller_up)


def _names(nodes: str) -> tuple[str, ...]:
    from resilient_launch.cluster.hostlist import expand

    return expand(nodes)


def preempt(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A running job's id.")], state: State = None
) -> None:
    """A job of a higher partition needs this one's nodes: its grace time starts."""
    from resilient_launch.core.errors import UsageError

    if not job.isdecimal():
        raise UsageError(f"job {job[:40]!r}", why="is no job id", hint="rlaunch fake preempt 7")
    cluster_of(state).preempt(job)


def fail_node(
    nodes: Nodes,
    partition_network: Annotated[
        bool, typer.Option("--partition-network", help="Only cut it off: what runs there runs on.")
    ] = False,
    state: State = None,
) -> None:
    """Nodes go silent, with all that runs on them."""
    for node in _names(nodes):
        cluster_of(state).fail_node(node, network_only=partition_network)


def resume_node(nodes: Nodes, state: State = None) -> None:
    """Failed or drained nodes are back; what outlived a cut on them is killed."""
    for node in _names(nodes):
        cluster_of(state).resume_node(node)


def drain(
    nodes: Nodes,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="What sinfo shows.")] = "drained by hand",
    state: State = None,
) -> None:
    """No job starts on these nodes any more; those that run go on."""
    for node in _names(nodes):
        cluster_of(state).drain(node, reason=reason)


def maintenance(
    in_: Annotated[str, typer.Option("--in", metavar="TIME", help="When it begins.")] = "0s",
    for_: Annotated[str, typer.Option("--for", metavar="TIME", help="How long it is.")] = "1h",
    nodes: Annotated[str | None, typer.Option(metavar="NODES", help="As n[1-2]; without it, all.")] = None,
    name: Annotated[str, typer.Option(metavar="NAME", help="The reservation's.")] = "maintenance",
    state: State = None,
) -> None:
    """Reserve nodes for a maintenance: no job starts whose time limit would reach into it."""
    in_s, for_s = seconds("--in", in_), seconds("--for", for_)
    cluster_of(state).maintenance(in_s=in_s, for_s=for_s, nodes=_names(nodes) if nodes else (), name=name)


def fill(
    jobs: Annotated[int | None, typer.Option(metavar="N", help="How many; without it, one a node.", min=1)] = None,
    for_: Annotated[str, typer.Option("--for", metavar="TIME", help="How long each runs.")] = "10m",
    partition: Annotated[str | None, typer.Option(metavar="NAME", help="Where; without it, the default one.")] = None,
    state: State = None,
) -> None:
    """Queue pressure: jobs of a whole node each. Prints their ids."""
    for job_id in cluster_of(state).fill(num_jobs=jobs, for_s=seconds("--for", for_), partition=partition):
        typer.echo(job_id)


def slow_accounting(
    delay: Annotated[str, typer.Argument(metavar="TIME", help="How long sacct waits; 0s is accounting as usual.")],
    state: State = None,
) -> None:
    """Make sacct's answers late; 0s also brings back accounting that was lost."""
    cluster_of(state).slow_accounting(seconds("TIME", delay))


def no_accounting(state: State = None) -> None:
    """The accounting database goes away, and sacct fails; slow-accounting 0s brings it back."""
    cluster_of(state).no_accounting()


def controller_down(state: State = None) -> None:
    """The controller goes away: Slurm's commands fail, jobs run on."""
    cluster_of(state).controller_down()


def controller_up(state: State = None) -> None:
    """The controller comes back and finds its jobs."""
    cluster_of(state).controller_up()
