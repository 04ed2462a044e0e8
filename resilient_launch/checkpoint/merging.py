"""What rank 0 makes of all ranks' parts of a save: one index, after a check that the ranks agree. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from resilient_launch.checkpoint.index import INDEX_NAME, Index, merge_tensors
from resilient_launch.core.errors import CheckpointError


def merge_parts(parts: Sequence[Mapping[str, Any]], trees: Mapping[str, Any]) -> dict[str, bytes]:
    """The files that belong beside the shards. ``parts`` is, by rank, tensors, own (trees) and agreement.

    Raises CheckpointError when the parts don't make one whole state.
    """
    _check_agreement([part["agreement"] for part in parts])
    index = Index(
        tensors=merge_tensors([part["tensors"] for part in parts]),
        trees=trees,
        ranks={rank: part["own"] for rank, part in enumerate(parts)},
    )
    if problems := index.problems():
        raise CheckpointError("the ranks' parts don't make a whole state", why="; ".join(problems[:10]))
    return {INDEX_NAME: index.render()}


def _check_agreement(agreements: list[Mapping[str, str]]) -> None:
    """Entries that are saved once must be the same everywhere, or a resume would give one rank another's state."""
    first = agreements[0]
    for rank, other in enumerate(agreements):
        if differing := sorted(name for name in first.keys() | other.keys() if first.get(name) != other.get(name)):
            raise CheckpointError(
                f"ranks 0 and {rank} have different {', '.join(differing)}",
                why="an entry that is not per rank is saved once, for all of them",
                hint="name it in TrainState(per_rank=...), or find out why the ranks drifted apart",
            )
