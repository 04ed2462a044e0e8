"""Where everything that one rank writes lies in its shard: known before a byte is written, alike for every way to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from resilient_launch.checkpoint.dcp import plan_save
from resilient_launch.checkpoint.index import Chunk, StoredTensor, merge_tensors, tensor_to_json
from resilient_launch.checkpoint.train_state import Capture
from resilient_launch.checkpoint.tree import dtype_name
from resilient_launch.core.errors import CheckpointError

SHARD_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where one tensor, or this rank's block of one, lies in the shard."""

    key: str
    offset: int
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A rank's shard: its places in order, its length, and ``tensors``, its part of the index as JSON."""

    places: tuple[Place, ...]
    num_bytes: int
    tensors: Mapping[str, Any]


def shard_name(rank: int) -> str:
    return f"shard-r{rank:05d}.bin"


def lay_out(capture: Capture, *, rank: int, world_size: int) -> Layout:
    """The shard of ``rank``. Raises CheckpointError for what is not a tensor: nothing is pickled."""
    name, position = shard_name(rank), 0
    places: list[Place] = []
    parts: list[Mapping[str, Any]] = []
    for item in plan_save(capture.tensors, rank=rank, world_size=world_size, pinned=capture.pinned):
        if item.tensor_data is None:
            raise CheckpointError(f"{item.index.fqn} is not a tensor", why="nothing is pickled here")
        tensor = local(capture.tensors[item.index.fqn])
        position += -position % SHARD_ALIGNMENT_BYTES
        place = Place(key=item.index.fqn, offset=position, num_bytes=tensor.numel() * tensor.element_size())
        chunk = Chunk(
            offsets=tuple(item.tensor_data.chunk.offsets),
            sizes=tuple(item.tensor_data.chunk.sizes),
            file=name,
            offset=position,
            num_bytes=place.num_bytes,
        )
        stored = StoredTensor(dtype=dtype_name(tensor.dtype), shape=tuple(item.tensor_data.size), chunks=(chunk,))
        places.append(place)
        parts.append({place.key: tensor_to_json(stored)})
        position += place.num_bytes
    tensors = {key: tensor_to_json(tensor) for key, tensor in merge_tensors(parts).items()}
    return Layout(places=tuple(places), num_bytes=position, tensors=tensors)


def index_part(layout: Layout, capture: Capture) -> dict[str, Any]:
    """What rank 0 must know of a rank to write the index (``merge_parts``), as JSON."""
    return {"tensors": layout.tensors, "own": capture.own, "agreement": capture.agreement}


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's block of a sharded tensor; any other one itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
