"""``rlaunch init``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resilient_launch.core.errors import UsageError

if TYPE_CHECKING:
    from resilient_launch.report.surroundings import Surroundings


def init(
    directory: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where to write.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
) -> None:
    """Write a commented configuration and a script that runs as it is. Asks nothing that it can find out."""
    from resilient_launch.report.surroundings import look

    config, script = directory / "rlaunch.yaml", directory / "train.py"
    for path in (config, script):
        if path.exists() and not force:
            raise UsageError(f"file {str(path)!r}", why="is there already", hint="rlaunch init DIR, or --force")
    around = look()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        config.write_text(config_text(around, _name_of(directory)))
        script.write_text(SCRIPT)
    except OSError as error:
        raise UsageError(f"directory {str(directory)!r}", why=(error.strerror or str(error)).lower()) from error
    typer.echo(f"wrote {config} and {script}")
    wait = " --wait" if around.cluster == "fake" else ""
    typer.echo(f"next: rlaunch submit {config}{wait}", err=True)


def config_text(around: Surroundings, name: str) -> str:
    """The commented configuration for what was found."""
    gpus = f"gpus_per_node: {around.gpus_per_node}" if around.gpus_per_node else "# gpus_per_node: 8"
    partition = f"partition: {around.partition}" if around.partition else "# partition: low"
    where = "the Slurm whose commands are on PATH" if around.cluster == "slurm" else "real processes on this machine"
    return CONFIG.format(
        name=name,
        cluster=around.cluster,
        where=where,
        workers=around.gpus_per_node or 2,
        gpus=gpus,
        partition=partition,
    )


def _name_of(directory: Path) -> str:
    import re

    words = re.sub(r"[^A-Za-z0-9._-]+", "-", directory.absolute().name).strip("-._")
    return words[:100] or "my-run"


CONFIG = """\
# One training run. Every key: rlaunch config schema; what this comes to: rlaunch config show rlaunch.yaml
name: {name}
# {where}; fake is a rehearsal on this machine, slurm the real thing
cluster: {cluster}

nodes: 1
workers_per_node: {workers}
cpus_per_worker: 1
{gpus}
# the limit of one attempt; the run has as many attempts as it needs
time: 10m
# notice before the limit: longer than a save takes
signal_lead: 60s
{partition}

script: train.py
args: [--steps, 200]

checkpoint:
  every: 5m
  keep: 3
"""

SCRIPT = '''\
"""A model that trains as it is: put your own in its place."""

import argparse
import os

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import resilient_launch as rl


class Numbers(torch.utils.data.Dataset):
    """Made-up data: points, and a function of them."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        point = torch.randn(16, generator=torch.Generator().manual_seed(index))
        return point, point.sin().sum().unsqueeze(0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    torch.distributed.init_process_group(backend)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)

    with rl.attach() as run:
        run.seed(1234)
        layers = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
        model = DistributedDataParallel(layers, find_unused_parameters=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        data = Numbers()
        sampler = rl.ResumableSampler(len(data), batch_size=32, rank=run.rank, world_size=run.world_size, seed=1)
        state = rl.TrainState(model=model, optimizer=optimizer, data=sampler)
        run.restore(state)
        batches = sampler.batches()
        for step in run.steps(state, until=options.steps):
            rows = [data[index] for index in next(batches)]
            points = torch.stack([point for point, _ in rows]).to(device)
            values = torch.stack([value for _, value in rows]).to(device)
            loss = nn.functional.mse_loss(model(points), values)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(step, loss=loss.item())
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
'''
