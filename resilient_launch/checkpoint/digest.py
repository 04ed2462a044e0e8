"""The digest of a training state: equal for two runs that ended in the same state, however they got there.

Over the full, unsharded state of a published checkpoint: every value, and key, dtype, shape and bytes of every tensor
in key order. Which rank wrote what, attempts, times and metadata do not enter. Needs neither torch nor the model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from resilient_launch.checkpoint.index import INDEX_NAME, Index, StoredTensor
from resilient_launch.checkpoint.store import OpenCheckpoint, open_checkpoint
from resilient_launch.checkpoint.store.hashing import new_hash
from resilient_launch.checkpoint.whole import read_tensor

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
            yield f"tensor {key} {tensor.dtype} {list(tensor.shape)} {tensor_digest(opened, tensor)}"


def _canonical(tree: object) -> str:
    return json.dumps(tree, sort_keys=True, separators=(",", ":"))


def tensor_digest(opened: OpenCheckpoint, tensor: StoredTensor) -> str:
    """Digest of one full tensor's bytes; equal however it was sharded."""
    value = new_hash("xxh3-128")
    if len(tensor.chunks) == 1:
        chunk = tensor.chunks[0]
        for start in range(0, chunk.num_bytes, _PIECE_BYTES):
            count = min(_PIECE_BYTES, chunk.num_bytes - start)
            value.update(opened.reader(chunk.file).read(chunk.offset + start, count))
    else:
        value.update(read_tensor(opened, tensor))
    return value.hexdigest()
