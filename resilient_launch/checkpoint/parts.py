"""What a training state is made of: each part gives its state and takes it back, exactly and without side effects."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel


class Part(Protocol):
    """One entry of a training state.

    ``is_per_rank``: every rank has one of its own. ``is_fixed``: its tensors are those of the object that takes them,
    so names, shapes and dtypes are compared before anything is loaded.
    """

    is_per_rank: bool
    is_fixed: bool

    def get(self) -> Any: ...
    def put(self, state: Any, *, strict: bool) -> None: ...


class Stateful(Protocol):
    """Anything with torch's pair of methods."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...


class ModelPart:
    """A model through torch's state-dict API: names without DDP's and compile's prefixes, DTensors where sharded."""

    is_per_rank = False
    is_fixed = True

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self._names: dict[str, str] | None = None

    def get(self) -> dict[str, Any]:
        # Once it is known which name is which, torch's API need not work them out again at every save.
        own = self.model.state_dict()
        if self._names is None or own.keys() != self._names.keys():
            state = dict(get_model_state_dict(self.model))
            self._names = _renaming(own, state)
            return state
        return {self._names[name]: value for name, value in own.items()}

    def put(self, state: Any, *, strict: bool) -> None:
        set_model_state_dict(self.model, state, options=StateDictOptions(strict=strict))

    def buffer_names(self, state: Mapping[str, Any] | None = None) -> list[str]:
        """Names of saved tensors that are no parameters, such as running statistics. ``state`` is what ``get`` gave."""
        parameters = {_address(parameter) for parameter in self.model.parameters()}
        return [
            name
            for name, value in (self.get() if state is None else state).items()
            if isinstance(value, torch.Tensor) and not isinstance(value, DTensor) and _address(value) not in parameters
        ]

    def shares_buffers(self) -> bool:
        """Whether every forward pass begins with rank 0's buffers, as under DDP's default."""
        return isinstance(self.model, DistributedDataParallel) and self.model.broadcast_buffers


class BuffersPart:
    """Each rank's own buffers of a model that keeps them apart (running statistics that nobody broadcasts)."""

    is_per_rank = True
    is_fixed = False

    def __init__(self, model: ModelPart) -> None:
        self._model = model

    def get(self) -> dict[str, torch.Tensor]:
        state = self._model.get()
        return {name: state[name] for name in self._model.buffer_names()}

    def put(self, state: Any, *, strict: bool) -> None:
        own = self.get()
        with torch.no_grad():
            for name, value in state.items():
                if name in own:
                    own[name].copy_(value)


class OptimizerPart:
    """An optimizer through torch's state-dict API, keyed by parameter names.

    That API fills an empty optimizer by a step with zero gradients, which would count as a step (Adam), leave momentum
    behind (SGD) and call hooks. Neither saving before the first step nor loading needs it, so it is kept from running.
    """

    is_per_rank = False
    is_fixed = False

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self._names: dict[int, str] | None = None

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer itself."""
        return self._optimizer

    def get(self) -> dict[str, Any]:
        own = self._optimizer.state_dict()
        if self._names is None or _parameters(own) != list(self._names):
            with self._no_first_step():
                state = dict(get_optimizer_state_dict(self._model, self._optimizer))
            self._names = dict(zip(_parameters(own), _parameters(state), strict=True))
            # Where torch does more than give names, as for flattened parameters, it goes on doing all of it.
            if not _is_same(_renamed(own, self._names), state):
                self._names = None
            return state
        return _renamed(own, self._names)

    def put(self, state: Any, *, strict: bool) -> None:
        wanted = {name: dict(values) for name, values in state["state"].items()}
        with self._no_first_step():
            # Not strict: a parameter that never had a gradient has no state, and had none when it was saved.
            options = StateDictOptions(strict=False)
            set_optimizer_state_dict(self._model, self._optimizer, state, options=options)
        self._restore_dtypes(wanted)

    def problems(self, state: Any) -> list[tuple[str, str]]:
        """How the saved parameter groups differ from this optimizer's: (missing | unexpected | groups, text)."""
        saved = [list(group["params"]) for group in state["param_groups"]]
        own = [list(group["params"]) for group in self.get()["param_groups"]]
        if len(saved) != len(own):
            return [("groups", f"{len(saved)} parameter groups in the checkpoint, {len(own)} here")]
        found = []
        for number, (old, new) in enumerate(zip(saved, own, strict=True)):
            where = f"parameter group {number}"
            found += [("unexpected", f"{where}: {name} only in the checkpoint") for name in old if name not in new]
            found += [("missing", f"{where}: {name} not in the checkpoint") for name in new if name not in old]
        return found

    def _restore_dtypes(self, wanted: Mapping[str, Mapping[str, Any]]) -> None:
        """Undo load_state_dict's silent cast of state to its parameter's dtype (float32 moments of a bf16 model)."""
        state = self.get()["state"]
        for name, values in wanted.items():
            for key, value in values.items():
                found = state[name][key]
                if isinstance(value, torch.Tensor) and isinstance(found, torch.Tensor) and found.dtype != value.dtype:
                    found.data = value.to(found.device)

    @contextlib.contextmanager
    def _no_first_step(self) -> Iterator[None]:
        if self._optimizer.state:
            yield
            return
        empty = self._optimizer.state
        stand_in: Any = _Initialised(dict)
        self._optimizer.state = stand_in
        try:
            yield
        finally:
            if self._optimizer.state is stand_in:
                self._optimizer.state = empty


class _Initialised(defaultdict[Any, Any]):
    """An empty optimizer state that says it is not, so that nobody fills it."""

    def __bool__(self) -> bool:
        return True


class StatefulPart:
    """Anything with state_dict and load_state_dict: scheduler, gradient scaler, averaged model, sampler, loader."""

    def __init__(self, stateful: Stateful, *, is_per_rank: bool) -> None:
        self.is_per_rank = is_per_rank
        self.is_fixed = isinstance(stateful, torch.nn.Module)
        self._stateful = stateful

    def get(self) -> Any:
        state = self._stateful.state_dict()
        return dict(state) if self.is_fixed else state

    def put(self, state: Any, *, strict: bool) -> None:
        if isinstance(self._stateful, torch.nn.Module):
            self._stateful.load_state_dict(state, strict=strict)
        else:
            self._stateful.load_state_dict(state)


def _address(tensor: torch.Tensor) -> tuple[int, torch.Size]:
    return (0 if isinstance(tensor, DTensor) else tensor.data_ptr()), tensor.shape


def _renaming(own: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, str] | None:
    """The module's own names to those in ``state``; None where ``state`` is not the same tensors under other names."""
    if len(own) != len(state) or not all(_is_same(*pair) for pair in zip(own.values(), state.values(), strict=True)):
        return None
    return dict(zip(own, state, strict=True))


def _parameters(state: Mapping[str, Any]) -> list[Any]:
    """Every parameter that an optimizer's state names in its groups."""
    return [parameter for group in state["param_groups"] for parameter in group["params"]]


def _renamed(own: Mapping[str, Any], names: Mapping[int, str]) -> dict[str, Any]:
    """An optimizer's own state with parameters' names instead of their numbers."""
    return {
        **own,
        "state": {names[number]: values for number, values in own["state"].items()},
        "param_groups": [
            {**group, "params": [names[number] for number in group["params"]]} for group in own["param_groups"]
        ],
    }


def _is_same(one: Any, other: Any) -> bool:
    """Whether two states are one: equal values, and tensors that share their memory."""
    if isinstance(one, torch.Tensor) and type(one) is type(other):
        if isinstance(one, DTensor) and isinstance(other, DTensor):
            return one.placements == other.placements and _is_same(one.to_local(), other.to_local())
        return (one.data_ptr(), one.dtype, one.shape, one.stride()) == (
            other.data_ptr(),
            other.dtype,
            other.shape,
            other.stride(),
        )
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    return type(one) is type(other) and bool(one == other)
