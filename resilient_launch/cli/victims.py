"""``rlaunch victims``."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from resilient_launch.cli.common import Root, root_of, table
from resilient_launch.core.errors import RefusedError


def victims(
    nodes: Annotated[int, typer.Option(min=1, metavar="N", help="How many nodes are needed.")],
    root: Root = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Say which running runs would lose least if they were preempted now.

    The loss is the seconds since a run's last durable checkpoint times its GPUs. Runs under --root are looked at
    themselves; those of everybody else by what they publish in their jobs' comments.
    """
    import json

    from resilient_launch.launch.victims import candidates
    from resilient_launch.policy.victims import choose

    found = candidates(root_of(root), now=time.time())
    chosen = choose(found, num_nodes=nodes)
    if not chosen:
        total = sum(each.num_nodes for each in found)
        raise RefusedError(f"{nodes} nodes", why=f"all {len(found)} runs that can be seen have {total}")
    if as_json:
        rows = [
            {"run": each.name, "job_id": each.job_id, "nodes": each.num_nodes, "loss_gpu_s": round(each.loss_gpu_s)}
            for each in chosen
        ]
        typer.echo(json.dumps({"schema": 1, "victims": rows}))
        return
    cells = [(each.name, each.job_id, each.num_nodes, round(each.loss_gpu_s)) for each in chosen]
    typer.echo(table(("run", "job", "nodes", "loss GPU-s"), cells))
