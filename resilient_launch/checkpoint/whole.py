"""A full tensor from the blocks that its ranks wrote. Needs no torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from resilient_launch.checkpoint.index import Chunk, StoredTensor
from resilient_launch.checkpoint.store import OpenCheckpoint


def read_tensor(opened: OpenCheckpoint, tensor: StoredTensor) -> bytearray:
    """The bytes of one full tensor, verified, row-major.

    Blocks are copied run by run of elements that are neighbours in both.
    """
    item_bytes = next((chunk.num_bytes // chunk.num_elements for chunk in tensor.chunks if chunk.num_elements), 0)
    whole = bytearray(tensor.num_elements * item_bytes)
    for chunk in tensor.chunks:
        data = opened.reader(chunk.file).read(chunk.offset, chunk.num_bytes)
        for source, target, count in _runs(chunk, tensor.shape):
            whole[target * item_bytes : (target + count) * item_bytes] = data[
                source * item_bytes : (source + count) * item_bytes
            ]
    return whole


def _runs(chunk: Chunk, shape: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """(element in the block, element in the whole, count) of each run."""
    inner = len(shape)
    while inner > 0 and chunk.sizes[inner - 1] == shape[inner - 1]:
        inner -= 1
    # The dimensions from `inner` on are whole; the one before them is contiguous too.
    outer = max(inner - 1, 0)
    count = math.prod(chunk.sizes[outer:])
    strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    for number, place in enumerate(itertools.product(*(range(size) for size in chunk.sizes[:outer]))):
        corner = [*place, *([0] * (len(shape) - outer))]
        target = sum(
            (offset + step) * stride for offset, step, stride in zip(chunk.offsets, corner, strides, strict=True)
        )
        yield number * count, target, count
