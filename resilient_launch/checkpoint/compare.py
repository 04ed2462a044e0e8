"""How two checkpoints differ, tensor by tensor and entry by entry. Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilient_launch.checkpoint.digest import tensor_digest
from resilient_launch.checkpoint.index import INDEX_NAME, Index, StoredTensor
from resilient_launch.checkpoint.store import OpenCheckpoint, open_checkpoint
from resilient_launch.checkpoint.whole import read_tensor

_INTEGERS = {"uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"}
_FLOATS = {"float16", "float32", "float64", "complex64", "complex128"}


@dataclass(frozen=True, kw_only=True)
class TensorDifference:
    """One tensor that is not the same in both.

    ``kind`` is first only, second only, dtype, shape or values. For values, ``num_different`` elements of
    ``num_elements`` have other bits, and ``max_abs_difference`` is the largest between two finite numbers (None for a
    dtype that is compared by its bits alone, or where no such pair differs).
    """

    key: str
    kind: str
    detail: str
    num_elements: int
    num_different: int | None = None
    max_abs_difference: float | None = None


@dataclass(frozen=True, kw_only=True)
class ValueDifference:
    """One plain value of the state (step, learning rate, position) that is not the same; None where it is absent."""

    place: str
    first: Any
    second: Any


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Everything in which two states differ; ``num_same`` tensors are equal to the bit."""

    num_same: int
    tensors: tuple[TensorDifference, ...]
    values: tuple[ValueDifference, ...]

    @property
    def is_same(self) -> bool:
        return not self.tensors and not self.values


def compare(first: Path, second: Path) -> Comparison:
    """Compare the full, unsharded states of two published checkpoints. Raises CheckpointError where one is damaged."""
    with open_checkpoint(first) as one, open_checkpoint(second) as two:
        indexes = [Index.parse(opened.read(INDEX_NAME)) for opened in (one, two)]
        found, num_same = [], 0
        for key in sorted(indexes[0].tensors.keys() | indexes[1].tensors.keys()):
            difference = _tensor(key, (one, two), (indexes[0].tensors.get(key), indexes[1].tensors.get(key)))
            if difference is None:
                num_same += 1
            else:
                found.append(difference)
        trees = [{"": index.trees, **{f"rank{rank}": own for rank, own in index.ranks.items()}} for index in indexes]
        values = tuple(_values("", trees[0], trees[1]))
    return Comparison(num_same=num_same, tensors=tuple(found), values=values)


def _tensor(
    key: str, opened: tuple[OpenCheckpoint, OpenCheckpoint], stored: tuple[StoredTensor | None, StoredTensor | None]
) -> TensorDifference | None:
    first, second = stored
    if first is None or second is None:
        only = first or second
        assert only is not None
        kind = "first only" if second is None else "second only"
        return TensorDifference(key=key, kind=kind, detail=_form(only), num_elements=only.num_elements)
    for kind, same in (("shape", first.shape == second.shape), ("dtype", first.dtype == second.dtype)):
        if not same:
            detail = f"{_form(first)} | {_form(second)}"
            return TensorDifference(key=key, kind=kind, detail=detail, num_elements=first.num_elements)
    if tensor_digest(opened[0], first) == tensor_digest(opened[1], second):
        return None
    count, largest = _elements(first, read_tensor(opened[0], first), read_tensor(opened[1], second))
    return TensorDifference(
        key=key,
        kind="values",
        detail=_form(first),
        num_elements=first.num_elements,
        num_different=count,
        max_abs_difference=largest,
    )


def _form(tensor: StoredTensor) -> str:
    return f"{tensor.dtype}{list(tensor.shape)}"


def _elements(tensor: StoredTensor, first: bytearray, second: bytearray) -> tuple[int, float | None]:
    """How many elements differ, and the largest difference of two finite numbers."""
    import numpy as np

    item_bytes = len(first) // tensor.num_elements
    bits = [np.frombuffer(data, np.uint8).reshape(-1, item_bytes) for data in (first, second)]
    differing = (bits[0] != bits[1]).any(axis=1)
    count = int(differing.sum())
    if tensor.dtype == "bfloat16":
        # A bfloat16 is the upper half of a float32.
        pair = [(np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32) for data in (first, second)]
    elif tensor.dtype in _INTEGERS | _FLOATS:
        pair = [np.frombuffer(data, np.dtype(tensor.dtype)) for data in (first, second)]
    else:
        return count, None
    wide = complex if tensor.dtype.startswith("complex") else float
    one, two = (each[differing].astype(wide) for each in pair)
    finite = np.isfinite(one) & np.isfinite(two)
    largest = float(np.abs(one[finite] - two[finite]).max()) if finite.any() else None
    return count, largest if largest is None or math.isfinite(largest) else None


def _values(place: str, first: Any, second: Any) -> Iterator[ValueDifference]:
    if isinstance(first, dict) and isinstance(second, dict):
        for name in sorted(first.keys() | second.keys(), key=str):
            yield from _values(f"{place}/{name}" if place else str(name), first.get(name), second.get(name))
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for number, (one, two) in enumerate(zip(first, second, strict=True)):
            yield from _values(f"{place}/{number}", one, two)
    elif first != second or type(first) is not type(second):
        yield ValueDifference(place=place, first=first, second=second)
