"""Saving while training stands still: straight from its own memory into the files, nothing is copied first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from resilient_launch.checkpoint.dcp import StoreWriter, plan_save, report_tensors
from resilient_launch.checkpoint.merging import merge_parts
from resilient_launch.checkpoint.outcomes import Begun
from resilient_launch.checkpoint.store import Digesting, Facts, Published, RankReport, Round, publish


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
    staged = begun.capture

    def write(path: Path) -> RankReport:
        plan, planner = plan_save(staged.tensors, rank=rank, world_size=world_size, pinned=staged.pinned)
        writer = StoreWriter(path, rank=rank, digesting=digesting)
        results = writer.write_data(plan, planner).wait()
        assert writer.entry is not None
        index: dict[str, Any] = {"tensors": report_tensors(results), "own": staged.own}
        return RankReport(files=(writer.entry,), index={**index, "agreement": staged.agreement})

    def merge(parts: list[Any]) -> dict[str, bytes]:
        return merge_parts(parts, staged.trees)

    return publish(
        directory,
        begun.id,
        round_,
        write=write,
        merge=merge,
        facts=facts,
        digesting=digesting,
        without_rename=without_rename,
    )
