"""A training state seen from outside: a digest for each of its pieces, and a piece put back as it was when fresh."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from resilient_launch.checkpoint.index import tensor_keys
from resilient_launch.checkpoint.store.hashing import new_hash

if TYPE_CHECKING:
    from resilient_launch.checkpoint.arrays import ArrayState
    from resilient_launch.checkpoint.train_state import TrainState

STEP = "step"
"""The count of completed steps, as a piece."""
_SPLIT = "rng"
"""The piece whose members have digests of their own: which generator moved says who drew from it."""


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """Digests of a state on one rank: ``parts`` by piece, ``tensors`` by key."""

    parts: Mapping[str, str]
    tensors: Mapping[str, str]


def fingerprint(state: TrainState | ArrayState, rank: int = 0, world_size: int = 1) -> Fingerprint:
    """Digests of all that a save of ``state`` would write, on this rank. Changes and draws nothing."""
    entries, tensors = _entries(state, rank, world_size)
    digests = {key: _digest(data) for key, data in tensors.items()}
    parts: dict[str, str] = {}
    for name, tree in entries.items():
        split = tree if name == _SPLIT and isinstance(tree, dict) and "$tensor" not in tree else None
        members = {f"{name}.{key}": member for key, member in split.items()} if split else {name: tree}
        for member, content in members.items():
            text = json.dumps(content, sort_keys=True) + "".join(digests[key] for key in tensor_keys(content))
            parts[member] = _digest(text.encode())
    return Fingerprint(parts=parts, tensors=digests)


def pieces(state: TrainState | ArrayState, world_size: int = 1) -> list[str]:
    """The pieces of ``state`` that can be left out of a restore, the step count last."""
    if _has_arrays(state):
        return [*dict.fromkeys(name.split("/")[0] for name in state.arrays()), *state.values(), STEP]
    return [*_whole(state).parts(world_size), STEP]


def take(state: TrainState | ArrayState, piece: str, world_size: int = 1) -> Any:
    """A copy of one piece as it is now, for ``put_back``."""
    if piece == STEP:
        return state.step
    if _has_arrays(state):
        arrays = {name: array.copy() for name, array in state.arrays().items() if name.split("/")[0] == piece}
        return arrays, copy.deepcopy({name: value for name, value in state.values().items() if name == piece})
    return copy.deepcopy(_whole(state).parts(world_size)[piece].get())


def put_back(state: TrainState | ArrayState, piece: str, taken: Any, world_size: int = 1) -> None:
    """Undo for one piece what happened since it was taken."""
    if piece == STEP:
        state.step = taken
    elif _has_arrays(state):
        arrays, values = taken
        state.put({**state.arrays(), **arrays}, {**state.values(), **values})
    else:
        _whole(state).parts(world_size)[piece].put(taken, strict=False)


def _has_arrays(state: TrainState | ArrayState) -> TypeGuard[ArrayState]:
    return hasattr(state, "arrays")


def _whole(state: TrainState | ArrayState) -> TrainState:
    return cast("TrainState", state)


def _entries(
    state: TrainState | ArrayState, rank: int, world_size: int
) -> tuple[dict[str, Any], dict[str, bytes | memoryview]]:
    if _has_arrays(state):
        arrays = state.arrays()
        trees: dict[str, Any] = {}
        for name in arrays:
            trees.setdefault(name.split("/")[0], []).append({"$tensor": name})
        return {**trees, **state.values()}, {name: array.tobytes() for name, array in arrays.items()}
    from resilient_launch.checkpoint.layout import local
    from resilient_launch.checkpoint.tree import tensor_bytes

    captured = _whole(state).capture(rank, world_size)
    own = {key: local(each) for key, each in captured.tensors.items()}
    entries = {name: tree for name, tree in {**captured.trees, **captured.own}.items() if name != "train"}
    return entries, {key: tensor_bytes(each) for key, each in own.items()}


def _digest(data: bytes | memoryview) -> str:
    value = new_hash("xxh3-128")
    value.update(data)
    return value.hexdigest()
