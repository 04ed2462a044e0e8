"""What torch's own hooks show of a training step, whatever the script registered: inputs, optimizers, torch.save."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from resilient_launch.checkpoint.parts import OptimizerPart
from resilient_launch.checkpoint.store.hashing import new_hash
from resilient_launch.checkpoint.tree import tensor_bytes

if TYPE_CHECKING:
    from resilient_launch.checkpoint.arrays import ArrayState
    from resilient_launch.checkpoint.train_state import TrainState

UNREGISTERED = "unregistered optimizer"
"""The piece of a state that nobody saves: an optimizer that steps, and that the TrainState does not know."""


class TorchEyes:
    """Installs the hooks. ``dies_in_save(path, existed)`` is asked at each ``torch.save`` to a path.

    The data of a step are told by the tensors that outermost modules are called with, or where such a call has none
    among its positional arguments, those of the first module inside that has.
    """

    def __init__(self, dies_in_save: Callable[[str, bool], bool]) -> None:
        self._depth = 0
        self._has_inputs = False
        self._inputs: Any = None
        self._optimizers: list[torch.optim.Optimizer] = []
        register_module_forward_pre_hook(self._before_forward)
        register_module_forward_hook(self._after_forward, always_call=True)
        register_optimizer_step_post_hook(self._after_step)
        self._watch_saves(dies_in_save)

    def look(self, state: TrainState | ArrayState) -> tuple[dict[str, str], list[float], str | None]:
        """Digests of optimizers that ``state`` does not hold, every learning rate, and the digest of what came in.

        Call it between two steps: what came in counts from the last call.
        """
        known = _optimizers_of(state)
        unknown = [each for each in self._optimizers if all(each is not other for other in known)]
        names = [UNREGISTERED if number == 0 else f"{UNREGISTERED} {number}" for number in range(len(unknown))]
        every = [*known, *unknown]
        rates = [float(group["lr"]) for each in every for group in each.param_groups if "lr" in group]
        inputs, self._inputs, self._depth = self._inputs, None, 0
        digests = {name: _digest(each.state.values()) for name, each in zip(names, unknown, strict=True)}
        return digests, rates, None if inputs is None else str(inputs.hexdigest())

    def _before_forward(self, module: torch.nn.Module, inputs: Any) -> None:
        if self._depth == 0:
            self._has_inputs = False
        self._depth += 1
        if not self._has_inputs:
            for tensor in _tensors(inputs):
                self._has_inputs = True
                self._inputs = self._inputs or new_hash("xxh3-128")
                self._inputs.update(tensor_bytes(tensor.detach()))

    def _after_forward(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        self._depth = max(self._depth - 1, 0)

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if all(optimizer is not each for each in self._optimizers):
            self._optimizers.append(optimizer)

    def _watch_saves(self, dies_in_save: Callable[[str, bool], bool]) -> None:
        save = torch.save

        def watched(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            if isinstance(f, str | os.PathLike):
                path = Path(f)
                existed = path.exists()
                if dies_in_save(str(path), existed):
                    buffer = io.BytesIO()
                    save(obj, buffer, *args, **kwargs)
                    with path.open("wb") as file:
                        file.write(buffer.getvalue()[: buffer.tell() // 2])
                        file.flush()
                        os.kill(os.getpid(), signal.SIGKILL)
            save(obj, f, *args, **kwargs)

        torch.save = watched


def _optimizers_of(state: Any) -> list[torch.optim.Optimizer]:
    if not hasattr(state, "parts"):
        return []
    return [part.optimizer for part in state.parts().values() if isinstance(part, OptimizerPart)]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each)


def _digest(values: Any) -> str:
    digest = new_hash("xxh3-128")
    for tensor in _tensors(list(values)):
        digest.update(tensor_bytes(tensor.detach()))
    return digest.hexdigest()
