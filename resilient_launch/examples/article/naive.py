"""How not to save: the last checkpoint is overwritten in place, a file at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from resilient_launch.checkpoint.arrays import Array
from resilient_launch.examples.article.trainer import LAYERS, Trainer


def save(directory: Path, trainer: Trainer) -> Iterable[int]:
    """Write a shard for each layer and then the rest; yields the number of shards written, after each."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, layer in enumerate(LAYERS, start=1):
        np.savez(directory / f"{layer}.npz", weights=trainer.weights[layer], velocity=trainer.velocity[layer])
        yield number
    (directory / "rest.json").write_text(json.dumps({"step": trainer.step, **trainer.values()}))


def load(directory: Path, trainer: Trainer) -> bool:
    """Take on what lies in ``directory``; whether anything does."""
    rest = directory / "rest.json"
    if not rest.exists():
        return False
    values = json.loads(rest.read_text())
    arrays: dict[str, Array] = {}
    for layer in LAYERS:
        with np.load(directory / f"{layer}.npz") as shard:
            arrays |= {f"weights/{layer}": shard["weights"], f"velocity/{layer}": shard["velocity"]}
    trainer.put(arrays, values)
    trainer.step = int(values["step"])
    return True
