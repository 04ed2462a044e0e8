"""The index describes a whole state or says what is missing."""

import contextlib
import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_launch.checkpoint.dcp import assign_owners
from resilient_launch.checkpoint.index import Chunk, Index, StoredTensor, merge_tensors, tensor_to_json
from resilient_launch.checkpoint.store import DamagedError
from resilient_launch.core.errors import CheckpointError

TREE = {"x": {"$tensor": "x"}}


def tensor(*rows: tuple[int, int], shape: tuple[int, ...] = (4, 2), dtype: str = "float32") -> StoredTensor:
    """Blocks of whole rows, each (first, count)."""
    chunks = [
        Chunk(offsets=(at, 0), sizes=(n, 2), file="shard-r00000.bin", offset=0, num_bytes=8 * n) for at, n in rows
    ]
    return StoredTensor(dtype=dtype, shape=shape, chunks=tuple(chunks))


def index(**tensors: StoredTensor) -> Index:
    return Index(tensors=tensors, trees={"part": TREE}, ranks={})


def test_a_whole_state_has_no_problems() -> None:
    whole = index(x=tensor((0, 3), (3, 1)))
    assert whole.problems() == []
    assert Index.parse(whole.render()) == whole


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (index(), "x: no rank wrote it"),
        (index(x=tensor((0, 4)), y=tensor((0, 4))), "y: belongs to no entry"),
        (index(x=tensor((0, 3))), "x: its chunks don't add up"),
        (index(x=tensor((0, 4), (0, 4))), "x: its chunks don't add up"),
        (index(x=tensor((0, 2), (0, 2))), "x: two chunks begin at one place"),
        (index(x=tensor((0, 2), (3, 2))), "x: a chunk reaches outside"),
        (index(x=tensor((1, 4))), "x: a chunk reaches outside"),
        (index(x=tensor((0, 4), shape=(4, 2, 1))), "x: a chunk has another number of dimensions"),
    ],
)
def test_what_is_missing_or_too_much_is_named(broken: Index, problem: str) -> None:
    assert any(found.startswith(problem) for found in broken.problems())
    with pytest.raises(DamagedError, match="inconsistent"):
        Index.parse(broken.render())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"null", b'{"index": 2}', b"\xff"])
def test_nonsense_is_damage(data: bytes) -> None:
    with pytest.raises(DamagedError):
        Index.parse(data)


def test_a_negative_size_is_damage() -> None:
    record = json.loads(index(x=tensor((0, 4))).render())
    # Two of them multiply to as many elements as before.
    record["tensors"]["x"]["shape"] = record["tensors"]["x"]["chunks"][0][1] = [-4, -2]
    with pytest.raises(DamagedError, match="negative size"):
        Index.parse(json.dumps(record).encode())


def test_the_other_byte_order_is_refused() -> None:
    record = json.loads(index(x=tensor((0, 4))).render())
    record["byte_order"] = "big"
    with pytest.raises(CheckpointError, match="big-endian"):
        Index.parse(json.dumps(record).encode())


def test_ranks_that_disagree_about_a_tensor_are_named() -> None:
    parts = [{"x": tensor_to_json(tensor((0, 2)))}, {"x": tensor_to_json(tensor((2, 2), dtype="float16"))}]
    with pytest.raises(CheckpointError, match=r"x is float16\[4, 2\] on rank 1"):
        merge_tensors(parts)


@given(sizes=st.dictionaries(st.text(max_size=3), st.integers(0, 1000), max_size=30), world=st.integers(1, 5))
def test_work_is_shared_evenly(sizes: dict[str, int], world: int) -> None:
    owners = assign_owners(sizes, world)
    assert owners.keys() == sizes.keys()
    loads = [sum(sizes[key] for key in sizes if owners[key] == rank) for rank in range(world)]
    assert max(loads) - min(loads) <= max(sizes.values(), default=0)
    assert owners == assign_owners(dict(reversed(sizes.items())), world)


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just(10**400),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["$tensor", "dtype", "x"]), inner, max_size=3)
    ),
    max_leaves=5,
)
PLACES = [("index",), ("byte_order",), ("tensors",), ("trees",), ("ranks",), ("trees", "part"), ("trees", "part", "x")]
PLACES += [("tensors", "x", key) for key in ("dtype", "shape", "chunks")] + [("tensors", "x")]


@given(st.sampled_from(PLACES), VALUES)
def test_any_value_in_any_place_is_read_or_refused(place: tuple[str, ...], value: Any) -> None:
    record = json.loads(index(x=tensor((0, 4))).render())
    inner = record
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    try:
        Index.parse(json.dumps(record).encode())
    except CheckpointError as error:
        assert error.where == "INDEX.json" or "endian" in error.what


@given(st.integers(0, 4), VALUES | st.sampled_from([float("inf"), float("nan"), [float("inf")]]))
def test_any_value_in_a_chunk_is_read_or_refused(at: int, value: Any) -> None:
    record = json.loads(index(x=tensor((0, 4))).render())
    record["tensors"]["x"]["chunks"][0][at] = value
    try:
        Index.parse(json.dumps(record).encode())
    except DamagedError as error:
        assert error.where == "INDEX.json"


@pytest.mark.parametrize("depth", [800, 990, 200_000])
def test_depth_is_read_or_refused(depth: int) -> None:
    tree = "[" * depth + "]" * depth
    data = f'{{"index":1,"byte_order":"{sys.byteorder}","tensors":{{}},"ranks":{{}},"trees":{{"a":{tree}}}}}'
    with contextlib.suppress(DamagedError):
        Index.parse(data.encode())
