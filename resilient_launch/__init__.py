"""rlaunch: takes a distributed training run to its last step, whatever happens to the machines under it.

A training script needs ``attach``, ``TrainState`` and perhaps ``ResumableSampler``; each is imported when first used,
so that ``import resilient_launch`` itself stays quick and free of torch.
"""

from __future__ import annotations

# What ``typing`` calls so; to import that costs more than the start of a command of the fake Slurm may.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from resilient_launch.checkpoint.sampler import ResumableSampler as ResumableSampler
    from resilient_launch.checkpoint.train_state import TrainState as TrainState
    from resilient_launch.job.attach import attach as attach
    from resilient_launch.job.page import Phase as Phase
    from resilient_launch.job.run import Run as Run
    from resilient_launch.job.run import Stopped as Stopped

__version__ = "0.1.0"
_HOMES = {
    "attach": "resilient_launch.job.attach",
    "Run": "resilient_launch.job.run",
    "Stopped": "resilient_launch.job.run",
    "Phase": "resilient_launch.job.page",
    "TrainState": "resilient_launch.checkpoint.train_state",
    "ResumableSampler": "resilient_launch.checkpoint.sampler",
}
__all__ = ["ResumableSampler", "Run", "Stopped", "TrainState", "attach"]


def __getattr__(name: str) -> Any:
    import importlib

    if name == "testing":
        return importlib.import_module("resilient_launch.testing")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'resilient_launch' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
