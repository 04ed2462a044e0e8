"""The digest of a training state: equal for two runs that ended in the same state, however they got there.

Over the full, unsharded state of a published checkpoint: every value, and key, dtype, shape and bytes of every tensor
in key order. Which rank wrote what, attempts, times and metadata do not enter. Needs neither torch nor the model.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path

from resilient_launch.checkpoint.index import INDEX_NAME, Chunk, Index, StoredTensor
from resilient_launch.checkpoint.store import OpenCheckpoint, open_checkpoint
from resilient_launch.checkpoint.store.hashing import new_hash

_PIECE_BYTES = 16 << 20


def state_digest(checkpoint: Path) -> str:
    """Digest of the state in one published checkpoint's directory, 64 hexadecimal digits.

    Raises DamagedError or UnreadableError where the checkpoint does not verify.
    """
    value = hashlib.sha256()
    for line in state_lines(checkpoint):
        value.update(line.encode() + b"\n")
    return value.hexdigest()


def state_lines(checkpoint: Path) -> Iterator[str]:
    """What the digest is over, a line for every entry and every tensor: two states' lines show where they differ."""
    with open_checkpoint(checkpoint) as opened:
        index = Index.parse(opened.read(INDEX_NAME))
        for name, tree in sorted(index.trees.items()):
            yield f"entry {name} {_canonical(tree)}"
        for rank, trees in sorted(index.ranks.items()):
            for name, tree in sorted(trees.items()):
                yield f"rank {rank} {name} {_canonical(tree)}"
        for key, tensor in sorted(index.tensors.items()):
            yield f"tensor {key} {tensor.dtype} {list(tensor.shape)} {_tensor_digest(opened, tensor)}"


def _canonical(tree: object) -> str:
    return json.dumps(tree, sort_keys=True, separators=(",", ":"))


def _tensor_digest(opened: OpenCheckpoint, tensor: StoredTensor) -> str:
    value = new_hash("xxh3-128")
    if len(tensor.chunks) == 1:
        chunk = tensor.chunks[0]
        for start in range(0, chunk.num_bytes, _PIECE_BYTES):
            count = min(_PIECE_BYTES, chunk.num_bytes - start)
            value.update(opened.reader(chunk.file).read(chunk.offset + start, count))
    else:
        value.update(_assemble(opened, tensor))
    return value.hexdigest()


def _assemble(opened: OpenCheckpoint, tensor: StoredTensor) -> bytearray:
    """The whole tensor from its blocks, copied run by run of elements that are neighbours in both."""
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
