"""torch.distributed.checkpoint's planners over our files: what each rank writes, and a StorageReader.

One shard file per rank with raw row-major bytes; where each lies is in our own JSON index, never in a pickle. Nothing
here communicates.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader
from torch.distributed.tensor import DTensor
from torch.futures import Future

from resilient_launch.checkpoint.index import Chunk, Index, StoredTensor
from resilient_launch.checkpoint.store import OpenCheckpoint
from resilient_launch.checkpoint.tree import dtype_of, tensor_bytes
from resilient_launch.core.errors import CheckpointError


def assign_owners(sizes: Mapping[str, int], world_size: int) -> dict[str, int]:
    """Which rank writes each replicated tensor: largest first, each to the rank with the least to write so far.

    A function of its arguments alone, so that every rank knows the whole assignment without a word.
    """
    loads = [(0, rank) for rank in range(world_size)]
    owners = {}
    for key in sorted(sizes, key=lambda key: (-sizes[key], key)):
        load, rank = heapq.heappop(loads)
        owners[key] = rank
        heapq.heappush(loads, (load + sizes[key], rank))
    return owners


def plan_save(
    tensors: Mapping[str, torch.Tensor], *, rank: int, world_size: int, pinned: Collection[str]
) -> list[WriteItem]:
    """This rank's part of a save: its shards, its own tensors, and its portion of the replicated ones.

    ``pinned`` keys are replicated ones that rank 0 must write. Keys that begin with ``rank<r>/`` are that rank's own.
    """
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(tensors), is_coordinator=rank == 0)
    plan = planner.create_local_plan()
    own = f"rank{rank}/"
    shared = {
        key: tensor.numel() * tensor.element_size()
        for key, tensor in tensors.items()
        if not isinstance(tensor, DTensor) and not key.startswith(own) and key not in pinned
    }
    owners = assign_owners(shared, world_size)

    def is_mine(item: WriteItem) -> bool:
        key = item.index.fqn
        if item.type is WriteItemType.SHARD:
            return _is_first_replica(tensors[key])
        return key.startswith(own) or owners.get(key, 0) == rank

    return [item for item in plan.items if is_mine(item)]


class StoreReader(StorageReader):
    """Reads tensors of an open checkpoint; every byte is verified before it counts. Works with dcp.load as well."""

    def __init__(self, checkpoint: OpenCheckpoint, index: Index) -> None:
        self._checkpoint, self._index = checkpoint, index

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        pass

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return Metadata(
            state_dict_metadata={
                key: TensorStorageMetadata(
                    properties=TensorProperties(dtype=dtype_of(stored.dtype)),
                    size=torch.Size(stored.shape),
                    chunks=[
                        ChunkStorageMetadata(offsets=torch.Size(chunk.offsets), sizes=torch.Size(chunk.sizes))
                        for chunk in stored.chunks
                    ],
                )
                for key, stored in self._index.tensors.items()
            }
        )

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        placed = [(self._chunk(item), item, planner.resolve_tensor(item).detach()) for item in plan.items]
        whole: dict[str, list[tuple[int, memoryview]]] = {}
        rest = []
        for chunk, item, target in placed:
            if item.type is not LoadItemType.TENSOR:
                raise CheckpointError(f"{item.storage_index.fqn} is not a tensor", why="this reader unpickles nothing")
            if self._is_whole(chunk, item, target):
                whole.setdefault(chunk.file, []).append((chunk.offset, tensor_bytes(target)))
            else:
                rest.append((chunk, item, target))
        for file, pieces in whole.items():
            self._checkpoint.reader(file).read_scattered(pieces)
        # In file order, so that each chunk of a file is read and hashed once.
        for chunk, item, target in sorted(rest, key=lambda each: (each[0].file, each[0].offset)):
            self._read(chunk, item, target)
        for _, item, target in placed:
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return Path(checkpoint_id).is_dir()

    def _chunk(self, item: ReadItem) -> Chunk:
        chunks = self._index.tensors[item.storage_index.fqn].chunks
        return next(chunk for chunk in chunks if chunk.offsets == tuple(item.storage_index.offset or ()))

    def _is_whole(self, chunk: Chunk, item: ReadItem, target: torch.Tensor) -> bool:
        """Whether the stored block lies in ``target``'s memory just as it lies in the file."""
        return (
            tuple(item.lengths) == chunk.sizes
            and target.is_contiguous()
            and target.device.type == "cpu"
            and target.dtype == self._dtype(item)
        )

    def _dtype(self, item: ReadItem) -> torch.dtype:
        return dtype_of(self._index.tensors[item.storage_index.fqn].dtype)

    def _read(self, chunk: Chunk, item: ReadItem, target: torch.Tensor) -> None:
        """Fill ``target`` with a block of a stored chunk, reading the rows that the block lies in."""
        lengths, starts = tuple(item.lengths), tuple(item.storage_offsets)
        rows = lengths[:1] + chunk.sizes[1:]
        skipped = starts[0] * (chunk.num_bytes // chunk.sizes[0]) if starts else 0
        buffer = torch.empty(rows, dtype=self._dtype(item))
        self._checkpoint.reader(chunk.file).read_into(chunk.offset + skipped, tensor_bytes(buffer))
        for dim in range(1, len(lengths)):
            buffer = buffer.narrow(dim, starts[dim], lengths[dim])
        target.copy_(buffer)


def read_tensors(checkpoint: OpenCheckpoint, index: Index, destinations: Mapping[str, torch.Tensor]) -> None:
    """Fill every destination, sharded or whole, with its tensor of the checkpoint."""
    whole: dict[str, list[tuple[int, memoryview]]] = {}
    rest: dict[str, torch.Tensor] = {}
    for key, target in destinations.items():
        stored = index.tensors.get(key)
        # Most tensors lie in the file as they lie in memory: no planner has to cut them up.
        if stored is not None and _lies_alike(stored, target):
            (chunk,) = stored.chunks
            whole.setdefault(chunk.file, []).append((chunk.offset, tensor_bytes(target.detach())))
        else:
            rest[key] = target
    for file, pieces in whole.items():
        checkpoint.reader(file).read_scattered(pieces)
    if rest:
        reader = StoreReader(checkpoint, index)
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(rest, reader.read_metadata(), is_coordinator=False)
        reader.read_data(planner.create_local_plan(), planner).wait()


def _lies_alike(stored: StoredTensor, target: torch.Tensor) -> bool:
    return (
        not isinstance(target, DTensor)
        and len(stored.chunks) == 1
        and stored.shape == tuple(target.shape)
        and dtype_of(stored.dtype) == target.dtype
        and target.device.type == "cpu"
        and target.is_contiguous()
    )


def _is_first_replica(tensor: torch.Tensor) -> bool:
    """Whether this rank holds the copy of its block that is written: the first along every replicated mesh axis."""
    assert isinstance(tensor, DTensor)
    if tensor.to_local().numel() == 0 and tensor.numel() > 0:
        return False
    coordinate = tensor.device_mesh.get_coordinate() or ()
    return all(
        place == 0 for place, placement in zip(coordinate, tensor.placements, strict=True) if placement.is_replicate()
    )
