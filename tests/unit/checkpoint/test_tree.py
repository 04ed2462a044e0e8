"""Encoding a state: everything that comes back comes back the same, everything else is refused by name."""

import json
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from resilient_launch.checkpoint.tree import decode, encode, tensor_bytes
from resilient_launch.core.errors import CheckpointError


def round_trip(value: Any) -> Any:
    tensors: dict[str, torch.Tensor] = {}
    tree = json.loads(json.dumps(encode(value, "root", tensors), allow_nan=False))
    return decode(tree, tensors.__getitem__)


def same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and left.shape == right.shape and tensor_bytes(left) == tensor_bytes(right)
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, np.generic):
        return left.dtype == right.dtype and left.tobytes() == right.tobytes()
    if isinstance(left, dict):
        return all(same(a, b) and same(left[a], right[b]) for a, b in zip(left, right, strict=True))
    if isinstance(left, list | tuple | deque):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, float):
        return repr(left) == repr(right)
    return bool(left == right)


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
        | st.tuples(inner, inner)
    ),
    max_leaves=20,
)


@given(values)
def test_plain_values_come_back_the_same(value: Any) -> None:
    assert same(round_trip(value), value)


@pytest.mark.parametrize(
    "value",
    [
        {"$tensor": "not one"},
        {0: "a", "0": "b", None: 1, 1.5: 2, (1, "x"): 3},
        OrderedDict([("b", 1), ("a", 2)]),
        Counter({30: 1, 60: 2}),
        deque([1, 2], maxlen=5),
        {1, 2, 3},
        frozenset({"a", "b"}),
        bytearray(b"abc"),
        complex(1.5, -0.0),
        torch.float16,
        torch.device("cpu"),
        torch.Size([2, 3]),
        np.float32(0.1),
        np.int64(-7),
        np.bool_(True),
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.zeros((0, 3), np.float16),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(5.0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_values_come_back_the_same(value: Any) -> None:
    assert same(round_trip({"x": [value]}), {"x": [value]})


@pytest.mark.parametrize(
    "value",
    [
        lambda: None,
        object(),
        defaultdict(int),
        np.array([None]),
        np.array(["text"]),
        np.datetime64("2020-01-01"),
        torch.eye(2).to_sparse(),
        torch.empty(2, device="meta"),
        type("Words", (str,), {})("x"),
        torch.nn.Linear(1, 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_come_back_is_refused_by_name(value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"root/part/1 is a "):
        encode({"part": [0, value]}, "root", {})


def test_names_with_slashes_do_not_collide() -> None:
    tensors: dict[str, torch.Tensor] = {}
    encode({"a/b": torch.zeros(1), "a": {"b": torch.ones(1)}, "a%2Fb": torch.ones(1)}, "root", tensors)
    assert len(tensors) == 3
    with pytest.raises(CheckpointError, match="have the key"):
        encode({0: torch.zeros(1), "0": torch.zeros(1)}, "root", {})
