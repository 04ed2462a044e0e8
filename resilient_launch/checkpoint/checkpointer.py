"""The face of the checkpoint room: save and restore a TrainState, on one rank or on all of them together."""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

import resilient_launch
from resilient_launch.checkpoint.dcp import StoreWriter, plan_save, read_tensors, report_tensors
from resilient_launch.checkpoint.index import INDEX_NAME, Index, merge_tensors
from resilient_launch.checkpoint.store import (
    Board,
    Digesting,
    Facts,
    Lineage,
    LocalBoard,
    Manifest,
    OpenCheckpoint,
    Published,
    RankReport,
    Rounds,
    Standing,
    Verdict,
    described,
    fence,
    load,
    prune,
    publish,
    sweep,
)
from resilient_launch.checkpoint.train_state import Capture, Loaded, TrainState
from resilient_launch.core.errors import CheckpointError, UsageError
from resilient_launch.core.ids import CheckpointId
from resilient_launch.policy.retention import Policy, newest

OnChange = Literal["error", "warn"]
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SaveReport:
    """One finished save. ``staged_s`` is how long training was held up, ``durable_s`` how long until it was safe."""

    id: CheckpointId
    num_bytes: int
    staged_s: float
    durable_s: float
    pruned: tuple[CheckpointId, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Restored:
    """What training goes on from. ``verdicts`` tell, newest first, why newer checkpoints were not chosen."""

    id: CheckpointId
    step: int
    manifest: Manifest
    verdicts: tuple[Verdict, ...]
    warnings: tuple[str, ...]


class Checkpointer:
    """Saves to and restores from one run's checkpoints directory; made alike on every rank.

    ``board`` carries all coordination and must be shared by the ranks, with a prefix of its own for every checkpointer
    that uses one store; one rank alone needs none. ``attempt`` and
    ``restart`` (worker-group restart) name the checkpoints and must be new for every start of the training. ``allowed``
    are the checkpoints listed by the attempt's claim; None admits all that exist, and ``passed_over`` are not
    to be resumed from although they are sound. ``keep`` is how many to keep, or a retention policy, which may go by
    ``metrics``: what they say at a save is saved with it. ``save_timeout_s``
    bounds one save on every rank, ``load_timeout_s`` one restore.

    A world size or layout other than the checkpoint's, and a code version other than the checkpoint's, raise or warn
    as ``on_topology_change`` and ``on_code_change`` say; ``allow`` are other
    kinds of difference to accept; a code version that is empty on either side is not compared.

    Not for several threads at once. Every rank must make the same calls in the same order.
    """

    def __init__(
        self,
        directory: Path,
        *,
        run_id: str = "",
        attempt: int = 0,
        restart: int = 0,
        rank: int = 0,
        world_size: int = 1,
        board: Board | None = None,
        code_version: str = "",
        keep: int | Policy = 2,
        allowed: Collection[str] | None = None,
        passed_over: Collection[str] = (),
        metrics: Mapping[str, float] | None = None,
        save_timeout_s: float = 600.0,
        load_timeout_s: float = 1800.0,
        on_topology_change: OnChange = "error",
        on_code_change: OnChange = "error",
        allow: Collection[str] = (),
        digesting: Digesting | None = None,
    ) -> None:
        if board is None and world_size > 1:
            raise UsageError("a checkpointer of several ranks without a board", hint="give a StoreBoard to each")
        self._directory = directory
        self._run_id, self._attempt, self._restart = run_id, attempt, restart
        self._rank, self._world_size = rank, world_size
        self._code_version = code_version
        self._policy = newest(keep) if isinstance(keep, int) else keep
        self._allowed = None if allowed is None else frozenset(allowed)
        self._passed_over = passed_over
        self._save_timeout_s, self._load_timeout_s = save_timeout_s, load_timeout_s
        self._on_topology_change, self._on_code_change = on_topology_change, on_code_change
        self._allow = frozenset(allow)
        self._digesting = digesting or Digesting()
        self._rounds = Rounds(board or LocalBoard(), rank=rank, world_size=world_size)
        self._last_round: dict[str, tuple[int, int]] = {}
        self._verdicts: tuple[Verdict, ...] = ()
        self._is_prepared = False
        self._metrics = metrics if metrics is not None else {}
        self._trained_before_s = 0.0
        self._started = time.monotonic()
        self._verified: set[CheckpointId] = set()
        self._resumed_from: CheckpointId | None = None
        self._last_saved: CheckpointId | None = None

    @property
    def resumed_from(self) -> CheckpointId | None:
        """The checkpoint that ``restore`` loaded; retention never removes it."""
        return self._resumed_from

    @property
    def last_saved(self) -> CheckpointId | None:
        """The newest checkpoint that this object made durable."""
        return self._last_saved

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """What the last ``restore`` made of each checkpoint that it looked at, also where none was left."""
        return self._verdicts

    def save(
        self,
        state: TrainState,
        *,
        reason: str = "",
        metadata: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> SaveReport:
        """Save ``state`` as the checkpoint of its step, together with all ranks; returns when it is durable.

        Raises CheckpointError on every rank when any of them failed: nothing is published then, and the next save
        works. Raises FencedError when a newer attempt has taken over the run. ``timeout_s`` replaces the configured
        bound for this one save.
        """
        started = time.monotonic()
        self._prepare()
        ident = CheckpointId(attempt=self._attempt, restart=self._restart, step=state.step)
        staged = self._stage(state)
        published = self._write_and_commit(ident, staged, self._facts(staged, reason, metadata or {}), timeout_s)
        elapsed_s = time.monotonic() - started
        self._last_saved = ident
        self._verified.add(ident)
        pruned = self._prune() if self._rank == 0 else ()
        return SaveReport(
            id=ident, num_bytes=published.num_bytes, staged_s=elapsed_s, durable_s=elapsed_s, pruned=pruned
        )

    def restore(self, state: TrainState, *, allow: Collection[str] = ()) -> Restored | None:
        """Load the newest checkpoint that verifies into ``state``; None, and ``state`` untouched, where there is none.

        Every rank verifies what it reads and a share of the rest before anything is applied. Damage sends a checkpoint
        to quarantine and the next older one is tried. Raises CheckpointError for a checkpoint that is sound but does
        not fit: ``allow`` may name the kinds of difference to accept (missing, unexpected, shape, dtype).
        """
        allowed = self._allow | frozenset(allow)
        round_ = self._rounds.start(self._round_name("load"), self._load_timeout_s)
        self._prepare()

        def read(checkpoint: OpenCheckpoint) -> tuple[Loaded, list[str]]:
            index = Index.parse(checkpoint.read(INDEX_NAME))
            current = state.capture(self._rank, self._world_size)
            warnings = self._compare(checkpoint.manifest, current.layout)
            destinations = state.destinations(
                index, current, rank=self._rank, world_size=self._world_size, allow=allowed
            )
            read_tensors(checkpoint, index, destinations)
            return Loaded(index=index, tensors=destinations, allow=allowed), warnings

        lineage = Lineage(
            run_id=self._run_id, attempt=self._attempt, allowed=self._allowed, passed_over=self._passed_over
        )
        choice = load(self._directory, lineage, round_, read)
        self._verdicts = choice.verdicts
        for verdict in choice.verdicts:
            if verdict.standing is not Standing.CHOSEN:
                _LOG.warning("checkpoint %s is %s: %s", verdict.name, verdict.standing, verdict.why)
        if choice.manifest is None or choice.value is None:
            return None
        loaded, warnings = choice.value
        warnings += state.load(loaded, rank=self._rank, world_size=self._world_size)
        for warning in warnings:
            _LOG.warning("%s", warning)
        manifest = choice.manifest
        self._resumed_from = manifest.id
        self._verified.add(manifest.id)
        self._trained_before_s, self._started = manifest.facts.training_s, time.monotonic()
        return Restored(
            id=manifest.id,
            step=state.step,
            manifest=manifest,
            verdicts=choice.verdicts,
            warnings=tuple(warnings),
        )

    def _stage(self, state: TrainState) -> Capture:
        """What a save needs of the training; the training must stand still until the write, as nothing is copied."""
        return state.capture(self._rank, self._world_size)

    def _write_and_commit(
        self, ident: CheckpointId, staged: Capture, facts: Facts, timeout_s: float | None
    ) -> Published:
        def write(directory: Path) -> RankReport:
            plan, planner = plan_save(
                staged.tensors, rank=self._rank, world_size=self._world_size, pinned=staged.pinned
            )
            writer = StoreWriter(directory, rank=self._rank, digesting=self._digesting)
            results = writer.write_data(plan, planner).wait()
            assert writer.entry is not None
            index: dict[str, Any] = {"tensors": report_tensors(results), "own": staged.own}
            return RankReport(files=(writer.entry,), index={**index, "agreement": staged.agreement})

        def merge(parts: list[Any]) -> dict[str, bytes]:
            _check_agreement([part["agreement"] for part in parts])
            index = Index(
                tensors=merge_tensors([part["tensors"] for part in parts]),
                trees=staged.trees,
                ranks={rank: part["own"] for rank, part in enumerate(parts)},
            )
            if problems := index.problems():
                raise CheckpointError("the ranks' parts don't make a whole state", why="; ".join(problems[:10]))
            return {INDEX_NAME: index.render()}

        deadline_s = self._save_timeout_s if timeout_s is None else timeout_s
        round_ = self._rounds.start(self._round_name("save", ident.step), deadline_s)
        return publish(self._directory, ident, round_, write=write, merge=merge, facts=facts, digesting=self._digesting)

    def _facts(self, staged: Capture, reason: str, metadata: Mapping[str, Any]) -> Facts:
        parent = self._last_saved or self._resumed_from
        return Facts(
            run_id=self._run_id,
            parent=str(parent) if parent else None,
            world_size=self._world_size,
            layout=staged.layout,
            code_version=self._code_version,
            versions={
                "python": platform.python_version(),
                "torch": str(torch.__version__),
                "resilient_launch": resilient_launch.__version__,
            },
            reason=reason,
            training_s=self._trained_before_s + time.monotonic() - self._started,
            metadata={**metadata, **described(self._metrics)},
        )

    def _compare(self, manifest: Manifest, layout: Mapping[str, Any]) -> list[str]:
        """The topology and code of the checkpoint against ours: loud, and fatal where configured so."""
        facts, warnings = manifest.facts, []
        if facts.world_size != self._world_size or dict(facts.layout) != dict(layout):
            what = (
                f"checkpoint {manifest.name} was saved by {facts.world_size} ranks, {_text(facts.layout)}; "
                f"now there are {self._world_size}, {_text(layout)}"
            )
            why = "training can go on but its results will not be bit-identical"
            if self._on_topology_change == "error":
                raise CheckpointError(what, why=why, hint="start with the same topology, or --allow topology")
            warnings.append(f"{what}: {why}")
        if self._code_version and facts.code_version and facts.code_version != self._code_version:
            what = f"checkpoint {manifest.name} was saved by code {facts.code_version}; this is {self._code_version}"
            if self._on_code_change == "error":
                raise CheckpointError(what, hint="go on with the code that saved it, or --allow code")
            warnings.append(what)
        return warnings

    def _prepare(self) -> None:
        """Once, before the first save or restore: make the directory, and shut out writers of older attempts."""
        if self._is_prepared or self._rank != 0:
            return
        self._is_prepared = True
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            fence(self._directory, self._attempt, self._restart)
            sweep(self._directory)
        except OSError as error:
            # Restoring only needs to read; a save will say itself what is wrong with writing.
            _LOG.warning("can't tidy up %s: %s", self._directory, error)

    def _prune(self) -> tuple[CheckpointId, ...]:
        try:
            removed = prune(self._directory, self._policy, verified=self._verified, resumed_from=self._resumed_from)
        except (OSError, CheckpointError) as error:
            # The new checkpoint is safe; failing to remove an old one is no reason to stop.
            _LOG.warning("can't remove old checkpoints: %s", error)
            return ()
        self._verified.difference_update(removed)
        return tuple(removed)

    def _round_name(self, what: str, step: int = 0) -> str:
        # By step and not by a running number: ranks that fell out of step in a failed save meet again in the next one.
        last_step, tries = self._last_round.get(what, (step, 0))
        tries = tries + 1 if last_step == step else 1
        self._last_round[what] = (step, tries)
        return f"{what} {step}.{tries} of attempt {self._attempt}.{self._restart}"


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


def _text(layout: Mapping[str, Any]) -> str:
    meshes = layout.get("meshes", ())
    return " ".join([str(layout.get("kind")), *(str(tuple(mesh["shape"])) for mesh in meshes)])
