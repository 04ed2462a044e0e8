"""INDEX.json: which tensor lies where, and everything of the state that is not a tensor. No torch is needed to read it.

tensors   key -> dtype, full shape, and chunks: a block of the full tensor and its place in a shard file
trees     entry -> the state's structure as JSON, tensors standing as {"$tensor": key}
ranks     rank -> the same for what each rank has of its own (random generators, its data position)
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from resilient_launch.checkpoint.store import DamagedError
from resilient_launch.core.errors import CheckpointError

INDEX_NAME = "INDEX.json"
_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A block of a tensor (``offsets``, ``sizes`` in elements), row-major at ``offset`` bytes in ``file``."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    offset: int
    num_bytes: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.sizes)


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """A tensor of the full, unsharded state. ``dtype`` is torch's name without the module."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class Index:
    """The whole index of one checkpoint."""

    tensors: Mapping[str, StoredTensor]
    trees: Mapping[str, Any]
    ranks: Mapping[int, Mapping[str, Any]]

    def render(self) -> bytes:
        record = {
            "index": _VERSION,
            "byte_order": sys.byteorder,
            "tensors": {key: tensor_to_json(tensor) for key, tensor in sorted(self.tensors.items())},
            "trees": self.trees,
            "ranks": {str(rank): trees for rank, trees in sorted(self.ranks.items())},
        }
        return json.dumps(record, separators=(",", ":"), allow_nan=False).encode()

    @classmethod
    def parse(cls, data: bytes) -> Index:
        """Raises DamagedError for what no writer of ours wrote, CheckpointError for the other byte order."""
        try:
            record = json.loads(data)
            if record["index"] != _VERSION:
                raise ValueError(f"index version {record['index']!r}")
            byte_order = record["byte_order"]
            index = cls(
                tensors={key: tensor_from_json(tensor) for key, tensor in record["tensors"].items()},
                trees=dict(record["trees"]),
                ranks={int(rank): dict(trees) for rank, trees in record["ranks"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise DamagedError("checkpoint index is damaged", why=f"{error}", where=INDEX_NAME) from error
        if byte_order != sys.byteorder:
            raise CheckpointError(f"checkpoint was written on a {byte_order}-endian machine", where=INDEX_NAME)
        if problems := index.problems():
            raise DamagedError("checkpoint index is inconsistent", why="; ".join(problems[:10]), where=INDEX_NAME)
        return index

    def problems(self) -> list[str]:
        """What keeps this index from describing a whole state: holes, overlaps, names without a tensor and back."""
        found = [f"{key}: {why}" for key, tensor in self.tensors.items() for why in _coverage(tensor)]
        wanted = {key for tree in self._all_trees() for key in tensor_keys(tree)}
        found += [f"{key}: no rank wrote it" for key in sorted(wanted - self.tensors.keys())]
        found += [f"{key}: belongs to no entry" for key in sorted(self.tensors.keys() - wanted)]
        return found

    def _all_trees(self) -> Iterator[Any]:
        yield from self.trees.values()
        for trees in self.ranks.values():
            yield from trees.values()


def merge_tensors(parts: list[Mapping[str, Any]]) -> dict[str, StoredTensor]:
    """Join what each rank wrote of each tensor. Raises CheckpointError where two ranks disagree about one."""
    merged: dict[str, StoredTensor] = {}
    for rank, part in enumerate(parts):
        for key, record in part.items():
            tensor = tensor_from_json(record)
            known = merged.get(key)
            if known is None:
                merged[key] = tensor
            elif (known.dtype, known.shape) == (tensor.dtype, tensor.shape):
                chunks = known.chunks + tensor.chunks
                merged[key] = StoredTensor(dtype=known.dtype, shape=known.shape, chunks=chunks)
            else:
                raise CheckpointError(
                    f"{key} is {tensor.dtype}{list(tensor.shape)} on rank {rank}",
                    why=f"and {known.dtype}{list(known.shape)} on another",
                )
    return merged


def tensor_keys(tree: Any) -> Iterator[str]:
    """Every tensor that a JSON tree refers to."""
    if isinstance(tree, dict):
        if isinstance(key := tree.get("$tensor"), str):
            yield key
            return
        for value in tree.values():
            yield from tensor_keys(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from tensor_keys(value)


def tensor_to_json(tensor: StoredTensor) -> dict[str, Any]:
    return {
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "chunks": [
            [list(chunk.offsets), list(chunk.sizes), chunk.file, chunk.offset, chunk.num_bytes]
            for chunk in tensor.chunks
        ],
    }


def tensor_from_json(record: Mapping[str, Any]) -> StoredTensor:
    return StoredTensor(
        dtype=str(record["dtype"]),
        shape=_sizes(record["shape"]),
        chunks=tuple(
            Chunk(offsets=_sizes(offsets), sizes=_sizes(sizes), file=str(file), offset=int(at), num_bytes=int(count))
            for offsets, sizes, file, at, count in record["chunks"]
        ),
    )


def _sizes(values: Any) -> tuple[int, ...]:
    sizes = tuple(map(int, values))
    if sizes and min(sizes) < 0:
        raise ValueError(f"negative size in {sizes}")
    return sizes


def _coverage(tensor: StoredTensor) -> Iterator[str]:
    rank = len(tensor.shape)
    if len(tensor.chunks) == 1 and tensor.chunks[0].sizes == tensor.shape and tensor.chunks[0].offsets == (0,) * rank:
        # Nearly all are written whole.
        return
    if any(len(chunk.offsets) != rank or len(chunk.sizes) != rank for chunk in tensor.chunks):
        yield "a chunk has another number of dimensions"
        return
    if any(
        offset + size > full
        for chunk in tensor.chunks
        for offset, size, full in zip(chunk.offsets, chunk.sizes, tensor.shape, strict=True)
    ):
        yield "a chunk reaches outside"
    # Equal counts and distinct corners leave no room for an overlap without a hole in regular shardings.
    if sum(chunk.num_elements for chunk in tensor.chunks) != tensor.num_elements:
        yield "its chunks don't add up to the whole"
    if len({chunk.offsets for chunk in tensor.chunks}) != len(tensor.chunks):
        yield "two chunks begin at one place"
