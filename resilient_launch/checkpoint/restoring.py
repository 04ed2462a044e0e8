"""Restoring a state on all ranks: from the nodes' memory where that is as good, else the newest that verifies."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from resilient_launch.checkpoint.background.memory_tier import Here, read_newest_snapshot
from resilient_launch.checkpoint.background.saving import Background
from resilient_launch.checkpoint.comparing import Expectations
from resilient_launch.checkpoint.dcp import read_tensors
from resilient_launch.checkpoint.index import INDEX_NAME, Index
from resilient_launch.checkpoint.outcomes import Origin, Restored, Tier
from resilient_launch.checkpoint.store import (
    Lineage,
    Manifest,
    OpenCheckpoint,
    Round,
    Standing,
    Verdict,
    load,
    published,
)
from resilient_launch.checkpoint.train_state import Loaded, TrainState
from resilient_launch.core.errors import CheckpointError
from resilient_launch.core.ids import CheckpointId

_LOG = logging.getLogger(__name__)
_Read = tuple[Loaded, list[str]]


@dataclass(kw_only=True)
class Restorer:
    """One rank's part of restores. ``start`` begins a round of the given name.

    ``verdicts`` and ``origin`` tell of the last restore, also where it found nothing.
    """

    directory: Path
    lineage: Lineage
    expectations: Expectations
    here: Here
    start: Callable[[str], Round]
    prepare: Callable[[], None]
    verdicts: tuple[Verdict, ...] = ()
    origin: Origin = field(default_factory=Origin)

    def restore(self, state: TrainState, allow: frozenset[str], background: Background | None) -> Restored | None:
        """See ``Checkpointer.restore``."""
        self.verdicts, self.origin = (), Origin()
        if (found := self._from_memory(state, allow, background)) is not None:
            return found
        round_ = self.start("load")
        self.prepare()

        def read(checkpoint: OpenCheckpoint) -> _Read:
            return self._read(state, allow, checkpoint, Index.parse(checkpoint.read(INDEX_NAME)))

        choice = load(self.directory, self.lineage, round_, read)
        self.verdicts = choice.verdicts
        for verdict in choice.verdicts:
            if verdict.standing is not Standing.CHOSEN:
                _LOG.warning("checkpoint %s is %s: %s", verdict.name, verdict.standing, verdict.why)
        if choice.manifest is None or choice.value is None:
            return None
        return self._put_back(state, choice.manifest, *choice.value)

    def _from_memory(self, state: TrainState, allow: frozenset[str], background: Background | None) -> Restored | None:
        """What earlier worker groups of this attempt have left in memory, where it is as good as shared storage's."""
        if background is None or not background.is_outlived or self.here.restart == 0:
            return None
        on_storage: set[CheckpointId] = set()
        lineage = self.lineage

        def newest_shared() -> CheckpointId | None:
            try:
                on_storage.update(published(self.directory))
            except CheckpointError as error:
                # It may be out of reach just now, and a restart from memory does not need it.
                _LOG.warning("can't list the checkpoints: %s", error)
            good = [each for each in on_storage if lineage.admits(each) and str(each) not in lineage.passed_over]
            return max(good, default=None)

        round_ = self.start("memory")
        with round_.failing():
            found = read_newest_snapshot(
                background,
                self.here,
                round_,
                newest_shared=newest_shared,
                passed_over=lineage.passed_over,
                read=lambda opened, index: self._read(state, allow, opened, index),
            )
        if found.manifest is None or found.value is None:
            self.origin = Origin(why=found.why)
            return None
        # Rank 0 alone has looked at the storage.
        is_durable = bool(round_.share("is durable", found.manifest.id in on_storage))
        self.origin = Origin(tier=Tier.LOCAL, why=found.why, is_durable=is_durable)
        return self._put_back(state, found.manifest, *found.value)

    def _read(self, state: TrainState, allow: frozenset[str], checkpoint: OpenCheckpoint, index: Index) -> _Read:
        """What of a checkpoint this rank needs, verified and not yet applied, and what to warn of."""
        rank, world_size = self.here.rank, self.here.world_size
        current = state.capture(rank, world_size)
        warnings = self.expectations.compare(checkpoint.manifest, current.layout)
        destinations = state.destinations(index, current, rank=rank, world_size=world_size, allow=allow)
        read_tensors(checkpoint, index, destinations)
        return Loaded(index=index, tensors=destinations, allow=allow), warnings

    def _put_back(self, state: TrainState, manifest: Manifest, loaded: Loaded, warnings: list[str]) -> Restored:
        warnings = warnings + state.load(loaded, rank=self.here.rank, world_size=self.here.world_size)
        for warning in warnings:
            _LOG.warning("%s", warning)
        return Restored(
            id=manifest.id, step=state.step, manifest=manifest, verdicts=self.verdicts, warnings=tuple(warnings)
        )
