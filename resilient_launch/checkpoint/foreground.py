"""Saving while training stands still: straight from its own memory into the files, nothing is copied first."""

from __future__ import annotations

from pathlib import Path

from resilient_launch.checkpoint.layout import SHARD_ALIGNMENT_BYTES, index_part, lay_out, local, shard_name
from resilient_launch.checkpoint.merging import merge_parts
from resilient_launch.checkpoint.outcomes import Begun
from resilient_launch.checkpoint.store import Digesting, Facts, FileEntry, Published, Round, publish
from resilient_launch.checkpoint.tree import tensor_bytes


def publish_now(
    directory: Path,
    begun: Begun,
    round_: Round,
    facts: Facts,
    digesting: Digesting,
    *,
    rank: int,
    world_size: int,
    without_rename: bool,
) -> Published:
    """Write and publish together with the round's other ranks. Raises what ``publish`` raises."""
    capture = begun.capture
    layout = lay_out(capture, rank=rank, world_size=world_size)

    def write(path: Path) -> list[FileEntry]:
        with digesting.writer(path, shard_name(rank)) as file:
            for place in layout.places:
                file.align(SHARD_ALIGNMENT_BYTES)
                file.write(tensor_bytes(local(capture.tensors[place.key]).detach()))
            return [file.finish()]

    return publish(
        directory,
        begun.id,
        round_,
        part=index_part(layout, capture),
        merge=lambda parts: merge_parts(parts, capture.trees),
        write=write,
        facts=facts,
        digesting=digesting,
        without_rename=without_rename,
    )
